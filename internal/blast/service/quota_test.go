package service_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/blast/service"
	"premix/internal/kit/access"
)

// What is too much is refused with the time after which to try again, each bound by itself.
func TestQuotas(t *testing.T) {
	one := []string{"Authorization", "Bearer 0123456789abcdef"}
	two := []string{"Authorization", "Bearer fedcba9876543210"}
	for name, c := range map[string]struct {
		limit  func(*service.Limits)
		who    []string // sends what is refused; two searches of the first user wait
		reason string
		says   string
	}{
		"searches of a user":       {func(l *service.Limits) { l.UserWaiting = 2 }, one, "user", "2 of your searches wait already"},
		"letters of a user":        {func(l *service.Limits) { l.UserBacklog = 700 }, one, "user", "600 letters of yours wait already"},
		"searches of all":          {func(l *service.Limits) { l.Waiting = 2 }, two, "queue", "2 searches wait already"},
		"letters of all":           {func(l *service.Limits) { l.Backlog = 700 }, two, "queue", "600 letters wait already"},
		"nothing for another user": {func(l *service.Limits) { l.UserWaiting, l.UserBacklog = 2, 700 }, two, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plain{held: make(chan struct{})}
			w := newWorld(t, p, func(o *service.Options) {
				o.Scans, o.Limits.Scan = 1, 300
				c.limit(&o.Limits)
				o.Tokens = tokens(t, "ann 0123456789abcdef\nbob fedcba9876543210\n")
			})
			body := map[string]any{"program": "blastn", "database": "dna", "query": w.genes[0][:300], "format": "tabular"}
			ids := []string{w.submit(body, one...)}
			for deadline := time.Now().Add(patience); p.scans.Load() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no scan has begun")
				}
			}
			ids = append(ids, w.submit(body, one...), w.submit(body, one...))
			status, text, header := w.ask("POST", "/api/v1/searches", body, c.who...)
			if c.reason == "" {
				if status != 202 {
					t.Errorf("%d %s", status, text)
				}
			} else if status != 429 || header.Get("Retry-After") == "" || !strings.Contains(text, c.says) || !strings.Contains(text, `"reason":"`+c.reason+`"`) {
				t.Errorf("%d %s", status, text)
			}
			// What was accepted is answered, and there is room again.
			close(p.held)
			for _, id := range ids {
				w.result(id, "", one...)
			}
			w.result(w.submit(body, c.who...), "", c.who...)
		})
	}
}

// Of results that are too many the oldest go.
func TestKept(t *testing.T) {
	w := newWorld(t, &plain{}, func(o *service.Options) { o.Limits.Kept = 2 })
	var ids []string
	for i := range 3 {
		ids = append(ids, w.submit(map[string]any{"program": "blastn", "database": "dna", "query": w.genes[i][:100], "format": "tabular"}))
		if i < 2 {
			w.result(ids[i], "") // the third may be there after the first has gone
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if status, text, _ := w.ask("GET", "/api/v1/searches/"+ids[0], nil); status == 404 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d %s", status, text)
		}
	}
	for _, id := range ids[1:] {
		w.result(id, "")
	}
}

func tokens(t *testing.T, text string) *access.Tokens {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := access.ReadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A token is told in either way of HTTP, also to NCBI's URL API, and nothing but what
// concerns nobody is there without one.
func TestTokens(t *testing.T) {
	w := newWorld(t, &plain{}, func(o *service.Options) { o.Tokens = tokens(t, "ann 0123456789abcdef\n") })
	const basic = "Basic YW55Ym9keTowMTIzNDU2Nzg5YWJjZGVm" // anybody:0123456789abcdef
	for _, c := range []struct {
		header []string
		status int
	}{
		{nil, 401},
		{[]string{"Authorization", "Bearer 0123456789abcdeF"}, 401},
		{[]string{"Authorization", "Bearer "}, 401},
		{[]string{"Authorization", "Bearer 0123456789abcdef"}, 200},
		{[]string{"Authorization", basic}, 200},
	} {
		for _, path := range []string{"/api/v1/databases", "/api/v1/searches", "/metrics"} {
			if status, text, _ := w.ask("GET", path, nil, c.header...); status != c.status {
				t.Errorf("%s with %q: %d %s", path, c.header, status, text)
			}
		}
	}
	put := "/Blast.cgi?CMD=Put&PROGRAM=blastn&DATABASE=dna&QUERY=" + w.genes[1][:60]
	if _, text, _ := w.ask("GET", put, nil); strings.Contains(text, "RID = ") || !strings.Contains(text, "a token is needed") {
		t.Errorf("without a token: %s", text)
	}
	if _, text, _ := w.ask("GET", put, nil, "Authorization", basic); !strings.Contains(text, "RID = ") {
		t.Errorf("with a token: %s", text)
	}
	for _, path := range []string{"/", "/healthz", "/openapi.json"} {
		if status, _, _ := w.ask("GET", path, nil); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
	}
}
