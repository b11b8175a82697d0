package main

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"premix/internal/testkit/ports"
)

// A machine sends to another one. Both are killed again and again, and the receiver stays
// away for a while: it has every sample that the sender has itself, and each event once.
func TestWatchSends(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens := write("tokens", "n2 0123456789abcdef\n")
	token := write("token", "0123456789abcdef\n")
	there := write("there.yaml", "node: monitor\n")
	here := write("here.yaml", "node: n2\n")
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", free[0])
	receiver := newWatched(t, filepath.Join(dir, "monitor"), "--config", there, "--listen", address, "--receive", tokens)
	sender := newWatched(t, filepath.Join(dir, "n2"), "--config", here, "--send", "http://"+address, "--send-token-file", token)
	began := time.Now().Add(-time.Minute)
	starts := 1
	for range 6 {
		time.Sleep(time.Duration(500+rand.IntN(1500)) * time.Millisecond)
		switch rand.IntN(3) {
		case 0:
			receiver.end(syscall.SIGKILL)
			receiver.start()
		case 1:
			sender.end(syscall.SIGKILL)
			sender.start()
			starts++
		case 2: // both, and the receiver is away for longer
			receiver.end(syscall.SIGKILL)
			time.Sleep(2 * time.Second)
			sender.end(syscall.SIGKILL)
			sender.start()
			starts++
			time.Sleep(time.Second)
			receiver.start()
		}
	}
	sender.end(syscall.SIGKILL)
	sender.start()
	starts++
	// points returns the samples of a series of n2, in steps that hold one sample each.
	points := func(w *watched) map[float64]float64 {
		t.Helper()
		var answer struct {
			Series []struct{ Points [][4]float64 }
		}
		q := url.Values{"name": {"node.memory_available"}, "match": {"node=n2"}, "step": {"0.2"}, "start": {began.UTC().Format(time.RFC3339)}}
		w.get("/api/v1/series?"+q.Encode(), &answer)
		all := make(map[float64]float64)
		for _, s := range answer.Series {
			for _, p := range s.Points {
				all[p[0]] = p[1]
			}
		}
		return all
	}
	waiting := func() uint64 {
		var status struct {
			Sending struct {
				Waiting, Lost uint64
				Last          time.Time
			}
		}
		sender.get("/api/v1/status", &status)
		if status.Sending.Lost > 0 {
			t.Fatalf("%d frames are lost", status.Sending.Lost)
		}
		if status.Sending.Last.IsZero() {
			return 1 << 32
		}
		return status.Sending.Waiting
	}
	own := points(sender)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		got := points(receiver)
		missing := 0
		for at, v := range own {
			if other, ok := got[at]; !ok {
				missing++
			} else if other != v {
				t.Fatalf("at %v the receiver has %v, and not %v", at, other, v)
			}
		}
		if missing == 0 && len(own) > 10 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d samples are missing, %d frames wait", missing, len(own), waiting())
		}
	}
	// The samples were those that the sender had at its last start: its last events come after them.
	var events struct {
		Events []struct{ Time, Node, Kind, Text string }
	}
	started := 0
	comes(func() bool {
		receiver.get("/api/v1/events?start="+url.QueryEscape(began.UTC().Format(time.RFC3339)), &events)
		started = 0
		for _, e := range events.Events {
			if e.Node == "n2" && e.Kind == "watch_started" {
				started++
			}
		}
		return started >= starts
	})
	if started != starts {
		t.Errorf("n2 began %d times, the receiver knows %d", starts, started)
	}
	seen := make(map[string]int)
	for _, e := range events.Events {
		if seen[e.Time+e.Node+e.Kind+e.Text]++; seen[e.Time+e.Node+e.Kind+e.Text] > 1 {
			t.Errorf("an event is there twice: %+v", e)
		}
		if e.Kind == "send_missing" {
			t.Errorf("frames are missing: %s", e.Text)
		}
	}
	var status struct {
		Origins []struct{ Node string }
	}
	receiver.get("/api/v1/status", &status)
	if len(status.Origins) != 1 || status.Origins[0].Node != "n2" {
		t.Errorf("the receiver knows %+v", status.Origins)
	}
}
