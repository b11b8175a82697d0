package scheduling

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// spec is a job of a test. Times are in seconds. Fields that are 0 have usual values: one
// core, user 1, queue and partition 1, and an estimate that is the run time.
type spec struct {
	submit, run, cores, asked int
	user, queue, partition    int
	after, think              int
}

// workload returns a trace of the specs, whose jobs have the numbers 1, 2, ...
func workload(t *testing.T, specs []spec) *trace.Trace {
	t.Helper()
	var b strings.Builder
	b.WriteString("; Queue: 1 normal\n; Queue: 2 high\n; Queue: 3 low\n; Partition: 1 main\n; Partition: 2 other\n")
	for i, s := range specs {
		s.cores, s.user = max(s.cores, 1), max(s.user, 1)
		s.queue, s.partition = max(s.queue, 1), max(s.partition, 1)
		if s.asked == 0 {
			s.asked = s.run
		}
		if s.after == 0 {
			s.after, s.think = -1, -1
		}
		fmt.Fprintf(&b, "%d %d -1 %d %d -1 -1 -1 %d -1 1 %d %d -1 %d %d %d %d\n", i+1, s.submit, s.run, s.cores, s.asked, s.user, s.user, s.queue, s.partition, s.after, s.think)
	}
	tr, err := trace.Read(strings.NewReader(b.String()), "test", int64(b.Len()), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Len() != len(specs) {
		t.Fatalf("%d jobs of %d: %+v", tr.Len(), len(specs), tr.Read)
	}
	return tr
}

// built returns a policy by its name or from the text of its fields in YAML.
func built(t *testing.T, text string) Config {
	t.Helper()
	if c, ok := builtIn(text); ok {
		return c
	}
	list, err := Parse([]byte("policies:\n- {name: test, " + text + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func play(t *testing.T, tr *trace.Trace, m *machine.Machine, c Config, o simulate.Options) *simulate.Schedule {
	t.Helper()
	s, err := simulate.Run(context.Background(), tr, m, New(c), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func cores(n int) string {
	return fmt.Sprintf("pools: [{nodes: [{count: %d, cores: 1}], place: any}]\n", n)
}

func TestSchedules(t *testing.T) {
	// 4 cores; # is job 1, and so on. EASY lets job 4 pass, which does not delay job 2,
	// the head, but job 3. Conservative backfilling does not.
	//
	//	        0    3      10        20   25        33   38
	//	EASY    1111111111112222222222                3333
	//	        1111111111112222222222                3333
	//	             444444444444444444444444444444444 3333
	//	                    2222222222                3333
	passing := []spec{{run: 10, cores: 2}, {submit: 1, run: 10, cores: 3}, {submit: 2, run: 5, cores: 4}, {submit: 3, run: 30}}
	// 4 cores: job 3 just fills the time before job 2, and job 4 then finds no core.
	//
	//	        0 2       10        20                  40
	//	EASY    1111111111122222222224444444444444444444
	//	        11111111111222222222 2
	//	        11111111111222222222 2
	//	          33333333 2222222222
	filling := []spec{{run: 10, cores: 3}, {submit: 1, run: 10, cores: 4}, {submit: 2, run: 8}, {submit: 3, run: 20}}
	// Jobs that end before their estimates.
	early := []spec{{run: 10, cores: 4, asked: 20}, {submit: 1, run: 10, cores: 4}, {submit: 2, run: 10, cores: 4}}
	// Job 1 ends at 10 s, 10 s before its estimate, at the moment when job 4 arrives. The
	// waiting job 3 gets its cores. Job 4, which would end at the planned start of job 3,
	// does not.
	arriving := []spec{{run: 10, cores: 3, asked: 20}, {run: 20}, {submit: 1, run: 10, cores: 3}, {submit: 10, run: 10, cores: 1}}
	// Waiting jobs plan with particular nodes; see below.
	planned := []spec{{run: 10, cores: 2}, {run: 40}, {run: 1}, {run: 10}, {submit: 2, run: 5, cores: 3}, {submit: 3, run: 15}}
	tests := []struct {
		name, policy, machine string
		estimates             string
		jobs                  []spec
		starts                []float64
	}{
		{"passing", "fcfs", cores(4), "", passing, []float64{0, 10, 20, 25}},
		{"passing", "easy", cores(4), "", passing, []float64{0, 10, 33, 3}},
		{"passing", "conservative", cores(4), "", passing, []float64{0, 10, 20, 25}},
		// By estimate, job 3 (5 s) comes before job 2 (10 s), and it needs all cores.
		{"passing", "sjf", cores(4), "", passing, []float64{0, 15, 10, 15}},
		{"filling", "fcfs", cores(4), "", filling, []float64{0, 10, 20, 20}},
		{"filling", "easy", cores(4), "", filling, []float64{0, 10, 2, 20}},
		{"filling", "conservative", cores(4), "", filling, []float64{0, 10, 2, 20}},
		{"filling", "sjf", cores(4), "", filling, []float64{0, 10, 2, 20}},
		{"early", "easy", cores(4), "", early, []float64{0, 10, 20}},
		{"early", "conservative", cores(4), "", early, []float64{0, 10, 20}},
		{"early", "order: fcfs, backfill: conservative, depth: 1", cores(4), "", early, []float64{0, 10, 20}},
		{"arriving", "conservative", cores(4), "", arriving, []float64{0, 0, 10, 20}},
		// The estimate decides: job 3 requests 9 s, which is too long to pass, and runs 3.
		{"asked", "easy", cores(2), "", []spec{{run: 10}, {submit: 1, run: 5, cores: 2}, {submit: 2, run: 3, asked: 9}}, []float64{0, 10, 15}},
		{"exact", "easy", cores(2), simulate.Exact, []spec{{run: 10}, {submit: 1, run: 5, cores: 2}, {submit: 2, run: 3, asked: 9}}, []float64{0, 10, 2}},
		// Two jobs of user 2 took 2 s each, so a third job that requests 9 s is expected to
		// take as long.
		{"learned", "easy", cores(2), simulate.Learned, []spec{{run: 2, user: 2, asked: 9}, {run: 2, user: 2, asked: 9}, {submit: 3, run: 10}, {submit: 4, run: 5, cores: 2}, {submit: 5, run: 3, asked: 9, user: 2}},
			[]float64{0, 0, 3, 13, 5}},
		// With Slurm, job 3 could pass job 2 at once, but the next pass is 30 s after the
		// one at 1 s.
		{"interval", "order: fcfs, backfill: slurm", cores(4), "", []spec{{run: 100, cores: 3}, {submit: 1, run: 10, cores: 4}, {submit: 2, run: 20}}, []float64{0, 100, 31}},
		// The job would end at 81 s, in the same minute as 100 s. With slots of 20 s, 100 s
		// is in the next slot but one. A job that would end at the start of job 2 does not
		// start either.
		{"resolution", "order: fcfs, backfill: slurm", cores(4), "", []spec{{run: 100, cores: 3}, {submit: 1, run: 10, cores: 4}, {submit: 2, run: 50}}, []float64{0, 100, 110}},
		{"resolution", "order: fcfs, backfill: slurm, resolution: 20s", cores(4), "", []spec{{run: 100, cores: 3}, {submit: 1, run: 10, cores: 4}, {submit: 2, run: 48}}, []float64{0, 100, 31}},
		{"resolution", "order: fcfs, backfill: slurm, resolution: 1s", cores(4), "", []spec{{run: 100, cores: 3}, {submit: 1, run: 10, cores: 4}, {submit: 2, run: 69}}, []float64{0, 100, 110}},
		{"slurm", "order: fcfs, backfill: slurm, interval: 1ms", cores(4), "", passing, []float64{0, 10, 20, 25}},
		// Fair share: user 1 has used the machine for 100 s, user 2 has not.
		{"tree", "order: multifactor, backfill: none, calc_period: 1s", cores(1), "", []spec{{run: 100}, {submit: 1, run: 10}, {submit: 2, run: 10, user: 2}}, []float64{0, 110, 100}},
		{"classic", "order: multifactor, backfill: none, calc_period: 1s, fair_share: classic", cores(1), "", []spec{{run: 100}, {submit: 1, run: 10}, {submit: 2, run: 10, user: 2}}, []float64{0, 110, 100}},
		// User 1 has used 10 s and user 2 has used 7, but user 1 has thirty times the shares.
		{"shares", "order: multifactor, backfill: none, calc_period: 1s, weights: {fair_share: 1000000}", cores(1) + "accounts: [{name: '1', shares: 30}, {name: '2', shares: 1}]\n", "",
			[]spec{{run: 2, user: 2}, {submit: 1, run: 10}, {submit: 13, run: 10, user: 2}, {submit: 13, run: 10}, {submit: 3, run: 5, user: 2}}, []float64{0, 2, 27, 17, 12}},
		{"big", "order: multifactor, backfill: none, weights: {size: 100}", cores(2), "", []spec{{run: 10, cores: 2}, {submit: 1, run: 10}, {submit: 2, run: 10, cores: 2}}, []float64{0, 20, 10}},
		{"small", "order: multifactor, backfill: none, weights: {size: 100}, favor_small: true", cores(2), "", []spec{{run: 10, cores: 2}, {submit: 1, run: 10, cores: 2}, {submit: 2, run: 10}}, []float64{0, 20, 10}},
		{"age", "order: multifactor, backfill: none, weights: {age: 1000000, qos: 1}, calc_period: 1s", cores(1) + "qos: [{name: high, priority: 1}]", "", []spec{{run: 10}, {submit: 1, run: 10}, {submit: 2, run: 10, queue: 2}}, []float64{0, 10, 20}},
		{"qos", "order: multifactor, backfill: none, weights: {qos: 1}", cores(1) + "qos: [{name: high, priority: 1}]", "", []spec{{run: 10}, {submit: 1, run: 10}, {submit: 2, run: 10, queue: 2}}, []float64{0, 20, 10}},
		{"partition", "order: multifactor, backfill: none, weights: {partition: 1}", cores(1) + "partitions: [{name: main}, {name: other, priority: 3}]", "", []spec{{run: 10}, {submit: 1, run: 10}, {submit: 2, run: 10, partition: 2}}, []float64{0, 20, 10}},
		{"tier", "fcfs", cores(1) + "qos: [{name: high, tier: 1}]", "", []spec{{run: 10}, {submit: 1, run: 10}, {submit: 2, run: 10, queue: 2}}, []float64{0, 20, 10}},
		// With limits, job 2 is held, and job 3 of another user is not.
		{"user limit", "fcfs", cores(4) + "user: {jobs: 1}", "", []spec{{run: 10}, {submit: 1, run: 10}, {submit: 2, run: 10, user: 2}}, []float64{0, 10, 2}},
		{"core limit", "conservative", cores(4) + "user: {cores: 2}", "", []spec{{run: 10, cores: 2}, {submit: 1, run: 10}, {submit: 2, run: 10, user: 2}}, []float64{0, 10, 2}},
		{"account limit", "easy", cores(4) + "account: {cores: 2}", "", []spec{{run: 10, cores: 2}, {submit: 1, run: 10}, {submit: 2, run: 10, user: 2}}, []float64{0, 10, 2}},
		{"qos limit", "easy", cores(4) + "qos: [{name: high, user: {jobs: 1}}]", "", []spec{{run: 10, queue: 2}, {submit: 1, run: 10, queue: 2}, {submit: 2, run: 10}}, []float64{0, 10, 2}},
		// With preemption, the test lists the last start of a job.
		{"requeue", "fcfs", cores(2) + "qos: [{name: high, tier: 1, preempts: [low]}, {name: low}]", "", []spec{{run: 10, cores: 2, queue: 3}, {submit: 3, run: 5, queue: 2}}, []float64{8, 3}},
		{"spared", "fcfs", cores(3) + "qos: [{name: high, tier: 1, preempts: [low]}, {name: low}]", "", []spec{{run: 10, queue: 3}, {submit: 1, run: 10, cores: 2, queue: 3}, {submit: 3, run: 5, cores: 2, queue: 2}}, []float64{0, 8, 3}},
		{"spared room", "easy", cores(3) + "qos: [{name: high, tier: 1, preempts: [low]}, {name: low}]", "", []spec{{run: 10, queue: 3}, {submit: 1, run: 10, cores: 2, queue: 3}, {submit: 3, run: 5, cores: 2, queue: 2}}, []float64{0, 8, 3}},
		// During the downtime from 10 to 20 s, a job that would run into it waits, or is
		// killed by it.
		{"planned", "fcfs", "pools: [{nodes: [{count: 2, cores: 1}], place: any, down: [{from: 10s, until: 20s}]}]", "", []spec{{run: 5}, {submit: 1, run: 15}, {submit: 2, run: 5}}, []float64{0, 20, 20}},
		{"planned", "easy", "pools: [{nodes: [{count: 2, cores: 1}], place: any, down: [{from: 10s, until: 20s}]}]", "", []spec{{run: 5}, {submit: 1, run: 15}, {submit: 2, run: 5}}, []float64{0, 20, 2}},
		{"planned", "conservative", "pools: [{nodes: [{count: 2, cores: 1}], place: any, down: [{from: 10s, until: 20s}]}]", "", []spec{{run: 5}, {submit: 1, run: 15}, {submit: 2, run: 5}}, []float64{0, 20, 2}},
		{"failure", "fcfs", "pools: [{nodes: [{count: 2, cores: 1}], place: any, down: [{from: 10s, until: 20s, count: 1, failure: true}]}]", "", []spec{{run: 15}, {submit: 1, run: 15}}, []float64{0, 15}},
		{"failure", "conservative", "pools: [{nodes: [{count: 2, cores: 1}], place: any, down: [{from: 10s, until: 20s, count: 1, failure: true}]}]", "", []spec{{run: 15}, {submit: 1, run: 15}}, []float64{0, 15}},
		// There are two nodes of 4 cores. Two jobs of 3 cores do not share one, and a job
		// of two nodes gets half of its cores on each.
		{"whole nodes", "fcfs", "pools: [{nodes: [{count: 2, cores: 4}], share: nodes}]", "", []spec{{run: 10}, {run: 10}, {run: 10}}, []float64{0, 0, 10}},
		{"shared nodes", "fcfs", "pools: [{nodes: [{count: 2, cores: 4}]}]", "", []spec{{run: 10}, {run: 10}, {run: 10}}, []float64{0, 0, 0}},
		// Job 5 waits for 3 nodes, which are there at 10 s, and job 6 would leave as many. But
		// of the runs 1 and 2, 4 and 5 that are free then, job 5 is to have the first and node 4,
		// which is all that is free now: job 6 gets node 5 at 10 s.
		//
		//	        0  3      10   15        25
		//	1       111111111155555
		//	2       111111111155555
		//	3       2222222222222222222222222222
		//	4       3         55555
		//	5       4444444444666666666666666
		{"adjacent", "order: fcfs, backfill: slurm, interval: 1ms, resolution: 1s", "pools: [{nodes: [{count: 5, cores: 1}], share: nodes, place: adjacent}]", "", planned, []float64{0, 0, 0, 0, 10, 10}},
		{"counted", "order: fcfs, backfill: slurm, interval: 1ms, resolution: 1s", "pools: [{nodes: [{count: 5, cores: 1}], share: nodes}]", "", planned, []float64{0, 0, 0, 0, 10, 3}},
		// With dependencies and think times, job 2 comes 5 s after the end of job 1.
		{"after", "easy", cores(4), "", []spec{{run: 10}, {run: 10, after: 1, think: 5}, {submit: 30, run: 1, after: 2}}, []float64{0, 15, 30}},
		{"no time", "easy", cores(1), "", []spec{{run: 0}, {run: 0}, {run: 5}, {run: 0}}, []float64{0, 0, 0, 5}},
	}
	for _, test := range tests {
		t.Run(test.name+"/"+test.policy, func(t *testing.T) {
			m, err := machine.Parse([]byte(test.machine))
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Partitions) == 1 {
				m.Partitions[0].Name = "main"
			}
			// Jobs are sorted by submission, so their numbers identify them.
			tr := workload(t, test.jobs)
			s := play(t, tr, m, built(t, test.policy), simulate.Options{Estimates: test.estimates})
			starts := make([]float64, tr.Len())
			for i := range starts {
				starts[tr.Number[i]-1] = s.Start[i].Seconds()
			}
			if !slices.Equal(starts, test.starts) {
				t.Errorf("starts %v, want %v", starts, test.starts)
			}
		})
	}
}

func TestPreempted(t *testing.T) {
	for how, want := range map[string][3]float64{machine.Requeue: {8, 18, 3}, machine.Resume: {8, 15, 0}, machine.Cancel: {0, 3, 3}} {
		m, err := machine.Parse([]byte(cores(2) + "qos: [{name: high, tier: 1, preempts: [low]}, {name: low, preempted: " + how + "}]"))
		if err != nil {
			t.Fatal(err)
		}
		tr := workload(t, []spec{{run: 10, cores: 2, queue: 3}, {submit: 3, run: 5, queue: 2}})
		s := play(t, tr, m, built(t, "easy"), simulate.Options{})
		got := [3]float64{s.Start[0].Seconds(), s.End[0].Seconds(), s.Lost[0].Seconds()}
		if got != want || s.Preemptions != 1 || s.Start[1] != 3*trace.Second {
			t.Errorf("%s: start, end, lost %v, want %v; job 2 at %v", how, got, want, s.Start[1])
		}
	}
}

func TestArrayLimit(t *testing.T) {
	tr := workload(t, []spec{{run: 10}, {run: 10}, {run: 10}, {run: 1}})
	tr.Arrays = []trace.Array{{Name: "a", Limit: 1}}
	tr.Array = []int32{0, 0, 0, -1}
	m, _ := machine.Parse([]byte(cores(4)))
	s := play(t, tr, m, built(t, "easy"), simulate.Options{})
	if want := []trace.Time{0, 10 * trace.Second, 20 * trace.Second, 0}; !slices.Equal(s.Start, want) {
		t.Errorf("starts %v, want %v", s.Start, want)
	}
}

func TestKilled(t *testing.T) {
	tr := workload(t, []spec{{run: 10, asked: 4}, {run: 3, asked: 4}})
	m, _ := machine.Parse([]byte(cores(1) + "kill: true"))
	s := play(t, tr, m, built(t, "fcfs"), simulate.Options{})
	if s.End[0] != 4*trace.Second || s.Start[1] != 4*trace.Second || s.Killed != 1 {
		t.Errorf("ends %v, starts %v, killed %d", s.End, s.Start, s.Killed)
	}
	m.Kill = false
	s = play(t, tr, m, built(t, "easy"), simulate.Options{})
	if s.End[0] != 10*trace.Second || s.Start[1] != 10*trace.Second || s.Overran != 1 {
		t.Errorf("ends %v, starts %v, overran %d", s.End, s.Start, s.Overran)
	}
}

func TestRefused(t *testing.T) {
	tr := workload(t, []spec{{run: 10, cores: 5}, {run: 1, after: 1}, {run: 1, partition: 2}, {run: 1, asked: 100}})
	m, _ := machine.Parse([]byte(cores(4) + "partitions: [{name: main, limit: 50s}, {name: third}]"))
	s := play(t, tr, m, built(t, "easy"), simulate.Options{})
	if want := []trace.Time{trace.Unknown, 0, trace.Unknown, trace.Unknown}; !slices.Equal(s.Start, want) {
		t.Errorf("starts %v, want %v", s.Start, want)
	}
	if len(s.Refused) != 3 {
		t.Errorf("refused: %v", s.Refused)
	}
}
