package cluster

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// The interface of a node:
//
//	GET    /v1/node             its [Status]
//	PUT    /v1/databases/NAME   a [Placement]; the node begins to load its fragments
//	DELETE /v1/databases/NAME   the node removes all fragments of the database
//	POST   /v1/search           a searchOrder as one line of JSON, and the queries; [frames]
//
// Errors are {"error": ..., "hint": ...} with a status of 400 and up.

// Status describes a node.
type Status struct {
	Node      string                      `json:"node"` // host and address
	Premix    string                      `json:"premix"`
	Programs  map[database.Program]string `json:"programs"` // their versions
	Cores     int                         `json:"cores"`
	Budget    int64                       `json:"budget_bytes"`
	Used      int64                       `json:"used_bytes"`
	Searches  int                         `json:"searches"` // that run or wait
	Answered  int64                       `json:"answered"` // searches that have ended, since the node was started
	Databases []HeldDatabase              `json:"databases"`
	Placed    map[string]Place            `json:"placed,omitempty"` // by name
}

// Place identifies the placement of a database on a node.
type Place struct {
	ID     string `json:"id"`
	Serial int64  `json:"serial"`
}

// HeldDatabase are the fragments of one database on a node.
type HeldDatabase struct {
	Name      string         `json:"name"`
	ID        string         `json:"id"`
	Fragments []HeldFragment `json:"fragments"`
}

// HeldFragment is a fragment that a node has, or should have.
type HeldFragment struct {
	Number   int    `json:"fragment"`
	Bytes    int64  `json:"bytes"`
	InMemory int64  `json:"in_memory_bytes"` // by mincore(2)
	Complete bool   `json:"complete"`
	Error    string `json:"error,omitempty"` // why it is not here
	NoRoom   bool   `json:"no_room,omitempty"`
}

// Placement says which nodes hold the fragments of a database.
type Placement struct {
	Format   string   `json:"format"`
	Name     string   `json:"name"`
	ID       string   `json:"id"`     // of the description
	Tree     string   `json:"tree"`   // its digest
	Serial   int64    `json:"serial"` // about ns since the epoch; a placement replaces those with a lower one
	Replicas int      `json:"replicas"`
	Nodes    []string `json:"nodes"` // addresses, HOST:PORT
	Order    [][]int  `json:"order"` // of each fragment: indexes of all nodes
}

const placementFormat = "premix blast placement 1"

// check refuses a placement that is not consistent in itself.
func (p *Placement) check() error {
	switch {
	case p.Format != placementFormat:
		return fmt.Errorf("the placement has the format %q, and %q is known", p.Format, placementFormat)
	case p.Replicas < 1 || p.Replicas > len(p.Nodes):
		return fmt.Errorf("%d replicas on %d nodes", p.Replicas, len(p.Nodes))
	case len(p.Order) == 0:
		return errors.New("the placement has no fragments")
	}
	for f, order := range p.Order {
		seen := make([]bool, len(p.Nodes))
		for _, n := range order {
			if n < 0 || n >= len(seen) || seen[n] {
				return fmt.Errorf("the order of fragment %d is not a permutation of the nodes", f)
			}
			seen[n] = true
		}
		if len(order) != len(seen) {
			return fmt.Errorf("the order of fragment %d has %d of %d nodes", f, len(order), len(seen))
		}
	}
	return nil
}

// searchOrder is the first line of a search.
type searchOrder struct {
	part.Order
	Version string     `json:"version"` // of the program, which the results must have
	Range   part.Range `json:"range"`
}

// frames is the body of the answer to a search: frames of a kind, a length of four bytes, big
// endian, and as many bytes.
//
//	a  bytes of results
//	.  nothing; one is sent each second
//	e  the end, an [ending] as JSON
//
// A body without an end is incomplete.
type frames struct {
	mu sync.Mutex
	w  io.Writer
	to *http.ResponseController
}

const (
	frameResult = 'a'
	frameAlive  = '.'
	frameEnd    = 'e'

	longestFrame = 1 << 20
)

// ending is how a search ended.
type ending struct {
	Code   int    `json:"code"`             // exit status of the program
	Stderr []byte `json:"stderr,omitempty"` // its messages
	Error  string `json:"error,omitempty"`  // another failure
}

func (f *frames) send(kind byte, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	head := [5]byte{kind}
	binary.BigEndian.PutUint32(head[1:], uint32(len(p)))
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	if _, err := f.w.Write(p); err != nil {
		return err
	}
	return f.to.Flush()
}

// Write sends bytes of results.
func (f *frames) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		k := min(len(p)-n, longestFrame)
		if err := f.send(frameResult, p[n:n+k]); err != nil {
			return n, err
		}
		n += k
	}
	return len(p), nil
}

// end sends the end of a search.
func (f *frames) end(e ending) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if len(text) > longestFrame {
		text, err = json.Marshal(ending{Code: e.Code, Error: e.Error, Stderr: e.Stderr[:longestFrame/2]})
	}
	if err != nil {
		return err
	}
	return f.send(frameEnd, text)
}

// receive writes the results of an answer to out, until its end. It calls alive for each
// frame.
func receive(in io.Reader, out io.Writer, alive func()) (ending, error) {
	var e ending
	for {
		var head [5]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return e, unexpected(err)
		}
		alive()
		n := int64(binary.BigEndian.Uint32(head[1:]))
		if n > longestFrame {
			return e, fmt.Errorf("a frame of %d bytes", n)
		}
		switch head[0] {
		case frameResult:
			if _, err := io.CopyN(out, in, n); err != nil {
				return e, unexpected(err)
			}
		case frameAlive:
			if n != 0 {
				return e, errors.New("a frame that should be empty is not")
			}
		case frameEnd:
			text := make([]byte, n)
			if _, err := io.ReadFull(in, text); err != nil {
				return e, unexpected(err)
			}
			return e, json.Unmarshal(text, &e)
		default:
			return e, fmt.Errorf("a frame of unknown kind %q", head[0])
		}
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
