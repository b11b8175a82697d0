package service_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/blast/service"
	"premix/internal/kit/access"
)

// Requests above a limit are refused with the time of the next try. The test checks each limit
// separately.
func TestQuotas(t *testing.T) {
	one := []string{"Authorization", "Bearer 0123456789abcdef"}
	two := []string{"Authorization", "Bearer fedcba9876543210"}
	for name, c := range map[string]struct {
		limit  func(*service.Limits)
		who    []string // sends the refused request, while two searches of the first user wait
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
			// Accepted searches are answered, and then there is room again.
			close(p.held)
			for _, id := range ids {
				w.result(id, "", one...)
			}
			w.result(w.submit(body, c.who...), "", c.who...)
		})
	}
}

// Behind a trusted proxy each client is a separate user.
func TestUsersBehindProxy(t *testing.T) {
	p := &plain{held: make(chan struct{})}
	w := newWorld(t, p, func(o *service.Options) {
		o.Limits.UserWaiting, o.Scans = 1, 1
		var err error
		if o.Proxies, err = access.ParseProxies([]string{"127.0.0.0/8", "::1"}); err != nil {
			t.Fatal(err)
		}
	})
	body := map[string]any{"program": "blastn", "database": "dna", "query": w.genes[0], "format": "tabular"}
	first := w.submit(body, "X-Forwarded-For", "192.0.2.1")
	for deadline := time.Now().Add(patience); p.scans.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no scan has begun")
		}
	}
	ids := []string{first, w.submit(body, "X-Forwarded-For", "192.0.2.1")}
	if status, text, _ := w.ask("POST", "/api/v1/searches", body, "X-Forwarded-For", "192.0.2.1"); status != 429 {
		t.Errorf("a third search of one client: %d %s", status, text)
	}
	ids = append(ids, w.submit(body, "X-Forwarded-For", "192.0.2.2"))
	close(p.held)
	for _, id := range ids {
		w.result(id, "")
	}
}

// If results have too many bytes, the oldest read ones are removed, by the limit for all users and
// the limit for each user. A result that is too large fails with an error. Removed results do not
// return after a restart.
func TestBytes(t *testing.T) {
	ann, bob := []string{"Authorization", "Bearer 0123456789abcdef"}, []string{"Authorization", "Bearer fedcba9876543210"}
	for name, c := range map[string]struct {
		bytes, user int64
		gone        string // of the searches a to d: c and d belong to bob, and a is not read
	}{
		"of all":      {3500, 3500, "b"},
		"of one user": {1 << 20, 1500, "ac"},
		"of none":     {1 << 20, 1 << 20, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &plain{}, func(o *service.Options) {
				o.Limits.Bytes, o.Limits.UserBytes = c.bytes, c.user
				o.Tokens = tokens(t, "ann 0123456789abcdef\nbob fedcba9876543210\n")
			})
			ids := map[string]string{}
			who := map[string][]string{"a": ann, "b": ann, "c": bob, "d": bob}
			for i, x := range []string{"a", "b", "c", "d"} {
				// About 1,000 bytes of queries, and a row of results.
				text := fmt.Sprintf(">q%d %s\n%s\n", i, strings.Repeat("x", 300), w.genes[i])
				ids[x] = w.submit(map[string]any{"program": "blastn", "database": "dna", "query": text, "format": "tabular"}, who[x]...)
				w.ready(ids[x], who[x]...)
				if x != "a" {
					w.result(ids[x], "", who[x]...)
				}
			}
			check := func(when string) {
				t.Helper()
				for x, id := range ids {
					want := 200
					if strings.Contains(c.gone, x) {
						want = 404
					}
					if status, text, _ := w.ask("GET", "/api/v1/searches/"+id+"/result", nil, who[x]...); status != want {
						t.Errorf("%s: search %s: status %d, want %d: %s", when, x, status, want, text)
					}
				}
			}
			check("before the new start")
			w.stop()
			w.start()
			check("after it")
		})
	}
	t.Run("of one result", func(t *testing.T) {
		w := newWorld(t, &plain{}, func(o *service.Options) { o.Limits.UserBytes = 500 })
		id := w.submit(map[string]any{"program": "blastn", "database": "dna", "query": w.genes[0], "format": "tabular"})
		if state := w.ready(id); state != "failed" {
			t.Errorf("a result that is too large is %s", state)
		}
		if status, text, _ := w.ask("GET", "/api/v1/searches/"+id+"/result", nil); status != 422 || !strings.Contains(text, "the results of a user may have 500 B") {
			t.Errorf("%d %s", status, text)
		}
	})
}

// ready waits until a search has ended, and returns its state. It does not read the result.
func (w *world) ready(id string, header ...string) string {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		status, text, _ := w.ask("GET", "/api/v1/searches/"+id, nil, header...)
		var s search
		if err := json.Unmarshal([]byte(text), &s); err != nil || status != 200 {
			w.t.Fatalf("%d %s", status, text)
		}
		if s.State == "ready" || s.State == "failed" {
			return s.State
		}
	}
	w.t.Fatal("the search has not ended")
	return ""
}

// While results cannot be written, accepted searches wait, the service reports it, and it accepts
// no further searches. Once there is room, the accepted searches are answered.
func TestFullDisk(t *testing.T) {
	p := &plain{held: make(chan struct{})}
	w := newWorld(t, p, nil)
	body := func(i int) map[string]any {
		return map[string]any{"program": "blastn", "database": "dna", "query": w.genes[i], "format": "tabular"}
	}
	id := w.submit(body(0))
	for deadline := time.Now().Add(patience); p.scans.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no scan has begun")
		}
	}
	results := filepath.Join(w.options.Dir, "results")
	if err := os.Rename(results, results+".away"); err != nil {
		t.Fatal(err)
	}
	close(p.held)
	comes := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			status, text, _ := w.ask("GET", "/healthz", nil)
			if status == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("healthz: %d %s, want %d", status, text, want)
			}
		}
	}
	comes(503)
	if status, text, header := w.ask("POST", "/api/v1/searches", body(1)); status != 503 || header.Get("Retry-After") == "" {
		t.Errorf("a search while the disk is full: %d %s", status, text)
	}
	if status, text, _ := w.ask("GET", "/api/v1/searches/"+id, nil); status != 200 || strings.Contains(text, `"failed"`) {
		t.Errorf("the accepted search: %d %s", status, text)
	}
	if err := os.Rename(results+".away", results); err != nil {
		t.Fatal(err)
	}
	if got, want := w.result(id, ""), w.want("blastn", "dna", ">query\n"+w.genes[0]+"\n", "-outfmt", "6"); got != want || got == "" {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	comes(200)
	w.result(w.submit(body(1)), "")
}

// If there are too many results, the oldest are removed.
func TestKept(t *testing.T) {
	w := newWorld(t, &plain{}, func(o *service.Options) { o.Limits.Kept = 2 })
	var ids []string
	for i := range 3 {
		ids = append(ids, w.submit(map[string]any{"program": "blastn", "database": "dna", "query": w.genes[i][:100], "format": "tabular"}))
		if i < 2 {
			w.result(ids[i], "") // the third may be complete after the first was removed
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

// Both authentication schemes of HTTP accept a token, also in NCBI's URL API. Without a token only
// public data is accessible.
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
		for _, path := range []string{"/", "/searches", "/api/v1/databases", "/api/v1/searches", "/metrics"} {
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
	if _, _, h := w.ask("GET", "/", nil); !strings.HasPrefix(h.Get("WWW-Authenticate"), "Basic ") {
		t.Errorf("a browser is not asked for a token: %v", h)
	}
	for _, path := range []string{"/healthz", "/openapi.json", "/style.css"} {
		if status, _, _ := w.ask("GET", path, nil); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
	}
}
