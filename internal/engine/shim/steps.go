package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/lines"
	"premix/internal/kit/owner"
)

// step is one call of srun in a job. What it did is a line of DIR/.premix/slurm/steps once it
// has ended.
type step struct {
	Job      int       `json:"job"`
	ID       string    `json:"id"` // 0, 1 and so on
	Name     string    `json:"name"`
	Tasks    int       `json:"tasks"`
	Cores    int       `json:"cores"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"ended,omitzero"`
	Exit     int       `json:"exit"`
	Signal   int       `json:"signal,omitempty"`
	User     float64   `json:"user"`    // CPU seconds
	System   float64   `json:"system"`  // CPU seconds
	MaxRSS   int64     `json:"max_rss"` // bytes, of the largest task

	PID     int  `json:"pid,omitempty"`     // of srun, while it runs
	Overlap bool `json:"overlap,omitempty"` // it holds no cores of the job

	GPUs    int      `json:"gpus,omitempty"`    // that the step asks for; 0: it sees all of the job
	Devices []string `json:"devices,omitempty"` // the GPUs of the job
	held    []string // the GPUs of the step
}

func (s *step) over() bool { return !s.Finished.IsZero() }

// took returns how long the step has run.
func (s *step) took() time.Duration {
	if s.over() {
		return s.Finished.Sub(s.Started)
	}
	return time.Since(s.Started)
}

// steps are the steps of all jobs.
type steps struct {
	byJob   map[int][]*step // in the order of their ids
	open    []*step         // that have not ended
	log     *os.File
	size    int64      // of the log
	changed *sync.Cond // a step has ended, or a job
}

// readSteps reads the steps that have ended. mu guards them from now on.
func readSteps(dir string, mu *sync.Mutex) (*steps, error) {
	log, err := owner.OpenFile(statePath(dir, "steps"), os.O_RDWR|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	s := &steps{byJob: make(map[int][]*step), log: log, changed: sync.NewCond(mu)}
	s.size, err = lines.Read(log, 0, func(line []byte, _ int64) error {
		one := &step{}
		if json.Unmarshal(line, one) == nil && one.Job > 0 {
			s.byJob[one.Job] = append(s.byJob[one.Job], one)
		}
		return nil
	})
	return s, err
}

// of returns the steps of a job.
func (s *steps) of(r *row) []*step { return s.byJob[r.job.id] }

// begin starts a step of a job as soon as the job has cores for it. over reports whether the
// job has ended. The caller holds mu, which is free while the step waits.
func (s *steps) begin(one *step, cores int, over func() bool) error {
	if one.Cores > cores {
		return &optionError{fmt.Sprintf("Unable to create step for job %d: More processors requested than permitted", one.Job),
			fmt.Sprintf("the step asks for %d cores and the job has %d; -O shares them", one.Cores, cores)}
	}
	for {
		if over() {
			return &optionError{fmt.Sprintf("Unable to create step for job %d: Job/step already completing or completed", one.Job), ""}
		}
		used := 0
		for _, other := range s.open {
			if other.Job == one.Job && !other.Overlap {
				used += other.Cores
			}
		}
		var ok bool
		if one.held, ok = s.pickDevices(one); ok && (one.Overlap || used+one.Cores <= cores) {
			break
		}
		s.changed.Wait()
	}
	one.ID, one.Started = strconv.Itoa(len(s.byJob[one.Job])), time.Now()
	s.byJob[one.Job] = append(s.byJob[one.Job], one)
	s.open = append(s.open, one)
	return nil
}

// end records that a step has ended. The caller holds mu.
func (s *steps) end(report *step) {
	for _, one := range s.open {
		if one.Job != report.Job || one.ID != report.ID {
			continue
		}
		one.Finished, one.Exit, one.Signal = time.Now(), report.Exit, report.Signal
		one.User, one.System, one.MaxRSS = report.User, report.System, report.MaxRSS
		if text, err := json.Marshal(one); err == nil {
			// Without the line a later worker does not list the step. The job is not affected.
			if size, err := lines.Append(s.log, s.size, append(text, '\n'), false); err == nil {
				s.size = size
			}
		}
	}
	s.sweep()
}

// check ends the steps whose srun has died without a report, or whose job has ended, and
// wakes steps that wait. The caller holds mu.
func (s *steps) check(over func(job int) bool) {
	for _, one := range s.open {
		if one.PID > 0 && errors.Is(unix.Kill(one.PID, 0), unix.ESRCH) || over(one.Job) {
			one.Finished, one.Signal = time.Now(), int(unix.SIGKILL)
		}
	}
	s.sweep()
}

// sweep removes ended steps from the open ones.
func (s *steps) sweep() {
	n := len(s.open)
	s.open = slices.DeleteFunc(s.open, (*step).over)
	if len(s.open) < n {
		s.changed.Broadcast()
	}
}

// signal sends a signal to all processes of the steps of a job but srun itself, and reports
// whether there is a step. The caller holds mu.
func (s *steps) signal(job int, sig unix.Signal) (any bool) {
	for _, one := range s.open {
		if one.Job != job || one.PID <= 0 {
			continue
		}
		any = true
		for _, pid := range descendants(one.PID) {
			_ = unix.Kill(pid, sig) // it may have ended
		}
	}
	return any
}

// descendants returns the children of a process, and theirs.
func descendants(pid int) (list []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range threads {
		text, _ := os.ReadFile(file) // the process may have ended
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				list = append(append(list, child), descendants(child)...)
			}
		}
	}
	return list
}
