package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/service"
	"premix/internal/kit/exit"
)

// patience is the longest time to wait for an event that must happen.
const patience = 2 * time.Minute

// plain runs BLAST+ for each job separately.
type plain struct {
	held  chan struct{} // searches wait until it is closed; may be nil
	scans atomic.Int64
}

func (p *plain) Search(ctx context.Context, s service.Scan, out []io.Writer) error {
	p.scans.Add(1)
	if p.held != nil {
		select {
		case <-p.held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for i, text := range s.Queries {
		one := s
		one.Queries = [][]byte{text}
		if err := (&service.Programs{Threads: 1}).Search(ctx, one, out[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// world is a service with two small databases.
type world struct {
	t       *testing.T
	options service.Options
	genes   []string
	stop    func()
	*httptest.Server
}

// newWorld makes the databases dna and aa, and starts a service.
func newWorld(t *testing.T, searcher service.Searcher, change func(*service.Options)) *world {
	t.Helper()
	if _, err := exec.LookPath("blastn"); err != nil {
		t.Skip("blastn is not installed: scripts/setup.sh test")
	}
	w := &world{t: t}
	t.Setenv("PREMIX_BLAST_RAM", filepath.Join(t.TempDir(), "none")) // no database is in memory
	home, r := t.TempDir(), rand.New(rand.NewPCG(7, 7))
	var dna, aa strings.Builder
	for i := range 40 {
		seq := func(alphabet string, n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = alphabet[r.IntN(len(alphabet))]
			}
			return string(b)
		}
		w.genes = append(w.genes, seq("ACGT", 600))
		fmt.Fprintf(&dna, ">gene%d a gene\n%s\n", i, w.genes[i])
		fmt.Fprintf(&aa, ">prot%d\n%s\n", i, seq("ACDEFGHIKLMNPQRSTVWY", 200))
	}
	for name, text := range map[string]string{"dna": dna.String(), "aa": aa.String()} {
		path := filepath.Join(t.TempDir(), name+".fa")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kind := map[string]database.Type{"dna": database.Nucl, "aa": database.Prot}[name]
		if _, _, err := database.Add(t.Context(), home, database.AddOptions{Name: name, Source: path, Type: kind, Fragments: 2}); err != nil {
			t.Fatal(err)
		}
	}
	w.options = service.Options{
		Dir: filepath.Join(t.TempDir(), "jobs"), Home: home, Version: "test", Searcher: searcher, Delay: 20 * time.Millisecond, Keep: time.Hour, Scans: 2,
		Timeout: patience, Limits: service.DefaultLimits(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&w.options)
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start starts the service with the state of an earlier one.
func (w *world) start() {
	w.t.Helper()
	s, err := service.New(w.options)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	w.Server = httptest.NewServer(s.Handler())
	w.stop = sync.OnceFunc(func() {
		w.CloseClientConnections()
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		w.Close()
	})
}

// ask sends a request and returns its status, body and header.
func (w *world) ask(method, path string, body any, header ...string) (int, string, http.Header) {
	w.t.Helper()
	var in io.Reader
	kind := ""
	switch b := body.(type) {
	case nil:
	case url.Values:
		in, kind = strings.NewReader(b.Encode()), "application/x-www-form-urlencoded"
	case string:
		in, kind = strings.NewReader(b), "application/json"
	default:
		text, err := json.Marshal(b)
		if err != nil {
			w.t.Fatal(err)
		}
		in, kind = bytes.NewReader(text), "application/json"
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.URL+path, in)
	if err != nil {
		w.t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

type search struct {
	ID, State, Error string
	Letters          int64
}

// submit submits a search and returns its ID.
func (w *world) submit(body any, header ...string) string {
	w.t.Helper()
	status, text, _ := w.ask("POST", "/api/v1/searches", body, header...)
	var s search
	if err := json.Unmarshal([]byte(text), &s); err != nil || status != 202 {
		w.t.Fatalf("%d %s %v", status, text, err)
	}
	return s.ID
}

// result waits for a result.
func (w *world) result(id, query string, header ...string) string {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		status, text, _ := w.ask("GET", "/api/v1/searches/"+id+"/result?wait=5&"+query, nil, header...)
		switch status {
		case 200:
			return text
		case 202:
		default:
			w.t.Fatalf("%d %s", status, text)
		}
	}
	w.t.Fatal("no result came")
	return ""
}

// want returns the output of BLAST+.
func (w *world) want(program, db, text string, args ...string) string {
	w.t.Helper()
	d, err := database.Open(w.options.Home, db)
	if err != nil {
		w.t.Fatal(err)
	}
	defer d.Close()
	// BLAST+ breaks long names into lines, so it gets a short relative name.
	dir, name := filepath.Split(d.Whole)
	name = filepath.Join(filepath.Base(dir), name)
	cmd := exec.Command(program, append([]string{"-db", name}, args...)...)
	cmd.Dir = filepath.Dir(filepath.Clean(dir))
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatal(err)
	}
	// BLAST+ prints the name by which a database was opened.
	return strings.ReplaceAll(string(out), name, db)
}

func TestSearches(t *testing.T) {
	w := newWorld(t, &plain{}, nil)
	query := ">q one\n" + w.genes[3][:300] + "\n>q two\n" + w.genes[4][100:] + "\n"
	id := w.submit(map[string]any{"program": "blastn", "database": "dna", "query": strings.ReplaceAll(query, "\n", "\r\n"), "format": "tabular", "options": map[string]string{"evalue": "1e-5", "ungapped": "true"}})
	if got, want := w.result(id, ""), w.want("blastn", "dna", query, "-evalue", "1e-5", "-ungapped", "-outfmt", "6"); got != want || want == "" {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Other formats are made on request.
	for format, outfmt := range map[string]string{"xml": "5", "text": "0", "table": "7", "csv": "10", "json": "15", "tabular&columns=qseqid+evalue": "6 qseqid evalue"} {
		if got, want := w.result(id, "format="+format), w.want("blastn", "dna", query, "-evalue", "1e-5", "-ungapped", "-outfmt", outfmt); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", format, got, want)
		}
	}
	if _, text, _ := w.ask("GET", "/api/v1/searches/"+id, nil); !strings.Contains(text, `"state":"ready"`) || !strings.Contains(text, `"options":["-evalue","1e-5","-ungapped"]`) {
		t.Error(text)
	}
	if status, _, _ := w.ask("DELETE", "/api/v1/searches/"+id, nil); status != 204 {
		t.Error(status)
	}
	if status, _, _ := w.ask("GET", "/api/v1/searches/"+id, nil); status != 404 {
		t.Error(status)
	}
	// An error of BLAST+ is reported, and does not affect other searches.
	id = w.submit(map[string]any{"program": "blastn", "database": "dna", "query": query, "options": map[string]string{"word_size": "1"}})
	for deadline := time.Now().Add(patience); ; {
		status, text, _ := w.ask("GET", "/api/v1/searches/"+id+"/result?wait=5", nil)
		if status == 422 && strings.Contains(text, "word_size") {
			break
		}
		if status != 202 || time.Now().After(deadline) {
			t.Fatalf("%d %s", status, text)
		}
	}
}

func TestRefused(t *testing.T) {
	w := newWorld(t, &plain{}, func(o *service.Options) { o.Limits.Body, o.Limits.Letters, o.Limits.Queries = 2000, 1000, 2 })
	ok := map[string]any{"program": "blastn", "database": "dna", "query": "ACGTACGTACGT"}
	with := func(key string, value any) map[string]any {
		m := map[string]any{key: value}
		for k, v := range ok {
			if k != key {
				m[k] = v
			}
		}
		return m
	}
	for _, c := range []struct {
		body   any
		status int
		want   string
	}{
		{ok, 202, `"state":`},
		{with("program", "rm"), 400, "no program"},
		{with("program", "blastp"), 400, "does not search databases of type nucl"},
		{with("database", "other"), 404, "no database"},
		{with("database", "../x"), 404, "no database"},
		{with("query", ""), 400, "no query"},
		{with("query", ">a\nAC-T\n"), 400, "line 2: '-' is not a valid nucleotide"},
		{with("query", "ACGT\nAC9T"), 400, "line 2: '9' is not a valid nucleotide"},
		{with("query", strings.Repeat("A", 1001)), 413, "more than 1000 letters"},
		{with("query", ">a\nA\n>b\nA\n>c\nA\n"), 413, "more than 2 sequences"},
		{with("query", strings.Repeat("A", 2001)), 413, "at most 2000 bytes"},
		{with("format", "pdf"), 400, "no format"},
		{with("options", map[string]string{"out": "/etc/passwd"}), 400, `no option \"out\"`},
		{with("options", map[string]string{"num_threads": "64"}), 400, "no option"},
		{with("options", map[string]string{"evalue": "-out x"}), 400, "not a value of the option evalue"},
		{with("options", map[string]string{"task": "-outfmt"}), 202, ""},
		{with("more", 1), 400, "unknown field"},
		{"{", 400, "cannot be read"},
		{url.Values{"a": {"b"}}, 415, "application/json"},
	} {
		if status, text, _ := w.ask("POST", "/api/v1/searches", c.body); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%v: %d %s, want %d %s", c.body, status, text, c.status, c.want)
		}
	}
	for _, path := range []string{"/api/v1/searches/NO", "/api/v1/searches/NO/result", "/nothing"} {
		if status, _, _ := w.ask("GET", path, nil); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
}

// Jobs that arrive during a scan are searched together in the next scan, with one job of each user
// in turn. The jobs of one user cannot displace another user's.
func TestGroupedAndFair(t *testing.T) {
	p := &plain{held: make(chan struct{})}
	w := newWorld(t, p, func(o *service.Options) {
		o.Scans, o.Limits.UserWaiting, o.Limits.Scan = 1, 20, 1500
		o.Tokens = tokens(t, "# who\nann 0123456789abcdef\n\nbob fedcba9876543210\n")
	})
	ann, bob := []string{"Authorization", "Bearer 0123456789abcdef"}, []string{"Authorization", "Bearer fedcba9876543210"}
	body := func(i int) map[string]any {
		return map[string]any{"program": "blastn", "database": "dna", "query": ">x\n" + w.genes[i][:250] + "\n", "format": "tabular"}
	}
	if status, _, header := w.ask("POST", "/api/v1/searches", body(0)); status != 401 || header.Get("WWW-Authenticate") == "" {
		t.Errorf("without a token: %d", status)
	}
	var ids, his []string
	for i := range 20 {
		ids = append(ids, w.submit(body(i), ann...))
		if i == 0 { // it runs in a separate scan
			for deadline := time.Now().Add(patience); p.scans.Load() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no scan has begun")
				}
			}
		}
	}
	ids = append(ids, w.submit(body(20), ann...))
	status, text, header := w.ask("POST", "/api/v1/searches", body(21), ann...)
	if status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("%d %s", status, text)
	}
	for i := range 2 {
		his = append(his, w.submit(body(30+i), bob...))
	}
	if status, _, _ := w.ask("GET", "/api/v1/searches/"+ids[0], nil, bob...); status != 404 {
		t.Errorf("another user's search: %d", status)
	}
	close(p.held)
	// Both jobs of bob are in the next scan, so they end before most of ann's.
	for _, id := range his {
		w.result(id, "", bob...)
	}
	for i, id := range ids {
		if got, want := w.result(id, "", ann...), w.want("blastn", "dna", ">x\n"+w.genes[i][:250]+"\n", "-outfmt", "6"); got != want || got == "" {
			t.Errorf("job %d: got\n%s\nwant\n%s", i, got, want)
		}
	}
	// 1 + 22 jobs of 250 letters, six in each scan.
	if n := p.scans.Load(); n != 5 {
		t.Errorf("%d scans", n)
	}
	if _, text, _ := w.ask("GET", "/api/v1/searches", nil, bob...); strings.Count(text, `"id"`) != 2 {
		t.Error(text)
	}
	if _, text, _ := w.ask("GET", "/metrics", nil, bob...); !strings.Contains(text, `premix_blast_accepted_total{program="blastn"} 23`) || !strings.Contains(text, "premix_blast_scan_jobs_count 5") {
		t.Error(text)
	}
}

// A service that is stopped answers the accepted searches after its restart.
func TestRestart(t *testing.T) {
	p := &plain{held: make(chan struct{})}
	w := newWorld(t, p, nil)
	long := ">long\n" + strings.Repeat(w.genes[1]+"\n", 300)
	bodies := []string{">a\n" + w.genes[0] + "\n", long, ">b\n" + w.genes[2] + "\n"}
	var ids []string
	for _, text := range bodies {
		ids = append(ids, w.submit(map[string]any{"program": "blastn", "database": "dna", "query": text, "format": "tabular", "options": map[string]string{"max_hsps": "5"}}))
	}
	gone := w.submit(map[string]any{"program": "blastn", "database": "dna", "query": bodies[0]})
	if status, _, _ := w.ask("DELETE", "/api/v1/searches/"+gone, nil); status != 204 {
		t.Error(status)
	}
	if _, err := service.New(w.options); exit.Of(err) != exit.Directory || !strings.Contains(err.Error(), "another service keeps its jobs") {
		t.Errorf("a second service over the same jobs: %v", err)
	}
	w.stop()
	close(p.held)
	for range 3 { // also if no work is left
		w.start()
		for i, id := range ids {
			if got, want := w.result(id, ""), w.want("blastn", "dna", bodies[i], "-outfmt", "6", "-max_hsps", "5"); got != want || got == "" {
				t.Errorf("job %d: got\n%.300s\nwant\n%.300s", i, got, want)
			}
		}
		if status, _, _ := w.ask("GET", "/api/v1/searches/"+gone, nil); status != 404 {
			t.Errorf("a search that was deleted: %d", status)
		}
		w.stop()
	}
	if entries, err := os.ReadDir(filepath.Join(w.options.Dir, "queries")); err != nil || len(entries) > 0 {
		t.Errorf("queries that are not needed any more: %v, %v", entries, err)
	}
}

func TestExpiry(t *testing.T) {
	w := newWorld(t, &plain{}, func(o *service.Options) { o.Keep = time.Millisecond })
	id := w.submit(map[string]any{"program": "blastp", "database": "aa", "query": "MKVLAAGIVGLLLA", "format": "tabular"})
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		status, text, _ := w.ask("GET", "/api/v1/searches/"+id+"/result", nil)
		entries, err := os.ReadDir(filepath.Join(w.options.Dir, "results"))
		if err != nil {
			t.Fatal(err)
		}
		if status == 404 && len(entries) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %s, %v", status, text, entries)
		}
	}
	// NCBI's URL API has a status for it.
	if _, text, _ := w.ask("GET", "/Blast.cgi?CMD=Get&FORMAT_OBJECT=SearchInfo&RID="+id, nil); !strings.Contains(text, "Status=UNKNOWN") {
		t.Error(text)
	}
}

// TestURLAPI checks NCBI's URL API against its documentation.
func TestURLAPI(t *testing.T) {
	w := newWorld(t, &plain{}, nil)
	query := ">q\n" + w.genes[5][:200] + "\n"
	status, text, _ := w.ask("POST", "/Blast.cgi", url.Values{"CMD": {"Put"}, "PROGRAM": {"blastn"}, "DATABASE": {"dna"}, "QUERY": {query}, "EXPECT": {"10.0"}, "HITLIST_SIZE": {"50"}, "FILTER": {"none"}, "GAPCOSTS": {"5 2"}, "MEGABLAST": {"off"}, "ENTREZ_QUERY": {"(none)"}})
	_, rest, found := strings.Cut(text, "QBlastInfoBegin\n    RID = ")
	id, rest, _ := strings.Cut(rest, "\n    RTOE = ")
	if status != 200 || !found || !strings.HasPrefix(rest, "1\nQBlastInfoEnd") {
		t.Fatalf("%d %s", status, text)
	}
	get := func(more string) (int, string) {
		status, text, _ := w.ask("GET", "/Blast.cgi?CMD=Get&RID="+id+more, nil)
		return status, text
	}
	for deadline := time.Now().Add(patience); ; {
		_, text := get("&FORMAT_OBJECT=SearchInfo")
		if strings.Contains(text, "Status=READY") && strings.Contains(text, "ThereAreHits=yes") {
			break
		}
		if !strings.Contains(text, "Status=WAITING") || time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
	for name, outfmt := range map[string]string{"XML": "5", "Text": "0", "Tabular": "7", "JSON2_S": "15", "CSV": "10"} {
		if status, got := get("&FORMAT_TYPE=" + name); status != 200 || got != w.want("blastn", "dna", query, "-task", "blastn", "-evalue", "10.0", "-max_target_seqs", "50", "-dust", "no", "-gapopen", "5", "-gapextend", "2", "-outfmt", outfmt) {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	if _, text := get("x&FORMAT_OBJECT=SearchInfo"); !strings.Contains(text, "Status=UNKNOWN") {
		t.Error(text)
	}
	// Errors are reported where Biopython looks for them.
	for _, v := range []url.Values{
		{"PROGRAM": {"blastn"}, "DATABASE": {"none"}, "QUERY": {query}},
		{"PROGRAM": {"blastn"}, "DATABASE": {"dna"}, "QUERY": {"8332116"}},
		{"PROGRAM": {"blastp"}, "DATABASE": {"aa"}, "QUERY": {"MKV"}, "SERVICE": {"psi"}},
		{"PROGRAM": {"blastp"}, "DATABASE": {"aa"}, "QUERY": {"MKV"}, "ENTREZ_QUERY": {"human[organism]"}},
	} {
		v.Set("CMD", "Put")
		if status, text, _ := w.ask("POST", "/Blast.cgi", v); status != 200 || !strings.Contains(text, `<div class="error msInf">`) {
			t.Errorf("%v: %d %s", v, status, text)
		}
	}
}

// The paths in the description of the interface exist, and their operations have names.
func TestOpenAPI(t *testing.T) {
	w := newWorld(t, &plain{}, nil)
	_, text, _ := w.ask("GET", "/openapi.json", nil)
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if !bytes.Contains(op, []byte("operationId")) && method != "parameters" {
				t.Errorf("%s %s has no name", method, path)
			}
			if method != "get" {
				continue
			}
			status, _, _ := w.ask("GET", strings.ReplaceAll(path, "{id}", "NONE"), nil)
			if want := map[bool]int{true: 404, false: 200}[strings.Contains(path, "{")]; status != want {
				t.Errorf("%s: %d", path, status)
			}
		}
	}
	for _, path := range []string{"/", "/searches", "/app.js", "/premix.css", "/style.css", "/icon.svg"} {
		if status, text, header := w.ask("GET", path, nil); status != 200 || text == "" || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s: %d", path, status)
		}
	}
}
