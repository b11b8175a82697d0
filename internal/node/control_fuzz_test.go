package node

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// FuzzControl checks that every request on the control socket is answered, or refused with
// an error that has a hint. Mounts, restarts and the end of the node act outside of the
// process, so only their requests are parsed.
func FuzzControl(f *testing.F) {
	dir := f.TempDir()
	c := &Config{Dir: dir + "/run", Cache: dir + "/cache", Trust: dir + "/trust", Timeout: time.Second}
	if err := c.check(); err != nil {
		f.Fatal(err)
	}
	d := newDaemon(&supervisorConn{config: c, log: slog.New(slog.DiscardHandler)}, 0, "test")
	f.Cleanup(d.end)
	var err error
	if d.cache, err = openCache(d.config); err != nil {
		f.Fatal(err)
	}
	h := d.routes()
	f.Add("GET", "/v1/status", "")
	f.Add("POST", "/v1/umount", `{"dir":"/mnt/x","lazy":true}`)
	f.Add("POST", "/v1/cache/drop", `{"ref":"refs/x:1","tree":"00"}`)
	f.Add("POST", "/v1/cache/pin", `{"ref":"refs/x@ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"}`)
	f.Add("POST", "/v1/cache/unpin", `[1,{"a":"\ud800"}]`)
	f.Add("POST", "/v1/cache/check", strings.Repeat("[", 1000))
	f.Add("POST", "/v1/mount", `{"ref":"refs/x:1","dir":"/mnt","origins":["https://example.org"],"timeout":-1}`)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		for _, forbidden := range []string{"mount", "restart", "stop"} {
			if strings.HasSuffix(path, "/"+forbidden) {
				var m MountRequest
				if json.Unmarshal([]byte(body), &m) == nil {
					_, _ = json.Marshal(m)
				}
				return
			}
		}
		if method != "GET" && method != "POST" || !strings.HasPrefix(path, "/") {
			return
		}
		r := httptest.NewRequest(method, "http://node/", strings.NewReader(body))
		r.URL.Path = path
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Header().Get("Content-Type") != "application/json" {
			return
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %s %q: %s", method, path, body, w.Body)
		}
		if w.Code >= 400 {
			var e Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Message == "" || e.Kind == KindInternal {
				t.Fatalf("%s %s %q: %s", method, path, body, w.Body)
			}
		}
	})
}
