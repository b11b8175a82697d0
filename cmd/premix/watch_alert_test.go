package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A value crosses a bound, premix is killed, and the value returns: the receiver gets one
// message for each, although it failed at first.
func TestWatchAlerts(t *testing.T) {
	var mu sync.Mutex
	var got []string
	ids := make(map[string]int)
	busy := true
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if busy {
			busy = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var body struct {
			Alerts []struct{ Status, Fingerprint string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if ids[r.Header.Get("Idempotency-Key")]++; ids[r.Header.Get("Idempotency-Key")] > 1 {
			return // a kill between the answer and its record: the receiver knows the message
		}
		for _, a := range body.Alerts {
			got = append(got, a.Status)
		}
	}))
	defer hook.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	level := write("level", "is 9\n")
	config := write("watch.yaml", "scripts:\n  - {name: level, command: cat "+level+", interval: 200ms, pattern: 'is (?P<value>[0-9]+)'}\n")
	rules := write("rules.yaml", "every: 1s\nreceivers: [{name: hook, webhook: '"+hook.URL+"'}]\nrules:\n  - {name: high, series: vendor.level, above: 5, for: 1s}\n")
	w := newWatched(t, filepath.Join(dir, "data"), "--config", config, "--rules", rules)
	wait := func(want ...string) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			mu.Lock()
			now := slices.Clone(got)
			mu.Unlock()
			if slices.Equal(now, want) {
				return
			}
			if time.Now().After(end) || len(now) > len(want) {
				t.Fatalf("the receiver got %v, not %v", now, want)
			}
		}
	}
	wait("firing")
	var answer struct {
		Firing int
		Alerts []struct{ Rule, Text string }
	}
	w.get("/api/v1/alerts", &answer)
	if answer.Firing != 1 || len(answer.Alerts) != 1 || answer.Alerts[0].Rule != "high" || answer.Alerts[0].Text != "vendor.level is 9, above 5" {
		t.Errorf("the alerts are %+v", answer)
	}
	for range 2 {
		w.end(syscall.SIGKILL)
		w.start()
		time.Sleep(3 * time.Second)
		wait("firing")
	}
	write("level", "is 1\n")
	wait("firing", "resolved")
	w.get("/api/v1/alerts", &answer)
	if answer.Firing != 0 {
		t.Errorf("the alerts are %+v", answer)
	}
	w.end(syscall.SIGINT)
}
