package service

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// event is a line of the journal.
type event struct {
	What   string    `json:"event"` // accepted, ready, failed, gone, shared or private
	Job    *job      `json:"job,omitempty"`
	Text   string    `json:"text,omitempty"` // queries of an accepted job, if they are short
	ID     string    `json:"id,omitempty"`
	Format string    `json:"format,omitempty"`
	Place  *place    `json:"place,omitempty"`   // of a result
	Stored *place    `json:"queries,omitempty"` // of the job's queries
	Opened string    `json:"opened,omitempty"`  // see result
	Error  string    `json:"error,omitempty"`
	Time   time.Time `json:"time"`
}

// longText is the length of queries from which on they are stored in a separate file: lines
// of a table have at most record.MaxLine bytes, and escapes make the text longer.
const longText = 128 << 10

// journalTable is the name of the table in its header.
const journalTable = "blast job"

func (s *Service) path(parts ...string) string {
	return filepath.Join(append([]string{s.o.Dir}, parts...)...)
}

// accept writes a job to the journal and syncs it.
func (s *Service) accept(j *job) error {
	e := event{What: "accepted", Job: j, Time: j.Created}
	if len(j.text) < longText {
		e.Text = string(j.text)
	} else if err := beneath.Replace(s.path("queries", j.ID), 0o600, beneath.Durable, j.text); err != nil {
		return err
	}
	return s.write(e)
}

// write writes an event to the journal and syncs it. The caller holds journalMu, shared.
func (s *Service) write(e event) error {
	if err := s.journal.Commit(e); err != nil {
		return err
	}
	s.lines.Add(1)
	return nil
}

// restore reads the journal of an earlier service.
func (s *Service) restore() error {
	for _, dir := range []string{"", "queries", "results"} {
		if err := owner.MkdirAll(s.path(dir), 0o700); err != nil {
			return err
		}
	}
	f, err := owner.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lock.Take(f, lock.Exclusive); err != nil {
		f.Close()
		return exit.Errorf(exit.Directory, "name another directory with --dir", "another service keeps its jobs in %s", s.o.Dir)
	}
	s.lock = f
	now := time.Now()
	_, _, err = record.Read(s.path("journal.jsonl"), func(e *event) error {
		s.apply(e)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.sizes()
	for _, j := range s.jobs {
		if s.expired(j, now) {
			s.forget(j)
			continue
		}
		if j.first() == nil {
			// The client has the id of the job, and may be waiting.
			if j.text == nil {
				if j.text, err = os.ReadFile(s.path("queries", j.ID)); err != nil {
					s.o.Log.Error("the queries of a job are lost", "job", j.ID, "error", err)
					s.apply(&event{What: "failed", ID: j.ID, Format: j.Format, Error: "the queries were lost", Time: now})
					continue
				}
			}
			s.enqueue(j, j.Format, j.Created)
		} else {
			j.text = nil
		}
	}
	if err := s.rewrite(); err != nil {
		return err
	}
	return s.sweepFiles()
}

// apply applies an event of the journal.
func (s *Service) apply(e *event) {
	if e.What == "accepted" && e.Job != nil {
		j := e.Job
		if j.results = map[string]*result{}; e.Text != "" {
			j.text = []byte(e.Text)
		}
		s.jobs[j.ID] = j
		return
	}
	j := s.jobs[e.ID]
	if j == nil {
		return // the job is gone
	}
	if e.What == "shared" || e.What == "private" {
		j.shared = e.What == "shared"
		return
	}
	r := &result{done: make(chan struct{}), queued: e.Time, opened: e.Opened}
	close(r.done)
	switch {
	case e.What == "ready" && e.Place != nil && e.Stored != nil:
		r.state, r.place, j.stored = ready, *e.Place, *e.Stored
		s.uses(j.stored.File, j)
		s.uses(r.place.File, j)
	case e.What == "failed":
		r.state, r.err = failed, e.Error
		if e.Stored != nil {
			j.stored = *e.Stored
			s.uses(j.stored.File, j)
		}
	case e.What == "gone":
		s.forget(j)
		return
	default:
		return
	}
	j.results[e.Format] = r
	if j.finished.IsZero() {
		j.finished = e.Time
	}
}

// uses records that a job refers to a file of results. The caller holds mu, or the service
// has not begun.
func (s *Service) uses(file string, j *job) {
	if s.files[file] == nil {
		s.files[file] = map[*job]bool{}
	}
	s.files[file][j] = true
	if n, err := strconv.ParseInt(file, 10, 64); err == nil {
		s.scan = max(s.scan, n)
	}
}

// forget removes a job, and the files that no other job refers to. The caller holds mu, or
// the service has not begun.
func (s *Service) forget(j *job) {
	delete(s.jobs, j.ID)
	s.queue.drop(j)
	for file, users := range s.files {
		if users[j] {
			if delete(users, j); len(users) == 0 {
				delete(s.files, file)
				s.drop(file)
			}
		}
	}
	s.remove("queries", j.ID)
}

// remove removes a file. If that fails, the next start removes it.
func (s *Service) remove(dir, name string) { _ = os.Remove(s.path(dir, name)) }

// sweepFiles removes files that no job refers to.
func (s *Service) sweepFiles() error {
	for dir, known := range map[string]func(string) bool{
		"results": func(name string) bool { return s.files[name] != nil },
		"queries": func(name string) bool { return s.jobs[name] != nil },
	} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !known(e.Name()) {
				if err := os.Remove(s.path(dir, e.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rewrite rewrites the journal with the present jobs. The caller holds journalMu
// exclusively, or the service has not begun.
func (s *Service) rewrite() error {
	fresh := s.path("journal.new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	host, _ := os.Hostname() // only for people
	w, err := record.Create(fresh, record.Header{Table: journalTable, Premix: s.o.Version, Host: host, PID: os.Getpid(), Created: time.Now().UTC()})
	if err != nil {
		return err
	}
	var lines []byte
	n := int64(0)
	s.mu.Lock()
	for _, j := range s.jobs {
		for _, e := range j.events() {
			line, err := marshalLine(e)
			if err != nil {
				s.mu.Unlock()
				return errors.Join(err, w.Close())
			}
			lines = append(lines, line...)
			n++
		}
	}
	s.mu.Unlock()
	if len(lines) > 0 {
		if _, err := w.Append(lines); err != nil {
			return errors.Join(err, w.Close())
		}
	}
	if err := beneath.Move(fresh, s.path("journal.jsonl"), beneath.Durable); err != nil {
		return errors.Join(err, w.Close())
	}
	if s.journal != nil {
		// The new journal has all of its content, so the error does not matter.
		_ = s.journal.Close()
	}
	s.journal = w
	s.lines.Store(n)
	s.alive = n
	return nil
}

// events returns the events that restore the job.
func (j *job) events() []event {
	accepted := event{What: "accepted", Job: j, Time: j.Created}
	if len(j.text) < longText && j.first().state != ready {
		accepted.Text = string(j.text)
	}
	list := []event{accepted}
	if j.shared {
		list = append(list, event{What: "shared", ID: j.ID, Time: j.Created})
	}
	for format, r := range j.results {
		e := event{ID: j.ID, Format: format, Time: j.finished, Opened: r.opened}
		if j.stored.File != "" {
			e.Stored = &j.stored
		}
		switch r.state {
		case ready:
			e.What, e.Place = "ready", &r.place
		case failed:
			e.What, e.Error = "failed", r.err
		default:
			continue
		}
		list = append(list, e)
	}
	return list
}

// expired reports whether a job has expired.
func (s *Service) expired(j *job, now time.Time) bool {
	return !j.finished.IsZero() && now.Sub(j.finished) > s.o.Keep
}

// cleanName reports whether a name can be that of a file of results.
func cleanName(name string) bool { return name != "" && strings.Trim(name, "0123456789") == "" }
