package snapshotter_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"premix/internal/node"
	"premix/internal/testkit/shortdir"
)

// eventually is the limit for an operation on a slow machine.
const eventually = 2 * time.Minute

// premix builds the real binary at its first call. The binary is static like the released
// one, and can run in any image.
var premix = sync.OnceValues(func() (string, error) {
	build := exec.Command("go", "build", "-o", filepath.Join(scratch, "premix"), "premix/cmd/premix")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build premix: %w\n%s", err, out)
	}
	return filepath.Join(scratch, "premix"), nil
})

var scratch string // directory for all tests; TestMain removes it

func TestMain(m *testing.M) {
	// Tests that run the snapshotter in this process start nodes from this binary.
	if len(os.Args) > 1 && node.IsProcess(os.Args[1]) {
		os.Exit(node.Main(os.Args[1], "test"))
	}
	// The tests mostly wait for daemons, not for processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var err error
	if scratch, err = os.MkdirTemp("", "snapshotter-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(scratch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// machine is a directory for the daemons of a test, with a registry, a store and an origin
// of the store.
type machine struct {
	t   *testing.T
	dir string
	bin string // path of premix

	registry *web
	origin   *web // the origin of the store

	snapshotter *daemon
	sandbox     string // image for the sandboxes of pods; "" if there are no pods
}

// web is a test server that can be made to fail.
type web struct {
	*httptest.Server
	mu      sync.Mutex
	gets    []string                                          // paths of requests with GET
	spoil   func(w http.ResponseWriter, r *http.Request) bool // if it returns true, it has answered in place of the server
	request atomic.Int64
}

// fetched returns the digests of blobs that were fetched.
func (s *web) fetched() (digests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range s.gets {
		if _, digest, ok := strings.Cut(path, "/blobs/"); ok {
			digests = append(digests, digest)
		}
	}
	return digests
}

// requests returns the number of requests with GET for paths with this end.
func (s *web) requests(end string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range s.gets {
		if strings.HasSuffix(path, end) {
			n++
		}
	}
	return n
}

func (s *web) spoiled(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = f
}

// down makes the server close every connection, or work again.
func (s *web) down(yes bool) {
	if !yes {
		s.spoiled(nil)
		return
	}
	s.spoiled(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
}

func newWeb(t *testing.T, h http.Handler) *web {
	s := &web{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.request.Add(1)
		s.mu.Lock()
		if r.Method == http.MethodGet {
			s.gets = append(s.gets, r.URL.Path)
		}
		spoil := s.spoil
		s.mu.Unlock()
		if spoil == nil || !spoil(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	needRoot(t)
	bin, err := premix()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: shortdir.New(t), bin: bin}
	t.Cleanup(m.clean)
	m.registry = newWeb(t, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	m.run("store", "init", m.path("store"))
	m.origin = newWeb(t, http.FileServer(http.Dir(m.path("store"))))
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) env() []string {
	return append(os.Environ(), "PREMIX_HOME="+m.path("home"))
}

// run runs premix.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(m.bin, args...)
	if err != nil {
		m.t.Fatalf("premix %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// json runs premix and decodes its output.
func (m *machine) json(v any, args ...string) {
	m.t.Helper()
	if err := json.Unmarshal([]byte(m.run(args...)), v); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) try(bin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = m.env()
	// A grandchild may hold the pipes of a killed process open.
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// clean stops everything that still runs, and reports leftovers.
func (m *machine) clean() {
	if m.snapshotter != nil {
		m.snapshotter.stop()
	}
	if out, err := m.try(m.bin, "node", "stop", "--lazy"); err != nil {
		m.t.Errorf("premix node stop: %v\n%s", err, out)
	}
	var left string
	if !wait(func() bool {
		table, err := os.ReadFile("/proc/self/mountinfo")
		left = string(err2text(err))
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, m.dir) {
				left += line
			}
		}
		return left == ""
	}) {
		m.t.Errorf("mounts are left:\n%s", left)
	}
	if m.t.Failed() {
		logs, _ := filepath.Glob(m.path("*.log")) // the pattern is valid
		for _, path := range append(logs, m.path("home/run/log")) {
			if content, err := os.ReadFile(path); err == nil {
				lines := strings.SplitAfter(string(content), "\n")
				m.t.Logf("the end of %s:\n%s", path, strings.Join(lines[max(0, len(lines)-40):], ""))
			}
		}
	}
}

func err2text(err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	return ""
}

// wait waits until a condition is true, and reports whether it was within the limit.
func wait(until func() bool) bool {
	for started := time.Now(); time.Since(started) < eventually; time.Sleep(20 * time.Millisecond) {
		if until() {
			return true
		}
	}
	return false
}

// daemon is a process that a test has started.
type daemon struct {
	cmd      *exec.Cmd
	finished chan struct{}
}

func (m *machine) start(name string, env []string, bin string, args ...string) *daemon {
	m.t.Helper()
	logFile, err := os.OpenFile(m.path(name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer logFile.Close()
	d := &daemon{exec.Command(bin, args...), make(chan struct{})}
	d.cmd.Env = append(m.env(), env...)
	d.cmd.Stdout, d.cmd.Stderr = logFile, logFile
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // tests read the log for the reason of its end
		close(d.finished)
	}()
	return d
}

// kill ends a daemon with SIGKILL.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended already
	<-d.finished
}

// stop ends a daemon as systemd does.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-d.finished:
	case <-time.After(eventually):
		d.kill()
	}
}

// serve starts the snapshotter and waits until it answers.
func (m *machine) serve(args ...string) {
	m.t.Helper()
	args = append([]string{"snapshotter", "--root", m.path("root"), "--address", m.path("snap"), "--containerd", m.path("c"), "--lookup-timeout", eventually.String()}, args...)
	m.snapshotter = m.start("snapshotter", nil, m.bin, args...)
	m.answers(m.path("snap"), m.snapshotter)
}

// answers waits until a process listens at a socket.
func (m *machine) answers(socket string, d *daemon) {
	m.t.Helper()
	if !wait(func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
			return true
		}
		select {
		case <-d.finished:
			m.t.Fatalf("%s ended", d.cmd.Args)
		default:
		}
		return false
	}) {
		m.t.Fatalf("nobody listens at %s", socket)
	}
}

// file is an entry of a layer.
type file struct {
	name, content, link string // the name of a directory ends with "/"; link is the target of a symbolic link
	mode                int64
}

// layer returns a layer of files.
func layer(t *testing.T, files ...file) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Typeflag: tar.TypeReg, Size: int64(len(f.content)), ModTime: time.Unix(1e9, 0)}
		switch {
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := errors.Join(w.WriteHeader(h), write(w, f.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func write(w io.Writer, content string) error {
	_, err := io.WriteString(w, content)
	return err
}

// base returns a layer with busybox and some files.
func base(t *testing.T) v1.Layer {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: scripts/setup.sh test installs busybox-static", err)
	}
	files := []file{
		{name: "bin/"}, {name: "bin/busybox", content: string(busybox)},
		{name: "etc/"}, {name: "etc/passwd", content: "root:x:0:0::/:/bin/sh\n", mode: 0o644},
		{name: "data/"}, {name: "data/gone", content: "gone"}, {name: "data/kept", content: "kept\n"},
		{name: "covered/"}, {name: "covered/below", content: "below"},
		{name: "unread", content: "read late\n"},
	}
	for _, applet := range []string{"sh", "cat", "echo", "sleep", "ls", "touch", "rm", "true", "md5sum"} {
		files = append(files, file{name: "bin/" + applet, link: "busybox"})
	}
	return layer(t, files...)
}

// picture returns an image of the given layers, which differs from all other images.
func picture(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	layers = append(layers, layer(t, file{name: "unique", content: rand.Text()}))
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"PATH=/bin"}
	config.Config.Cmd = []string{"sh"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// upper returns a layer that removes files of base.
func upper(t *testing.T) v1.Layer {
	t.Helper()
	return layer(t,
		file{name: "data/"}, file{name: "data/.wh.gone"}, file{name: "data/new", content: "new\n"},
		file{name: "covered/"}, file{name: "covered/.wh..wh..opq"}, file{name: "covered/above", content: "above"})
}

// push uploads an image to the registry, and returns its reference.
func (m *machine) push(img v1.Image, ref string) string {
	m.t.Helper()
	ref = strings.TrimPrefix(m.registry.URL, "http://") + "/" + ref
	r, err := name.ParseReference(ref)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		m.t.Fatal(err)
	}
	return ref
}

// layersOf returns the digests of an image's layers.
func layersOf(t *testing.T, img v1.Image) []string {
	t.Helper()
	list, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, l := range list {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d.String())
	}
	return digests
}

// pulled returns the layers of an image that were fetched from the registry.
func (m *machine) pulled(img v1.Image) []string {
	m.t.Helper()
	var list []string
	for _, d := range layersOf(m.t, img) {
		if slices.Contains(m.registry.fetched(), d) {
			list = append(list, d)
		}
	}
	return list
}

// add adds an image of the registry to the store.
func (m *machine) add(ref, as string) {
	m.t.Helper()
	m.run("image", "add", "--store", m.path("store"), "docker://"+ref, as)
	m.registry.mu.Lock()
	m.registry.gets = nil
	m.registry.mu.Unlock()
}

// containerd is a running daemon of a given version.
type containerd struct {
	*machine
	version string
	bin     string // directory of its programs
	cri     bool   // pull through CRI
	old     bool   // version 1.x, of which ctr fetches everything before it asks a snapshotter
	daemon  *daemon
}

// newContainerd starts a containerd that uses the machine's snapshotter. The version is the
// version of a build by scripts/setup.sh, or "system".
func (m *machine) newContainerd(version string, cri bool) *containerd {
	m.t.Helper()
	c := &containerd{machine: m, version: version, cri: cri}
	if version == "system" {
		path, err := exec.LookPath("containerd")
		if err != nil {
			m.t.Skip("no containerd is installed: scripts/setup.sh containerd")
		}
		c.bin = filepath.Dir(path)
	} else {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				m.t.Fatal(err)
			}
			cache = filepath.Join(home, ".cache")
		}
		c.bin = filepath.Join(cache, "premix", "containerd", version)
		if _, err := os.Stat(filepath.Join(c.bin, "containerd")); err != nil {
			m.t.Skipf("containerd %s is not there: scripts/setup.sh containerd", version)
		}
	}
	if _, err := exec.LookPath("runc"); err != nil {
		m.t.Skip("no runc is installed: scripts/setup.sh test")
	}
	out, err := m.try(filepath.Join(c.bin, "containerd"), "--version")
	if err != nil {
		m.t.Fatalf("containerd --version: %v\n%s", err, out)
	}
	m.t.Log(strings.TrimSpace(out))
	// "containerd github.com/containerd/containerd[/v2] 1.6.20 ..."
	fields := strings.Fields(out)
	if len(fields) < 3 {
		m.t.Fatalf("containerd --version: %s", out)
	}
	c.old = strings.HasPrefix(strings.TrimPrefix(fields[2], "v"), "1.")
	if err := os.WriteFile(m.path("config.toml"), []byte(c.config()), 0o600); err != nil {
		m.t.Fatal(err)
	}
	c.up()
	// The cleanup runs before the cleanup of the machine.
	m.t.Cleanup(c.down)
	return c
}

// config returns the configuration in dist for this version, with directories of the test.
func (c *containerd) config() string {
	c.t.Helper()
	file, top := "config-2.toml", ""
	rest := fmt.Sprintf(`
[plugins."io.containerd.internal.v1.opt"]
  path = %q
`, c.path("opt"))
	switch {
	case c.old:
		file = "config-1.toml"
		rest += fmt.Sprintf(`
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
  conf_dir = %q
`, c.path("cni"), c.path("cni"))
	case c.cri:
		top = `disabled_plugins = ["io.containerd.nri.v1.nri"]` + "\n"
		rest += fmt.Sprintf(`
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
`, c.path("cni"), c.path("cni"))
		if c.sandbox != "" {
			// In a container, root may not be able to protect sandboxes from the OOM
			// killer.
			rest += fmt.Sprintf(`
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
`, c.sandbox)
		}
	default:
		top = `disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri"]` + "\n"
	}
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "dist", "containerd", file))
	if err != nil {
		c.t.Fatal(err)
	}
	snippet := strings.ReplaceAll(string(content), "/run/premix/snapshotter.sock", c.path("snap"))
	snippet = strings.ReplaceAll(snippet, "linux/amd64", "linux/"+runtime.GOARCH)
	return top + fmt.Sprintf("root = %q\nstate = %q\n", c.path("c-root"), c.path("c-state")) + snippet + rest + fmt.Sprintf("\n[grpc]\n  address = %q\n", c.path("c"))
}

func (c *containerd) up() {
	c.t.Helper()
	c.daemon = c.start("containerd", []string{"PATH=" + c.bin + ":" + os.Getenv("PATH")}, filepath.Join(c.bin, "containerd"), "--config", c.path("config.toml"))
	c.answers(c.path("c"), c.daemon)
	if !wait(func() bool { _, err := c.ctr("version"); return err == nil }) {
		c.t.Fatal("containerd does not answer")
	}
}

// again restarts the snapshotter, and waits until containerd has reconnected, which it
// tries every few seconds.
func (c *containerd) again(args ...string) {
	c.t.Helper()
	c.serve(args...)
	if !wait(func() bool { _, err := c.ctr("snapshots", "--snapshotter", "premix", "ls"); return err == nil }) {
		c.t.Fatal("containerd does not find the snapshotter again")
	}
}

// down removes all containers and ends the daemon.
func (c *containerd) down() {
	list, err := c.ctr("containers", "ls", "-q")
	if err != nil {
		c.t.Errorf("list containers: %v\n%s", err, list)
	}
	for id := range strings.FieldsSeq(list) {
		c.remove(id)
	}
	if c.t.Failed() {
		out, err := c.ctr("snapshots", "--snapshotter", "premix", "tree")
		c.t.Logf("snapshots: %v\n%s", err, out)
	}
	c.daemon.stop()
	// Shims end after their tasks.
	var left []int
	if !wait(func() bool { left = c.shims(); return len(left) == 0 }) {
		c.t.Errorf("shims are left: %v", left)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for _, pattern := range []string{"/run/containerd/runc/*/", "/sys/fs/cgroup/*/", "/sys/fs/cgroup/*/*/"} {
		var left []string
		if !wait(func() bool {
			left, _ = filepath.Glob(pattern + c.id("*")) // the pattern is valid
			return len(left) == 0
		}) {
			c.t.Errorf("containers have left %q", left)
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		c.t.Error(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], c.path("c-")) {
			c.t.Errorf("containerd leaves mount %s", f[4])
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

// shims returns the processes that were started for the tasks of this containerd.
func (c *containerd) shims() []int {
	var list []int
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(line, []byte(c.path("c"))) || !bytes.Contains(line, []byte("shim")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// remove removes a container, running or not.
func (c *containerd) remove(id string) {
	c.t.Helper()
	_, _ = c.ctr("task", "kill", "-s", "KILL", id) // it may not run
	if !wait(func() bool {
		_, err := c.ctr("task", "ls")
		out, rmErr := c.ctr("task", "rm", "-f", id)
		return err == nil && (rmErr == nil || strings.Contains(out, "not found"))
	}) {
		c.t.Errorf("task %s cannot be removed", id)
	}
	if out, err := c.ctr("container", "rm", id); err != nil {
		c.t.Errorf("container %s cannot be removed: %v\n%s", id, err, out)
	}
}

// ctr runs ctr and returns its output. It removes the warning about the cgroups of the
// machine with which the output begins since containerd 2.2.
func (c *containerd) ctr(args ...string) (string, error) {
	out, err := c.try(filepath.Join(c.bin, "ctr"), append([]string{"--address", c.path("c"), "-n", "k8s.io"}, args...)...)
	var kept strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, `level=warning msg="DEPRECATION: The support for cgroup v1`) {
			kept.WriteString(line)
		}
	}
	return kept.String(), err
}

func (c *containerd) mustCtr(args ...string) string {
	c.t.Helper()
	out, err := c.ctr(args...)
	if err != nil {
		c.t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// pull pulls an image in the way in which containerd asks the snapshotter first.
func (c *containerd) pull(ref string) error {
	if !c.cri {
		return c.pullByCtr(ref)
	}
	conn, err := grpc.NewClient("unix://"+c.path("c"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	// PullImageRequest{image: ImageSpec{image: ref}}; both lengths are less than 128.
	in := append([]byte{10, byte(len(ref) + 2), 10, byte(len(ref))}, ref...)
	var out []byte
	err = conn.Invoke(ctx, "/runtime.v1.ImageService/PullImage", in, &out, grpc.ForceCodec(plain{}))
	if err != nil && strings.Contains(err.Error(), "unknown service") {
		err = conn.Invoke(ctx, "/runtime.v1alpha2.ImageService/PullImage", in, &out, grpc.ForceCodec(plain{}))
	}
	return err
}

func (c *containerd) pullByCtr(ref string) error {
	out, err := c.ctr("images", "pull", "--plain-http", "--snapshotter", "premix", ref)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// plain makes gRPC send bytes unchanged.
type plain struct{}

func (plain) Name() string { return "proto" }
func (plain) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", v)
	}
	return b, nil
}
func (plain) Unmarshal(data []byte, v any) error {
	p, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is not bytes", v)
	}
	*p = slices.Clone(data)
	return nil
}

// id returns the id of a container. It contains the name of the machine's directory,
// because the containers of all containerds share the places of cgroups and of runc's
// state.
func (c *containerd) id(name string) string { return filepath.Base(c.dir) + "-" + name }

// container runs a command in an image, and returns its output.
func (c *containerd) container(ref, name string, command ...string) (string, error) {
	return c.heard(func(int) []string { return []string{"run", "--rm", "--snapshotter", "premix", ref, c.id(name)} }, command)
}

// heard makes ctr run a command, and returns its output. When ctr learns that the command
// has ended, it closes its ends of the pipes before everything is read, so that the last
// output may be lost. The command therefore ends its output with a marker. If the marker is
// missing, heard repeats the command.
func (c *containerd) heard(args func(try int) []string, command []string) (string, error) {
	for try := range 20 {
		out, err := c.ctr(slices.Concat(args(try), []string{"sh", "-c", `"$@" && echo that is all`, "sh"}, command)...)
		if stderr, all := strings.CutSuffix(out, "that is all\n"); all || err != nil {
			return stderr, err
		}
	}
	return "", errors.New("ctr does not tell what the command says")
}

// mountsBelow returns the mounts below a directory of the machine.
func (m *machine) mountsBelow(name string) []string {
	m.t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], m.path(name)+"/") {
			list = append(list, f[4])
		}
	}
	return list
}

// emptied waits until the snapshotter has neither mounts nor directories left.
func (m *machine) emptied() {
	m.t.Helper()
	var left []string
	if !wait(func() bool {
		left = m.mountsBelow("root")
		for _, dir := range []string{"root/snapshots", "root/trees"} {
			entries, err := os.ReadDir(m.path(dir))
			if err != nil {
				m.t.Fatal(err)
			}
			for _, e := range entries {
				left = append(left, filepath.Join(dir, e.Name()))
			}
		}
		return len(left) == 0
	}) {
		m.t.Errorf("the snapshotter has left %q", left)
	}
}
