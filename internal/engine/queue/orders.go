package queue

import (
	"bytes"
	"os"
	"time"

	"premix/internal/kit/lines"
)

// Kinds of orders.
const (
	orderBatch   = "batch"
	orderCancel  = "cancel"
	orderRetry   = "retry"
	orderPrune   = "prune"
	orderPunch   = "prune-output" // a premix that does not know it changes nothing
	orderHold    = "hold"
	orderRelease = "release"
	orderBegin   = "begin" // of a run: tasks have so many retries from here on
)

// Order is a line of orders.jsonl: a request of a user.
type Order struct {
	Order string    `json:"order"`
	At    time.Time `json:"at"`
	User  string    `json:"user,omitempty"`

	// Of a batch.
	First     int     `json:"first,omitempty"` // number of its first task
	Tasks     int     `json:"tasks,omitempty"`
	Offset    int64   `json:"offset,omitempty"` // in tasks.jsonl
	Bytes     int64   `json:"bytes,omitempty"`
	Digest    string  `json:"digest,omitempty"` // of group, directory and those bytes, SHA-256
	Groups    []Group `json:"groups,omitempty"` // in the order in which its tasks name them
	Dir       string  `json:"dir,omitempty"`
	Cores     int     `json:"cores,omitempty"`
	Memory    int64   `json:"memory,omitempty"`
	Priority  int     `json:"priority,omitempty"`
	Timeout   float64 `json:"timeout,omitempty"` // seconds
	Retries   int     `json:"retries,omitempty"`
	Growth    float64 `json:"growth,omitempty"`
	Resources string  `json:"resources,omitempty"`
	Files     string  `json:"files,omitempty"` // directory for a file a task
	Held      bool    `json:"held,omitempty"`  // its tasks are
	Array     bool    `json:"array,omitempty"` // its tasks are one line, an array
	Edges     int64   `json:"edges,omitempty"` // in tasks.jsonl, among its bytes; 0: it has none

	// Of the others, and Retries of orderBegin: first task, last task, last try before the order.
	Which [][3]int `json:"which,omitempty"`
}

// Group is the declaration of a group in a batch.
type Group struct {
	Name  string   `json:"name"`
	After []string `json:"after,omitempty"`
}

func (o *Order) options() Options {
	opts := Options{Dir: o.Dir, Cores: o.Cores, Memory: o.Memory, Priority: o.Priority,
		Timeout: time.Duration(o.Timeout * float64(time.Second)), Retries: o.Retries, Growth: o.Growth, Resources: o.Resources}
	if len(o.Groups) > 0 {
		opts.Group = o.Groups[0].Name
	}
	return opts
}

// appendOrders makes orders durable. It writes them at size: a premix that was killed within
// a line may have left an incomplete line there. The caller holds lock.
func appendOrders(f *os.File, size int64, orders []*Order) (int64, error) {
	var buf bytes.Buffer
	for _, o := range orders {
		line, err := marshal(o)
		if err != nil {
			return size, err
		}
		buf.Write(line)
		buf.WriteByte('\n')
	}
	return lines.Append(f, size, buf.Bytes(), true)
}
