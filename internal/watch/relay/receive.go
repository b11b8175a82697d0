package relay

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/watch"
)

// Store is the part of a *series.DB that a receiver needs.
type Store interface {
	// Accept stores samples, and returns the number of those that it does not take now,
	// because samples of too many other times arrive.
	Accept([]watch.Sample) (late int)
	Task(watch.Task)
	Event(watch.Event)
	Events(ctx context.Context, start, end time.Time) ([]watch.Event, error)
	// Sync returns when all data that was passed on before is on the disk.
	Sync(ctx context.Context) error
}

// Origin is a machine that sends.
type Origin struct {
	Node    string    `json:"node"`
	Applied uint64    `json:"applied"`
	Last    time.Time `json:"last"` // of its last request
	Missing uint64    `json:"missing"`
}

// origin is the state of one sender.
type origin struct {
	mu      sync.Mutex // held while its request is stored
	d       decoder
	applied uint64
	suspect uint64 // frames up to this number may have been stored already
	missing uint64
	last    time.Time
	told    uint64 // the first frame after the last gap that was recorded
	samples []watch.Sample
}

// Receiver stores the frames of senders.
type Receiver struct {
	to    Store
	own   string // name of this machine
	file  string
	slots chan struct{}

	mu    sync.Mutex
	all   map[string]*origin // by node and identity
	log   *os.File
	lines int
}

// Limits of a receiver.
const (
	mostOrigins = 10_000
	atOnce      = 8
	maxRequest  = maxBytes + MaxFrame + frameHead
)

// NewReceiver returns a receiver with the state in a directory.
func NewReceiver(to Store, own, dir string) (*Receiver, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	r := &Receiver{to: to, own: own, file: filepath.Join(dir, "applied"), all: make(map[string]*origin), slots: make(chan struct{}, atOnce)}
	text, err := os.ReadFile(r.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		// NUMBER KEY; a torn last line has no valid end.
		number, key, ok := strings.Cut(in.Text(), " ")
		key, whole := strings.CutSuffix(key, " .")
		n, err := strconv.ParseUint(number, 10, 64)
		if !ok || !whole || err != nil {
			continue
		}
		node, _, _ := strings.Cut(key, "/")
		r.all[key] = &origin{applied: n, suspect: n + maxFrames, d: decoder{node: node}}
	}
	return r, r.rewrite()
}

// rewrite writes the state anew, with a line for each sender. The caller holds mu, or is
// the only one.
func (r *Receiver) rewrite() error {
	var b bytes.Buffer
	for key, o := range r.all {
		fmt.Fprintf(&b, "%d %s .\n", o.applied, key)
	}
	if err := beneath.Replace(r.file, 0o640, beneath.Durable, b.Bytes()); err != nil {
		return err
	}
	log, err := os.OpenFile(r.file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if r.log != nil {
		r.log.Close() // it has been replaced
	}
	r.log, r.lines = log, 0
	return nil
}

// record notes that frames up to a number have been stored.
func (r *Receiver) record(key string, o *origin, applied uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.applied = applied
	if r.lines++; r.lines > 10*len(r.all)+100_000 {
		return r.rewrite()
	}
	_, err := fmt.Fprintf(r.log, "%d %s .\n", applied, key)
	return err
}

// Close closes the state.
func (r *Receiver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Close()
}

// RequestError is returned for a request that cannot be stored.
type RequestError struct {
	Status int
	Text   string
}

func (e *RequestError) Error() string { return e.Text }

// ValidNode reports whether a text can be the name of a machine that sends.
func ValidNode(name string) bool {
	return name != "" && len(name) <= 253 && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	})
}

// Receive stores the frames of a request, and returns the number of the last frame that is
// stored. user is the machine whose token the request has; "" permits all. An error is a
// *RequestError, except where the disk cannot be written.
func (r *Receiver) Receive(ctx context.Context, header http.Header, user string, body []byte) (applied uint64, err error) {
	node, id := header.Get(headerNode), header.Get(headerSender)
	first, err := strconv.ParseUint(header.Get(headerFirst), 10, 64)
	if err != nil || !ValidNode(node) || len(id) != 16 || strings.Trim(id, "0123456789abcdef") != "" {
		return 0, &RequestError{http.StatusBadRequest, "the headers are not those of premix watch"}
	}
	if user != "" && user != node {
		return 0, &RequestError{http.StatusForbidden, "the token is for " + user + ", and not for " + node}
	}
	if node == r.own {
		return 0, &RequestError{http.StatusForbidden, node + " is the name of the receiver: give each machine a name of its own (node: in its configuration)"}
	}
	key := node + "/" + id
	r.mu.Lock()
	o := r.all[key]
	if o == nil {
		if len(r.all) >= mostOrigins {
			r.mu.Unlock()
			return 0, &RequestError{http.StatusServiceUnavailable, "too many machines send"}
		}
		o = &origin{d: decoder{node: node}, suspect: first + maxFrames}
		r.all[key] = o
	}
	o.last = time.Now()
	r.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(body) == 0 {
		return o.applied, nil
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if o.applied > 0 && first > o.applied+1 && first != o.told {
		n := first - o.applied - 1
		o.told = first
		r.mu.Lock()
		o.missing += n
		r.mu.Unlock()
		r.to.Event(watch.Event{Time: time.Now(), Node: node, Layer: watch.LayerNetwork, Kind: "send_missing", Text: fmt.Sprintf("%d frames of %s are missing: its spool was full.", n, node)})
	}
	number := first
	for rest := body; len(rest) > 0; number++ {
		payload, after, ok := cutFrame(rest)
		if !ok {
			return 0, &RequestError{http.StatusBadRequest, ErrFrame.Error()}
		}
		rest = after
		if number <= o.applied {
			continue
		}
		if err := r.store(ctx, o, payload, number <= o.suspect); err != nil {
			return 0, err
		}
		o.suspect = max(o.suspect, number) // until it has been recorded
	}
	if number <= o.applied+1 {
		return o.applied, nil
	}
	if err := r.to.Sync(ctx); err != nil {
		return 0, err
	}
	if err := r.record(key, o, number-1); err != nil {
		return 0, err
	}
	return o.applied, nil
}

// store stores one frame. A suspect one may have been stored before.
func (r *Receiver) store(ctx context.Context, o *origin, payload []byte, suspect bool) error {
	f, err := o.d.decode(payload, o.samples[:0])
	if err != nil {
		return &RequestError{http.StatusBadRequest, err.Error()}
	}
	switch {
	case f.task != nil:
		f.task.Node = cmp.Or(f.task.Node, o.d.node)
		r.to.Task(Apart(*f.task, r.own))
	case f.event != nil:
		f.event.Node = o.d.node
		if suspect {
			stored, err := r.to.Events(ctx, f.event.Time, f.event.Time.Add(time.Millisecond))
			if err != nil {
				return err
			}
			if slices.ContainsFunc(stored, func(e watch.Event) bool {
				return e.Node == f.event.Node && e.Kind == f.event.Kind && e.Text == f.event.Text && e.Time.UnixMilli() == f.event.Time.UnixMilli()
			}) {
				return nil
			}
		}
		r.to.Event(*f.event)
	default:
		o.samples = f.samples
		if late := r.to.Accept(f.samples); late > 0 {
			return &RequestError{http.StatusServiceUnavailable, "data of too many other times arrive: try again in ten seconds"}
		}
	}
	return nil
}

// Apart returns a task of another machine with the machine's name in its key: directories of
// different machines may have one name.
func Apart(t watch.Task, own string) watch.Task {
	if t.Node != "" && t.Node != own && !strings.HasPrefix(t.Key, t.Node+":") {
		t.Key = t.Node + ":" + t.Key
	}
	return t
}

// Keep is a sink that keeps tasks of other machines apart.
type Keep struct {
	watch.Sink
	Own string // name of this machine
}

// Task passes a task on.
func (k Keep) Task(t watch.Task) { k.Sink.Task(Apart(t, k.Own)) }

// Origins returns the machines that send, sorted by name.
func (r *Receiver) Origins() []Origin {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []Origin{}
	for key, o := range r.all {
		node, _, _ := strings.Cut(key, "/")
		list = append(list, Origin{Node: node, Applied: o.applied, Last: o.last, Missing: o.missing})
	}
	slices.SortFunc(list, func(a, b Origin) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), a.Last.Compare(b.Last))
	})
	return list
}
