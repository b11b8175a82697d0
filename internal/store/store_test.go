package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store"
	"premix/internal/store/tree"
)

func TestInitAndOpenRefuse(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	o := store.Options{Home: at("home"), Unsynced: true}
	if _, err := store.Init(at("store"), o); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "full/file", nil)
	write(t, dir, "broken/store.json", []byte("{"))
	write(t, dir, "later/store.json", []byte(`{"format": "premix store 9", "id": "", "keys": []}`))
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a store":                   {second(store.Init(at("store"), o)), "is a store already"},
		"a full directory":          {second(store.Init(at("full"), o)), "is not empty: it contains file"},
		"a file":                    {second(store.Init(at("full/file"), o)), "cannot be made"},
		"below a file":              {second(store.Init(at("full/file/x"), o)), "cannot be made"},
		"a key in the store":        {second(store.Init(at("new"), store.Options{KeyFile: at("new/work/key")})), "would be in the store"},
		"a home in the store":       {second(store.Init(at("new"), store.Options{Home: at("new")})), "would be in the store"},
		"a key that is there":       {second(store.Init(at("new"), store.Options{KeyFile: at("full/file")})), "exists already"},
		"opening nothing":           {second(store.Open(at("missing"), o)), "is not a store"},
		"opening a file":            {second(store.Open(at("full/file"), o)), "is not a store"},
		"opening a broken one":      {second(store.Open(at("broken"), o)), "store.json is damaged"},
		"opening a later version's": {second(store.Open(at("later"), o)), `its format is "premix store 9"`},
	} {
		var hint interface{ Hint() string }
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) || !errors.As(c.err, &hint) || hint.Hint() == "" {
			t.Errorf("%s: %v, want %q and a hint", name, c.err, c.want)
		}
	}
	if _, err := os.Stat(at("new/store.json")); err == nil {
		t.Error("a store was made without a key")
	}
}

func second(_ *store.Store, err error) error { return err }

func TestKeys(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	file, err := s.KeyFile("")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the private key: %v, %v", st, err)
	}
	publish(t, s, dir, "x", "")
	first := s.Info().Keys[0]
	fresh, err := s.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "f", nil)
	publish(t, s, dir, "x", "")
	again, err := store.Open(s.Dir(), store.Options{Home: homeOf(s), Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	if keys := again.Info().Keys; len(keys) != 2 || keys[0] != first || keys[1] != fresh || first == fresh {
		t.Errorf("keys %v", keys)
	}
	if found := verify(t, again); len(found) > 0 {
		t.Errorf("signatures of two keys: %+v", found)
	}
	for name, harm := range map[string]func() error{
		"readable by others": func() error { return os.Chmod(file, 0o640) },
		"another store's": func() error {
			other, err := newStore(t).KeyFile("")
			if err != nil {
				return err
			}
			return errors.Join(os.Remove(file), os.Rename(other, file))
		},
		"no key":  func() error { return os.WriteFile(file, []byte("secret words"), 0o600) },
		"missing": func() error { return os.Remove(file) },
	} {
		kept, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		_, err = s.Key("")
		var use *store.UsageError
		if !errors.As(err, &use) || use.Hint() == "" || strings.Contains(err.Error(), "secret words") {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(os.WriteFile(file, kept, 0o600), os.Chmod(file, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Key(""); err != nil {
		t.Errorf("the key that was put back: %v", err)
	}
}

// A full disk stops a publish with a clear error and damages nothing. Once there is room,
// the publish succeeds.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small filesystem is mounted, which needs root")
	}
	small, dir := t.TempDir(), t.TempDir()
	if err := unix.Mount("premix-test", small, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted: %v", err)
	}
	defer func() {
		if err := unmount.Dir(small); err != nil {
			t.Error(err)
		}
	}()
	s, err := store.Init(filepath.Join(small, "store"), store.Options{Home: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "f", noise(1, 1<<20))
	before := publish(t, s, dir, "x", "")
	write(t, dir, "g", noise(2, 8<<20))
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Publish(context.Background(), dir, mustRef(t, "x"), store.PublishOptions{Key: key})
	var access *store.AccessError
	if !errors.As(err, &access) || !errors.Is(err, unix.ENOSPC) || access.Hint() == "" {
		t.Errorf("on a full disk: %v", err)
	}
	var source *store.SourceError
	if errors.As(err, &source) {
		t.Errorf("the directory is blamed for a full disk of the store: %v", err)
	}
	r, err := s.Resolve(tree.Ref{Name: "x", Tag: tree.DefaultTag})
	if err != nil || r.Tree != before.Tree {
		t.Errorf("the tag stands for %+v, %v", r, err)
	}
	if found := verify(t, s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	if err := unix.Mount("premix-test", small, "tmpfs", unix.MS_REMOUNT, "size=30m"); err != nil {
		t.Fatal(err)
	}
	p := publish(t, s, dir, "x", "")
	if err := readWhole(s, p.Tree); err != nil {
		t.Error(err)
	}
}

// If there is no room to make a store, Init leaves nothing behind, so that the same command
// can run again.
func TestInitOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small filesystem is mounted, which needs root")
	}
	small, home := t.TempDir(), t.TempDir()
	if err := unix.Mount("premix-test", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted: %v", err)
	}
	defer func() {
		if err := unmount.Dir(small); err != nil {
			t.Error(err)
		}
	}()
	fill := filepath.Join(small, "fill")
	if err := os.WriteFile(fill, noise(1, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("2 MiB on a disk of 1 MiB: %v", err)
	}
	there := filepath.Join(small, "there")
	if err := os.Mkdir(there, 0o700); err != nil {
		t.Fatal(err)
	}
	dirs := []string{there, filepath.Join(small, "new")}
	for _, dir := range dirs {
		_, err := store.Init(dir, store.Options{Home: home})
		var access *store.AccessError
		if !errors.As(err, &access) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for dir, want := range map[string]int{small: 2, there: 0, filepath.Join(home, "keys"): 0} {
		if list, err := os.ReadDir(dir); err != nil || len(list) != want {
			t.Errorf("in %s: %v, %v; want %d", dir, list, err, want)
		}
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if _, err := store.Init(dir, store.Options{Home: home}); err != nil {
			t.Errorf("with room: %v", err)
		}
	}
}
