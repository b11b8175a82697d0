package frozen

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// version executes CPUID for leaf 1, and returns EAX, EBX, ECX and EDX.
func version() [4]uint32

// cycles reads the time-stamp counter.
func cycles() uint64

// maxListed is how many differences of a kind are listed.
const maxListed = 1000

// Compare compares two frozen processes of the same program, whose random bytes
// were the same. The kernel's vvar and vdso are not compared, and neither are
// pages of files that no process has changed.
//
// A difference is explained by the first of the rules that holds for its aligned
// word of 8 bytes.
func Compare(a, b *Image, pagesA, pagesB io.ReaderAt, facts Facts) (*Comparison, error) {
	c := &comparer{im: [2]*Image{a, b}, pages: [2]io.ReaderAt{pagesA, pagesB}, prep: [2]Preparation{facts.A, facts.B}, out: &Comparison{}, groups: map[string]*Group{}, modules: map[string]*module{},
		words: NewWords(facts.Words), free: facts.Free, heads: facts.Heads, keeps: facts.Kept, known: facts.Dates, further: facts.Further, confirmed: facts.Confirmed, rewrites: facts.Rewrites}
	if facts.Late != nil {
		c.written = *facts.Late
		var err error
		if c.im[0], err = a.With(facts.Late); err != nil {
			return nil, err
		}
	}
	for i := range c.prep {
		p := &c.prep[i]
		if p.Threads == nil {
			for _, t := range c.im[i].Threads {
				p.Threads = append(p.Threads, t.Tid)
			}
		}
		if len(p.Threads) != len(c.im[i].Threads) {
			return nil, fmt.Errorf("compare: %d thread ids for %d threads", len(p.Threads), len(c.im[i].Threads))
		}
	}
	if a, b := len(facts.A.Children), len(facts.B.Children); a != b {
		return nil, fmt.Errorf("compare: %d children, and %d", a, b)
	}
	if c.prep[0].Pid == c.prep[1].Pid || c.prep[0].Pid == 0 || c.prep[1].Pid == 0 {
		return nil, errors.New("compare: the preparations must have different process ids")
	}
	if c.out.Layout = layouts(a, b); len(c.out.Layout) > 0 {
		return c.out, nil
	}
	c.stacks()
	c.state()
	for i := range a.Threads {
		c.thread(i)
	}
	if c.rewrites {
		if err := c.findRand(); err != nil {
			return nil, err
		}
	}
	for i := range a.Maps {
		if err := c.vma(i, c.bytes); err != nil {
			return nil, err
		}
	}
	if c.rand != nil {
		c.out.Generator = c.rand.generator()
	}
	for _, rule := range []string{RuleDeadStack, RuleProcessID, RuleThreadID, RuleDevice, RuleClock, RuleDate, RuleStatus, RuleSeed, RuleDirectory, RuleYear, RuleRseq, RuleProcessor, RuleWord, RuleVectors, RuleHead} {
		if g := c.groups[rule]; g != nil {
			c.out.Explained = append(c.out.Explained, *g)
		}
	}
	return c.out, nil
}

// layouts names the differences of two layouts.
func layouts(a, b *Image) []string {
	var all []string
	if len(a.Threads) != len(b.Threads) {
		all = append(all, fmt.Sprintf("%d threads, and %d", len(a.Threads), len(b.Threads)))
	}
	describe := func(im *Image) map[string]bool {
		set := map[string]bool{}
		for i := range im.Maps {
			v := &im.Maps[i]
			kind := "private"
			if v.Shared {
				kind = "shared"
			}
			offset, name := v.Offset, where(v)
			if v.Kind == KindShared && PerfData(name) {
				name = filepath.Dir(name) // the file is called by the process id
			}
			if v.Path == "" || v.Path[0] != '/' {
				offset = 0
			}
			set[fmt.Sprintf("%#x-%#x %s %s, protection %d, offset %#x, flags %v %v %v %v", v.Start, v.End, name, kind, v.Prot, offset, v.Grows, v.Reserves, v.Locked, v.Advice)] = true
		}
		set[fmt.Sprintf("%#x-%#x [vdso]", im.Memory.VDSO.Start, im.Memory.VDSO.End)] = true
		for _, r := range im.Memory.VVAR {
			set[fmt.Sprintf("%#x-%#x [vvar]", r.Start, r.End)] = true
		}
		return set
	}
	inA, inB := describe(a), describe(b)
	for key := range inA {
		if !inB[key] {
			all = append(all, "only in the first: "+key)
		}
	}
	for key := range inB {
		if !inA[key] {
			all = append(all, "only in the second: "+key)
		}
	}
	slices.Sort(all)
	return all
}

// where names a mapping.
func where(v *VMA) string {
	if v.Path == "" {
		return "anonymous"
	}
	return v.Path
}

type comparer struct {
	im      [2]*Image
	pages   [2]io.ReaderAt
	prep    [2]Preparation
	out     *Comparison
	groups  map[string]*Group
	dead    []Range // stack that no thread uses
	modules map[string]*module
	dates   *Dates
	known   []DatePlace
	// further and confirmed are from Facts.
	further, confirmed, rewrites bool
	rand                         *randPair // nil: it was not seeded, or with a fixed value
	words                        *Words
	free                         []Range
	heads                        [2]*Head
	keeps                        []Range
	written                      Late
}

// stacks finds the dead parts of stacks.
//
// A thread writes the memory below its stack pointer before it reads it. The red zone
// of 128 bytes directly below the pointer is an exception: a function may use it
// without moving the pointer (System V ABI, AMD64 supplement, 3.2.2). This holds only
// in memory that is used only as a stack: the VMA that the kernel grows, and a VMA as
// the C library makes it, which begins at a guard and ends with the thread's control
// block. A stack within other memory, for example of a coroutine, is not covered.
func (c *comparer) stacks() {
	const redZone = 128
	a, b := c.im[0], c.im[1]
	for i := range a.Threads {
		t, u := &a.Threads[i], &b.Threads[i]
		for j := range a.Maps {
			v := &a.Maps[j]
			inside := func(addr uint64) bool { return addr >= v.Start && addr < v.End }
			if !inside(t.Regs.Rsp) || !inside(u.Regs.Rsp) {
				continue
			}
			low := min(t.Regs.Rsp, u.Regs.Rsp)
			own := v.Grows
			if !own && j > 0 && v.Path == "" {
				guard := &a.Maps[j-1]
				own = guard.End == v.Start && guard.Prot == 0 && t.TidAddress > t.Regs.Rsp && inside(t.TidAddress) &&
					t.Regs.Fs_base > t.Regs.Rsp && inside(t.Regs.Fs_base)
			}
			if own && low-redZone > v.Start {
				c.dead = append(c.dead, Range{v.Start, low - redZone})
			}
		}
	}
}

// state compares the state of the images other than memory and threads.
func (c *comparer) state() {
	a, b := *c.im[0], *c.im[1]
	for _, im := range []*Image{&a, &b} {
		im.Dir, im.Maps, im.Threads, im.PageBytes, im.Pieces, im.Ids = "", nil, nil, 0, nil, nil
		im.Boot, im.RegisterIds, im.Clocks, im.Dates, im.Stopped = "", nil, nil, nil, Moment{}
		im.Statuses, im.Generator, im.WorkDirs, im.Head = nil, nil, nil, nil
		im.Timers, im.Files = withoutRest(im.Timers, im.Files)
	}
	if c.rewrites {
		a.Env, b.Env = withoutDir(a.Env, c.prep[0].Dir), withoutDir(b.Env, c.prep[1].Dir)
	}
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		x, y := va.Field(i).Interface(), vb.Field(i).Interface()
		if !reflect.DeepEqual(x, y) {
			c.unexplained(Difference{Where: "state " + va.Type().Field(i).Name, A: clip(fmt.Sprintf("%v", x)), B: clip(fmt.Sprintf("%v", y)), At: -1})
		}
	}
}

// withoutRest returns timers and files in which each timer that is armed has the same time
// left. This time depends on the speed of the preparation.
func withoutRest(timers []IntervalTimer, files []File) ([]IntervalTimer, []File) {
	timers, files = slices.Clone(timers), slices.Clone(files)
	for i := range timers {
		forgetRest(&timers[i].Raw)
	}
	for i := range files {
		if files[i].Kind == FileTimer {
			forgetRest(&files[i].Value)
		}
	}
	return timers, files
}

// forgetRest sets the time left in a struct itimerval or itimerspec to one second, unless
// it is zero.
func forgetRest(raw *[32]byte) {
	left := raw[16:]
	if !bytes.Equal(left, make([]byte, len(left))) {
		clear(left)
		left[0] = 1
	}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "..."
	}
	return s
}

// thread compares the registers and the other state of a thread.
func (c *comparer) thread(i int) {
	t, u := c.im[0].Threads[i], c.im[1].Threads[i]
	name := func(what string) string { return fmt.Sprintf("%s of thread %d", what, i) }
	ra, rb := reflect.ValueOf(t.Regs), reflect.ValueOf(u.Regs)
	for k := range ra.NumField() {
		x, y := ra.Field(k).Uint(), rb.Field(k).Uint()
		if x == y {
			continue
		}
		d := Difference{Where: name("register " + strings.ToLower(ra.Type().Field(k).Name)), A: fmt.Sprintf("%#x", x), B: fmt.Sprintf("%#x", y), At: -1}
		w := words{a: [3]uint64{1: x}, b: [3]uint64{1: y}}
		if id := c.idOf(x, y); id >= 0 {
			c.out.RegisterIds = append(c.out.RegisterIds, RegisterId{i, k, id})
			c.explained(RuleThreadID, d)
		} else if c.offset(i, k, x, y) {
			c.explained(RuleWord, d)
		} else if c.clock(w, ClockPlace{Thread: i, Register: k}) {
			c.explained(RuleClock, d)
		} else {
			c.unexplained(d)
		}
	}
	if len(t.Xstate) == len(u.Xstate) {
		t.Xstate, u.Xstate = slices.Clone(t.Xstate), slices.Clone(u.Xstate)
		if c.inCall(i) && forgetVectors(t.Xstate, u.Xstate) {
			c.explained(RuleVectors, Difference{Where: name("extended state"), At: -1})
		}
		c.places(c.words.Exchange(t.Xstate, u.Xstate), WordPlace{Thread: i, Xstate: true}, name("extended state"))
	}
	for at := 0; at+8 <= min(len(t.Xstate), len(u.Xstate)); at += 8 {
		const inUse = 512 // XSTATE_BV: which parts the processor has saved; ptrace(2) shows the others too
		if at == inUse {
			continue
		}
		w := words{}
		w.a[1], w.b[1] = binary.LittleEndian.Uint64(t.Xstate[at:]), binary.LittleEndian.Uint64(u.Xstate[at:])
		if w.a[1] == w.b[1] {
			continue
		}
		d := Difference{Where: name("extended state"), Offset: uint64(at), Length: 8, A: fmt.Sprintf("%x", t.Xstate[at:at+8]), B: fmt.Sprintf("%x", u.Xstate[at:at+8]), At: -1}
		if _, ok := clockPlace(w.a[1], w.b[1], c.prep[0].Began, c.prep[1].Began); ok {
			c.explained(RuleClock, d)
		} else {
			c.unexplained(d)
		}
	}
	t.Regs, u.Regs = unix.PtraceRegs{}, unix.PtraceRegs{}
	if len(t.Xstate) == len(u.Xstate) {
		t.Xstate, u.Xstate = nil, nil
	}
	t.Tid, u.Tid = 0, 0
	va, vb := reflect.ValueOf(t), reflect.ValueOf(u)
	for k := range va.NumField() {
		if x, y := va.Field(k).Interface(), vb.Field(k).Interface(); !reflect.DeepEqual(x, y) {
			c.unexplained(Difference{Where: name(va.Type().Field(k).Name), A: clip(fmt.Sprintf("%v", x)), B: clip(fmt.Sprintf("%v", y)), At: -1})
		}
	}
}

// findRand finds the generator of rand(3) in the data of the C library or of a static program.
func (c *comparer) findRand() error {
	const largest = 16 << 20
	for i := range c.im[0].Maps {
		v := &c.im[0].Maps[i]
		if c.rand != nil || v.Shared || v.Size() > largest || !strings.HasPrefix(v.Path, "/") {
			continue
		}
		tries := 0
		err := c.vma(i, func(v *VMA, at int64, a, b []byte) {
			for off := 0; off+randSize <= len(a) && c.rand == nil && tries < 100; off += 8 {
				if x := a[off : off+4]; binary.LittleEndian.Uint32(x) == randMark && bytes.Equal(x, b[off:off+4]) && !bytes.Equal(a[off:off+randSize], b[off:off+randSize]) {
					tries++
					c.rand, _ = findRand(c.prep, v.Start+uint64(at), a, b, off)
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// random reports whether a word of a part of a VMA, at offset off of the part, belongs to the
// generator of rand(3) or to a name with one of its results, and makes b equal to a there.
func (c *comparer) random(v *VMA, at int64, a, b []byte, off int) bool {
	if c.rand == nil {
		return false
	}
	start := v.Start + uint64(at)
	if from := int64(c.rand.address - start); c.rand.address >= start && from+randSize <= int64(len(a)) && int64(off) >= from && int64(off) < from+randSize {
		copy(b[from:from+randSize], a[from:])
	} else if !c.rand.name([2]int{c.prep[0].Pid, c.prep[1].Pid}, start, a, b, off) {
		return false
	}
	c.explain(RuleSeed, v, at, a, b, off)
	return true
}

// workDir finds the path of the working directory in the environment around a word of a part
// of a VMA, at offset off of the part, and makes b equal to a there.
func (c *comparer) workDir(v *VMA, at int64, a, b []byte, off int) bool {
	m, addr := &c.im[0].Memory, v.Start+uint64(at)+uint64(off)
	if !c.rewrites || addr+8 <= m.EnvStart || addr >= m.EnvEnd {
		return false
	}
	place, ok := findDir([2]string{c.prep[0].Dir, c.prep[1].Dir}, v.Start+uint64(at), a, b, off)
	if ok {
		c.out.WorkDirs = append(c.out.WorkDirs, place)
		c.explain(RuleDirectory, v, at, a, b, off)
	}
	return ok
}

// vma calls compare for the parts of one mapping whose contents may differ.
func (c *comparer) vma(i int, compare func(v *VMA, at int64, a, b []byte)) error {
	va, vb := &c.im[0].Maps[i], &c.im[1].Maps[i]
	if len(va.Data) == 0 && len(vb.Data) == 0 {
		return nil
	}
	pa, pb := relative(c.im[0], va), relative(c.im[1], vb)
	bufA, bufB := make([]byte, pieceSize), make([]byte, pieceSize)
	for _, e := range differing(pa, pb, func(e Extent) bool { return c.writes(va, e) }) {
		for at := e.Offset; at < e.Offset+e.Size; at += pieceSize {
			n := min(pieceSize, e.Offset+e.Size-at)
			if err := c.content(0, va, at, bufA[:n]); err != nil {
				return err
			}
			if err := c.content(1, vb, at, bufB[:n]); err != nil {
				return err
			}
			c.out.Read += n
			c.confirm(va, at, bufA[:n], bufB[:n])
			c.late(va, at, bufA[:n], bufB[:n])
			compare(va, at, bufA[:n], bufB[:n])
		}
	}
	return nil
}

// relative returns the pieces of a VMA, with offsets from its start.
func relative(im *Image, v *VMA) []Piece {
	if len(v.Data) == 0 {
		return nil
	}
	first, _ := slices.BinarySearchFunc(im.Pieces, v.Page, func(p Piece, at int64) int { return int(min(max(p.Offset-at, -1), 1)) })
	var all []Piece
	for _, p := range im.Pieces[first:] {
		if p.Offset >= v.Page+int64(v.Size()) {
			break
		}
		p.Offset -= v.Page
		all = append(all, p)
	}
	return all
}

// differing returns the parts that the pieces of two VMAs cover. It leaves out parts
// whose pieces are equal, unless wanted returns true for them.
func differing(a, b []Piece, wanted func(Extent) bool) []Extent {
	var all []Extent
	inB := map[Piece]bool{}
	for _, p := range b {
		inB[p] = true
	}
	for _, p := range a {
		if inB[p] && !wanted(p.Extent) {
			delete(inB, p)
		} else {
			all = append(all, p.Extent)
		}
	}
	for p := range inB {
		all = append(all, p.Extent)
	}
	slices.SortFunc(all, func(x, y Extent) int { return int(min(max(x.Offset-y.Offset, -1), 1)) })
	merged := all[:0]
	for _, e := range all {
		if last := len(merged) - 1; last >= 0 && merged[last].Offset+merged[last].Size >= e.Offset {
			merged[last].Size = max(merged[last].Size, e.Offset+e.Size-merged[last].Offset)
		} else {
			merged = append(merged, e)
		}
	}
	return merged
}

// content reads a part of a VMA as a started process would see it.
func (c *comparer) content(i int, v *VMA, at int64, b []byte) error {
	clear(b)
	if v.Kind == KindPaged {
		return readSparse(c.pages[i], b, v.Page+at)
	}
	if v.Kind == KindFile {
		f, err := os.Open(v.Path)
		if err != nil {
			return fmt.Errorf("compare: %w", err)
		}
		err = readSparse(f, b, v.Offset+at)
		f.Close()
		if err != nil {
			return err
		}
	}
	for _, e := range v.Data {
		lo, hi := max(e.Offset, at), min(e.Offset+e.Size, at+int64(len(b)))
		if lo < hi {
			if err := readSparse(c.pages[i], b[lo-at:hi-at], v.Page+lo); err != nil {
				return err
			}
		}
	}
	return nil
}

// readSparse reads b, of which a part may be beyond the end of the file.
func readSparse(f io.ReaderAt, b []byte, at int64) error {
	if _, err := f.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("compare: %w", err)
	}
	return nil
}

// words are a word of 8 bytes in both memories, and its neighbours on either side.
type words struct{ a, b [3]uint64 }

// bytes compares a part of a VMA, which begins at offset at of it.
func (c *comparer) bytes(v *VMA, at int64, a, b []byte) {
	last := -1 // end of the unexplained run that is being gathered
	begin := 0
	flush := func() {
		if last >= 0 {
			c.unexplained(c.describe(v, at, a, b, begin, last))
			last = -1
		}
	}
	word := func(x []byte, off int) uint64 {
		if off < 0 || off+8 > len(x) {
			return 0
		}
		return binary.LittleEndian.Uint64(x[off:])
	}
	for page := 0; page < len(a); page += pageSize {
		if bytes.Equal(a[page:page+pageSize], b[page:page+pageSize]) {
			continue
		}
		for off := page; off < page+pageSize; off += 8 {
			var w words
			if w.a[1], w.b[1] = word(a, off), word(b, off); w.a[1] == w.b[1] {
				continue
			}
			for k := range 3 {
				w.a[k], w.b[k] = word(a, off+8*(k-1)), word(b, off+8*(k-1))
			}
			addr := v.Start + uint64(at) + uint64(off)
			rule := c.rule(addr, w)
			if rule == "" && c.processor(v, addr, w) {
				rule = RuleProcessor
			}
			if rule == "" && c.year(w) {
				rule = RuleYear
			}
			if rule == "" && (c.status(v, at, a, b, off) || c.random(v, at, a, b, off) || c.workDir(v, at, a, b, off) || c.date(v, at, a, b, off) || c.kept(v, at, a, b, off)) {
				continue
			}
			if rule != "" {
				c.explain(rule, v, at, a, b, off)
				if slices.Contains(noise, rule) && len(c.out.Noise) < maxNoise {
					c.out.Noise = append(c.out.Noise, Patch{addr, [8]byte(b[off : off+8])})
				}
				continue
			}
			if c.short(v, at, a, b, off) {
				continue
			}
			if off != last {
				flush()
				begin = off
			}
			last = off + 8
		}
	}
	flush()
}

// rule names the rule that explains a difference, or returns "".
func (c *comparer) rule(addr uint64, w words) string {
	for _, r := range c.dead {
		if addr >= r.Start && addr+8 <= r.End {
			return RuleDeadStack
		}
	}
	if rule := c.ids(addr, w); rule != "" {
		return rule
	}
	if a, b := c.prep[0].Device, c.prep[1].Device; a != b && w.a[1] == a && w.b[1] == b {
		// As the dynamic linker keeps it, to know files again.
		c.out.Devices = append(c.out.Devices, addr)
		return RuleDevice
	}
	if c.clock(w, ClockPlace{Address: addr}) {
		return RuleClock
	}
	if c.rseq(addr) {
		return RuleRseq
	}
	return ""
}

// idOf returns the index of the thread whose id is x in the one preparation and y in the
// other, or -1. Behind the threads it counts the children.
func (c *comparer) idOf(x, y uint64) int {
	if x == uint64(c.prep[0].Pid) && y == uint64(c.prep[1].Pid) {
		return 0
	}
	for i, tid := range c.prep[0].Threads {
		if x == uint64(tid) && y == uint64(c.prep[1].Threads[i]) {
			return i
		}
	}
	for i, child := range c.prep[0].Children {
		if x == uint64(child) && y == uint64(c.prep[1].Children[i]) {
			return len(c.prep[0].Threads) + i
		}
	}
	return -1
}

// ids finds ids of threads in the two halves of a word. A value is an id if it is the
// id of the same thread in both memories, and the two ids differ. The program has then
// written its present id to this place, and Start does the same. A word with an id and
// other bits is not explained. A robust mutex with waiters has this form.
func (c *comparer) ids(addr uint64, w words) string {
	var found []IdPlace
	for _, shift := range []int{8, 16, 24} { // of a packed struct
		if rest := ^(uint64(1<<32-1) << shift); w.a[1]&rest != w.b[1]&rest {
			continue
		}
		if thread := c.idOf(uint64(uint32(w.a[1]>>shift)), uint64(uint32(w.b[1]>>shift))); thread >= 0 {
			found = append(found, IdPlace{addr + uint64(shift/8), thread})
			break
		}
	}
	for half := range 2 {
		x, y := uint32(w.a[1]>>(32*half)), uint32(w.b[1]>>(32*half))
		if x == y || len(found) > 0 && found[0].Address != addr {
			continue
		}
		thread := c.idOf(uint64(x), uint64(y))
		if thread < 0 {
			return ""
		}
		found = append(found, IdPlace{addr + 4*uint64(half), thread})
	}
	if len(found) == 0 {
		return ""
	}
	c.out.Ids = append(c.out.Ids, found...)
	if slices.ContainsFunc(found, func(p IdPlace) bool { return p.Thread > 0 }) {
		return RuleThreadID
	}
	return RuleProcessID
}

// clock reports whether a word is a time in both memories. The clocks of the preparations
// (tracer.Clock) advance in the same way, and differ by whole seconds. So a time in any
// unit differs by exactly this amount, and durations, CPU times and fractions of a
// second are equal. A number that the program computes from a time, for example a date
// or a seed, is not a time.
//
// A word is a count of nanoseconds, microseconds, milliseconds, hundredths of a second or
// seconds, a count of seconds in one half, a floating-point number of seconds, or a
// value of the time-stamp counter. The program may keep a time and print it later. The
// proof of outputs finds this, since its start has the clock words of the second
// preparation.
func (c *comparer) clock(w words, at ClockPlace) bool {
	p, ok := clockPlace(w.a[1], w.b[1], c.prep[0].Began, c.prep[1].Began)
	if !ok || len(c.out.Clocks) == maxNoise {
		return false
	}
	p.Address, p.Thread, p.Register = at.Address, at.Thread, at.Register
	c.out.Clocks = append(c.out.Clocks, p)
	return true
}

// noise has the rules for values that may differ because no program depends on them.
var noise = []string{RuleDeadStack, RuleYear, RuleProcessor}

// status finds the status of an input around a word of a part of a VMA, at offset off of the
// part, and makes b equal to a there.
func (c *comparer) status(v *VMA, at int64, a, b []byte, off int) bool {
	place, ok := findStatus([2][]Input{c.prep[0].Inputs, c.prep[1].Inputs}, v.Start+uint64(at), a, b, off)
	if ok {
		c.out.Statuses = append(c.out.Statuses, place)
		c.explain(RuleStatus, v, at, a, b, off)
	}
	return ok
}

// date finds the times around a word of a part of a VMA, at offset off of the part, and makes
// b equal to a there. It reports whether they are all of the difference.
func (c *comparer) date(v *VMA, at int64, a, b []byte, off int) bool {
	const reach = 64
	if c.further || len(c.out.Unexplained) >= maxListed || len(c.out.Dates) == maxNoise {
		return false
	}
	if c.dates == nil {
		c.dates = NewDates(c.prep[0].Began, c.prep[1].Began, c.im[0].Env)
		c.dates.Short = c.confirmed
	}
	lo, hi := max(0, off-reach), min(len(a), off+8+reach)
	left := bytes.Clone(b[lo:hi])
	found := c.dates.exchange(a[lo:hi], left, off-lo, off-lo+8)
	if !bytes.Equal(a[off:off+8], left[off-lo:off-lo+8]) {
		return false
	}
	for _, d := range found {
		place := DatePlace{Address: v.Start + uint64(at) + uint64(lo+d.At), Date: d}
		place.At = 0
		c.out.Dates = append(c.out.Dates, place)
	}
	c.explain(RuleDate, v, at, a, b, off)
	copy(b[lo:hi], left)
	return true
}

// year reports whether a word belongs to the pair of the start time and the number of the
// present year, in both preparations. The GNU C library keeps this pair for a time zone
// without a file, and computes it again if the year changes (tzset.c, compute_change).
func (c *comparer) year(w words) bool {
	a, b := c.prep[0].Began.Realtime, c.prep[1].Began.Realtime
	return isYear(a, b, [2]uint64{w.a[1], w.b[1]}, [2]uint64{w.a[2], w.b[2]}) ||
		isYear(a, b, [2]uint64{w.a[0], w.b[0]}, [2]uint64{w.a[1], w.b[1]}) && w.a[1]>>32 == w.b[1]>>32
}

// isYear reports whether two preparations have the start times and numbers of the years in
// which they began, in one time zone.
func isYear(beganA, beganB int64, start, year [2]uint64) bool {
	var offset [2]int64
	for i, began := range []int64{beganA, beganB} {
		t := time.Unix(0, began).UTC()
		offset[i] = int64(start[i]) - time.Date(int(int32(year[i])), 1, 1, 0, 0, 0, 0, time.UTC).Unix()
		const zone = 15 * 60 * 60                // s; no zone is as far from UTC
		next := t.Add(zone * time.Second).Year() // near the end of a year
		last := t.Add(-zone * time.Second).Year()
		if y := int(int32(year[i])); y != next && y != last || offset[i] <= -zone || offset[i] >= zone {
			return false
		}
	}
	return offset[0] == offset[1]
}

// Apply writes patches to the memory of a process that is held.
func Apply(pid int, patches []Patch) error {
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	for _, p := range patches {
		if _, err := mem.WriteAt(p.Data[:], int64(p.Address)); err != nil {
			return fmt.Errorf("write memory of process %d at %#x: %w", pid, p.Address, err)
		}
	}
	return nil
}

func (w words) pick(i int) [3]uint64 {
	if i == 0 {
		return w.a
	}
	return w.b
}

// rseq reports whether the kernel rewrites a word each time it schedules a thread. These
// words are the numbers of the processor, the node and the memory context in struct rseq
// (rseq(2)). The rest of the struct belongs to the program.
func (c *comparer) rseq(addr uint64) bool {
	for _, t := range c.im[0].Threads {
		if t.RseqAddress == 0 {
			continue
		}
		switch off := addr - t.RseqAddress; off {
		case 0, 24: // cpu_id_start and cpu_id; mm_cid
			return off < uint64(t.RseqSize)
		}
	}
	return false
}

// processor reports whether a word is the copy of register EBX of CPUID, leaf 1,
// that the GNU C library makes at the start of a program. The upper 8 bits are the number
// of the processor that executed the instruction. The library never reads them, and in a
// cold start they have the number of any processor.
//
// The copy is in _rtld_global_ro of the dynamic linker. In a static program, which may
// have no symbols, it is known by all four registers.
func (c *comparer) processor(v *VMA, addr uint64, w words) bool {
	r := version()
	const rest = 1<<24 - 1
	for i := range 2 {
		if x := w.pick(i); uint32(x[0]>>32) != r[0] || uint32(x[1])&rest != r[1]&rest {
			return false
		}
	}
	if w.a[1]>>32 != w.b[1]>>32 {
		return false
	}
	path, _, symbol := c.symbol(v, addr)
	if strings.HasPrefix(symbol, "_rtld_global_ro+") {
		return true
	}
	progs := c.module(path).progs
	static := len(progs) > 0 && !slices.ContainsFunc(progs, func(p elf.ProgHeader) bool { return p.Type == elf.PT_INTERP })
	return static && path == c.im[0].Exe && uint32(w.a[1]>>32) == r[2] && uint32(w.a[2]) == r[3] && uint32(w.b[2]) == r[3]
}

func (c *comparer) explain(rule string, v *VMA, at int64, a, b []byte, off int) {
	if g := c.groups[rule]; g != nil && len(g.First) >= 8 {
		g.Count++ // without the cost of a description
		return
	}
	c.explained(rule, c.describe(v, at, a, b, off, off+8))
}

func (c *comparer) explained(rule string, d Difference) {
	g := c.groups[rule]
	if g == nil {
		g = &Group{Rule: rule}
		c.groups[rule] = g
	}
	g.Count++
	if len(g.First) < 8 {
		g.First = append(g.First, d)
	}
}

func (c *comparer) unexplained(d Difference) {
	if len(c.out.Unexplained) >= maxListed {
		c.out.More++
		return
	}
	c.out.Unexplained = append(c.out.Unexplained, d)
}

// describe describes the bytes [from, to) of a part of a VMA.
func (c *comparer) describe(v *VMA, at int64, a, b []byte, from, to int) Difference {
	shown := min(to, from+4*8)
	d := Difference{Where: where(v), Address: v.Start + uint64(at) + uint64(from), Offset: uint64(at) + uint64(from), Length: to - from,
		A: hexWords(a[from:shown]), B: hexWords(b[from:shown]), Near: near(a, from), At: -1}
	d.File, d.At, d.Symbol = c.symbol(v, d.Address)
	for i, t := range c.im[0].Threads {
		const around = 1 << 12
		if fs := t.Regs.Fs_base; d.Address+around > fs && d.Address < fs+around {
			d.Symbol = fmt.Sprintf("the control block of thread %d%+#x", i, int64(d.Address-fs))
			if t.RseqAddress != 0 {
				d.Symbol += fmt.Sprintf(" (rseq%+#x)", int64(d.Address-t.RseqAddress))
			}
		}
	}
	return d
}

// hexWords prints words of 8 bytes as numbers.
func hexWords(b []byte) string {
	var s strings.Builder
	for ; len(b) >= 8; b = b[8:] {
		if s.Len() > 0 {
			s.WriteByte(' ')
		}
		fmt.Fprintf(&s, "%#x", binary.LittleEndian.Uint64(b))
	}
	return s.String()
}

// near returns the printable string that is nearest to an offset, within 256
// bytes.
func near(b []byte, off int) string {
	lo, hi := max(0, off-256), min(len(b), off+256)
	best, distance := "", 1<<30
	for i := lo; i < hi; {
		j := i
		for j < hi && b[j] >= 0x20 && b[j] < 0x7f {
			j++
		}
		if j-i >= 5 {
			away := max(0, i-off, off-j+1)
			if away < distance {
				best, distance = string(b[i:min(j, i+120)]), away
			}
		}
		i = j + 1
	}
	return best
}

// module is an ELF file that is mapped.
type module struct {
	progs   []elf.ProgHeader
	symbols []elf.Symbol // sorted by value
}

// symbol returns the file that is mapped at an address, the offset in it, and the symbol.
// Memory after the mapping of a file has the file's data without initial values.
func (c *comparer) symbol(v *VMA, addr uint64) (string, int64, string) {
	im := c.im[0]
	file := v
	if i := slices.IndexFunc(im.Maps, func(x VMA) bool { return x.Start == v.Start }); v.Path == "" && i > 0 && im.Maps[i-1].End == v.Start {
		file = &im.Maps[i-1]
	}
	if file.Path == "" || file.Path[0] != '/' {
		return "", -1, ""
	}
	at := int64(-1)
	if file == v {
		at = v.Offset + int64(addr-v.Start)
	}
	m := c.module(file.Path)
	for _, p := range m.progs {
		// The segment that this VMA maps the begin of, or a part.
		begin, end := p.Off&^(pageSize-1), pageUp(p.Off+p.Filesz)
		if p.Type != elf.PT_LOAD || uint64(file.Offset) < begin || uint64(file.Offset) >= end {
			continue
		}
		if file.Prot&unix.PROT_WRITE != 0 && p.Flags&elf.PF_W == 0 {
			continue
		}
		value := addr - file.Start + uint64(file.Offset) - p.Off + p.Vaddr
		k, exact := slices.BinarySearchFunc(m.symbols, value, func(s elf.Symbol, x uint64) int {
			if s.Value < x {
				return -1
			} else if s.Value > x {
				return 1
			}
			return 0
		})
		if !exact {
			k--
		}
		if k >= 0 && value < m.symbols[k].Value+max(m.symbols[k].Size, 1) {
			return file.Path, at, fmt.Sprintf("%s+%#x", m.symbols[k].Name, value-m.symbols[k].Value)
		}
		return file.Path, at, fmt.Sprintf("address %#x", value)
	}
	return file.Path, at, ""
}

// module reads the program headers and symbols of a file; it is empty for a file
// that is not in ELF.
func (c *comparer) module(path string) *module {
	if m := c.modules[path]; m != nil {
		return m
	}
	m := &module{}
	c.modules[path] = m
	f, err := elf.Open(path)
	if err != nil {
		return m
	}
	defer f.Close()
	for _, p := range f.Progs {
		m.progs = append(m.progs, p.ProgHeader)
	}
	for _, read := range []func() ([]elf.Symbol, error){f.Symbols, f.DynamicSymbols} {
		symbols, err := read()
		if err != nil {
			continue // the file does not have this symbol table
		}
		for _, s := range symbols {
			if s.Value != 0 && elf.ST_TYPE(s.Info) == elf.STT_OBJECT {
				m.symbols = append(m.symbols, s)
			}
		}
	}
	slices.SortStableFunc(m.symbols, func(a, b elf.Symbol) int {
		if a.Value < b.Value {
			return -1
		} else if a.Value > b.Value {
			return 1
		}
		return 0
	})
	return m
}
