package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/ports"
)

// clusterFragments is the number of fragments of the cluster's database.
const clusterFragments = 32

// nodes are nodes on this machine, and a head.
type nodes struct {
	b         *bench
	dir, ram  string
	letters   int64 // of the database
	processes []*exec.Cmd
	addresses []string
	memory    int64
	bytes     int64 // of the database
}

// cluster measures searches by nodes.
func (b *bench) cluster(from *origins) (err error) {
	s := &nodes{b: b, dir: filepath.Join(b.dir, "cluster"), letters: b.clusterLetters}
	if s.ram, err = os.MkdirTemp("/dev/shm", "premix-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.ram)
	defer s.stop()
	if err := s.prepare(from); err != nil {
		return err
	}
	_, want, err := timed(s.plain(b.many))
	if err != nil {
		return err
	}
	rate := bandwidth()
	if err := b.results.Add(figures.Figure{Name: "blast/cluster/bandwidth", Value: rate, Unit: "B/s", Note: fmt.Sprintf("of %d cores", runtime.NumCPU())}); err != nil {
		return err
	}
	rows := [][]string{{"nodes", fmt.Sprintf("%d queries", b.queries), "CPU, all", "CPU, slowest node", "aggregate", "4 kB query", "overhead", "kill -9 costs"}}
	whole, err := s.wholeCPU()
	if err != nil {
		return err
	}
	rows = append(rows, []string{"blastn, 1 thread", "", fmt.Sprintf("%.2f s", whole), "", "", "", "", ""})
	var one float64
	for _, count := range []int{1, 4, 8} {
		if err := s.start(count, 3*s.bytes); err != nil {
			return err
		}
		m, err := s.measure(want)
		if err != nil {
			return err
		}
		if count == 1 {
			one = m.slowest
		}
		row := []string{fmt.Sprint(count), fmt.Sprintf("%.2f s", m.took), fmt.Sprintf("%.2f s (%.2f of blastn)", m.cpu, m.cpu/whole), fmt.Sprintf("%.2f s", m.slowest), fmt.Sprintf("%.1f times one", one/m.slowest), fmt.Sprintf("%.3f s", m.small), fmt.Sprintf("%.3f s", m.overhead), ""}
		name := fmt.Sprintf("blast/cluster/%d", count)
		err = errors.Join(
			b.results.Add(figures.Figure{Name: name + "/cpu", Value: m.cpu, Unit: "s", Peer: "blastn on the whole database, CPU", Ratio: figures.Lower(m.cpu, whole)}),
			b.results.Add(figures.Figure{Name: name + "/aggregate", Value: one / m.slowest, Unit: "times", Peer: "one node"}),
			b.results.Add(figures.Figure{Name: name + "/overhead", Value: m.overhead, Unit: "s", Peer: "slowest node, 4 kB query"}))
		if err != nil {
			return err
		}
		if count > 1 {
			loss, err := s.loss(want)
			if err != nil {
				return err
			}
			row[7] = fmt.Sprintf("%.2f s", loss)
			if err := b.results.Add(figures.Figure{Name: name + "/loss", Value: loss, Unit: "s", Peer: "the same search without a loss"}); err != nil {
				return err
			}
		}
		rows = append(rows, row)
		s.stop()
	}
	b.results.Table(fmt.Sprintf("A database of %s in %d fragments, nodes of one core on this machine; it reads memory at %s/s", units.Size(s.bytes), clusterFragments, units.Size(int64(rate))), rows)
	return s.small(want)
}

// prepare makes the database, with and without premix, unless it exists.
func (s *nodes) prepare(from *origins) error {
	stamp, made := filepath.Join(s.dir, "made"), fmt.Sprintf("%d letters, %s\n", s.letters, from.from)
	if was, err := os.ReadFile(stamp); err != nil || string(was) != made {
		if err := errors.Join(os.RemoveAll(s.dir), os.MkdirAll(filepath.Join(s.dir, "plain"), 0o755)); err != nil {
			return err
		}
		path := filepath.Join(s.dir, "all.fa")
		defer os.Remove(path)
		if err := from.write(path, s.letters); err != nil {
			return err
		}
		for _, args := range [][]string{
			{"store", "init", filepath.Join(s.dir, "store")},
			{"blast", "db", "add", path, "--name", "bench", "--title", "bench", "--type", "nucl", "--fragments", fmt.Sprint(clusterFragments), "--store", filepath.Join(s.dir, "store")},
			{"blast", "cluster", "key", filepath.Join(s.dir, "key")},
		} {
			if _, err := s.run(args...); err != nil {
				return err
			}
		}
		if out, err := exec.Command("makeblastdb", "-in", path, "-dbtype", "nucl", "-title", "bench", "-out", filepath.Join(s.dir, "plain", "bench")).CombinedOutput(); err != nil {
			return fmt.Errorf("makeblastdb: %w\n%s", err, out)
		}
		if err := os.WriteFile(stamp, []byte(made), 0o644); err != nil {
			return err
		}
	}
	var list []struct{ Bytes int64 }
	out, err := s.run("blast", "db", "ls", "--json")
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil || len(list) != 1 {
		return fmt.Errorf("%d databases: %w", len(list), err)
	}
	s.bytes = list[0].Bytes
	return nil
}

func (s *nodes) env(name string) []string {
	return append(os.Environ(), "PREMIX_HOME="+filepath.Join(s.dir, name), "PREMIX_BLAST_RAM="+filepath.Join(s.ram, name),
		"PREMIX_STORE=", "PREMIX_BLAST_KEY="+filepath.Join(s.dir, "key"), "PREMIX_BLAST_NODES="+strings.Join(s.addresses, ","))
}

// head returns a command of premix on the machine that searches.
func (s *nodes) head(args ...string) *exec.Cmd {
	cmd := exec.Command(s.b.premix, args...)
	cmd.Env = s.env("head")
	return cmd
}

func (s *nodes) run(args ...string) ([]byte, error) {
	cmd := s.head(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("premix %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, err
}

func (s *nodes) search(query string) *exec.Cmd {
	return s.head("blast", "blastn", "--verbose", "-db", "bench", "-query", query, "-outfmt", "6")
}

func (s *nodes) plain(query string) *exec.Cmd {
	return exec.Command("blastn", "-db", filepath.Join(s.dir, "plain", "bench"), "-query", query, "-outfmt", "6")
}

// wholeCPU returns the CPU time of BLAST+ for the queries.
func (s *nodes) wholeCPU() (float64, error) {
	var list []float64
	for range s.b.reps {
		cmd := s.plain(s.b.many)
		if _, err := cmd.Output(); err != nil {
			return 0, err
		}
		list = append(list, cpu(cmd.ProcessState).Seconds())
	}
	return quantile.Median(list), nil
}

// start starts nodes with this memory for fragments each, and places the database with as many
// replicas as fit, two at most.
func (s *nodes) start(count int, memory int64) error {
	free, err := ports.Free(count)
	if err != nil {
		return err
	}
	s.memory, s.addresses, s.processes = memory, nil, nil
	for _, port := range free {
		s.addresses = append(s.addresses, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for i := range count {
		s.processes = append(s.processes, nil)
		if err := s.node(i); err != nil {
			return err
		}
	}
	_, err = s.run("blast", "cluster", "warm", "bench", "--replicas", fmt.Sprint(min(2, count)))
	return err
}

// node starts a node, and waits until it listens.
func (s *nodes) node(i int) error {
	cmd := exec.Command(s.b.premix, "blast", "cluster", "node", "--origin", filepath.Join(s.dir, "store"), "--listen", s.addresses[i], "--memory", fmt.Sprintf("%dK", s.memory>>10), "--cores", "1")
	cmd.Env = s.env(fmt.Sprintf("n%d", i))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.processes[i] = cmd
	in := bufio.NewReader(stderr)
	line, err := in.ReadString('\n')
	if !strings.Contains(line, "is ready") {
		return fmt.Errorf("a node prints %q: %w", line, err)
	}
	go io.Copy(io.Discard, in)
	return nil
}

// stop ends the nodes, and removes their homes.
func (s *nodes) stop() {
	for i, cmd := range s.processes {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = os.RemoveAll(filepath.Join(s.dir, fmt.Sprintf("n%d", i)))
		_ = os.RemoveAll(filepath.Join(s.ram, fmt.Sprintf("n%d-node", i)))
	}
	s.processes = nil
}

// usage returns the CPU time of a node and its ended programs, and the bytes that they have
// read from storage: proc_pid_stat(5), proc_pid_io(5).
func (s *nodes) usage(i int) (seconds float64, read int64, err error) {
	dir := fmt.Sprintf("/proc/%d/", s.processes[i].Process.Pid)
	text, err := os.ReadFile(dir + "stat")
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, 0, fmt.Errorf("%sstat: %q", dir, text)
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		seconds += float64(n) / 100 // USER_HZ
	}
	if text, err = os.ReadFile(dir + "io"); err != nil {
		return 0, 0, err
	}
	_, rest, _ = strings.Cut(string(text), "\nread_bytes: ")
	rest, _, _ = strings.Cut(rest, "\n")
	read, err = strconv.ParseInt(rest, 10, 64)
	return seconds, read, err
}

// measured are the medians of searches.
type measured struct{ took, cpu, slowest, small, overhead float64 }

var partTime = regexp.MustCompile(`searched fragments [0-9-]+ in ([0-9.]+) s`)

// measure measures searches, whose results must equal want for the many queries.
func (s *nodes) measure(want []byte) (m measured, err error) {
	var took, all, slowest, small, overhead []float64
	for range s.b.reps {
		began := time.Now()
		u, err := s.used(s.b.many)
		if err != nil {
			return m, err
		}
		if !bytes.Equal(u.out, want) {
			return m, errors.New("the nodes find other hits than BLAST+")
		}
		took, all, slowest = append(took, time.Since(began).Seconds()), append(all, u.head+u.nodes), append(slowest, u.slowest)
		cmd := s.search(s.b.small)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		t, _, err := timed(cmd)
		if err != nil {
			return m, fmt.Errorf("%w\n%s", err, stderr.Bytes())
		}
		longest := 0.0
		for _, part := range partTime.FindAllStringSubmatch(stderr.String(), -1) {
			n, err := strconv.ParseFloat(part[1], 64)
			if err != nil {
				return m, err
			}
			longest = max(longest, n)
		}
		if longest == 0 {
			return m, fmt.Errorf("no node has searched:\n%s", stderr.Bytes())
		}
		small, overhead = append(small, t.Seconds()), append(overhead, t.Seconds()-longest)
	}
	return measured{quantile.Median(took), quantile.Median(all), quantile.Median(slowest), quantile.Median(small), quantile.Median(overhead)}, nil
}

// loss returns the longest time that the loss of a node costs a search.
func (s *nodes) loss(want []byte) (worst float64, err error) {
	for i := range s.b.reps {
		whole, _, err := timed(s.search(s.b.many))
		if err != nil {
			return 0, err
		}
		cmd := s.search(s.b.many)
		var out bytes.Buffer
		cmd.Stdout = &out
		began := time.Now()
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		time.Sleep(whole / time.Duration(i+2))
		n := i % len(s.processes)
		_ = s.processes[n].Process.Kill()
		_ = s.processes[n].Wait()
		if err := cmd.Wait(); err != nil {
			return 0, err
		}
		took := time.Since(began)
		if !bytes.Equal(out.Bytes(), want) {
			return 0, errors.New("the results without a node are others")
		}
		worst = max(worst, (took - whole).Seconds())
		if err := s.node(n); err != nil {
			return 0, err
		}
	}
	return worst, nil
}

// small measures 32 nodes, of which none has the memory for more than a third of the database.
func (s *nodes) small(want []byte) error {
	if err := s.start(32, s.bytes/3); err != nil {
		return err
	}
	var rows []struct {
		Status struct {
			Databases []struct {
				Fragments []struct {
					Number   int   `json:"fragment"`
					Bytes    int64 `json:"bytes"`
					InMemory int64 `json:"in_memory_bytes"`
				}
			}
		}
	}
	out, err := s.run("blast", "cluster", "ls", "--json")
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil {
		return err
	}
	var bytesHeld, inMemory, most int64
	holders := map[int]int{}
	for _, row := range rows {
		var n int64
		for _, d := range row.Status.Databases {
			for _, f := range d.Fragments {
				n, inMemory = n+f.Bytes, inMemory+f.InMemory
				holders[f.Number]++
			}
		}
		bytesHeld, most = bytesHeld+n, max(most, n)
	}
	for f := range clusterFragments {
		if holders[f] != 2 {
			return fmt.Errorf("fragment %d has %d holders", f, holders[f])
		}
	}
	if bytesHeld != inMemory {
		return fmt.Errorf("%d bytes are in memory of %d", inMemory, bytesHeld)
	}
	var before, after int64
	for i := range s.processes {
		_, n, err := s.usage(i)
		if err != nil {
			return err
		}
		before += n
	}
	m, err := s.measure(want)
	if err != nil {
		return err
	}
	for i := range s.processes {
		_, n, err := s.usage(i)
		if err != nil {
			return err
		}
		after += n
	}
	s.b.results.Table(fmt.Sprintf("32 nodes with %s for fragments each, two replicas", units.Size(s.memory)), [][]string{
		{"", ""},
		{"database", units.Size(s.bytes)},
		{"most on one node", units.Size(most)},
		{"in memory by mincore, of all replicas", fmt.Sprintf("%s of %s", units.Size(inMemory), units.Size(bytesHeld))},
		{"read from storage by the nodes while they search", units.Size(after - before)},
		{fmt.Sprintf("%d queries", s.b.queries), fmt.Sprintf("%.2f s, %.2f s of CPU", m.took, m.cpu)},
		{"4 kB query", fmt.Sprintf("%.3f s, %.3f s more than the slowest node", m.small, m.overhead)},
	})
	return errors.Join(
		s.b.results.Add(figures.Figure{Name: "blast/cluster/32/in-memory", Value: float64(inMemory), Unit: "B", Peer: "bytes of all replicas", Ratio: figures.Higher(float64(inMemory), float64(bytesHeld))}),
		s.b.results.Add(figures.Figure{Name: "blast/cluster/32/storage", Value: float64(after - before), Unit: "B", Note: "read while they search"}),
		s.b.results.Add(figures.Figure{Name: "blast/cluster/32/overhead", Value: m.overhead, Unit: "s", Peer: "slowest node, 4 kB query"}))
}

// bandwidth returns the rate at which all cores together read memory, in bytes per second.
func bandwidth() float64 {
	cores := runtime.NumCPU()
	blocks := make([][]uint64, cores)
	for i := range blocks {
		blocks[i] = make([]uint64, 32<<20)
		for k := 0; k < len(blocks[i]); k += 512 {
			blocks[i][k] = 1 // a page of its own
		}
	}
	sums := make([]uint64, cores)
	best := 0.0
	for range 5 {
		began := time.Now()
		var all sync.WaitGroup
		for i, block := range blocks {
			all.Go(func() {
				var a, b, c, d uint64
				for k := 0; k+4 <= len(block); k += 4 {
					a, b, c, d = a+block[k], b+block[k+1], c+block[k+2], d+block[k+3]
				}
				sums[i] = a + b + c + d
			})
		}
		all.Wait()
		best = max(best, float64(cores)*8*float64(32<<20)/time.Since(began).Seconds())
	}
	if sums[0] == 0 {
		return 0
	}
	return best
}
