package erofs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// guestModules lists the kernel modules that the guest loads, in order.
var guestModules = []string{"drivers/block/loop.ko", "fs/erofs/erofs.ko"}

// TestGuest mounts mutated images that pass the Checker in User-Mode Linux, a kernel that is a
// process, where a crash does no harm. The kernel must print no message, and read the same as
// package erofs. PREMIX_MUTANTS is the number of mutants to make, of which about a quarter pass.
func TestGuest(t *testing.T) {
	count := 2000
	if s := os.Getenv("PREMIX_MUTANTS"); s != "" {
		var err error
		if count, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	} else if os.Getenv("PREMIX_SOAK") != "" {
		count = 100_000
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "premix/guest/usr")
	linux := filepath.Join(dir, "bin/linux.uml")
	modules, _ := filepath.Glob(dir + "/lib/uml/modules/*/kernel")
	if _, err := os.Stat(linux); err != nil || len(modules) != 1 {
		t.Skipf("%s has no kernel (scripts/setup.sh test)", dir)
	}
	var a archive
	work := t.TempDir()
	init := filepath.Join(work, "init")
	build := exec.Command("go", "build", "-o", init, "./testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a.file(t, "init", init)
	for i, m := range guestModules {
		a.file(t, fmt.Sprintf("modules/%d.ko", i), filepath.Join(modules[0], m))
	}
	made, passed := a.mutants(t, count)
	a.add("TRAILER!!!", 0, nil)
	initrd := filepath.Join(work, "initrd")
	if err := os.WriteFile(initrd, a.b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	guest := exec.CommandContext(t.Context(), linux, fmt.Sprintf("mem=%dM", 512+3*a.b.Len()>>20), "initrd="+initrd,
		"con=null", "con0=null,fd:1", "console=tty0", "panic=-1", "quiet", "oops=panic", "uml_dir="+work)
	guest.Env = append(os.Environ(), "TMPDIR=")     // so its memory is in a tmpfs, wherever there is one
	guest.Stdout = io.MultiWriter(&out, t.Output()) // a long run shows how far it is
	guest.Stderr = guest.Stdout
	err = guest.Run()
	text := strings.ReplaceAll(out.String(), "\r", "")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	m := regexp.MustCompile(`GUEST done (\d+) bad (\d+)\n`).FindStringSubmatch(text)
	if m == nil || m[1] != strconv.Itoa(passed) || m[2] != "0" {
		t.Errorf("of %d mutants:\n%s", passed, text)
	}
	t.Logf("%d of %d mutants passed the Checker and were mounted", passed, made)
}

// mutants adds the mutants that pass and the unchanged images to the archive.
func (a *archive) mutants(t *testing.T, count int) (made, passed int) {
	images, metas := checkedImages(t)
	images, metas = images[:8], metas[:8]
	var list bytes.Buffer
	write := func(base, number int, b []byte) {
		text, err := meaning(b)
		if err != nil {
			t.Fatalf("mutant %d: %v", number, err)
		}
		var changes []uint32
		for i := range b {
			if b[i] != images[base][i] {
				changes = append(changes, uint32(i), uint32(b[i]))
			}
		}
		passed++
		for _, v := range []any{[]uint32{uint32(base), uint32(len(changes) / 2), crc32.ChecksumIEEE([]byte(text)), uint32(number)}, changes} {
			if err := binary.Write(&list, binary.LittleEndian, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	var inodes [][]int64
	for i, b := range images {
		a.add(fmt.Sprintf("images/base%d", i), 0o100644, b)
		inodes = append(inodes, inodesOf(t, b))
		write(i, 0, b)
	}
	for k := range count {
		i := 1 + k%(len(images)-1)
		if k%32 == 0 {
			i = 0 // it has ten times the files of the others, so it takes ten times as long
		}
		b := slices.Clone(images[i])
		mutate(rand.New(rand.NewPCG(uint64(k), 29)), b, metas[i], inodes[i])
		if !bytes.Equal(b, images[i]) && checkAll(b, metas[i]) == nil {
			write(i, k, b)
		}
	}
	a.add("images/mutants", 0o100644, list.Bytes())
	return count, passed
}

// archive is an initial file system for a kernel, in the format "newc" of cpio(5).
type archive struct {
	b    bytes.Buffer
	dirs map[string]bool
	ino  int
}

func (a *archive) add(name string, mode int, content []byte) {
	if dir := filepath.Dir(name); dir != "." && !a.dirs[dir] {
		if a.dirs == nil {
			a.dirs = map[string]bool{}
		}
		a.dirs[dir] = true
		a.add(dir, 0o040755, nil)
	}
	a.ino++
	fmt.Fprintf(&a.b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.b.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.b.Len()%4 != 0 {
		a.b.WriteByte(0)
	}
}

func (a *archive) file(t *testing.T, name, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a.add(name, 0o100755, b)
}
