package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"premix/internal/engine"
	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// Names reads the names of tasks, for a reader that watches a directory from outside. It
// takes no lock, writes nothing, and keeps no index. Tasks that run one after the other are
// close together in tasks.jsonl, so Names reads and keeps a piece of the file. It is for one
// goroutine.
type Names struct {
	dir     string
	read    int64 // of orders.jsonl
	batches []*Order
	marks   map[int]int64 // where the lines of some tasks begin
	ranges  [2]nameRange  // the last that were used
}

// nameRange holds the names of tasks with consecutive numbers, first and those after it.
type nameRange struct {
	first int
	names []Named
}

// rangeTasks is how many tasks are read at a time, at most.
const rangeTasks = 256

// Named is the name of a task, and the resources that it asked for.
type Named struct {
	Name   string // its name, or its command
	Group  string
	User   string // user who submitted it
	Cores  int
	Memory int64 // bytes; 0: no limit
}

// maxName is how many bytes of a command are taken for a name.
const maxName = 200

// NamesOf reads names from the task directory dir.
func NamesOf(dir string) *Names {
	return &Names{dir: filepath.Join(dir, engine.StateDir, engine.QueueDir), marks: make(map[int]int64)}
}

// Of returns the name and the resources of a task.
func (n *Names) Of(task int) (Named, error) {
	for _, p := range n.ranges {
		if i := task - p.first; i >= 0 && i < len(p.names) {
			return p.names[i], nil
		}
	}
	if err := n.refresh(); err != nil {
		return Named{}, err
	}
	i := sort.Search(len(n.batches), func(i int) bool { return n.batches[i].First > task }) - 1
	if i < 0 || task >= n.batches[i].First+n.batches[i].Tasks {
		return Named{}, errors.New("no such task")
	}
	p, err := n.nameRange(n.batches[i], task)
	if err != nil {
		return Named{}, err
	}
	n.ranges[1], n.ranges[0] = n.ranges[0], p
	return p.names[task-p.first], nil
}

// nameRange reads the piece of a batch that has a task.
func (n *Names) nameRange(o *Order, task int) (nameRange, error) {
	f, err := owner.OpenOthers(filepath.Join(n.dir, tasksFile))
	if err != nil {
		return nameRange{}, err
	}
	defer f.Close()
	p := nameRange{first: task - (task-o.First)%rangeTasks}
	opts := o.options()
	if o.Array {
		err := n.elements(f, o, &p)
		return p, err
	}
	// From the last mark before it, which is there unless tasks were left out.
	at, from := o.First, o.Offset
	for t := p.first; t > o.First; t -= rangeTasks {
		if offset, ok := n.marks[t]; ok {
			at, from = t, offset
			break
		}
	}
	_, err = lines.Read(f, from, func(line []byte, offset int64) error {
		if (at-o.First)%rangeTasks == 0 {
			n.marks[at] = offset
		}
		if at == p.first+rangeTasks || at == o.First+o.Tasks {
			return errStop
		}
		at++
		if at <= p.first {
			return nil
		}
		spec, err := parseSpec(line)
		if err != nil {
			return err
		}
		spec.under(&opts)
		p.names = append(p.names, named(spec, o.User))
		return nil
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	if err == nil && task-p.first >= len(p.names) {
		err = io.ErrUnexpectedEOF
	}
	return p, err
}

// elements reads a piece of an array, whose tasks are one line.
func (n *Names) elements(f *os.File, o *Order, p *nameRange) error {
	opts := o.options()
	_, err := lines.Read(f, o.Offset, func(line []byte, _ int64) error {
		spec, err := parseSpec(line)
		if err != nil {
			return err
		}
		if spec.Array == nil {
			return io.ErrUnexpectedEOF
		}
		spec.under(&opts)
		for t := p.first; t < min(p.first+rangeTasks, o.First+o.Tasks); t++ {
			p.names = append(p.names, named(spec.element(t, t-o.First), o.User))
		}
		return errStop
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return cmp.Or(err, io.ErrUnexpectedEOF)
}

// errStop ends a reading whose reader has seen enough.
var errStop = errors.New("stop")

func named(s *Spec, user string) Named {
	name := Named{Name: s.Name, Group: s.Group, User: user, Cores: s.Cores, Memory: s.Memory}
	if name.Name == "" {
		name.Name = s.Command
	}
	if name.Name == "" {
		name.Name = strings.Join(s.Argv, " ")
	}
	if len(name.Name) > maxName {
		name.Name = strings.ToValidUTF8(name.Name[:maxName], "") + "..."
	}
	return name
}

// refresh reads new batches.
func (n *Names) refresh() error {
	f, err := owner.OpenOthers(filepath.Join(n.dir, ordersFile))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == n.read {
		return err
	}
	n.read, err = record.Follow(f, n.read, func(line []byte, _ int64) error {
		o := &Order{}
		if json.Unmarshal(line, o) == nil && o.Order == orderBatch {
			n.batches = append(n.batches, o)
		}
		return nil
	})
	return err
}
