package scheduling

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// TestAgainstTheRecord replays a real log of sacct, which has nodes, on the machine that it
// shows: Slurm's order and backfilling come near the recorded waits, 4.7 h on average.
func TestAgainstTheRecord(t *testing.T) {
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set: no real log of sacct")
	}
	tr, err := trace.Open(filepath.Join(data, "traces", "slurm_sacct_phillips.log"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := Choose([]string{"multifactor"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := simulate.Run(context.Background(), tr, machine.FromTrace(tr, 0), New(policies[0]), simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	recorded, replayed, n := 0.0, 0.0, 0.0
	for job := range tr.Len() {
		if s.Start[job] == trace.Unknown {
			t.Fatalf("job %d was refused: %v", tr.Number[job], s.Refused)
		}
		if !tr.Given(job) {
			recorded, replayed, n = recorded+tr.Waited[job].Seconds(), replayed+s.Wait(job).Seconds(), n+1
		}
	}
	if recorded/n < 4*3600 || math.Abs(replayed-recorded) > recorded/20 {
		t.Errorf("%.0f jobs waited %.0f s in reality and %.0f s in the replay", n, recorded/n, replayed/n)
	}
}
