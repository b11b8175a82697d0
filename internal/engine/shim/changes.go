package shim

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"premix/internal/engine/queue"
	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
)

// changes are the properties of jobs that scontrol has changed since they were submitted, in
// DIR/.premix/slurm/changes.
type changes struct {
	notes map[int]*jobMeta
	log   *os.File
	size  int64
}

type changedNote struct {
	Job  int      `json:"job"`
	Note *jobMeta `json:"note"`
}

func readChanges(dir string) (*changes, error) {
	log, err := owner.OpenFile(statePath(dir, "changes"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c := &changes{notes: make(map[int]*jobMeta), log: log}
	c.size, err = lines.Read(log, 0, func(line []byte, _ int64) error {
		var one changedNote
		if json.Unmarshal(line, &one) == nil && one.Note != nil {
			c.notes[one.Job] = one.Note
		}
		return nil
	})
	return c, err
}

// put records the properties of a job.
func (c *changes) put(job int, n *jobMeta) error { return c.putAll(map[int]*jobMeta{job: n}) }

// putAll records the properties of jobs, of all or of none.
func (c *changes) putAll(notes map[int]*jobMeta) (err error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for _, job := range slices.Sorted(maps.Keys(notes)) {
		if err := enc.Encode(changedNote{job, notes[job]}); err != nil {
			return err
		}
	}
	if c.size, err = lines.Append(c.log, c.size, text.Bytes(), true); err != nil {
		return err
	}
	maps.Copy(c.notes, notes)
	return nil
}

// limitsOf returns the time limits of jobs.
func limitsOf(notes map[int]*jobMeta) map[int]time.Duration {
	m := make(map[int]time.Duration)
	for id, n := range notes {
		m[id] = time.Duration(n.Limit * float64(time.Second))
	}
	return m
}

// scriptOf returns the batch script of a job.
func scriptOf(spec *queue.Spec) string {
	argv := spec.Argv
	if len(argv) > 7 && argv[0] == "/bin/sh" && argv[3] == "sh" {
		argv = argv[6:] // of --open-mode=append
	}
	for i := range argv {
		if argv[i] == "-c" && i+1 < len(argv) {
			return argv[i+1]
		}
	}
	for _, path := range argv {
		if strings.Contains(path, "/.premix/slurm/script-") {
			text, _ := os.ReadFile(path) // it is removed when the job has ended
			return string(text)
		}
	}
	return ""
}

// line returns the command that submitted a job.
func (j *job) line() string {
	if j.Line != "" {
		return "sbatch " + j.Line
	}
	return "sbatch " + j.Command
}
