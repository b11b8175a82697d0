package tiers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// soak returns the number of repetitions, which is larger in long runs.
func soak(short, long int) int {
	if os.Getenv("PREMIX_SOAK") != "" {
		return long
	}
	return short
}

// TestRandomOperations makes random operations on one file, as fsx does: reads, writes, mappings,
// truncations, holes, and moves between the tiers. Reads must return the written data.
func TestRandomOperations(t *testing.T) {
	for seed := range soak(2, 20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := twoTiers(t)
			x := &exerciser{m: m, r: rand.New(rand.NewPCG(uint64(seed), 0))}
			x.open(t)
			defer func() { must(t, x.f.Close()) }()
			for n := range soak(1500, 20000) {
				if name, err := x.step(); err != nil {
					t.Fatalf("operation %d, %s: %v", n, name, err)
				}
				if n%100 == 99 {
					must(t, x.f.Close())
					x.move(t)
					x.open(t)
				}
			}
		})
	}
}

type exerciser struct {
	m    *mounted
	r    *rand.Rand
	f    *os.File
	want []byte
}

const exerciseSize = 300_000

func (x *exerciser) open(t *testing.T) {
	var err error
	x.f, err = os.OpenFile(x.m.at("f"), os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
}

// move moves the file to the other tier after the kernel has notified the mount that it was closed.
func (x *exerciser) move(t *testing.T) {
	for from := range 2 {
		for {
			_, err := x.m.tree.move(t.Context(), "f", from, 1-from)
			if err == nil {
				return
			}
			if absent(err) {
				break
			}
			if !errors.Is(err, ErrBusy) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func (x *exerciser) step() (string, error) {
	off := x.r.Int64N(exerciseSize)
	size := int(min(1+x.r.Int64N(1<<uint(4+x.r.IntN(14))), exerciseSize-off))
	piece := make([]byte, size)
	for i := range piece {
		piece[i] = byte(x.r.Uint32())
	}
	end := int(off) + size
	fd := int(x.f.Fd())
	switch k := x.r.IntN(9); k {
	case 0, 1:
		x.grow(end)
		copy(x.want[off:], piece)
		_, err := x.f.WriteAt(piece, off)
		return "write", err
	case 2:
		n, err := x.f.ReadAt(piece, off)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return "read", errors.Join(err, x.equal(piece[:n], off, size))
	case 3:
		cut := int(off) / (1 + x.r.IntN(3))
		x.grow(cut)
		clear(x.want[cut:])
		x.want = x.want[:cut]
		return "cut", x.f.Truncate(int64(cut))
	case 4, 5: // a mapping, to be read or written
		// Without passthrough this process would have to serve its own page faults, but it has no
		// thread for this during garbage collection.
		if end > len(x.want) || os.Getenv(ordinaryUser) != "" {
			return "nothing", nil
		}
		at := off &^ 4095
		prot := unix.PROT_READ
		if k == 5 {
			prot |= unix.PROT_WRITE
		}
		b, err := unix.Mmap(fd, at, end-int(at), prot, unix.MAP_SHARED)
		if err != nil {
			return "map", err
		}
		if k == 4 {
			err = x.equal(b[off-at:], off, size)
		} else {
			copy(b[off-at:], piece)
			copy(x.want[off:], piece)
			err = unix.Msync(b, unix.MS_SYNC)
		}
		return "map", errors.Join(err, unix.Munmap(b))
	case 6:
		if end > len(x.want) {
			end = len(x.want)
		}
		if int(off) < end {
			clear(x.want[off:end])
		}
		return "hole", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, int64(size))
	case 7:
		return "sync", x.f.Sync()
	default:
		b, err := os.ReadFile(x.m.at("f"))
		if err == nil && !bytes.Equal(b, x.want) {
			err = errors.New("the whole file differs")
		}
		return "read all", err
	}
}

// grow extends the expected content to at least this size.
func (x *exerciser) grow(size int) {
	if size > len(x.want) {
		x.want = append(x.want, make([]byte, size-len(x.want))...)
	}
}

func (x *exerciser) equal(got []byte, off int64, size int) error {
	var want []byte
	if int(off) < len(x.want) {
		want = x.want[off:min(int(off)+size, len(x.want))]
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes at %d differ, of %d", len(got), off, len(want))
	}
	return nil
}

// program returns the path of a program that a test needs.
func program(t *testing.T, name, hint string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is missing: %s", name, hint)
	}
	return path
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// whileItMoves moves files back and forth while do runs.
func (m *mounted) whileItMoves(t *testing.T, do func()) {
	t.Helper()
	done, finished := make(chan struct{}), make(chan error)
	go func() {
		for {
			for from := range 2 {
				list, err := m.tree.list(t.Context(), from)
				if err != nil {
					finished <- err
					return
				}
				for _, c := range list {
					select {
					case <-done:
						finished <- nil
						return
					default:
					}
					if _, err := m.tree.move(t.Context(), c.rel, from, 1-from); err != nil && !errors.Is(err, ErrBusy) && !absent(err) {
						finished <- fmt.Errorf("moving %s: %w", c.rel, err)
						return
					}
				}
			}
		}
	}()
	do()
	close(done)
	must(t, <-finished)
}

func TestGit(t *testing.T) {
	git := program(t, "git", "scripts/setup.sh test")
	m := twoTiers(t)
	write(t, m.onDisk("repo/README"), "text\n") // of a directory on both tiers
	repo := m.at("repo")
	run(t, repo, git, "init", "-q", "-b", "main", ".")
	run(t, repo, git, "config", "user.email", "a@b")
	run(t, repo, git, "config", "user.name", "A")
	m.whileItMoves(t, func() {
		for i := range soak(8, 100) {
			for j := range 20 {
				write(t, filepath.Join(repo, fmt.Sprintf("d%d/f%d", j%5, i*20+j)), strings.Repeat(fmt.Sprint(i, j, "\n"), 500))
			}
			run(t, repo, git, "add", "-A")
			run(t, repo, git, "commit", "-q", "-m", fmt.Sprint(i))
		}
		run(t, repo, git, "gc", "-q")
		run(t, repo, git, "fsck", "--full", "--strict")
		run(t, m.Dir, git, "clone", "-q", "repo", "clone")
	})
	if out := run(t, m.at("clone"), git, "status", "--porcelain"); out != "" {
		t.Errorf("the clone is not clean: %s", out)
	}
	run(t, m.Dir, "diff", "-r", "-x", ".git", "repo", "clone")
}

func TestSQLite(t *testing.T) {
	python := program(t, "python3", "scripts/setup.sh test")
	for _, mode := range []string{"WAL", "DELETE"} {
		t.Run(mode, func(t *testing.T) {
			m := twoTiers(t)
			// Two processes write the same table in turns.
			code := `import sqlite3, sys
db = sqlite3.connect("base", timeout=60, isolation_level=None)
for i in range(int(sys.argv[2])):
    db.execute("begin immediate")
    db.executemany("insert into t (who, v) values (?, randomblob(300))", [(sys.argv[1],)] * 20)
    db.execute("commit")
`
			n := soak(6, 400)
			run(t, m.Dir, python, "-c", `import sqlite3
db = sqlite3.connect("base", isolation_level=None)
db.execute("pragma journal_mode=`+mode+`")
db.execute("create table t (k integer primary key, who text, v blob)")`)
			m.whileItMoves(t, func() {
				var both []*exec.Cmd
				var outs [2]bytes.Buffer
				for i, who := range []string{"a", "b"} {
					cmd := exec.CommandContext(t.Context(), python, "-c", code, who, fmt.Sprint(n))
					cmd.Dir, cmd.Stderr = m.Dir, &outs[i]
					must(t, cmd.Start())
					both = append(both, cmd)
				}
				for i, cmd := range both {
					if err := cmd.Wait(); err != nil {
						t.Errorf("%v: %s", err, outs[i].String())
					}
				}
			})
			out := run(t, m.Dir, python, "-c", `import sqlite3
db = sqlite3.connect("base")
print(db.execute("pragma integrity_check").fetchone()[0], db.execute("select count(*), count(distinct who) from t").fetchone())`)
			if want := fmt.Sprintf("ok (%d, 2)\n", 2*20*n); out != want {
				t.Errorf("it says %q, want %q", out, want)
			}
		})
	}
}

func TestLevelDB(t *testing.T) {
	const python = "/usr/bin/python3" // of the distribution, as plyvel is
	if err := exec.Command(python, "-c", "import plyvel").Run(); err != nil {
		t.Skip("plyvel is missing: scripts/setup.sh test")
	}
	m := twoTiers(t)
	m.whileItMoves(t, func() {
		out := run(t, m.Dir, python, "-c", fmt.Sprintf(`import plyvel
n = %d
for part in range(3):
    db = plyvel.DB("base", create_if_missing=True, write_buffer_size=1 << 17)
    for i in range(n):
        db.put(b"%%d-%%d" %% (part, i), b"v%%d" %% i * 20, sync=i %% 100 == 0)
    db.compact_range()
    db.close()
db = plyvel.DB("base")
print(sum(1 for k, v in db if v == b"v%%d" %% int(k.split(b"-")[1]) * 20))
`, soak(800, 100_000)))
		if want := fmt.Sprintln(3 * soak(800, 100_000)); out != want {
			t.Errorf("it counts %q, want %q", out, want)
		}
	})
}

// stressors are the file system tests of stress-ng that give the same result in a directory of
// ext4.
var stressors = strings.Fields(`access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl
	filename flock fpunch fstat getdent hdd io iomix link lockf lockofd mknod open rename seek symlink touch utime xattr`)

func TestStress(t *testing.T) {
	ng := program(t, "stress-ng", "scripts/setup.sh test")
	m := twoTiers(t)
	for _, name := range stressors {
		t.Run(name, func(t *testing.T) {
			into := m.at(name)
			must(t, os.Mkdir(into, 0o755))
			run(t, into, ng, "--quiet", "--temp-path", into, "--verify", "--timeout", fmt.Sprint(soak(1, 60)), "--"+name, "2", "--"+name+"-ops", fmt.Sprint(soak(100, 1_000_000)))
		})
	}
}

// ordinaryUser is set if this binary was started to run the tests as an ordinary user.
const ordinaryUser = "PREMIX_TEST_ORDINARY_USER"

const nobody = 65534 // it has a name, which fusermount3 needs

// TestOrdinaryUser runs tests as a user who mounts with fusermount3.
func TestOrdinaryUser(t *testing.T) {
	needRoot(t)
	helper := program(t, "fusermount3", "scripts/setup.sh test")
	if st, err := os.Stat(helper); err != nil || st.Mode()&os.ModeSetuid == 0 {
		t.Skip("fusermount3 is not set-user-ID")
	}
	dir := t.TempDir()
	forAll(t, dir)
	must(t, os.Chown(dir, nobody, nobody))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.timeout=3m", "-test.v",
		"-test.run=^(TestPosix|TestRandomOperations|TestListingMerges|TestOpenFilesAcrossAMove|TestWritersWhileFilesMove|TestFsyncOfADirectory|TestFileWithoutAName|TestGit|TestSQLite)$")
	cmd.Env = append(os.Environ(), ordinaryUser+"="+dir, "TMPDIR="+dir)
	// Use a new mount namespace, whose /dev/fuse all users can open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestPosix")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// becomeOrdinary makes /dev/fuse usable in this mount namespace, and gives up the rights of root.
func becomeOrdinary(dir string) error {
	device := filepath.Join(dir, "fuse")
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		// Distributions let every user open it, containers often do not.
		unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))),
		os.Chmod(device, 0o666),
		unix.Mount(device, "/dev/fuse", "", unix.MS_BIND, ""),
	); err != nil {
		return err
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
}
