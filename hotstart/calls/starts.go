package calls

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"premix/internal/lock"
	"time"

	"golang.org/x/sys/unix"
)

// Start is the record of a start.
type Start struct {
	Time  time.Time `json:"time"`
	Node  string    `json:"node"`
	Tool  string    `json:"tool"`
	Start string    `json:"start"`           // hot or cold
	Why   string    `json:"why,omitempty"`   // of a cold start
	Saved float64   `json:"saved,omitempty"` // seconds of loading that a hot start saved
	Bytes int64     `json:"bytes,omitempty"` // of memory that it did not load
	ID    string    `json:"id,omitempty"`    // of its snapshot
}

const startsName, olderName = "starts.jsonl", "starts.1.jsonl"

// Note appends the record of a start to the user's table. It is best effort: a table that
// cannot be written keeps no command from running.
func Note(s Start) {
	dir, err := openDir()
	if err != nil {
		return
	}
	s.Time = time.Now().UTC()
	s.Node, _ = os.Hostname() // empty where it is unknown
	line, err := json.Marshal(s)
	if err != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, startsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	// One write is one line, whoever else appends.
	if _, err := f.Write(append(line, '\n')); err != nil {
		return
	}
	if st, err := f.Stat(); err == nil && st.Size() > maxStarts {
		shelve(dir, f)
	}
}

// shelve puts a table that has grown aside.
func shelve(dir string, f *os.File) {
	if lock.Try(f, lock.Exclusive) != nil {
		return // another process does it
	}
	name := filepath.Join(dir, startsName)
	now, err := os.Stat(name)
	st, err2 := f.Stat()
	if err != nil || err2 != nil || !os.SameFile(now, st) {
		return // another process has done it
	}
	_ = os.Rename(name, filepath.Join(dir, olderName))
}

// Starts calls each for every start since a time, in their order. Lines that were torn by
// a crash are left out.
func Starts(since time.Time, each func(Start)) error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	for _, name := range []string{olderName, startsName} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var s Start
			if json.Unmarshal(lines.Bytes(), &s) == nil && !s.Time.Before(since) {
				each(s)
			}
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return err
		}
	}
	return nil
}
