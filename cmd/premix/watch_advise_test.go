package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/series"
	"premix/internal/watch/web"
)

func TestWatchAdvise(t *testing.T) {
	dir := t.TempDir()
	db, err := series.Open(filepath.Join(dir, "data"), series.Options{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const gb = 1 << 30
	now := time.Now().UTC().Truncate(time.Second)
	task := func(key, step, user string, began time.Time, ok bool) {
		run, _, _ := strings.Cut(key, "#")
		db.Task(watch.Task{Key: key, Run: run, Step: step, User: user, Node: "n1", Engine: "local", Queued: began.Add(-time.Minute), Began: began, End: began.Add(time.Hour), OK: ok,
			Cores: 4, CPU: 3600, Memory: 32 * gb, MaxRSS: 2.75 * gb})
	}
	for _, key := range []string{"/r#1.1", "/r#2.1", "/r#3.1", "/r#4.1"} {
		task(key, "bwa", "ada", now.Add(-30*time.Hour), key != "/r#4.1")
		_, number, _ := strings.Cut(key, "#")
		db.Samples([]watch.Sample{{ID: watch.NewID("task.gpu_busy", "node", "n1", "manager", "premix", "run", "/r", "task", number, "gpu", "0"), Unit: watch.Ratio, Time: now.Add(-29*time.Hour - time.Minute), Value: 0.1}})
	}
	task("/r#5.1", "old", "ada", now.Add(-20*24*time.Hour), true)
	task("/r#6.1", "bwa", "bob", now.Add(-2*time.Hour), true)
	s, err := web.New(web.Config{DB: db, Node: "n1", Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	run := func(args ...string) (string, error) {
		out, err := exec.Command(binary, append([]string{"watch", "advise"}, args...)...).CombinedOutput()
		return string(out), err
	}
	got, err := run("ada", "--server", server.URL)
	want := `Tasks of ada in the last 7 days: 4 ended, 1 of them failed, 0 running
Processors: 25 % of 16.0 core hours used

bwa: 4 tasks, 1 failed; median run 60 min, wait 60.0 s
  cores   asked for 4, 25 % of their time used
  memory  asked for 32 GiB, used at most 2.8 GiB, in the median 2.8 GiB
  GPUs    had work 10 % of the time, in 4 tasks
  * asked for 32 GiB, used at most 2.8 GiB: ask for 4 GiB
  * held 4 cores, used 1: ask for 1
  * its GPUs had work 10 % of the time: run several tasks on one GPU, or none
  * 1 of 4 failed: see why before running more
  premix task: --task-cores 1 --task-memory 4G
  sbatch:      --cpus-per-task=1 --mem=4G
`
	if err != nil || got != want {
		t.Errorf("%v, it prints\n%s", err, got)
	}
	if got, err := run("ada", "--days", "30", "--server", server.URL); err != nil || !strings.Contains(got, "\nold: 1 task, 0 failed") {
		t.Errorf("of 30 days: %v, %s", err, got)
	}
	if got, err := run("eve", "--server", server.URL); err != nil || got != "Tasks of eve in the last 7 days: 0 ended, 0 of them failed, 0 running\n" {
		t.Errorf("of another: %v, %s", err, got)
	}
	var answer struct{ Usage []struct{ Step string } }
	if got, err := run("bob", "--json", "--server", server.URL); err != nil || json.Unmarshal([]byte(got), &answer) != nil || len(answer.Usage) != 1 || answer.Usage[0].Step != "bwa" {
		t.Errorf("as JSON: %v, %s", err, got)
	}

	// A server without the rights, without premix, and none.
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer 0123456789abcdef" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"the token is missing or wrong","hint":"send it"}`))
			return
		}
		_, _ = w.Write([]byte("<html>"))
	}))
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"ada", "--server", closed.URL}, "error: " + strings.TrimPrefix(closed.URL, "http://") + ": the token is missing or wrong\nhint: name the file of its token with --token-file", 5},
		{[]string{"ada", "--server", closed.URL, "--token-file", token}, "it is not a premix watch", 5},
		{[]string{"ada", "--server", "http://127.0.0.1:1"}, "hint: start premix watch", 5},
		{[]string{"ada", "--server", "n1"}, `error: "n1" is not an address of premix watch`, 2},
		{nil, "USER", 2},
	} {
		got, err := run(c.args...)
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%v: %v, %s", c.args, err, got)
		}
	}
}
