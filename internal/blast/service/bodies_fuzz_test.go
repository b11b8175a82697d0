package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/service"
)

// silent is a searcher that finds nothing.
type silent struct{}

func (silent) Search(_ context.Context, s service.Scan, out []io.Writer) error { return nil }

// The answer to any request follows the interface: it is JSON or in the format of NCBI, and not an
// internal error of the server.
func FuzzBodies(f *testing.F) {
	if _, err := exec.LookPath("makeblastdb"); err != nil {
		f.Skip("makeblastdb is not installed: scripts/setup.sh test")
	}
	f.Setenv("PREMIX_BLAST_RAM", filepath.Join(f.TempDir(), "none"))
	home, source := f.TempDir(), filepath.Join(f.TempDir(), "dna.fa")
	if err := os.WriteFile(source, []byte(">a\nACGTACGTTTGACCAGTGCA\n"), 0o644); err != nil {
		f.Fatal(err)
	}
	if _, _, err := database.Add(context.Background(), home, database.AddOptions{Name: "dna", Source: source, Type: database.Nucl}); err != nil {
		f.Fatal(err)
	}
	limits := service.DefaultLimits()
	limits.Body = 1 << 16
	s, err := service.New(service.Options{Dir: filepath.Join(f.TempDir(), "jobs"), Home: home, Version: "test", Searcher: silent{}, Delay: time.Millisecond, Keep: time.Hour, Scans: 1,
		Timeout: time.Minute, Limits: limits, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	h := s.Handler()
	const form, text = "application/x-www-form-urlencoded", "application/json"
	f.Add("POST", "/api/v1/searches", text, `{"program":"blastn","database":"dna","query":">q\nACGT","format":"tabular","options":{"evalue":"1e-10"}}`)
	f.Add("POST", "/api/v1/searches", text, `{"program":"blastn","database":"../../etc","query":"ACGT","options":{"out":"/etc/x","query":"/etc/passwd"}}`)
	f.Add("POST", "/Blast.cgi", form, "CMD=Put&PROGRAM=blastn&DATABASE=dna&QUERY=ACGT&FILTER=m+L&WORD_SIZE=11")
	f.Add("POST", "/Blast.cgi", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"CMD\"\r\n\r\nPut\r\n--x\r\nContent-Disposition: form-data; name=\"QUERYFILE\"; filename=\"q\"\r\n\r\n>q\nACGT\r\n--x--\r\n")
	f.Add("GET", "/Blast.cgi?CMD=Get&RID=../../x&FORMAT_TYPE=XML", form, "")
	f.Add("GET", "/api/v1/searches/..%2f..%2fx/result?format=csv&columns=qseqid", "", "")
	f.Add("GET", "/\xff", "", "")
	f.Add("DELETE", "/api/v1/searches/x", "", "")
	f.Fuzz(func(t *testing.T, method, target, kind, body string) {
		if method != "POST" && method != "GET" && method != "DELETE" {
			return
		}
		path, query, _ := strings.Cut(target, "?")
		if !strings.HasPrefix(path, "/") || strings.Contains(strings.ToLower(query+body), "wait") {
			return // a request that waits is not an error
		}
		r := httptest.NewRequest(method, "http://localhost/", strings.NewReader(body))
		r.URL.Path, r.URL.RawQuery = path, query
		r.Header["Content-Type"] = []string{kind}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel() // Get waits politely
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(ctx))
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable {
			t.Fatalf("%s %q %q %q: %d %s", method, target, kind, body, w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(bytes.TrimSpace(w.Body.Bytes())) {
			t.Fatalf("%s %q: %s", method, target, w.Body)
		}
		if strings.Contains(w.Body.String(), home) || strings.Contains(w.Body.String(), "root:") {
			t.Fatalf("%s %q: a path or a file of the server: %s", method, target, w.Body)
		}
	})
}
