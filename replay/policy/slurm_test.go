package policy

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/slurmbox"
	"premix/replay/machine"
	"premix/replay/simulate"
	"premix/replay/trace"
)

// sleeper is a job for a real Slurm. Times are seconds.
type sleeper struct {
	submit, run float64
	limit       int // minutes, as Slurm has it
	cores       int
}

// The machine that a real Slurm and premix have.
const (
	boxNodes = 4
	boxCPUs  = 32
)

// comparison is what Slurm and premix made of the same jobs.
type comparison struct {
	jobs                       int
	agree                      float64 // part of the jobs that started in the same order
	real, replayed             float64 // mean wait, seconds
	far                        float64 // mean distance of starts, seconds
	waited                     int     // jobs that waited a second or longer
	overtook, replayedOvertook int     // jobs that started before one submitted earlier: in reality, in the replay
}

// compare has Slurm's sched/backfill run jobs, and the policy `slurm` replay what
// sacct tells of them.
func compare(t *testing.T, jobs []sleeper) comparison {
	t.Helper()
	if list := slurmbox.Missing(true); len(list) > 0 {
		t.Skipf("there is no %s: scripts/setup.sh test installs it", strings.Join(list, ", "))
	}
	dir, err := os.MkdirTemp("", "box") // sockets lie in it: their paths must be short
	if err != nil {
		t.Fatal(err)
	}
	box, err := slurmbox.Start(dir, slurmbox.Options{Nodes: boxNodes, CPUs: boxCPUs, Memory: 16000, Accounting: true,
		Config: "PriorityType=priority/basic\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,default_queue_depth=1000,bf_interval=1,bf_resolution=1,bf_max_job_test=1000,bf_continue"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Stop(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	begun := time.Now()
	for i, j := range jobs {
		time.Sleep(time.Until(begun.Add(time.Duration(j.submit * float64(time.Second)))))
		if out, err := box.Run("sbatch", fmt.Sprintf("--ntasks=%d", j.cores), fmt.Sprintf("--time=%d", j.limit), "--output=/dev/null", "--wrap", fmt.Sprintf("exec sleep %g", j.run)); err != nil {
			t.Fatalf("job %d: %v\n%s", i, err, out)
		}
	}
	dump := filepath.Join(dir, "sacct.txt")
	for deadline := time.Now().Add(20 * time.Minute); ; time.Sleep(time.Second) {
		out, err := box.Run("sacct", "--allusers", "-X", "--parsable2", "--starttime=now-1day", "--endtime=now", "--state=CD",
			"--format=jobid,partition,user,submit,eligible,start,end,elapsed,state,ncpus,timelimit")
		if err == nil && strings.Count(out, "\n") > len(jobs) {
			if err := os.WriteFile(dump, []byte(out), 0o666); err != nil {
				t.Fatal(err)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all jobs have ended: %v\n%s", err, out)
		}
	}
	tr, err := trace.Open(dump, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Len() != len(jobs) {
		t.Fatalf("%d jobs of %d: %+v", tr.Len(), len(jobs), tr.Read)
	}
	s := play(t, tr, machine.FromTrace(tr, boxNodes*boxCPUs), built(t, "order: fcfs, backfill: slurm, depth: 1000, interval: 1s"), simulate.Options{Estimates: simulate.Asked})
	c := comparison{jobs: tr.Len()}
	first := make([]trace.Time, tr.Len()) // when a job began in reality
	order := make([]int, tr.Len())
	for i := range order {
		order[i] = i
		first[i] = tr.Submit[i] + tr.Waited[i]
		c.real += tr.Waited[i].Seconds()
		c.replayed += (s.Start[i] - s.Eligible[i]).Seconds()
		c.far += math.Abs((s.Start[i] - first[i]).Seconds())
		if tr.Waited[i] >= trace.Second {
			c.waited++
		}
	}
	c.real, c.replayed, c.far = c.real/float64(c.jobs), c.replayed/float64(c.jobs), c.far/float64(c.jobs)
	// Slurm tells whole seconds: what began within one is in the order of the replay.
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(first[a], first[b]), cmp.Compare(s.Start[a], s.Start[b]), cmp.Compare(a, b))
	})
	starts := make([]trace.Time, len(order))
	for at, job := range order {
		starts[at] = s.Start[job]
	}
	c.agree = float64(longestRun(starts)) / float64(c.jobs)
	c.overtook, c.replayedOvertook = overtakers(first), overtakers(s.Start)
	t.Logf("%d jobs, %d waited; %.1f %% start in the same order; mean wait %.2f s, replayed %.2f s (%+.1f %%); starts are %.2f s apart; %d overtook, replayed %d",
		c.jobs, c.waited, 100*c.agree, c.real, c.replayed, 100*(c.replayed/c.real-1), c.far, c.overtook, c.replayedOvertook)
	if os.Getenv("PREMIX_KEEP") != "" {
		for at, job := range order {
			t.Logf("%3d: job %d, %d cores, submitted %g, began %g, replayed %g", at, tr.Number[job], tr.Cores[job], tr.Submit[job].Seconds(), first[job].Seconds(), s.Start[job].Seconds())
		}
	}
	return c
}

// longestRun is the length of the longest subsequence that does not descend.
func longestRun(list []trace.Time) int {
	var ends []trace.Time
	for _, v := range list {
		at, _ := slices.BinarySearchFunc(ends, v, func(e, v trace.Time) int {
			if e <= v {
				return -1
			}
			return 1
		})
		if at == len(ends) {
			ends = append(ends, v)
		} else {
			ends[at] = v
		}
	}
	return len(ends)
}

// overtakers counts the jobs that began before one that was submitted earlier.
func overtakers(starts []trace.Time) int {
	n, latest := 0, trace.Time(math.MinInt64)
	for _, at := range starts {
		if at < latest {
			n++
		}
		latest = max(latest, at)
	}
	return n
}

// A handful of jobs whose starts lie seconds apart: Slurm on a busy machine, too, must
// start them in the order that the replay says. The fourth is backfilled, the fifth is
// not, since it would delay the third.
func TestSlurmStartsThemInThisOrder(t *testing.T) {
	c := compare(t, []sleeper{
		{0, 16, 1, 96},
		{3, 22, 2, 24},
		{6, 4, 1, 128},
		{9, 6, 1, 8},
		{10, 6, 5, 8},
		{11, 5, 1, 128},
	})
	if c.agree != 1 || c.overtook != 1 || c.replayedOvertook != 1 {
		t.Errorf("got %+v", c)
	}
}

// Slurm and the replay of its accounting agree on 300 jobs of a real trace, of which
// hours are minutes: a window of NASA-iPSC, with arrivals so close that jobs wait.
func TestSlurmAgreesOnARealTrace(t *testing.T) {
	if os.Getenv("PREMIX_SOAK") == "" {
		t.Skip("it takes ten minutes: PREMIX_SOAK=1 runs it")
	}
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set: it is where the trace is")
	}
	tr, err := trace.Open(filepath.Join(data, "traces", "NASA-iPSC-1993-3.1-cln.swf.zip"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const first, n = 10_900, 300
	const arrivals, runs = 208, 165 // a second is so many of the trace
	var jobs []sleeper
	for i := first; i < first+n; i++ {
		run := max(1, math.Round(tr.Run[i].Seconds()/runs))
		jobs = append(jobs, sleeper{
			submit: (tr.Submit[i] - tr.Submit[first]).Seconds() / arrivals,
			run:    run,
			limit:  int(math.Ceil(run/60)) + i%4, // people ask for more than they need
			cores:  int(tr.Cores[i]),
		})
	}
	c := compare(t, jobs)
	if c.agree < 0.95 {
		t.Errorf("%.1f %% of the jobs started in the same order", 100*c.agree)
	}
	if math.Abs(c.replayed-c.real) > c.real/20 {
		t.Errorf("mean wait %g s, replayed %g s", c.real, c.replayed)
	}
	if c.waited < n/4 || c.overtook < n/20 {
		t.Errorf("%d jobs waited, %d overtook: this tells nothing", c.waited, c.overtook)
	}
}
