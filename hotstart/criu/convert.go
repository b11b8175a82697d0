package criu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	criu_core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Bits of vma_entry.status and pagemap_entry.flags (CRIU, criu/include/image.h
// and pagemap.h), and of vma_entry.flags (mmap(2)).
const (
	vmaRegular     = 1 << 0
	vmaHeap        = 1 << 5
	vmaFilePrivate = 1 << 6
	vmaAnonPrivate = 1 << 9

	pagePresent = 1 << 2

	mapAnonymous = 0x20
	mapGrowsDown = 0x100

	protWrite = 2

	taskAlive = 1
)

const (
	pageSize = 4096
	hugeSize = 2 << 20

	// MinVMA is the size from which a VMA is worth a slot of its own. Smaller
	// ones are read back, which takes microseconds.
	MinVMA = 1 << 20

	// dropStep is how much is read before it is dropped from the page cache, bytes.
	dropStep = 64 << 20
)

// Slot is one VMA's part of the page file.
type Slot struct {
	Offset int64 `json:"offset"` // bytes
	Size   int64 `json:"size"`   // bytes
	Pages  int64 `json:"pages"`  // pages present in it, 4 KiB each
}

// Converted tells what Convert did.
type Converted struct {
	Slots []Slot
	Kept  int64 // bytes of memory that restores still read back
}

// Settle makes the images of a process that was dumped while it was stopped
// restore as running, and strips the sizes and modes of files in workDir,
// which CRIU compares at restore. Both kinds of restore need it.
func Settle(dir, workDir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "core-*.img"))
	if err != nil {
		return err
	}
	for _, path := range names {
		img, err := readImage(dir, filepath.Base(path))
		if err != nil {
			return err
		}
		var core criu_core.CoreEntry
		if err := img.decode(0, &core); err != nil {
			return err
		}
		if core.Tc == nil {
			continue // a thread other than the leader
		}
		core.Tc.TaskState = proto.Uint32(taskAlive)
		if err := img.set(0, &core); err != nil {
			return err
		}
		if err := img.write(dir); err != nil {
			return err
		}
	}
	files, err := readImage(dir, "files.img")
	if err != nil {
		return err
	}
	workDir = strings.TrimSuffix(workDir, "/")
	for i := range files.entries {
		var e fdinfo.FileEntry
		if err := files.decode(i, &e); err != nil {
			return err
		}
		if e.Reg == nil || !strings.HasPrefix(e.Reg.GetName()+"/", workDir+"/") {
			continue
		}
		e.Reg.Size, e.Reg.Mode, e.Reg.BuildId, e.Reg.Checksum = nil, nil, nil, nil
		if err := files.set(i, &e); err != nil {
			return err
		}
	}
	return files.write(dir)
}

// Convert reads the images in src and writes to dst, an existing empty
// directory, images whose large private anonymous VMAs are mappings of the
// page file, which it creates at an absolute path. mapped is the one by which the
// restored process is going to map it. src is left as it is, though out of the page cache:
// the page file, as large again, is what restores are going to need there. Files
// that stay the same are hard links.
func Convert(src, dst, pageFile, mapped string) (*Converted, error) {
	entries, err := os.ReadDir(src)
	if err != nil {
		return nil, err
	}
	var pids []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case !strings.HasSuffix(name, ".img"), name == "files.img":
			continue
		case strings.HasPrefix(name, "mm-"):
			pids = append(pids, strings.TrimSuffix(strings.TrimPrefix(name, "mm-"), ".img"))
			continue
		case strings.HasPrefix(name, "pagemap-") && !strings.HasPrefix(name, "pagemap-shmem"):
			continue // written below, each with its pages
		}
		if err := os.Link(filepath.Join(src, name), filepath.Join(dst, name)); err != nil {
			return nil, err
		}
	}

	files, err := readImage(src, "files.img")
	if err != nil {
		return nil, err
	}
	var pageFileID uint32
	for i := range files.entries {
		var e fdinfo.FileEntry
		if err := files.decode(i, &e); err != nil {
			return nil, err
		}
		pageFileID = max(pageFileID, e.GetId()+1)
	}

	out, err := os.OpenFile(pageFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c := &converter{src: src, dst: dst, out: out, pageFileID: pageFileID}
	for _, pid := range pids {
		if err := c.process(pid); err != nil {
			return nil, fmt.Errorf("convert process %s: %w", pid, err)
		}
	}
	if err := out.Truncate(c.end); err != nil {
		return nil, err
	}
	if err := out.Sync(); err != nil {
		return nil, err
	}

	reg := &regfile.RegFileEntry{
		Id:    proto.Uint32(pageFileID),
		Flags: proto.Uint32(uint32(os.O_RDONLY) | 0o100000), // O_LARGEFILE
		Pos:   proto.Uint64(0),
		Fown: &fown.FownEntry{Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0),
			PidType: proto.Uint32(0), Pid: proto.Uint32(0)},
		Name: proto.String(mapped),
		Mode: proto.Uint32(0o100600),
	}
	err = files.set(len(files.entries), &fdinfo.FileEntry{
		Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(pageFileID), Reg: reg})
	if err != nil {
		return nil, err
	}
	return &c.done, files.write(dst)
}

type converter struct {
	src, dst   string
	out        *os.File
	pageFileID uint32
	end        int64 // of the page file so far
	done       Converted
}

// mapping is a VMA that gets a slot.
type mapping struct {
	start, end uint64
	offset     int64
	slot       int // index into Converted.Slots
}

func (c *converter) process(pid string) error {
	mmImg, err := readImage(c.src, "mm-"+pid+".img")
	if err != nil {
		return err
	}
	var space mm.MmEntry
	if err := mmImg.decode(0, &space); err != nil {
		return err
	}
	var maps []mapping
	for _, v := range space.Vmas {
		if !convertible(v) {
			continue
		}
		m := c.place(v)
		maps = append(maps, m)
		v.Status = proto.Uint32(v.GetStatus()&^vmaAnonPrivate | vmaFilePrivate)
		v.Flags = proto.Uint32(v.GetFlags() &^ mapAnonymous)
		v.Shmid = proto.Uint64(uint64(c.pageFileID))
		v.Pgoff = proto.Uint64(uint64(m.offset))
		v.Fdflags = proto.Uint32(uint32(os.O_RDONLY))
	}
	if err := mmImg.set(0, &space); err != nil {
		return err
	}
	if err := mmImg.write(c.dst); err != nil {
		return err
	}
	return c.pages(pid, maps)
}

// convertible tells whether a VMA may become a mapping of the page file without
// any difference that the program could see, once it is guarded.
func convertible(v *vma.VmaEntry) bool {
	status := v.GetStatus()
	return status&vmaAnonPrivate != 0 && status&^(vmaRegular|vmaAnonPrivate|vmaHeap) == 0 &&
		v.GetEnd()-v.GetStart() >= MinVMA && v.GetFlags()&mapGrowsDown == 0 && v.GetProt()&protWrite != 0
}

// place gives a VMA its slot.
func (c *converter) place(v *vma.VmaEntry) mapping {
	size := int64(v.GetEnd() - v.GetStart())
	offset := c.end + (int64(v.GetStart()%hugeSize)-c.end%hugeSize+hugeSize)%hugeSize
	c.end = offset + size
	c.done.Slots = append(c.done.Slots, Slot{Offset: offset, Size: size})
	return mapping{start: v.GetStart(), end: v.GetEnd(), offset: offset, slot: len(c.done.Slots) - 1}
}

// pages splits the pages of one process between the page file and the images.
func (c *converter) pages(pid string, maps []mapping) error {
	img, err := readImage(c.src, "pagemap-"+pid+".img")
	if err != nil {
		return err
	}
	var head pagemap.PagemapHead
	if err := img.decode(0, &head); err != nil {
		return err
	}
	name := fmt.Sprintf("pages-%d.img", head.GetPagesId())
	in, err := os.Open(filepath.Join(c.src, name))
	if err != nil {
		return err
	}
	defer in.Close()
	// The link that Convert made leads to the source: replace it.
	if err := os.Remove(filepath.Join(c.dst, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	rest, err := os.OpenFile(filepath.Join(c.dst, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer rest.Close()

	// Only what is on storage can be dropped from the page cache.
	if err := unix.Fdatasync(int(in.Fd())); err != nil {
		return &os.PathError{Op: "fdatasync", Path: in.Name(), Err: err}
	}
	var dropped int64 // up to where

	kept := &image{name: img.name, header: img.header, entries: img.entries[:1:1]}
	w := &slotWriter{out: c.out}
	var pos int64 // in the source's pages
	for i := 1; i < len(img.entries); i++ {
		var e pagemap.PagemapEntry
		if err := img.decode(i, &e); err != nil {
			return err
		}
		left := e.GetNrPages()
		if e.NrPages == nil {
			left = uint64(e.GetCompatNrPages())
		}
		present := e.GetFlags()&pagePresent != 0
		for addr := e.GetVaddr(); left > 0; {
			m, n := run(maps, addr, left)
			switch {
			case m != nil && present:
				if err := w.copy(in, pos, m.offset+int64(addr-m.start), int64(n)*pageSize); err != nil {
					return err
				}
				c.done.Slots[m.slot].Pages += int64(n)
			case m == nil:
				part := proto.Clone(&e).(*pagemap.PagemapEntry)
				part.Vaddr, part.NrPages = proto.Uint64(addr), proto.Uint64(n)
				part.CompatNrPages = proto.Uint32(uint32(n))
				if err := kept.set(len(kept.entries), part); err != nil {
					return err
				}
				if present {
					if _, err := io.Copy(rest, io.NewSectionReader(in, pos, int64(n)*pageSize)); err != nil {
						return err
					}
					c.done.Kept += int64(n) * pageSize
				}
			}
			if present {
				pos += int64(n) * pageSize
				// As it goes, not at the end: large pieces of free memory are what
				// the page file's large folios are made of.
				if pos-dropped >= dropStep {
					unix.Fadvise(int(in.Fd()), dropped, pos-dropped, unix.FADV_DONTNEED)
					dropped = pos
				}
			}
			addr += n * pageSize
			left -= n
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	unix.Fadvise(int(in.Fd()), 0, 0, unix.FADV_DONTNEED)
	if err := rest.Close(); err != nil {
		return err
	}
	return kept.write(c.dst)
}

// run says how many of the pages from addr on, at most left, are all inside
// one converted VMA (returned) or all outside of any (nil).
func run(maps []mapping, addr, left uint64) (*mapping, uint64) {
	i := sort.Search(len(maps), func(i int) bool { return maps[i].end > addr })
	if i == len(maps) {
		return nil, left
	}
	if m := &maps[i]; addr >= m.start {
		return m, min(left, (m.end-addr)/pageSize)
	}
	return nil, min(left, (maps[i].start-addr)/pageSize)
}

// slotWriter gathers runs into whole 2 MiB pieces of the page file: a piece
// that is written at once gets one large folio of page cache, which the kernel
// can map by a single entry. Absent pages of a piece that is at least half
// present are written as zeros for the same reason.
type slotWriter struct {
	out   *os.File
	piece int64 // offset of the piece in buf, a multiple of 2 MiB; valid if used > 0
	used  int   // bytes put into buf
	spans [][2]int
	buf   []byte
}

func (w *slotWriter) copy(in io.ReaderAt, from, to, n int64) error {
	if w.buf == nil {
		w.buf = make([]byte, hugeSize)
	}
	for n > 0 {
		piece := to &^ (hugeSize - 1)
		if w.used > 0 && piece != w.piece {
			if err := w.flush(); err != nil {
				return err
			}
		}
		w.piece = piece
		at := int(to - piece)
		k := int(min(n, int64(hugeSize-at)))
		if _, err := in.ReadAt(w.buf[at:at+k], from); err != nil {
			return fmt.Errorf("pages: %w", err)
		}
		w.spans = append(w.spans, [2]int{at, at + k})
		w.used += k
		from, to, n = from+int64(k), to+int64(k), n-int64(k)
	}
	return nil
}

func (w *slotWriter) flush() error {
	if w.used == 0 {
		return nil
	}
	spans := w.spans
	if w.used >= hugeSize/2 {
		spans = [][2]int{{0, hugeSize}}
	}
	for _, s := range spans {
		if _, err := w.out.WriteAt(w.buf[s[0]:s[1]], w.piece+int64(s[0])); err != nil {
			return fmt.Errorf("page file: %w", err)
		}
	}
	clear(w.buf)
	w.used, w.spans = 0, w.spans[:0]
	return nil
}
