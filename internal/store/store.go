package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Store is a store in a directory. Any number of goroutines and processes may use one
// directory at a time.
type Store struct {
	dir  string
	info *tree.Info
	home string // of premix: keys and the cache of publishing
	sync bool
}

// Options configure opening or making a store.
type Options struct {
	// Home is the user's directory for premix; see [Home]. Private keys lie in its
	// subdirectory keys.
	Home string
	// KeyFile is where Init puts the private key; if it is "", the file in Home that is
	// named after the store.
	KeyFile string
	// Unsynced leaves it to the system when objects reach the disk. After a power
	// failure such a store must be verified.
	Unsynced bool
}

// Home returns $PREMIX_HOME, or "" if it is not set: then keys lie in the user's
// configuration directory and caches in the user's cache directory.
func Home() string { return os.Getenv("PREMIX_HOME") }

const (
	workDir    = "work"
	locksDir   = "work/locks"
	writersDir = "work/writers"
	ownDir     = "work/own"
	tempPrefix = "file-" // prefix of mutable files being written, in work
)

// Init makes a store in dir, which must be empty or not exist, and its key.
func Init(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(dir)
	made := errors.Is(err, fs.ErrNotExist)
	err = os.MkdirAll(dir, 0o777)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		return nil, &UsageError{Reason: fmt.Sprintf("the directory %s cannot be made: %v", dir, err), HintText: "give a new or empty directory", Err: err}
	}
	if err != nil {
		return nil, accessError(dir, err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, accessError(dir, err)
	}
	if slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == tree.InfoPath }) {
		return nil, &UsageError{Reason: fmt.Sprintf("%s is a store already", dir), HintText: "use it: premix store publish --store " + dir + " DIR NAME"}
	}
	if len(list) > 0 {
		return nil, &UsageError{Reason: fmt.Sprintf("%s is not empty: it contains %s", dir, list[0].Name()), HintText: "give a new or empty directory"}
	}
	var id [16]byte
	var seed [32]byte
	rand.Read(id[:]) // never fails: see crypto/rand
	rand.Read(seed[:])
	key := tree.NewPrivateKey(seed)
	info := &tree.Info{Format: tree.StoreFormat, ID: hex.EncodeToString(id[:]), Keys: []tree.PublicKey{key.Public()}}
	s := &Store{dir: dir, info: info, home: o.Home, sync: !o.Unsynced}
	if err := s.checkKeyPlace(o.KeyFile); err != nil {
		return nil, err
	}
	if err := s.writeKey(o.KeyFile, key); err != nil {
		return nil, err
	}
	err = s.prepare()
	if err == nil {
		err = s.writeInfo() // last, since store.json makes the directory a store
	}
	if err != nil {
		s.unmake(o.KeyFile, made)
		return nil, accessError(dir, err)
	}
	return s, nil
}

// unmake removes the files and directories of a failed Init, so that the same command
// can be run again. It removes only empty directories.
func (s *Store) unmake(keyFile string, made bool) {
	for _, d := range []string{locksDir, writersDir, workDir, "objects", "tags", "profiles"} {
		os.Remove(s.path(d))
	}
	if made {
		os.Remove(s.dir)
	}
	if file, err := s.KeyFile(keyFile); err == nil {
		os.Remove(file)
	}
}

// Open opens the store in dir.
func Open(dir string, o Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(dir, tree.InfoPath))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, &UsageError{Reason: fmt.Sprintf("%s is not a store: it has no %s", dir, tree.InfoPath), HintText: "make one with premix store init " + dir, Err: err}
	}
	if err != nil {
		return nil, accessError(dir, err)
	}
	info, err := tree.ParseInfo(content)
	if err != nil {
		return nil, damage(filepath.Join(dir, tree.InfoPath), err)
	}
	return &Store{dir: dir, info: info, home: o.Home, sync: !o.Unsynced}, nil
}

// prepare makes the directories that every store has. Root writes only where no other
// user could redirect it with links.
func (s *Store) prepare() error {
	for _, d := range []string{"", "objects", "tags", "profiles", workDir} {
		if err := owner.Trusted(s.path(d)); err != nil {
			return err
		}
	}
	for _, d := range []string{"objects", "tags", "profiles"} {
		if err := os.MkdirAll(s.path(d), 0o777); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.path(workDir), 0o700); err != nil {
		return err
	}
	for _, d := range []string{locksDir, writersDir} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return err
		}
	}
	return s.belongs()
}

// belongs refuses a store in which another user could have placed links that redirect
// writes.
func (s *Store) belongs() error {
	if err := owner.CheckNamed(s.dir); err != nil {
		return err
	}
	for _, d := range []string{"objects", "tags", "profiles", workDir, locksDir, writersDir} {
		if err := owner.Directory(s.path(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *Store) writeInfo() error {
	content, err := s.info.Marshal()
	if err != nil {
		return err
	}
	return s.replace(tree.InfoPath, content)
}

// Dir returns the store's directory, absolute.
func (s *Store) Dir() string { return s.dir }

// Info returns the store's id and keys.
func (s *Store) Info() tree.Info {
	i := *s.info
	i.Keys = slices.Clone(i.Keys)
	return i
}

// path returns the path of a file of the store, given with slashes.
func (s *Store) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

// replace replaces a mutable file atomically, and syncs it before it returns.
func (s *Store) replace(name string, content []byte) error {
	path := s.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	// Incomplete files lie in a directory that is not served.
	tmp := s.path(workDir + "/" + beneath.Temporary(tempPrefix))
	if err := os.WriteFile(tmp, content, 0o666); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := beneath.Move(tmp, path, beneath.Durability(s.sync)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if !s.sync {
		return nil
	}
	// The directories above may be new, too.
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if err := beneath.SyncDir(dir); err != nil || dir == s.dir {
			return err
		}
	}
}

// lock waits for a named lock until ctx ends, and returns a function that releases it.
func (s *Store) lock(ctx context.Context, name string) (func(), error) {
	if err := s.belongs(); err != nil {
		return nil, accessError(s.dir, err)
	}
	f, err := owner.OpenFile(s.path(locksDir+"/"+name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, accessError(s.dir, err)
	}
	if err := lock.Await(ctx, f, lock.Exclusive); err != nil {
		f.Close()
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil // closing releases the lock
}

// Object returns the stored form of an object, unverified. The error for a missing
// object wraps [fs.ErrNotExist].
func (s *Store) Object(d object.Digest) ([]byte, error) { return os.ReadFile(s.path(d.Path())) }

// Content returns the verified content of an object. The size is as for
// [object.Decode].
func (s *Store) Content(d object.Digest, size int64) ([]byte, error) {
	stored, err := s.Object(d)
	if err != nil {
		return nil, err
	}
	return object.Decode(nil, d, size, stored)
}

// random returns a name that no other process uses.
func random() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// below reports whether path is dir or lies in it.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
