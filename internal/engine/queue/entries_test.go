package queue

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/record"
)

// arrayOfTrue returns the spec of an array of n commands.
func arrayOfTrue(n int) *Spec {
	return &Spec{Command: "true", Array: &Array{Indices: [][3]int{{1, n, 1}}, Mark: "<0>"}}
}

// stateSize returns the apparent and the allocated bytes of the files below a directory.
func stateSize(t *testing.T, dir string) (apparent, allocated int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || d.IsDir() {
			return err
		}
		apparent += info.Size()
		allocated += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return apparent, allocated
}

// A waiting array takes almost no space. Orders about all of its elements and readers add almost
// none.
func TestArrayTakesNoSpace(t *testing.T) {
	const n, most = 100_000, 1_000_000
	dir := t.TempDir()
	q := open(t, dir)
	check := func(after string) {
		t.Helper()
		apparent, allocated := stateSize(t, engine.State(dir))
		t.Logf("after %s: %d bytes in files of %d", after, allocated, apparent)
		if allocated > most {
			t.Errorf("after %s: %d bytes of state", after, allocated)
		}
	}
	submitArray(t, q, arrayOfTrue(n), BatchOptions{Held: true})
	check("the submission")
	all := &Selection{Tasks: [][2]int{{1, n}}}
	for _, c := range []struct {
		name string
		do   func(*Selection) (int, error)
		want [4]int
		held int
	}{
		{"release", q.Release, [4]int{n}, 0}, {"hold", q.Hold, [4]int{n}, n}, {"cancel", q.Cancel, [4]int{0, 0, 0, n}, 0}, {"retry", q.Retry, [4]int{n}, n}, {"release", q.Release, [4]int{n}, 0},
	} {
		if changed, err := c.do(all); changed != n || err != nil {
			t.Fatalf("%s: %d, %v", c.name, changed, err)
		}
		got := q.Census(1, n)
		if want := (Census{Counts: c.want, Held: c.held}); got != want || q.Counts() != c.want {
			t.Errorf("after %s: %+v, %v", c.name, got, q.Counts())
		}
		check(c.name)
	}
	p := q.Picker(nil)
	if task := next(t, q, p, ""); task != 1 {
		t.Errorf("task %d is first", task)
	}
	check("the first task")
	if task, err := p.Next(any1); err != nil || task.Number != 2 {
		t.Errorf("%+v, %v", task, err)
	}
}

// sameTasks compares two directories that were changed in the same way, one with an array and one
// with a line for each task.
func sameTasks(t *testing.T, array, plain *Queue) {
	t.Helper()
	n := len(plain.x.all())
	for task := 1; task <= n; task++ {
		a, _ := array.entry(task)
		b, _ := plain.entry(task)
		for _, e := range []*entry{&a, &b} {
			e.spec, e.specLen, e.record, e.recLen, e.own, e.others = 0, 0, 0, 0, 0, 0
		}
		if b.order, a.order = 0, 0; a != b {
			t.Fatalf("task %d of %d: %+v, want %+v", task, n, a, b)
		}
	}
	if a, b := array.Counts(), plain.Counts(); a != b {
		t.Fatalf("%v, want %v", a, b)
	}
	if a, b := array.Census(2, n-1), plain.Census(2, n-1); a != b {
		t.Fatalf("%+v, want %+v", a, b)
	}
	ranges := [][2]int{{1, n / 2}, {n/2 + 2, n}}
	if a, b := array.CountsOf(ranges), plain.CountsOf(ranges); a != b || array.Left(ranges) != plain.Left(ranges) {
		t.Fatalf("%+v, want %+v", a, b)
	}
	none := func(task int) bool { return task%7 == 3 }
	if a, b := array.HeldFrom(1, n, n/3, none), plain.HeldFrom(1, n, n/3, none); !slices.Equal(a, b) {
		t.Fatalf("%v, want %v", a, b)
	}
	var startable [2][]int
	for i, q := range []*Queue{array, plain} {
		if err := q.EachReady(none, func(s *ReadyTask) bool {
			startable[i] = append(startable[i], s.Task)
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(startable[0], startable[1]) {
		t.Fatalf("%v, want %v", startable[0], startable[1])
	}
	a, err := array.Tasks(&Selection{})
	b, berr := plain.Tasks(&Selection{})
	if err != nil || berr != nil || !reflect.DeepEqual(a, b) {
		t.Fatalf("%v %v: other tasks", err, berr)
	}
	p, o := array.Picker(nil), plain.Picker(nil)
	for {
		x, err := p.Next(any1)
		y, yerr := o.Next(any1)
		if err != nil || yerr != nil {
			t.Fatal(err, yerr)
		}
		if x == nil && y == nil {
			return
		}
		if x == nil || y == nil || x.Number != y.Number || x.Try != y.Try {
			t.Fatalf("%+v, want %+v", x, y)
		}
	}
}

// The elements of arrays are the same tasks as separate lines. This holds for each reader, after
// any orders and records, after the index is rebuilt, and for a reader with an index of its own.
func TestArraysAgainstLines(t *testing.T) {
	rounds := 12
	if os.Getenv("PREMIX_SOAK") != "" {
		rounds = 300
	}
	for seed := range rounds {
		random := rand.New(rand.NewPCG(uint64(seed), 7))
		var sizes []int // sizes of batches; negative if both directories get lines
		for range 1 + random.IntN(4) {
			sizes = append(sizes, []int{1, 2, 50, 1169, 1171, 4000, -1, -30}[random.IntN(8)])
		}
		n := 0
		var both [2]*Queue
		for i := range both {
			both[i] = open(t, t.TempDir())
			if err := both[i].Work(LocalWorker); err != nil {
				t.Fatal(err)
			}
		}
		for _, size := range sizes {
			o := BatchOptions{Options: Options{Priority: random.IntN(2), Retries: random.IntN(2), Group: "g" + strconv.Itoa(random.IntN(2))}, Held: random.IntN(2) == 0}
			if size < 0 {
				size = -size
				submit(t, both[0], o, Input{}, strings.Repeat("true\n", size))
			} else {
				submitArray(t, both[0], arrayOfTrue(size), o)
			}
			submit(t, both[1], o, Input{}, strings.Repeat("true\n", size))
			n += size
		}
		tries := make(map[int]int)
		for range 30 {
			first := 1 + random.IntN(n)
			last := []int{first, n, min(n, first+random.IntN(2000))}[random.IntN(3)]
			if random.IntN(3) == 0 {
				first = 1
			}
			kind, failed := random.IntN(7), random.IntN(2) == 0
			for _, q := range both {
				s := &Selection{Tasks: [][2]int{{first, last}}}
				var err error
				switch kind {
				case 0:
					_, err = q.Cancel(s)
				case 1:
					_, err = q.Retry(s)
				case 2:
					_, err = q.Hold(s)
				case 3:
					_, err = q.Release(s)
				default:
					r := &record.Task{Task: last, Try: tries[last] + 1}
					if failed {
						r.Cause, r.Error = record.CauseExit, "it failed"
					}
					err = q.Settle([]*record.Task{r})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if kind > 3 {
				tries[last]++
			}
		}
		sameTasks(t, both[0], both[1])
		if err := both[0].Close(); err != nil {
			t.Fatal(err)
		}
		sameTasks(t, open(t, both[0].Dir), both[1])
		if err := os.Remove(both[0].indexPath()); err != nil {
			t.Fatal(err)
		}
		sameTasks(t, open(t, both[0].Dir), both[1])
		mine, err := openIndex("")
		if err != nil {
			t.Fatal(err)
		}
		reader := open(t, both[0].Dir)
		reader.x.close()
		if reader.x = mine; reader.Refresh() != nil {
			t.Fatal("no index in memory")
		}
		sameTasks(t, reader, both[1])
		if t.Failed() {
			t.Fatalf("seed %d, batches %v", seed, sizes)
		}
	}
}

// If premix is killed while elements get entries, the next one completes the index.
func TestKilledWhileElementsGetEntries(t *testing.T) {
	const n = 5000
	dir := t.TempDir()
	q := open(t, dir)
	submit(t, q, BatchOptions{}, Input{}, "true\n")
	base := *q.x.head()
	submitArray(t, q, arrayOfTrue(n), BatchOptions{Held: true})
	first := &q.x.all()[1]
	if first.own != 1 {
		t.Fatalf("%d elements have entries", first.own)
	}
	check := func(at string, orders int64, own uint32) {
		t.Helper()
		want := states(t, q)
		held := q.Census(1, n+1)
		q.x.head().orders, q.x.all()[1].own = orders, own
		reader := open(t, dir)
		defer reader.Close()
		if got := states(t, reader); got != want || reader.Census(1, n+1) != held {
			t.Errorf("killed %s: other states", at)
		}
		if err := q.Refresh(); err != nil {
			t.Fatal(err)
		}
	}
	check("at the end of a batch", base.orders, 1)
	for _, c := range []struct {
		name string
		do   func(*Selection) (int, error)
		last int
	}{{"in a release", q.Release, 2000}, {"in a cancellation", q.Cancel, 3000}, {"in a hold of the rest", q.Hold, n + 1}, {"in a retry", q.Retry, n + 1}} {
		before, own := q.x.head().orders, q.x.all()[1].own
		if _, err := c.do(&Selection{Tasks: [][2]int{{10, c.last}}}); err != nil {
			t.Fatal(err)
		}
		check(c.name+", before its entries are counted", before, own)
		check(c.name+", before the order is", before, q.x.all()[1].own)
	}
	if err := q.Work(LocalWorker); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Release(&Selection{}); err != nil {
		t.Fatal(err)
	}
	end(t, q, 2, 1, "")
	at, own := *q.x.applied(q.number), q.x.all()[1].own
	end(t, q, n, 1, record.CauseExit)
	*q.x.applied(q.number) = at
	check("in a record", q.x.head().orders, own)
}

// The same holds for a worker that is killed at any moment.
func TestWorkerOfArrayKilled(t *testing.T) {
	const where = "PREMIX_TEST_WORKER"
	const n = 20_000
	if dir := os.Getenv(where); dir != "" {
		q := open(t, dir)
		if err := q.Work(LocalWorker); err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
		for range 200 {
			first := 1 + random.IntN(n)
			s := &Selection{Tasks: [][2]int{{first, min(n, first+random.IntN(200))}}}
			var err error
			switch random.IntN(4) {
			case 0:
				_, err = q.Hold(s)
			case 1:
				_, err = q.Release(s)
			case 2:
				_, err = q.Cancel(s)
			}
			if err != nil {
				t.Fatal(err)
			}
			var records []*record.Task
			for i := range 20 {
				task := (first+i*i-1)%n + 1
				e, _ := q.entry(task)
				records = append(records, &record.Task{Task: task, Try: int(e.try) + 1})
			}
			if err := q.Settle(records); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	rounds := 6
	if os.Getenv("PREMIX_SOAK") != "" {
		rounds = 200
	}
	dir := t.TempDir()
	q := open(t, dir)
	index := q.indexPath()
	submitArray(t, q, arrayOfTrue(n), BatchOptions{})
	q.Close()
	moved := false
	for round := range rounds {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), where+"="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(20+rand.IntN(300)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed or had ended before
		q := open(t, dir)
		want, held := states(t, q), q.Census(1, n)
		moved = moved || strings.ContainsAny(want, "sc")
		q.Close()
		if err := os.Remove(index); err != nil {
			t.Fatal(err)
		}
		q = open(t, dir)
		if got := states(t, q); got != want || q.Census(1, n) != held {
			t.Fatalf("round %d: the index has other states than the orders and the journals", round)
		}
		q.Close()
	}
	if !moved {
		t.Error("no task has ended: the test does not test")
	}
}

// On a full disk a record of an element is refused before it is written, and the process gets no
// signal.
func TestElementsOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	const n = 100_000 // 5.6 MB of entries
	q := open(t, dir)
	submitArray(t, q, arrayOfTrue(n), BatchOptions{})
	if err := q.Work(LocalWorker); err != nil {
		t.Fatal(err)
	}
	end(t, q, 1, 1, "")
	err := q.Settle([]*record.Task{{Task: n, Try: 1}})
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%v", err)
	}
	for _, q := range []*Queue{q, open(t, dir)} {
		if got := q.Counts(); got != [4]int{n - 1, 1} {
			t.Errorf("%v", got)
		}
	}
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	end(t, q, n, 1, "")
	if got := open(t, dir).Counts(); got != [4]int{n - 2, 2} {
		t.Errorf("%v", got)
	}
}
