package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/watch"
)

// Prometheus itself, with its handler and its storage, accepts the samples, and has every
// sample under the right name and labels.
func TestRemoteWriteToPrometheus(t *testing.T) {
	const source = "testdata/receiver" // a separate module
	tool := func(args ...string) ([]byte, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
		return cmd.CombinedOutput()
	}
	if out, err := tool("list", "-deps", "."); err != nil {
		t.Skipf("the modules of Prometheus cannot be had: %v\n%s", err, out)
	}
	receiver := filepath.Join(t.TempDir(), "receiver")
	if out, err := tool("build", "-o", receiver, "."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(receiver, t.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // returns an error if the process was already waited for
	})
	out := bufio.NewReader(stdout)
	address, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	db := database(t)
	r, err := NewRemoteWrite(db, RemoteOptions{URL: "http://" + strings.TrimSpace(address) + "/api/v1/write", Batch: 7, Delay: 5 * time.Millisecond, Retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	const samples = 20
	for i := range samples {
		at := begin.Add(time.Duration(i) * time.Second)
		db.Samples([]watch.Sample{
			{ID: watch.NewID("disk.read_bytes", "node", "n1", "Z", "", "device", `s"d\a`), Time: at, Value: float64(i) + 0.1},
			{ID: watch.NewID("node.load", "node", "ü"), Time: at, Value: -float64(i)},
		})
	}
	got := await(t, r, 2*samples)
	cancel()
	<-done
	if got.Refused != 0 || got.Dropped != 0 {
		t.Errorf("%+v", got)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	type sample struct {
		Labels map[string]string
		Time   int64
		Value  float64
	}
	have := make(map[string][]sample)
	for d := json.NewDecoder(out); ; {
		var s sample
		err := d.Decode(&s)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		have[s.Labels["__name__"]] = append(have[s.Labels["__name__"]], s)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]struct {
		label, value string
		labels       int
		of           func(i int) float64
	}{
		"premix_disk_read_bytes": {"device", `s"d\a`, 3, func(i int) float64 { return float64(i) + 0.1 }},
		"premix_node_load":       {"node", "ü", 2, func(i int) float64 { return -float64(i) }},
	} {
		if len(have[name]) != samples {
			t.Errorf("%s: %d samples are there: %v", name, len(have[name]), have)
			continue
		}
		for i, s := range have[name] {
			if s.Labels[want.label] != want.value || len(s.Labels) != want.labels || s.Time != begin.Add(time.Duration(i)*time.Second).UnixMilli() || s.Value != want.of(i) {
				t.Errorf("%s: sample %d is %+v", name, i, s)
			}
		}
	}
}
