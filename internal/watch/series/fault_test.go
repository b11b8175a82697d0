package series_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"premix/internal/kit/unmount"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// ticks adds one sample per second to each of many series.
func ticks(db *series.DB, from, until, many int) {
	for i := from; i < until; i++ {
		batch := make([]watch.Sample, many)
		for k := range batch {
			batch[k] = watch.Sample{ID: watch.NewID("disk.q", "device", fmt.Sprint(k)), Unit: watch.Count, Time: begin.Add(time.Duration(i) * time.Second), Value: float64(i)}
		}
		db.Samples(batch)
	}
}

// have returns the number of samples of each series, and checks that they are the first
// ones that were added.
func have(t *testing.T, db *series.DB, many int) []int {
	t.Helper()
	results, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(100 * 24 * time.Hour), Step: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	n := make([]int, many)
	for _, r := range results {
		var k int
		if _, err := fmt.Sscan(r.ID.Label("device"), &k); err != nil {
			t.Fatal(err)
		}
		n[k] = len(r.Points)
		for i, p := range r.Points {
			if p.Count != 1 || p.Mean != float64(i) || !p.Time.Equal(begin.Add(time.Duration(i)*time.Second)) {
				t.Fatalf("series %d: point %d is %+v", k, i, p)
			}
		}
	}
	return n
}

// copyTree copies the files of a directory.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// Wherever a journal is cut off, the samples before the cut are available, and more can be
// added.
func TestJournalCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir, series.Options{Flush: time.Hour})
	const many = 3
	ticks(db, 0, 8, many)
	shut(t, db)
	journals, err := filepath.Glob(filepath.Join(dir, "journal", "*"))
	if err != nil || len(journals) != 1 {
		t.Fatalf("%v, %v", journals, err)
	}
	text, err := os.ReadFile(journals[0])
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for cut := 0; cut <= len(text); cut++ {
		other := filepath.Join(t.TempDir(), "d")
		copyTree(t, dir, other)
		if err := os.Truncate(filepath.Join(other, "journal", filepath.Base(journals[0])), int64(cut)); err != nil {
			t.Fatal(err)
		}
		db, err := series.Open(other, series.Options{Flush: time.Hour})
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		n := have(t, db, many)
		for k := range n {
			if n[k] != n[0] || n[k] < last {
				t.Fatalf("cut at %d: %v samples, after %d", cut, n, last)
			}
		}
		last = n[0]
		ticks(db, last, last+2, many)
		shut(t, db)
		if db, err = series.Open(other, series.Options{Flush: time.Hour}); err != nil {
			t.Fatalf("cut at %d, opened again: %v", cut, err)
		}
		if n := have(t, db, many); n[0] != last+2 || n[many-1] != last+2 {
			t.Fatalf("cut at %d: %v samples after two more", cut, n)
		}
		shut(t, db)
	}
	if last != 8 {
		t.Errorf("%d samples are in the whole journal, want 8", last)
	}
}

// Whichever file is cut off, at any place, the database opens and answers with the
// remaining data.
func TestFilesCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir, series.Options{Window: time.Hour, RowsInTable: 1})
	ticks(db, 0, 90, 2)
	db.Task(task("k", begin, begin.Add(time.Second)))
	db.Event(watch.Event{Time: begin, Kind: "k"})
	if err := errors.Join(db.Flush(context.Background()), db.CloseTables()); err != nil {
		t.Fatal(err)
	}
	ticks(db, 90, 100, 2)
	db.Task(task("l", begin, time.Time{}))
	shut(t, db)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		size := info.Size()
		for _, cut := range []int64{0, 1, 7, size / 3, size / 2, size - 9, size - 8, size - 1} {
			if cut < 0 || cut >= size {
				continue
			}
			other := filepath.Join(t.TempDir(), "d")
			copyTree(t, dir, other)
			if err := os.Truncate(filepath.Join(other, name), cut); err != nil {
				return err
			}
			db, err := series.Open(other, series.Options{Window: time.Hour})
			if err != nil {
				t.Errorf("%s cut at %d: %v", name, cut, err)
				continue
			}
			ctx := context.Background()
			for _, step := range []time.Duration{time.Second, time.Minute, time.Hour} {
				if _, err := db.Query(ctx, series.Query{Name: "*", Start: begin, End: begin.Add(time.Hour), Step: step}); err != nil {
					t.Errorf("%s cut at %d: query: %v", name, cut, err)
				}
			}
			if _, err := db.Names(ctx); err != nil {
				t.Errorf("%s cut at %d: names: %v", name, cut, err)
			}
			if _, err := db.Tasks(ctx, series.TaskQuery{Start: begin, End: begin.Add(time.Hour)}); err != nil {
				t.Errorf("%s cut at %d: tasks: %v", name, cut, err)
			}
			if strings.HasSuffix(name, ".parquet") {
				if events, err := db.Events(ctx, time.UnixMilli(0), time.Now().Add(time.Hour)); err != nil || !strings.Contains(fmt.Sprint(events), "damaged") {
					t.Errorf("%s cut at %d: no event tells of it: %v, %v", name, cut, events, err)
				}
			}
			if err := db.Close(); err != nil {
				t.Errorf("%s cut at %d: close: %v", name, cut, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The windows of a day become one segment. If the process is killed before all of their
// journals are removed, no sample is counted twice afterwards, and no journal remains.
func TestJournalsOfADay(t *testing.T) {
	dir := t.TempDir()
	opt := series.Options{Window: 30 * time.Minute}
	db := open(t, dir, opt)
	const n, many = 2 * 3600, 2 // until midnight
	ticks(db, 0, n, many)
	shut(t, db)
	before := filepath.Join(t.TempDir(), "journal")
	copyTree(t, filepath.Join(dir, "journal"), before)
	db = open(t, dir, opt)
	if err := db.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Segments != 1 || s.Samples != n*many {
		t.Errorf("%d segments with %d samples, want one with %d", s.Segments, s.Samples, n*many)
	}
	shut(t, db)
	journals, err := os.ReadDir(before)
	if err != nil || len(journals) < 3 {
		t.Fatal(journals, err)
	}
	for left := range journals {
		if err := os.RemoveAll(filepath.Join(dir, "journal")); err != nil {
			t.Fatal(err)
		}
		copyTree(t, before, filepath.Join(dir, "journal"))
		for _, j := range journals[:left] {
			if err := os.Remove(filepath.Join(dir, "journal", j.Name())); err != nil {
				t.Fatal(err)
			}
		}
		db := open(t, dir, opt)
		if s := db.Stats(); s.Samples != n*many {
			t.Errorf("%d journals removed: %d samples, want %d", left, s.Samples, n*many)
		}
		if got := have(t, db, many); got[0] != n || got[many-1] != n {
			t.Errorf("%d journals removed: %v", left, got)
		}
		shut(t, db)
		if rest, err := os.ReadDir(filepath.Join(dir, "journal")); err != nil || len(rest) > 0 {
			t.Errorf("%d journals removed: %v are left, %v", left, rest, err)
		}
	}
}

// A flipped bit in a Parquet file never causes a panic.
func TestFlippedBits(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir, series.Options{})
	ticks(db, 0, 50, 2)
	if err := db.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	shut(t, db)
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "raw.parquet"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 1 + len(whole)/150 {
		other := filepath.Join(t.TempDir(), "d")
		copyTree(t, dir, other)
		flipped := bytes.Clone(whole)
		flipped[at] ^= 1 << (at % 8)
		name, err := filepath.Rel(dir, files[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, name), flipped, 0o666); err != nil {
			t.Fatal(err)
		}
		db, err := series.Open(other, series.Options{})
		if err != nil {
			t.Errorf("bit at %d: %v", at, err)
			continue
		}
		// An error is allowed, but not a panic.
		_, _ = db.Query(context.Background(), series.Query{Name: "*", Start: begin, End: begin.Add(time.Hour), Step: time.Second})
		if err := db.Close(); err != nil {
			t.Errorf("bit at %d: %v", at, err)
		}
	}
}

// TestMain is also the process that TestKill kills. It adds samples as fast as it can, and
// prints their number.
func TestMain(m *testing.M) {
	dir := os.Getenv("SERIES_TEST_KILL")
	if dir == "" {
		os.Exit(m.Run())
	}
	db, err := series.Open(dir, series.Options{Window: time.Hour, Flush: 5 * time.Millisecond, RowsInTable: 50, Now: func() time.Time { return begin }})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	first, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(100 * 24 * time.Hour), Step: time.Second})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	from := 0
	if len(first) > 0 {
		from = len(first[0].Points)
	}
	for i := from; ; i += 300 {
		for k := i; k < i+300; k++ {
			ticks(db, k, k+1, 2)
		}
		db.Task(task(fmt.Sprint(i), begin, begin.Add(time.Duration(i)*time.Second)))
		time.Sleep(time.Millisecond)
		if err := errors.Join(db.Throttle(context.Background()), db.Compact(context.Background())); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// Whenever the process is killed, the remaining samples have no gap and no duplicates, and
// the samples after a kill follow the samples before it.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	before := 0
	for round := range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "SERIES_TEST_KILL="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Wait for some lines of progress, a different number each time, and then kill the
		// process.
		buf := make([]byte, 1)
		for lines := 0; lines < 20+3*round; {
			if _, err := out.Read(buf); err != nil {
				t.Fatal(err)
			}
			if buf[0] == '\n' {
				lines++
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it fails because the process was killed
		db := open(t, dir, series.Options{Window: time.Hour})
		n := have(t, db, 2)
		if n[0] != n[1] || n[0] < before {
			t.Fatalf("round %d: %v samples, %d before", round, n, before)
		}
		before = n[0]
		day, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(100 * 24 * time.Hour), Step: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range day {
			count := int64(0)
			for _, p := range r.Points {
				count += p.Count
			}
			if count != int64(n[0]) {
				t.Fatalf("round %d: roll-ups count %d samples of %d", round, count, n[0])
			}
		}
		shut(t, db)
	}
	if before < 300 {
		t.Errorf("only %d samples outlived the kills", before)
	}
}

// onTmpfs mounts a small file system, or skips the test.
func onTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// until waits until ok returns true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: it does not come", what)
}

func events(t *testing.T, db *series.DB) string {
	t.Helper()
	all, err := db.Events(context.Background(), time.UnixMilli(0), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range all {
		kinds = append(kinds, e.Kind)
	}
	return strings.Join(kinds, " ")
}

// While the disk is full, all samples are in memory. Once there is room, they are written
// to disk.
func TestDiskFull(t *testing.T) {
	dir := onTmpfs(t, "2m")
	ballast := filepath.Join(dir, "ballast")
	opt := series.Options{Window: time.Hour, Flush: time.Millisecond}
	db := open(t, dir, opt)
	const many = 5
	ticks(db, 0, 100, many)
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	at := 100
	until(t, "disk_failed", func() bool {
		ticks(db, at, at+500, many)
		at += 500
		return db.Stats().Trouble != ""
	})
	ticks(db, at, at+4000, many) // reaches into the next window
	at += 4000
	if n := have(t, db, many); n[0] != at || n[many-1] != at {
		t.Errorf("%v samples while the disk is full, want %d", n, at)
	}
	if k := events(t, db); !strings.Contains(k, "disk_failed") {
		t.Errorf("events: %s", k)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	until(t, "disk_recovered", func() bool { return strings.Contains(events(t, db), "disk_recovered") })
	ticks(db, at, at+10, many)
	at += 10
	// All samples are now on disk.
	until(t, "segments", func() bool { return db.Stats().Segments > 0 })
	shut(t, db)
	db = open(t, dir, opt)
	if n := have(t, db, many); n[0] != at || n[many-1] != at {
		t.Errorf("%v samples after that, want %d", n, at)
	}
	if s := db.Stats(); s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// If the disk stays full, the use of memory is bounded: the oldest samples are dropped and
// counted.
func TestMemoryIsBounded(t *testing.T) {
	dir := onTmpfs(t, "1m")
	opt := series.Options{Window: time.Hour, Flush: time.Millisecond, Memory: 2 << 20}
	db := open(t, dir, opt)
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	at := 0
	until(t, "a loss", func() bool {
		ticks(db, at, at+2000, 20)
		at += 2000
		return db.Stats().Lost > 0 && at > 50_000
	})
	if s := db.Stats(); s.Memory > opt.Memory+opt.Memory/4 {
		t.Errorf("%d bytes in memory where %d are allowed", s.Memory, opt.Memory)
	}
	results, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(100 * 24 * time.Hour), Step: time.Second})
	if err != nil || len(results) != 20 {
		t.Fatalf("%d series, %v", len(results), err)
	}
	newest := results[0].Points[len(results[0].Points)-1]
	if newest.Mean != float64(at-1) {
		t.Errorf("the newest is %+v, want %d: the oldest should have gone", newest, at-1)
	}
	until(t, "samples_lost", func() bool { return strings.Contains(events(t, db), "samples_lost") })
	if db.Close() == nil {
		t.Error("closed without a word about what could not be written")
	}
}

// The clock jumps forward by a year, and back.
func TestClockJumps(t *testing.T) {
	dir := t.TempDir()
	opt := series.Options{Flush: time.Millisecond}
	db := open(t, dir, opt)
	id := watch.NewID("node.load")
	put := func(at time.Time, v float64) {
		db.Samples([]watch.Sample{{ID: id, Time: at, Value: v}})
	}
	times := []time.Duration{0, time.Minute, 365 * 24 * time.Hour, 365*24*time.Hour + time.Minute, 2 * time.Minute, -48 * time.Hour, 3 * time.Minute}
	for i, d := range times {
		put(begin.Add(d), float64(i))
	}
	put(time.Unix(-5, 0), 1)
	put(time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC), 1)
	check := func() {
		t.Helper()
		got, err := db.Query(context.Background(), series.Query{Name: "node.load", Start: begin.Add(-72 * time.Hour), End: begin.Add(400 * 24 * time.Hour), Step: time.Second})
		if err != nil || len(got) != 1 || len(got[0].Points) != len(times) {
			t.Errorf("%v, %v", got, err)
		}
	}
	check()
	if s := db.Stats(); s.Refused != 2 {
		t.Errorf("%d refused, want the two that cannot be", s.Refused)
	}
	until(t, "samples_refused", func() bool { return strings.Contains(events(t, db), "samples_refused") })
	if err := db.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	check()
	shut(t, db)
	db = open(t, dir, opt)
	check()
}

// Old samples cannot cause windows in use to be closed.
func TestTooManyTimes(t *testing.T) {
	db := open(t, t.TempDir(), series.Options{})
	for i := range 20 {
		db.Samples([]watch.Sample{{ID: watch.NewID("node.load"), Time: begin.Add(-time.Duration(i) * 24 * time.Hour), Value: 1}})
	}
	if s := db.Stats(); s.Refused != 16 || s.Samples != 4 {
		t.Errorf("%+v: four windows can be open", s)
	}
}

// Each resolution is removed at its age, and queries use the remaining ones.
func TestRetention(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	now := begin
	opt := series.Options{Flush: time.Millisecond, Keep: series.Keep{Raw: 48 * time.Hour, Minute: 96 * time.Hour, Hour: 200 * time.Hour, Tasks: 72 * time.Hour},
		Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }}
	db := open(t, dir, opt)
	ticks(db, 0, 7300, 1)
	db.Task(task("k", begin, begin.Add(time.Second)))
	if err := errors.Join(db.Flush(context.Background()), db.CloseTables()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		age    time.Duration
		points int // at a step of one second
		tasks  int
	}{
		{time.Hour, 7300, 1},
		{51 * time.Hour, 122, 1},
		{75 * time.Hour, 122, 0},
		{99 * time.Hour, 3, 0},
		{203 * time.Hour, 0, 0},
	} {
		mu.Lock()
		now = begin.Add(tt.age)
		mu.Unlock()
		if err := db.Expire(); err != nil {
			t.Fatal(err)
		}
		got, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(3 * time.Hour), Step: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		n, count := 0, int64(0)
		for _, r := range got {
			n += len(r.Points)
			for _, p := range r.Points {
				count += p.Count
			}
		}
		tasks, err := db.Tasks(context.Background(), series.TaskQuery{Start: begin, End: begin.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if n != tt.points || len(tasks) != tt.tasks || n > 0 && count != 7300 {
			t.Errorf("after %v: %d points of %d samples, %d tasks; want %d, %d", tt.age, n, count, len(tasks), tt.points, tt.tasks)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "segments", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Series with few samples have no roll-ups. Their samples are kept as long as roll-ups
// would be.
func TestRetentionOfFewSamples(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	now := begin
	db := open(t, dir, series.Options{Flush: time.Millisecond, Keep: series.Keep{Raw: 48 * time.Hour, Minute: 96 * time.Hour, Hour: 200 * time.Hour},
		Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	for i := range 6 {
		db.Samples([]watch.Sample{{ID: watch.NewID("disk.q"), Time: begin.Add(time.Duration(i) * 20 * time.Minute), Value: float64(i)}})
	}
	if err := db.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*.parquet"))
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != "raw.parquet" {
		t.Fatalf("%v, %v: want the samples alone", files, err)
	}
	for _, tt := range []struct {
		age    time.Duration
		points int
	}{{time.Hour, 2}, {51 * time.Hour, 2}, {99 * time.Hour, 2}, {203 * time.Hour, 0}} {
		mu.Lock()
		now = begin.Add(tt.age)
		mu.Unlock()
		if err := db.Expire(); err != nil {
			t.Fatal(err)
		}
		got, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(3 * time.Hour), Step: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, r := range got {
			n += len(r.Points)
			if p := r.Points[1]; p.Min != 3 || p.Mean != 4 || p.Max != 5 || p.Count != 3 {
				t.Errorf("after %v: %+v", tt.age, p)
			}
		}
		if n != tt.points {
			t.Errorf("after %v: %d points, want %d", tt.age, n, tt.points)
		}
	}
}

// Samples are added, queried, closed, merged and removed at the same time.
func TestConcurrently(t *testing.T) {
	db := open(t, t.TempDir(), series.Options{Window: time.Minute, Flush: time.Millisecond, RowsInTable: 20})
	var writers, readers sync.WaitGroup
	const many, length = 4, 5000
	for k := range many {
		writers.Go(func() {
			for i := range length {
				at := begin.Add(time.Duration(i) * time.Second)
				db.Samples([]watch.Sample{{ID: watch.NewID("disk.q", "device", fmt.Sprint(k)), Time: at, Value: float64(i)}})
				if i%10 == 0 {
					db.Task(task(fmt.Sprint(k, i), at, at))
					db.Event(watch.Event{Time: at})
				}
			}
		})
	}
	ctx, stop := context.WithCancel(context.Background())
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				for _, step := range []time.Duration{time.Second, time.Minute, time.Hour} {
					results, err := db.Query(context.Background(), series.Query{Name: "disk.*", Start: begin, End: begin.Add(length * time.Second), Step: step})
					if err != nil {
						t.Error(err)
						return
					}
					for _, r := range results {
						for i, p := range r.Points {
							if step == time.Second && (p.Count != 1 || p.Mean != p.Time.Sub(begin).Seconds()) {
								t.Errorf("point %d: %+v", i, p)
								return
							}
						}
					}
				}
				if _, err := db.Names(context.Background()); err != nil {
					t.Error(err)
				}
				if _, err := db.Tasks(context.Background(), series.TaskQuery{Start: begin, End: begin.Add(time.Hour)}); err != nil {
					t.Error(err)
				}
				db.Stats()
				db.Latest(begin)
			}
		})
	}
	readers.Go(func() {
		for ctx.Err() == nil {
			if err := errors.Join(db.Flush(context.Background()), db.Compact(context.Background()), db.CloseTables()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	writers.Wait()
	stop()
	readers.Wait()
	results, err := db.Query(context.Background(), series.Query{Name: "disk.q", Start: begin, End: begin.Add(length * time.Second), Step: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	count := int64(0)
	for _, r := range results {
		for _, p := range r.Points {
			count += p.Count
		}
	}
	if refused := db.Stats().Refused; count+refused != many*length {
		t.Errorf("%d samples and %d refused, want %d", count, refused, many*length)
	}
	tasks, err := db.Tasks(context.Background(), series.TaskQuery{Start: begin, End: begin.Add(24 * time.Hour)})
	if err != nil || len(tasks) != many*length/10 {
		t.Errorf("%d tasks, want %d; %v", len(tasks), many*length/10, err)
	}
}
