package explain_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/series"
)

// simulated is a machine that does not exist. Its series are functions of time and a seed,
// defined at any moment of any day, with noise of several kinds. The tests of findings use
// it, because a real machine cannot be controlled well enough.
type simulated struct {
	now    time.Time // end of the data
	first  time.Time // beginning of the data
	series []*wave
	tasks  []watch.Task
}

// wave is one simulated series.
type wave struct {
	id       watch.ID
	unit     watch.Unit
	seed     uint64
	interval int64 // seconds between samples

	level   float64
	daily   float64 // fraction of the level that depends on the hour
	slow    float64 // amplitude of noise that lasts for minutes
	fast    float64 // amplitude of independent noise with heavy tails
	burst   float64 // height of usual bursts
	every   int64   // seconds between bursts
	growth  float64 // per second
	least   float64
	most    float64
	whole   bool // whether values are whole numbers
	from    int64
	until   int64                   // Unix time; 0 means without end
	planted func(t float64) float64 // added to the value, by Unix time
}

func hash(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x ^= x >> 31
	x *= 0x7fb5d329728ea185
	x ^= x >> 27
	x *= 0x81dadef4bc2dd44d
	return x ^ x>>33
}

func uniform(a, b uint64) float64 { return float64(hash(a, b)>>11) / (1 << 53) }

// normal returns an approximately normal value: the sum of four uniform values.
func normal(a, b uint64) float64 {
	h := hash(a, b)
	sum := 0.0
	for range 4 {
		sum += float64(h & 0xffff)
		h >>= 16
	}
	return (sum/0xffff - 2) * math.Sqrt(3)
}

// smooth returns noise that changes within about the given number of seconds.
func smooth(seed uint64, t, seconds int64) float64 {
	i, r := t/seconds, float64(t%seconds)/float64(seconds)
	r = r * r * (3 - 2*r)
	return normal(seed, uint64(i))*(1-r) + normal(seed, uint64(i+1))*r
}

func (w *wave) at(t int64) float64 {
	v := w.level
	if w.daily != 0 {
		v += w.level * w.daily * math.Sin(2*math.Pi*float64(t%86400)/86400+float64(w.seed%7))
	}
	if w.slow != 0 {
		v += w.slow * (0.6*smooth(w.seed+1, t, 17) + 0.8*smooth(w.seed+2, t, 131) + 0.5*smooth(w.seed+3, t, 907))
	}
	if w.fast != 0 {
		n := normal(w.seed+4, uint64(t))
		if uniform(w.seed+5, uint64(t)) < 0.02 {
			n *= 6 // a heavier tail than a normal distribution has
		}
		v += w.fast * n
	}
	if w.burst != 0 {
		// There is one burst in each stretch, at any place in it, of one to four seconds.
		stretch := t / w.every
		begin := stretch*w.every + int64(uniform(w.seed+6, uint64(stretch))*float64(w.every-4))
		if t >= begin && t <= begin+int64(hash(w.seed+7, uint64(stretch))%4) {
			v += w.burst * (0.5 + uniform(w.seed+8, uint64(stretch)))
		}
	}
	v += w.growth * float64(t%(30*86400))
	if w.planted != nil {
		v += w.planted(float64(t))
	}
	v = max(v, w.least)
	if w.most > 0 {
		v = min(v, w.most)
	}
	if w.whole {
		v = math.Round(v)
	}
	return v
}

func (s *simulated) Names(context.Context) ([]series.Info, error) {
	var list []series.Info
	for _, w := range s.series {
		i := series.Info{ID: w.id, Unit: w.unit, First: s.first, Last: s.now}
		if w.from != 0 {
			i.First = time.Unix(w.from, 0)
		}
		if w.until != 0 && w.until < s.now.Unix() {
			i.Last = time.Unix(w.until, 0)
		}
		list = append(list, i)
	}
	return list, nil
}

func (s *simulated) Query(_ context.Context, q series.Query) ([]series.Result, error) {
	var list []series.Result
	step := max(int64(q.Step/time.Second), 1)
	for _, w := range s.series {
		if w.id.Name != q.Name && (!strings.HasSuffix(q.Name, "*") || !strings.HasPrefix(w.id.Name, q.Name[:len(q.Name)-1])) {
			continue
		}
		if slices.ContainsFunc(q.Match, func(l watch.Label) bool { return w.id.Label(l.Key) != l.Value }) {
			continue
		}
		r := series.Result{ID: w.id, Unit: w.unit, Step: time.Duration(step) * time.Second}
		from, to := max(q.Start.Unix(), s.first.Unix(), w.from), min(q.End.Unix(), s.now.Unix())
		if w.until != 0 {
			to = min(to, w.until)
		}
		for begin := from - from%step; begin < to; begin += step {
			p := series.Point{Time: time.Unix(begin, 0), Min: math.Inf(1), Max: math.Inf(-1)}
			for t := max(begin, from); t < min(begin+step, to); t++ {
				if t%w.interval != 0 {
					continue
				}
				v := w.at(t)
				p.Min, p.Max, p.Mean = min(p.Min, v), max(p.Max, v), p.Mean+v
				p.Count++
			}
			if p.Count > 0 {
				p.Mean /= float64(p.Count)
				r.Points = append(r.Points, p)
			}
		}
		if len(r.Points) > 0 {
			list = append(list, r)
		}
	}
	return list, nil
}

func (s *simulated) Tasks(_ context.Context, q series.TaskQuery) ([]watch.Task, error) {
	var list []watch.Task
	for _, t := range s.tasks {
		if t.Began.Before(q.End) && t.End.After(q.Start) {
			if t.End.After(s.now) {
				t.End = time.Time{}
			}
			list = append(list, t)
		}
	}
	return list, nil
}

// storm describes the creation and removal of thousands of files on a disk. The zero value
// is a window without one.
type storm struct {
	device       string
	begin, until time.Time
}

// newSimulated returns a machine with the given number of disks that runs a workflow of two
// steps on four slots, from hours before a window until its end.
func newSimulated(seed uint64, disks int, end time.Time, hours int, st storm) *simulated {
	rng := rand.New(rand.NewPCG(seed, 99))
	s := &simulated{now: end, first: end.Add(-3 * 24 * time.Hour)}
	began, until := float64(st.begin.Unix()), float64(st.until.Unix())
	// ramp returns a function that grows from 0 to height within the given number of
	// seconds, beginning lag seconds after the storm.
	ramp := func(height, lag, within float64) func(float64) float64 {
		if st.device == "" {
			return nil
		}
		noise := rng.Uint64()
		return func(t float64) float64 {
			if t < began+lag || t >= until+lag {
				return 0
			}
			return height * min((t-began-lag+1)/within, 1) * (0.8 + 0.4*uniform(noise, uint64(t)))
		}
	}
	add := func(w *wave, name string, unit watch.Unit, labels ...string) *wave {
		w.id, w.unit, w.seed = watch.NewID(name, append(labels, "node", "n1")...), unit, rng.Uint64()
		if w.interval == 0 {
			w.interval = 1
		}
		s.series = append(s.series, w)
		return w
	}
	for i := range disks {
		device := fmt.Sprintf("sd%c%c", 'a'+i/26, 'a'+i%26)
		busy := rng.Float64() * rng.Float64()
		mine := func(height, lag, within float64) func(float64) float64 {
			if device != st.device {
				return nil
			}
			return ramp(height, lag, within)
		}
		add(&wave{level: 300 * busy, daily: 0.4, slow: 40 * busy, fast: 25 * busy, burst: 200, every: 30 + rng.Int64N(60), planted: mine(900+1500*rng.Float64(), 0, 2)}, "disk.writes", watch.PerSecond, "device", device)
		add(&wave{level: 200 * busy, daily: 0.4, slow: 60 * busy, fast: 40 * busy, burst: 100, every: 100}, "disk.reads", watch.PerSecond, "device", device)
		add(&wave{level: 5e7 * busy, slow: 2e7 * busy, fast: 1e7 * busy, burst: 3e7, every: 45, planted: mine(8e6, 0, 2)}, "disk.written_bytes", watch.BytesPerSecond, "device", device)
		add(&wave{level: 8e7 * busy, daily: 0.3, slow: 3e7 * busy, fast: 2e7 * busy}, "disk.read_bytes", watch.BytesPerSecond, "device", device)
		add(&wave{level: 0.5 * busy, slow: 0.1 * busy, fast: 0.05 * busy, most: 1, burst: 0.3, every: 45, planted: mine(0.9, 0, 3)}, "disk.busy", watch.Ratio, "device", device)
		add(&wave{level: 3 * busy, slow: busy, fast: 1, whole: true, burst: 6, every: 45, planted: mine(20+160*rng.Float64(), 0, 3)}, "disk.in_flight", watch.Count, "device", device)
		add(&wave{level: 0.002, slow: 0.0005, fast: 0.001, burst: 0.02, every: 200, planted: mine(0.08, 0, 3)}, "disk.write_wait", watch.Seconds, "device", device)
		add(&wave{level: 2e11, growth: 2e4 * busy, slow: 1e7, interval: 10}, "mount.available", watch.Bytes, "mount", "/data/"+device)
		add(&wave{level: 1e6, growth: -0.2, slow: 5, whole: true, interval: 10}, "mount.inodes_free", watch.Count, "mount", "/data/"+device)
	}
	for i := range 32 {
		add(&wave{level: 0.5, daily: 0.5, slow: 0.2, fast: 0.1, most: 1}, "node.cpu_busy", watch.Ratio, "cpu", fmt.Sprint(i))
	}
	add(&wave{level: 12, daily: 0.3, slow: 2, fast: 0.2, planted: ramp(12, 0, 60)}, "node.load", watch.Count, "minutes", "1")
	add(&wave{level: 0.02, slow: 0.01, fast: 0.01, most: 1, burst: 0.1, every: 90, planted: ramp(0.4, 1, 4)}, "node.pressure", watch.Ratio, "kind", "some", "resource", "io")
	add(&wave{level: 1, slow: 0.5, fast: 0.7, whole: true, planted: ramp(9, 0, 2)}, "node.blocked", watch.Count)
	add(&wave{level: 6e10, slow: 4e9, fast: 1e8, growth: 3e3}, "node.memory_anonymous", watch.Bytes)
	for i := range 4 {
		add(&wave{level: 3e7, daily: 0.6, slow: 2e7, fast: 5e6, burst: 1e8, every: 120}, "network.received_bytes", watch.BytesPerSecond, "interface", fmt.Sprintf("eth%d", i))
		add(&wave{level: 1e7, daily: 0.6, slow: 4e6, fast: 5e6}, "network.sent_bytes", watch.BytesPerSecond, "interface", fmt.Sprintf("eth%d", i))
		add(&wave{burst: 3, every: 300, fast: 0.1}, "network.drops", watch.PerSecond, "interface", fmt.Sprintf("eth%d", i))
	}
	add(&wave{level: 300, daily: 0.3, slow: 60, whole: true, interval: 30}, "scheduler.queue_length", watch.Count)
	add(&wave{level: 0.98, slow: 0.01, most: 1, interval: 5}, "store.present", watch.Ratio)
	for i := range 100 {
		add(&wave{level: 100 * rng.Float64(), daily: rng.Float64(), slow: 30 * rng.Float64(), fast: 20 * rng.Float64(), burst: 200 * rng.Float64(), every: 20 + rng.Int64N(200), interval: 1 + rng.Int64N(10)}, "vendor.counter", watch.PerSecond, "script", fmt.Sprintf("s%d", i))
	}

	// Four slots run tasks one after the other. During the storm, tasks of the step call
	// take five times as long.
	for slot := range 4 {
		step := []string{"align", "call"}[slot%2]
		at := end.Add(-time.Duration(hours)*time.Hour - time.Duration(rng.IntN(10))*time.Second)
		for n := 0; at.Before(end); n++ {
			length := time.Duration((4 + 8*rng.Float64() + 3*rng.ExpFloat64()) * float64(time.Second))
			slowed := st.device != "" && step == "call" && at.Add(length).After(st.begin) && at.Before(st.until)
			if slowed {
				length *= 5
			}
			k := watch.Task{Key: fmt.Sprintf("run/%d-%d", slot, n), Name: fmt.Sprintf("sample%d", n), Run: "/runs/" + step, Step: step, User: "anna", Node: "n1", Engine: "local", Start: "fork", Began: at, End: at.Add(length), OK: true, Cores: 1}
			s.tasks = append(s.tasks, k)
			if k.End.After(end.Add(-30 * time.Minute)) { // the series of older tasks are not read
				labels := []string{"task", k.Key, "run", "/runs/" + step, "manager", "premix"}
				from, to := k.Began.Unix()+1, k.End.Unix()+1
				w := &wave{level: 0.9, slow: 0.05, fast: 0.05, from: from, until: to}
				add(w, "task.cpu", watch.Cores, labels...)
				io := &wave{level: 0.03, slow: 0.02, fast: 0.02, burst: 0.2, every: 20, from: from, until: to, most: 1}
				if step == "call" {
					io.planted = ramp(0.7, 3, 4)
					w.planted = ramp(-0.6, 3, 4)
				}
				add(io, "task.pressure", watch.Ratio, append(labels, "kind", "some", "resource", "io")...)
				add(&wave{level: 1e9, slow: 1e8, from: from, until: to}, "task.memory", watch.Bytes, labels...)
			}
			at = at.Add(length + time.Duration(rng.IntN(300))*time.Millisecond)
		}
	}
	add(&wave{level: 2e8, slow: 5e6, fast: 1e6}, "node.memory_dirty", watch.Bytes)
	return s
}
