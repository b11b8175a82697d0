package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"premix/internal/kit/exit"
	"premix/internal/testkit/ports"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// blastServer is a premix blast serve over one database. Tests may kill it.
type blastServer struct {
	t      *testing.T
	env    []string
	listen string
	genes  []string
	want   []string // rows that BLAST+ prints for each gene
	whole  string   // path of the database

	mu  sync.Mutex
	cmd *exec.Cmd
}

func newBlastServer(t *testing.T) *blastServer {
	t.Helper()
	if _, err := exec.LookPath("blastn"); err != nil {
		t.Skip("blastn is not installed: scripts/setup.sh test")
	}
	dir, err := os.MkdirTemp("", "blast-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ram, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skipf("there is no tmpfs to write to: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(ram) })
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &blastServer{t: t, env: append(os.Environ(), "PREMIX_HOME="+filepath.Join(dir, "home"), "PREMIX_BLAST_RAM="+filepath.Join(ram, "blast"), "PREMIX_STORE="), listen: fmt.Sprintf("127.0.0.1:%d", free[0])}
	r := rand.New(rand.NewPCG(3, 5))
	var fa strings.Builder
	for i := range 60 {
		b := make([]byte, 700)
		for k := range b {
			b[k] = "ACGT"[r.IntN(4)]
		}
		s.genes = append(s.genes, string(b[50:550]))
		fmt.Fprintf(&fa, ">gene%d\n%s\n", i, b)
	}
	path := filepath.Join(dir, "genes.fa")
	if err := os.WriteFile(path, []byte(fa.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"blast", "db", "add", path, "--name", "genes", "--type", "nucl", "--fragments", "2"}, {"blast", "warm", "genes"}} {
		cmd := exec.Command(binary, args...)
		cmd.Env = s.env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	// A warm database has its aliases elsewhere, unless it was opened before.
	s.whole = filepath.Join(dir, "home/blast/genes/alias/whole")
	if _, err := os.Stat(s.whole + ".nal"); err != nil {
		found, err := filepath.Glob(filepath.Join(ram, "blast/genes-*/alias/whole.nal"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v, %v", found, err)
		}
		s.whole = strings.TrimSuffix(found[0], ".nal")
	}
	for i := range s.genes {
		s.want = append(s.want, s.blastn(i))
	}
	t.Cleanup(func() { s.kill(syscall.SIGTERM) })
	return s
}

// blastn runs blastn without premix on some genes in one search, and returns the rows of the last
// gene.
func (s *blastServer) blastn(genes ...int) (rows string) {
	s.t.Helper()
	var queries strings.Builder
	for _, i := range genes {
		fmt.Fprintf(&queries, ">q%d\n%s\n", i, s.genes[i])
	}
	cmd := exec.Command("blastn", "-db", s.whole, "-task", "blastn", "-outfmt", "6")
	cmd.Stdin = strings.NewReader(queries.String())
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatal(err)
	}
	for row := range strings.Lines(string(out)) {
		if strings.HasPrefix(row, fmt.Sprintf("q%d\t", genes[len(genes)-1])) {
			rows += row
		}
	}
	return rows
}

// start starts the service at the same address as before.
func (s *blastServer) start(options ...string) {
	s.t.Helper()
	cmd := exec.Command(binary, append([]string{"blast", "serve", "--listen", s.listen}, options...)...)
	cmd.Env, cmd.Stderr = s.env, s.t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "listening on "+s.listen {
		s.t.Fatalf("%q, %v", line, err)
	}
}

// kill ends the service with a signal and returns its peak memory.
func (s *blastServer) kill(how syscall.Signal) (rss int64) {
	s.mu.Lock()
	cmd := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	if cmd == nil {
		return 0
	}
	_ = cmd.Process.Signal(how)
	err := cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && how == syscall.SIGTERM && status.ExitStatus() != int(exit.Signal(how)) && status.ExitStatus() != 0 {
		s.t.Errorf("the service ended with %v", err)
	}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		rss = usage.Maxrss << 10
	}
	return rss
}

// search submits gene i and returns its result. While the service is down it retries. It never
// submits a search again after the service accepted it.
func (s *blastServer) search(ctx context.Context, client *http.Client, i int) (string, error) {
	body, err := json.Marshal(map[string]any{"program": "blastn", "database": "genes", "format": "tabular", "query": fmt.Sprintf(">q%d\n%s\n", i, s.genes[i]), "options": map[string]string{"task": "blastn"}})
	if err != nil {
		return "", err
	}
	id := ""
	for {
		method, path, in := http.MethodPost, "", io.Reader(bytes.NewReader(body))
		if id != "" {
			method, path, in = http.MethodGet, "/"+id+"/result?wait=10", nil
		}
		req, err := http.NewRequestWithContext(ctx, method, "http://"+s.listen+"/api/v1/searches"+path, in)
		if err != nil {
			return "", err
		}
		req.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			// A broken connection can return many errors, and an idle connection one without a
			// type. Retry after any error, and return the last one when the context ends.
			select {
			case <-ctx.Done():
				return "", err
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			continue // the kill cut it off
		case answer.StatusCode == http.StatusAccepted && id == "":
			var job struct{ ID string }
			if err := json.Unmarshal(text, &job); err != nil {
				return "", err
			}
			id = job.ID
		case answer.StatusCode == http.StatusAccepted:
		case answer.StatusCode == http.StatusOK:
			return string(text), nil
		case answer.StatusCode == http.StatusServiceUnavailable:
			time.Sleep(50 * time.Millisecond)
		default:
			return "", fmt.Errorf("%d %s", answer.StatusCode, text)
		}
	}
}

// asAlone compares the rows of a query that was searched together with others with the rows that
// blastn prints for this query alone. All of the latter must be present, in the same order. Between
// them there may be short hits that begin in the first three letters of the query: blastn finds
// words there if another query precedes it, and overlooks them in the first query of a search.
func asAlone(got, alone string) error {
	rest := slices.Collect(strings.Lines(alone))
	for row := range strings.Lines(got) {
		if len(rest) > 0 && row == rest[0] {
			rest = rest[1:]
			continue
		}
		columns := strings.Split(row, "\t")
		if len(columns) != 12 {
			return fmt.Errorf("a row of %d columns", len(columns))
		}
		length, _ := strconv.Atoi(columns[3])
		begin, _ := strconv.Atoi(columns[6])
		if begin < 1 || begin > 3 || length > 15 {
			return fmt.Errorf("not found by blastn: %s", row)
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("missing: %s", rest[0])
	}
	return nil
}

// blastn without premix has the behaviour that asAlone allows for.
func TestBlastnFindsMoreBehindAnotherQuery(t *testing.T) {
	s := newBlastServer(t)
	more := 0
	for i := range s.genes {
		alone, behind := s.want[i], s.blastn((i+1)%len(s.genes), i)
		if err := asAlone(behind, alone); err != nil {
			t.Errorf("gene %d: %v: got\n%s\nwant\n%s", i, err, behind, alone)
		}
		if behind != alone {
			more++
		}
	}
	if more == 0 {
		t.Error("blastn finds the same: what asAlone allows for is not needed any more")
	}
}

// metric returns a value of /metrics.
func (s *blastServer) metric(name string) float64 {
	s.t.Helper()
	answer, err := http.Get("http://" + s.listen + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		s.t.Fatalf("%s is %q", name, value)
	}
	return v
}

// Many clients search at once while the service is killed and started again, and while results fill
// its quota: there is room for four results of each client. Each accepted search gets the right
// answer.
func TestBlastServeUnderLoad(t *testing.T) {
	clients, length := 50, 10*time.Second
	if os.Getenv("PREMIX_SOAK") != "" {
		clients, length = 200, 2*time.Minute
	}
	s := newBlastServer(t)
	quota := 4 * clients * 1000
	bound := []string{"--max-bytes", fmt.Sprintf("%dB", quota), "--max-user-bytes", fmt.Sprintf("%dB", quota)}
	s.start(bound...)
	ctx, cancel := context.WithTimeout(t.Context(), length+5*time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	end := time.Now().Add(length)
	var mu sync.Mutex
	var took []time.Duration
	var all sync.WaitGroup
	for c := range clients {
		r := rand.New(rand.NewPCG(1, uint64(c)))
		all.Go(func() {
			for first := true; first || time.Now().Before(end); first = false {
				i, began := r.IntN(len(s.genes)), time.Now()
				got, err := s.search(ctx, client, i)
				if err != nil {
					t.Errorf("client %d: %v", c, err)
					return
				}
				if got != s.want[i] {
					t.Errorf("gene %d: got\n%s\nwant\n%s", i, got, s.want[i])
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	time.Sleep(length / 2)
	evicted := s.metric("premix_blast_evicted_total")
	rss := s.kill(syscall.SIGKILL)
	s.start(bound...)
	all.Wait()
	evicted += s.metric("premix_blast_evicted_total")
	if stored := s.metric("premix_blast_result_bytes"); stored > float64(quota) || os.Getenv("PREMIX_SOAK") != "" && evicted == 0 {
		t.Errorf("results have %.0f bytes, and may have %d; %.0f were removed to make room", stored, quota, evicted)
	}
	rss = max(rss, s.kill(syscall.SIGTERM))
	slices.Sort(took)
	if len(took) == 0 {
		t.Fatal("nothing was answered")
	}
	t.Logf("%d clients, %d searches in %v: median %v, p99 %v, slowest %v; %.0f results were removed to make room; %d MiB of memory", clients, len(took), length, took[len(took)/2], took[len(took)*99/100], took[len(took)-1], evicted, rss>>20)
	if rss > 1<<30 {
		t.Errorf("the service took %d MiB", rss>>20)
	}
}

// biopython returns the directory with the package Bio that scripts/setup.sh installs, or "".
func biopython() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	found, err := filepath.Glob(filepath.Join(cache, "premix/biopython/*/Bio"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

// The NCBI client of Biopython works unchanged.
func TestBlastServeBiopython(t *testing.T) {
	modules := biopython()
	if modules == "" {
		t.Skip("Biopython is not installed: scripts/setup.sh test")
	}
	s := newBlastServer(t)
	s.start()
	script := `
import sys
from Bio.Blast import NCBIWWW
url, query = sys.argv[1:]
sys.stdout.write(NCBIWWW.qblast("blastn", "genes", query, url_base=url, expect=1e-5, hitlist_size=5).read())
try:
    NCBIWWW.qblast("blastn", "other", query, url_base=url)
except ValueError as e:
    sys.stderr.write(str(e))
`
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-c", script, "http://"+s.listen+"/Blast.cgi", ">mine\n"+s.genes[7])
	cmd.Env = append(os.Environ(), "PYTHONPATH="+modules, "PYTHONDONTWRITEBYTECODE=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	for _, want := range []string{"<BlastOutput_db>genes</BlastOutput_db>", "<Iteration_query-def>mine</Iteration_query-def>", "<Hit_def>gene7</Hit_def>", "<Parameters_expect>1e-05</Parameters_expect>"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s is missing in\n%s", want, out)
		}
	}
	if !strings.Contains(stderr.String(), `there is no database &#34;other&#34;`) {
		t.Errorf("Biopython says %s", &stderr)
	}
}

// The client of the Galaxy tool gets the rows of blastn. For a database that does not exist it ends
// with the message of the service.
func TestBlastServeGalaxy(t *testing.T) {
	s := newBlastServer(t)
	s.start()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: scripts/setup.sh test")
	}
	dir := t.TempDir()
	query, result := filepath.Join(dir, "query.fa"), filepath.Join(dir, "result")
	if err := os.WriteFile(query, fmt.Appendf(nil, ">q7\n%s\n", s.genes[7]), 0o600); err != nil {
		t.Fatal(err)
	}
	client := func(database string) (string, error) {
		cmd := exec.Command(python, "../../dist/galaxy/premix_blast.py", "blastn", database, query, "tabular", result, "evalue=10", "max_target_seqs=500", "task=blastn", "strand=both")
		cmd.Env = append(os.Environ(), "PREMIX_BLAST_URL=http://"+s.listen)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := client("genes"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(result); err != nil || s.want[7] == "" || string(got) != s.want[7] {
		t.Errorf("the result is %q, %v, want %q", got, err, s.want[7])
	}
	if out, err := client("none"); err == nil || !strings.HasPrefix(out, "error: ") || !strings.Contains(out, "none") {
		t.Errorf("a database that does not exist: %v, %s", err, out)
	}
}
