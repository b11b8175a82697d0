package hotstart

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exported prepares a snapshot and exports it.
func exported(t *testing.T, spec Spec, kind Kind) (dir string) {
	t.Helper()
	b := newBench(t, spec, kind)
	b.mustPrepare(probeCommands)
	b.starter.Close()
	all, err := List(b.store)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d snapshots, %v", len(all), err)
	}
	dir = filepath.Join(b.dir, "travelling")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := all[0].Export(dir); err != nil {
		t.Fatal(err)
	}
	// Remove the original, so that nothing at the destination can refer to it.
	if err := all[0].Remove(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTravel(t *testing.T) {
	for _, kind := range []Kind{Hot} {
		t.Run(string(kind), func(t *testing.T) {
			spec := newSpec("-m", "40", "-p", "header", "input")
			spec.Stream = true // its prefix is exported too
			dir := exported(t, spec, kind)
			there := newBench(t, spec, kind)
			s, err := Import(there.store, dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(dir); err != nil { // an ordinary directory is copied
				t.Fatal(err)
			}
			there.mustPrepare(probeCommands)
			all, err := List(there.store)
			if err != nil || len(all) != 1 || all[0].ID != s.ID {
				t.Fatalf("a snapshot was prepared afresh: %d of them, %v, notices %q", len(all), err, there.notices)
			}
			for _, sample := range []string{"sum\n", "sum\nwrite\nsum\ngrow\nsum\n"} {
				r := there.run(sample)
				if !r.exit.OK() || r.proc.Kind != kind || !strings.HasPrefix(r.out, "header\n") || strings.Contains(r.out, "wrong") {
					t.Errorf("%s start, %s, stdout %q, stderr %q", r.proc.Kind, r.exit, r.out, r.err)
				}
			}
		})
	}
}

// TestTravelOfAContainer checks that files that the tool has written in the root of its container
// are exported too.
func TestTravelOfAContainer(t *testing.T) {
	needContainers(t)
	im := newImage(t, "")
	spec := imageSpec(im, "-m", "20", "-l", "/tmp/log", "input")
	dir := exported(t, spec, Hot)
	there := newBench(t, spec, Hot)
	s, err := Import(there.store, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	there.mustPrepare(probeCommands)
	all, err := List(there.store)
	if err != nil || len(all) != 1 || all[0].ID != s.ID {
		t.Fatalf("a snapshot was prepared afresh: %d of them, %v, notices %q", len(all), err, there.notices)
	}
	r := there.run("log travelled\nfile /tmp/log\nsum\n")
	if !r.exit.OK() || r.proc.Kind != Hot || !strings.HasPrefix(r.out, "logged\nfile before\nfile after travelled\nsum ") {
		t.Errorf("%s start, %s, stdout %q, stderr %q", r.proc.Kind, r.exit, r.out, r.err)
	}
	there.nothingLeft(im)
}

func TestImportRefuses(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "tool")
	if err := copyFile(tool, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := newSpec("-m", "4", "input")
	spec.Argv[0] = binary
	dir := exported(t, spec, Hot)
	edit := func(name string, change func([]byte) []byte) func(t *testing.T) {
		return func(t *testing.T) {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.WriteFile(name, b, 0o755); err != nil {
					t.Fatal(err)
				}
			})
			changed := change(append([]byte(nil), b...))
			if string(changed) == string(b) {
				t.Fatal("nothing was changed")
			}
			if err := os.WriteFile(name, changed, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace := func(old, by string) func([]byte) []byte {
		return func(b []byte) []byte { return []byte(strings.Replace(string(b), old, by, 1)) }
	}
	flip := func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
	meta := filepath.Join(dir, metaName)
	for name, c := range map[string]struct {
		spoil func(t *testing.T)
		want  any
	}{
		"another kernel":      {edit(meta, replace(`"kernel": "`, `"kernel": "9.`)), new(*Mismatch)},
		"another CPU":         {edit(meta, replace(`"cpu": "`, `"cpu": "0`)), new(*Mismatch)},
		"another binary":      {edit(binary, flip), new(*Mismatch)},
		"a damaged page file": {edit(filepath.Join(dir, pageName), func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), new(*Damaged)},
		"a damaged image":     {edit(filepath.Join(dir, imageName), flip), new(*Damaged)},
		"a path outside":      {edit(meta, replace(`"path": "image"`, `"path": "../image"`)), nil},
		"a later format":      {edit(meta, replace(fmt.Sprintf(`"version": %d`, metaVersion), `"version": 99`)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.spoil(t)
			store := filepath.Join(t.TempDir(), "store")
			s, err := Import(store, dir)
			if err == nil {
				t.Fatalf("it was taken as %s", s.ID)
			}
			if c.want != nil && !errors.As(err, c.want) {
				t.Errorf("error %v (%T), want %T", err, err, c.want)
			}
			if left, _ := filepath.Glob(filepath.Join(store, "*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}
