package node

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/store/cache"
	"premix/internal/store/tree"
)

// recording is the profile recorded by a mount with --record. Its file is written every
// second in which there were reads: neither a signal nor the death of the worker loses
// more.
type recording struct {
	path  string
	prior []tree.Part // recorded by earlier workers

	mu       sync.Mutex
	recorder *cache.Recorder
	written  int // the recorder's leaves that are in the file; -1 before the first write
}

// recordEvery is the time between two writes of a profile.
const recordEvery = time.Second

// newRecording begins a recording, or continues the one in the file.
func newRecording(path string, t *cache.Tree, goOn bool) (*recording, error) {
	r := &recording{path: path, written: -1}
	if goOn {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		p, err := tree.ParseProfile(content, t.Digest(), t.Manifest().Chunks())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r.prior = p.Parts
	}
	r.recorder = t.Record()
	// Write now, so that an unwritable file is reported before the work is done.
	if err := r.save(); err != nil {
		r.recorder.Stop()
		return nil, usage("name a file in a directory in which this user may write", "--record: %v", err)
	}
	return r, nil
}

// save writes the file if there are new reads.
func (r *recording) save() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	touched := r.recorder.Touched()
	if touched == r.written {
		return nil
	}
	p := r.recorder.Profile()
	p.Parts = merge(r.prior, p.Parts)
	content, err := p.Marshal()
	if err != nil {
		return err
	}
	if err := beneath.Replace(r.path, 0o644, beneath.Volatile, content); err != nil {
		return err
	}
	r.written = touched
	return nil
}

// merge returns the parts of two recordings, of which the second continues the first.
func merge(first, then []tree.Part) []tree.Part {
	parts, place := slices.Clone(first), map[int]int{}
	for i, p := range parts {
		place[p.Chunk] = i
	}
	for _, p := range then {
		i, both := place[p.Chunk]
		switch {
		case !both:
			parts = append(parts, p)
		case !parts[i].Whole() && !p.Whole():
			parts[i].Runs = tree.JoinRuns(append(slices.Clone(parts[i].Runs), p.Runs...), 0)
		default:
			parts[i].Runs = nil
		}
	}
	return parts
}

// finish writes the profile and ends the recording.
func (r *recording) finish() error {
	err := r.save()
	r.recorder.Stop()
	return err
}

// saveRecordings saves the recordings of all mounts.
func (d *daemon) saveRecordings() {
	d.mu.Lock()
	var list []*mount
	for _, m := range d.mounts {
		if m.recorded != nil {
			list = append(list, m)
		}
	}
	d.mu.Unlock()
	for _, m := range list {
		if err := m.recorded.save(); err != nil {
			d.trouble(m, fmt.Errorf("the recorded profile: %w", err))
		}
	}
}

// keepRecordings saves recordings for as long as the daemon runs.
func (d *daemon) keepRecordings() {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(recordEvery):
			d.saveRecordings()
		}
	}
}
