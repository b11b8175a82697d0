package calls

import (
	"strings"
	"testing"
	"time"
)

// A call waits where it gains by it, or where the processors are busy, and never without bounds.
func TestWorthWaiting(t *testing.T) {
	const s = time.Second
	noted := time.Now()
	for _, one := range []struct {
		name               string
		load, rest         time.Duration
		since, waited      time.Duration // since the note
		whenIdle, whenBusy bool
	}{
		{"the load is not known", 0, 0, 0, 0, false, true},
		{"the load is not known for long", 0, 0, 10 * s, 10 * s, false, false},
		{"the rest is shorter than the load", 2 * s, 1 * s, 0, 0, true, true},
		{"the rest is as long as the load", 2 * s, 2 * s, 0, 0, true, true},
		{"the rest is longer than the load", 2 * s, 3 * s, 0, 0, false, true},
		{"the rest has become shorter", 2 * s, 3 * s, 1 * s, 1 * s, true, true},
		{"it should have ended", 2 * s, 1 * s, 2 * s, 2 * s, true, true},
		{"it should have ended long ago", 2 * s, 1 * s, 4 * s, 4 * s, false, false},
		{"the whole preparation", 2 * s, 12 * s, 0, 0, false, true},
		{"the longest wait", 2 * s, 1 * s, 0, 16 * s, false, false},
		{"a wait that is almost the longest", 2 * s, 5 * s, 0, 15 * s, false, true},
	} {
		p := &Progress{Load: one.load, Rest: one.rest, Time: noted}
		for idle, want := range map[bool]bool{true: one.whenIdle, false: one.whenBusy} {
			if got := p.worthWaiting(noted.Add(one.since), one.waited, idle); got != want {
				t.Errorf("%s, an idle processor %v: waits %v", one.name, idle, got)
			}
		}
	}
}

// A call sees that the tool of a preparation gets no processor.
func TestStarves(t *testing.T) {
	var p pace
	begun := time.Now()
	for i, one := range []struct {
		tool     int
		at, used time.Duration
		state    byte
		want     bool
	}{
		{7, 0, time.Minute, 'R', false}, // the first look
		{7, time.Second / 2, time.Minute, 'R', false},
		{7, time.Second, time.Minute + 50*time.Millisecond, 'R', true},
		{7, 2 * time.Second, time.Minute + 150*time.Millisecond, 'R', false}, // it ran
		{7, 3 * time.Second, time.Minute + 150*time.Millisecond, 't', false}, // it is held
		{7, 4 * time.Second, time.Minute + 150*time.Millisecond, 'D', false}, // it reads
		{8, 5 * time.Second, 0, 'R', false},
		{8, 7 * time.Second, 0, 'R', true},
	} {
		if got := p.starves(one.tool, begun.Add(one.at), one.state, one.used); got != one.want {
			t.Errorf("look %d: it starves is %v", i, got)
		}
	}
}

func TestProcessors(t *testing.T) {
	for list, want := range map[string]int{"0\n": 1, "0-1\n": 2, "0-2,5\n": 4, "0,2-3,8-15": 11, "": 0, "x-y": 0} {
		if got := count(list); got != want {
			t.Errorf("%q: %d processors", list, got)
		}
	}
	for text, want := range map[string]int{"0.20 0.18 0.12 1/80 11206\n": 1, "9 9 9 17/512 2": 17, "": 0, "1 2 3": 0, "1 2 3 x/y": 0} {
		if got := running(text); got != want {
			t.Errorf("%q: %d are running", text, got)
		}
	}
}

// prepared is a form whose snapshot is in preparation until end is called.
func prepared(t *testing.T, note Progress) (key string, end func()) {
	t.Helper()
	plan(t, call(t, "bwa mem ref a_1.fq a_2.fq"))
	p := plan(t, call(t, "bwa mem ref b_1.fq b_2.fq"))
	l, err := Lock()
	must(t, err)
	must(t, RecordTrying(p.Key, call(t, "bwa mem ref b_1.fq b_2.fq")))
	if note.Key == "" {
		note.Key = p.Key
	}
	must(t, RecordProgress(note))
	return p.Key, func() { must(t, l.Close()) }
}

// A call waits for the rest of a preparation that is shorter than its load, and starts hot.
func TestAwait(t *testing.T) {
	home(t)
	key, end := prepared(t, Progress{Load: time.Minute, Rest: time.Second})
	waiting := call(t, "bwa mem ref c_1.fq c_2.fq")
	p := plan(t, waiting)
	if p.Hot || !p.Await {
		t.Fatalf("during a preparation: %+v", p)
	}
	go func() {
		time.Sleep(200 * time.Millisecond)
		_ = RecordReady(waiting, Plan{Key: key})
		end()
	}()
	if p = Prepare("/nonexistent/premix", waiting, p); !p.Hot || p.Waited < 200*time.Millisecond {
		t.Errorf("after the preparation: %+v", p)
	}
}

// A call whose preparation is killed, fails, takes too long or serves others starts plainly.
func TestAwaitInVain(t *testing.T) {
	for _, one := range []struct {
		name   string
		note   Progress
		change func(key string)
		waits  bool
		reason string
	}{
		{"killed", Progress{Load: time.Minute, Rest: time.Second}, nil, true, "the preparation has failed"},
		{"refused", Progress{Load: time.Minute, Rest: time.Second}, func(key string) {
			_ = RecordCold(Call{}, Plan{Key: key}, "it is cold")
		}, true, "it is cold"},
		{"too slow", Progress{Load: 100 * time.Millisecond, Rest: time.Millisecond}, nil, true, "longer than loading"},
		{"another form", Progress{Key: "another", Load: time.Minute, Rest: time.Second}, nil, false, "is being prepared"},
	} {
		t.Run(one.name, func(t *testing.T) {
			home(t)
			key, end := prepared(t, one.note)
			released := make(chan bool)
			go func() {
				time.Sleep(300 * time.Millisecond)
				if one.change != nil {
					one.change(key)
				}
				end()
				close(released)
			}()
			c := call(t, "bwa mem ref c_1.fq c_2.fq")
			p := Prepare("/nonexistent/premix", c, plan(t, c))
			if p.Hot || p.Prepare || (p.Waited > 0) != one.waits || !strings.Contains(p.Reason, one.reason) {
				t.Errorf("%+v", p)
			}
			<-released
		})
	}
}

// The time for which calls have waited is not saved.
func TestSumWaited(t *testing.T) {
	var sum Sum
	for _, s := range []Start{{Start: "hot", Saved: 3, Bytes: 7, Waited: 1}, {Start: "cold", Waited: 0.5}, {Start: "hot", Saved: 3}} {
		sum.Add(s)
	}
	if want := (Sum{Hot: 2, Cold: 1, Saved: 4.5, Bytes: 7}); sum != want {
		t.Errorf("%+v, and not %+v", sum, want)
	}
}
