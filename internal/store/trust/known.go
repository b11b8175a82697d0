package trust

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Known is a pin.
type Known struct {
	Origin string           `json:"origin"`
	Store  string           `json:"store"` // id
	Keys   []tree.PublicKey `json:"keys"`
	Since  time.Time        `json:"since"` // UTC, whole seconds
}

// state is the directory of pins and seen records.
type state struct{ dir string }

func (s state) knownFile() string { return filepath.Join(s.dir, "known_stores") }

// locked calls do with the directory's lock held.
func (s state) locked(do func() error) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := owner.Private(s.dir); err != nil {
		return err
	}
	f, err := owner.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // releases the lock
	if err := lock.Await(context.Background(), f, lock.Exclusive); err != nil {
		return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return do()
}

// known reads all pins, oldest first.
func (s state) known() ([]Known, error) {
	// A user who can write there decides which keys are trusted.
	if err := owner.Private(s.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
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

// pin replaces the pin of k's origin by k. The caller holds the lock.
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

// seen returns the signed record of a tag that was verified last, or nil if there is
// none.
func (s state) seen(store string, ref tree.Ref) ([]byte, error) {
	content, err := os.ReadFile(s.seenFile(store, ref))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// replace writes a whole file and syncs it: a crash must not lose a seen record.
func replace(path string, content []byte) error {
	if err := beneath.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return beneath.Replace(path, 0o600, beneath.Durable, content)
}
