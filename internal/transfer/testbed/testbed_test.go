package testbed

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/transfer"
	"premix/internal/transfer/capture"
	"premix/internal/transfer/link"
)

// Go and openssl make the same content from a seed, for files and for trees.
func TestSources(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is missing")
	}
	for _, d := range []link.Data{{Files: 1, Size: 1<<20 + 3}, {Files: 2100, Size: 2100 * 17}} {
		s := newSource(d, 5)
		at := filepath.Join(t.TempDir(), "x")
		if err := s.make(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		if sum, err := Digest(t.Context(), at); err != nil || sum != s.digest {
			t.Errorf("%s: digest %s, %v; want %s", d, sum, err, s.digest)
		}
		if err := newSource(d, 5).make(t.Context(), at); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v, want that nothing is replaced", d, err)
		}
		nowhere := newSource(d, 5)
		if err := nowhere.make(t.Context(), ""); err != nil || nowhere.digest != s.digest {
			t.Errorf("%s: another digest where nothing is written: %v", d, err)
		}
		if other := newSource(d, 6); other.key == s.key {
			t.Error("seeds make no difference")
		}
	}
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, script, cause string
		exit                int
		stderr              string
	}{
		{"well", "echo fine", "", 0, "fine"},
		{"badly", "echo it broke >&2; exit 3", transfer.CauseExit, 3, "it broke"},
		{"signal", "kill -9 $$", transfer.CauseExit, -1, ""},
	} {
		r := Run(t.Context(), c.script, t.Name()+c.name, "", Limits{Time: time.Minute}, nil)
		if r.Cause != c.cause || r.Exit != c.exit || r.Stderr != c.stderr {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// A command that hangs is killed with all of its children, even those that have left its
// process group and ignore signals.
func TestHangs(t *testing.T) {
	for _, how := range []string{"timeout", "interrupt"} {
		pids := filepath.Join(t.TempDir(), "pids")
		script := `trap '' TERM; echo $$ >>` + pids + `
setsid sh -c 'trap "" TERM HUP; echo $$ >>` + pids + `; while :; do sleep 1; done' &
while :; do sleep 1; done`
		ctx, cancel := context.WithCancel(t.Context())
		limit := time.Hour
		if how == "timeout" {
			limit = 2 * time.Second
		} else {
			go func() {
				for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					if text, err := os.ReadFile(pids); err == nil && strings.Count(string(text), "\n") == 2 {
						break
					}
				}
				cancel()
			}()
		}
		r := Run(ctx, script, "hangs-"+how+strconv.Itoa(os.Getpid()), "", Limits{Time: limit}, nil)
		cancel()
		if r.Cause != how && !(how == "interrupt" && r.Cause == transfer.CauseInterrupt) {
			t.Errorf("cause %q: %s", r.Cause, r.Error)
		}
		text, err := os.ReadFile(pids)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			gone := func() bool {
				state, err := os.ReadFile("/proc/" + f + "/stat")
				return unix.Kill(pid, 0) != nil || err == nil && strings.Contains(string(state), ") Z ") // an orphan that no process has collected
			}
			for deadline := time.Now().Add(time.Minute); !gone(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("process %d goes on after a %s", pid, how)
				}
			}
		}
	}
}

// A command without progress is killed, and one with a little progress is not.
func TestStalls(t *testing.T) {
	// Commands with progress run longer than the limit, and have most of that time for it.
	for name, c := range map[string]struct {
		stall         time.Duration
		script, cause string
	}{
		"sleeps":   {time.Second, "sleep 1000 & sleep 1000", transfer.CauseStall},
		"writes":   {10 * time.Second, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 500 /dev/zero >/dev/null; sleep 1; done", ""},
		"computes": {10 * time.Second, "timeout 12 sh -c 'while :; do :; done'; true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			r := Run(t.Context(), c.script, "stalls-"+name+strconv.Itoa(os.Getpid()), "", Limits{Time: 2 * time.Minute, Stall: c.stall}, nil)
			if r.Cause != c.cause {
				t.Errorf("cause %q after %v: %s", r.Cause, time.Since(begin), r.Error)
			}
		})
	}
}

func TestSteady(t *testing.T) {
	var series []capture.TickBytes
	for i := range 100 {
		n := int64(1000)
		if i < 20 {
			n = 10 // a slow start
		}
		series = append(series, capture.TickBytes{Down: n, Up: 3})
	}
	if got := steady(series, transfer.Get); got < 99_000 || got > 101_000 {
		t.Errorf("steady rate of %g, want 100000", got)
	}
	if got := steady(series, transfer.Put); got < 290 || got > 310 {
		t.Errorf("steady rate up of %g, want 300", got)
	}
	if got := steady(series[:3], transfer.Get); got != 0 {
		t.Errorf("a rate of %g from 30 ms", got)
	}
	if steady(nil, transfer.Get) != 0 {
		t.Error("a rate of nothing")
	}
}

func TestSchedule(t *testing.T) {
	times, err := ParseTimes("13:00, 03:00")
	if err != nil {
		t.Fatal(err)
	}
	s := Schedule{At: times}
	at := func(text string) time.Time {
		v, err := time.Parse("2006-01-02 15:04", text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for now, want := range map[string]string{
		"2026-01-31 02:59": "2026-01-31 03:00", "2026-01-31 03:00": "2026-01-31 13:00", "2026-01-31 13:00": "2026-02-01 03:00", "2026-12-31 23:00": "2027-01-01 03:00",
	} {
		if got := s.Next(at(now)); !got.Equal(at(want)) {
			t.Errorf("after %s comes %s, want %s", now, got, want)
		}
	}
	for _, bad := range []string{"", "3", "24:00", "03:60", "3:0", "a:00"} {
		if _, err := ParseTimes(bad); err == nil {
			t.Errorf("%q was taken for a time", bad)
		}
	}
	dir := t.TempDir()
	started, err := ScheduleStart(dir, at("2026-01-01 00:00"))
	if err != nil || !started.Equal(at("2026-01-01 00:00")) {
		t.Fatal(started, err)
	}
	if again, err := ScheduleStart(dir, at("2026-02-01 00:00")); err != nil || !again.Equal(started) {
		t.Errorf("it began again at %s: %v", again, err)
	}
	text := s.Timer("campus", []string{"/usr/bin/premix", "100%", "it's"})
	for _, want := range []string{"OnCalendar=*-*-* 03:00:00", "OnCalendar=*-*-* 13:00:00", `ExecStart="/usr/bin/premix" "100%%" "it's"`, `# 0 13 * * *  /usr/bin/premix 100\% 'it'\''s'`} {
		if !strings.Contains(text, want) {
			t.Errorf("the timer lacks %q:\n%s", want, text)
		}
	}
	if err := Wait(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Error(err)
	}
}
