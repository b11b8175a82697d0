package hotstart

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/blake3"
)

// A proof compares outputs once, for the head of one sample. Runs go on comparing: some
// of their tasks are verified, which means that the sample is run cold as well, and the
// two are compared as in a proof. A difference quarantines the snapshot.

// Share is the part of the CPU time of a run that verifying its tasks may take.
type Share float64

// The shares that have a name, and the usual one.
const (
	ShareNone  Share = 0 // no task is verified
	ShareAll   Share = 1 // each task is
	ShareUsual Share = 0.02
)

// ParseShare reads a share: all, none, or a percentage between the two.
func ParseShare(text string) (Share, error) {
	switch text {
	case "all":
		return ShareAll, nil
	case "none":
		return ShareNone, nil
	}
	digits, ok := strings.CutSuffix(text, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if !ok || err != nil || !(n > 0 && n < 100) {
		return 0, fmt.Errorf("%q is not a part of the CPU time: give all, none, or a percentage such as 2%%", text)
	}
	return Share(n / 100), nil
}

// String returns the text that ParseShare parses.
func (s Share) String() string {
	switch s {
	case ShareAll:
		return "all"
	case ShareNone:
		return "none"
	}
	return strconv.FormatFloat(float64(s)*100, 'g', 6, 64) + "%"
}

// StartCold starts one task cold, whatever was decided for the others.
func (s *Starter) StartCold(ctx context.Context, t Task) (*Process, error) {
	p, err := s.start(ctx, Cold, t)
	if err != nil {
		return nil, err
	}
	p.Kind, p.Reason = Cold, "to verify a hot start"
	return p, nil
}

// Differs compares the outputs of two starts over one sample, as the proof does. It
// returns a description of the difference, or "". first and second are the directories
// of the two starts. Standard output as a stream is compared by its digest (CopyStdout).
// In that case the program that reads the stream may have made and removed files in one
// of the directories, so Differs compares only files that exist in both.
func (s *Starter) Differs(first, second string) (string, error) {
	return compareDirs(first, second, s.spec, s.spec.Stream)
}

// DiffersFromItself returns the text to add to the reason of a difference if two cold
// starts differ too. self describes how they differ.
func DiffersFromItself(self string) string {
	return fmt.Sprintf(" (two cold starts differ from each other, too: %s; name the differing lines under `varies`, or make the tool repeatable, as Python with PYTHONHASHSEED)", self)
}

// CopyStdout copies a streamed standard output to its end. Two starts have the same
// digest if their outputs are equal, apart from the lines that the recipe's `varies` names.
func (s *Starter) CopyStdout(to io.Writer, from io.Reader) (digest []byte, err error) {
	ignore, skip := s.spec.variations("stdout")
	h := blake3.New()
	switch {
	case skip:
		_, err = io.Copy(to, from)
	case len(ignore) == 0:
		_, err = io.Copy(io.MultiWriter(to, h), from)
	default:
		err = eachLine(from, func(line []byte) error {
			if varies(line, ignore) {
				h.Write([]byte{1})
			} else {
				h.Write([]byte{0})
				h.Write(line)
			}
			_, err := to.Write(line)
			return err
		})
	}
	return h.Sum(nil), err
}

// eachLine calls f for each line of r, with its line end.
func eachLine(r io.Reader, f func(line []byte) error) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			if err := f(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// snapshotDir returns the directory of a snapshot in a store. If store is "", the store is
// DefaultStore.
func snapshotDir(store, id string) (string, error) {
	if id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return "", fmt.Errorf("%q is not the id of a snapshot", id)
	}
	if store == "" {
		var err error
		if store, err = DefaultStore(); err != nil {
			return "", err
		}
	}
	return filepath.Join(store, id), nil
}

// Difference describes a hot start with wrong outputs.
type Difference struct {
	Sample string `json:"sample"` // over which it was
	Reason string `json:"reason"` // the difference from a cold start
}

// Quarantine keeps a snapshot from being used again, because of a difference that a run
// has found. It removes the memory. The reason stays until a user removes the snapshot
// or its fingerprint no longer holds. If the snapshot does not exist, Quarantine does
// nothing.
func Quarantine(store, id string, d Difference) error {
	dir, err := snapshotDir(store, id)
	if err != nil {
		return err
	}
	snap, err := readSnapshot(dir)
	var old *oldFormat
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &old) || err == nil && snap.Quarantined() && !snap.Whole() {
		return nil
	}
	if err != nil {
		return err
	}
	snap.Proof = &ProofState{Reason: d.Reason, Sample: d.Sample, When: time.Now().UTC()}
	// First the reason: without it a snapshot that has lost its memory counts as damaged,
	// and is made again.
	if err := snap.save(); err != nil {
		return err
	}
	return snap.discard()
}

// QuarantinedAs returns the difference for which a snapshot is in quarantine. It returns
// nil if the snapshot does not exist or is not in quarantine.
func QuarantinedAs(store, id string) *Difference {
	dir, err := snapshotDir(store, id)
	if err != nil {
		return nil
	}
	snap, err := readSnapshot(dir)
	if err != nil || !snap.Quarantined() {
		return nil
	}
	return &Difference{Sample: snap.Proof.Sample, Reason: snap.Proof.Reason}
}

// Quarantined reports whether a task has shown that hot starts from the snapshot are wrong.
func (s *Snapshot) Quarantined() bool {
	return s.Proof != nil && !s.Proof.Equal && s.Proof.Sample != ""
}

// Quarantine calls the function Quarantine for the Starter's store. All later tasks start
// cold.
func (s *Starter) Quarantine(id string, d Difference) error {
	s.decide(Cold, "not hot: %s", quarantineText(id, d))
	return Quarantine(s.opt.Store, id, d)
}

// quarantined returns the reason why the snapshot that tasks start from is in quarantine,
// or nil if it is not. Another run may have put it there. After that all later tasks start
// cold.
func (s *Starter) quarantined() *Difference {
	s.mu.Lock()
	snap := s.snapshot
	s.mu.Unlock()
	if snap == nil {
		return nil
	}
	d := QuarantinedAs(s.opt.Store, snap.ID)
	if d != nil {
		s.decide(Cold, "not hot: %s", quarantineText(snap.ID, *d))
	}
	return d
}

func quarantineText(id string, d Difference) string {
	return fmt.Sprintf("snapshot %s is in quarantine: sample %s: %s", id, d.Sample, d.Reason)
}

// Use is a line of the file of uses in a snapshot's directory.
type Use struct {
	Run      string  `json:"run,omitempty"`      // a run directory that begins to use it
	CPU      float64 `json:"cpu,omitempty"`      // seconds that tasks of a run took
	Spent    float64 `json:"spent,omitempty"`    // seconds of CPU that verifying them took
	Verified int     `json:"verified,omitempty"` // tasks
}

// Snapshot returns the id of the snapshot that tasks start from, or "" if they start cold.
func (s *Starter) Snapshot() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind != Hot || s.snapshot == nil {
		return ""
	}
	return s.snapshot.ID
}

// Note adds a line to the uses of the snapshot that tasks start from, if there is one.
func (s *Starter) Note(u Use) error {
	id := s.Snapshot()
	if id == "" {
		return nil
	}
	line, err := json.Marshal(u)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.opt.Store, id, usesName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// One write: lines of several runs do not mix.
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Uses returns the sum of a snapshot's uses, and the run directories in their order.
func Uses(store, id string) (sum Use, runs []string, err error) {
	dir, err := snapshotDir(store, id)
	if err != nil {
		return sum, nil, err
	}
	f, err := os.Open(filepath.Join(dir, usesName))
	if errors.Is(err, fs.ErrNotExist) {
		return sum, nil, nil
	}
	if err != nil {
		return sum, nil, err
	}
	defer f.Close()
	seen := make(map[string]bool)
	err = eachLine(f, func(line []byte) error {
		var u Use
		if json.Unmarshal(line, &u) != nil {
			return nil // cut short by a full disk
		}
		if u.Run != "" && !seen[u.Run] {
			seen[u.Run] = true
			runs = append(runs, u.Run)
		}
		sum.CPU += u.CPU
		sum.Spent += u.Spent
		sum.Verified += u.Verified
		return nil
	})
	return sum, runs, err
}
