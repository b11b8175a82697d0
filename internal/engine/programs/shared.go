package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// Answer is an answer of a batch system, as a file.
type Answer[T any] struct {
	Started time.Time `json:"begun"`            // before it was asked
	Failed  string    `json:"failed,omitempty"` // error message, if it did not answer
	Value   T         `json:"value"`
}

// Err returns the error of an answer that failed.
func (a *Answer[T]) Err() error {
	if a.Failed != "" {
		return errors.New(a.Failed)
	}
	return nil
}

// Shared is an answer that all premix processes of a user on this machine share. Its methods
// are called by one goroutine at a time.
type Shared[T any] struct {
	path     string
	interval time.Duration
	last     *Answer[T] // of this process
}

// NewShared returns the answer with a name, of the cluster that the values of environment
// variables select. An answer is renewed when it is older than the interval.
func NewShared[T any](system, name string, interval time.Duration, variables ...string) *Shared[T] {
	var values []string
	for _, v := range variables {
		values = append(values, os.Getenv(v))
	}
	sum := sha256.Sum256([]byte(strings.Join(values, "\x00")))
	return &Shared[T]{path: filepath.Join(cacheDir(system), name+"-"+hex.EncodeToString(sum[:6])+".json"), interval: interval}
}

// cacheDir returns a directory of this user on this machine.
func cacheDir(system string) string {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(home, "run", system)
	}
	_, dir := owner.RuntimeDir()
	return filepath.Join(dir, system)
}

// Get returns an answer that was begun after the given time, and is not older than the
// interval. The error is not the batch system's: its errors are in the answer.
func (s *Shared[T]) Get(ctx context.Context, after time.Time, ask func(context.Context) (T, error)) (*Answer[T], error) {
	if s.fresh(s.last, after) {
		return s.last, nil
	}
	if err := s.makeDir(); err != nil {
		return nil, err
	}
	f, err := owner.OpenFile(s.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := lock.Await(ctx, f, lock.Exclusive); err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// Another process may have asked while this one waited.
	if text, err := os.ReadFile(s.path); err == nil {
		a := &Answer[T]{}
		if json.Unmarshal(text, a) == nil && s.fresh(a, after) {
			s.last = a
			return a, nil
		}
	}
	a := &Answer[T]{Started: time.Now()}
	if a.Value, err = ask(ctx); ctx.Err() != nil {
		if err == nil {
			err = ctx.Err()
		}
		return nil, err // the error is not the system's, so do not share it
	}
	if err != nil {
		a.Failed = err.Error()
	}
	s.last = a
	if text, err := json.Marshal(a); err == nil {
		// Without the file each process asks for itself.
		_ = beneath.Replace(s.path, 0o600, beneath.Volatile, text)
	}
	return a, nil
}

func (s *Shared[T]) fresh(a *Answer[T], after time.Time) bool {
	if a == nil || a.Started.After(time.Now()) {
		return false
	}
	return a.Started.After(after) && time.Since(a.Started) < s.interval
}

// makeDir makes the directory, and refuses a directory of another user.
func (s *Shared[T]) makeDir() error {
	dir := filepath.Dir(s.path)
	var err error
	if base, runtime := owner.RuntimeDir(); filepath.Dir(dir) == runtime {
		err = owner.MakePrivate(base, dir)
	} else if err = os.MkdirAll(dir, 0o700); err == nil {
		err = owner.Private(dir)
	}
	var foreign *owner.Error
	if errors.As(err, &foreign) {
		return fmt.Errorf("%w: set PREMIX_HOME or XDG_RUNTIME_DIR to a directory of your own", err)
	}
	return err
}

// UserName returns the name of the user of this process.
func UserName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Geteuid())
}
