package slurm

import (
	"strings"
	"testing"

	"premix/internal/engine/pilot"
)

func TestStatus(t *testing.T) {
	l := parse(`premix-a|1|0|COMPLETED|None|n1
premix-b|1|0|RUNNING|None|n2
premix-b|1|2-3,5%2|PENDING|Priority|
premix-b|1|4|PENDING|launch failed requeued held|
premix-b|1|6|PENDING|JobHeldUser|
premix-b|1|7|CANCELLED|None|
premix-b|1|7|PENDING|BeginTime|
premix-b|1|20-40:10|PENDING|Priority|
other|1|8|RUNNING|None|n3
`)
	for _, c := range []struct {
		id    string
		found bool
		phase pilot.Phase
		stuck bool
	}{
		{"1_0 (premix-a)", true, pilot.Ended, false},
		{"1_0 (premix-b)", true, pilot.Running, false},
		{"1_0 (premix-c)", false, 0, false}, // another job has the same number
		{"1_0", true, pilot.Running, false}, // from a ledger without names
		{"1_3 (premix-b)", true, pilot.Pending, false},
		{"1_4 (premix-b)", true, pilot.Pending, true},
		{"1_5 (premix-b)", true, pilot.Pending, false},
		{"1_6 (premix-b)", true, pilot.Pending, false},
		{"1_7 (premix-b)", true, pilot.Pending, false}, // it is waiting to start again
		{"1_8", false, 0, false},
		{"1_30 (premix-b)", true, pilot.Pending, false},
		{"1_31 (premix-b)", false, 0, false},
		{"1", false, 0, false},
	} {
		st, found := l.status(parseID(c.id))
		if found != c.found || st.Phase != c.phase || st.Stuck != c.stuck {
			t.Errorf("%s: %v %+v", c.id, found, st)
		}
	}
	if id := makeID("12", 3, "premix-a"); parseID(id.String()) != id {
		t.Errorf("%v", id)
	}
}

// premix requests the resources of tasks from Slurm, in the form that the tasks' own options have.
func TestOptionsForResources(t *testing.T) {
	for _, c := range []struct {
		s    pilot.Share
		want string
	}{
		{pilot.Share{}, ""},
		{pilot.Share{Resources: "fpga=1,gpu=2"}, "--gres=fpga:1,gpu:2"},
		{pilot.Share{Ask: "qos=high\ngres=gpu:a100:2", Resources: "gpu=2"}, "--qos=high --gres=gpu:a100:2"},
	} {
		if got := strings.Join(asked(&c.s), " "); got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}
