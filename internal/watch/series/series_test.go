package series_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

var begin = time.Date(2026, 11, 16, 22, 0, 0, 0, time.UTC)

func open(t *testing.T, dir string, opt series.Options) *series.DB {
	t.Helper()
	if opt.Now == nil {
		opt.Now = func() time.Time { return begin }
	}
	db, err := series.Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func shut(t *testing.T, db *series.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// naive keeps samples in a map, and computes roll-ups in the simplest way.
type naive map[string]map[int64]float64

func (n naive) add(s watch.Sample) {
	k := s.ID.String()
	if n[k] == nil {
		n[k] = make(map[int64]float64)
	}
	n[k][s.Time.UnixMilli()] = s.Value
}

func (n naive) query(id watch.ID, start, end time.Time, step time.Duration) []series.Point {
	ms := step.Milliseconds()
	from, until := start.UnixMilli()/ms*ms, (end.UnixMilli()+ms-1)/ms*ms
	points := make(map[int64]*series.Point)
	for t, v := range n[id.String()] {
		if t < from || t >= until {
			continue
		}
		at := t / ms * ms
		p := points[at]
		if p == nil {
			p = &series.Point{Time: time.UnixMilli(at).UTC(), Min: v, Max: v}
			points[at] = p
		}
		p.Min, p.Max = min(p.Min, v), max(p.Max, v)
		p.Mean += v
		p.Count++
	}
	var all []series.Point
	for _, at := range slices.Sorted(maps.Keys(points)) {
		p := points[at]
		p.Mean /= float64(p.Count)
		all = append(all, *p)
	}
	return all
}

func equalPoints(a, b []series.Point) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d points, want %d", len(a), len(b))
	}
	for i := range a {
		x, y := a[i], b[i]
		off := math.Abs(x.Mean-y.Mean) / max(1, math.Abs(y.Mean))
		if !x.Time.Equal(y.Time) || x.Min != y.Min || x.Max != y.Max || x.Count != y.Count || off > 1e-9 {
			return fmt.Errorf("point %d is %+v, want %+v", i, x, y)
		}
	}
	return nil
}

// In whatever order samples are added, and wherever they are stored, answers are the same
// as from a map.
func TestAnswersAreThoseOfAMap(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			// With odd seeds, samples are added in batches, and the window includes all
			// jumps. With even seeds they are added one by one, because then the test
			// knows which ones are refused.
			opt, jump, size := series.Options{Window: 2 * time.Hour, Flush: time.Millisecond}, 5, 200
			if seed%2 == 0 {
				opt.Window, jump, size = 30*time.Minute, 30, 2
			}
			db := open(t, dir, opt)
			want := make(naive)
			var ids []watch.ID
			for i := range 5 {
				ids = append(ids, watch.NewID(fmt.Sprintf("disk.q%d", i/2), "device", fmt.Sprintf("s\"d%d", i), "node", "n"))
			}
			ids = append(ids, watch.NewID("node.load"))
			at := begin
			length := time.Duration(0)
			ctx := context.Background()
			for range 60 * 200 / size / 10 {
				var batch []watch.Sample
				for range r.IntN(size) {
					switch r.IntN(40) {
					case 0:
						at = at.Add(-time.Duration(r.IntN(jump)) * time.Minute)
					case 1:
						at = at.Add(time.Duration(r.IntN(jump)) * time.Minute)
					default:
						at = at.Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
					}
					batch = append(batch, watch.Sample{ID: ids[r.IntN(len(ids))], Unit: watch.Count, Time: at, Value: math.Round(r.NormFloat64()*1000) / 8})
					length = max(length, at.Sub(begin))
				}
				before := db.Stats().Refused
				db.Samples(batch)
				if db.Stats().Refused == before {
					for _, s := range batch {
						want.add(s)
					}
				} else if len(batch) > 1 {
					t.Fatal("samples were refused")
				}
				switch r.IntN(15 * 200 / size / 10) {
				case 0:
					if err := db.Flush(ctx); err != nil {
						t.Fatal(err)
					}
				case 1:
					if err := db.Compact(ctx); err != nil {
						t.Fatal(err)
					}
				case 2:
					shut(t, db)
					db = open(t, dir, opt)
				}
				for range 3 {
					id := ids[r.IntN(len(ids))]
					steps := []time.Duration{time.Millisecond, time.Second, 17 * time.Second, time.Minute, 5 * time.Minute, time.Hour, 24 * time.Hour}
					step := steps[r.IntN(len(steps))]
					start := begin.Add(time.Duration(r.Int64N(int64(length)+1)) - 10*time.Minute)
					end := start.Add(time.Duration(r.Int64N(int64(length) + 1)))
					got, err := db.Query(ctx, series.Query{Name: id.Name, Match: id.Labels, Start: start, End: end, Step: step})
					if err != nil {
						t.Fatal(err)
					}
					expect := want.query(id, start, end, step)
					var points []series.Point
					if len(got) > 0 {
						points = got[0].Points
					}
					if err := equalPoints(points, expect); err != nil {
						t.Fatalf("%s from %v to %v by %v: %v", id, start, end, step, err)
					}
				}
			}
			names, err := db.Names(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(names) != len(want) {
				t.Errorf("%d names, want %d", len(names), len(want))
			}
			if n := db.Stats().Samples; n < int64(len(want["node.load"])) {
				t.Errorf("%d samples", n)
			}
		})
	}
}

func TestQuery(t *testing.T) {
	db := open(t, t.TempDir(), series.Options{})
	for i := range 10 {
		at := begin.Add(time.Duration(i) * time.Second)
		db.Samples([]watch.Sample{
			{ID: watch.NewID("disk.read_bytes", "node", "n1", "device", "sda"), Unit: watch.BytesPerSecond, Time: at, Value: float64(i)},
			{ID: watch.NewID("disk.read_bytes", "node", "n1", "device", "sdb"), Unit: watch.BytesPerSecond, Time: at, Value: 1},
			{ID: watch.NewID("disk.write_bytes", "node", "n1", "device", "sda"), Unit: watch.BytesPerSecond, Time: at, Value: 2},
			{ID: watch.NewID("node.load", "node", "n1"), Unit: watch.Count, Time: at, Value: math.NaN()},
		})
	}
	end := begin.Add(10 * time.Second)
	for _, tt := range []struct {
		name string
		q    series.Query
		want string
	}{
		{"one", series.Query{Name: "disk.read_bytes", Match: []watch.Label{{Key: "device", Value: "sda"}}, Start: begin, End: end, Step: 5 * time.Second}, "disk.read_bytes{device=\"sda\",node=\"n1\"} 0/2/4*5 5/7/9*5"},
		{"all of a name", series.Query{Name: "disk.read_bytes", Start: begin, End: end, Step: 10 * time.Second}, "disk.read_bytes{device=\"sda\",node=\"n1\"} 0/4.5/9*10; disk.read_bytes{device=\"sdb\",node=\"n1\"} 1/1/1*10"},
		{"a prefix", series.Query{Name: "disk.w*", Start: begin, End: end, Step: time.Minute}, "disk.write_bytes{device=\"sda\",node=\"n1\"} 2/2/2*10"},
		{"no star is no prefix", series.Query{Name: "disk.w", Start: begin, End: end}, ""},
		{"everything", series.Query{Name: "*", Match: []watch.Label{{Key: "device", Value: "sdb"}}, Start: begin, End: end, Step: time.Minute}, "disk.read_bytes{device=\"sdb\",node=\"n1\"} 1/1/1*10"},
		{"the end is left out", series.Query{Name: "disk.w*", Start: begin, End: begin.Add(time.Second), Step: time.Second}, "disk.write_bytes{device=\"sda\",node=\"n1\"} 2/2/2*1"},
		{"NaN is nothing", series.Query{Name: "node.load", Start: begin, End: end}, ""},
		{"nothing", series.Query{Name: "*", Start: end, End: begin}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			results, err := db.Query(context.Background(), tt.q)
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, r := range results {
				text := r.ID.String()
				for _, p := range r.Points {
					text += fmt.Sprintf(" %v/%v/%v*%d", p.Min, p.Mean, p.Max, p.Count)
				}
				texts = append(texts, text)
			}
			if got := strings.Join(texts, "; "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	var many *series.TooManyError
	if _, err := db.Query(context.Background(), series.Query{Name: "*", Start: begin, End: end, Step: time.Second, MaxPoints: 29}); !errors.As(err, &many) {
		t.Errorf("30 points where 29 are allowed: %v", err)
	}
	if n := db.Stats().Refused; n != 10 {
		t.Errorf("%d samples refused, want 10", n)
	}
}

func TestAutoStep(t *testing.T) {
	for _, tt := range []struct{ length, want time.Duration }{
		{0, time.Second},
		{1000 * time.Second, time.Second},
		{1001 * time.Second, 2 * time.Second},
		{24 * time.Hour, 2 * time.Minute},
		{90 * 24 * time.Hour, 3 * time.Hour},
		{20 * 365 * 24 * time.Hour, 8 * 24 * time.Hour},
	} {
		if got := series.AutoStep(tt.length); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.length, got, tt.want)
		}
	}
}

func TestInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, series.Options{})
	if _, err := series.Open(dir, series.Options{}); exit.Of(err) != exit.Directory || !strings.Contains(err.Error(), "in use by another premix watch") {
		t.Errorf("opened twice: %v", err)
	}
}

func task(key string, began, end time.Time) watch.Task {
	return watch.Task{Key: key, Name: "s", User: "u", Step: "bwa", Run: "/r", Began: began, End: end, OK: !end.IsZero(), Cores: 1, MaxRSS: 7}
}

func TestTasks(t *testing.T) {
	dir := t.TempDir()
	opt := series.Options{Flush: time.Millisecond}
	db := open(t, dir, opt)
	for i := range 5 {
		at := begin.Add(time.Duration(i) * time.Minute)
		db.Task(task(fmt.Sprint(i), at, time.Time{}))
		if i != 2 {
			db.Task(task(fmt.Sprint(i), at, at.Add(30*time.Second+time.Duration(i%4)*time.Second)))
		}
	}
	check := func(when string, want string, q series.TaskQuery) {
		t.Helper()
		tasks, err := db.Tasks(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, k := range tasks {
			if k.End.IsZero() {
				k.Key += "r"
			}
			keys = append(keys, k.Key)
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%s: tasks %q, want %q", when, got, want)
		}
	}
	all := func(when string) {
		t.Helper()
		check(when, "0 1 2r 3 4", series.TaskQuery{Start: begin, End: begin.Add(time.Hour)})
		check(when, "2r 3", series.TaskQuery{Start: begin.Add(3 * time.Minute), End: begin.Add(4 * time.Minute)})
		check(when, "2r", series.TaskQuery{Start: begin.Add(24 * time.Hour), End: begin.Add(25 * time.Hour)})
		check(when, "", series.TaskQuery{Start: begin, End: begin.Add(time.Hour), User: "nobody"})
		check(when, "2r 3", series.TaskQuery{Start: begin.Add(3*time.Minute - 15*time.Second), End: begin.Add(time.Hour), Limit: 2, Step: "bwa"})
	}
	all("in memory")
	shut(t, db)
	db = open(t, dir, opt)
	all("from the journal")
	shut(t, db)
	opt.RowsInTable = 1
	db = open(t, dir, opt)
	if err := db.CloseTables(); err != nil {
		t.Fatal(err)
	}
	all("as Parquet")
	shut(t, db)
	db = open(t, dir, opt)
	all("as Parquet, reopened")
	// A report that a task has begun changes nothing if its end is known.
	db.Task(task("3", begin.Add(3*time.Minute), time.Time{}))
	all("told again")
	if files, _ := filepath.Glob(filepath.Join(dir, "tasks", "*.parquet")); len(files) == 0 {
		t.Error("there is no Parquet file")
	}
}

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir, series.Options{})
	e := watch.Event{Time: begin, Node: "n", Layer: watch.LayerMount, Kind: "mount_added", Text: "a mount came"}
	db.Event(e)
	for range 2 {
		got, err := db.Events(context.Background(), begin, begin.Add(time.Second))
		if err != nil || len(got) != 1 || got[0] != e {
			t.Errorf("events %v, %v", got, err)
		}
		if got, err := db.Events(context.Background(), begin.Add(time.Second), begin.Add(time.Hour)); err != nil || len(got) != 0 {
			t.Errorf("events of another time %v, %v", got, err)
		}
		shut(t, db)
		db = open(t, dir, series.Options{})
	}
}

func TestSubscribe(t *testing.T) {
	db := open(t, t.TempDir(), series.Options{})
	updates, cancel := db.Subscribe()
	slow, cancelSlow := db.Subscribe()
	defer cancelSlow()
	s := watch.Sample{ID: watch.NewID("node.load"), Time: begin, Value: 1}
	db.Samples([]watch.Sample{s})
	db.Task(task("k", begin, time.Time{}))
	db.Event(watch.Event{Time: begin, Kind: "k"})
	if u := <-updates; len(u.Samples) != 1 || u.Samples[0].Value != 1 {
		t.Errorf("samples: %+v", u)
	}
	if u := <-updates; u.Task == nil || u.Task.Key != "k" {
		t.Errorf("task: %+v", u)
	}
	if u := <-updates; u.Event == nil || u.Event.Kind != "k" {
		t.Errorf("event: %+v", u)
	}
	cancel()
	if _, more := <-updates; more {
		t.Error("cancelled, and something came")
	}
	for range 1000 {
		db.Samples([]watch.Sample{s})
	}
	lost, got := 0, 0
	for len(slow) > 0 {
		<-slow
		got++
	}
	db.Samples([]watch.Sample{s})
	for len(slow) > 0 {
		u := <-slow
		lost += u.Lost
		got++
	}
	if lost+got-1 != 1004-1+1-0 && lost == 0 {
		t.Errorf("lost %d, got %d", lost, got)
	}
}

// A task is read from a file with all its fields or with the requested ones, and only once
// if two files contain it.
func TestTaskFields(t *testing.T) {
	db := open(t, t.TempDir(), series.Options{})
	defer shut(t, db)
	full := watch.Task{Key: "/r:1.1", Name: "sample ü", Run: "/r", Step: "bwa", User: "beatrix", Node: "n1", Engine: "slurm", Start: "fork", Reason: "killed",
		Queued: begin, Began: begin.Add(time.Second), End: begin.Add(time.Minute), Exit: -1, OK: true, Cores: 2.5, Memory: 1 << 40, CPU: 0.25,
		MaxRSS: 3, Read: 4, Written: 5, WarmedIn: 0.125}
	v := reflect.ValueOf(full)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("the test leaves %s empty", v.Type().Field(i).Name)
		}
	}
	again := full
	again.Exit = 7
	for _, told := range []watch.Task{full, again} {
		db.Task(told)
		db.Task(task("2", begin, begin.Add(time.Hour)))
		if err := db.CloseTables(); err != nil {
			t.Fatal(err)
		}
	}
	get := func(fields series.TaskFields) watch.Task {
		tasks, err := db.Tasks(context.Background(), series.TaskQuery{Start: begin, End: begin.Add(time.Hour), User: "beatrix", Step: "bwa", Run: "/r", Fields: fields})
		if err != nil || len(tasks) != 1 {
			t.Fatalf("%d tasks, %v", len(tasks), err)
		}
		return tasks[0]
	}
	if got := get(0); got != again {
		t.Errorf("%+v", got)
	}
	if got := get(series.TaskCPU | series.TaskExit | series.TaskOK); got.CPU != again.CPU || got.Exit != 7 || !got.OK || !got.End.Equal(again.End) {
		t.Errorf("%+v", got)
	}
}
