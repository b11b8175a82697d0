package calls

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lines"
	"premix/internal/kit/lock"
)

// Start is the record of a start.
type Start struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`           // host name, which containers have of their own
	Boot   string    `json:"boot,omitempty"` // of the kernel, which they share
	Dir    string    `json:"dir,omitempty"`  // working directory of the call
	Tool   string    `json:"tool"`
	Start  string    `json:"start"`            // hot or cold
	Why    string    `json:"why,omitempty"`    // of a cold start
	Saved  float64   `json:"saved,omitempty"`  // seconds of loading that a hot start saved
	Bytes  int64     `json:"bytes,omitempty"`  // of memory that it did not load
	Waited float64   `json:"waited,omitempty"` // seconds for which the call has waited for a preparation
	ID     string    `json:"id,omitempty"`     // of its snapshot
}

// Sum sums up starts.
type Sum struct {
	Hot   int     `json:"hot"`
	Cold  int     `json:"cold"`
	Saved float64 `json:"saved"` // seconds of loading, less the seconds for which calls have waited
	Bytes int64   `json:"bytes"` // of memory that was not loaded
}

// Add adds a start.
func (s *Sum) Add(one Start) {
	s.Saved -= one.Waited
	if one.Start != "hot" {
		s.Cold++
		return
	}
	s.Hot++
	s.Saved += one.Saved
	s.Bytes += one.Bytes
}

const startsName, olderName = "starts.jsonl", "starts.1.jsonl"

// Machine identifies a machine in records of starts.
type Machine struct{ name, boot string }

// ThisMachine returns this machine. Where something of it is unknown, it is empty.
func ThisMachine() Machine {
	var m Machine
	m.name, _ = os.Hostname()
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		m.boot = strings.TrimSpace(string(b))
	}
	return m
}

// Name returns the name of the machine.
func (m Machine) Name() string { return m.name }

// Has reports whether a start was on the machine: under its name, or in a container since
// the machine was booted.
func (m Machine) Has(s Start) bool {
	return s.Node == m.name || s.Boot != "" && s.Boot == m.boot
}

// RecordStart appends the record of a start to the user's table. It is best effort: a table that
// cannot be written keeps no command from running.
func RecordStart(s Start) {
	dir, err := openDir()
	if err != nil {
		return
	}
	s.Time = time.Now().UTC()
	here := ThisMachine()
	s.Node, s.Boot = here.name, here.boot
	s.Dir, _ = os.Getwd()
	line, err := json.Marshal(s)
	if err != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, startsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	// One write is one line, even if other processes append at the same time.
	if _, err := f.Write(append(line, '\n')); err != nil {
		return
	}
	if st, err := f.Stat(); err == nil && st.Size() > maxStarts {
		shelve(dir, f)
	}
}

// shelve renames a table that has become large.
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
	_ = beneath.Move(name, filepath.Join(dir, olderName), beneath.Volatile)
}

// Starts calls each for every start of this user since a time, in their order. Lines that were
// torn by a crash are left out.
func Starts(since time.Time, each func(Start)) error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	return StartsIn(dir, os.Geteuid(), since, each)
}

// StartsFile returns the path of the newest part of the table of starts in a directory as Dir
// returns it.
func StartsFile(dir string) string { return filepath.Join(dir, startsName) }

// StartsIn is Starts for the directory of a user. A table that is a link or a special file, or
// that is too large or belongs to another user, is an error.
func StartsIn(dir string, uid int, since time.Time, each func(Start)) error {
	for _, name := range []string{olderName, startsName} {
		f, err := openTable(filepath.Join(dir, name), uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = lines.Read(f, 0, func(line []byte, _ int64) error {
			var s Start
			if json.Unmarshal(line, &s) == nil && !s.Time.Before(since) {
				each(s)
			}
			return nil
		})
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// openTable opens a regular file of a user for reading.
func openTable(path string, uid int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != uid) {
		err = fmt.Errorf("%s is not a file of user %d", path, uid)
	}
	if err == nil && st.Size > 2*maxStarts {
		err = fmt.Errorf("%s has %d bytes, and a table of starts at most %d", path, st.Size, maxStarts)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
