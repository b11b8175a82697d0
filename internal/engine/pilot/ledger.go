package pilot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"premix/internal/engine"
	"premix/internal/kit/beneath"
	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// Events of a ledger.
const (
	eventWave      = "wave"      // shares are given away, and about to be submitted
	eventSubmitted = "submitted" // the engine has the wave
	eventClosed    = "closed"    // a worker is over; the rest of its share is free
	eventDrain     = "drain"     // workers start no more tasks
)

// Entry is a line of ledger.jsonl, behind a record.Header.
type Entry struct {
	Event string    `json:"event"`
	At    time.Time `json:"at"`

	// For eventWave; Wave also for eventSubmitted.
	Wave     int       `json:"wave,omitempty"` // from 1
	Engine   string    `json:"engine,omitempty"`
	Token    string    `json:"token,omitempty"` // its engine jobs carry it
	Settings *Settings `json:"settings,omitempty"`
	Shares   []Share   `json:"shares,omitempty"` // the place of one is the index of its engine job

	// For eventSubmitted: the engine's ids, by share.
	Jobs []string `json:"jobs,omitempty"`

	// Of a worker that was closed.
	Worker    int    `json:"worker,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Fruitless bool   `json:"fruitless,omitempty"`
}

// Settings are the properties of a wave that workers need beside their share. Times are
// seconds.
type Settings struct {
	Target   float64 `json:"target"` // budget of a worker; 0: none
	FailFast bool    `json:"fail_fast,omitempty"`
	// Of tasks without a recipe, as in local.TaskOptions.
	KeepDaemons bool `json:"keep_daemons,omitempty"`
	// Variables of the environment that an engine job has and its tasks do not get.
	Unset []string `json:"unset,omitempty"`
	// Options of the engine, so that others can ask it.
	Options map[string]string `json:"options,omitempty"`
	// Of a run with a recipe, as in local.Options.
	Start   string  `json:"start,omitempty"`
	Trust   bool    `json:"trust,omitempty"`
	Verify  string  `json:"verify,omitempty"` // a hotstart.Share; empty: the recipe's
	Retries int     `json:"retries,omitempty"`
	Timeout float64 `json:"timeout,omitempty"`
	Store   string  `json:"store,omitempty"`
	Trees   *Trees  `json:"trees,omitempty"`
}

// Trees are the sources from which a worker gets the trees, repositories and images that a
// recipe names.
// Files and directories are absolute, and the same on the nodes.
type Trees struct {
	Origins     []string `json:"origins,omitempty"` // in order of preference; empty: the origins of the node's configuration
	Proxies     []string `json:"proxies,omitempty"`
	KeyFile     string   `json:"key_file,omitempty"`
	Credentials string   `json:"credentials,omitempty"`
	CAFile      string   `json:"ca_file,omitempty"`
	CVMFS       string   `json:"cvmfs,omitempty"` // directory of the configuration for repositories; empty: the client's
}

// Share is the work of one worker.
type Share struct {
	Worker     int      `json:"worker"` // from 1, never used again
	WorkerSlot int      `json:"seat"`   // from 1, free again when the worker is closed
	Ranges     [][2]int `json:"ranges"` // first and last numbers of tasks, ascending
	Cores      int      `json:"cores"`  // that its engine job asks for
	Memory     int64    `json:"memory,omitempty"`
	Ask        string   `json:"ask,omitempty"`       // options of the engine that its tasks need, KEY=VALUE, one a line
	Resources  string   `json:"resources,omitempty"` // of one of its tasks, as in Requirements
	Strikes    int      `json:"strikes,omitempty"`
}

// SlotName returns the name under which the worker writes.
func (s *Share) SlotName() string { return fmt.Sprint(s.WorkerSlot) }

// Tasks returns the number of tasks in the share.
func (s *Share) Tasks() int {
	n := 0
	for _, r := range s.Ranges {
		n += r[1] - r[0] + 1
	}
	return n
}

// held is a worker as the ledger knows it.
type held struct {
	Share
	wave   int
	job    string // the engine's id; "" as long as the wave is not known to be submitted
	closed bool
}

// wave is a wave as the ledger knows it.
type wave struct {
	Entry
	submitted bool
	workers   []*held
}

// ledger is an open ledger.
type ledger struct {
	path    string
	file    *os.File // nil: read only
	size    int64    // bytes of whole lines
	version string
	waves   []*wave
	workers []*held // by number - 1
	drain   bool    // whether the last event drains workers
}

// ledgerPath returns the path of the ledger of a directory.
func ledgerPath(dir string) string { return filepath.Join(engine.State(dir), "ledger.jsonl") }

// read applies the entries appended since the last read.
func (l *ledger) read() error {
	f, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// Opening the file again makes a network file system check its size.
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < l.size {
		return &engine.DirError{Dir: filepath.Dir(l.path), Reason: "has lost a part of its ledger (" + l.path + ")", HintText: "submit the tasks to another directory"}
	}
	if info.Size() == l.size {
		return nil
	}
	l.size, err = lines.Read(f, l.size, func(line []byte, at int64) error {
		var h record.Header
		if at > 0 {
			return l.apply(line)
		}
		if json.Unmarshal(line, &h) == nil && h.Format > record.Format {
			return &record.FormatError{Path: l.path, Format: h.Format}
		}
		return nil
	})
	return err
}

// apply applies a line.
func (l *ledger) apply(line []byte) error {
	e := &Entry{}
	if err := json.Unmarshal(line, e); err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	switch e.Event {
	case eventWave:
		w := &wave{Entry: *e}
		for _, s := range e.Shares {
			if s.Worker != len(l.workers)+1 {
				return fmt.Errorf("%s: worker %d follows worker %d", l.path, s.Worker, len(l.workers))
			}
			h := &held{Share: s, wave: e.Wave}
			w.workers = append(w.workers, h)
			l.workers = append(l.workers, h)
		}
		l.waves = append(l.waves, w)
		l.drain = false
	case eventSubmitted:
		w := l.wave(e.Wave)
		if w == nil || len(e.Jobs) != len(w.workers) {
			return fmt.Errorf("%s: wave %d was submitted and never made", l.path, e.Wave)
		}
		w.submitted = true
		for i, id := range e.Jobs {
			w.workers[i].job = id
		}
	case eventClosed:
		if e.Worker < 1 || e.Worker > len(l.workers) {
			return fmt.Errorf("%s: worker %d was closed and never was", l.path, e.Worker)
		}
		l.workers[e.Worker-1].closed = true
	case eventDrain:
		l.drain = true
	}
	return nil
}

func (l *ledger) wave(n int) *wave {
	if n < 1 || n > len(l.waves) {
		return nil
	}
	return l.waves[n-1]
}

// open returns the workers that were not closed.
func (l *ledger) open() []*held {
	var list []*held
	for _, h := range l.workers {
		if !h.closed {
			list = append(list, h)
		}
	}
	return list
}

// append makes entries durable, together, and applies them. The caller is the
// dispatcher.
func (l *ledger) append(entries ...*Entry) (err error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if l.file == nil {
		if l.file, err = owner.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
			return err
		}
	}
	if l.size == 0 {
		if err := enc.Encode(engine.NewHeader("ledger", l.version)); err != nil {
			return err
		}
	}
	now := time.Now().UTC()
	for _, e := range entries {
		e.At = now
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	if _, err := lines.Append(l.file, l.size, text.Bytes(), true); err != nil {
		return engine.DirectoryError(filepath.Dir(l.path), err)
	}
	if l.size == 0 {
		if err := beneath.SyncDir(filepath.Dir(l.path)); err != nil {
			return err
		}
	}
	return l.read()
}

func (l *ledger) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
