package frozen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
)

// The generator of rand(3) and random(3) in the GNU C library, as it is without initstate(3):
// an additive feedback over 31 numbers, which srand(3) fills from the seed by a linear
// congruence and mixes by 310 calls. Each step can be undone, so that a table in memory shows
// its seed and the number of calls since.
const (
	randDegree = 31
	randApart  = 3   // distance of the two numbers that a call adds
	randMixing = 310 // calls by srand
	randMark   = 3   // the number before the table, for its kind
	randSize   = 4 * (1 + randDegree)
	maxCalls   = 2000 // of which a seed is looked for
)

// randTable is the generator's table, with the position of the next call.
type randTable struct {
	r    [randDegree]uint32
	next int // index to which a call adds the number at next-randApart
}

// seeded returns the table after srand(seed) and a number of calls, and the results of the
// calls.
func seeded(seed uint32, calls int) (randTable, []uint32) {
	t := randTable{r: seedNumbers(seed), next: randApart}
	for range randMixing {
		t.call()
	}
	var results []uint32
	for range calls {
		results = append(results, t.call())
	}
	return t, results
}

// seedNumbers returns the numbers with which srand begins. The seed 0 is the seed 1.
func seedNumbers(seed uint32) (r [randDegree]uint32) {
	r[0] = max(seed, 1)
	word := int64(int32(r[0]))
	for i := 1; i < randDegree; i++ {
		word = 16807*(word%127773) - 2836*(word/127773)
		if word < 0 {
			word += 1<<31 - 1
		}
		r[i] = uint32(word)
	}
	return r
}

func (t *randTable) other() *uint32 { return &t.r[(t.next+randDegree-randApart)%randDegree] }

func (t *randTable) call() uint32 {
	t.r[t.next] += *t.other()
	result := t.r[t.next] >> 1
	t.next = (t.next + 1) % randDegree
	return result
}

func (t *randTable) undo() {
	t.next = (t.next + randDegree - 1) % randDegree
	t.r[t.next] -= *t.other()
}

// readRand returns the seed and the number of calls since srand of a table in memory.
func readRand(memory []byte) (seed uint32, calls int, ok bool) {
	if len(memory) < randSize || binary.LittleEndian.Uint32(memory) != randMark {
		return 0, 0, false
	}
	var start randTable
	for i := range start.r {
		start.r[i] = binary.LittleEndian.Uint32(memory[4+4*i:])
	}
	for calls := range maxCalls {
		t := start
		t.next = (randApart + calls) % randDegree
		for range randMixing + calls {
			t.undo()
		}
		if t.r == seedNumbers(t.r[0]) {
			return t.r[0], calls, true
		}
	}
	return 0, 0, false
}

// bytes returns the table as it is in memory.
func (t *randTable) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, randMark)
	for _, x := range t.r {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

// A seeding is a way in which programs seed rand(3) with the time and their process id. A seed
// that comes from something else, such as the inode of the input, is not explained: a cold
// start over the same input would have it again.
type seeding struct {
	name  string
	seed  func(now Moment, pid int) uint32
	known uint32 // mask of the bits that do not depend on fractions of a second
}

// seedings are the known ways. In each, the time is in seconds since the epoch.
var seedings = []seeding{
	{"time", func(now Moment, pid int) uint32 { return now.seconds() }, ^uint32(0)},
	{"pid", func(_ Moment, pid int) uint32 { return uint32(pid) }, ^uint32(0)},
	{"time ^ pid", func(now Moment, pid int) uint32 { return now.seconds() ^ uint32(pid) }, ^uint32(0)},
	{"time + pid", func(now Moment, pid int) uint32 { return now.seconds() + uint32(pid) }, ^uint32(0)},
	{"time * pid", func(now Moment, pid int) uint32 { return now.seconds() * uint32(pid) }, ^uint32(0)},
	// TimeToSeed of R, with nanoseconds in the upper half.
	{"R", func(now Moment, pid int) uint32 {
		return now.seconds() ^ uint32(now.Realtime%1e9)<<16 ^ uint32(pid)<<16
	}, 1<<16 - 1},
}

func (m Moment) seconds() uint32 { return uint32(m.Realtime / 1e9) }

// made reports whether a preparation has made a seed in this way, and at which second.
func (s *seeding) made(seed uint32, p Preparation) (second int64, ok bool) {
	for second := p.Began.Realtime / 1e9; second <= p.Stopped.Realtime/1e9; second++ {
		if (s.seed(Moment{Realtime: second * 1e9}, p.Pid)^seed)&s.known == 0 {
			return second, true
		}
	}
	return 0, false
}

// Generator is the generator of rand(3) of a program that has seeded it with the time or its
// process id. Start seeds it in the same way, with the time moved on as the clocks in memory
// are, since the program may have kept the time.
type Generator struct {
	Address uint64 // of the table and the number before it
	Seeding string // name of a seeding
	Second  int64  // of the seeding, since the epoch
	Calls   int    // since it was seeded
	Names   []RandName
}

// RandName is a text in memory that consists of the process id and a result of rand(3), both
// in hexadecimal digits, as in the names of R's temporary files.
type RandName struct {
	Address uint64
	Length  int // bytes
	Call    int // index of the result
}

func randName(pid int, result uint32) string {
	return strconv.FormatUint(uint64(pid), 16) + strconv.FormatUint(uint64(result), 16)
}

// write seeds the generator of a process that was frozen at one time and is started at another,
// and writes the names with its results. They have their lengths in the frozen process: the
// fraction of the second is chosen so.
func (g *Generator) write(stopped, now Moment, pid int, write func(address uint64, b []byte) error) error {
	i := slices.IndexFunc(seedings, func(s seeding) bool { return s.name == g.Seeding })
	if i < 0 {
		return fmt.Errorf("seed rand: no seeding is called %q", g.Seeding)
	}
	second := (g.Second + passed(stopped.Realtime, now.Realtime)) * 1e9
	fraction := now.Realtime % 1e9
	const tries = 100_000 // one in 16 results has a digit less
	for range tries {
		table, results := seeded(seedings[i].seed(Moment{Realtime: second + fraction}, pid), g.Calls)
		name := func(n RandName) string { return randName(pid, results[n.Call]) }
		if slices.ContainsFunc(g.Names, func(n RandName) bool { return len(name(n)) != n.Length }) {
			fraction = rand.Int64N(1e9)
			continue
		}
		if err := write(g.Address, table.bytes()); err != nil {
			return fmt.Errorf("write the table of rand: %w", err)
		}
		for _, n := range g.Names {
			if err := write(n.Address, []byte(name(n))); err != nil {
				return fmt.Errorf("write the name of a temporary file: %w", err)
			}
		}
		return nil
	}
	return errors.New("no seed gives names of temporary files with the same lengths")
}

// randPair is the generator in two memories.
type randPair struct {
	address uint64
	seeding string
	second  int64 // in the first preparation
	results [2][]uint32
	names   []RandName
}

// generator returns the generator for starts from the first preparation.
func (p *randPair) generator() *Generator {
	return &Generator{p.address, p.seeding, p.second, len(p.results[0]), p.names}
}

// findRand finds the generator in parts of the memories of two preparations, which begin at
// address start, at offset off.
func findRand(prep [2]Preparation, start uint64, a, b []byte, off int) (*randPair, bool) {
	if off+randSize > len(a) {
		return nil, false
	}
	seedA, calls, ok := readRand(a[off:])
	if !ok {
		return nil, false
	}
	seedB, callsB, ok := readRand(b[off:])
	if !ok || callsB != calls || seedA == seedB {
		return nil, false
	}
	var second int64
	i := slices.IndexFunc(seedings, func(s seeding) bool {
		second, ok = s.made(seedA, prep[0])
		_, alike := s.made(seedB, prep[1])
		return ok && alike
	})
	if i < 0 {
		return nil, false
	}
	p := &randPair{address: start + uint64(off), seeding: seedings[i].name, second: second}
	for i, seed := range []uint32{seedA, seedB} {
		_, p.results[i] = seeded(seed, calls)
	}
	return p, true
}

// name finds a RandName around offset off of parts of two memories, which begin at address
// start, and makes the rest of the text in b equal to the text in a. Both texts end in the
// same way.
func (p *randPair) name(pids [2]int, start uint64, a, b []byte, off int) bool {
	const longest = 16 // two numbers of 8 digits
	if p.seeding != "R" {
		return false // only there a start can choose the lengths
	}
	for call := range p.results[0] {
		x, y := randName(pids[0], p.results[0][call]), randName(pids[1], p.results[1][call])
		lo, hi := max(0, off-longest), min(len(a), off+8+longest)
		i := bytes.Index(a[lo:hi], []byte(x))
		if i < 0 || !bytes.HasPrefix(b[lo+i:], []byte(y)) {
			continue
		}
		i += lo
		restA, _, endA := bytes.Cut(a[i+len(x):], []byte{0})
		restB, _, endB := bytes.Cut(b[i+len(y):], []byte{0})
		if !endA || !endB || !bytes.Equal(restA, restB) {
			continue
		}
		n := max(len(x), len(y)) + len(restA) + 1
		if i+n > len(a) {
			continue
		}
		copy(b[i:i+n], a[i:])
		p.names = append(p.names, RandName{start + uint64(i), len(x), call})
		return true
	}
	return false
}
