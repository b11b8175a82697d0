package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"premix/internal/kit/lock"
	"premix/internal/testkit/ports"
	"premix/internal/testkit/shortdir"
)

// descriptors is the open file limit of the servers in these tests.
const descriptors = 300

// serving starts a premix server with few descriptors. It returns the first match of form in the
// output of the server.
func serving(t *testing.T, env []string, form string, args ...string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$@"`, descriptors), "sh", binary)
	cmd.Args = append(cmd.Args, args...)
	cmd.Env = append(os.Environ(), env...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	pattern := regexp.MustCompile(form)
	found, rest := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(rest)
		defer r.Close()
		stderr := ""
		for lines := bufio.NewScanner(r); lines.Scan(); {
			stderr += lines.Text() + "\n"
			if m := pattern.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case found <- m[1]:
				default:
				}
			}
		}
		select {
		case found <- "":
			t.Logf("the server said:\n%s", stderr)
		default:
		}
	}()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		_ = cmd.Wait() // its status is the signal
		<-rest
	})
	select {
	case address := <-found:
		if address == "" {
			t.Fatal("the server has ended")
		}
		return address
	case <-time.After(patience):
		t.Fatal("the server does not begin")
	}
	return ""
}

// TestListenersUnderIdle opens more connections than a server has descriptors. The clients send
// nothing, part of a header, or an endless header, or close their half of the connection within a
// header. They must not keep out other clients. Without limits, other clients would wait until the
// header timeout.
func TestListenersUnderIdle(t *testing.T) {
	home := t.TempDir()
	env := []string{"PREMIX_HOME=" + home}
	storeDir := filepath.Join(home, "store")
	if out, err := exec.Command(binary, "store", "init", storeDir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	metrics := fmt.Sprintf("127.0.0.1:%d", free[0])
	for _, c := range []struct {
		name, form, path string
		args             []string
	}{
		{"store serve", `at http://([0-9.:]+)`, "/config", []string{"store", "serve", "--store", storeDir, "--listen", "127.0.0.1:0"}},
		{"store serve metrics", `metrics at http://([0-9.:]+)/`, "/metrics", []string{"store", "serve", "--store", storeDir, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}},
		{"blast serve", `listening on ([0-9.:]+)`, "/openapi.json", []string{"blast", "serve", "--listen", "127.0.0.1:0", "--dir", filepath.Join(home, "blast")}},
		{"watch", `http://([0-9.:]+)/`, "/openapi.json", []string{"watch", "--listen", "127.0.0.1:0", "--data", filepath.Join(home, "watch")}},
		{"node metrics", `(.+)`, "/metrics", []string{"node", "start", "--foreground", "--metrics-listen", metrics}},
	} {
		for from, addresses := range map[string]int{"one address": 1, "many addresses": 250} {
			t.Run(c.name+" "+from, func(t *testing.T) {
				address := serving(t, env, c.form, c.args...)
				if c.name == "node metrics" {
					address = metrics
				}
				// Retry the request, because the server may not be ready for the first one.
				if !comes(func() bool { return ask(address, c.path) == nil }) {
					t.Fatal(ask(address, c.path))
				}
				unhindered(t, func() {
					for i := range 2 * descriptors {
						d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(1+i%addresses))}}
						conn, err := d.Dial("tcp", address)
						if errors.Is(err, syscall.ECONNRESET) {
							continue // this address has too many connections
						}
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { conn.Close() })
						// The server may have closed the connection by now.
						const started = "GET / HTTP/1.1\r\nHost: premix\r\nX-Slow: "
						switch i % 4 {
						case 0:
							_, _ = io.WriteString(conn, started)
						case 1:
							_, _ = io.WriteString(conn, started)
							if tcp, ok := conn.(*net.TCPConn); ok {
								_ = tcp.CloseWrite()
							}
						case 2:
							_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
							_, _ = io.WriteString(conn, started+strings.Repeat("x", 64<<10))
						}
					}
				}, func() error { return ask(address, c.path) })
				if status := askLong(t, address, c.path); status != http.StatusRequestHeaderFieldsTooLarge {
					t.Errorf("a header of 1 MiB is answered with %d", status)
				}
			})
		}
	}
}

// unhindered checks that idle clients do not keep out a request. Without limits, each request would
// wait until the header timeout of 10 s. A loaded machine may also be slow, but not each time.
func unhindered(t *testing.T, crowd func(), ask func() error) {
	t.Helper()
	var took time.Duration
	for range 5 {
		crowd()
		begin := time.Now()
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		if took = time.Since(begin); took < 5*time.Second {
			return
		}
	}
	t.Errorf("an answer took %v", took)
}

// askLong makes a request with a header of 1 MiB and returns the status of the answer.
func askLong(t *testing.T, address, path string) int {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	go func() {
		// The server answers before it has read everything.
		_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+address+"\r\nX-Long: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
	}()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	return r.StatusCode
}

// ask makes one request in a new connection.
func ask(address, path string) error {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK && r.StatusCode != http.StatusNotFound {
		return errors.New(r.Status)
	}
	return nil
}

// Idle clients do not keep out requests to the control socket of a node.
func TestControlSocketUnderIdle(t *testing.T) {
	dir := shortdir.New(t)
	env := []string{"PREMIX_HOME=" + dir, "PREMIX_NODE_DIR=" + filepath.Join(dir, "node")}
	serving(t, env, `(.+)`, "node", "start", "--foreground")
	socket := filepath.Join(dir, "node/socket")
	status := func() ([]byte, error) {
		cmd := exec.Command(binary, "node", "status")
		cmd.Env = append(os.Environ(), env...)
		return cmd.CombinedOutput()
	}
	if !comes(func() bool { _, err := status(); return err == nil }) {
		out, err := status()
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	unhindered(t, func() {
		for range 2 * descriptors {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			_, _ = io.WriteString(conn, "GET /v1/ping HTTP/1.1\r\nHost: premix\r\nX-Slow: ") // it may be closed by now
		}
	}, func() error {
		out, err := status()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
}

// The socket of the Slurm programs accepts only its own user, because a client can run jobs as this
// user.
func TestShimSocketMode(t *testing.T) {
	dir := shortdir.New(t)
	shim := filepath.Join(dir, "shim")
	// A careless service may run with umask 0. The worker does not end while it has a job.
	cmd := exec.Command("sh", "-c", `umask 0; cd "$2"/.. && "$1" slurm-shim --dir "$2" --idle 1s && "$2/bin/sbatch" --wrap 'exec sleep 1000' && stat -c %a "$2"/.premix/slurm/socket; status=$?; "$2/bin/scancel" 1; exit $status`, "sh", binary, shim)
	out, err := cmd.CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil || !strings.HasSuffix(text, "\n600") {
		t.Errorf("%v\n%s", err, text)
	}
	// A worker holds its lock until it has written everything.
	held, err := os.Open(filepath.Join(shim, ".premix/slurm/lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if !comes(func() bool { return lock.Try(held, lock.Exclusive) == nil }) {
		t.Error("the worker does not end")
	}
	if _, err := os.Lstat(filepath.Join(shim, ".premix/slurm/socket")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the worker has left its socket: %v", err)
	}
}
