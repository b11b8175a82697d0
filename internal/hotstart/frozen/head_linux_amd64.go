package frozen

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// Head is the state of a process at the end of its head: before it loads its data, and after it
// has made its last child. Each start executes the head. The started process then takes the
// place of the frozen one, and keeps the parts of its memory that its head has made and that
// the load does not change.
type Head struct {
	Path  string // of the open at which the head ends, as the process gives it
	Opens int    // of Path, before that
	Seed  [32]byte
	Regs  unix.PtraceRegs
	Maps  []HeadMap
	Files []HeadFile
	// Pid is the process, and Children are the processes that it has made, in order, as it knows them.
	Pid      int
	Children []int
	// Free are bytes of Maps that differ between preparations, and Kept are those of them
	// that each preparation still has when it is stopped.
	Free, Kept []Range

	dead Range // the part of the stack that is not in use
	rseq Range // see comparer.rseq
	open []open
}

// HeadMap is a mapping. It has contents if no other process sees it, apart from pages of a file that
// the process has not changed.
type HeadMap struct {
	Range
	Prot   int
	Shared bool
	Path   string
	Data   []byte
}

// HeadFile is a descriptor.
type HeadFile struct {
	FD     int
	Type   uint32 // unix.S_IFMT bits of its mode
	Flags  int
	Offset int64
	Size   int64
}

// maxHead is the size of the memory up to which a head is kept, bytes.
const maxHead = 64 << 20

// find returns the contents of the memory from addr on, to the end of its mapping at most.
func (h *Head) find(addr uint64) []byte {
	i, ok := slices.BinarySearchFunc(h.Maps, addr, func(m HeadMap, at uint64) int {
		switch {
		case m.End <= at:
			return -1
		case m.Start > at:
			return 1
		}
		return 0
	})
	if !ok || h.Maps[i].Data == nil {
		return nil
	}
	return h.Maps[i].Data[addr-h.Maps[i].Start:]
}

// byteAt returns the byte at an address.
func (h *Head) byteAt(addr uint64) (byte, bool) {
	b := h.find(addr)
	if len(b) == 0 {
		return 0, false
	}
	return b[0], true
}

// Bytes returns the contents of a range, which lies in one mapping.
func (h *Head) Bytes(r Range) []byte {
	b := h.find(r.Start)
	return b[:min(uint64(len(b)), r.Size())]
}

// Offset returns the offset of a descriptor at the end of the head.
func (h *Head) Offset(fd int) (HeadFile, bool) {
	i := slices.IndexFunc(h.Files, func(f HeadFile) bool { return f.FD == fd })
	if i < 0 {
		return HeadFile{}, false
	}
	return h.Files[i], true
}

// Keep notes ranges that a comparison has found to be kept.
func (h *Head) Keep(ranges []Range) { h.Kept = join(append(slices.Clone(h.Kept), ranges...)) }

// addByte adds an address to ranges that are in order.
func addByte(all []Range, addr uint64) []Range {
	if n := len(all); n > 0 && all[n-1].End == addr {
		all[n-1].End++
		return all
	}
	return append(all, Range{addr, addr + 1})
}

// join returns the ranges in order, with those that touch as one.
func join(all []Range) []Range {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Range) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	var joined []Range
	for _, r := range all {
		if n := len(joined); n > 0 && joined[n-1].End >= r.Start {
			joined[n-1].End = max(joined[n-1].End, r.End)
		} else {
			joined = append(joined, r)
		}
	}
	return joined
}

// within reports whether an address is in one of ranges that are in order.
func within(all []Range, addr uint64) bool {
	_, ok := slices.BinarySearchFunc(all, addr, func(r Range, at uint64) int {
		switch {
		case r.End <= at:
			return -1
		case r.Start > at:
			return 1
		}
		return 0
	})
	return ok
}

// ReadHead reads the state of a process with one thread that is stopped at the end of its head. It
// leaves out a mapping that belongs to its tracer, and the descriptors that the process has
// inherited. A state that cannot be compared with the state of another process is a *Refused.
func ReadHead(pid int, tracers Range, inherited []int) (*Head, error) {
	h := &Head{Pid: pid}
	if err := unix.PtraceGetRegs(pid, &h.Regs); err != nil {
		return nil, fmt.Errorf("ptrace registers of %d: %w", pid, err)
	}
	if tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err != nil {
		return nil, err
	} else if len(tasks) != 1 {
		return nil, refuse("it has threads before it loads its data")
	}
	rseq, err := (&tracer.Proc{Pid: pid}).Rseq(pid)
	if err == nil && rseq.Address != 0 {
		h.rseq = Range{rseq.Address, rseq.Address + uint64(max(rseq.Size, 32))}
	}
	layout, err := readLayout(pid)
	if err != nil {
		return nil, err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil, err
	}
	defer pagemap.Close()
	const redZone = 128
	total := uint64(0)
	for _, m := range layout {
		if m.Range == tracers || m.path == "[vdso]" || strings.HasPrefix(m.path, "[vvar") || m.path == "[vsyscall]" {
			continue
		}
		o := HeadMap{Range: m.Range, Prot: m.prot, Shared: m.shared, Path: m.path}
		if m.shared && m.prot&unix.PROT_WRITE != 0 {
			return nil, refuse("it has memory that it shares with its children (%s)", m.path)
		}
		if h.Regs.Rsp >= m.Start && h.Regs.Rsp < m.End {
			h.dead = Range{m.Start, h.Regs.Rsp - redZone}
			o.Start = h.Regs.Rsp &^ (pageSize - 1) // the kernel lets the stack grow
			o.Start -= pageSize
			o.Start = max(o.Start, m.Start)
			h.dead.Start = o.Start
		}
		private := []Extent{{0, int64(o.Size())}}
		if m.shared {
			private = nil
		} else if m.prot&unix.PROT_WRITE == 0 {
			if private, err = changed(pagemap, o.Range); err != nil {
				return nil, err
			}
		}
		if len(private) > 0 {
			if total += o.Size(); total > maxHead {
				return nil, refuse("it has much memory before it loads its data")
			}
			o.Data = make([]byte, o.Size())
			for _, e := range private {
				if _, err := mem.ReadAt(o.Data[e.Offset:e.Offset+e.Size], int64(o.Start)+e.Offset); err != nil {
					return nil, fmt.Errorf("read memory of process %d: %w", pid, err)
				}
			}
		}
		h.Maps = append(h.Maps, o)
	}
	if h.open, err = readDescriptors(pid); err != nil {
		return nil, err
	}
	h.open = slices.DeleteFunc(h.open, func(o open) bool { return slices.Contains(inherited, o.fd) })
	for _, o := range h.open {
		h.Files = append(h.Files, HeadFile{o.fd, o.st.Mode & unix.S_IFMT, o.flags, o.pos, o.st.Size})
	}
	return h, nil
}

// changed returns the pages of a private mapping of a file that the process has changed
// (pagemap in proc(5)).
func changed(pagemap *os.File, r Range) (all []Extent, err error) {
	entries := make([]byte, r.Size()/pageSize*8)
	if _, err := pagemap.ReadAt(entries, int64(r.Start/pageSize*8)); err != nil {
		return nil, fmt.Errorf("read the state of pages: %w", err)
	}
	const ofFile, swapped, present = 1 << 61, 1 << 62, 1 << 63
	for i := 0; i < len(entries); i += 8 {
		e := binary.NativeEndian.Uint64(entries[i:])
		if e&swapped == 0 && (e&present == 0 || e&ofFile != 0) {
			continue
		}
		at := int64(i / 8 * pageSize)
		if n := len(all); n > 0 && all[n-1].Offset+all[n-1].Size == at {
			all[n-1].Size += pageSize
		} else {
			all = append(all, Extent{at, pageSize})
		}
	}
	return all, nil
}

// clobbered are the registers that a system call changes, and its number.
var clobbered = []string{"Rax", "Rcx", "R11", "Orig_rax", "Eflags"}

// ids returns the numbers of the process and of its children, in two heads.
func (h *Head) ids(o *Head) [][2]uint64 {
	all := [][2]uint64{{uint64(h.Pid), uint64(o.Pid)}}
	for i := range min(len(h.Children), len(o.Children)) {
		all = append(all, [2]uint64{uint64(h.Children[i]), uint64(o.Children[i])})
	}
	return all
}

// alike returns the reason why two processes are not at the same place with the same memory layout
// and the same kinds of descriptors, or "".
func (h *Head) alike(o *Head) string {
	if a, b := len(h.Children), len(o.Children); a != b {
		return fmt.Sprintf("it has made %d processes instead of %d", b, a)
	}
	ra, rb := reflect.ValueOf(h.Regs), reflect.ValueOf(o.Regs)
	for i := range ra.NumField() {
		a, b, name := ra.Field(i).Uint(), rb.Field(i).Uint(), ra.Type().Field(i).Name
		if a != b && !slices.Contains(clobbered, name) && !slices.Contains(h.ids(o), [2]uint64{a, b}) {
			return fmt.Sprintf("register %s is %#x instead of %#x", strings.ToLower(name), b, a)
		}
	}
	describe := func(m HeadMap) string {
		return fmt.Sprintf("%#x-%#x, protection %d, shared %v %s", m.Start, m.End, m.Prot, m.Shared, m.Path)
	}
	for i := range max(len(h.Maps), len(o.Maps)) {
		switch {
		case i >= len(o.Maps):
			return "it does not have the memory " + describe(h.Maps[i])
		case i >= len(h.Maps):
			return "it has the memory " + describe(o.Maps[i])
		case describe(h.Maps[i]) != describe(o.Maps[i]):
			return fmt.Sprintf("it has the memory %s instead of %s", describe(o.Maps[i]), describe(h.Maps[i]))
		}
	}
	own := func(f HeadFile) HeadFile { f.Offset, f.Size = 0, 0; return f }
	if !slices.EqualFunc(h.Files, o.Files, func(a, b HeadFile) bool { return own(a) == own(b) }) {
		return "it has other open files"
	}
	return ""
}

// differ calls f for each byte in use that differs between two heads that are alike.
func (h *Head) differ(o *Head, f func(addr uint64)) {
	for i, m := range h.Maps {
		other := o.Maps[i].Data
		for page := 0; page < len(m.Data); page += pageSize {
			a, b := m.Data[page:page+pageSize], other[page:page+pageSize]
			if bytes.Equal(a, b) {
				continue
			}
			for k := range a {
				if addr := m.Start + uint64(page+k); a[k] != b[k] && !h.unused(addr) && !(k%4 == 3 && ofProcessor(m.Data, page+k-3)) {
					f(addr)
				}
			}
		}
	}
}

// unused reports whether the value of a byte does not matter.
func (h *Head) unused(addr uint64) bool {
	return addr >= h.dead.Start && addr < h.dead.End || addr >= h.rseq.Start && addr < h.rseq.End
}

// ofProcessor reports whether the four bytes at an offset are a copy of register EBX of CPUID: see
// comparer.processor.
func ofProcessor(data []byte, at int) bool {
	if at < 4 || at+12 > len(data) {
		return false
	}
	r := version()
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(data[at:]) }
	return word(at-4) == r[0] && word(at)<<8 == r[1]<<8 && word(at+4) == r[2] && word(at+8) == r[3]
}

// With notes the bytes in which the head of another preparation differs. The number of a process has
// another value in each start.
func (h *Head) With(o *Head) error {
	if reason := h.alike(o); reason != "" {
		return refuse("before it loads its data, its state depends on its late words: %s", reason)
	}
	free := slices.Clone(h.Free)
	h.differ(o, func(addr uint64) {
		free = addByte(free, addr)
		number := Range{addr &^ 3, addr&^3 + 4}
		a, b := binary.LittleEndian.Uint32(h.Bytes(number)), binary.LittleEndian.Uint32(o.Bytes(number))
		if slices.Contains(h.ids(o), [2]uint64{uint64(a), uint64(b)}) {
			free = append(free, number)
		}
	})
	h.Free = join(free)
	return nil
}

// Without notes ranges that a start overwrites, and the late words that the head has in the
// places in which the head of another preparation has its own.
func (h *Head) Without(o *Head, words *Words, overwritten []Range) {
	free := append(slices.Clone(h.Free), overwritten...)
	for i, m := range h.Maps {
		if len(m.Data) == 0 || bytes.Equal(m.Data, o.Maps[i].Data) {
			continue
		}
		for _, s := range words.Exchange(m.Data, bytes.Clone(o.Maps[i].Data)) {
			free = append(free, Range{m.Start + uint64(s.At), m.Start + uint64(s.At+s.Length)})
		}
	}
	h.Free = join(free)
}

// Check returns the reason why the process with the head o cannot take the place of the frozen
// process, or "".
func (h *Head) Check(o *Head) string {
	if reason := h.alike(o); reason != "" {
		return reason
	}
	reason := ""
	h.differ(o, func(addr uint64) {
		if reason == "" && !o.unused(addr) && !within(h.Free, addr) {
			word := Range{addr &^ 7, addr&^7 + 8}
			reason = fmt.Sprintf("before it loads its data, its memory at %#x differs from its preparations: %x instead of %x", addr, o.Bytes(word), h.Bytes(word))
			if text := near(o.find(addr&^4095), int(addr&4095)); text != "" {
				reason += fmt.Sprintf(", near %q", text)
			}
		}
	})
	return reason
}

// confirm explains the words of a part of a VMA, which begins at offset at of it, that the processes
// kept from their heads. It refuses the bytes that both processes of an earlier comparison kept, and
// the second one of this comparison did not.
func (c *comparer) confirm(v *VMA, at int64, a, b []byte) {
	begin := v.Start + uint64(at)
	for _, r := range c.keeps {
		for addr := max(r.Start, begin); addr < min(r.End, begin+uint64(len(a))); addr++ {
			if now, ok := c.heads[1].byteAt(addr); !ok || now != b[addr-begin] {
				off := int(addr-begin) &^ 7
				c.unexplained(c.describe(v, at, a, b, off, off+8))
			}
		}
	}
	if c.heads[0] == nil || c.heads[1] == nil {
		return
	}
	// A start can have another byte also where these two have the same, as within a path.
	for _, r := range c.heads[0].Free {
		for addr := max(r.Start, begin); addr < min(r.End, begin+uint64(len(a))); addr++ {
			ha, inA := c.heads[0].byteAt(addr)
			hb, inB := c.heads[1].byteAt(addr)
			if inA && inB && a[addr-begin] == ha && b[addr-begin] == hb {
				c.out.Kept = addByte(c.out.Kept, addr)
			}
		}
	}
	for page := 0; page < len(a); page += pageSize {
		if bytes.Equal(a[page:page+pageSize], b[page:page+pageSize]) {
			continue
		}
		for off := page; off < page+pageSize; off += 8 {
			if binary.LittleEndian.Uint64(a[off:]) != binary.LittleEndian.Uint64(b[off:]) {
				c.kept(v, at, a, b, off)
			}
		}
	}
}

// kept reports whether both processes had their bytes of a word of a part of a VMA, at offset off of
// the part, at the end of their heads, and makes b equal to a there.
func (c *comparer) kept(v *VMA, at int64, a, b []byte, off int) bool {
	if c.heads[0] == nil || c.heads[1] == nil {
		return false
	}
	addr := v.Start + uint64(at) + uint64(off)
	word := Range{addr, addr + 8}
	ha, hb := c.heads[0].Bytes(word), c.heads[1].Bytes(word)
	if len(ha) < 8 || len(hb) < 8 {
		return false
	}
	for k := range 8 {
		if x, y := a[off+k], b[off+k]; x != y && (x != ha[k] || y != hb[k]) {
			return false
		}
	}
	c.explain(RuleHead, v, at, a, b, off)
	copy(b[off:off+8], a[off:off+8])
	return true
}

// WithHead returns b with the descriptors that a process has at the end of its head. A started
// process has them, too.
func (b Base) WithHead(h *Head) Base {
	b.files = slices.Clone(b.files)
	for _, o := range h.open {
		if !slices.ContainsFunc(b.files, func(e open) bool { return e.fd == o.fd }) {
			b.files = append(b.files, o)
		}
	}
	return b
}

// TakeOver turns p, which is held at the end of its head, into the frozen process. The rest is as
// for Start; the page file is at Options.Pages. An error leaves p unusable.
func (im *Image) TakeOver(p *tracer.Proc, live *Head, opt Options) error {
	if err := forget(p, im.Actions); err != nil {
		return err
	}
	opt.Inherited, opt.Children = slices.Clone(opt.Inherited), live.Children
	for _, f := range live.Files {
		opt.Inherited = append(opt.Inherited, f.FD)
	}
	if err := im.Start(p, opt); err != nil {
		return err
	}
	// Some of this memory is read-only.
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.Pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	for _, r := range im.Head.Kept {
		if _, err := mem.WriteAt(live.Bytes(r), int64(r.Start)); err != nil {
			return fmt.Errorf("write what the process had at %#x: %w", r.Start, err)
		}
	}
	return nil
}

// forget takes away the state of the kernel that a process does not have at its first
// instruction, and that Start does not replace. actions are the actions that it is going to have.
func forget(p *tracer.Proc, actions []Action) error {
	call := func(what string, nr uint64, args ...uint64) error {
		if _, err := p.Syscall(nr, args...); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	rseq, err := p.Rseq(p.Pid)
	if err == nil && rseq.Address != 0 {
		const unregister = 1 // RSEQ_FLAG_UNREGISTER
		if err := call("unregister restartable sequences", unix.SYS_RSEQ, rseq.Address, uint64(rseq.Size), unregister, uint64(rseq.Signature)); err != nil {
			return err
		}
	}
	zero, err := p.Alloc(pageSize)
	if err != nil {
		return err
	}
	for which := range uint64(3) { // ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF
		if err := call("stop a timer", unix.SYS_SETITIMER, which, zero, 0); err != nil {
			return err
		}
	}
	const disable = 2 // SS_DISABLE
	if err := p.Write(zero+8, []byte{disable}); err != nil {
		return err
	}
	if err := call("take the signal stack away", unix.SYS_SIGALTSTACK, zero, 0); err != nil {
		return err
	}
	if err := p.Write(zero+8, []byte{0}); err != nil {
		return err
	}
	st, err := status(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		return err
	}
	for _, key := range []string{"SigIgn", "SigCgt"} {
		mask, err := strconv.ParseUint(st[key], 16, 64)
		if err != nil {
			return fmt.Errorf("%s of process %d: %w", key, p.Pid, err)
		}
		for ; mask != 0; mask &= mask - 1 {
			signal := bits.TrailingZeros64(mask) + 1
			if slices.ContainsFunc(actions, func(a Action) bool { return a.Signal == signal }) {
				continue
			}
			if err := call("reset the action of a signal", unix.SYS_RT_SIGACTION, uint64(signal), zero, 0, 8); err != nil {
				return err
			}
		}
	}
	return p.Free(zero, pageSize)
}
