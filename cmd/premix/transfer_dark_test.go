package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"premix/internal/testkit/netrelay"
	"premix/internal/transfer"
	"premix/internal/transfer/stream"
)

// darkLimit is how long a copy may continue after its peer has vanished.
const darkLimit = 90 * time.Second

// darkSize is the size of the copied file in bytes. The link takes 1 s for it.
const darkSize = 12 << 20

// dark is a copy whose link stops carrying data.
type dark struct {
	*bed
	way     string // get or put
	server  bool   // use a server and not ssh
	silence string // value of the environment variable; empty for the default
	source  []byte
}

func newDark(t *testing.T, way string, server bool, silence string, seed uint64) *dark {
	d := &dark{bed: newBed(t, netrelay.Options{Rate: 100e6, Delay: time.Millisecond}), way: way, server: server, silence: silence}
	d.write("sizes: [1K]\nprotocols:\n" + ownProtocol() + "  - scp\n")
	if err := errors.Join(os.Mkdir(d.path("there"), 0o755), os.Mkdir(d.path("here"), 0o755)); err != nil {
		t.Fatal(err)
	}
	d.source = make([]byte, darkSize)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(d.source)
	if err := os.WriteFile(d.from(), d.source, 0o644); err != nil {
		t.Fatal(err)
	}
	if !server {
		return d
	}
	if err := stream.MakeKeys(d.path("key")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "transfer", "serve", d.path("there"), "--listen", d.ssh.Host+":8470", "--key", d.path("key"), "--write")
	if silence != "" {
		cmd.Env = append(os.Environ(), transfer.SilenceVariable+"="+silence)
	}
	if err := d.link.B.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its status is the signal
	})
	if !comes(func() bool {
		c, err := d.link.A.Dial(t.Context(), "tcp", d.ssh.Host+":8470")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("the server does not begin")
	}
	return d
}

func (d *dark) from() string {
	if d.way == "get" {
		return d.path("there/source")
	}
	return d.path("here/source")
}

func (d *dark) to() string {
	if d.way == "get" {
		return d.path("here/copy")
	}
	return d.path("there/copy")
}

// copy returns the command.
func (d *dark) copy(more ...string) *exec.Cmd {
	peer, root := "bed:", d.path("there")+"/"
	args := []string{"transfer", d.way}
	if d.server {
		peer, root = "premix://"+d.ssh.Host+"/", ""
		args = append(args, "--key", d.path("key.client"))
	}
	if d.way == "get" {
		args = append(args, peer+root+"source", d.to())
	} else {
		args = append(args, d.from(), peer+root+"copy")
	}
	cmd := d.command(append(args, more...)...)
	if d.silence != "" {
		cmd.Env = append(cmd.Env, transfer.SilenceVariable+"="+d.silence)
	}
	return cmd
}

// begin starts a copy and cuts the link after at bytes.
func (d *dark) begin(at int64, more ...string) (cmd *exec.Cmd, stderr *bytes.Buffer, finished chan error) {
	d.t.Helper()
	cmd, stderr, finished = d.copy(more...), &bytes.Buffer{}, make(chan error, 1)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	dark := d.link.CutAfter(at)
	if err := d.link.A.Start(cmd); err != nil {
		d.t.Fatal(err)
	}
	go func() { finished <- cmd.Wait() }()
	select {
	case <-dark:
	case err := <-finished:
		d.t.Fatalf("the copy has ended before the link was cut: %v\n%s", err, stderr)
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-finished
		d.t.Fatalf("%d bytes never came", at)
	}
	return cmd, stderr, finished
}

// remember runs a bench, so that premix knows the link by its name.
func (d *dark) remember() {
	d.t.Helper()
	if status, out, errs := d.premix("transfer", "bench", d.path("link.yaml"), "--out", d.path("out"), "--only", "scp", "--repeat", "1", "--capture", "none"); status != 0 {
		d.t.Fatalf("bench: status %d\n%s%s", status, out, errs)
	}
}

// vanish cuts off the peer at some point of a copy, and checks that the copy can continue
// afterwards.
func (d *dark) vanish(at int64) {
	t := d.t
	t.Helper()
	if !d.server {
		d.remember()
	}
	cmd, stderr, finished := d.begin(at)
	begin := time.Now()
	select {
	case err := <-finished:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 5 && exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "hint: ") {
			t.Errorf("%s %t at %d: %v\n%s", d.way, d.server, at, err, stderr)
		}
	case <-time.After(darkLimit):
		t.Errorf("%s %t at %d: the copy goes on %s after its peer has vanished\n%s", d.way, d.server, at, darkLimit, stderr)
		_ = cmd.Process.Kill()
		<-finished
	}
	took := time.Since(begin)
	d.link.Cut(false)
	var last string
	again := func() bool {
		var out bytes.Buffer
		cmd := d.copy()
		cmd.Stdout, cmd.Stderr = &out, &out
		err := d.link.A.Run(cmd)
		last = fmt.Sprintf("%v\n%s", err, &out)
		return err == nil
	}
	// The far end may take a moment longer to notice that its peer has vanished. It holds the
	// partial copy until then.
	if !comes(func() bool { return again() || !strings.Contains(last, "another premix is copying") }) || !strings.HasPrefix(last, "<nil>") {
		t.Errorf("%s %t at %d: the copy does not go on: %s", d.way, d.server, at, last)
	}
	if got, err := os.ReadFile(d.to()); err != nil || !bytes.Equal(got, d.source) {
		t.Errorf("%s %t at %d: %v, %d bytes are not what was sent", d.way, d.server, at, err, len(got))
	}
	t.Logf("%s, server %t, at %d: ended after %.1f s", d.way, d.server, at, took.Seconds())
}

// A copy ends with an error when its peer vanishes. A second copy then continues it and gives the
// exact data. PREMIX_SOAK=1 tests a hundred points with the default deadlines.
func TestTransferDark(t *testing.T) {
	points, silence := 8, "4s"
	if os.Getenv("PREMIX_SOAK") != "" {
		points, silence = 100, ""
	}
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	for i := range points {
		way := []string{"get", "put"}[i%2]
		server := i/2%2 == 1
		at := 1 + r.Int64N(darkSize)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			newDark(t, way, server, silence, uint64(i)).vanish(at)
		})
	}
}

// A copy whose link is dark ends on SIGTERM.
func TestTransferDarkTerm(t *testing.T) {
	for _, server := range []bool{false, true} {
		for _, way := range []string{"get", "put"} {
			for _, more := range [][]string{nil, {"--protocol", "scp"}} {
				if server && more != nil {
					continue
				}
				t.Run(fmt.Sprintf("%s,%t,%d", way, server, len(more)), func(t *testing.T) {
					t.Parallel()
					d := newDark(t, way, server, "", 1)
					if !server {
						d.remember()
					}
					cmd, stderr, finished := d.begin(darkSize/3, more...)
					// At this point the copy must not have noticed the cut, and all buffers must be
					// full.
					time.Sleep(500 * time.Millisecond)
					begin := time.Now()
					if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
						t.Fatal(err)
					}
					err := <-finished
					var exit *exec.ExitError
					if !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGTERM) {
						t.Errorf("%v\n%s", err, stderr)
					}
					// The machine may be slow. Without the signal the copy would end after 90 s of
					// silence.
					if took := time.Since(begin); took > time.Minute {
						t.Errorf("it took %v\n%s", took, stderr)
					} else {
						t.Logf("it took %v", took)
					}
					// The peer's sshd notices the end after the link carries data again.
					d.link.Cut(false)
					if left := d.processes(); !comes(func() bool {
						left = nil
						for _, line := range d.processes() {
							if !strings.Contains(line, "transfer serve") {
								left = append(left, line)
							}
						}
						return len(left) == 0
					}) {
						t.Errorf("processes were left behind: %q", left)
					}
				})
			}
		}
	}
}

// A far end that is stopped ends its connection, but not the copy, which continues with another
// connection.
func TestTransferStopped(t *testing.T) {
	dir := t.TempDir()
	source := make([]byte, 256<<20)
	rand.NewChaCha8([32]byte{9}).Read(source)
	from, to, number := filepath.Join(dir, "from"), filepath.Join(dir, "to"), filepath.Join(dir, "number")
	if err := os.WriteFile(from, source, 0o644); err != nil {
		t.Fatal(err)
	}
	// Only the first far end writes its process number.
	script := fmt.Sprintf(`[ -e %[1]s ] || echo $$ >%[1]s; exec %[2]s transfer serve --asked @asked@`, number, binary)
	cmd := exec.Command(binary, "transfer", "stream", "get", to, from, "--", "sh", "-c", script)
	cmd.Env = append(os.Environ(), transfer.SilenceVariable+"=2s")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	far := 0
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Microsecond) {
		var s syscall.Stat_t
		if syscall.Stat(to, &s) == nil && s.Blocks > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the copy does not begin")
		}
	}
	text, err := os.ReadFile(number)
	if err == nil {
		far, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err == nil {
		err = syscall.Kill(far, syscall.SIGSTOP)
	}
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &stderr)
	}
	t.Logf("it took %v: %s", time.Since(begin), &stderr)
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, source) {
		t.Errorf("%v, %d bytes are not what was sent", err, len(got))
	}
	if !comes(func() bool { return syscall.Kill(far, 0) != nil }) {
		t.Error("the far end that was stopped is still there")
		_ = syscall.Kill(far, syscall.SIGKILL)
	}
}

// Other copy programs also end when the peer has vanished.
func TestTransferDarkOthers(t *testing.T) {
	for name, program := range map[string]string{"scp": "scp", "sftp": "sftp", "rsync": "rsync", "rsyncd": "rsync", "curl": "nginx", "aria2": "aria2c", "rclone": "rclone", "xrootd": "xrdcp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("%s is missing", program)
			}
			d := newDark(t, "get", false, "4s", 1)
			d.write("sizes: [1K]\nrepeat: 1\nquiet: {for: 10ms}\nprotocols: [scp, " + strings.ReplaceAll(name, "scp", "sftp") + "]\n")
			d.remember()
			cmd, stderr, finished := d.begin(darkSize/3, "--protocol", name, "--allow-open")
			begin := time.Now()
			select {
			case err := <-finished:
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(stderr.String(), "hint: ") {
					t.Errorf("%v\n%s", err, stderr)
				}
				t.Logf("ended after %v", time.Since(begin))
			case <-time.After(darkLimit):
				t.Errorf("the copy goes on\n%s", stderr)
				_ = cmd.Process.Kill()
				<-finished
			}
			if files, err := filepath.Glob(d.path("here/copy")); err != nil || len(files) != 0 {
				t.Errorf("a copy that is not whole has its name: %q, %v", files, err)
			}
		})
	}
}
