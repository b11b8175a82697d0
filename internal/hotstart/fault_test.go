package hotstart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/kit/unmount"
)

// prepared makes a hot snapshot that has passed its proof, and returns its bench and the snapshot,
// so that tests can damage it.
func prepared(t *testing.T, spec Spec) (*bench, *Snapshot) {
	t.Helper()
	b := newBench(t, spec, Hot)
	b.mustPrepare("sum\n")
	all, err := List(b.store)
	if err != nil || len(all) != 1 {
		t.Fatalf("store holds %d snapshots: %v", len(all), err)
	}
	if err := all[0].Verify(); err != nil {
		t.Fatalf("fresh snapshot: %v", err)
	}
	return b, all[0]
}

// largest returns an offset within the largest piece of a snapshot's page file.
func largest(t *testing.T, s *Snapshot) int64 {
	t.Helper()
	im, err := frozen.ReadFile(filepath.Join(s.Dir, imageName))
	if err != nil {
		t.Fatal(err)
	}
	p := slices.MaxFunc(im.Pieces, func(a, b frozen.Piece) int { return int(a.Size - b.Size) })
	return p.Offset + p.Size/2
}

// TestDamaged damages a snapshot between two runs. Verify must name the file, and a run must
// prepare again and give the right output.
func TestDamaged(t *testing.T) {
	flip := func(t *testing.T, path string, at int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var c [1]byte
		if _, err := f.ReadAt(c[:], at); err != nil {
			t.Fatal(err)
		}
		c[0] ^= 0x10
		if _, err := f.WriteAt(c[:], at); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]struct {
		do   func(t *testing.T, s *Snapshot)
		want string
	}{
		"page file bit flipped": {func(t *testing.T, s *Snapshot) {
			flip(t, filepath.Join(s.Dir, pageName), largest(t, s))
		}, "pages: the page file has other bytes"},
		"page file truncated": {func(t *testing.T, s *Snapshot) {
			if err := os.Truncate(filepath.Join(s.Dir, pageName), largest(t, s)); err != nil {
				t.Fatal(err)
			}
		}, "pages has .* bytes instead of"},
		"page file missing": {func(t *testing.T, s *Snapshot) {
			if err := os.Remove(filepath.Join(s.Dir, pageName)); err != nil {
				t.Fatal(err)
			}
		}, "pages is missing"},
		"image bit flipped": {func(t *testing.T, s *Snapshot) {
			flip(t, filepath.Join(s.Dir, imageName), 40)
		}, "image has other bytes"},
		"image missing": {func(t *testing.T, s *Snapshot) {
			if err := os.Remove(filepath.Join(s.Dir, imageName)); err != nil {
				t.Fatal(err)
			}
		}, "image is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := newSpec("-m", "20", "input")
			b, snap := prepared(t, spec)
			want := b.run("sum\n").out
			damage.do(t, snap)

			// A run in progress detects the damage at its next start.
			dir := b.task()
			_, err := b.starter.Start(t.Context(), Task{Dir: dir, Inputs: map[string]string{"input": b.input("sum\n")}})
			wantUnavailable(t, err, Hot, "damaged: .*"+damage.want)
			b.starter.Close()

			var damaged *Damaged
			if err := snap.Verify(); !errors.As(err, &damaged) {
				t.Errorf("verify: %v", err)
			}
			again := benchIn(t, spec, Hot, b.dir, b.store)
			again.mustPrepare("sum\n")
			if len(again.notices) != 1 || !strings.Contains(again.notices[0], "prepared again") {
				t.Errorf("notices: %q", again.notices)
			}
			if r := again.run("sum\n"); r.out != want || r.proc.Kind != Hot {
				t.Errorf("%s start gave %q, want %q", r.proc.Kind, r.out, want)
			}
			if all, _ := List(b.store); len(all) != 1 || all[0].ID == snap.ID {
				t.Errorf("the damaged snapshot is still there: %v", all)
			}
		})
	}
}

// TestCrash simulates a crash before the page file was on disk: part of its content is missing, and
// its size and times are unchanged.
func TestCrash(t *testing.T) {
	for name, lost := range map[string]bool{"everything was written": false, "content is missing": true} {
		t.Run(name, func(t *testing.T) {
			spec := newSpec("-m", "20", "input")
			b, snap := prepared(t, spec)
			want := b.run("sum\n").out
			b.starter.Close()
			mark := filepath.Join(snap.Dir, syncName)
			eventually(t, "the page file is on the disk", func() bool { _, err := os.Stat(mark); return errors.Is(err, fs.ErrNotExist) })

			if err := os.WriteFile(mark, []byte("another boot"), 0o600); err != nil {
				t.Fatal(err)
			}
			if lost {
				f, err := os.OpenFile(snap.pagePath(), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteAt(make([]byte, 4096), largest(t, snap)&^4095); err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(snap.Stamps, func(s Stamp) bool { return s.Path == snap.pagePath() })
				if snap.Stamps[i], err = statStamp(snap.pagePath()); err != nil {
					t.Fatal(err)
				}
				if err := snap.save(); err != nil {
					t.Fatal(err)
				}
			}
			again := benchIn(t, spec, Hot, b.dir, b.store)
			again.mustPrepare("sum\n")
			if notices := strings.Join(again.notices, "\n"); strings.Contains(notices, "the page file has other bytes") != lost {
				t.Errorf("notices: %q", notices)
			}
			if r := again.run("sum\n"); r.out != want || r.proc.Kind != Hot {
				t.Errorf("%s start gave %q, want %q", r.proc.Kind, r.out, want)
			}
			if all, err := List(b.store); err != nil || len(all) != 1 || (all[0].ID != snap.ID) != lost {
				t.Errorf("snapshots %v, %v", all, err)
			}
			if _, err := os.Stat(mark); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the mark is still there: %v", err)
			}
		})
	}
}

// TestDamagedFallsBack checks that an auto start continues cold in the middle of a run.
func TestDamagedFallsBack(t *testing.T) {
	b := newBench(t, newSpec("-m", "20", "-t", "1", "input"), Auto)
	b.mustPrepare("sum\n")
	if kind, why := b.starter.Decision(); kind != Hot {
		t.Fatalf("decided on %s because %s", kind, why)
	}
	want := b.run("sum\n").out
	all, err := List(b.store)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(all[0].Dir, pageName)); err != nil {
		t.Fatal(err)
	}
	r := b.run("sum\n")
	if r.proc.Kind != Cold || r.out != want || !strings.Contains(r.proc.Reason, "pages is missing") {
		t.Errorf("%s start because %q gave %q, want %q", r.proc.Kind, r.proc.Reason, r.out, want)
	}
}

// TestChanged changes the inputs of the fingerprint without changing their sizes.
func TestChanged(t *testing.T) {
	change := func(t *testing.T, path, old, new string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(b, []byte(old), []byte(new), 1)
		if bytes.Equal(changed, b) {
			t.Fatalf("%s does not hold %q", path, old)
		}
		if err := os.WriteFile(path, changed, st.Mode()); err != nil {
			t.Fatal(err)
		}
		// Like a copy that preserves times.
		if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	mytool, index := filepath.Join(dir, "mytool"), filepath.Join(dir, "ref", "index")
	if err := os.Mkdir(filepath.Dir(index), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(tool, mytool, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, []byte("chr1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := newSpec("-m", "2", "-i", index, "input")
	spec.Argv[0], spec.Data = mytool, []string{filepath.Dir(index)}
	for i, c := range []struct {
		name   string
		change func(t *testing.T)
		notice string
		out    string
	}{
		{"nothing", func(*testing.T) {}, "", "index chr1\nids right leader 1\n"},
		{"binary", func(t *testing.T) { change(t, mytool, "index %s", "INDEX %s") }, "mytool has changed", "INDEX chr1\nids right leader 1\n"},
		{"index", func(t *testing.T) { change(t, index, "chr1", "chr2") }, "ref/index has changed", "INDEX chr2\nids right leader 1\n"},
		{"new file", func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "ref", "more"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "ref/more is new", "INDEX chr2\nids right leader 1\n"},
		{"touched only", func(t *testing.T) {
			if err := os.Chtimes(index, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}, "", "INDEX chr2\nids right leader 1\n"},
	} {
		if i == 0 {
			first := benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
			first.mustPrepare("sum\n")
			first.starter.Close()
		}
		t.Run(c.name, func(t *testing.T) {
			c.change(t)
			b := benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
			defer b.starter.Close()
			b.mustPrepare("sum\n")
			if got := strings.Join(b.notices, "\n"); c.notice == "" && got != "" || !strings.Contains(got, c.notice) {
				t.Errorf("notices %q, want %q", got, c.notice)
			}
			if r := b.run("index\nids\n"); r.out != c.out || r.proc.Kind != Hot {
				t.Errorf("%s start gave %q, want %q", r.proc.Kind, r.out, c.out)
			}
		})
	}
}

// TestUndeclared changes files that a tool has read or has tried to open, and that no recipe
// declares.
func TestUndeclared(t *testing.T) {
	dir := t.TempDir()
	index, settings := filepath.Join(dir, "index"), filepath.Join(dir, "rc")
	elsewhere := filepath.Join(dir, "elsewhere")
	write := func(path, text string) func(t *testing.T) {
		return func(t *testing.T) {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	data := filepath.Join(dir, "data")
	if err := errors.Join(os.Mkdir(elsewhere, 0o755), os.Mkdir(data, 0o755), os.Symlink(elsewhere, filepath.Join(data, "link"))); err != nil {
		t.Fatal(err)
	}
	write(index, "chr1\n")(t)
	spec := newSpec("-m", "2", "-i", index, "-R", settings, "input")
	spec.Data = []string{data}
	first := benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
	first.mustPrepare("sum\n")
	first.starter.Close()
	for _, c := range []struct {
		name   string
		change func(t *testing.T)
		notice string
		out    string
	}{
		{"nothing", func(*testing.T) {}, "", "index chr1\nsettings none\n"},
		{"a file that was read", write(index, "chr2\n"), "index has changed", "index chr2\nsettings none\n"},
		{"a file that was missing", write(settings, "fast\n"), "rc is new", "index chr2\nsettings fast\n"},
		{"its content", write(settings, "slow\n"), "rc has changed", "index chr2\nsettings slow\n"},
		{"its end", func(t *testing.T) {
			if err := os.Remove(settings); err != nil {
				t.Fatal(err)
			}
		}, "rc is missing", "index chr2\nsettings none\n"},
		{"data behind a link", write(filepath.Join(elsewhere, "more"), "x"), "data/link/more is new", "index chr2\nsettings none\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.change(t)
			b := benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
			defer b.starter.Close()
			b.mustPrepare("sum\n")
			if got := strings.Join(b.notices, "\n"); c.notice == "" && got != "" || !strings.Contains(got, c.notice) {
				t.Errorf("notices %q, want %q", got, c.notice)
			}
			if r := b.run("index\nsettings\n"); r.out != c.out || r.proc.Kind != Hot {
				t.Errorf("%s start gave %q, want %q", r.proc.Kind, r.out, c.out)
			}
		})
	}
}

// TestEarlyLooks uses tools that look at their input before they load their data: at its size,
// which they keep, and which a start replaces by the size of the task's input, and at its first
// byte.
func TestEarlyLooks(t *testing.T) {
	const records = "@1\nsize\n+\nsum\n@2\nsum\n+\nsum\n"
	spec := newSpec("-m", "2", "-S", "input")
	b := newBench(t, spec, Hot)
	b.mustPrepare(records)
	for _, sample := range []string{"size\n", "sum\nsize\n", records + "size\n"} {
		if r := b.run(sample); r.proc.Kind != Hot || !strings.HasSuffix(r.out, fmt.Sprintf("size %d\n", len(sample))) {
			t.Errorf("%s start gave %q", r.proc.Kind, r.out)
		}
	}

	// The tool keeps nothing of this look, and parts of the sample differ in size.
	for _, sample := range []string{"sum\n", "sum\nsay text\n", records} {
		b = newBench(t, newSpec("-m", "2", "-g", "input"), Hot)
		b.mustPrepare(sample)
		if r := b.run("say other\nsay one\n"); r.proc.Kind != Hot || r.out != "other\none\n" {
			t.Errorf("%s start gave %q", r.proc.Kind, r.out)
		}
	}

	// Sizes and times outside the range of the two preparations have not been compared.
	input := b.input("")
	for _, change := range []func() error{
		func() error { return nil },
		func() error { return os.WriteFile(input, []byte(records), 0o600) },
		func() error { return os.Chtimes(input, time.Unix(1e7, 0), time.Unix(1e7, 0)) },
		func() error { then := time.Now().AddDate(5, 0, 0); return os.Chtimes(input, then, then) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		proc, err := b.starter.Start(context.Background(), Task{Dir: b.task(), Inputs: map[string]string{"input": input}})
		if info, _ := os.Stat(input); info.Size() == int64(len(records)) && time.Until(info.ModTime()).Abs() < time.Minute {
			if err != nil {
				t.Errorf("an input between the two: %v", err)
			} else if exit, err := proc.Wait(); err != nil || !exit.OK() {
				t.Errorf("%v, %v", exit, err)
			}
			continue
		}
		wantUnavailable(t, err, Hot, "the tool asks for the size and the times of its input")
	}

	// The tool keeps whether its input is large, and the probe is small.
	b = newBench(t, newSpec("-m", "2", "-G", "input"), Hot)
	wantUnavailable(t, b.prepare(records), Hot, "its memory depends on a value that differs between starts")

	// The tool opens its input twice and loads its data before the second time.
	index := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(index, append([]byte("chr1\n"), make([]byte, 2*dataSize)...), 0o644); err != nil {
		t.Fatal(err)
	}
	b = newBench(t, newSpec("-m", "2", "-o", "-i", index, "input"), Hot)
	b.mustPrepare(records)
	if r := b.run("@1\nindex\n+\nsum\n"); r.proc.Kind != Hot || !strings.HasPrefix(r.out, "index chr1\nsum ") {
		t.Errorf("%s start gave %q", r.proc.Kind, r.out)
	}
	// The tool may have kept the format.
	_, err := b.starter.Start(context.Background(), Task{Dir: b.task(), Inputs: map[string]string{"input": b.input("index\nsum\n")}})
	wantUnavailable(t, err, Hot, "looked into its input input before the stop; the probe.s was FASTQ, .*and this one is text")
	all, err := List(b.store)
	if err != nil || len(all) != 1 || !slices.Equal(all[0].Early, []string{"open"}) || all[0].Memory < 2<<20 {
		t.Errorf("snapshots %+v, %v", all, err)
	}
}

// longAgo waits until the coarse clock of the file system is clearly later than the change of a
// file.
func longAgo(t *testing.T, path string) {
	t.Helper()
	var st, now unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "mark")
	eventually(t, "the clock of the file system goes on", func() bool {
		return os.WriteFile(mark, nil, 0o600) == nil && unix.Stat(mark, &now) == nil && now.Ctim.Nano()-st.Ctim.Nano() > int64(50*time.Millisecond)
	})
}

// TestOpenedForWriting uses a tool that opens a file outside of its directory for writing, as with
// databases, and only reads it.
func TestOpenedForWriting(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "database")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	spec := newSpec("-m", "2", "-D", file, "input")
	b := benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
	longAgo(t, file)
	b.mustPrepare("sum\n")
	if r := b.run("index\n"); r.proc.Kind != Hot || r.out != "index one\n" {
		t.Errorf("%s start gave %q", r.proc.Kind, r.out)
	}
	b.starter.Close()
	write("two\n")
	longAgo(t, file)
	b = benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
	b.mustPrepare("sum\n")
	if r := b.run("index\n"); r.proc.Kind != Hot || r.out != "index two\n" || len(b.notices) != 1 {
		t.Errorf("%s start gave %q, notices %q", r.proc.Kind, r.out, b.notices)
	}

	b = newBench(t, newSpec("-m", "2", "-w", "-D", file, "input"), Hot)
	wantUnavailable(t, b.prepare("sum\n"), Hot, "the tool writes to "+file+" before it opens its input")
}

// TestProgramOnPath puts another program of the same name before the first one on PATH.
func TestProgramOnPath(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for _, d := range []string{first, second} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFile(tool, filepath.Join(second, "mytool"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := newSpec("-m", "2", "input")
	spec.Argv[0], spec.Env = "mytool", []string{"PATH=" + first + ":" + second + ":/usr/bin:/bin"}
	b := benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
	b.mustPrepare("sum\n")
	b.starter.Close()
	text, err := os.ReadFile(tool)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first, "mytool"), bytes.Replace(text, []byte("sum %016lx"), []byte("SUM %016lx"), 1), 0o755); err != nil {
		t.Fatal(err)
	}
	b = benchIn(t, spec, Hot, dir, filepath.Join(dir, "store"))
	b.mustPrepare("sum\n")
	if r := b.run("sum\n"); !strings.HasPrefix(r.out, "SUM ") {
		t.Errorf("it printed %q", r.out)
	}
}

// TestCheckedIndex uses a tool that checks whether its index exists, opens its input, and then
// loads the index.
func TestCheckedIndex(t *testing.T) {
	index := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(index, append([]byte("chr1\n"), make([]byte, 2*dataSize)...), 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, newSpec("-m", "2", "-k", "-r", "-i", index, "input"), Hot)
	b.mustPrepare("sum\n")
	if r := b.run("index\nsum\n"); r.proc.Kind != Hot || !strings.HasPrefix(r.out, "index chr1\nsum ") {
		t.Errorf("%s start gave %q", r.proc.Kind, r.out)
	}
	all, err := List(b.store)
	if err != nil || len(all) != 1 || all[0].Memory < 2<<20 || all[0].Opened != all[0].Data {
		t.Errorf("the index is not in the snapshot: %+v, %v", all, err)
	}
}

// TestBareRoot checks which starts are possible without any programs, as in a minimal root
// directory.
func TestBareRoot(t *testing.T) {
	t.Setenv("PATH", "")
	if hint, err := canTrace(); err != nil {
		t.Errorf("%v (%s)", err, hint)
	}
}

// TestProcessIds checks that two concurrent tasks have different process IDs, because tools use
// them in names of files.
func TestProcessIds(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t, newSpec("-m", "2", "input"), kind)
			b.mustPrepare("sum\n")
			p1, d1 := b.start("pid\nflush\nhang\n")
			eventually(t, "the first task runs", func() bool { return strings.HasPrefix(read(t, filepath.Join(d1, StdoutName)), "pid ") })
			second := b.run("pid\n").out
			p1.Signal(syscall.SIGKILL)
			if first := b.finish(p1, d1).out; first == second {
				t.Errorf("both are %q", first)
			}
		})
	}
}

// TestDiscard checks that discarding memory and expecting zeros, growing mappings, and forking work
// as in anonymous memory.
func TestDiscard(t *testing.T) {
	const commands = "dontneed\ngrow\nsum\nholegrow\nsum\nregrow\nfree\nforked\nsum\n"
	spec := newSpec("-m", "40", "input")
	want := ""
	for _, kind := range kinds {
		for _, threads := range []string{"0", "2"} {
			spec.Argv = []string{tool, "-m", "40", "-t", threads, "input"}
			b := newBench(t, spec, kind)
			b.mustPrepare("sum\n")
			r := b.run(commands)
			if want == "" {
				want = r.out
			}
			if r.out != want || !strings.HasPrefix(r.out, "zero 1\ngrown 1 1\n") || !strings.Contains(r.out, "\nholegrown 1\n") {
				t.Errorf("%s start, %s threads: got %q, want %q", kind, threads, r.out, want)
			}
		}
	}
}

// TestMismatch uses a tool whose output depends on more than its input: no kind of start passes the
// proof, and an auto start stays cold.
func TestMismatch(t *testing.T) {
	spec := newSpec("-m", "2", "input")
	for _, kind := range kinds[1:] {
		b := newBench(t, spec, kind)
		wantUnavailable(t, b.prepare("say a\ntime\n"), kind, "outputs differ from the outputs of a cold start: stdout differs in line 2")
	}
	b := newBench(t, spec, Auto)
	b.mustPrepare("say a\ntime\n")
	if kind, why := b.starter.Decision(); kind != Cold || !strings.Contains(why, "stdout differs in line 2") {
		t.Errorf("decided on %s because %s", kind, why)
	}
}

// TestForeign refuses snapshots that another user could have written.
func TestForeign(t *testing.T) {
	b, snap := prepared(t, newSpec("-m", "2", "input"))
	walk := func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if strings.Contains(path, "/"+workName) {
			return nil // files of the tool keep their modes
		}
		if m := info.Mode().Perm(); m&0o077 != 0 {
			t.Errorf("%s has mode %v", path, m)
		}
		return nil
	}
	if err := filepath.WalkDir(snap.Dir, walk); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(snap.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := List(b.store); !errors.Is(err, ErrForeign) {
		t.Errorf("readable by others: %v", err)
	}
	if err := os.Chmod(snap.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(snap.Dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := List(b.store); !errors.Is(err, ErrForeign) {
			t.Errorf("owned by another: %v", err)
		}
		if err := os.Chown(snap.Dir, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := snap.Remove(); !errors.Is(err, ErrInUse) {
		t.Errorf("removal during a run: %v", err)
	}
	b.starter.Close()
	if err := snap.Remove(); err != nil {
		t.Error(err)
	}
}

// TestFullDisk prepares into a store without room. An auto start continues cold.
func TestFullDisk(t *testing.T) {
	needNamespaces(t)
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("premix-test", store, "tmpfs", 0, "size=24m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unmount.Dir(store); err != nil {
			t.Error(err)
		}
	}()
	spec := newSpec("-m", "64", "-t", "1", "input")
	b := benchIn(t, spec, Hot, dir, store)
	err := b.prepare("sum\n")
	wantUnavailable(t, err, Hot, "(?i)no (space|room)")
	b.starter.Close()
	if entries, _ := os.ReadDir(store); len(entries) != 0 {
		t.Errorf("left in the store: %v", entries)
	}
	auto := benchIn(t, spec, Auto, dir, store)
	defer auto.starter.Close()
	auto.mustPrepare("sum\n")
	if r := auto.run("sum\n"); !r.exit.OK() || r.proc.Kind != Cold {
		t.Errorf("%s start: %+v", r.proc.Kind, r.exit)
	}
}

// TestBadTools prepares tools that never open their input.
func TestBadTools(t *testing.T) {
	for _, kind := range kinds[1:] {
		for name, c := range map[string]struct {
			args []string
			want string
		}{
			"fails":          {[]string{"-i", "/nonexistent/index", "input"}, "/nonexistent/index: No such file"},
			"no such option": {[]string{"-z", "input"}, "exit status 2"},
		} {
			t.Run(string(kind)+"/"+name, func(t *testing.T) {
				for _, probe := range []string{"sum\n", ""} {
					b := newBench(t, newSpec(c.args...), kind)
					err := b.prepare(probe)
					var input *InputError
					if !errors.As(err, &input) || !strings.Contains(err.Error(), c.want) {
						t.Errorf("with probe %q: %v", probe, err)
					}
				}
			})
		}
	}
	t.Run("never opens its input", func(t *testing.T) {
		spec := newSpec()
		spec.Argv = []string{"/bin/true"}
		for _, kind := range kinds[1:] {
			b := newBench(t, spec, kind)
			wantUnavailable(t, b.prepare("sum\n"), kind, "the tool ended \\(exit status 0\\) before it reached its input")
		}
		b := newBench(t, spec, Auto)
		b.mustPrepare("sum\n")
		if kind, why := b.starter.Decision(); kind != Cold || strings.Count(why, "the tool ended") != 1 {
			t.Errorf("decided on %s because %s", kind, why)
		}
	})
	t.Run("never prints its line", func(t *testing.T) {
		spec := newSpec("-m", "2", "input")
		spec.Ready = Ready{Kind: ReadyLine, Line: regexp.MustCompile("^ready$")}
		b := newBench(t, spec, Hot)
		wantUnavailable(t, b.prepare("sum\n"), Hot, `no line of its output had matched "\^ready\$"`)
	})
	t.Run("not installed", func(t *testing.T) {
		spec := newSpec("input")
		spec.Argv[0] = "no-such-tool"
		_, err := New(spec, Options{Store: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "no-such-tool") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("fails on every sample", func(t *testing.T) {
		b := newBench(t, newSpec("input"), Auto)
		err := b.prepare("nonsense\n")
		if err == nil || !strings.Contains(err.Error(), "unknown command nonsense") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("input vanishes", func(t *testing.T) {
		b := newBench(t, newSpec("input"), Auto)
		b.mustPrepare("sum\n")
		gone := filepath.Join(b.dir, "gone")
		_, err := b.starter.Start(t.Context(), Task{Dir: b.task(), Inputs: map[string]string{"input": gone}})
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), gone) {
			t.Errorf("got %v", err)
		}
	})
}

// TestKilledTool kills a restored tool and a template with SIGKILL.
func TestKilledTool(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			mark := fmt.Sprintf("PREMIX_TEST_MARK=killed-%s-%d", kind, os.Getpid())
			spec := newSpec("-m", "2", "input")
			spec.Env = append(spec.Env, mark)
			b := newBench(t, spec, kind)
			b.mustPrepare("sum\n")
			p, dir := b.start("say up\nhang\n")
			eventually(t, "the tool hangs", func() bool { return read(t, filepath.Join(dir, StdoutName)) == "up\n" })
			p.Signal(syscall.SIGKILL)
			if r := b.finish(p, dir); r.exit.Signal != syscall.SIGKILL {
				t.Errorf("got %+v", r.exit)
			}
			eventually(t, "nothing is left", func() bool { return len(processesWith(t, mark)) == 0 })
		})
	}
}

// TestSupervisorThatSleeps ends a supervisor whose main thread blocks in opening a FIFO without a
// reader, as after a kill of premix.
func TestSupervisorThatSleeps(t *testing.T) {
	spec := newSpec("-m", "2", "input")
	spec.Stream = true
	b := newBench(t, spec, Cold)
	dir := b.task()
	if err := b.starter.makeStreams(dir); err != nil {
		t.Fatal(err)
	}
	cfg := b.starter.config(Task{Dir: dir})
	cfg.Role = roleCold
	h, err := b.starter.openSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	main := fmt.Sprintf("/proc/%d/wchan", h.cmd.Process.Pid)
	eventually(t, "the supervisor sleeps in the open", func() bool { return read(t, main) == "wait_for_partner" })
	h.close(&b.starter.supervisors)
	if code := h.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("the supervisor ended with %v", h.cmd.ProcessState)
	}
}

// victim starts tasks, as premix does, until it is killed.
func victim(dir string) int {
	kind := Kind(os.Getenv("PREMIX_TEST_KIND"))
	spec := Spec{Name: "victim", Argv: []string{os.Getenv("PREMIX_TEST_TOOL"), "-m", "20", "input"},
		Env:    []string{os.Getenv("PREMIX_TEST_SIGN")},
		Inputs: []string{"input"}, Recipe: "1"}
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := New(spec, Options{Store: filepath.Join(dir, "store"), Start: kind})
	if err != nil {
		return fail(err)
	}
	scratch, err := os.MkdirTemp(dir, "scratch-")
	if err != nil {
		return fail(err)
	}
	in := filepath.Join(dir, "in")
	if err := s.Prepare(context.Background(), map[string]string{"input": in}, scratch); err != nil {
		return fail(err)
	}
	for i := 0; ; i++ {
		task := filepath.Join(scratch, "tasks", fmt.Sprint(i))
		if err := os.MkdirAll(task, 0o755); err != nil {
			return fail(err)
		}
		p, err := s.Start(context.Background(), Task{Dir: task, Inputs: map[string]string{"input": filepath.Join(dir, "hang")}})
		if err != nil {
			return fail(err)
		}
		if i%3 == 2 && i < 60 { // some tasks stay until they are ended
			continue
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return fail(err)
		}
		if _, err := p.Wait(); err != nil {
			return fail(err)
		}
	}
}

// TestKilledPremix kills premix with SIGKILL at random moments of preparing and starting, and looks
// for processes and files that are left.
func TestKilledPremix(t *testing.T) {
	rounds := 4
	if os.Getenv("PREMIX_SOAK") != "" {
		rounds = 100
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			for name, commands := range map[string]string{"in": "sum\n", "hang": "fork\nhang\n"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(commands), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			before := mounts(t, dir)
			for round := range rounds {
				sign := fmt.Sprintf("PREMIX_TEST_VICTIMS=%s-%d-%d", kind, os.Getpid(), round)
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), "PREMIX_TEST_VICTIM="+dir, "PREMIX_TEST_KIND="+string(kind),
					"PREMIX_TEST_TOOL="+tool, "PREMIX_TEST_SIGN="+sign)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(50+rand.IntN(900)) * time.Millisecond)
				cmd.Process.Kill()
				if err := cmd.Wait(); err == nil || stderr.Len() > 0 {
					t.Fatalf("round %d: %v %s", round, err, stderr.String())
				}
				eventually(t, "no process is left", func() bool { return len(processesWith(t, sign)) == 0 })
			}
			if after := mounts(t, dir); after != before {
				t.Errorf("mounts changed:\n%s", after)
			}
			// A much later run removes the files that are left on disk.
			left, err := Unfinished(filepath.Join(dir, "store"))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range left {
				if then := time.Now().Add(-time.Hour); os.Chtimes(s.Dir, then, then) != nil {
					t.Errorf("%s has been removed", s.Dir)
				}
			}
			b := benchIn(t, newSpec("-m", "20", "input"), kind, dir, filepath.Join(dir, "store"))
			b.mustPrepare("sum\n")
			if r := b.run("sum\n"); !r.exit.OK() {
				t.Errorf("a run afterwards: %+v", r.exit)
			}
			if still, err := Unfinished(b.store); kind == Hot && len(still) > 0 || err != nil {
				t.Errorf("of %d unfinished snapshots %d are still there, %v", len(left), len(still), err)
			}
		})
	}
}
