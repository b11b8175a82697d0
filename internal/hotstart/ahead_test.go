package hotstart

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// preparing returns a preparation that has its directory and does not cut its probe.
func (b *bench) preparing(commands string) *preparation {
	b.t.Helper()
	scratch, err := filepath.EvalSymlinks(b.t.TempDir())
	if err != nil {
		b.t.Fatal(err)
	}
	b.starter.scratch = scratch
	p := &preparation{circumstances: newCircumstances(), Starter: b.starter, ctx: b.t.Context(), probe: map[string]string{"input": b.input(commands)}}
	b.t.Cleanup(p.end)
	return p
}

// TestLoadAhead loads a template while the probe runs cold.
func TestLoadAhead(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("this machine has one processor: templates are not loaded ahead")
	}
	dir := t.TempDir()
	index := filepath.Join(dir, "index")
	if err := os.WriteFile(index, make([]byte, 2*dataSize), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args    []string
		adopted bool
	}{
		"first open":            {[]string{"-m", "2", "input"}, true},
		"second open":           {[]string{"-m", "2", "-o", "-i", index, "input"}, false},
		"writes elsewhere":      {[]string{"-m", "2", "-l", filepath.Join(dir, "log"), "input"}, false},
		"writes where it is":    {[]string{"-m", "2", "-l", "log", "input"}, true},
		"ends before its input": {[]string{"-i", "/nonexistent/index", "input"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newSpec(c.args...), Hot)
			p := b.preparing("sum\n")
			a := p.loadAhead(0, p.spec.Ready.Kind, moment{Open: 1}, 0)
			if a == nil {
				t.Skip("this machine has no memory to load a template ahead")
			}
			defer a.end()
			<-a.done
			if _, err := os.Stat(filepath.Join(dir, "log")); err == nil {
				t.Error("the template has written a file outside of its directory")
			}
			if err := p.findMoment(); err != nil && c.adopted {
				t.Fatal(err)
			}
			os.Remove(filepath.Join(dir, "log"))
			a.adopt(p)
			if (p.held != nil) != c.adopted {
				t.Fatalf("held: %v, want %v", p.held != nil, c.adopted)
			}
			a.end()
			if c.adopted {
				snap, err := p.take()
				if err != nil {
					t.Fatal(err)
				}
				snap.unlock()
			}
		})
	}
}

// TestDelayedAhead checks that a delayed template is loaded during the cold start of the probe only
// after its delay, or when it is needed.
func TestDelayedAhead(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("this machine has one processor: templates are not loaded ahead")
	}
	for name, adopted := range map[string]bool{"given up": false, "wanted": true} {
		t.Run(name, func(t *testing.T) {
			p := newBench(t, newSpec("-m", "2", "input"), Hot).preparing("sum\n")
			a := p.loadAhead(0, p.spec.Ready.Kind, moment{Open: 1}, time.Hour)
			if a == nil {
				t.Skip("this machine has no memory to load a template ahead")
			}
			defer a.end()
			if err := p.findMoment(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-a.done:
				t.Fatal("the template was loaded before its delay was over")
			default:
			}
			if adopted {
				a.adopt(p)
			} else {
				a.end()
			}
			if (p.held != nil) != adopted || (a.of.held != nil) {
				t.Errorf("held: %v, want %v", p.held != nil, adopted)
			}
		})
	}
}

// TestAheadOfWhat checks the decisions to load templates ahead.
func TestAheadOfWhat(t *testing.T) {
	for name, c := range map[string]struct {
		Options
		memory int64
		delay  time.Duration
		second bool
	}{
		"a run of known length":           {Options{Start: Auto, Tasks: 12, Slots: 2}, 20 << 20, quick, false},
		"a run of a large tool":           {Options{Start: Auto, Tasks: 12, Slots: 2}, 1 << 30, quick, true},
		"a run that must be hot":          {Options{Start: Hot, Tasks: 12, Slots: 2}, 20 << 20, 0, false},
		"a snapshot for later runs":       {Options{Start: Auto, Tasks: 12, Slots: 2, Keep: true}, 1 << 30, 0, true},
		"a snapshot without a cold start": {Options{Start: Auto, Keep: true}, 0, 0, true},
	} {
		p := &preparation{Starter: &Starter{opt: c.Options}, cold: coldStart{memory: c.memory}}
		if delay, second := p.earlyDelay(), p.secondAhead(); delay != c.delay || second != c.second {
			t.Errorf("%s: delay %v, second template ahead %v, want %v, %v", name, delay, second, c.delay, c.second)
		}
	}
}
