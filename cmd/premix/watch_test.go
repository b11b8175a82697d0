package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watched is a premix watch that tests may kill.
type watched struct {
	t    *testing.T
	env  []string
	data string
	args []string // further arguments
	url  string
	// token is the value of the Authorization header.
	token string
	cmd   *exec.Cmd
}

// bearer returns the value of the Authorization header for the token in a file.
func bearer(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + strings.TrimSpace(string(text))
}

// getWith makes a request with a token.
func getWith(token, url string) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", token)
	return http.DefaultClient.Do(r)
}

func newWatched(t *testing.T, data string, args ...string) *watched {
	t.Helper()
	w := &watched{t: t, data: data, args: args, env: append(os.Environ(), "PREMIX_HOME="+filepath.Join(t.TempDir(), "home"))}
	t.Cleanup(func() { w.end(syscall.SIGKILL) })
	w.start()
	return w
}

// start starts the watcher and returns when it answers.
func (w *watched) start() {
	w.t.Helper()
	w.cmd = exec.Command(binary, "watch", "--listen", "127.0.0.1:0", "--data", w.data, "--interval", "200ms")
	w.cmd.Args = append(w.cmd.Args, w.args...)
	w.cmd.Env, w.cmd.Stderr = w.env, os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	stderr := bufio.NewReader(out)
	line, err := stderr.ReadString('\n')
	_, address, ok := strings.Cut(strings.TrimSpace(line), ": ")
	if err != nil || !ok {
		w.t.Fatalf("it said %q: %v", line, err)
	}
	w.url = strings.TrimSuffix(address, "/")
	line, err = stderr.ReadString('\n')
	file, ok := strings.CutPrefix(strings.TrimSpace(line), "other users need the token in ")
	if err != nil || !ok {
		w.t.Fatalf("it said %q: %v", line, err)
	}
	w.token = bearer(w.t, file)
}

func (w *watched) end(how syscall.Signal) {
	if w.cmd == nil {
		return
	}
	_ = w.cmd.Process.Signal(how)
	err := w.cmd.Wait()
	w.cmd = nil
	if how == syscall.SIGINT && err != nil {
		w.t.Errorf("it ended with %v", err)
	}
}

// get requests a path and decodes the JSON of the answer.
func (w *watched) get(path string, into any) {
	w.t.Helper()
	r, err := getWith(w.token, w.url+path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %s", path, r.Status)
	}
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		w.t.Fatal(err)
	}
}

// finished returns the tasks of a directory that have ended, by key.
func (w *watched) finished(dir string) map[string]bool {
	var all struct {
		Tasks []struct {
			Key string
			End time.Time
			OK  bool
		}
	}
	w.get("/api/v1/tasks?limit=100000&run="+url.QueryEscape(dir), &all)
	list := make(map[string]bool)
	for _, t := range all.Tasks {
		if !t.End.IsZero() {
			if list[t.Key] || !t.OK {
				w.t.Errorf("%+v", t)
			}
			list[t.Key] = true
		}
	}
	return list
}

func (w *watched) events() string {
	var all struct{ Events []struct{ Kind string } }
	w.get("/api/v1/events?start="+url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)), &all)
	var kinds []string
	for _, e := range all.Events {
		kinds = append(kinds, e.Kind)
	}
	return strings.Join(kinds, " ")
}

// run starts tasks, and returns a function that waits for them.
func (w *watched) run(dir, command string, many int) (wait func()) {
	w.t.Helper()
	cmd := exec.Command(binary, "task", "run", "-", "--out", dir, "--quiet", "-j", "2")
	cmd.Env = w.env
	var lines strings.Builder
	for i := range many {
		fmt.Fprintf(&lines, command+"\n", i)
	}
	cmd.Stdin = strings.NewReader(lines.String())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		if err := cmd.Wait(); err != nil {
			w.t.Error(err)
		}
	}
}

// A watcher is killed repeatedly while five hundred tasks of five milliseconds run. It reports each
// task once, with its begin and end, and its series continue.
func TestWatchIsKilled(t *testing.T) {
	dir := t.TempDir()
	w := newWatched(t, filepath.Join(dir, "metrics"))
	out := filepath.Join(dir, "tasks")
	wait := w.run(out, "sleep 0.005; : %d", 500)
	for _, n := range []int{50, 200} {
		if !comes(func() bool { return len(w.finished(out)) >= n }) {
			t.Fatal("tasks are not reported")
		}
		w.end(syscall.SIGKILL)
		w.start()
	}
	w.end(syscall.SIGKILL)
	wait() // the last tasks end while no watcher runs
	w.start()
	if !comes(func() bool { return len(w.finished(out)) == 500 }) {
		t.Fatalf("%d tasks of 500", len(w.finished(out)))
	}
	var series struct {
		Series []struct {
			Points [][4]float64
		}
	}
	if !comes(func() bool {
		w.get("/api/v1/series?name=node.running&step=1s&start="+url.QueryEscape(time.Now().Add(-time.Minute).Format(time.RFC3339)), &series)
		return len(series.Series) == 1 && len(series.Series[0].Points) > 2
	}) {
		t.Errorf("%+v", series)
	}
	w.end(syscall.SIGINT)
}

// On a full disk the watcher continues and reports the problem. Once there is room, it has all
// data.
func TestWatchOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("file systems are mounted by root")
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if !comes(func() bool { err := unix.Unmount(disk, 0); return err == nil }) {
			t.Error("the disk is still in use")
		}
	})
	w := newWatched(t, filepath.Join(disk, "metrics"))
	filler := filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for _, err = f.Write(make([]byte, 4096)); err == nil; {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	out := filepath.Join(dir, "tasks")
	w.run(out, "true %d", 30)()
	if !comes(func() bool { return len(w.finished(out)) == 30 }) {
		t.Fatalf("%d tasks of 30 on a full disk", len(w.finished(out)))
	}
	if !comes(func() bool {
		return strings.Contains(w.events(), "disk") || strings.Contains(w.events(), "collector_failed")
	}) {
		t.Errorf("events: %s", w.events())
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if !comes(func() bool { return strings.Contains(w.events(), "recovered") || strings.Contains(w.events(), "again") }) {
		t.Errorf("events: %s", w.events())
	}
	w.end(syscall.SIGINT)
	w.start()
	if n := len(w.finished(out)); n != 30 {
		t.Errorf("%d tasks of 30 after it", n)
	}
	w.end(syscall.SIGINT)
}
