package web

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/series"
)

// FuzzRequests checks that every request gets a valid answer: an error has the form of
// JSON, and there is never an internal error of the server.
func FuzzRequests(f *testing.F) {
	for _, path := range []string{"series?name=disk.read_bytes&" + window, "series?name=node.load&step=1s&agg=max&" + window, "names?name=disk.*", "tasks?limit=2&user=ada&" + window,
		"events?" + window, "explain?" + window + "&without=2026-11-19T00:00:00Z/2026-11-19T00:10:00Z&without=node.load", "usage?start=2026-11-19T10:00:00Z", "replays/0", "status", "nodes", "snapshots"} {
		name, query, _ := strings.Cut(path, "?")
		f.Add(name, query)
	}
	f.Add("series", "name=a&start=0001-01-01T00:00:00Z&end=9999-12-31T23:59:59Z&step=1ns")
	f.Add("/\xff", "")
	f.Add("tasks", "limit=99999999999999999999&token=x")
	db, err := series.Open(f.TempDir(), series.Options{Node: "n1", Flush: time.Hour, Now: func() time.Time { return begin }})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	db.Samples([]watch.Sample{{ID: watch.NewID("disk.read_bytes", "node", "n1", "device", "sda"), Unit: watch.BytesPerSecond, Time: begin, Value: 1}})
	db.Task(watch.Task{Key: "k", Name: "s", User: "ada", Step: "bwa", Run: "/r", Began: begin, End: begin.Add(time.Hour), OK: true})
	s, err := New(Config{DB: db, Node: "n1", Now: func() time.Time { return begin.Add(10 * time.Second) }, Pages: Pages{Node: f.TempDir(), Snapshots: f.TempDir()}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, query string) {
		if strings.HasSuffix(strings.TrimRight(path, "/"), "live") {
			return // it continues until the client ends it
		}
		r := httptest.NewRequest("GET", "http://localhost/", nil)
		if r.URL.Path = path; !strings.HasPrefix(path, "/") {
			r.URL.Path = "/api/v1/" + path
		}
		r.URL.RawQuery = query
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("%q?%q: %d %s", path, query, w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%q?%q: %s", path, query, w.Body)
		}
	})
}

// roundTrip answers requests without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzRemoteAnswer checks that no answer of a receiver of remote write makes the sender
// wait longer than five minutes, and that the sent data is valid.
func FuzzRemoteAnswer(f *testing.F) {
	f.Add(200, "", "", "node.load", 1.5)
	f.Add(429, "30", "slow down", "disk.read_bytes", -1.0)
	f.Add(503, "99999999999999", "x\x00y", "a\xff b", 0.0)
	f.Fuzz(func(t *testing.T, status int, after, body, name string, value float64) {
		if status < 100 || status > 999 {
			return
		}
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			sent, err := io.ReadAll(r.Body)
			if err != nil || len(sent) == 0 {
				t.Fatalf("%d bytes: %v", len(sent), err)
			}
			h := http.Header{}
			h["Retry-After"] = []string{after}
			return &http.Response{StatusCode: status, Status: "status", Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		w := &RemoteWrite{opt: RemoteOptions{URL: (&url.URL{Scheme: "http", Host: "localhost", Path: "/write"}).String(), Client: client}}
		again, wait, err := w.post(context.Background(), []watch.Sample{{ID: watch.NewID(name, "node", "n1"), Time: begin, Value: value}})
		if wait < 0 || wait > 5*time.Minute {
			t.Fatalf("%q: wait %v", after, wait)
		}
		if ok := status/100 == 2; ok != (err == nil) || ok && again {
			t.Fatalf("%d: %v, %t", status, err, again)
		}
	})
}
