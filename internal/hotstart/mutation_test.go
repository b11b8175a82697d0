package hotstart

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMutations makes random changes to the files of a tool, and compares its output each time with
// the output without premix: no snapshot from before a change may be used. PREMIX_SOAK makes the
// test long.
func TestMutations(t *testing.T) {
	count := 40
	if os.Getenv("PREMIX_SOAK") != "" {
		count = 1000
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "reader")
	if out, err := exec.Command("cc", "-O1", "-o", program, "testdata/reader.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, out)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := mutator{t: t, dir: filepath.Join(dir, "data"), rand: rand.New(rand.NewPCG(seed, 0))}
	m.fill()
	spec := newSpec(m.dir, "input")
	spec.Argv[0] = program
	sample := filepath.Join(dir, "sample")
	if err := os.WriteFile(sample, []byte("sample\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hot := 0
	for i := range count {
		done := m.mutate()
		want, err := exec.Command(program, m.dir, sample).Output()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // first with the previous snapshot or a new one, then with the latter
			b := benchIn(t, spec, Auto, dir, filepath.Join(dir, "store"))
			b.mustPrepare("sample\n")
			r := b.run("sample\n")
			if r.proc.Kind == Hot {
				hot++
			}
			if r.out != string(want) {
				t.Errorf("mutation %d: after %q a %s start gave %q, and the tool gives %q", i, done, r.proc.Kind, r.out, want)
			}
			b.starter.Close()
			if err := os.RemoveAll(filepath.Join(dir, "tasks")); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d of %d starts were hot", hot, 2*count)
	if hot < count {
		t.Errorf("%d of %d starts were hot", hot, 2*count)
	}
}

// mutator changes files in a directory that testdata/reader.c reads.
type mutator struct {
	t    *testing.T
	dir  string
	rand *rand.Rand
	n    int
}

func (m *mutator) path(name string) string { return filepath.Join(m.dir, name) }

func (m *mutator) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mutator) fill() {
	for _, dir := range []string{"", "names", "first", "second"} {
		m.must(os.Mkdir(m.path(dir), 0o755))
	}
	for _, name := range []string{"content", "database", "stat", "one", "two", "names/a", "second/found"} {
		m.must(os.WriteFile(m.path(name), []byte(name+" has this content\n"), 0o644))
	}
	m.must(os.Symlink("one", m.path("link")))
	m.must(os.Symlink("nowhere", m.path("target")))
}

// text returns new content, often of the same size.
func (m *mutator) text() []byte {
	m.n++
	return []byte(strings.Repeat(fmt.Sprintf("%07d\n", m.n), 1+m.rand.IntN(2)))
}

// mutate makes one change and describes it. The tool may be unable to see the change.
func (m *mutator) mutate() string {
	file := []string{"content", "database", "one", "two", "stat", "second/found"}[m.rand.IntN(6)]
	path := m.path(file)
	toggle := func(path string) {
		if os.Remove(path) != nil {
			m.must(os.WriteFile(path, m.text(), 0o644))
		}
	}
	link := func(target, path string) {
		m.must(os.Remove(path))
		m.must(os.Symlink(target, path))
	}
	switch m.rand.IntN(14) {
	case 0:
		m.must(os.WriteFile(path, m.text(), 0o644))
		return "write " + file
	case 1: // like a copy that preserves times
		st, err := os.Stat(path)
		m.must(err)
		m.must(os.WriteFile(path, m.text(), 0o644))
		m.must(os.Chtimes(path, st.ModTime(), st.ModTime()))
		return "write and set back the time of " + file
	case 2:
		m.must(os.WriteFile(path+".new", m.text(), 0o644))
		m.must(os.Rename(path+".new", path))
		return "replace " + file
	case 3:
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		m.must(err)
		f.Write([]byte("x"))
		m.must(f.Close())
		return "append to " + file
	case 4:
		m.must(os.Truncate(path, int64(m.rand.IntN(20))))
		return "truncate " + file
	case 5:
		then := time.Unix(int64(m.rand.IntN(1_000_000_000)), 0)
		m.must(os.Chtimes(path, then, then))
		return "touch " + file
	case 6:
		m.must(os.Chmod(path, os.FileMode([]int{0o600, 0o644, 0o755}[m.rand.IntN(3)])))
		return "chmod " + file
	case 7:
		link([]string{"one", "two", "nothing"}[m.rand.IntN(3)], m.path("link"))
		return "lead link elsewhere"
	case 8:
		link([]string{"nowhere", "one", "elsewhere"}[m.rand.IntN(3)], m.path("target"))
		return "lead target elsewhere"
	case 9:
		toggle(m.path("missing"))
		return "make or remove missing"
	case 10:
		toggle(m.path("first/found"))
		return "make or remove first/found"
	case 11:
		toggle(m.path("names/" + string(rune('a'+m.rand.IntN(5)))))
		return "make or remove a name"
	case 12:
		m.must(os.Rename(m.path("one"), m.path("three")))
		m.must(os.Rename(m.path("two"), m.path("one")))
		m.must(os.Rename(m.path("three"), m.path("two")))
		return "exchange one and two"
	default:
		return "nothing"
	}
}
