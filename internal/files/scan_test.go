package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/kit/unmount"
)

// scanAs, as ROOT:TABLE, makes the test binary scan as another user: see TestMain.
const scanAs = "PREMIX_TEST_SCAN"

func TestMain(m *testing.M) {
	if given := os.Getenv(scanAs); given != "" {
		root, table, _ := strings.Cut(given, ":")
		sum, err := Scan(context.Background(), Options{Roots: []string{root}, Table: table})
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(sum)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func write(t testing.TB, path string, size int64) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

// scanned scans into a table and reads it.
func scanned(t testing.TB, o Options) (*Summary, map[string]Entry) {
	t.Helper()
	if o.Table == "" {
		o.Table = filepath.Join(t.TempDir(), "scan.parquet")
	}
	sum, err := Scan(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return sum, entries(t, o.Table)
}

func opened(t testing.TB, path string) *Table {
	t.Helper()
	tab, err := OpenTable(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.Close() })
	return tab
}

func entries(t testing.TB, path string) map[string]Entry {
	t.Helper()
	all := make(map[string]Entry)
	err := opened(t, path).Each(func(e *Entry) error {
		c := *e
		c.Dir, c.Name = strings.Clone(e.Dir), strings.Clone(e.Name)
		if _, twice := all[c.Path()]; twice {
			t.Errorf("%s is there twice", c.Path())
		}
		all[c.Path()] = c
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// expect returns the stat of a path as an entry.
func expect(t testing.TB, path string) Entry {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	e := Entry{Dir: filepath.Dir(path), Name: filepath.Base(path), Size: st.Size, Allocated: st.Blocks * 512, Entries: -1, Mode: int32(st.Mode & 0o7777),
		UID: int64(st.Uid), GID: int64(st.Gid), Links: int64(st.Nlink), Inode: int64(st.Ino), Device: int64(st.Dev),
		Accessed: st.Atim.Nano(), Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}
	e.Type = map[uint32]string{unix.S_IFREG: "f", unix.S_IFDIR: "d", unix.S_IFLNK: "l", unix.S_IFIFO: "p", unix.S_IFSOCK: "s", unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[st.Mode&unix.S_IFMT]
	if e.Type == "d" {
		list, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		e.Entries = int64(len(list))
	}
	return e
}

func TestScanAgreesWithStat(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/empty", 0)
	write(t, root+"/dir/sparse", 10<<20)
	write(t, root+"/dir/ünï\ncode \x01\xff", 3)
	write(t, root+"/"+strings.Repeat("n", 255), 5)
	write(t, root+"/-rf", 1)
	for i := range 30 {
		write(t, fmt.Sprintf("%s/%d/%d/%d", root, i%3, i%7, i), int64(i))
	}
	for i := range 12_000 { // more than fit into one buffer of names, some of them directories
		if i%1000 == 0 {
			write(t, fmt.Sprintf("%s/large/d%d/f", root, i), 7)
		} else {
			write(t, fmt.Sprintf("%s/large/a rather long name, so that the buffer is soon full %d", root, i), 0)
		}
	}
	for _, err := range []error{
		os.Link(root+"/dir/sparse", root+"/other"), os.Symlink("dir", root+"/link"), os.Symlink("/nowhere", root+"/dangling"),
		unix.Mkfifo(root+"/fifo", 0o644), os.Mkdir(root+"/hollow", 0o700), os.Chmod(root+"/-rf", 0o6754&0o777|os.ModeSetuid|os.ModeSetgid),
		os.Chtimes(root+"/empty", time.Unix(-5, 3), time.Unix(9e9, 999999999)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, workers := range []int{0, 1, 16} {
		sum, got := scanned(t, Options{Roots: []string{root}, Workers: workers})
		want := 0
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			want++
			e, ok := got[path]
			w := expect(t, path)
			if path == root {
				w.Dir, w.Name = root, "."
			}
			w.Accessed, w.Born = e.Accessed, e.Born // reading a directory changes its access time
			if !ok || e != w {
				t.Errorf("%q: %+v, want %+v", path, e, w)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != want || sum.Entries != int64(want) || sum.Vanished != 0 || sum.Unread != 0 {
			t.Errorf("%d workers: %d rows for %d entries: %+v", workers, len(got), want, sum)
		}
		if sum.Files+sum.Directories != int64(want-3) {
			t.Errorf("%+v", sum.Counts)
		}
	}
	if e := expect(t, root+"/empty"); e.Modified != 9e18+999999999 || e.Accessed != -5*1e9+3 {
		t.Errorf("the file system keeps no such times: %+v", e)
	}
}

// A path may be far longer than the limit of one system call.
func TestDeeperThanAPathCanBe(t *testing.T) {
	root := t.TempDir()
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 200)
	const depth = 60
	for range depth {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	f, err := unix.Openat(fd, "bottom", unix.O_CREAT|unix.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(f)
	unix.Close(fd)
	for _, without := range []bool{false, true} {
		noOpenat2.Store(without)
		sum, got := scanned(t, Options{Roots: []string{root}})
		noOpenat2.Store(false)
		if _, ok := got[root+strings.Repeat("/"+name, depth)+"/bottom"]; !ok || sum.Entries != depth+2 {
			t.Errorf("%+v", sum)
		}
	}
}

func TestSeveralRootsAndOneFileSystem(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write(t, a+"/x/one", 1)
	write(t, b+"/two", 2)
	sum, got := scanned(t, Options{Roots: []string{a, b}})
	if len(got) != 5 || sum.Bytes != 3 || got[b].Name != "." {
		t.Errorf("%+v %+v", sum, got)
	}
	if tab := opened(t, sum.Table); fmt.Sprint(tab.Roots) != fmt.Sprint([]string{a, b}) || tab.Started.IsZero() || tab.Finished.Before(tab.Started) || tab.Rows != 5 {
		t.Errorf("%+v", tab)
	}
	for _, roots := range [][]string{{a, a}, {a, a + "/x"}, {a + "/x/", a}, {a + "/none"}, {a + "/x/one"}} {
		table := filepath.Join(t.TempDir(), "t")
		_, err := Scan(context.Background(), Options{Roots: roots, Table: table})
		var re *exit.Error
		if !errors.As(err, &re) {
			t.Errorf("%v: %v", roots, err)
		}
		if left, err := os.ReadDir(filepath.Dir(table)); err != nil || len(left) > 0 {
			t.Errorf("%v, %v is left", err, left)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("mounting a file system takes root")
	}
	if err := unix.Mount("tmpfs", a+"/x", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(a + "/x"); err != nil {
			t.Error(err)
		}
	})
	write(t, a+"/x/on another", 9)
	if sum, _ := scanned(t, Options{Roots: []string{a}, OneFS: true}); sum.Entries != 2 || sum.Bytes != 0 {
		t.Errorf("on one file system: %+v", sum)
	}
	if sum, _ := scanned(t, Options{Roots: []string{a}}); sum.Entries != 3 || sum.Bytes != 9 {
		t.Errorf("on all file systems: %+v", sum)
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root may read all; to become somebody else takes root")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/tree/closed/secret", 1)
	write(t, dir+"/tree/listed/file", 1)
	for path, mode := range map[string]os.FileMode{dir: 0o777, dir + "/tree/closed": 0o700, dir + "/tree/listed": 0o744} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	table := dir + "/scan.parquet"
	// The binary may be in a directory that other users cannot enter.
	binary, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(dir+"/self", binary, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(dir + "/self")
	cmd.Env = append(os.Environ(), scanAs+"="+dir+"/tree:"+table)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var sum Summary
	if err := json.Unmarshal(out, &sum); err != nil {
		t.Fatal(err)
	}
	got := entries(t, table)
	closed, file := got[dir+"/tree/closed"], got[dir+"/tree/listed/file"]
	if !strings.Contains(closed.Error, "permission denied") || closed.Entries != -1 || closed.Type != "d" || closed.Mode != 0o700 {
		t.Errorf("%+v", closed)
	}
	if !strings.Contains(file.Error, "permission denied") || file.Type != "f" {
		t.Errorf("%+v", file)
	}
	if sum.Unread != 2 || len(sum.Problems) != 2 || len(got) != 4 {
		t.Errorf("%+v", sum)
	}
}

// Files that stay are found exactly once during concurrent changes, and nothing outside of the root
// is found.
func TestChangesUnderWay(t *testing.T) {
	dir := t.TempDir()
	root, outside := dir+"/root", dir+"/outside"
	write(t, outside+"/deep/secret", 1)
	for i := range 40 {
		for j := range 50 {
			write(t, fmt.Sprintf("%s/%d/stays%d", root, i, j), 0)
		}
	}
	stop := make(chan struct{})
	var churn sync.WaitGroup
	for k := range 3 {
		churn.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				at := fmt.Sprintf("%s/%d/churn%d", root, n%40, k)
				switch n % 3 {
				case 0: // a directory that becomes a link out of the tree, and is removed
					_ = os.MkdirAll(at+"/deep", 0o755)
					_ = os.Rename(at, at+".moved")
					_ = os.Symlink(outside, at)
					_ = os.Remove(at)
					_ = os.RemoveAll(at + ".moved")
				case 1:
					_ = os.WriteFile(at+".file", nil, 0o644)
					_ = os.Remove(at + ".file")
				case 2:
					_ = os.Mkdir(at+".dir", 0o755)
					_ = os.Rename(at+".dir", fmt.Sprintf("%s/%d/churn%d.other", root, (n+1)%40, k))
					_ = os.Remove(fmt.Sprintf("%s/%d/churn%d.other", root, (n+1)%40, k))
				}
			}
		})
	}
	defer churn.Wait()
	defer close(stop)
	for n := range 12 {
		noOpenat2.Store(n%2 == 1)
		_, got := scanned(t, Options{Roots: []string{root}})
		stays := 0
		for path, e := range got {
			if strings.Contains(path, "/stays") {
				stays++
			}
			if strings.Contains(path, "secret") || !within(path, root) {
				t.Errorf("%s is outside", path)
			}
			if e.Error != "" {
				t.Errorf("%s: %s", path, e.Error)
			}
		}
		if stays != 2000 {
			t.Errorf("%d of 2000 that stay", stays)
		}
	}
	noOpenat2.Store(false)
}

// deletedUnderWay returns the number of deleted files, as in a clean-up of a scratch file system.
// PREMIX_SOAK makes it large.
func deletedUnderWay() int {
	if os.Getenv("PREMIX_SOAK") != "" {
		return 2_000_000
	}
	return 50_000
}

// Files that are deleted during the scan are counted and are not failures. Files that stay are
// found exactly once.
func TestDeletedUnderWay(t *testing.T) {
	const perDir, keepEvery = 1000, 100
	for attempt := 1; ; attempt++ {
		root := t.TempDir()
		dirs := deletedUnderWay() / perDir
		stays := make(map[string]bool)
		var names [][]string
		for d := range dirs {
			dir := fmt.Sprintf("%s/%d", root, d)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			names = append(names, nil)
			for i := range perDir {
				path := fmt.Sprintf("%s/%d", dir, i)
				if err := unix.Mknod(path, unix.S_IFREG|0o644, 0); err != nil {
					t.Fatal(err)
				}
				// All files of every other directory are deleted, and so is the directory.
				if i%keepEvery == 0 && d%2 == 0 {
					stays[path] = true
					continue
				}
				names[d] = append(names[d], path)
			}
		}
		const deleters = 2
		var all sync.WaitGroup
		for k := range deleters {
			all.Go(func() {
				for d := k; d < dirs; d += deleters {
					for _, path := range names[d] {
						if err := unix.Unlink(path); err != nil {
							t.Errorf("%s: %v", path, err)
							return
						}
					}
					if d%2 == 1 {
						if err := unix.Rmdir(filepath.Dir(names[d][0])); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		finished := make(chan struct{})
		go func() {
			all.Wait()
			close(finished)
		}()
		vanished, scans := int64(0), 0
		for last := false; ; scans++ {
			select {
			case <-finished:
				last = true
			default:
			}
			sum, got := scanned(t, Options{Roots: []string{root}})
			if sum.Unread != 0 || sum.Entries != int64(len(got)) {
				t.Errorf("%d rows: %+v", len(got), sum)
			}
			for path := range stays {
				if _, ok := got[path]; !ok {
					t.Fatalf("%s stays, and was not found: %+v", path, sum)
				}
			}
			if vanished += sum.Vanished; last {
				if want := len(stays) + 1 + (dirs+1)/2; len(got) != want || sum.Vanished != 0 {
					t.Errorf("%d rows are left of %d: %+v", len(got), want, sum)
				}
				break
			}
		}
		t.Logf("%d files deleted during %d scans, %d of them under the eyes of one", dirs*perDir-len(stays), scans, vanished)
		if vanished > 0 || t.Failed() {
			return
		}
		if attempt == 5 {
			t.Fatal("no file was deleted between being listed and being looked at")
		}
	}
}

func TestScanEnds(t *testing.T) {
	root := t.TempDir()
	for i := range 2000 {
		write(t, fmt.Sprintf("%s/%d/%d", root, i%50, i), 1)
	}
	left := func(dir string) {
		t.Helper()
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%v, left: %v", err, list)
		}
	}
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(stop)
	dir := t.TempDir()
	if _, err := Scan(ctx, Options{Roots: []string{root}, Table: dir + "/t"}); !errors.Is(err, stop) {
		t.Errorf("cancelled: %v", err)
	}
	left(dir)
	if _, err := Scan(context.Background(), Options{Roots: []string{root}, Table: dir + "/none/t"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory for the table: %v", err)
	}
	if os.Getuid() != 0 {
		t.Skip("a file system that is full takes root")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Error(err)
		}
	})
	if _, err := Scan(context.Background(), Options{Roots: []string{root}, Table: dir + "/t"}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("no space: %v", err)
	}
	left(dir)
}

func TestTablesThatAreNone(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write(t, root+"/f", 1)
	sum, _ := scanned(t, Options{Roots: []string{root}, Table: dir + "/good"})
	good, err := os.ReadFile(sum.Table)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"empty": nil, "text": []byte("no table"), "cut": good[:len(good)/2], "torn": good[len(good)/2:],
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		var te *TableError
		if _, err := OpenTable(path); !errors.As(err, &te) || !strings.Contains(err.Error(), path) || te.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenTable(dir + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestTimesBeyondTheRange(t *testing.T) {
	for _, c := range []struct {
		sec  int64
		want int64
	}{{1, 1e9 + 7}, {-1, -1e9 + 7}, {1e10, math.MaxInt64}, {-1e10, math.MinInt64}} {
		if got := nanoseconds(unix.StatxTimestamp{Sec: c.sec, Nsec: 7}); got != c.want {
			t.Errorf("%d s: %d, want %d", c.sec, got, c.want)
		}
	}
}

// A worker calls past the scheduler only while entries are quick.
func TestJudge(t *testing.T) {
	w := new(worker)
	if w.judge(); w.direct {
		t.Error("direct before anything was measured")
	}
	w.judged = time.Now()
	if w.judge(); !w.direct {
		t.Error("not direct after quick entries")
	}
	w.judged = time.Now().Add(-2 * judgeCalls * quickCall)
	if w.judge(); w.direct || w.calls != 0 {
		t.Error("direct after slow entries")
	}
}
