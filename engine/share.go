package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"premix/internal/owner"
	"premix/record"
)

// What an engine needs that spreads a run over workers.

// WorkerLock is the file that the worker of a seat holds locked.
func WorkerLock(dir, seat string) string {
	return filepath.Join(dir, StateDir, "work-"+seat+".lock")
}

// OpenShare opens the run in dir for a worker, which runs the tasks in ranges of
// numbers and nothing else, and holds the lock of its seat. plan is what the recipe
// says now.
func OpenShare(dir string, plan *Plan, seat string, share [][2]int) (_ *Run, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = dirError(dir, err) }()
	old, err := ReadPlan(dir)
	if err != nil {
		return nil, err
	}
	if what := plan.changed(old); what != "" {
		return nil, &DirError{Dir: dir, Reason: "cannot be gone on with: the run was begun with " + what, Way: "put it back as it was, or begin a new run in another directory"}
	}
	r := &Run{Dir: dir, Plan: old, version: plan.Header.Premix, seat: seat, share: share}
	Announce(dir)
	return r, r.load()
}

// Seat is the name of the worker under which records say where their standard error
// is; "" where there is one premix for all.
func (r *Run) Seat() string { return r.seat }

// named is a name in the state directory that each worker has for itself.
func (r *Run) named(name string) string {
	if r.seat == "" {
		return name
	}
	ext := filepath.Ext(name)
	return name[:len(name)-len(ext)] + "-" + r.seat + ext
}

// has tells whether a task is of the share.
func (r *Run) has(task int) bool {
	return r.share == nil || slices.ContainsFunc(r.share, func(s [2]int) bool { return task >= s[0] && task <= s[1] })
}

// Follower reads the records of a run as they come, of all workers. It is for one
// goroutine.
type Follower struct {
	dir string
	at  map[string]int64 // how far each journal was read
}

// Follow makes one that begins with the first record.
func (r *Run) Follow() *Follower { return &Follower{dir: r.Dir, at: make(map[string]int64)} }

// Next calls f for each record that was not read before.
func (f *Follower) Next(each func(*record.Task)) error {
	paths, err := journals(f.dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := f.read(path, each); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (f *Follower) read(path string, each func(*record.Task)) error {
	file, err := owner.OpenOthers(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(f.at[path], io.SeekStart); err != nil {
		return err
	}
	in := bufio.NewReader(file)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what is behind the last whole line is not there yet
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if f.at[path] > 0 { // the first line is the header
			rec := &record.Task{}
			if json.Unmarshal(line, rec) == nil {
				each(rec)
			}
		}
		f.at[path] += int64(len(line))
	}
}
