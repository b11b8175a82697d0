package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/files"
	"premix/internal/files/content"
)

// fullPools makes a pool with ten files, of which 9 is the oldest, and an empty pool. rules
// returns their declarations with room in the first one for n files, and a rule.
func fullPools(t *testing.T) (dir string, rules func(n int64, rule string) string) {
	t.Helper()
	dir = t.TempDir()
	var list []file
	for i := range 10 {
		list = append(list, file{fmt.Sprintf("flash/d/%d", i), 40_000 + int64(i), i})
	}
	lay(t, dir, list)
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o777); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "flash/d/0"), &st); err != nil {
		t.Fatal(err)
	}
	each := st.Blocks * 512
	return dir, func(n int64, rule string) string {
		return fmt.Sprintf("CREATE POOL flash AT '%[1]s/flash' CAPACITY %[2]d; CREATE POOL disk AT '%[1]s/disk' CAPACITY 1 TB;\n", dir, n*each+8192) + rule
	}
}

const ahead = "RULE 'old' MIGRATE FROM POOL flash THRESHOLD 80 TO 70 PREMIGRATE 50 WEIGHT now() - modified TO POOL disk WHERE size > 1 KB;"

// copiesIn returns the numbers of the inodes of the copies in the pool disk, by size.
func copiesIn(t *testing.T, dir string) map[int64]uint64 {
	t.Helper()
	list, err := listCopies(filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	by := make(map[int64]uint64)
	for _, c := range list {
		by[c.st.Size] = c.st.Ino
	}
	return by
}

func inodeOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// Files are copied ahead down to the third mark, stay where they are, and move later without
// being written again.
func TestPremigrate(t *testing.T) {
	dir, rules := fullPools(t)
	table := scanned(t, dir)
	p := planned(t, table, rules(10, ahead))
	r := p.Rules[0]
	if got := names(r, filepath.Join(dir, "flash/d")); got != "9 8 7" || r.Ahead.Taken.Count != 2 || r.Ahead.Copied.Count != 0 || len(r.Ahead.Samples) != 2 ||
		filepath.Base(r.Ahead.Samples[0].Path) != "6" || r.Left[leftEnough] != 5 {
		t.Errorf("takes %s, ahead %+v, left %v", got, r.Ahead, r.Left)
	}
	if want := p.Pools[1].Used + r.Taken.Allocated + r.Ahead.Taken.Allocated; p.Pools[1].After != want {
		t.Errorf("disk is to have %d, not %d", p.Pools[1].After, want)
	}
	before := inodeOf(t, filepath.Join(dir, "flash/d/6"))
	if rep := applied(t, table, rules(10, ahead), filepath.Join(t.TempDir(), "journal")); rep.Done != 5 || rep.Failed+rep.Skipped != 0 || rep.Actions != 5 {
		t.Fatalf("%+v", rep)
	}
	after := inodeOf(t, filepath.Join(dir, "flash/d/6"))
	if before.Ctim != after.Ctim || before.Atim != after.Atim || before.Ino != after.Ino {
		t.Errorf("a file that was copied has changed: %+v, before %+v", after, before)
	}
	copies := copiesIn(t, dir)
	if len(copies) != 2 || copies[40_006] == 0 || copies[40_005] == 0 {
		t.Fatalf("copies: %v", copies)
	}
	// Nothing is left to do, also after the pool is above its upper mark again.
	table = scanned(t, dir)
	if got := planned(t, table, rules(10, ahead)).Rules[0]; got.Active || got.Ahead.Stale.Count != 0 {
		t.Errorf("%+v, %+v", got, got.Ahead)
	}
	if err := os.Chmod(filepath.Join(dir, "disk/d/7"), 0o640); err != nil {
		t.Fatal(err)
	}
	p = planned(t, table, rules(7, ahead))
	r = p.Rules[0]
	if got := names(r, filepath.Join(dir, "flash/d")); got != "6 5 4" || r.Ahead.Copied.Count != 2 || r.Ahead.Taken.Count != 1 {
		t.Errorf("takes %s, ahead %+v", got, r.Ahead)
	}
	if want := p.Pools[1].Used + r.Taken.Allocated + r.Ahead.Taken.Allocated - r.Ahead.Copied.Allocated; p.Pools[1].After != want {
		t.Errorf("disk is to have %d, not %d", p.Pools[1].After, want)
	}
	if rep := applied(t, table, rules(7, ahead), filepath.Join(t.TempDir(), "journal")); rep.Done != 4 || rep.Failed+rep.Skipped != 0 {
		t.Fatalf("%+v", rep)
	}
	for _, name := range []string{"6", "5"} {
		st := inodeOf(t, filepath.Join(dir, "disk/d", name))
		if st.Ino != copies[st.Size] || st.Mode&0o7777 != 0o644 || name == "6" && st.Mtim != before.Mtim {
			t.Errorf("%s is not the copy, or not like the file: %+v", name, st)
		}
	}
	if got := copiesIn(t, dir); len(got) != 1 || got[40_003] == 0 {
		t.Errorf("copies: %v", got)
	}
	if got, want := found(t, filepath.Join(dir, "flash")), "d/0:40000 d/1:40001 d/2:40002 d/3:40003"; got != want {
		t.Errorf("flash has %s", got)
	}
}

// A copy that is not the file's content at present, or that others could have changed, never
// becomes the file.
func TestStaleCopies(t *testing.T) {
	const name, size = "6", 40_006
	for _, c := range []struct {
		name   string
		change func(file, copied string) error
		stale  int64 // copies that the next plan removes
		root   bool
	}{
		{"content with the old time", func(file, _ string) error {
			st := new(unix.Stat_t)
			return errors.Join(unix.Stat(file, st), os.WriteFile(file, []byte(strings.Repeat("y", size)), 0o644),
				unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{st.Atim, st.Mtim}, 0))
		}, 1, false},
		{"mode", func(file, _ string) error { return os.Chmod(file, 0o600) }, 1, false},
		{"another file", func(file, _ string) error {
			return errors.Join(os.Remove(file), os.WriteFile(file, []byte(strings.Repeat("z", size)), 0o644), os.Chtimes(file, now.AddDate(-1, 0, 0), now.AddDate(-1, 0, 0)))
		}, 1, false},
		{"a damaged copy", func(_, copied string) error {
			return os.WriteFile(copied, []byte(strings.Repeat("x", size-1)+"y"), 0o600)
		}, 0, false},
		{"a short copy", func(_, copied string) error { return os.Truncate(copied, size-1) }, 0, false},
		{"a readable copy", func(_, copied string) error { return os.Chmod(copied, 0o644) }, 0, false},
		{"a link to a copy", func(_, copied string) error { return os.Link(copied, copied+"2") }, 0, false},
		{"a symlink", func(_, copied string) error {
			return errors.Join(os.Rename(copied, copied+"2"), os.Symlink(filepath.Base(copied)+"2", copied))
		}, 0, false},
		{"a copy of another user", func(_, copied string) error { return os.Chown(copied, 4321, 4321) }, 0, true},
		{"no copy", func(_, copied string) error { return os.Remove(copied) }, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Getuid() != 0 {
				t.Skip("a file of another user needs root")
			}
			dir, rules := fullPools(t)
			applied(t, scanned(t, dir), rules(10, ahead), filepath.Join(t.TempDir(), "journal"))
			list, err := listCopies(filepath.Join(dir, "disk"))
			if err != nil {
				t.Fatal(err)
			}
			path, copied := filepath.Join(dir, "flash/d", name), ""
			for _, s := range list {
				if s.st.Size == size {
					copied = filepath.Join(dir, "disk", content.Copies, s.name)
				}
			}
			old := inodeOf(t, copied)
			if err := c.change(path, copied); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			like := inodeOf(t, path)
			table := scanned(t, dir)
			all := rules(3, strings.NewReplacer("80", "8", "70", "2", "50", "1", "now() - modified", "size").Replace(ahead))
			if got := planned(t, table, all).Rules[0].Ahead; got.Stale.Count != c.stale {
				t.Errorf("stale: %+v", got.Stale)
			}
			if rep := applied(t, table, all, filepath.Join(t.TempDir(), "journal")); rep.Failed+rep.Skipped != 0 {
				t.Errorf("%+v", rep)
			}
			st := inodeOf(t, filepath.Join(dir, "disk/d", name))
			if got, err := os.ReadFile(filepath.Join(dir, "disk/d", name)); err != nil || string(got) != string(want) {
				t.Errorf("the moved file differs: %v", err)
			}
			if st.Ino == old.Ino && st.Ctim == old.Ctim || st.Mode != like.Mode || st.Uid != like.Uid || st.Mtim != like.Mtim {
				t.Errorf("moved %+v, of %+v", st, like)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the source: %v", err)
			}
			if c.stale > 0 {
				if _, err := os.Lstat(copied); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the stale copy: %v", err)
				}
			}
		})
	}
}

// A copy stays while the scan cannot show that its file has changed.
func TestStaleOnlyWhereScanned(t *testing.T) {
	dir, rules := fullPools(t)
	early := scanned(t, dir)
	applied(t, early, rules(10, ahead), filepath.Join(t.TempDir(), "journal"))
	if err := os.Remove(filepath.Join(dir, "flash/d/6")); err != nil {
		t.Fatal(err)
	}
	noCapacity := fmt.Sprintf("CREATE POOL flash AT '%[1]s/flash'; CREATE POOL disk AT '%[1]s/disk';\n", dir) + strings.Replace(ahead, "80", "100", 1)
	for _, c := range []struct {
		name, rules string
		table       *files.Table
		stale       int64
	}{
		{"a scan of before the copy", rules(10, ahead), early, 0},
		{"a scan of the other pool", noCapacity, scanned(t, filepath.Join(dir, "disk")), 0},
		{"a scan of a part of the pool", noCapacity, scanned(t, filepath.Join(dir, "flash/d")), 0},
		{"a scan of the pool", noCapacity, scanned(t, filepath.Join(dir, "flash")), 1},
		{"a scan of both", rules(10, ahead), scanned(t, dir), 1},
	} {
		got := planned(t, c.table, c.rules).Rules[0].Ahead
		if got.Stale.Count != c.stale || c.stale == 1 && got.Stale.Bytes != 40_006 {
			t.Errorf("%s: stale %+v", c.name, got.Stale)
		}
	}
}

// No rule takes copies, and all entries of a scan are counted.
func TestNoRuleTakesCopies(t *testing.T) {
	dir, rules := fullPools(t)
	applied(t, scanned(t, dir), rules(10, ahead), filepath.Join(t.TempDir(), "journal"))
	table := scanned(t, dir)
	for _, rule := range []string{
		"RULE 'all' DELETE WHERE TRUE;", "RULE 'up' PLACE IN POOL flash;", "RULE 'all' LIST;", "RULE 'all' EXEC '/bin/true' WHERE TRUE;",
		"RULE 'p' PACK INTO STORE '/srv/store' WHERE files >= 2;", "RULE 'none' EXCLUDE WHERE path LIKE '%copies%';",
	} {
		p := planned(t, table, rules(10, rule))
		sum := p.Unmatched + p.Names
		for _, r := range p.Rules {
			sum += r.Matched.Count
			if got := names(r, dir); strings.Contains(got, content.Copies) {
				t.Errorf("%s takes %s", rule, got)
			}
		}
		if sum != p.Rows && !strings.Contains(rule, "PACK") || p.Unmatched < 3 {
			t.Errorf("%s: of %d entries %d are counted", rule, p.Rows, sum)
		}
	}
}

// After a kill at any point, the next run completes the copy, and leaves nothing else.
func TestPremigrateKilled(t *testing.T) {
	noted := func(x *runner, r *ready) {
		x.j.note(r.a, Event{Result: Copied, Device: int64(r.inode.Dev), Inode: int64(r.inode.Ino)})
		if err := x.j.write(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		stop   func(x *runner, r *ready)
		after  func(file string) error
		copies int
	}{
		{"with a temporary copy", func(*runner, *ready) {}, nil, 2},
		{"with a note", noted, nil, 2},
		{"with the copy", func(x *runner, r *ready) {
			noted(x, r)
			if err := r.keep(x.h.runName()); err != nil {
				t.Fatal(err)
			}
		}, nil, 2},
		{"and the file changes", noted, func(file string) error { return os.WriteFile(file, []byte("newer content"), 0o666) }, 1},
		{"and the file is gone", noted, os.Remove, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, rules := fullPools(t)
			table, journal := scanned(t, dir), filepath.Join(t.TempDir(), "journal")
			stopBefore(t, table, rules(10, ahead), journal, func(a *Action) bool { return a.Verb == Premigrate }, c.stop)
			if c.after != nil {
				if err := c.after(filepath.Join(dir, "flash/d/6")); err != nil {
					t.Fatal(err)
				}
			}
			rep := applied(t, table, rules(10, ahead), journal)
			if rep.Done != int64(3+c.copies) || rep.Failed != 0 || rep.Skipped != int64(2-c.copies) {
				t.Errorf("%+v", rep)
			}
			list, err := os.ReadDir(filepath.Join(dir, "disk", content.Copies))
			if err != nil || len(list) != c.copies {
				t.Errorf("copies: %v, %v", list, err)
			}
			if slices.ContainsFunc(list, func(e os.DirEntry) bool { _, _, ok := parseCopy(e.Name()); return !ok }) {
				t.Errorf("left behind: %v", list)
			}
		})
	}
}

// A directory of copies in which others could write is refused.
func TestForeignCopies(t *testing.T) {
	dir, rules := fullPools(t)
	at := filepath.Join(dir, "disk", content.Copies)
	if err := errors.Join(os.Mkdir(at, 0o700), os.Chmod(at, 0o770)); err != nil {
		t.Fatal(err)
	}
	var pool *PoolError
	if _, err := apply(t, scanned(t, dir), rules(10, ahead), filepath.Join(t.TempDir(), "journal")); !errors.As(err, &pool) || !errors.Is(err, errForeignCopies) || !strings.Contains(pool.Hint(), content.Copies) {
		t.Errorf("%v", err)
	}
}

// Among many files, the heaviest move, and the next ones are premigrated.
func TestAheadOfMany(t *testing.T) {
	const files, each = 20_000, 100
	for trial := range 20 {
		rule := &Rule{Verb: Migrate, From: "flash", To: "disk", High: 80, Low: 70, Ahead: 50}
		p := &RulePlan{From: "flash", To: "disk", Active: true, rule: rule, Ahead: new(AheadPlan), Left: make(map[string]int64), freed: make([]int64, 2), bound: files * each / 2, floor: -1 << 63, weight: &number{}}
		m := &maker{Plan: &Plan{Pools: []PoolPlan{{Pool: Pool{Name: "flash", Capacity: files * each}, Used: files * each, After: files * each}, {Pool: Pool{Name: "disk", Capacity: 1 << 40}}}}}
		for i := range int64(files) {
			p.keep(m, candidate{ref: ref{row: int32(i)}, weight: (i*7919 + int64(trial)) % files, size: each, allocated: each})
		}
		p.Matched = Amount{files, files * each, files * each}
		if err := m.marks(p); err != nil {
			t.Fatal(err)
		}
		if len(p.ordered) != files*3/10 || len(p.Ahead.candidates) != files*2/10 || p.Left[leftEnough] != files/2 || m.Pools[1].After != files*each/5 {
			t.Fatalf("%d move, %d are copied, left %v, %d in disk", len(p.ordered), len(p.Ahead.candidates), p.Left, m.Pools[1].After)
		}
		for i, c := range slices.Concat(p.ordered, p.Ahead.candidates) {
			if c.weight != int64(files-1-i) {
				t.Fatalf("trial %d: number %d has the weight %d", trial, i, c.weight)
			}
		}
	}
}
