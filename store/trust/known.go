package trust

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"premix/store/object"
	"premix/store/tree"
)

// Known is a pin.
type Known struct {
	Origin string           `json:"origin"`
	Store  string           `json:"store"` // id
	Keys   []tree.PublicKey `json:"keys"`
	Since  time.Time        `json:"since"` // UTC, whole seconds
}

// state is what lies in the directory.
type state struct{ dir string }

func (s state) knownFile() string { return filepath.Join(s.dir, "known_stores") }

// locked calls do while no other process changes anything.
func (s state) locked(do func() error) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // gives the lock back
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
	return do()
}

// known reads all pins, in order of their making.
func (s state) known() ([]Known, error) {
	content, err := os.ReadFile(s.knownFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Known
	n := 0
	for line := range bytes.Lines(content) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var k Known
		if err := json.Unmarshal(line, &k); err != nil {
			return nil, &StateError{s.knownFile(), n, err}
		}
		if k.Origin == "" || k.Store == "" || len(k.Keys) == 0 {
			return nil, &StateError{s.knownFile(), n, errors.New("origin, store or keys are missing")}
		}
		all = append(all, k)
	}
	return all, nil
}

// pin keeps k in place of what was known of its origin. Called with the lock.
func (s state) pin(k Known) error {
	all, err := s.known()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(o Known) bool { return o.Origin == k.Origin })
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, k := range append(all, k) {
		if err := enc.Encode(k); err != nil {
			return err
		}
	}
	return replace(s.knownFile(), b.Bytes())
}

func (s state) seenFile(store string, ref tree.Ref) string {
	return filepath.Join(s.dir, "seen", store, object.Sum([]byte(ref.String())).String()[:32]+".json")
}

// seen returns the signed record of a tag that was verified last, nil for none.
func (s state) seen(store string, ref tree.Ref) ([]byte, error) {
	content, err := os.ReadFile(s.seenFile(store, ref))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// replace writes a file whole, and to the disk: a record that was seen must not
// be forgotten by a crash.
func replace(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var suffix [8]byte
	rand.Read(suffix[:]) // never fails: see crypto/rand
	tmp := filepath.Join(dir, fmt.Sprintf(".%s.%s", filepath.Base(path), hex.EncodeToString(suffix[:])))
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
