package policy

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/files"
	"premix/internal/kit/exit"
	"premix/internal/kit/unmount"
)

// pair makes two pools with files, and returns rules that move all of them.
func pair(t *testing.T, list []file) (dir, rules string) {
	t.Helper()
	dir = t.TempDir()
	lay(t, dir, list)
	for _, pool := range []string{"flash", "disk"} {
		if err := os.MkdirAll(filepath.Join(dir, pool), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fmt.Sprintf("CREATE POOL flash AT '%s/flash'; CREATE POOL disk AT '%s/disk';\n", dir, dir)
}

const moveAll = "RULE 'move' MIGRATE FROM POOL flash TO POOL disk;"

func apply(t *testing.T, table *files.Table, text, journal string) (*Report, error) {
	t.Helper()
	r, err := Parse("rules.sql", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Apply(context.Background(), table, ApplyOptions{Options: Options{Now: now}, Journal: journal})
}

func applied(t *testing.T, table *files.Table, text, journal string) *Report {
	t.Helper()
	rep, err := apply(t, table, text, journal)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// found lists the regular files below a directory with their lengths.
func found(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			st, serr := e.Info()
			if serr != nil {
				return serr
			}
			list = append(list, fmt.Sprintf("%s:%d", strings.TrimPrefix(path, dir+"/"), st.Size()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, " ")
}

func events(t *testing.T, journal string) []Event {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(journal, auditFile))
	if err != nil {
		t.Fatal(err)
	}
	var list []Event
	for line := range strings.Lines(string(text)) {
		var e Event
		if json.Unmarshal([]byte(line), &e) == nil {
			list = append(list, e)
		}
	}
	return list
}

// A moved file keeps its content, holes, owner, mode, times, attributes, and all of its names.
func TestMove(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a/b/one", 5000, 10}, {"flash/two", 0, 20}, {"flash/linked", 10, 5}, {"disk/there", 1, 1}, {"flash/bad\xff", 2, 2}})
	one, sparse := filepath.Join(dir, "flash/a/b/one"), filepath.Join(dir, "flash/sparse")
	f, err := os.Create(sparse)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1 << 20, 40 << 20} {
		if _, err := f.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(64<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "flash/linked"), filepath.Join(dir, "flash/a/again")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(one, "user.origin", []byte("sequencer 7"), 0); err != nil {
		t.Skip("the file system has no extended attributes: ", err)
	}
	if err := os.Chmod(filepath.Join(dir, "flash/a/b"), 0o2750|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := errors.Join(os.Chown(one, 4321, 1234), os.Chown(filepath.Join(dir, "flash/a"), 77, 78)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(one, 0o4751|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	before := make(map[string]unix.Stat_t)
	for _, name := range []string{"a/b/one", "two", "sparse", "a", "a/b"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, "flash", name), &st); err != nil {
			t.Fatal(err)
		}
		before[name] = st
	}
	table := scanned(t, dir)
	journal := filepath.Join(t.TempDir(), "journal")
	rep := applied(t, table, rules+moveAll, journal)
	if rep.Done != 5 || rep.Skipped+rep.Failed != 0 || rep.Resumed {
		t.Fatalf("%+v", rep)
	}
	if got := found(t, filepath.Join(dir, "flash")); got != "" {
		t.Errorf("flash still has %s", got)
	}
	if got := found(t, filepath.Join(dir, "disk")); got != "a/again:10 a/b/one:5000 bad\xff:2 linked:10 sparse:67108864 there:1 two:0" {
		t.Errorf("disk has %q", got)
	}
	for name, was := range before {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, "disk", name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode != was.Mode || st.Uid != was.Uid || st.Gid != was.Gid {
			t.Errorf("%s: mode %o owner %d:%d, was %o %d:%d", name, st.Mode, st.Uid, st.Gid, was.Mode, was.Uid, was.Gid)
		}
		if was.Mode&unix.S_IFMT == unix.S_IFREG && (st.Mtim != was.Mtim || st.Size != was.Size || st.Blocks > was.Blocks) {
			t.Errorf("%s: %+v, was %+v", name, st, was)
		}
	}
	value := make([]byte, 100)
	if n, err := unix.Getxattr(filepath.Join(dir, "disk/a/b/one"), "user.origin", value); err != nil || string(value[:n]) != "sequencer 7" {
		t.Errorf("attribute: %q, %v", value[:max(n, 0)], err)
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(dir, "disk/linked"), &a), unix.Stat(filepath.Join(dir, "disk/a/again"), &b)); err != nil || a.Ino != b.Ino || a.Nlink != 2 {
		t.Errorf("names of a file: %v, %d and %d", err, a.Ino, b.Ino)
	}
	// The audit records the user, the action and the rule.
	list := events(t, journal)
	done := 0
	for _, e := range list {
		if e.Result == Done {
			done++
			if e.Rule != "move" || e.Verb != Migrate || e.User == "" || e.Time.IsZero() || e.Path == "" || e.To == "" {
				t.Errorf("%+v", e)
			}
		}
	}
	if done != 5 || list[0].Result != Started || list[len(list)-1].Result != Finished {
		t.Errorf("%d of %d events", done, len(list))
	}
	// A second run has nothing to do.
	if rep = applied(t, table, rules+moveAll, journal); rep.Done != 5 || !rep.Resumed || len(events(t, journal)) != len(list) {
		t.Errorf("%+v", rep)
	}
	// Another policy needs another journal.
	var je *exit.Error
	if _, err := apply(t, table, rules+strings.Replace(moveAll, "move", "other", 1), journal); !errors.As(err, &je) {
		t.Error(err)
	}
}

// Files that have changed since the scan are left alone.
func TestChangedSince(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/grown", 10, 9}, {"flash/replaced", 10, 9}, {"flash/gone", 10, 9}, {"flash/open", 10, 9}, {"flash/taken", 10, 9},
		{"flash/touched", 10, 9}, {"flash/same", 10, 9}, {"flash/dir/in", 10, 9}, {"flash/link", 10, 9}, {"outside/in", 10, 9}, {"outside/link", 10, 9}})
	flash := filepath.Join(dir, "flash")
	table := scanned(t, flash)
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(flash, "grown"), []byte("now it is longer"), 0o666),
		os.WriteFile(filepath.Join(flash, "new"), []byte("0123456789"), 0o666),
		os.Rename(filepath.Join(flash, "new"), filepath.Join(flash, "replaced")),
		os.Remove(filepath.Join(flash, "gone")),
		os.WriteFile(filepath.Join(dir, "disk/taken"), []byte("mine"), 0o666),
		os.Chmod(filepath.Join(flash, "touched"), 0o600),
		os.Rename(filepath.Join(flash, "dir"), filepath.Join(dir, "elsewhere")),
		os.Symlink("../outside", filepath.Join(flash, "dir")),
		os.Remove(filepath.Join(flash, "link")),
		os.Symlink("../outside/link", filepath.Join(flash, "link")))
	w, err := os.OpenFile(filepath.Join(flash, "open"), os.O_WRONLY, 0)
	must(err)
	defer w.Close()
	rep := applied(t, table, rules+moveAll, filepath.Join(t.TempDir(), "journal"))
	if rep.Done != 1 || rep.Skipped != 7 || rep.Failed != 1 || rep.Why[string(skipChanged)] != 4 || rep.Why[string(skipGone)] != 1 ||
		rep.Why[string(skipTaken)] != 1 || rep.Why[errPath.Error()] != 1 || rep.Why[string(skipWritten)] != 1 {
		t.Errorf("%+v", rep)
	}
	if got := found(t, filepath.Join(dir, "disk")); got != "same:10 taken:4" {
		t.Errorf("disk has %s", got)
	}
	if got := found(t, filepath.Join(dir, "outside")); got != "in:10 link:10" {
		t.Errorf("outside is %s", got)
	}
	if got := found(t, flash); got != "dir:10 grown:16 link:15 open:10 replaced:10 taken:10 touched:10" {
		t.Errorf("flash has %s", got)
	}
}

func TestDeleteAndPlace(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a.tmp", 10, 9}, {"disk/b.bam", 20, 9}, {"other/c.tmp", 30, 9}, {"other/d.bam", 30, 9}})
	rep := applied(t, scanned(t, dir), rules+"RULE 'tmp' DELETE WHERE name LIKE '%.tmp'; RULE 'fast' PLACE IN POOL flash WHERE suffix = '.bam'", filepath.Join(t.TempDir(), "journal"))
	if rep.Done != 3 || rep.Bytes != 60 {
		t.Errorf("%+v", rep)
	}
	if got := found(t, dir); got != "flash/b.bam:20 other/d.bam:30" {
		t.Errorf("there are %s", got)
	}
}

// The counted entries are the matches of rules, the entries that match no rule, and further names
// of matches.
func TestCountsAddUpWithLinks(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a", 10, 9}, {"flash/e", 20, 9}, {"flash/g", 30, 9}})
	if err := errors.Join(os.Link(filepath.Join(dir, "flash/a"), filepath.Join(dir, "flash/b")), os.Link(filepath.Join(dir, "flash/a"), filepath.Join(dir, "outside")),
		os.Link(filepath.Join(dir, "flash/e"), filepath.Join(dir, "flash/f"))); err != nil {
		t.Fatal(err)
	}
	for _, rule := range []string{moveAll, "RULE 'gone' DELETE FROM POOL flash WHERE size > 15;", "RULE 'stay' EXCLUDE WHERE name = 'a'; " + moveAll, "RULE 'none' DELETE WHERE FALSE;"} {
		r, err := Parse("rules.sql", rules+rule, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.Plan(context.Background(), scanned(t, dir), Options{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		sum := p.Unmatched + p.Names
		for _, rule := range p.Rules {
			sum += rule.Matched.Count
		}
		if sum != p.Rows {
			t.Errorf("%s: of %d entries %d are counted", rule, p.Rows, sum)
		}
	}
}

// A moved file has no ACL from the default ACL of its new directory, and neither has a new
// directory.
func TestNoForeignACL(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/d/a", 10, 9}, {"flash/d/new/b", 10, 9}})
	// The ACL of linux/posix_acl_xattr.h: tag, permissions and id of the owner, the user
	// 1234, the group, the mask and others.
	acl := []byte{2, 0, 0, 0}
	for _, e := range [][3]uint32{{1, 7, ^uint32(0)}, {2, 7, 1234}, {4, 5, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
		acl = binary.LittleEndian.AppendUint32(acl, e[2])
	}
	if err := os.Mkdir(filepath.Join(dir, "disk/d"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(filepath.Join(dir, "disk/d"), "system.posix_acl_default", acl, 0); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system has no ACLs: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if rep := applied(t, scanned(t, dir), rules+moveAll, filepath.Join(t.TempDir(), "journal")); rep.Done != 2 {
		t.Fatalf("%+v", rep)
	}
	for _, name := range []string{"a", "new", "new/b"} {
		path := filepath.Join(dir, "disk/d", name)
		if n, err := unix.Listxattr(path, make([]byte, 1000)); err != nil || n != 0 {
			t.Errorf("%s has %d bytes of attributes, %v", name, n, err)
		}
		if st := inodeOf(t, path); st.Mode&0o777 != map[bool]uint32{true: 0o755, false: 0o644}[name == "new"] {
			t.Errorf("%s has the mode %o", name, st.Mode)
		}
	}
}

// stopAt makes the state of a premix that was killed before it applies an action, and calls f with
// the runner.
func stopAt(t *testing.T, table *files.Table, text, journal string, f func(x *runner, r *ready)) {
	t.Helper()
	stopBefore(t, table, text, journal, func(*Action) bool { return true }, f)
}

// stopBefore does the same before the first action that is one.
func stopBefore(t *testing.T, table *files.Table, text, journal string, one func(*Action) bool, f func(x *runner, r *ready)) {
	t.Helper()
	r, err := Parse("rules.sql", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Plan(context.Background(), table, Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	if err := p.write(filepath.Join(journal, planFile)); err != nil {
		t.Fatal(err)
	}
	plan, err := os.Open(filepath.Join(journal, planFile))
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Close()
	h, next, err := readPlan(plan)
	if err != nil {
		t.Fatal(err)
	}
	x := &runner{j: j, h: h, rules: r, tops: tops{fds: make(map[string]int), run: h.runName()}}
	defer x.tops.close()
	for _, p := range r.Pools {
		x.tops.dirs = append(x.tops.dirs, p.Dir)
	}
	a, err := next()
	for err == nil && !one(a) {
		a, err = next()
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := x.prepare(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	defer got.close()
	f(x, got)
}

// After a kill the source directory becomes a link or a file. The move then fails, and its copies
// are removed.
func TestKilledAndTheSourceIsSomethingElse(t *testing.T) {
	for name, replace := range map[string]func(at string) error{
		"link": func(at string) error { return os.Symlink("../elsewhere", at) },
		"file": func(at string) error { return os.WriteFile(at, []byte("file"), 0o644) },
	} {
		for _, noted := range []bool{false, true} {
			t.Run(fmt.Sprint(name, noted), func(t *testing.T) {
				dir, rules := pair(t, []file{{"flash/d/a", 10, 9}})
				table, journal := scanned(t, dir), filepath.Join(t.TempDir(), "journal")
				stopAt(t, table, rules+moveAll, journal, func(x *runner, r *ready) {
					if noted {
						x.j.note(r.a, Event{Result: Copied, Device: int64(r.inode.Dev), Inode: int64(r.inode.Ino)})
						if err := x.j.write(); err != nil {
							t.Fatal(err)
						}
					}
				})
				if err := errors.Join(os.Rename(filepath.Join(dir, "flash/d"), filepath.Join(dir, "elsewhere")), replace(filepath.Join(dir, "flash/d"))); err != nil {
					t.Fatal(err)
				}
				rep := applied(t, table, rules+moveAll, journal)
				if rep.Failed != 1 || rep.Done != 0 || rep.Why["a directory in its path is a link or a file now"] != 1 {
					t.Errorf("%+v", rep)
				}
				if got := found(t, filepath.Join(dir, "disk")); got != "" {
					t.Errorf("disk has %s", got)
				}
				if got := found(t, filepath.Join(dir, "elsewhere")); got != "a:10" {
					t.Errorf("the source is %s", got)
				}
			})
		}
	}
}

// The directories of a premix that was killed while it made directories are removed. This also
// holds if the directories exist by then, or if the action is impossible.
func TestKilledWhileItMakesDirectories(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprint("source gone ", gone), func(t *testing.T) {
			dir, rules := pair(t, []file{{"flash/d/e/a", 10, 9}})
			table, journal := scanned(t, dir), filepath.Join(t.TempDir(), "journal")
			var foreign []string
			stopAt(t, table, rules+moveAll, journal, func(x *runner, r *ready) {
				for _, at := range []string{"disk", "disk/d", "disk/d/e"} {
					left := filepath.Join(dir, at, x.tops.dirPrefix())
					if err := errors.Join(os.Mkdir(left+"1", 0o700), os.Mkdir(left+"2", 0o700), os.Mkdir(left+"full", 0o700), os.Mkdir(left+"full/f", 0o700)); err != nil {
						t.Fatal(err)
					}
					foreign = append(foreign, left+"full/f")
					// Another run may be making it.
					other := filepath.Join(dir, at, ".premix-other-dir-1")
					if err := os.Mkdir(other, 0o700); err != nil {
						t.Fatal(err)
					}
					foreign = append(foreign, other)
				}
			})
			if gone {
				if err := os.RemoveAll(filepath.Join(dir, "flash/d")); err != nil {
					t.Fatal(err)
				}
			}
			rep := applied(t, table, rules+moveAll, journal)
			if got := found(t, filepath.Join(dir, "disk")); !gone && got != "d/e/a:10" || gone && got != "" {
				t.Errorf("there are %q: %+v", got, rep)
			}
			var left []string
			err := filepath.WalkDir(filepath.Join(dir, "disk"), func(path string, e fs.DirEntry, err error) error {
				if strings.HasPrefix(e.Name(), ownPrefix) && !strings.HasSuffix(e.Name(), "full") {
					left = append(left, path)
				}
				return err
			})
			if err != nil || len(left) != 3 {
				t.Errorf("left are %v, %v; want the three of another run", left, err)
			}
			for _, path := range foreign {
				if _, err := os.Stat(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// After a kill at any point, the next run completes the move: the file is in one place, complete.
func TestKilled(t *testing.T) {
	noted := func(x *runner, r *ready) {
		x.j.note(r.a, Event{Result: Copied, Device: int64(r.inode.Dev), Inode: int64(r.inode.Ino)})
		if err := x.j.write(); err != nil {
			t.Fatal(err)
		}
	}
	renamed := func(x *runner, r *ready) {
		noted(x, r)
		if err := unix.Renameat2(r.to, r.a.own(x.h.runName(), ""), r.to, r.as, unix.RENAME_NOREPLACE); err != nil {
			t.Fatal(err)
		}
	}
	aside := func(x *runner, r *ready) {
		if err := unix.Renameat2(r.in, r.name, r.in, r.a.own(x.h.runName(), "-old"), unix.RENAME_NOREPLACE); err != nil {
			t.Fatal(err)
		}
	}
	write := func(path string) {
		if err := os.WriteFile(path, []byte("newer content"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const moved, kept = "disk/d/a:10 disk/d/b:10", "flash/d/a:10 flash/d/b:10"
	for _, c := range []struct {
		name, rules string
		stop        func(x *runner, r *ready)
		after       func(dir string)
		want        string
	}{
		{"with a copy", moveAll, func(*runner, *ready) {}, nil, moved},
		{"with a copy that is noted", moveAll, noted, nil, moved},
		{"with a torn line", moveAll, func(x *runner, r *ready) {
			noted(x, r)
			if _, err := x.j.audit.WriteString(`{"id":1,"result":"do`); err != nil {
				t.Fatal(err)
			}
		}, nil, moved},
		{"with both", moveAll, renamed, nil, moved},
		{"with both and one link", moveAll, func(x *runner, r *ready) {
			renamed(x, r)
			if err := x.link(r); err != nil {
				t.Fatal(err)
			}
		}, nil, moved},
		{"with the source aside", moveAll, func(x *runner, r *ready) { renamed(x, r); aside(x, r) }, nil, moved},
		{"with one name gone", moveAll, func(x *runner, r *ready) {
			renamed(x, r)
			if err := unix.Unlinkat(r.in, r.name, 0); err != nil {
				t.Fatal(err)
			}
		}, nil, moved},
		{"with both, and the source was written", moveAll, renamed, func(dir string) { write(filepath.Join(dir, "flash/d/a")) }, "flash/d/a:13 flash/d/b:13"},
		{"with both, and the copy was written", moveAll, renamed, func(dir string) {
			write(filepath.Join(dir, "disk/d", filepath.Base(found(t, filepath.Join(dir, "disk/d"))[:1])))
		}, "both"},
		{"with a note, and something came to its place", moveAll, noted, func(dir string) {
			for _, name := range []string{"a", "b"} {
				write(filepath.Join(dir, "disk/d", name))
			}
		}, "disk/d/a:13 disk/d/b:13 " + kept},
		{"deleting, with a note", "RULE 'd' DELETE WHERE TRUE", noted, nil, ""},
		{"deleting, aside", "RULE 'd' DELETE WHERE TRUE", func(x *runner, r *ready) { noted(x, r); aside(x, r) }, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, rules := pair(t, []file{{"flash/d/a", 10, 9}})
			if err := os.Link(filepath.Join(dir, "flash/d/a"), filepath.Join(dir, "flash/d/b")); err != nil {
				t.Fatal(err)
			}
			table := scanned(t, dir)
			journal := filepath.Join(t.TempDir(), "journal")
			stopAt(t, table, rules+c.rules, journal, c.stop)
			if c.after != nil {
				c.after(dir)
			}
			rep := applied(t, table, rules+c.rules, journal)
			got := found(t, dir)
			if c.want == "both" {
				if rep.Failed != 1 || !strings.Contains(got, ":13") || !strings.Contains(got, kept) {
					t.Errorf("there are %s: %+v", got, rep)
				}
				return
			}
			if got != c.want {
				t.Errorf("there are %s, not %s: %+v", got, c.want, rep)
			}
			if strings.Contains(got, ownPrefix) {
				t.Errorf("left behind: %s", got)
			}
		})
	}
}

// A writer that opens the file during the copy waits for a moment and then writes. The file is not
// moved.
func TestWriterDuringCopy(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a", 3 << 20, 9}})
	table := scanned(t, dir)
	path := filepath.Join(dir, "flash/a")
	r, err := Parse("rules.sql", rules+moveAll, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The copy is so slow that the writer comes in the middle of it.
	opened := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		<-began
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString("more")
			err = errors.Join(err, f.Close())
		}
		opened <- err
	}()
	x := &runner{rules: r, tops: tops{fds: make(map[string]int), dirs: []string{filepath.Join(dir, "flash"), filepath.Join(dir, "disk")}}}
	defer x.tops.close()
	p, err := r.Plan(context.Background(), table, Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	var a *Action
	if err := p.each(false, func(got *Action) error { a = got; return nil }); err != nil {
		t.Fatal(err)
	}
	ready, err := x.open(a)
	if err != nil {
		t.Fatal(err)
	}
	if !ready.leased {
		ready.close()
		close(began)
		<-opened
		t.Skip("the file system has no leases")
	}
	close(began)
	if !comes(func() bool { return !leased(int(ready.src.Fd())) }) {
		t.Error("nobody asked for the lease")
	}
	if err := ready.unchanged(true); !errors.Is(err, skipChanged) {
		t.Errorf("unchanged: %v", err)
	}
	ready.close()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	rep := applied(t, table, rules+moveAll, filepath.Join(t.TempDir(), "journal"))
	if rep.Skipped != 1 || found(t, filepath.Join(dir, "flash")) != fmt.Sprintf("a:%d", 3<<20+4) {
		t.Errorf("%+v, %s", rep, found(t, dir))
	}
}

// Two processes cannot use the same journal.
func TestJournalInUse(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a", 1, 9}})
	journal := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	var je *exit.Error
	if _, err := apply(t, scanned(t, dir), rules+moveAll, journal); !errors.As(err, &je) {
		t.Error(err)
	}
}

// A full pool stays unchanged, and so does the file.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	dir, rules := pair(t, []file{{"flash/large", 3 << 20, 9}, {"flash/small", 10, 9}})
	if err := unix.Mount("tmpfs", filepath.Join(dir, "disk"), "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a tmpfs cannot be mounted: ", err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(filepath.Join(dir, "disk")); err != nil {
			t.Error(err)
		}
	})
	rep := applied(t, scanned(t, filepath.Join(dir, "flash")), rules+moveAll, filepath.Join(t.TempDir(), "journal"))
	if rep.Done != 1 || rep.Why[string(skipRoom)] != 1 {
		t.Errorf("%+v", rep)
	}
	if got := found(t, dir); got != fmt.Sprintf("disk/small:10 flash/large:%d", 3<<20) {
		t.Errorf("there are %s", got)
	}
}

// A journal must be in a place where no rule can apply to it.
func TestJournalPlace(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a", 1, 9}, {"else/a", 1, 9}})
	const remove = "RULE 'old' DELETE WHERE name = 'none';"
	for _, c := range []struct{ rules, journal, reason string }{
		{moveAll, "flash/j", `lies in the pool flash, where the rule "move" (migrate) could take it`},
		{moveAll, "disk", "is the pool disk"},
		{moveAll, "disk/j", ""},
		{moveAll, "else/j", ""},
		{"RULE 'up' PLACE IN POOL flash WHERE size < 0;", "disk/deep/j", `lies in the pool disk, where the rule "up" (place) could take it`},
		{"RULE 'up' PLACE IN POOL flash WHERE size < 0;", "flash/j", ""},
		{remove, "else/j", "lies in " + dir + `, where the rule "old" (delete) could take it`},
		{remove, "flash/j", `lies in the pool flash, where the rule "old" (delete) could take it`},
		{"RULE 'old' DELETE FROM POOL flash WHERE name = 'none';", "disk/j", ""},
		{"RULE 'all' EXCLUDE;", "flash/j", ""},
	} {
		r, err := Parse("rules.sql", rules+c.rules, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = journalPlace(filepath.Join(dir, c.journal), r, []string{dir})
		var je *exit.Error
		if errors.As(err, &je) != (c.reason != "") || je != nil && (!strings.Contains(je.Error(), c.reason) || je.Hint() == "") {
			t.Errorf("%s in %s: %v", c.rules, c.journal, err)
		}
	}
}
