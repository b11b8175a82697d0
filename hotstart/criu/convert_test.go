package criu

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	criu_core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"google.golang.org/protobuf/proto"
)

const private = 2 // MAP_PRIVATE

func area(start, size uint64, prot, flags, status uint32) *vma.VmaEntry {
	return &vma.VmaEntry{Start: proto.Uint64(start), End: proto.Uint64(start + size), Pgoff: proto.Uint64(0),
		Shmid: proto.Uint64(0), Prot: proto.Uint32(prot), Flags: proto.Uint32(flags), Status: proto.Uint32(status), Fd: proto.Int64(-1)}
}

func put(t *testing.T, dir, name string, messages ...proto.Message) {
	t.Helper()
	img := &image{name: name, header: [8]byte{'m', 'a', 'g', 'i', 'c'}}
	for i, m := range messages {
		if err := img.set(i, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := img.write(dir); err != nil {
		t.Fatal(err)
	}
}

func pages(addr, n uint64, flags uint32) *pagemap.PagemapEntry {
	return &pagemap.PagemapEntry{Vaddr: proto.Uint64(addr), CompatNrPages: proto.Uint32(uint32(n)),
		NrPages: proto.Uint64(n), Flags: proto.Uint32(flags)}
}

// images writes a process of two large VMAs, a small one and a stack; page
// number i of the dump is filled with byte i+1.
func images(t *testing.T) (dir string, big, heap uint64) {
	t.Helper()
	dir = t.TempDir()
	big, heap = 0x7f0000123000, 0x555500001000
	put(t, dir, "mm-7.img", &mm.MmEntry{
		MmStartCode: proto.Uint64(0), MmEndCode: proto.Uint64(0), MmStartData: proto.Uint64(0), MmEndData: proto.Uint64(0),
		MmStartStack: proto.Uint64(0), MmStartBrk: proto.Uint64(0), MmBrk: proto.Uint64(0), MmArgStart: proto.Uint64(0),
		MmArgEnd: proto.Uint64(0), MmEnvStart: proto.Uint64(0), MmEnvEnd: proto.Uint64(0), ExeFileId: proto.Uint32(1),
		Vmas: []*vma.VmaEntry{
			area(heap, 2<<20, 3, mapAnonymous|private, vmaRegular|vmaAnonPrivate|vmaHeap),
			area(0x600000000000, 64<<10, 3, mapAnonymous|private, vmaRegular|vmaAnonPrivate),
			area(big, 6<<20, 3, mapAnonymous|private, vmaRegular|vmaAnonPrivate),
			area(0x7f1000000000, 4<<20, 1, mapAnonymous|private, vmaRegular|vmaAnonPrivate),
			area(0x7ffff0000000, 8<<20, 3, mapAnonymous|private|mapGrowsDown, vmaRegular|vmaAnonPrivate|1<<1),
		}})
	entries := []proto.Message{
		&pagemap.PagemapHead{PagesId: proto.Uint32(1)},
		pages(heap+4096, 1, pagePresent),           // page 0
		pages(0x600000000000, 2, pagePresent),      // pages 1, 2
		pages(big-2*4096, 3, pagePresent),          // pages 3, 4 before, 5 inside
		pages(big+3<<20, 512, pagePresent),         // pages 6 to 517
		pages(big+(6<<20)-4096, 2, pagePresent),    // page 518 inside, 519 behind
		pages(0x7ffff0000000+4096, 1, 0),           // not present
		pages(0x7ffff0000000+8192, 1, pagePresent), // page 520
	}
	put(t, dir, "pagemap-7.img", entries...)
	var content bytes.Buffer
	for i := range 521 {
		content.Write(bytes.Repeat([]byte{byte(i + 1)}, 4096))
	}
	if err := os.WriteFile(filepath.Join(dir, "pages-1.img"), content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := func(name string) *regfile.RegFileEntry {
		return &regfile.RegFileEntry{Id: proto.Uint32(4), Flags: proto.Uint32(0), Pos: proto.Uint64(0), Name: proto.String(name),
			Size: proto.Uint64(99), Mode: proto.Uint32(0o100644), Fown: &fown.FownEntry{Uid: proto.Uint32(0), Euid: proto.Uint32(0),
				Signum: proto.Uint32(0), PidType: proto.Uint32(0), Pid: proto.Uint32(0)}}
	}
	put(t, dir, "files.img",
		&fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(4), Reg: reg("/run/task/out")},
		&fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(9), Reg: reg("/run/taskforce")},
		&fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(5), Reg: reg("/run/task")})
	if err := os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("as it is"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, big, heap
}

func TestConvert(t *testing.T) {
	src, big, heap := images(t)
	dst, pageFile := t.TempDir(), filepath.Join(t.TempDir(), "pages")
	done, err := Convert(src, dst, pageFile, pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Slots) != 2 || done.Slots[0].Pages != 1 || done.Slots[1].Pages != 514 || done.Kept != 6*4096 {
		t.Errorf("converted %+v", done)
	}

	img, err := readImage(dst, "mm-7.img")
	if err != nil {
		t.Fatal(err)
	}
	var space mm.MmEntry
	if err := img.decode(0, &space); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, true, false, false} {
		v := space.Vmas[i]
		isFile := v.GetStatus()&vmaFilePrivate != 0
		if isFile != want || isFile == (v.GetStatus()&vmaAnonPrivate != 0) || isFile == (v.GetFlags()&mapAnonymous != 0) {
			t.Errorf("VMA %d: status %#x flags %#x, want a file mapping: %v", i, v.GetStatus(), v.GetFlags(), want)
		}
		if !isFile {
			continue
		}
		if v.GetPgoff()%hugeSize != v.GetStart()%hugeSize {
			t.Errorf("VMA %d: offset %#x is not congruent to address %#x", i, v.GetPgoff(), v.GetStart())
		}
		if v.GetShmid() != 10 {
			t.Errorf("VMA %d maps file %d, want 10", i, v.GetShmid())
		}
	}

	f, err := os.Open(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := func(v *vma.VmaEntry, addr uint64) byte {
		var b [4096]byte
		if _, err := f.ReadAt(b[:], int64(v.GetPgoff()+addr-v.GetStart())); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b[:], bytes.Repeat(b[:1], 4096)) {
			t.Errorf("page at %#x is not of one piece", addr)
		}
		return b[0]
	}
	for _, c := range []struct {
		v    *vma.VmaEntry
		addr uint64
		want byte
	}{
		{space.Vmas[0], heap, 0}, {space.Vmas[0], heap + 4096, 1}, {space.Vmas[0], heap + 8192, 0},
		{space.Vmas[2], big, 6}, {space.Vmas[2], big + 4096, 0},
		{space.Vmas[2], big + 3<<20, 7}, {space.Vmas[2], big + 3<<20 + 511*4096, byte(518 % 256)},
		{space.Vmas[2], big + 6<<20 - 4096, byte(519 % 256)},
	} {
		if got := at(c.v, c.addr); got != c.want {
			t.Errorf("page at %#x holds %d, want %d", c.addr, got, c.want)
		}
	}

	rest, err := os.ReadFile(filepath.Join(dst, "pages-1.img"))
	if err != nil {
		t.Fatal(err)
	}
	var kept []byte
	for i := 0; i < len(rest); i += 4096 {
		kept = append(kept, rest[i])
	}
	if want := []byte{2, 3, 4, 5, byte(520 % 256), byte(521 % 256)}; !bytes.Equal(kept, want) {
		t.Errorf("kept pages %v, want %v", kept, want)
	}
	if got, _ := os.ReadFile(filepath.Join(dst, "inventory.img")); string(got) != "as it is" {
		t.Errorf("inventory: %q", got)
	}
	if got, _ := os.Stat(filepath.Join(src, "pages-1.img")); got.Size() != 521*4096 {
		t.Errorf("the source's pages have %d bytes", got.Size())
	}
}

func TestSettle(t *testing.T) {
	dir, _, _ := images(t)
	put(t, dir, "core-7.img", &criu_core.CoreEntry{Mtype: criu_core.CoreEntry_X86_64.Enum(), Tc: &criu_core.TaskCoreEntry{
		TaskState: proto.Uint32(3), ExitCode: proto.Uint32(0), Personality: proto.Uint32(0), Flags: proto.Uint32(0),
		BlkSigset: proto.Uint64(0), Comm: proto.String("tool")}})
	if err := Settle(dir, "/run/task"); err != nil {
		t.Fatal(err)
	}
	files, err := readImage(dir, "files.img")
	if err != nil {
		t.Fatal(err)
	}
	for i, keeps := range []bool{false, true, false} {
		var e fdinfo.FileEntry
		if err := files.decode(i, &e); err != nil {
			t.Fatal(err)
		}
		if (e.Reg.Size != nil) != keeps || (e.Reg.Mode != nil) != keeps {
			t.Errorf("%s: size %v mode %v", e.Reg.GetName(), e.Reg.Size, e.Reg.Mode)
		}
	}
	core, err := readImage(dir, "core-7.img")
	if err != nil {
		t.Fatal(err)
	}
	var c criu_core.CoreEntry
	if err := core.decode(0, &c); err != nil {
		t.Fatal(err)
	}
	if c.Tc.GetTaskState() != taskAlive {
		t.Errorf("task state %d", c.Tc.GetTaskState())
	}
}

// TestDamagedImage reads files cut at every byte, and one with a huge length.
func TestDamagedImage(t *testing.T) {
	dir, _, _ := images(t)
	whole, err := os.ReadFile(filepath.Join(dir, "files.img"))
	if err != nil {
		t.Fatal(err)
	}
	full, err := readImage(dir, "files.img")
	if err != nil || len(full.entries) != 3 {
		t.Fatalf("whole: %v", err)
	}
	for n := range whole {
		if err := os.WriteFile(filepath.Join(dir, "cut.img"), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := readImage(dir, "cut.img")
		if err == nil && len(img.entries) == 3 {
			t.Errorf("cut to %d of %d bytes: read as whole", n, len(whole))
		}
	}
	huge := binary.LittleEndian.AppendUint32(whole[:8:8], 1<<31)
	if err := os.WriteFile(filepath.Join(dir, "cut.img"), huge, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readImage(dir, "cut.img"); err == nil || !strings.Contains(err.Error(), "claims") {
		t.Errorf("huge entry: %v", err)
	}
}
