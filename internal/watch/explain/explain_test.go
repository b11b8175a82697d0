package explain_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/explain"
)

// trials is the number of windows of each kind that are explained.
const trials = 20

// each runs f for n seeds, two at a time.
func each(n int, f func(seed uint64)) {
	var wg sync.WaitGroup
	ready := make(chan struct{}, 2)
	for seed := range uint64(n) {
		wg.Add(1)
		ready <- struct{}{}
		go func() {
			defer wg.Done()
			f(seed)
			<-ready
		}()
	}
	wg.Wait()
}

// windowOf returns a window of five minutes at a time of the day that depends on the seed.
func windowOf(seed uint64) explain.Window {
	rng := rand.New(rand.NewPCG(seed, 1))
	end := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC).Add(time.Duration(rng.IntN(86400)) * time.Second)
	return explain.Window{Start: end.Add(-5 * time.Minute), End: end}
}

// A metadata storm on one disk under a running workflow is named first.
func TestStormIsNamedFirst(t *testing.T) {
	each(trials, func(seed uint64) {
		w := windowOf(seed)
		rng := rand.New(rand.NewPCG(seed, 2))
		began := w.Start.Add(time.Duration(20+rng.IntN(180)) * time.Second)
		st := storm{device: fmt.Sprintf("sda%c", 'a'+rng.IntN(20)), begin: began, until: began.Add(time.Duration(40+rng.IntN(60)) * time.Second)}
		src := newSimulated(seed, 40, w.End, 2, st)
		r, err := explain.Explain(context.Background(), src, w, explain.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		if len(r.Findings) == 0 {
			t.Errorf("seed %d: nothing found of %d series", seed, r.Series)
			return
		}
		f := r.Findings[0]
		if f.Layer != watch.LayerDisk || f.Series.Label("device") != st.device {
			t.Errorf("seed %d: %s is named first, not disk %s\n%s", seed, f.Series, st.device, told(r))
		}
		if off := f.Began.Sub(st.begin); off < -5*time.Second || off > 5*time.Second {
			t.Errorf("seed %d: it began at %s, %s off\n%s", seed, f.Began, off, told(r))
		}
		for _, f := range r.Findings {
			if d := f.Series.Label("device"); d != "" && d != st.device {
				t.Errorf("seed %d: %s", seed, f.Sentence)
			}
		}
		if !strings.Contains(f.Sentence, "call felt it") || len(f.Tasks) == 0 {
			t.Errorf("seed %d: the tasks are not named: %s %v\n%s", seed, f.Sentence, f.Tasks, told(r))
		}
		if seed == 0 {
			t.Log("\n" + told(r))
		}
	})
}

// A machine that behaves as usual causes no findings.
func TestQuietWindows(t *testing.T) {
	each(trials, func(seed uint64) {
		w := windowOf(seed + 1000)
		src := newSimulated(seed+1000, 40, w.End, 2, storm{})
		r, err := explain.Explain(context.Background(), src, w, explain.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		if r.Series < 300 {
			t.Errorf("seed %d: only %d series were compared", seed, r.Series)
		}
		if len(r.Findings) > 0 {
			t.Errorf("seed %d:\n%s", seed, told(r))
		}
	})
}

func told(r explain.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d series, %d young, %d usual\n", r.Series, r.Young, r.Usual)
	for i, f := range r.Findings {
		fmt.Fprintf(&b, "%2d +%.0f s %.1f %s %s\n", i+1, f.LagSeconds, f.Score, f.Series, f.Sentence)
	}
	return b.String()
}

func TestWindowTooShort(t *testing.T) {
	now := time.Now()
	_, err := explain.Explain(context.Background(), &simulated{}, explain.Window{Start: now, End: now.Add(time.Second)}, explain.Options{})
	var e *explain.WindowError
	if !errors.As(err, &e) || e.Hint() == "" {
		t.Errorf("error %v", err)
	}
}

// An event that happens each night at this hour is usual, but on the first night it is not.
func TestSameHourOfEarlierDays(t *testing.T) {
	for _, nights := range []int{1, 3} {
		w := windowOf(7)
		src := newSimulated(7, 4, w.End, 1, storm{})
		for _, s := range src.series {
			if s.id.Name == "disk.writes" && s.id.Label("device") == "sdac" {
				from := w.Start.Add(time.Minute).Unix()
				s.planted = func(t float64) float64 {
					for n := range nights {
						if at := int64(t) + int64(n)*86400; at >= from && at < from+120 {
							return 3000
						}
					}
					return 0
				}
			}
		}
		r, err := explain.Explain(context.Background(), src, w, explain.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if nights == 1 && (len(r.Notes) != 1 || r.Usual != 0) || nights == 3 && (len(r.Notes) != 0 || r.Usual != 1) || len(r.Findings) != 0 {
			t.Errorf("%d nights: %s", nights, told(r))
		}
	}
}

// A storm that was explained before does not make the next one usual.
func TestExplainedWindowsAreLeftOut(t *testing.T) {
	w := windowOf(8)
	src := newSimulated(8, 4, w.End, 1, storm{})
	earlier := explain.Window{Start: w.Start.Add(-12 * time.Minute), End: w.Start.Add(-5 * time.Minute)}
	for _, s := range src.series {
		if s.id.Name == "disk.writes" && s.id.Label("device") == "sdac" {
			s.planted = func(t float64) float64 {
				at := time.Unix(int64(t), 0)
				if at.After(earlier.Start) && at.Before(earlier.End) || at.After(w.Start.Add(2*time.Minute)) && at.Before(w.Start.Add(4*time.Minute)) {
					return 3000
				}
				return 0
			}
		}
	}
	for _, without := range [][]explain.Window{nil, {earlier}} {
		r, err := explain.Explain(context.Background(), src, w, explain.Options{Without: without})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Notes) != len(without) || len(r.Findings) != 0 {
			t.Errorf("without %v: %s", without, told(r))
		}
	}
}

// Series that the caller excepts are not compared, and the effects of their changes on other
// series are named instead.
func TestExcept(t *testing.T) {
	w := windowOf(6)
	began := w.Start.Add(time.Minute)
	src := newSimulated(6, 10, w.End, 2, storm{device: "sdaa", begin: began, until: began.Add(time.Minute)})
	storm := func(id watch.ID) bool { return id.Label("device") == "sdaa" }
	r, err := explain.Explain(context.Background(), src, w, explain.Options{Except: storm})
	if err != nil {
		t.Fatal(err)
	}
	if r.Excepted == 0 || len(r.Findings) == 0 {
		t.Errorf("%d left out: %s", r.Excepted, told(r))
	}
	for _, f := range r.Findings {
		if storm(f.Series) {
			t.Errorf("it is named: %s", f.Sentence)
		}
	}
}

// Unusual activity is only a note, unless a process waits for it, something fails, or a
// disk is at its limit. If the kernel does not report pressure, the length of a queue shows
// that processes wait.
func TestNotes(t *testing.T) {
	burst := func(from, length time.Duration, height float64) plan { return plan{from, length, height} }
	for _, tt := range []struct {
		name     string
		planted  map[string]plan // by the name of the series, of the disk sdac for series of disks
		blind    bool            // the kernel does not report pressure
		findings int
		first    string
		notes    int
	}{
		{"much is written, in no time", map[string]plan{"disk.written_bytes": burst(time.Minute, 20*time.Second, 3e8), "disk.in_flight": burst(time.Minute, 20*time.Second, 200)}, false, 0, "", 2},
		{"packets", map[string]plan{"network.sent_bytes": burst(time.Minute, 20*time.Second, 4e8)}, false, 0, "", 1},
		{"somebody waits", map[string]plan{"disk.written_bytes": burst(time.Minute, 20*time.Second, 3e8), "node.pressure": burst(62*time.Second, 20*time.Second, 0.6)}, false, 2, "disk.written_bytes", 0},
		{"that was before", map[string]plan{"disk.written_bytes": burst(time.Minute, 20*time.Second, 3e8), "node.pressure": burst(3*time.Minute, 20*time.Second, 0.6)}, false, 1, "node.pressure", 1},
		{"written back", map[string]plan{"node.memory_dirty": burst(58*time.Second, 20*time.Second, -9e7), "node.pressure": burst(62*time.Second, 20*time.Second, 0.6)}, false, 1, "node.pressure", 1},
		{"held back", map[string]plan{"node.memory_dirty": burst(58*time.Second, 20*time.Second, 9e7), "node.pressure": burst(62*time.Second, 20*time.Second, 0.6)}, false, 2, "node.memory_dirty", 0},
		{"no more to give", map[string]plan{"disk.writes": burst(time.Minute, 20*time.Second, 4000), "disk.busy": burst(time.Minute, 20*time.Second, 1)}, false, 2, "", 0},
		{"something fails", map[string]plan{"network.drops": burst(time.Minute, 20*time.Second, 300)}, false, 1, "network.drops", 0},
		{"a queue", map[string]plan{"disk.in_flight": burst(time.Minute, 20*time.Second, 200)}, true, 1, "disk.in_flight", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := windowOf(7)
			src := newSimulated(7, 4, w.End, 1, storm{})
			if tt.blind {
				src.series = slices.DeleteFunc(src.series, func(s *wave) bool { return s.id.Name == "node.pressure" })
			}
			for name, p := range tt.planted {
				i := slices.IndexFunc(src.series, func(s *wave) bool {
					device := s.id.Label("device")
					return s.id.Name == name && (device == "" || device == "sdac")
				})
				from := w.Start.Add(p.from)
				src.series[i].planted = func(at float64) float64 {
					if off := time.Unix(int64(at), 0).Sub(from); off >= 0 && off < p.length {
						return p.height
					}
					return 0
				}
			}
			r, err := explain.Explain(context.Background(), src, w, explain.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Findings) != tt.findings || len(r.Notes) != tt.notes || tt.first != "" && r.Findings[0].Series.Name != tt.first {
				t.Errorf("%snotes: %+v", told(r), r.Notes)
			}
			for _, n := range r.Notes {
				if n.Sentence == "" {
					t.Errorf("nothing is said of %s", n.Series)
				}
			}
		})
	}
}

// plan is a value added to a series, from an offset in the window on.
type plan struct {
	from, length time.Duration
	height       float64
}
