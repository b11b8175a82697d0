package node

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"premix/internal/cvmfs"
	"premix/internal/kit/beneath"
	"premix/internal/store/cache"
	"premix/internal/store/tree"
)

// recorder records a profile: of a tree, or of a repository.
type recorder interface {
	Touched() int             // grows with each new touch
	Marshal() ([]byte, error) // the content of the profile's file
	Stop()
}

// recording is the profile recorded by a mount with --record. Its file is written every
// second in which there were reads: neither a signal nor the death of the worker loses
// more.
type recording struct {
	path string

	mu       sync.Mutex
	recorder recorder
	written  int // the recorder's count of the file; -1 before the first write
}

// recordEvery is the time between two writes of a profile.
const recordEvery = time.Second

// newRecording begins to write what a recorder records.
func newRecording(path string, from recorder) (*recording, error) {
	r := &recording{path: path, recorder: from, written: -1}
	// Write now, so that an unwritable file is reported before the work is done.
	if err := r.save(); err != nil {
		from.Stop()
		return nil, usage("name a file in a directory in which this user may write", "--record: %v", err)
	}
	return r, nil
}

// recordTree begins a recording of a tree, or continues the one in the file.
func recordTree(path string, t *cache.Tree, goOn bool) (*recording, error) {
	r := &treeRecorder{}
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
	r.Recorder = t.Record()
	return newRecording(path, r)
}

// recordRepository is recordTree for a repository.
func recordRepository(path string, l *cvmfs.Live, goOn bool) (*recording, error) {
	var prior *cvmfs.Profile
	if goOn {
		var err error
		if prior, err = l.ReadProfile(path); err != nil {
			return nil, err
		}
	}
	return newRecording(path, l.Record(prior))
}

// treeRecorder records the profile of a tree.
type treeRecorder struct {
	*cache.Recorder
	prior []tree.Part // recorded by earlier workers
}

// Marshal implements recorder.
func (r *treeRecorder) Marshal() ([]byte, error) {
	p := r.Profile()
	p.Parts = merge(r.prior, p.Parts)
	return p.Marshal()
}

// save writes the file if there are new reads.
func (r *recording) save() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	touched := r.recorder.Touched()
	if touched == r.written {
		return nil
	}
	content, err := r.recorder.Marshal()
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
