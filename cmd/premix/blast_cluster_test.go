package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"premix/internal/blast/cluster"
	"premix/internal/blast/database"
	"premix/internal/kit/exit"
	"premix/internal/testkit/ports"
	"premix/internal/testkit/shortdir"
)

// clusterScene is a cluster of nodes with separate homes and memory, and a head.
type clusterScene struct {
	dir   string
	env   []string // of the head
	nodes []*clusterNode
	plain sync.Once // makes the database of makeblastdb
}

// clusterNode is a process that holds fragments.
type clusterNode struct {
	address, home, ram string
	args               []string
	cmd                *exec.Cmd
}

// newClusterScene makes a database of a large gene family among random sequences, and starts
// nodes whose memory has room for budget of it.
func newClusterScene(t *testing.T, nodes, fragments int, budget float64) *clusterScene {
	t.Helper()
	s := newClusterHead(t)
	fasta, queries := family()
	s.write(t, "db.fa", fasta)
	s.write(t, "q.fa", queries)
	s.ok(t, "blast", "db", "add", "db.fa", "--name", "db", "--title", "db", "--type", "nucl", "--fragments", fmt.Sprint(fragments), "--store", "store")
	var rows []struct{ Bytes int64 }
	if err := json.Unmarshal([]byte(s.ok(t, "blast", "db", "ls", "--json")), &rows); err != nil {
		t.Fatal(err)
	}
	s.add(t, nodes, fmt.Sprintf("%dK", int64(budget*float64(rows[0].Bytes))>>10))
	return s
}

// newClusterHead makes the store and the key of a cluster without nodes.
func newClusterHead(t *testing.T) *clusterScene {
	t.Helper()
	if _, err := exec.LookPath("blastn"); err != nil {
		t.Skip("blastn is not installed: scripts/setup.sh test")
	}
	s := &clusterScene{dir: shortdir.New(t)}
	s.env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(s.dir, "head"), "PREMIX_BLAST_RAM="+s.ram(t, "head"), "PREMIX_BLAST_KEY="+filepath.Join(s.dir, "key"))
	s.ok(t, "store", "init", "store")
	s.ok(t, "blast", "cluster", "key", "key")
	return s
}

// add starts nodes with this memory for fragments.
func (s *clusterScene) add(t *testing.T, nodes int, memory string) {
	t.Helper()
	for range nodes {
		name := fmt.Sprint("n", len(s.nodes))
		n := &clusterNode{address: fmt.Sprintf("127.0.0.1:%d", freePort(t)), home: filepath.Join(s.dir, name), ram: s.ram(t, name)}
		n.args = []string{"blast", "cluster", "node", "--key", filepath.Join(s.dir, "key"), "--origin", filepath.Join(s.dir, "store"), "--listen", n.address, "--memory", memory, "--cores", "1"}
		s.nodes = append(s.nodes, n)
		t.Cleanup(func() { n.stop(syscall.SIGTERM) }) // before its memory is removed
		n.start(t)
	}
}

func (s *clusterScene) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ram makes a directory in memory.
func (s *clusterScene) ram(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, name)
}

func (n *clusterNode) start(t *testing.T) {
	t.Helper()
	n.cmd = exec.Command(binary, n.args...)
	n.cmd.Env = append(os.Environ(), "PREMIX_HOME="+n.home, "PREMIX_BLAST_RAM="+n.ram)
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(stderr)
	line, err := in.ReadString('\n')
	if want := "node " + n.address + " is ready\n"; line != want {
		t.Fatalf("a node says %q, want %q (%v)", line, want, err)
	}
	go io.Copy(io.Discard, in)
}

func (n *clusterNode) stop(s syscall.Signal) {
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(s)
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

// wipe ends a node as a power failure does: the contents of its memory are lost.
func (n *clusterNode) wipe(t *testing.T) {
	n.stop(syscall.SIGKILL)
	if err := os.RemoveAll(n.ram + "-node"); err != nil {
		t.Fatal(err)
	}
}

func (s *clusterScene) run(args ...string) (stdout, stderr string, code int) {
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	_ = cmd.Run() // the caller compares the code
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

func (s *clusterScene) ok(t *testing.T, args ...string) string {
	t.Helper()
	out, said, code := s.run(args...)
	if code != 0 {
		t.Fatalf("premix %q ended with status %d:\n%s%s", args, code, out, said)
	}
	return out
}

// list returns the value of --nodes.
func (s *clusterScene) list() string {
	var all []string
	for _, n := range s.nodes {
		all = append(all, n.address)
	}
	return strings.Join(all, ",")
}

// status returns the state of the nodes that answer.
func (s *clusterScene) status(t *testing.T) (rows []struct {
	Address string
	Status  *cluster.Status
}) {
	t.Helper()
	out, said, _ := s.run("blast", "cluster", "ls", "--json", "--nodes", s.list())
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v:\n%s%s", err, out, said)
	}
	return rows
}

// await waits until ok returns true for the fragments that each node has.
func (s *clusterScene) await(t *testing.T, what string, ok func(fragments [][]int) bool) {
	t.Helper()
	var last [][]int
	for range 600 {
		last = nil
		for _, r := range s.status(t) {
			var list []int
			if r.Status != nil {
				for _, d := range r.Status.Databases {
					for _, f := range d.Fragments {
						if f.Complete && f.Bytes == f.InMemory {
							list = append(list, f.Number)
						}
					}
				}
			}
			last = append(last, list)
		}
		if ok(last) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s: the nodes have %v", what, last)
}

// replicas returns the smallest number of nodes that have the same fragment.
func replicas(fragments [][]int, count int) int {
	least := len(fragments)
	for f := range count {
		n := 0
		for _, list := range fragments {
			if slices.Contains(list, f) {
				n++
			}
		}
		least = min(least, n)
	}
	return least
}

// undated returns a report without the date of the database: makeblastdb writes the minute in
// which it runs, and premix the minute of the sequences.
func undated(report string) string {
	return regexp.MustCompile(`Posted date: .*`).ReplaceAllString(report, "Posted date:")
}

// plainly returns the output of BLAST+ on a database that makeblastdb made.
func (s *clusterScene) plainly(t *testing.T, args ...string) string {
	t.Helper()
	dir := filepath.Join(s.dir, "plain")
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		return string(out)
	}
	s.plain.Do(func() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		run("makeblastdb", "-in", "../db.fa", "-dbtype", "nucl", "-title", "db", "-out", "db")
	})
	if !slices.Contains(args, "-query") {
		args = append(args, "-query", "../q.fa")
	}
	return undated(run("blastn", append([]string{"-db", "db"}, args...)...))
}

// family returns random sequences, some of them variants of one gene, and queries that match them.
func family() (fasta, queries string) {
	r := rand.New(rand.NewPCG(21, 22))
	sequence := func(n int) []byte {
		b := make([]byte, n)
		for k := range b {
			b[k] = "ACGT"[r.IntN(4)]
		}
		return b
	}
	gene := sequence(600)
	var fa, q strings.Builder
	for i := range 240 {
		b := sequence(3000)
		if i%4 == 0 {
			copy(b[1000:], gene)
			for range 10 + i/4 {
				b[1000+r.IntN(len(gene))] = "ACGT"[r.IntN(4)]
			}
		}
		fmt.Fprintf(&fa, ">s%d\n%s\n", i, b)
		if i%40 == 7 {
			fmt.Fprintf(&q, ">q%d\n%s\n", i, b[500:1500])
		}
	}
	fmt.Fprintf(&q, ">gene\n%s\n", gene)
	return fa.String(), q.String()
}

// Four nodes hold a database of three times the memory that each of them may use. Every search
// prints the same as BLAST+ on a database of makeblastdb: with all nodes, without one node, with a
// node that is lost during the search, and after this node has returned with empty memory.
func TestBlastCluster(t *testing.T) {
	t.Parallel()
	const fragments = 8
	s := newClusterScene(t, 4, fragments, 1/2.9)
	// One replica fits, two do not fit.
	if _, said, code := s.run("blast", "cluster", "warm", "db", "--nodes", s.list()); code != int(exit.Usage) || !strings.Contains(said, "does not fit") {
		t.Errorf("two replicas in too little memory: status %d, %s", code, said)
	}
	plan := s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list(), "--replicas", "1", "--dry-run")
	s.await(t, "a dry run places nothing", func(f [][]int) bool { return replicas(f, fragments) == 0 })
	var row placedRow
	if err := json.Unmarshal([]byte(s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list(), "--replicas", "1", "--dry-run", "--json")), &row); err != nil || len(row.Nodes) != 4 {
		t.Errorf("the plan as JSON: %+v, %v", row, err)
	}
	if got := s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list(), "--replicas", "1"); !strings.HasPrefix(got, plan) || strings.Count(plan, "\n") != 4 {
		t.Errorf("the plan is\n%sand then\n%s", plan, got)
	}
	s.await(t, "each fragment is on one node", func(f [][]int) bool {
		n := 0
		for _, list := range f {
			n += len(list)
		}
		return n == fragments && replicas(f, fragments) == 1
	})
	// A node has the files of its own fragments only.
	for i, n := range s.nodes {
		files, err := filepath.Glob(filepath.Join(n.ram+"-node", "*", "data", "*.nsq"))
		if err != nil || len(files) != 2 {
			t.Errorf("node %d has %d volumes in memory, want 2 (%v)", i, len(files), err)
		}
	}
	// A search reads nothing from storage. Other work on this machine may push the files of BLAST+
	// itself out of memory, so one of several searches has to show it.
	var most int64
	for range 10 {
		most = 0
		for _, n := range s.nodes {
			most -= n.read(t)
		}
		s.ok(t, "blast", "blastn", "--nodes", s.list(), "-db", "db", "-query", "q.fa", "-outfmt", "6")
		for _, n := range s.nodes {
			most += n.read(t)
		}
		if most == 0 {
			break
		}
	}
	if most != 0 {
		t.Errorf("the nodes read %d bytes from storage in each of ten searches", most)
	}
	equal := func(when string, options ...string) (note string) {
		t.Helper()
		want := s.plainly(t, options...)
		got, said, code := s.run(append([]string{"blast", "blastn", "--nodes", s.list(), "-db", "db", "-query", "q.fa"}, options...)...)
		if code != 0 || undated(got) != want || !strings.Contains(want, "q207") {
			t.Errorf("%s, %q: status %d, %s\ngot\n%.2000s\nwant\n%.2000s", when, options, code, said, got, want)
		}
		return said
	}
	for _, options := range [][]string{{"-outfmt", "6"}, {"-outfmt", "0"}, {"-outfmt", "5"}, {"-outfmt", "6", "-max_target_seqs", "5"}, {"-outfmt", "7", "-evalue", "1e-30", "-num_threads", "2"}} {
		if note := equal("all nodes", options...); note != "" {
			t.Errorf("%q: %s", options, note)
		}
	}
	// A node with the only replica of its fragments is lost.
	lost := s.nodes[2]
	lost.wipe(t)
	if note := equal("one node is lost", "-outfmt", "6"); !strings.Contains(note, lost.address) || !strings.Contains(note, "this machine searches") {
		t.Errorf("the note is %q", note)
	}
	lost.start(t)
	s.await(t, "a node loads its fragments again", func(f [][]int) bool { return replicas(f, fragments) == 1 })
	if note := equal("the node is back", "-outfmt", "6"); note != "" {
		t.Error(note)
	}
	// A process that is started again after a kill finds its fragments.
	lost.stop(syscall.SIGKILL)
	lost.start(t)
	if n := len(s.status(t)[2].Status.Databases); n != 1 {
		t.Errorf("a node that was started again has %d databases", n)
	}
	s.ok(t, "blast", "cluster", "evict", "db", "--nodes", s.list())
	s.await(t, "nothing is in memory", func(f [][]int) bool { return replicas(f, fragments) == 0 && len(slices.Concat(f...)) == 0 })
	equal("no node has anything", "-outfmt", "6")
}

// A node that starts removes the fragments that a node with --drop left when it was killed. It leaves
// those of nodes that run.
func TestBlastClusterDrop(t *testing.T) {
	t.Parallel()
	s := newClusterScene(t, 0, 2, 1)
	shm := filepath.Dir(s.ram(t, "nodes"))
	start := func(home string) (n *clusterNode, said string) {
		t.Helper()
		n = &clusterNode{address: fmt.Sprintf("127.0.0.1:%d", freePort(t)), home: filepath.Join(s.dir, home), ram: filepath.Join(shm, fmt.Sprintf("premix-blast-%d-%s", os.Geteuid(), home))}
		t.Cleanup(func() { n.stop(syscall.SIGTERM) })
		n.cmd = exec.Command(binary, "blast", "cluster", "node", "--key", filepath.Join(s.dir, "key"), "--origin", filepath.Join(s.dir, "store"), "--listen", n.address, "--cores", "1", "--drop")
		n.cmd.Env = append(os.Environ(), "PREMIX_HOME="+n.home, "PREMIX_BLAST_RAM="+n.ram)
		stderr, err := n.cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(stderr)
		for !strings.Contains(said, "is ready") {
			line, err := in.ReadString('\n')
			if said += line; err != nil {
				t.Fatalf("a node says %q: %v", said, err)
			}
		}
		go io.Copy(io.Discard, in)
		s.ok(t, "blast", "cluster", "warm", "db", "--nodes", n.address, "--replicas", "1")
		return n, said
	}
	volumes := func(n *clusterNode) int {
		files, err := filepath.Glob(filepath.Join(n.ram+"-node", "*", "data", "*.nsq"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	runs, _ := start("runs")
	killed, _ := start("killed")
	killed.stop(syscall.SIGKILL)
	if volumes(killed) != 2 || volumes(runs) != 2 {
		t.Fatalf("after the kill there are %d and %d volumes in memory, want 2", volumes(killed), volumes(runs))
	}
	next, said := start("next")
	if _, err := os.Stat(killed.ram + "-node"); !os.IsNotExist(err) || !strings.Contains(said, "removed "+killed.ram+"-node, which a node that was killed has left") {
		t.Errorf("the memory of the killed node: %v; the next one says %q", err, said)
	}
	if volumes(next) != 2 || volumes(runs) != 2 {
		t.Errorf("the nodes that run have %d and %d volumes, want 2", volumes(next), volumes(runs))
	}
	next.stop(syscall.SIGTERM)
	if volumes(next) != 0 {
		t.Errorf("a node that ended has left %d volumes", volumes(next))
	}
}

// read returns the number of bytes that a node and its ended programs have read from storage:
// proc_pid_io(5).
func (n *clusterNode) read(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", n.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nread_bytes: ")
	line, _, _ := strings.Cut(rest, "\n")
	bytes, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// With two replicas, killing a node during a search costs some seconds, and other nodes take over
// its fragments.
func TestBlastClusterReplicas(t *testing.T) {
	t.Parallel()
	const fragments = 6
	s := newClusterScene(t, 4, fragments, 0.9) // room for five fragments, so that two nodes can take three more
	s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list(), "--replicas", "2")
	want := s.plainly(t, "-outfmt", "6", "-word_size", "7")
	for i := range 6 {
		n := s.nodes[i%len(s.nodes)]
		cmd := exec.Command(binary, "blast", "blastn", "--nodes", s.list(), "-db", "db", "-query", "q.fa", "-outfmt", "6", "-word_size", "7")
		cmd.Dir, cmd.Env = s.dir, s.env
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 120 * time.Millisecond)
		n.wipe(t)
		if err := cmd.Wait(); err != nil || out.String() != want {
			t.Errorf("node %d is killed: %v, %s", i, err, said.String())
		}
		if strings.Contains(said.String(), "this machine searches") {
			t.Errorf("a fragment had no second holder: %s", said.String())
		}
		if i == 0 {
			// The other nodes replace the fragments of the killed node.
			s.await(t, "two replicas on three nodes", func(f [][]int) bool { return replicas(f, fragments) == 2 && len(f[0]) == 0 })
		}
		n.start(t)
		s.await(t, "two replicas again", func(f [][]int) bool { return replicas(f, fragments) >= 2 && len(f[i%len(f)]) > 0 })
	}
}

// The service searches on the nodes. Each of the searches that share a scan gets the output that
// BLAST+ prints for it alone.
func TestBlastClusterServe(t *testing.T) {
	t.Parallel()
	s := newClusterScene(t, 2, 4, 1.2)
	s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list(), "--replicas", "1")
	listen := fmt.Sprint("127.0.0.1:", freePort(t))
	cmd := exec.Command(binary, "blast", "serve", "--listen", listen, "--nodes", s.list())
	cmd.Dir, cmd.Env, cmd.Stderr = s.dir, s.env, t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "listening on "+listen {
		t.Fatalf("%q, %v", line, err)
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "q.fa"))
	if err != nil {
		t.Fatal(err)
	}
	formats := map[string]string{"tabular": "6", "text": "0", "xml": "5"}
	var all sync.WaitGroup
	for _, query := range strings.Split(string(text), ">")[1:] {
		for format, number := range formats {
			all.Go(func() {
				name, _, _ := strings.Cut(query, "\n")
				path := filepath.Join(s.dir, name+"-"+format)
				if err := os.WriteFile(path, []byte(">"+query), 0o644); err != nil {
					t.Error(err)
					return
				}
				want := s.plainly(t, "-query", path, "-task", "blastn", "-outfmt", number)
				got, err := submitted(listen, format, ">"+query)
				if err != nil || undated(got) != want {
					t.Errorf("%s as %s: %v, got\n%.1500s\nwant\n%.1500s", name, format, err, got, want)
				}
			})
		}
	}
	all.Wait()
	// The nodes have searched, not the service.
	for i, row := range s.status(t) {
		if row.Status == nil || row.Status.Answered == 0 {
			t.Errorf("node %d has searched nothing: %+v", i, row.Status)
		}
	}
}

// submitted submits a search to the service and returns the result.
func submitted(listen, format, query string) (string, error) {
	body, err := json.Marshal(map[string]any{"program": "blastn", "database": "db", "format": format, "query": query, "options": map[string]string{"task": "blastn"}})
	if err != nil {
		return "", err
	}
	res, err := http.Post("http://"+listen+"/api/v1/searches", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var job struct{ ID, Error string }
	if err := json.NewDecoder(res.Body).Decode(&job); err != nil || job.ID == "" {
		return "", fmt.Errorf("%s: %s (%w)", res.Status, job.Error, err)
	}
	for range 100 {
		res, err := http.Get("http://" + listen + "/api/v1/searches/" + job.ID + "/result?wait=10")
		if err != nil {
			return "", err
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusAccepted {
			return string(text), err
		}
	}
	return "", fmt.Errorf("no result")
}

// If a node stops responding during a search, other nodes search in its place.
func TestBlastClusterSilent(t *testing.T) {
	t.Parallel()
	s := newClusterScene(t, 2, 4, 2.2)
	s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list())
	want := s.plainly(t, "-outfmt", "6", "-word_size", "7", "-evalue", "1e-3")
	n := s.nodes[1]
	for _, wait := range []time.Duration{0, 700 * time.Millisecond} {
		cmd := exec.Command(binary, "blast", "blastn", "--nodes", s.list(), "-db", "db", "-query", "q.fa", "-outfmt", "6", "-word_size", "7", "-evalue", "1e-3")
		cmd.Dir, cmd.Env = s.dir, s.env
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		_ = n.cmd.Process.Signal(syscall.SIGSTOP)
		err := cmd.Wait()
		_ = n.cmd.Process.Signal(syscall.SIGCONT)
		if err != nil || out.String() != want || strings.Contains(said.String(), "this machine searches") {
			t.Errorf("stopped after %v: %v, %s", wait, err, said.String())
		}
	}
}

// Only machines with the key reach a node, and a request cannot name a file.
func TestBlastClusterKey(t *testing.T) {
	t.Parallel()
	s := newClusterScene(t, 1, 2, 2)
	// Connections without a key do not keep out connections with it.
	for range 1200 {
		c, err := net.Dial("tcp", s.nodes[0].address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	s.ok(t, "blast", "cluster", "ls", "--nodes", s.list())
	s.ok(t, "blast", "cluster", "key", "other.key")
	_, said, code := s.run("blast", "cluster", "ls", "--nodes", s.list(), "--key", "other.key")
	if code != int(exit.Origin) || !strings.Contains(said, "another token") || !strings.Contains(said, "the same file with --key") {
		t.Errorf("another key: status %d, %s", code, said)
	}
	if err := os.Chmod(filepath.Join(s.dir, "other.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, said, code := s.run("blast", "cluster", "ls", "--nodes", s.list(), "--key", "other.key"); code != int(exit.Usage) {
		t.Errorf("a key that others can read: status %d, %s", code, said)
	}
	if _, said, code := s.run("blast", "cluster", "warm", "nothing", "--nodes", s.list()); code != int(exit.Usage) || !strings.Contains(said, "there is no database nothing") {
		t.Errorf("no such database: status %d, %s", code, said)
	}
	if _, said, code := s.run("blast", "cluster", "ls", "--nodes", fmt.Sprint("127.0.0.1:", freePort(t))); code != int(exit.Origin) || !strings.Contains(said, "connection refused") {
		t.Errorf("no node: status %d, %s", code, said)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	list, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

// Nodes search the fragments of DIAMOND as those of BLAST+. The oracle is DIAMOND on a database
// that it made itself.
func TestBlastClusterDiamond(t *testing.T) {
	if _, err := exec.LookPath("diamond"); err != nil {
		t.Skip("diamond is not installed: scripts/setup.sh test")
	}
	s := newClusterHead(t)
	r := rand.New(rand.NewPCG(3, 4))
	var fasta, queries strings.Builder
	for i := range 300 {
		b := make([]byte, 200)
		for k := range b {
			b[k] = "ACDEFGHIKLMNPQRSTVWY"[rand.New(rand.NewPCG(uint64(i%20), uint64(k))).IntN(20)]
			if r.IntN(100) < i%40 {
				b[k] = "ACDEFGHIKLMNPQRSTVWY"[r.IntN(20)]
			}
		}
		fmt.Fprintf(&fasta, ">s%d\n%s\n", i, b)
		if i%30 == 0 {
			fmt.Fprintf(&queries, ">q%d\n%s\n", i, b)
		}
	}
	s.write(t, "db.faa", fasta.String())
	s.write(t, "q.faa", queries.String())
	s.ok(t, "blast", "db", "add", "db.faa", "--name", "db", "--program", "diamond", "--fragments", "6", "--store", "store")
	s.add(t, 3, "1M")
	s.ok(t, "blast", "cluster", "warm", "db", "--nodes", s.list(), "--replicas", "2")
	diamond := func(args ...string) string {
		cmd := exec.Command("diamond", args...)
		cmd.Dir = s.dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("diamond %q: %v", args, err)
		}
		return string(out)
	}
	diamond("makedb", "--quiet", "--in", "db.faa", "-d", "whole")
	// A fragment has 10,000 letters.
	args := []string{"-q", "q.faa", "-b", "0.00001", "-k", "12"}
	want := diamond(append([]string{"blastp", "--quiet", "-d", "whole"}, args...)...)
	search := append([]string{"blast", "diamond", "--nodes", s.list(), "blastp", "-d", "db"}, args...)
	if got := s.ok(t, search...); got != want || strings.Count(want, "\n") < 100 {
		t.Errorf("%d lines, want %d:\n%s", strings.Count(got, "\n"), strings.Count(want, "\n"), got)
	}
	s.nodes[1].stop(syscall.SIGKILL)
	if got := s.ok(t, search...); got != want {
		t.Error("without a node, the output differs")
	}
	if row := s.status(t)[0]; row.Status == nil || row.Status.Programs[database.DIAMOND] == "" || row.Status.Programs[database.BLAST] == "" {
		t.Errorf("the programs of a node: %+v", row.Status)
	}
}
