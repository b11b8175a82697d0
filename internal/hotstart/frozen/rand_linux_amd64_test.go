package frozen

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestRand compares the generator with rand(3) of the C library, and reads seeds and calls back
// from tables.
func TestRand(t *testing.T) {
	prog := build(t, "rand")
	for _, seed := range []uint32{0, 1, 2, 12345, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		for _, calls := range []int{0, 1, 2, 30, 31, 100, maxCalls - 1} {
			out, err := exec.Command(prog, fmt.Sprint(seed), fmt.Sprint(calls)).Output()
			if err != nil {
				t.Fatal(err)
			}
			results, numbers, _ := strings.Cut(string(out), "\n")
			table, got := seeded(seed, calls)
			if text := fmt.Sprint(got); text != "["+strings.TrimSpace(results)+"]" {
				t.Errorf("seed %d: %d results are %.80s, want %.80s", seed, calls, text, results)
			}
			if text := fmt.Sprint(table.r); text != "["+strings.TrimSpace(numbers)+"]" {
				t.Errorf("seed %d, %d calls: the table is %.80s, want %.80s", seed, calls, text, numbers)
			}
			if s, n, ok := readRand(table.bytes()); !ok || s != max(seed, 1) || n != calls {
				t.Errorf("seed %d, %d calls: read as %d, %d, %v", seed, calls, s, n, ok)
			}
		}
	}
	for _, memory := range [][]byte{nil, make([]byte, randSize), binary.LittleEndian.AppendUint32(nil, randMark), append(binary.LittleEndian.AppendUint32(nil, randMark), bytes.Repeat([]byte{1}, 4*randDegree)...)} {
		if seed, calls, ok := readRand(memory); ok {
			t.Errorf("% x is read as seed %d, %d calls", memory, seed, calls)
		}
	}
}

// TestGenerator finds generators that two preparations have seeded with the time and their
// process id, and no others, and writes them for a third process.
func TestGenerator(t *testing.T) {
	const sec = 1_700_000_000
	prep := [2]Preparation{
		{Pid: 0x4597, Began: Moment{Realtime: sec*1e9 + 5}, Stopped: Moment{Realtime: (sec + 2) * 1e9}},
		{Pid: 0x5001, Began: Moment{Realtime: (sec+5000)*1e9 + 7e8}, Stopped: Moment{Realtime: (sec + 5003) * 1e9}},
	}
	tables := func(seeds [2]uint32, calls int, text func(i int, results []uint32) string) (a, b []byte) {
		var memory [2][]byte
		for i, seed := range seeds {
			table, results := seeded(seed, calls)
			memory[i] = append(append(make([]byte, 16), table.bytes()...), make([]byte, 64)...)
			copy(memory[i][16+randSize:], text(i, results))
		}
		return memory[0], memory[1]
	}
	name := func(i int, results []uint32) string { return "./Rtmp/" + randName(prep[i].Pid, results[0]) + ".R\x00" }
	none := func(int, []uint32) string { return "" }
	r := func(i int, nsec uint32) uint32 {
		return uint32(sec+5000*i+1) ^ nsec<<16 ^ uint32(prep[i].Pid)<<16
	}
	for _, c := range []struct {
		name    string
		seeds   [2]uint32
		text    func(int, []uint32) string
		seeding string // "": refused
	}{
		{"time", [2]uint32{sec, sec + 5003}, none, "time"},
		{"process id", [2]uint32{0x4597, 0x5001}, none, "pid"},
		{"both", [2]uint32{(sec + 1) ^ 0x4597, (sec + 5001) ^ 0x5001}, none, "time ^ pid"},
		{"R", [2]uint32{r(0, 123456789), r(1, 987654)}, name, "R"},
		{"another time", [2]uint32{sec - 1, sec + 5000}, none, ""},
		{"an inode", [2]uint32{77, 78}, none, ""},
		{"one value", [2]uint32{77, 77}, none, ""},
		{"the time once", [2]uint32{sec, 78}, none, ""},
	} {
		a, b := tables(c.seeds, 3, c.text)
		p, ok := findRand(prep, 0x1000, a, b, 16)
		if !ok {
			if c.seeding != "" {
				t.Errorf("%s is not found", c.name)
			}
			continue
		}
		if p.seeding != c.seeding || p.address != 0x1010 {
			t.Errorf("%s: seeded as %q at %#x", c.name, p.seeding, p.address)
			continue
		}
		if c.seeding == "R" {
			off := 16 + randSize + 8
			if !p.name([2]int{prep[0].Pid, prep[1].Pid}, 0x1000, a, b, off) || !bytes.Equal(a[16+randSize:], b[16+randSize:]) || len(p.names) != 1 {
				t.Errorf("the name is not found: %+v\n%q\n%q", p.names, a[16+randSize:], b[16+randSize:])
				continue
			}
		}
		g := p.generator()
		stopped, now, pid := Moment{Realtime: (sec+2)*1e9 + 1e8}, Moment{Realtime: (sec+9002)*1e9 + 5e8}, 0x123456
		memory := bytes.Clone(a)
		err := g.write(stopped, now, pid, func(addr uint64, text []byte) error { copy(memory[addr-0x1000:], text); return nil })
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		seed, calls, ok := readRand(memory[16:])
		then := Moment{Realtime: (g.Second + 9000) * 1e9}
		third := Preparation{Pid: pid, Began: then, Stopped: then}
		made := false
		for _, s := range seedings {
			_, ok := s.made(seed, third)
			made = made || s.name == c.seeding && ok
		}
		if !ok || calls != 3 || !made {
			t.Errorf("%s: the new process has seed %#x, %d calls, %v", c.name, seed, calls, ok)
		}
		if c.seeding == "R" {
			_, results := seeded(seed, calls)
			want := "./Rtmp/" + randName(pid, results[0]) + ".R\x00"
			if got := string(memory[16+randSize:][:len(want)]); got != want {
				t.Errorf("the new process has the name %q, want %q", got, want)
			}
		}
	}
}
