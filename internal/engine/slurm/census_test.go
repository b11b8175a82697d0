package slurm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"premix/internal/testkit/shortdir"
	"premix/internal/testkit/slurmtest"
)

func TestParseCensus(t *testing.T) {
	got := ParseCensus("short|RUNNING|N/A\nshort|RUNNING|3\nshort,long|PENDING|4-10,12%2\nlong|PENDING|N/A\nnonsense\n")
	want := []Counted{{"short", "running", 2}, {"short", "pending", 8}, {"long", "pending", 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// testdata/sdiag.txt was recorded from Slurm 22.05.
func TestParseDiag(t *testing.T) {
	text, err := os.ReadFile("testdata/sdiag.txt")
	if err != nil {
		t.Fatal(err)
	}
	diag := ParseDiag(string(text))
	for key, want := range map[string]float64{
		"Server thread count":                        3,
		"Agent queue size":                           0,
		"Jobs submitted":                             501,
		"Jobs started":                               2,
		"Main schedule statistics.Last cycle":        3009,
		"Main schedule statistics.Mean cycle":        3009,
		"Main schedule statistics.Last queue length": 1,
		"Backfilling stats.Last cycle":               108,
		"Backfilling stats.Last depth cycle":         1,
	} {
		if got, ok := diag[key]; !ok || got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
	if _, ok := diag["Backfilling stats.Last cycle when"]; ok {
		t.Error("a time is taken for a number")
	}
}

// A census needs only one query to a real Slurm for all readers.
func TestCensus(t *testing.T) {
	if list := slurmtest.Missing(false); len(list) > 0 {
		t.Skipf("there is no %v (scripts/setup.sh test)", list)
	}
	dir := shortdir.New(t)
	box, err := slurmtest.Start(dir, slurmtest.Options{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("SLURM_CONF", box.Conf())
	t.Setenv("PREMIX_HOME", t.TempDir())
	// More jobs are submitted than fit: two run, the others wait, in an array and as a single job.
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--array=0-499", script}, {"--hold", script}} {
		if out, err := box.Run("sbatch", append([]string{"--output=/dev/null"}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	c, err := TakeCensus(context.Background(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, j := range c.Jobs {
		n += j.Jobs
	}
	if n != 501 || len(c.Diag) == 0 || c.Diag["Jobs submitted"] < 2 {
		t.Errorf("%d jobs: %+v", n, c)
	}
	// The next census reads the stored one without a query.
	again, err := TakeCensus(context.Background(), time.Hour)
	if err != nil || !again.Started.Equal(c.Started) || !reflect.DeepEqual(again.Jobs, c.Jobs) {
		t.Errorf("%+v %v", again, err)
	}
}

// A premix that ends during its query stores no result for others.
func TestCensusBrokenOff(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PREMIX_HOME", filepath.Join(dir, "home"))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	squeue := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "new"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "squeue")); err != nil {
			t.Fatal(err)
		}
	}
	started := filepath.Join(dir, "begun")
	squeue(">" + started + "; exec sleep 1000\n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := os.Stat(started); err == nil {
				break
			}
		}
		cancel()
	}()
	if c, err := TakeCensus(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v %v", c, err)
	}
	squeue("echo 'main|RUNNING|N/A'\n")
	if c, err := TakeCensus(context.Background(), time.Hour); err != nil || len(c.Jobs) != 1 {
		t.Errorf("%+v %v", c, err)
	}
}
