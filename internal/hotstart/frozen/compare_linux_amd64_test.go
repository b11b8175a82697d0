package frozen

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// prepared is one of two preparations.
type prepared struct {
	im    *Image
	pages *os.File
	prep  Preparation
}

// epoch is a time in nanoseconds since 1970.
const epoch = 1_800_000_000_000_000_000

// prepare executes a program with fixed random bytes and a separate clock until it opens its gate,
// and freezes it.
func prepare(t *testing.T, number int, input string, argv ...string) prepared {
	t.Helper()
	dir := t.TempDir()
	for name, flag := range map[string]int{"gate": unix.S_IFIFO, "input": unix.S_IFREG} {
		if err := unix.Mknod(filepath.Join(dir, name), uint32(flag)|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "input"), []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	p, _ := spawn(t, dir, argv...)
	began := Moment{epoch + int64(number)*31_415_926e9, 5e12 + int64(number)*2_718_281e9, 1 << 44 << number, 7e12 + int64(number)*1_414_213e9}
	w := tracer.NewWatch()
	w.Random = tracer.NewEntropy([32]byte{1})
	w.Clock = &tracer.Clock{Realtime: began.Realtime, Monotonic: began.Monotonic, Boottime: began.Boottime, Cycles: began.Cycles}
	if err := w.Install(p); err != nil {
		t.Fatal(err)
	}
	base, err := ReadBase(p.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(p); err != nil {
		t.Fatal(err)
	}
	var held *tracer.Proc
	for held == nil {
		tid, st, err := w.Wait(unix.WALL)
		if err != nil || tid == p.Pid && !st.Stopped() {
			t.Fatalf("%v ended before its gate: status %#x, %v", argv, st, err)
		}
		l, err := w.Handle(tid, st)
		if err != nil {
			t.Fatal(err)
		}
		if l == nil {
			continue
		}
		if l.Path == filepath.Join(dir, "gate") {
			held, err = w.Hold(p.Pid, tid)
		} else {
			err = w.Continue(tid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "pages"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	im, err := Freeze(Source{Proc: held, Base: base, Dir: dir}, f)
	if err != nil {
		t.Fatal(err)
	}
	held.Kill()
	finished(t, held)
	return prepared{im, f, Preparation{Pid: p.Pid, Began: began, Dir: dir}}
}

func comparison(t *testing.T, a, b prepared) *Comparison {
	t.Helper()
	c, err := Compare(a.im, b.im, a.pages, b.pages, Facts{A: a.prep, B: b.prep})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range c.Explained {
		t.Logf("%s: %d words, as %v", g.Rule, g.Count, g.First[0])
	}
	return c
}

func TestCompareIdentity(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "identity")
	a, b := prepare(t, 0, "x", prog), prepare(t, 1, "yyy", prog)
	c := comparison(t, a, b)
	for _, d := range c.Unexplained {
		t.Errorf("unexplained: %v", d)
	}
	for _, l := range c.Layout {
		t.Errorf("layout: %v", l)
	}
	if len(c.Ids) < 3 {
		t.Errorf("the process id was found in %d places, want the variable and two mutexes: %v", len(c.Ids), c.Ids)
	}
	a.im.Ids = c.Ids
	right(t, a)
}

// TestCompareProcessors prepares a program on two different processors. In a static program without
// symbols the copy of the CPUID data has no name.
func TestCompareProcessors(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &all)
	var processors []int
	for i := 0; len(processors) < min(2, all.Count()); i++ {
		if all.IsSet(i) {
			processors = append(processors, i)
		}
	}
	if len(processors) < 2 {
		t.Skip("this machine has one processor for the test")
	}
	for _, flags := range [][]string{nil, {"-static"}, {"-static", "-s"}} {
		prog := build(t, "identity", flags...)
		var both [2]prepared
		for i, processor := range processors {
			var one unix.CPUSet
			one.Set(processor)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Fatal(err)
			}
			both[i] = prepare(t, i, "x", prog)
		}
		c := comparison(t, both[0], both[1])
		if !c.Same() {
			t.Errorf("%v: unexplained %v, layouts %v", flags, c.Unexplained, c.Layout)
		}
		if !slices.ContainsFunc(c.Explained, func(g Group) bool { return g.Rule == RuleProcessor }) {
			t.Errorf("%v: the number of the processor was not found", flags)
		}
	}
}

// right starts a program from its first preparation. The program must print that all values are
// right.
func right(t *testing.T, a prepared) {
	t.Helper()
	task := t.TempDir()
	for _, name := range []string{"gate", "stdout", "stderr"} {
		if err := os.WriteFile(filepath.Join(task, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q, personality, err := a.im.Spawn(task, a.pages, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.im.Start(q, Options{Dir: task, Personality: &personality}); err != nil {
		q.Kill()
		finished(t, q)
		t.Fatal(err)
	}
	if err := q.Release(); err != nil {
		t.Fatal(err)
	}
	st := finished(t, q)
	if out, _ := os.ReadFile(filepath.Join(task, "stdout")); string(out) != "right\n" {
		t.Errorf("status %#x, it printed %q", st, out)
	}
}

// TestCompareThreads compares a program with concurrent threads.
func TestCompareThreads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "threads")
	a := prepare(t, 0, "", prog)
	c := comparison(t, a, prepare(t, 1, "", prog))
	if !c.Same() {
		t.Fatalf("the memories differ: %v %v", c.Layout, c.Unexplained)
	}
	a.im.Ids = c.Ids
	right(t, a)
}

// TestInheritance freezes a program that holds a mutex with priority inheritance.
func TestInheritance(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "inherit")
	a, b := prepare(t, 0, "", prog), prepare(t, 1, "", prog)
	c := comparison(t, a, b)
	if !c.Same() || len(c.Ids) == 0 {
		t.Fatalf("the owner of the mutex is not known: %v %v %v", c.Layout, c.Unexplained, c.Ids)
	}
	a.im.Ids = c.Ids
	right(t, a)

	dir := t.TempDir()
	p, base := template(t, dir, prog, "waited for")
	var refused *Refused
	if _, err := Freeze(Source{Proc: p, Base: base, Dir: dir}, nil); !errors.As(err, &refused) || !strings.Contains(refused.What, "priority inheritance") {
		t.Errorf("a thread that waits for such a mutex: %v", err)
	}
}

func TestCompareNamesInputSize(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "identity")
	c := comparison(t, prepare(t, 0, "x", prog, "size"), prepare(t, 1, "yyy", prog, "size"))
	found := false
	for _, d := range c.Unexplained {
		t.Log(d)
		found = found || strings.HasPrefix(d.Symbol, "size_of_input")
	}
	if !found {
		t.Error("the size of the input is in memory, and the comparison does not name it")
	}
}

// TestCompareNamesSeeds uses a program that keeps numbers derived from a value that differs between
// starts.
func TestCompareNamesSeeds(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := build(t, "identity")
	for _, keeps := range []string{"inode", "mtime", "pid", "time", "minutes"} {
		c := comparison(t, prepare(t, 0, "x", prog, keeps), prepare(t, 1, "yyy", prog, keeps))
		seed := slices.ContainsFunc(c.Unexplained, func(d Difference) bool { return d.Where != "[stack]" && d.Address != 0 })
		if !seed || c.Same() {
			t.Errorf("%s: the comparison does not name what the program keeps: %v", keeps, c.Unexplained)
		}
	}
}

func TestRules(t *testing.T) {
	c := &comparer{im: [2]*Image{{Threads: []Thread{{RseqAddress: 0x5000, RseqSize: 32}, {}}}, {}}, out: &Comparison{}, dead: []Range{{0x1000, 0x2000}}}
	c.prep = [2]Preparation{
		{Pid: 100, Threads: []int{100, 101}, Began: Moment{epoch, 5e12, 1e13, 7e12}},
		{Pid: 200, Threads: []int{200, 207}, Began: Moment{epoch + 31_415_926e9, 5e12 + 2_718_281e9, 3e13, 7e12 + 1_414_213e9}},
	}
	const realtime, mono = 31_415_926, 2_718_281
	for _, x := range []struct {
		name string
		addr uint64
		a, b [3]uint64
		want string
	}{
		{"dead stack", 0x1ff8, [3]uint64{0, 1, 0}, [3]uint64{0, 2, 0}, RuleDeadStack},
		{"live stack", 0x2000, [3]uint64{0, 1, 0}, [3]uint64{0, 2, 0}, ""},
		{"pid", 0x3000, [3]uint64{0, 100, 0}, [3]uint64{0, 200, 0}, RuleProcessID},
		{"seconds in the upper half", 0x3000, [3]uint64{0, epoch / 1e9 << 32, 0}, [3]uint64{0, (epoch/1e9 + realtime) << 32, 0}, RuleClock},
		{"seconds in the upper half and another difference", 0x3000, [3]uint64{0, epoch / 1e9 << 32, 0}, [3]uint64{0, (epoch/1e9+realtime)<<32 | 1, 0}, ""},
		{"pid in the upper half", 0x3000, [3]uint64{0, 100<<32 | 7, 0}, [3]uint64{0, 200<<32 | 7, 0}, RuleProcessID},
		{"pid and another difference", 0x3000, [3]uint64{0, 100<<32 | 7, 0}, [3]uint64{0, 200<<32 | 8, 0}, ""},
		{"tid", 0x3000, [3]uint64{0, 101, 0}, [3]uint64{0, 207, 0}, RuleThreadID},
		{"ids of different threads", 0x3000, [3]uint64{0, 100, 0}, [3]uint64{0, 207, 0}, ""},
		{"seconds", 0x3000, [3]uint64{0, epoch / 1e9, 0}, [3]uint64{0, epoch/1e9 + realtime, 0}, RuleClock},
		{"another distance", 0x3000, [3]uint64{0, epoch / 1e9, 0}, [3]uint64{0, epoch/1e9 + realtime + 1, 0}, ""},
		{"backwards", 0x3000, [3]uint64{0, epoch/1e9 + realtime, 0}, [3]uint64{0, epoch / 1e9, 0}, ""},
		{"different units", 0x3000, [3]uint64{0, epoch / 1e9, 0}, [3]uint64{0, epoch/1e6 + realtime*1e3, 0}, ""},
		{"milliseconds", 0x3000, [3]uint64{0, epoch / 1e6, 0}, [3]uint64{0, epoch/1e6 + realtime*1e3, 0}, RuleClock},
		{"small monotonic seconds", 0x3000, [3]uint64{0, 5001, 0}, [3]uint64{0, 5001 + mono, 0}, RuleClock},
		{"lower half", 0x3000, [3]uint64{0, 7<<32 | 5001, 0}, [3]uint64{0, 7<<32 | 5001 + mono, 0}, RuleClock},
		{"lower half and another difference", 0x3000, [3]uint64{0, 7<<32 | 5001, 0}, [3]uint64{0, 8<<32 | 5001 + mono, 0}, ""},
		{"floating point", 0x3000, [3]uint64{0, math.Float64bits(epoch/1e9 + 0.25), 0}, [3]uint64{0, math.Float64bits(epoch/1e9 + realtime + 0.25), 0}, RuleClock},
		{"a duration", 0x3000, [3]uint64{0, math.Float64bits(0.25), 0}, [3]uint64{0, math.Float64bits(0.75), 0}, ""},
		{"time stamp", 0x3000, [3]uint64{0, 1e13 + 5, 0}, [3]uint64{0, 3e13 + 5, 0}, RuleClock},
		{"time stamp of the other", 0x3000, [3]uint64{0, 3e13 + 5, 0}, [3]uint64{0, 1e13 + 5, 0}, ""},
		{"processor", 0x5000, [3]uint64{0, 1, 0}, [3]uint64{0, 0, 0}, RuleRseq},
		{"critical section", 0x5008, [3]uint64{0, 1, 0}, [3]uint64{0, 0, 0}, ""},
	} {
		if got := c.rule(x.addr, words{x.a, x.b}); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

func TestLayoutsDiffer(t *testing.T) {
	a := &Image{Maps: []VMA{{Range: Range{0x1000, 0x2000}, Prot: 3}}}
	b := &Image{Maps: []VMA{{Range: Range{0x1000, 0x3000}, Prot: 3}}}
	c, err := Compare(a, b, nil, nil, Facts{A: Preparation{Pid: 1, Dir: "/a"}, B: Preparation{Pid: 2, Dir: "/b"}})
	if err != nil || len(c.Layout) != 2 || c.Same() {
		t.Errorf("layouts %v, same %v, error %v", c.Layout, c.Same(), err)
	}
}

// A pair of a year's begin and its number counts as a time only if the years match both
// preparations.
func TestYear(t *testing.T) {
	at := func(year int) int64 { return time.Date(year, 5, 17, 3, 0, 0, 0, time.UTC).UnixNano() }
	begin := func(year int) uint64 { return uint64(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix()) }
	c := &comparer{}
	c.prep[0].Began.Realtime, c.prep[1].Began.Realtime = at(2026), at(2030)
	for _, tt := range []struct {
		name string
		w    words
		want bool
	}{
		{"the beginning", words{a: [3]uint64{0, begin(2026), 2026}, b: [3]uint64{0, begin(2030), 2030}}, true},
		{"the number", words{a: [3]uint64{begin(2026), 2026, 0}, b: [3]uint64{begin(2030), 2030, 0}}, true},
		{"the number, with another word in its upper half", words{a: [3]uint64{begin(2026), 2026 | 1<<32, 0}, b: [3]uint64{begin(2030), 2030, 0}}, false},
		{"another year", words{a: [3]uint64{0, begin(2025), 2025}, b: [3]uint64{0, begin(2030), 2030}}, false},
		{"the year of one preparation in both", words{a: [3]uint64{0, begin(2026), 2026}, b: [3]uint64{0, begin(2026), 2026}}, false},
		{"a number alone", words{a: [3]uint64{0, 2026, 0}, b: [3]uint64{0, 2030, 0}}, false},
	} {
		if got := c.year(tt.w); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestOffset(t *testing.T) {
	word := []LateWord{{A: []byte("Sample"), B: []byte("xample")}, {A: []byte("/whole"), B: []byte("abcdef"), Whole: true}}
	reg := func(v int) uint64 { return uint64(uint32(int32(v))) }
	for _, c := range []struct {
		name     string
		x, y     uint64
		constant int32
		found    bool
	}{
		{"first bytes", reg('S' - 'f'), reg('x' - 'f'), -'f', true},
		{"B continues", reg('S' - 'x'), reg('a' - 't'), -'x', true},
		{"A continues", reg('a' - 't'), reg('x' - 'S'), -'S', true},
		{"no bytes", reg('S' - 'f'), reg('a' - 't'), 0, false},
		{"too far", reg('S' - 'x'), reg(300), 0, false},
		{"64 bits", 1 << 40, 1<<40 + 37, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmp := comparer{words: NewWords(word), out: &Comparison{}}
			if got := cmp.offset(2, 3, c.x, c.y); got != c.found {
				t.Fatalf("offset = %v, want %v", got, c.found)
			}
			want := []Offset{{Thread: 2, Register: 3, Word: 0, Constant: c.constant}}
			if c.found && !slices.Equal(cmp.out.Offsets, want) {
				t.Errorf("Offsets = %v, want %v", cmp.out.Offsets, want)
			}
		})
	}
	if _, ok := (Offset{Constant: -'f'}).Value("file"); ok {
		t.Error("Value of a word that begins with the byte it was compared with: want none")
	}
	if v, ok := (Offset{Constant: -'f'}).Value("Sample"); !ok || int32(v) != 'S'-'f' {
		t.Errorf("Value = %d, %v, want %d", int32(v), ok, 'S'-'f')
	}
}

// TestLate compares an image with the memory after a start from another image.
func TestLate(t *testing.T) {
	image := func(text string) (*Image, *strings.Reader) {
		page := text + strings.Repeat("\x00", pageSize-len(text))
		e := Extent{Size: pageSize}
		return &Image{Maps: []VMA{{Range: Range{0x1000, 0x1000 + pageSize}, Prot: 3, Kind: KindPaged, Data: []Extent{e}}}, Pieces: []Piece{{Extent: e, Digest: blake3.Sum256([]byte(text))}}}, strings.NewReader(page)
	}
	a, pagesA := image("a Sample.")
	a.RegisterIds = []RegisterId{{}} // the comparison with the second preparation sets them
	late := &Late{Places: []WordPlace{{Address: 0x1002, Span: Span{Word: 1, From: 1, Length: 5}}}, Words: []string{"", "Sorted"}}
	for text, want := range map[string]bool{
		"a Sorted.": false, // the first letter is not late
		"a orted..": false,
		"a ortede.": true,
		"a ortede!": false,
		"a Sample.": false, // the piece is equal to the piece of the first image
	} {
		b, pagesB := image(text)
		c, err := Compare(a, b, pagesA, pagesB, Facts{A: Preparation{Pid: 1}, B: Preparation{Pid: 2}, Late: late})
		if err != nil {
			t.Fatal(err)
		}
		if c.Same() != want {
			t.Errorf("%q: same %v, want %v: %v", text, c.Same(), want, c.Unexplained)
		}
	}
}

// TestClockPlaces advances times in each form by three days, with one clock set back.
func TestClockPlaces(t *testing.T) {
	const second, day = 1_000_000_000, 86_400_000_000_000
	a, b := Moment{epoch, 5e12, 1e13, 7e12}, Moment{epoch + 31_415_926e9, 5e12 + 2_718_281e9, 3e13, 7e12 + 1_414_213e9}
	stopped := Moment{a.Realtime + 1e6, a.Monotonic + 1e6, a.Cycles + 1e6, a.Boottime + 1e6}
	now := Moment{stopped.Realtime + 3*day + 5e8, stopped.Monotonic - 1000*second - 5e8, stopped.Cycles + 1e15, stopped.Boottime + 2*day}
	float := func(f float64) uint64 { return math.Float64bits(f) }
	real, mono := uint64(epoch/second), uint64(5000)
	for name, c := range map[string]struct{ x, y, want uint64 }{
		"ns":             {uint64(a.Realtime) + 7, uint64(b.Realtime) + 7, uint64(a.Realtime) + 7 + 3*day},
		"µs":             {uint64(a.Realtime) / 1000, uint64(b.Realtime) / 1000, uint64(a.Realtime+3*day) / 1000},
		"ms":             {uint64(a.Realtime) / 1e6, uint64(b.Realtime) / 1e6, uint64(a.Realtime+3*day) / 1e6},
		"s":              {real, real + 31_415_926, real + 3*86400},
		"low half":       {9<<32 | real, 9<<32 | real + 31_415_926, 9<<32 | real + 3*86400},
		"high half":      {real<<32 | 9, (real+31_415_926)<<32 | 9, (real+3*86400)<<32 | 9},
		"float":          {float(1.5e9), float(1.5e9 + 31_415_926), float(1.5e9 + 3*86400)},
		"monotonic s":    {mono, mono + 2_718_281, mono - 1001},
		"monotonic tick": {mono * 100, (mono + 2_718_281) * 100, (mono - 1001) * 100},
		"boottime s":     {7000, 7000 + 1_414_213, 7000 + 2*86400},
		"cycles":         {1e13 + 5, 3e13 + 5, 1e13 + 5 + 1e15},
	} {
		p, ok := clockPlace(c.x, c.y, a, b)
		if got := p.at(stopped, now); !ok || got != c.want {
			t.Errorf("%s: %d became %d, want %d (%+v, %v)", name, c.x, got, c.want, p, ok)
		}
	}
	// Negative integers and tagged pointers do not count as floating-point numbers.
	minus := func(n int64) uint64 { return uint64(-n) }
	for _, c := range [][2]uint64{{100, 101}, {minus(5), minus(9)}, {minus(5), 7}, {7, minus(5)}, {0xfff7_0000_0000_1234, 0xfff7_0000_0000_5678},
		{float(math.NaN()), float(math.Inf(1))}, {float(math.Inf(1)), float(math.Inf(-1))}, {0, float(31_415_926)}} {
		if p, ok := clockPlace(c[0], c[1], a, b); ok {
			t.Errorf("%#x and %#x are times: %+v", c[0], c[1], p)
		}
	}
}
