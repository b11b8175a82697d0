package scheduling

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

	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
	"premix/internal/testkit/shortdir"
	"premix/internal/testkit/slurmtest"
)

// sleeper is a job for a real Slurm. Times are in seconds.
type sleeper struct {
	submit, run float64
	limit       int // in minutes, as in Slurm
	nodes       int
}

// boxNodes is the number of nodes of the Slurm. Each has one core, because its backfilling
// plans whole nodes.
const boxNodes = 32

// comparison is the result of the same jobs in Slurm and in premix.
type comparison struct {
	agree                  float64 // fraction of the jobs that started in the same order
	wait, replayedWait     float64 // means in seconds
	waited                 int     // jobs that waited longer than every job needs to start
	passed, replayedPassed int     // jobs that started before an earlier submission
}

// compare runs jobs with Slurm's sched/backfill, and replays their records from sacct with
// the policy slurm.
func compare(t *testing.T, jobs []sleeper) comparison {
	t.Helper()
	if list := slurmtest.Missing(true); len(list) > 0 {
		t.Skipf("there is no %s: scripts/setup.sh test installs it", strings.Join(list, ", "))
	}
	box, err := slurmtest.Start(shortdir.New(t), slurmtest.Options{Nodes: boxNodes, CPUs: 1, Accounting: true,
		Config: "PriorityType=priority/basic\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,default_queue_depth=1000,bf_interval=1,bf_resolution=1,bf_max_job_test=1000,bf_max_time=30,bf_continue,bf_window_linear=1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Stop(); err != nil {
			t.Error(err)
		}
	})
	// Slurm's daemons need a moment between the end of a job and the start of the next,
	// which their accounting does not report. Jobs that each need all nodes show it. There
	// are 24 of them because the accounting has a resolution of one second.
	var alone []sleeper
	for range 24 {
		alone = append(alone, sleeper{0, 2, 1, boxNodes})
	}
	pause := runIn(t, box, alone)
	gaps := 0.0
	for i := 1; i < pause.Len(); i++ {
		gaps += (began(pause, i) - began(pause, i-1) - pause.Run[i-1]).Seconds()
	}
	overhead := max(0, gaps/float64(pause.Len()-1))

	tr := runIn(t, box, jobs)
	m := machine.FromTrace(tr, boxNodes)
	m.Pools[0].Share, m.Pools[0].Place = "nodes", "adjacent" // as Slurm plans
	m.Overhead = machine.Span(overhead * float64(trace.Second))
	s := play(t, tr, m, built(t, "order: fcfs, backfill: slurm, depth: 1000, interval: 1s, resolution: 1s"), simulate.Options{Estimates: simulate.Asked})
	var c comparison
	first := make([]trace.Time, tr.Len()) // recorded starts of the jobs
	order := make([]int, tr.Len())
	for i := range order {
		order[i] = i
		first[i] = began(tr, i)
		c.wait += tr.Waited[i].Seconds() / float64(tr.Len())
		c.replayedWait += (s.Start[i] - s.Eligible[i]).Seconds() / float64(tr.Len())
		if tr.Waited[i].Seconds() > overhead+2 {
			c.waited++
		}
	}
	// Slurm records whole seconds: jobs that began within the same second are in the order
	// of the replay.
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(first[a], first[b]), cmp.Compare(s.Start[a], s.Start[b]), cmp.Compare(a, b))
	})
	starts := make([]trace.Time, len(order))
	for at, job := range order {
		starts[at] = s.Start[job]
	}
	c.agree = float64(longestRun(starts)) / float64(tr.Len())
	c.passed, c.replayedPassed = overtakers(first), overtakers(s.Start)
	t.Logf("%d jobs, %d waited; %.2f s pass between two jobs; %.1f %% start in the same order; mean wait %.2f s, replayed %.2f s (%+.1f %%); %d overtook, replayed %d",
		tr.Len(), c.waited, overhead, 100*c.agree, c.wait, c.replayedWait, 100*(c.replayedWait/c.wait-1), c.passed, c.replayedPassed)
	if path := os.Getenv("PREMIX_KEEP"); path != "" {
		var b strings.Builder
		for _, job := range order {
			fmt.Fprintf(&b, "%d\t%d\t%g\t%g\t%g\t%g\t%g\n", tr.Number[job], tr.Cores[job], tr.Submit[job].Seconds(), tr.Run[job].Seconds(), tr.Asked[job].Seconds(), first[job].Seconds(), s.Start[job].Seconds())
		}
		if err := os.WriteFile(path, []byte(b.String()), 0o666); err != nil {
			t.Error(err)
		}
	}
	return c
}

// began returns the recorded start of a job.
func began(t *trace.Trace, job int) trace.Time { return t.Submit[job] + t.Waited[job] }

// runIn runs jobs to their end in Slurm, and reads its accounting.
func runIn(t *testing.T, box *slurmtest.Box, jobs []sleeper) *trace.Trace {
	t.Helper()
	started := time.Now()
	var ids []string
	for i, j := range jobs {
		time.Sleep(time.Until(started.Add(time.Duration(j.submit * float64(time.Second)))))
		out, err := box.Run("sbatch", "--parsable", fmt.Sprintf("--nodes=%d", j.nodes), fmt.Sprintf("--time=%d", j.limit), "--output=/dev/null", "--wrap", fmt.Sprintf("exec sleep %g", j.run))
		if err != nil {
			t.Fatalf("job %d: %v\n%s", i, err, out)
		}
		ids = append(ids, strings.TrimSpace(out))
	}
	dump := filepath.Join(box.Dir, "sacct.txt")
	for deadline := time.Now().Add(90 * time.Minute); ; time.Sleep(time.Second) {
		out, err := box.Run("sacct", "--jobs="+strings.Join(ids, ","), "-X", "--parsable2", "--state=CD", "--starttime=now-1day", "--endtime=now",
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
	return tr
}

// longestRun returns the length of the longest subsequence that does not descend.
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

// overtakers counts the jobs that began before a job that was submitted earlier.
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

// The starts of these jobs are seconds apart, so even Slurm on a busy machine must start
// them in the order of the replay. The fourth job is backfilled. The fifth is not, because
// it would delay the third.
func TestSlurmStartsThemInThisOrder(t *testing.T) {
	t.Parallel() // the test waits for sleeping jobs
	c := compare(t, []sleeper{
		{0, 16, 1, 24},
		{3, 22, 2, 6},
		{6, 4, 1, 32},
		{9, 6, 1, 2},
		{10, 6, 5, 2},
		{11, 5, 1, 32},
	})
	if c.agree != 1 || c.passed != 1 || c.replayedPassed != 1 {
		t.Errorf("got %+v", c)
	}
}

// Slurm and the replay of its accounting agree on 300 jobs of the real trace NASA-iPSC, in
// which an hour is shortened to a minute. They are the jobs from one position on that ran
// for two minutes or longer, on a quarter of the trace's nodes. They arrive so fast that
// nearly half of them wait, and one in six overtakes others. Slurm checks its queue once a
// second, so shorter jobs would measure this interval, and so would a crowd in which most
// jobs overtake.
func TestSlurmAgreesOnARealTrace(t *testing.T) {
	if os.Getenv("PREMIX_SOAK") == "" {
		t.Skip("it takes 50 minutes: PREMIX_SOAK=1 runs it")
	}
	t.Parallel()
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set: it is where the trace is")
	}
	tr, err := trace.Open(filepath.Join(data, "traces", "NASA-iPSC-1993-3.1-cln.swf.zip"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n, load = 300, 0.7
	limits := []int{5, 10, 15, 20, 30, 60} // the requests of users are larger than their needs
	var jobs []sleeper
	work, first, last := 0.0, trace.Time(0), trace.Time(0)
	for i := 15_000; len(jobs) < n; i++ {
		if tr.Run[i] < 2*trace.Minute {
			continue
		}
		j := sleeper{
			submit: tr.Submit[i].Seconds(),
			run:    math.Round(tr.Run[i].Seconds() / 60),
			limit:  limits[7*len(jobs)%len(limits)],
			nodes:  int(tr.Cores[i]+3) / 4,
		}
		for float64(60*j.limit) < j.run {
			j.limit *= 2
		}
		if len(jobs) == 0 {
			first = tr.Submit[i]
		}
		last = tr.Submit[i]
		work += j.run * float64(j.nodes)
		jobs = append(jobs, j)
	}
	slower := (last - first).Seconds() / (work / boxNodes / load)
	for i := range jobs {
		jobs[i].submit = (jobs[i].submit - first.Seconds()) / slower
	}
	c := compare(t, jobs)
	if c.agree < 0.95 {
		t.Errorf("%.1f %% of the jobs started in the same order", 100*c.agree)
	}
	if math.Abs(c.replayedWait-c.wait) > c.wait/20 {
		t.Errorf("mean wait %g s, replayed %g s", c.wait, c.replayedWait)
	}
	if c.waited < n/4 || c.passed < n/20 {
		t.Errorf("%d jobs waited, %d overtook: this tells nothing", c.waited, c.passed)
	}
}
