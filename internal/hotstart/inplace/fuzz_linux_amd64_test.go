package inplace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// build compiles a program of testdata.
func build(t *testing.T, name string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("cc", "-O1", "-pthread", "-o", exe, "testdata/"+name+".c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, out)
	}
	return exe
}

// TestLateFuzz compares hot starts and direct starts of programs that keep random properties of
// their words. PREMIX_FUZZ_SEED=N repeats one program, and PREMIX_SOAK=N makes N programs.
// PREMIX_FUZZ_BITS is the minimum number of bits of a computed value that they keep.
func TestLateFuzz(t *testing.T) {
	exe := build(t, "late")
	number := func(name string, other uint64) uint64 {
		if v := os.Getenv(name); v != "" {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		return other
	}
	bits := number("PREMIX_FUZZ_BITS", 16)
	if seed := number("PREMIX_FUZZ_SEED", 0); seed != 0 {
		lateOne(t, exe, seed, bits, map[string]int{})
		return
	}
	first, count := uint64(rand.Uint32()), number("PREMIX_SOAK", 10)
	t.Logf("seeds %d to %d", first, first+count-1)
	unfit := map[string]int{}
	hot := 0
	for seed := first; seed < first+count; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			if lateOne(t, exe, seed, bits, unfit) {
				hot++
			}
		})
	}
	t.Logf("%d programs were started hot; unfit: %v", hot, unfit)
	if hot == 0 {
		t.Error("no program was started hot")
	}
}

// lateOne prepares one program and makes calls with other words. It reports whether all calls were
// hot.
func lateOne(t *testing.T, exe string, seed, bits uint64, refused map[string]int) bool {
	p := newPlace(t)
	r := rand.New(rand.NewPCG(seed, bits))
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
	lengths := make([]int, 2+r.IntN(3))
	for i := range lengths {
		lengths[i] = 3 + r.IntN(10)
	}
	steps := 1 + r.IntN(12)
	call := func(i int) invocation {
		var words []string
		for _, n := range lengths {
			b := []byte{}
			for k := range n {
				letter := letters[r.IntN(len(letters))]
				if k < 2 {
					letter = letters[10+r.IntN(52)] // a name instead of a number
				}
				if k >= n/2 {
					letter = letters[r.IntN(62)]
				}
				b = append(b, letter)
			}
			if n > 6 {
				b[4] = '-' // its position is part of the shape
			}
			words = append(words, strings.ReplaceAll(string(b), "_", "x"))
		}
		input := words[0] + ".fq"
		if r.IntN(8) > 0 || i == 0 {
			p.write(input, reads(int(seed)+i, 200+r.IntN(400)))
		}
		args := []string{strconv.FormatUint(seed, 10), strconv.Itoa(steps), strconv.FormatUint(bits, 10), "{output:" + words[1] + ".out}", "{input:" + input + "}"}
		for _, w := range words[2:] {
			args = append(args, "{label:"+w+"}")
		}
		return invocation{exe: exe, args: args}
	}
	v := call(0)
	err := p.prepare(v)
	var u *Unfit
	if errors.As(err, &u) {
		what := fmt.Sprintf("%.40s", u.Reason)
		refused[what]++
		return false
	}
	if err != nil {
		t.Error(err)
		return false
	}
	hot := true
	for i := range 4 {
		if i > 0 {
			v = call(i)
		}
		hot = strings.HasPrefix(p.same(v).kind, "hot") && hot
	}
	return hot
}
