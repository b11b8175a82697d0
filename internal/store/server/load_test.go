package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/server"
)

// The test binary is also the server process, so that the memory and descriptors of the
// server are measured without those of the clients.
const serveEnv = "PREMIX_TEST_SERVE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // exit when the test has died
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	h, err := server.NewHandler(dir, server.Options{})
	if err != nil {
		return err
	}
	s, err := server.Listen(h, server.ServerOptions{Listen: "127.0.0.1:0", Metrics: "127.0.0.1:0", Connections: 4096, Linger: time.Second})
	if err != nil {
		return err
	}
	fmt.Println(s.Addr(), s.MetricsAddr())
	return errors.Join(s.Serve(ctx), h.Close())
}

// farm is a store with a server.
type farm struct {
	dir     string
	digests []object.Digest
	stored  int64 // total bytes of all objects
	url     string
	metrics string
	server  *os.Process
}

const tag = "tags/refs/x/1.json"

func newFarm(t *testing.T, objects, size int) *farm {
	t.Helper()
	f := &farm{dir: t.TempDir()}
	write := func(name string, content []byte) {
		path := filepath.Join(f.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range objects {
		b := make([]byte, size)
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		d, stored := object.Sum(b), object.Encode(nil, b)
		write(d.Path(), stored)
		f.digests, f.stored = append(f.digests, d), f.stored+int64(len(stored))
	}
	write("store.json", []byte("{}\n"))
	write(tag, []byte("{\"serial\": 1}\n"))

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serveEnv+"="+f.dir)
	cmd.Stderr = os.Stderr
	// A stopped server does not notice that the test has died.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.server = cmd.Process
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
		stdin.Close()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at, metrics, _ := strings.Cut(strings.TrimSpace(line), " ")
	f.url, f.metrics = "http://"+at, "http://"+metrics+"/metrics"
	return f
}

// metric reads one of the server's metrics. It adds up series that differ in their labels.
func (f *farm) metric(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get(f.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			fields := strings.Fields(rest)
			v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			sum += v
		}
	}
	return sum
}

// counted waits until a metric has reached least, and returns it. It has to wait because
// the server counts a request after the answer.
func (f *farm) counted(t *testing.T, name string, least float64) float64 {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if n := f.metric(t, name); n >= least || time.Now().After(deadline) {
			return n
		}
	}
}

// patience is how long a client waits for an answer. It is long because the machine may be
// slow, and all requests wait in one queue.
const patience = 10 * time.Minute

// client returns an origin that is the connection of one node to the store, with its own
// TCP connections.
func (f *farm) client(t *testing.T, proxies ...string) *origin.Group {
	t.Helper()
	if len(proxies) == 0 {
		proxies = []string{origin.Direct}
	}
	o := origin.Options{Proxies: proxies, Connections: 2, Fetches: 2, Patience: patience, Header: patience, Stall: patience}
	g, err := origin.OpenAll([]string{f.url}, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

var squids atomic.Int64 // number of Squids started so far

// newSquid starts a Squid that caches in memory only, and returns its URL.
func newSquid(t *testing.T) string {
	t.Helper()
	squid, err := exec.LookPath("squid")
	if err != nil {
		if squid, err = exec.LookPath("/usr/sbin/squid"); err != nil {
			t.Skip("squid is not installed: scripts/setup.sh test")
		}
	}
	// Squid can neither inherit a socket nor choose a port itself. It gets its own address
	// of the loopback network, where no port is taken.
	pid, n := os.Getpid(), squids.Add(1)
	port := fmt.Sprintf("127.%d.%d.%d:%d", 1+(pid>>16)%254, pid>>8&0xff, pid&0xff, 3128+n)
	dir := t.TempDir()
	// A Squid that root starts must become another user, which cannot write here.
	var as string
	if os.Geteuid() == 0 {
		as = "cache_effective_user nobody\n"
	}
	config := filepath.Join(dir, "squid.conf")
	text := fmt.Sprintf(`http_port %s
http_access allow all
cache_mem 256 MB
maximum_object_size_in_memory 20 MB
memory_replacement_policy heap LFUDA
collapsed_forwarding on
access_log none
cache_log /dev/null
cache_store_log none
pid_filename none
coredump_dir %s
netdb_filename none
pinger_enable off
visible_hostname test
max_filedescriptors 8192
shutdown_lifetime 0 seconds
%s`, port, dir, as)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	// Its shared memory is named after the service, so that several Squids can run here.
	service := fmt.Sprintf("premix%dx%d", pid, n)
	cmd := exec.Command(squid, "-N", "-d", "1", "-n", service, "-f", config)
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // the process may have exited already
		select {
		case <-gone:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-gone
		}
		left, err := filepath.Glob("/dev/shm/" + service + "*")
		for _, file := range left {
			err = errors.Join(err, os.Remove(file))
		}
		if err != nil {
			t.Error(err)
		}
	})
	for range 2400 {
		c, err := net.Dial("tcp", port)
		if err == nil {
			c.Close()
			return "http://" + port
		}
		select {
		case err := <-gone:
			gone <- err
			t.Fatalf("squid ended: %v\n%s", err, stderr.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("squid does not listen")
	return ""
}

const objectRequests = `premix_store_requests_total{status="200",what="object"}`

func TestSquidKeepsObjects(t *testing.T) {
	f, squid := newFarm(t, 20, 50000), newSquid(t)
	fetch := func() {
		t.Helper()
		g := f.client(t, squid)
		for _, d := range f.digests {
			if _, err := g.Verified(context.Background(), d, 50000); err != nil {
				t.Fatal(err)
			}
		}
	}
	fetch()
	if n := f.counted(t, objectRequests, 20); n != 20 {
		t.Errorf("the first client caused %v requests for 20 objects", n)
	}
	fetch()
	fetch()
	if n := f.counted(t, objectRequests, 20); n != 20 {
		t.Errorf("two more clients caused %v requests for objects that the proxy has", n-20)
	}

	// Tags are revalidated each time, but their content is not sent to the proxy again.
	g := f.client(t, squid)
	for range 3 {
		if b, err := g.File(context.Background(), tag); err != nil || string(b) != "{\"serial\": 1}\n" {
			t.Errorf("%q, %v", b, err)
		}
	}
	if n := f.counted(t, `premix_store_requests_total{status="200",what="tag"}`, 1); n != 1 {
		t.Errorf("a tag that has not changed was sent %v times", n)
	}
	if n := f.counted(t, `premix_store_requests_total{status="304",what="tag"}`, 2); n != 2 {
		t.Errorf("the proxy asked %v times whether a tag has changed, for 2 requests", n)
	}
	if err := os.WriteFile(filepath.Join(f.dir, tag), []byte("{\"serial\": 2}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := g.File(context.Background(), tag); err != nil || string(b) != "{\"serial\": 2}\n" {
		t.Errorf("a tag that has changed is still %q, %v", b, err)
	}
}

// crowd returns the number of clients.
func crowd() int {
	if os.Getenv("PREMIX_SOAK") != "" {
		return 1000
	}
	return 100
}

// run starts clients that all fetch the whole store at once, each in its own order. It
// returns the highest memory and number of descriptors of the server, and how many fetches
// of an object began before any client had the object.
func (f *farm) run(t *testing.T, clients int, proxies ...string) (rss, fds, early float64) {
	t.Helper()
	var all sync.WaitGroup
	var failed, first atomic.Int64
	had := make([]atomic.Bool, len(f.digests))
	began := time.Now()
	for n := range clients {
		g := f.client(t, proxies...)
		all.Go(func() {
			order := rand.New(rand.NewPCG(uint64(n), 1)).Perm(len(f.digests))
			var two sync.WaitGroup
			for half := range 2 {
				two.Go(func() {
					for i := half; i < len(order); i += 2 {
						if !had[order[i]].Load() {
							first.Add(1)
						}
						if _, err := g.Verified(context.Background(), f.digests[order[i]], -1); err == nil {
							had[order[i]].Store(true)
						} else if failed.Add(1) < 5 {
							t.Errorf("client %d: %v", n, err)
						}
					}
				})
			}
			two.Wait()
			if _, err := g.File(context.Background(), tag); err != nil && failed.Add(1) < 5 {
				t.Errorf("client %d: %v", n, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true
		case <-time.After(200 * time.Millisecond):
		}
		rss, fds = max(rss, f.metric(t, "process_resident_memory_bytes")), max(fds, f.metric(t, "process_open_fds"))
	}
	t.Logf("%d clients, %d objects of %d bytes in all, %s: the server sent %.0f bytes, had at most %.0f MiB and %.0f descriptors",
		clients, len(f.digests), f.stored, time.Since(began).Round(time.Millisecond), f.metric(t, `premix_store_sent_bytes_total{what="object"}`), rss/(1<<20), fds)
	return rss, fds, float64(first.Load())
}

func TestCrowdBehindSquid(t *testing.T) {
	f, squid := newFarm(t, 32, 64<<10), newSquid(t)
	_, _, early := f.run(t, crowd(), squid)
	// Squid merges requests that arrive while it fetches. A request between these two
	// moments is a miss of its own. Their number depends on the machine, but a request that
	// begins when a client already has the object is never a miss.
	n := f.counted(t, objectRequests, 32)
	if n < 32 || n > early {
		t.Errorf("%v requests of %d clients for 32 objects, of which %v could be misses", n, crowd(), early)
	}
	if f.run(t, crowd(), squid); f.metric(t, objectRequests) != n {
		t.Errorf("%v requests of a crowd for what the proxy has", f.metric(t, objectRequests)-n)
	}
}

// Requests for an object that is on its way to the proxy cause only one request to the
// origin.
func TestSquidMerges(t *testing.T) {
	f, squid := newFarm(t, 1, 64<<10), newSquid(t)
	if err := f.server.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() {
		if err := f.server.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	defer goOn()
	var written atomic.Int64
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { written.Add(1) }})
	var all sync.WaitGroup
	for range crowd() {
		g := f.client(t, squid)
		all.Go(func() {
			if _, err := g.Verified(ctx, f.digests[0], -1); err != nil {
				t.Error(err)
			}
		})
	}
	for deadline := time.Now().Add(2 * time.Minute); written.Load() < int64(crowd()) || unread(t, squid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the proxy has not read %d requests, %d were sent", crowd(), written.Load())
		}
	}
	goOn()
	all.Wait()
	if n := f.counted(t, objectRequests, 1); n != 1 {
		t.Errorf("%v requests of %d clients for one object", n, crowd())
	}
}

// unread reports whether an address has received bytes that wait to be read.
func unread(t *testing.T, url string) bool {
	t.Helper()
	at, err := netip.ParseAddrPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	ip := at.Addr().As4()
	local := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], at.Port())
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		// The fields are: sl local_address rem_address st tx_queue:rx_queue.
		f := strings.Fields(line)
		if len(f) > 4 && f[1] == local && !strings.HasSuffix(f[4], ":00000000") {
			return true
		}
	}
	return false
}

func TestCrowdAtTheServer(t *testing.T) {
	f := newFarm(t, 32, 64<<10)
	clients := crowd()
	rss, fds, _ := f.run(t, clients)
	if n := f.counted(t, objectRequests, float64(32*clients)); n != float64(32*clients) {
		t.Errorf("%v requests of %d clients for 32 objects", n, clients)
	}
	// Each client has two connections, with a file for each. Each connection takes about 64
	// KiB of memory in addition to the memory of any Go program.
	if limit := float64(4*clients + 64); fds > limit {
		t.Errorf("%v descriptors, want at most %v", fds, limit)
	}
	// The race detector keeps additional records of all memory.
	if limit := raceMemory * float64(128<<20+2*clients*(64<<10)); rss > limit {
		t.Errorf("%v bytes of memory, want at most %v", rss, limit)
	}
}
