package server

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzPaths checks that only the files of a store are served, whatever path is requested,
// and no file through a link that leads out of the store.
func FuzzPaths(f *testing.F) {
	s := newShop(f)
	secret := []byte("the secret of others")
	outside := filepath.Join(f.TempDir(), "secret")
	if err := os.WriteFile(outside, secret, 0o600); err != nil {
		f.Fatal(err)
	}
	s.write(f, "key", secret)
	s.write(f, "tags/.hidden", secret)
	if err := os.Symlink(outside, filepath.Join(s.dir, "tags/refs/x/2.json")); err != nil {
		f.Fatal(err)
	}
	h := s.handler(f, Options{})
	for _, path := range []string{"/store.json", "/" + tagName, "/" + s.d.Path(), "/key", "/tags/refs/x/2.json", "/tags/../key", "/objects/../key", "/tags/refs/x/1.history.jsonl", "/profiles/" + s.d.String() + "/start.json", "//store.json", "/tags/.hidden", "/openings/x/../../key"} {
		f.Add("GET", path, "")
	}
	f.Add("GET", "/"+s.d.Path(), "bytes=0-4,7-9,-1")
	f.Add("HEAD", "/"+s.d.Path(), "bytes=99999999999999999999-")
	f.Fuzz(func(t *testing.T, method, path, ranges string) {
		if method != "GET" && method != "HEAD" {
			method = "POST"
		}
		resp := ask(h, method, path, "Range", strings.ToValidUTF8(ranges, ""))
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(body, secret) {
			t.Fatalf("%s %q gives a secret", method, path)
		}
		switch resp.StatusCode {
		case http.StatusOK, http.StatusPartialContent, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestedRangeNotSatisfiable:
		default:
			t.Fatalf("%s %q %q: %s", method, path, ranges, resp.Status)
		}
	})
}
