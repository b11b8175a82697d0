package slurmtest

import (
	"strings"
	"testing"
	"time"

	"premix/internal/testkit/shortdir"
)

// start starts a box in a short path.
func start(t *testing.T, o Options) *Box {
	t.Helper()
	if list := Missing(o.Accounting); len(list) > 0 {
		t.Skipf("there is no %s: scripts/setup.sh test installs it", strings.Join(list, ", "))
	}
	b, err := Start(shortdir.New(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestBox(t *testing.T) {
	b := start(t, Options{Nodes: 2, Accounting: true})
	if _, err := b.Run("sbatch", "--wrap", "true", "-o", b.Dir+"/out"); err != nil {
		t.Error(err)
	}
	// slurmctld sends the record to slurmdbd later, and loses it if it is killed before.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := b.Run("sacct", "-n", "-X", "-P", "-S", "now-1day", "-o", "State") // it may be just past midnight
		if err == nil && strings.Contains(out, "COMPLETED") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("sacct: %v\n%s", err, out)
		}
	}
	b.Kill("slurmctld")
	if b.PID("slurmctld") != 0 {
		t.Error("it lives")
	}
	if err := b.StartDaemon("slurmctld"); err != nil {
		t.Fatal(err)
	}
	if err := b.AwaitIdle(); err != nil {
		t.Error(err)
	}
}
