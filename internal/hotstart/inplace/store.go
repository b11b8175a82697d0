package inplace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"premix/internal/hotstart"
	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/tracer"
	"premix/internal/kit/beneath"
	"premix/internal/kit/owner"
)

// Snapshot is a command frozen at its input, or the reason why it starts cold.
type Snapshot struct {
	hotstart.Snapshot
	Exe     string `json:"exe"`
	Refused string `json:"refused,omitempty"` // why the command starts cold; the snapshot then has no image

	// Plain is the reason why Run has let the tool load its data itself, or "".
	Plain string `json:"-"`

	plan plan
}

// A snapshot's directory has, beside the files of a hotstart.Snapshot, the file plan.
const planName = "plan"

// plan has the changes that turn a frozen process into the process of another call.
type plan struct {
	Words     []string          // late words of preparation A
	Dir       string            // working directory of preparation A; the last late word
	Stats     []int             // indexes of inputs whose stat(2) result the tool has kept: late words after the command lines
	Bounds    []hotstart.Bounds // of these inputs; pipes have none
	Streams   []int             // standard streams that are files, whose stat(2) result and offset the tool may have kept: late words after those of Stats
	Places    []frozenPlace     // of late words in memory
	Offsets   []frozen.Offset   // registers that hold the first byte of a late word plus a constant
	Variables []variable        // late variables of any length
	Exact     []exact           // late variables that the tool may have copied
	Relations string            // of the late words, with the variables of Exact
	Written   [3]text           // bytes that the tool had written to standard output and error
	Files     map[int]fileName  // index into frozen.Image.Files, where the path depends on the call
	Pipes     []int             // indexes into frozen.Image.Files of the inputs that are pipes, and that the tool has opened
	Made      []made            // files and directories that the tool had made
	Early     map[string]early  // looks at files that late words name, before the stop
	CPUs      int               // size of a set of processors, which is the late word before the directory
	Block     []int64           // of inputs that the tool has opened: their block size (stat(2)), by index in Stats
	Parts     []inputPart       // of inputs, which the tool has read before the stop
	Stopped   frozen.Moment     // when A was stopped, by its clock
	Resolves  bool              // the tool resolves the path of its working directory
	Relative  []hotstart.Stamp  // of files that the tool looked at below its working directory; paths are relative
	Heads     bool              // each start executes the head; the rest is what follows the head
	Appended  []appended        // bytes that the tool had added to files that it had opened in its head
}

// variable is a late variable in the memory of a frozen process.
type variable struct {
	Name    string
	Address uint64 // of its value, which has PadSize bytes
}

// inputPart is a part of an input that the tool has read before the stop, with its content
// in preparation A. Where Other differs from Content, another preparation had a different
// byte. Where the two are equal, the comparison of the memories does not show whether the
// tool has kept or used the byte.
type inputPart struct {
	Word           int // index of the late word
	Offset         int64
	Content, Other []byte
}

// serves reports whether the snapshot serves an input with this content in the part.
func (p *inputPart) serves(content []byte) bool {
	for i, c := range content {
		if p.Content[i] == p.Other[i] && c != p.Content[i] {
			return false
		}
	}
	return true
}

// early is a look at a file that a late word names.
type early struct {
	Name fileName
	Kind string // see kindAt
}

// made is a file or a directory that a tool made before the stop.
type made struct {
	Name    fileName
	Mode    fs.FileMode
	Content text
}

// appended are bytes that a tool has written, after its head, to the end of a file that it had
// opened in its head.
type appended struct {
	FD      int
	Content text
}

// fileName is the name of a file in any call.
type fileName struct {
	Word int    // index of the late word that the path begins with; -1: Rest is relative to the working directory
	Rest string // what follows
}

func (n fileName) key() string { return fmt.Sprintf("%d:%s", n.Word, n.Rest) }

// in returns the path of the file in a call.
func (n fileName) in(dir string, words []string) string {
	if n.Word < 0 {
		return filepath.Join(dir, n.Rest)
	}
	return resolve(dir, words[n.Word]) + n.Rest
}

func resolve(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// needsDir reports whether the frozen process knows its working directory.
func (p *plan) needsDir() bool {
	exact := len(p.exactWords())
	wide := len(p.Words) + commandForms + statParts*len(p.Stats) + (statParts+1)*len(p.Streams) + exact
	isDir := func(s span) bool {
		// See wideWords: the directory is the last one of them, and the last late word.
		last := wide + len(p.Words) + exact
		return s.Word == last || s.Word == last+2
	}
	return slices.ContainsFunc(p.Places, func(f frozenPlace) bool { return isDir(f.Span) }) ||
		slices.ContainsFunc(p.Written[:], func(t text) bool { return slices.ContainsFunc(t.Spans, isDir) }) ||
		slices.ContainsFunc(p.Made, func(m made) bool { return slices.ContainsFunc(m.Content.Spans, isDir) }) ||
		slices.ContainsFunc(p.Appended, func(a appended) bool { return slices.ContainsFunc(a.Content.Spans, isDir) })
}

// DefaultStore is $PREMIX_HOME/inplace, or else premix/inplace in the user's cache
// directory.
func DefaultStore() (string, error) {
	dir, err := hotstart.DefaultStore()
	return filepath.Join(filepath.Dir(dir), "inplace"), err
}

// read reads a snapshot's description; whole reads its plan too.
func read(dir string, whole bool) (*Snapshot, error) {
	s := &Snapshot{}
	b, err := os.ReadFile(filepath.Join(dir, hotstart.SnapshotName))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, hotstart.SnapshotName), err)
	}
	s.Dir = dir
	if s.Version != hotstart.SnapshotForm {
		return nil, fs.ErrNotExist
	}
	if !whole || s.Refused != "" {
		return s, nil
	}
	if b, err = os.ReadFile(filepath.Join(dir, planName)); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &s.plan); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, planName), err)
	}
	return s, nil
}

// save writes the description last: a directory without it is not a snapshot.
func (s *Snapshot) save() error {
	if s.Refused == "" {
		b, err := json.Marshal(&s.plan)
		if err != nil {
			return err
		}
		if err := beneath.Replace(filepath.Join(s.Dir, planName), 0o600, beneath.Durable, b); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return beneath.Replace(filepath.Join(s.Dir, hotstart.SnapshotName), 0o600, beneath.Durable, append(b, '\n'))
}

// List returns the snapshots of a store, newest first.
func List(store string) ([]*Snapshot, error) { return list(store, "*", false) }

func list(store, pattern string, whole bool) ([]*Snapshot, error) {
	dirs, err := filepath.Glob(filepath.Join(store, pattern, hotstart.SnapshotName))
	if err != nil || len(dirs) == 0 {
		return nil, err
	}
	// A snapshot is a process that is going to run as this user.
	if err := owner.Private(store); err != nil {
		return nil, err
	}
	var all []*Snapshot
	for _, path := range dirs {
		dir := filepath.Dir(path)
		if err := owner.Private(dir); err != nil {
			return nil, err
		}
		s, err := read(dir, whole)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed it, or an earlier premix made it
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Created.After(all[j].Created) })
	return all, nil
}

// NotPrepared is the reason of Find where no call of this kind was prepared.
const NotPrepared = "no snapshot was prepared for commands like this one"

// Find returns the snapshot that serves a call, locked against removal, or nil and the
// reason. The caller closes the snapshot.
func Find(store string, c Call) (*Snapshot, string) {
	key, err := Key(c)
	if err != nil {
		return nil, err.Error()
	}
	all, err := list(store, key+"-*", true)
	if err != nil {
		return nil, err.Error()
	}
	reason := NotPrepared
	for _, s := range all {
		if reason = s.serves(&c); reason == "" {
			_ = os.Chtimes(filepath.Join(s.Dir, planName), time.Time{}, time.Now()) // Used is best effort
			return s, ""
		}
	}
	return nil, reason
}

// serves locks the snapshot if it serves a call. It says why it does not, or returns "".
func (s *Snapshot) serves(c *Call) string {
	if err := s.Lock(); err != nil {
		return err.Error()
	}
	if reason := s.fits(c); reason != "" {
		s.Close()
		return reason
	}
	return ""
}

// Usable reports whether the store has a snapshot that other calls like c can start from.
// Find may refuse it for c alone, for example because an input of c is missing.
func Usable(store string, c Call) bool {
	key, err := Key(c)
	if err != nil {
		return false
	}
	all, err := list(store, key+"-*", true)
	return err == nil && slices.ContainsFunc(all, func(s *Snapshot) bool {
		if s.Lock() != nil {
			return false
		}
		defer s.Close()
		return s.valid(&c) == ""
	})
}

func (s *Snapshot) fits(c *Call) string {
	if reason := s.valid(c); reason != "" {
		return reason
	}
	return s.fitsCall(c)
}

// valid returns the reason why no call in the directory of c can start from the snapshot, or "".
func (s *Snapshot) valid(c *Call) string {
	if err := s.Fingerprint.CheckHost(); err != nil {
		return err.Error()
	}
	for _, stamp := range s.Fingerprint.Files {
		if err := stamp.Check(); err != nil {
			return err.Error()
		}
	}
	for _, stamp := range s.plan.Relative {
		stamp.Path = filepath.Join(c.Dir, stamp.Path)
		if err := stamp.Check(); err != nil {
			return err.Error()
		}
	}
	if s.Refused != "" {
		return s.Refused
	}
	if err := s.Intact(); err != nil {
		return err.Error()
	}
	return ""
}

// fitsCall returns the reason why a valid snapshot does not serve a call, or "".
func (s *Snapshot) fitsCall(c *Call) string {
	if reason := s.plan.fitsDir(c); reason != "" {
		return reason
	}
	if reason := c.oneFile(); reason != "" {
		return reason
	}
	if len(tracer.OwnCPUs()) != s.plan.CPUs {
		return "the sets of processors have another size"
	}
	words := c.words()
	if reason := s.plan.fitsExact(c); reason != "" {
		return reason
	}
	for _, e := range s.plan.Early {
		path := e.Name.in(c.Dir, words)
		if now := kindAt(path); now != e.Kind {
			return fmt.Sprintf("before its input, the tool looks at %s, which is %q instead of %q", path, now, e.Kind)
		}
	}
	for _, p := range s.plan.Parts {
		path := resolve(c.Dir, words[p.Word])
		content, err := readPart(path, p.Offset, int64(len(p.Content)))
		if err != nil || !p.serves(content) {
			return fmt.Sprintf("the tool reads from %s before it loads its data, and the bytes differ from its preparation", path)
		}
	}
	for _, m := range s.plan.Made {
		path := m.Name.in(c.Dir, words)
		if now := kindAt(path); now != "missing" {
			return fmt.Sprintf("the tool makes %s before its input, and it exists", path)
		}
	}
	for _, v := range s.plan.Variables {
		if value, _ := lookup(c.Env, v.Name); len(value) >= PadSize {
			return fmt.Sprintf("the variable %s has more than %d bytes", v.Name, PadSize-1)
		}
	}
	return ""
}

// fitsDir returns the reason why the frozen process cannot have the working directory of a
// call, or "".
func (p *plan) fitsDir(c *Call) string {
	if p.Resolves {
		for dir := c.Dir; dir != "/"; dir = filepath.Dir(dir) {
			if kindAt(dir) != "dir" {
				return "the tool resolves the path of its working directory, and " + dir + " cannot be found"
			}
		}
	}
	if !p.needsDir() {
		return ""
	}
	if len(c.Dir) != len(p.Dir) {
		return fmt.Sprintf("the tool keeps the path of its working directory, whose length is %d instead of %d", len(c.Dir), len(p.Dir))
	}
	if pwd, ok := lookup(c.Env, "PWD"); ok && pwd != c.Dir {
		return "the tool keeps the path of its working directory, and PWD has another path"
	}
	return ""
}

func lookup(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// Close unlocks a snapshot that Find or Prepare returned.
func (s *Snapshot) Close() { s.Unlock() }

// Used returns the time of the last Find that returned the snapshot.
func (s *Snapshot) Used() time.Time {
	st, err := os.Stat(filepath.Join(s.Dir, planName))
	if err != nil {
		return s.Created
	}
	return st.ModTime()
}
