package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"premix/internal/kit/unmount"
)

// slowed is a machine with a separate small disk that tasks of premix use while premix watch
// observes it.
type slowed struct {
	t          *testing.T
	disk       string // mount point of the disk
	device     string // name of the disk, as in loop3
	url, token string
}

// newSlowed mounts the disk and starts the watcher and the tasks.
func newSlowed(t *testing.T) *slowed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("to mount a disk of one's own takes root")
	}
	for _, program := range []string{"mkfs.ext4", "losetup"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	s := &slowed{t: t, disk: filepath.Join(dir, "disk")}
	if err := os.Mkdir(s.disk, 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Skipf("there is no disk to slow down: %s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("mkfs.ext4", "-q", "-F", image)
	loop := run("losetup", "--find", "--show", image)
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", loop).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v\n%s", loop, err, out)
		}
	})
	if err := syscall.Mount(loop, s.disk, "ext4", 0, ""); err != nil {
		t.Skipf("mount %s: %v", loop, err)
	}
	t.Cleanup(func() {
		if err := unmount.Dir(s.disk); err != nil {
			t.Errorf("umount: %v", err)
		}
	})
	s.device = filepath.Base(loop)

	env := append(os.Environ(), "PREMIX_HOME="+filepath.Join(dir, "home"))
	start := func(stdin io.Reader, args ...string) *bufio.Reader {
		t.Helper()
		cmd := exec.Command(binary, args...)
		cmd.Env, cmd.Stdin = env, stdin
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("premix %s:\n%s", args[0], &complaints)
			}
		})
		return bufio.NewReader(out)
	}
	out := start(nil, "watch", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "metrics"), "--interval", "200ms")
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("premix watch: %v", err)
	}
	_, address, ok := strings.Cut(strings.TrimSpace(line), "http://")
	if !ok {
		t.Fatalf("premix watch says %q", line)
	}
	s.url = "http://" + strings.TrimSuffix(address, "/")
	if _, err := out.ReadString('\n'); err != nil { // after this line the token exists
		t.Fatal(err)
	}
	s.token = bearer(t, filepath.Join(dir, "metrics", "token"))
	go func() { _, _ = io.Copy(io.Discard, out) }()
	var tasks strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&tasks, "dd if=/dev/zero of=%s/out%d bs=16k count=2 conv=fsync status=none; sleep 0.15\n", s.disk, i%8)
	}
	running := start(strings.NewReader(tasks.String()), "task", "run", "--out", filepath.Join(dir, "run"), "-j", "2", "-")
	go func() { _, _ = io.Copy(io.Discard, running) }()
	return s
}

// get reads JSON.
func (s *slowed) get(path string, query url.Values, into any) {
	s.t.Helper()
	r, err := getWith(s.token, s.url+"/api/v1/"+path+"?"+query.Encode())
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		s.t.Fatalf("%s: %s %v %s", path, r.Status, err, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		s.t.Fatal(err)
	}
}

// recorded waits until the disk has this many samples since a time.
func (s *slowed) recorded(since time.Time, samples int) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		var answer struct {
			Series []struct{ Points [][4]float64 }
		}
		s.get("series", url.Values{"name": {"disk.writes"}, "match": {"device=" + s.device}, "start": {since.UTC().Format(time.RFC3339Nano)}, "step": {"0.2"}}, &answer)
		if len(answer.Series) == 1 && len(answer.Series[0].Points) >= samples {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d samples of %s do not come: %v", samples, s.device, answer)
		}
	}
}

// storm creates, syncs and removes files on the disk until it is stopped.
func (s *slowed) storm() (stop func() int) {
	done := make(chan struct{})
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 8 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					mu.Lock()
					made += n
					mu.Unlock()
					return
				default:
				}
				path := filepath.Join(s.disk, fmt.Sprintf("storm-%d-%d", i, n))
				f, err := os.Create(path)
				if err != nil {
					continue // the disk is small
				}
				_, _ = f.WriteString("x")
				_ = f.Sync()
				f.Close()
				_ = os.Remove(path)
			}
		})
	}
	return func() int {
		close(done)
		all.Wait()
		return made
	}
}

// found is the part of an answer of explain that the test reads.
type found struct {
	Series   int
	Findings []finding
	Notes    []finding // about events that delayed no task
}

type finding struct {
	Sentence string
	Labels   map[string]string
	Began    time.Time
}

func (s *slowed) explain(from, to time.Time) found {
	s.t.Helper()
	var r found
	s.get("explain", url.Values{"start": {from.UTC().Format(time.RFC3339Nano)}, "end": {to.UTC().Format(time.RFC3339Nano)}}, &r)
	return r
}

func (f found) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d series\n", f.Series)
	for _, one := range f.Findings {
		fmt.Fprintf(&b, "%s %s\n", one.Began.Format("15:04:05.0"), one.Sentence)
	}
	for _, one := range f.Notes {
		fmt.Fprintf(&b, "note: %s %s\n", one.Began.Format("15:04:05.0"), one.Sentence)
	}
	return b.String()
}

// The real collectors notice a metadata storm on one disk under running tasks, on this disk and at
// this time. On a shared machine the storm may delay no task more than usual and become a note, and
// other events may occur: TestExplainTrials measures the order.
func TestPlantedSlowdown(t *testing.T) {
	s := newSlowed(t)
	s.recorded(time.Now(), 50)
	began := time.Now()
	stop := s.storm()
	s.recorded(began, 15)
	var r found
	noticed := comes(func() bool {
		r = s.explain(began.Add(-2*time.Second), time.Now())
		// The disk may have had trouble before, too.
		return slices.ContainsFunc(slices.Concat(r.Findings, r.Notes), func(f finding) bool {
			return f.Labels["device"] == s.device && !f.Began.Before(began.Add(-2*time.Second))
		})
	})
	made := stop()
	if !noticed {
		t.Fatalf("%d files on %s were not noticed: %s", made, s.device, r)
	}
	t.Logf("%d files on %s: %s", made, s.device, r)
}
