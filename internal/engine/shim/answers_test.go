package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/record"
)

// testWorker returns a worker of a new directory that runs no jobs.
func testWorker(t *testing.T) *worker {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := Make(dir, "/bin/false", "test", Config{Jobs: 4, Memory: 8 << 30}); err != nil {
		t.Fatal(err)
	}
	return openWorker(t, dir)
}

// openWorker returns a worker of a directory in the same state as work starts it.
func openWorker(t *testing.T, dir string) *worker {
	t.Helper()
	w := &worker{dir: dir, config: &Config{}, machine: machine{4, 8 << 30, &gres{total: queue.Resources{"gpu": 2, "tmpspace": 100}, sized: map[string]bool{"tmpspace": true}}}, wake: make(chan struct{}, 1), limits: local.NewLimits(), requests: make(map[string]int), wakes: newWakes(), warned: make(map[uint64]bool)}
	w.moved = sync.NewCond(&w.mu)
	var err error
	if w.q, err = queue.Open(dir, "test", false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.q.Close() })
	if w.steps, err = readSteps(dir, &w.mu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.steps.log.Close() })
	if w.changes, err = readChanges(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.changes.log.Close() })
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	w.states, _ = w.q.Moved(nil)
	return w
}

// said returns the answer to a command: its output, and then its errors after a !.
func (w *worker) said(line string) string {
	args, err := words(line)
	if err != nil {
		panic(err)
	}
	r := &request{Program: args[0], Args: toBytes(args[1:]), Dir: []byte("/data"), Env: toBytes([]string{"HOME=/home/ann", "PATH=/bin", "MINE=<0>"})}
	r.ID = fmt.Sprint(line, time.Now().UnixNano())
	a := w.answer(r)
	text := string(a.Stdout)
	if a.Exit != 0 {
		text += "!" + string(a.Stderr)
	}
	return strings.TrimSpace(text)
}

// ends settles the end of a job, as the engine does.
func (w *worker) ends(t *testing.T, id, exit int) {
	t.Helper()
	if err := w.q.Work(queue.LocalWorker); err != nil && !strings.Contains(err.Error(), "in use") {
		t.Fatal(err)
	}
	now := time.Now()
	r := &record.Task{Task: id, Try: 1, Started: now.Add(-90 * time.Second), Finished: now, Exit: exit, User: 1.5, MaxRSS: 5 << 20}
	if exit != 0 {
		r.Cause, r.Error = record.CauseExit, "exit"
	}
	if err := w.q.Settle([]*record.Task{r}); err != nil {
		t.Fatal(err)
	}
	w.runOnce()
}

// The programs answer as the programs of Slurm do. Each want is a regular expression for the whole
// answer.
func TestAnswers(t *testing.T) {
	w := testWorker(t)
	me, node := regexp.QuoteMeta(userName()), regexp.QuoteMeta(nodeName())
	for _, c := range []struct{ ask, want string }{
		{`sbatch -H -J one -c 2 --mem 1G -t 10 -p short -A lab --comment=why --wrap true`, `Submitted batch job 1`},
		{`sbatch --parsable -H -a 5-9:2 --wrap true`, `2`},
		{`sbatch --parsable -d afterok:2_7 --wrap true`, `5`},
		{`sbatch -d afterok:99 --wrap true`, `(?s)!sbatch: error: .*there is no job 99.*`},
		{`sbatch --parsable --clusters premix -b now+1hour --wrap true`, `6;premix`},
		{`sbatch -Q -H --nice=3 --wrap true`, ``},
		{`sbatch -c 64 --wrap true`, `(?s)!sbatch: error: .*Requested node configuration is not available.*`},
		{`sbatch -N 2 --wrap true`, `(?s)!sbatch: error: --nodes=2.*`},
		{`sbatch --frob --wrap true`, `(?s)!sbatch: error: .*frob.*`},
		{`sbatch --test-only -H --wrap true`, ``},
		{`squeue -h -o %i|%j|%t|%r|%C|%m|%l|%P|%a|%k -j 1`, `1\|one\|PD\|JobHeldUser\|2\|1G\|10:00\|short\|lab\|why`},
		{`squeue -h -o %i|%r`, `1\|JobHeldUser\n2_\[5-9:2\]\|JobHeldUser\n5\|Dependency\n6\|BeginTime\n7\|JobHeldUser`},
		{`squeue -h -r -o %i -j 2`, `2_5\n2_7\n2_9`},
		{`squeue -h -O jobid:4,arraytaskid:4 -r -j 2_7`, `3   7`},
		{`squeue -h -t R`, ``},
		{`squeue -t NOPE`, `(?s)!squeue: error: Invalid job state specified: NOPE.*`},
		{`squeue -j 99`, `(?s)!squeue: error: Invalid job id specified.*`},
		{`squeue extra`, `(?s)!squeue: error: Unrecognized option: extra.*`},
		{`sprio -h`, `1 +short +0 +0\n +2_\S+ +local +0 +0\n(?s).* 7 +local +-3 +0`},
		{`scontrol show job 3`, `(?s)JobId=3 ArrayJobId=2 ArrayTaskId=7 JobName=wrap\n.*StdOut=/data/slurm-2_7.out`},
		{`scontrol -o show job 1`, `JobId=1 JobName=one .*NumCPUs=2.*`},
		{`scontrol show job 99`, `(?s)!scontrol: error: .*Invalid job id.*`},
		{`scontrol show hostnames n[1-2,7]`, `n1\nn2\nn7`},
		{`scontrol show hostlist n1,n2,n7`, `n\[1-2,7\]`},
		{`scontrol ping`, `Slurmctld\(primary\) at ` + node + ` is UP`},
		{`scontrol update jobid=1 name=uno comment=other`, ``},
		{`scontrol update jobid=1 nodelist=n1`, `(?s)!scontrol: error: premix does not change nodelist.*`},
		{`scontrol update jobid=2_7 comment=seven`, ``},
		{`squeue -h -r -o %i|%j|%k -j 1,2`, `1\|uno\|other\n2_5\|wrap\|\(null\)\n2_7\|wrap\|seven\n2_9\|wrap\|\(null\)`},
		{`scontrol suspend 1`, `(?s)!scontrol: error: .*disabled.*`},
		{`scontrol frob`, `(?s)!scontrol: error: premix has no scontrol frob.*`},
		{`scontrol write batch_script 3 -`, `#!/bin/sh\ntrue`},
		{`sacct -n -P -X -S now-1day -j 1,2 -o jobid,jobidraw,state,exitcode,timelimit`, `1\|1\|PENDING\|0:0\|00:10:00\n2_5\|2\|PENDING\|0:0\|UNLIMITED\n2_7\|3\|PENDING\|0:0\|UNLIMITED\n2_9\|4\|PENDING\|0:0\|UNLIMITED`},
		{`sacct -o nope`, `(?s)!sacct: error: Invalid field requested: "nope".*`},
		{`sacct -n -j 3 --env-vars`, `(?s).*\nHOME=/home/ann\nMINE=<0>\nPATH=/bin\n.*SLURM_ARRAY_JOB_ID=2\n.*SLURM_ARRAY_TASK_ID=7\n.*SLURM_JOB_ID=3\n.*`},
		{`sstat 1`, `(?s)!sstat: error: couldn't get steps for job 1.*`},
		{`sstat`, `(?s)!sstat: error: You didn't give me any jobs to stat.*`},
		{`sinfo -h -o %P|%D|%c|%T`, `local\*?\|1\|4\|idle`},
		{`sshare -n -P`, `\|` + me + `\|1\|1.000000\|0\|0.000000\|1.000000`},
		{`sacctmgr -n -P show user format=user`, me},
		{`sacctmgr add user x`, `(?s)!sacctmgr: error: premix has no accounts to change.*`},
		{`scancel`, `(?s)!scancel: error: No job identification provided.*`},
		{`scancel 99`, `(?s)!scancel: error: Kill job error on job id 99: Invalid job id specified`},
		{`scancel -s FROB 1`, `(?s)!scancel: error: unknown signal "FROB".*`},
		{`scancel 2_[5,9]`, ``},
		{`squeue -h -r -o %i -j 2`, `2_7`},
		{`sbatch --parsable -H -d afterany:2 --kill-on-invalid-dep=yes --wrap true`, `8`},
	} {
		if got := w.said(c.ask); !regexp.MustCompile(`^(?:` + c.want + `)$`).MatchString(got) {
			t.Errorf("%s:\n%s\nwant\n%s", c.ask, got, c.want)
		}
	}
	w.ends(t, 3, 2)
	for _, c := range []struct{ ask, want string }{
		{`squeue -h -o %i|%r -j 5`, `5\|DependencyNeverSatisfied`},
		{`sacct -n -P -S now-1day -j 2_7 -o jobid,state,exitcode,elapsed,maxrss`, `2_7\|FAILED\|2:0\|00:01:30\|\n2_7.batch\|FAILED\|2:0\|00:01:30\|5120K`},
		{`squeue -h -t all -o %i|%T|%r -j 2_7`, `2_7\|FAILED\|NonZeroExitCode`},
		{`scontrol requeue 1`, `(?s)!scontrol: error: Job 1: Job is pending execution.*`},
		{`scontrol hold 2_7`, `(?s)!scontrol: error: Job 3: Job has already finished.*`},
		{`scontrol release 2`, `(?s)!scontrol: error: Job 2: Job has already finished.*`},
		{`scontrol release 1`, ``},
		{`squeue -h -o %i|%r -j 1`, `1\|Resources`},
	} {
		if got := w.said(c.ask); !regexp.MustCompile(`^(?:` + c.want + `)$`).MatchString(got) {
			t.Errorf("%s:\n%s\nwant\n%s", c.ask, got, c.want)
		}
	}
	// Later requests about the directory get the same answers.
	again := openWorker(t, w.dir)
	for _, ask := range []string{`squeue -h -r -o %i|%j|%k|%T`, `sacct -n -P -X -S now-1day -o jobid,jobidraw,state,comment,submit`, `scontrol show job 3`, `sacct -n -P -j 3 --batch-script`} {
		if got, want := again.said(ask), w.said(ask); got != want {
			t.Errorf("%s:\n%s\nwas\n%s", ask, got, want)
		}
	}
}

// An array with one line for each element, as earlier releases wrote it, is equal to an array in
// one line.
func TestArrayOfLines(t *testing.T) {
	lines, one := testWorker(t), testWorker(t)
	if got := one.said(`sbatch --parsable -a 1-7:3%2 -J a -o o-%a --wrap true`); got != "1" {
		t.Fatal(got)
	}
	b, err := lines.q.Submit(queue.BatchOptions{Options: queue.Options{Group: "a", Dir: "/data", Cores: 1}, Held: true})
	if err != nil {
		t.Fatal(err)
	}
	for at, index := range []int{1, 4, 7} {
		n := one.job(1).jobMeta
		old := *n
		old.Array, old.At, old.Index, old.Stdout = 3, at, index, fmt.Sprintf("/data/o-%d", index)
		old.Stderr = old.Stdout
		text, err := json.Marshal(&old)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Add(&queue.Spec{Argv: []string{"/bin/sh", "-c", "#!/bin/sh\ntrue\n", "slurm_script"}, Name: "a", Stdout: old.Stdout, Stderr: old.Stdout, Note: string(text)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := lines.follow(); err != nil {
		t.Fatal(err)
	}
	same := func() {
		t.Helper()
		for _, ask := range []string{`squeue -h -r -o %i|%A|%K|%T|%r`, `squeue -h -o %i|%r`, `scontrol show job 1_4`, `sacct -n -P -X -S now-1day -o jobid,jobidraw,state,submit`, `sacct -n -P -j 2 --batch-script`, `squeue -h -r -j 1_[4-9] -o %i`} {
			if got, want := lines.said(ask), one.said(ask); got != want || want == "" && !strings.Contains(ask, "squeue") {
				t.Errorf("%s:\n%s\nof one line:\n%s", ask, got, want)
			}
		}
	}
	same()
	for _, w := range []*worker{lines, one} {
		w.runOnce()
		if c := w.q.Census(1, 3); c.Held != 1 {
			t.Errorf("%d elements are held", c.Held)
		}
	}
	same()
	for _, ask := range []string{`scontrol hold 1_7`, `scancel 1_4`, `scontrol update jobid=1_1 comment=x`} {
		for _, w := range []*worker{lines, one} {
			if got := w.said(ask); got != "" {
				t.Errorf("%s: %s", ask, got)
			}
			w.runOnce()
		}
		same()
	}
	for _, w := range []*worker{lines, one} {
		if got := w.said(`scontrol release 1_7`); got != "" {
			t.Error(got)
		}
		if c := w.q.Census(1, 3); c.Held != 0 {
			t.Errorf("%d elements are held", c.Held)
		}
		w.ends(t, 1, 0)
		w.ends(t, 3, 1)
	}
}

// An array of 100,000 elements costs about as much as one job until elements begin.
func TestLargeArray(t *testing.T) {
	w := testWorker(t)
	for _, c := range [][2]string{
		{`sbatch --parsable -H --wrap true`, `1`},
		{`sbatch --parsable -a 1-100000%50 -d afterany:1 --wrap true`, `2`},
		{`sbatch --parsable -H -a 0-99999 --wrap true`, `100002`},
		{`squeue -h -o %i|%r`, "1|JobHeldUser\n2_[1-100000%50]|Dependency\n100002_[0-99999]|JobHeldUser"},
		{`scancel 2_[5-9] 100002_[1-99999]`, ``},
		{`squeue -h -o %i -j 2,100002`, "2_[1-4,10-100000%50]\n100002_[0]"},
	} {
		if got := w.said(c[0]); got != c[1] {
			t.Errorf("%s: %s; want %s", c[0], got, c[1])
		}
		w.runOnce()
	}
	kept := 0
	for _, b := range w.batches {
		kept += len(b.own)
	}
	if kept != 0 || len(w.batches) != 3 || len(w.blocked) != 3 {
		t.Errorf("%d elements have jobs, of %d batches, %d blocked", kept, len(w.batches), len(w.blocked))
	}
	size := int64(0)
	if err := filepath.WalkDir(w.dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if size > 1_000_000 {
		t.Errorf("they take %d bytes", size)
	}
	// 50 elements may run after the previous job has ended, and one more for each element that
	// ends.
	w.ends(t, 1, 0)
	open := func() int { c := w.q.Census(2, 100001); return c.Counts[queue.Waiting] - c.Held }
	if n := open(); n != 50 {
		t.Errorf("%d elements may run", n)
	}
	w.ends(t, 2, 0)
	if n := open(); n != 50 || w.q.Held(57) || !w.q.Held(58) {
		t.Errorf("%d elements may run", n)
	}
}

// Elements start in the order of their indices after the limit has changed.
func TestThrottle(t *testing.T) {
	w := testWorker(t)
	for _, ask := range []string{`sbatch -Q -a 1-40%1 --wrap true`, `scontrol update jobid=1 arraytaskthrottle=3`} {
		if got := w.said(ask); got != "" {
			t.Fatalf("%s: %s", ask, got)
		}
	}
	for range 2 {
		w.runOnce()
		if got := w.said(`squeue -h -r -o %K|%r -t PD`); !strings.HasPrefix(got, "1|Resources\n2|Resources\n3|Resources\n4|JobArrayTaskLimit\n") {
			t.Error(got)
		}
	}
}

// A worker is idle if its only jobs can never start.
func TestIdleWithInvalidElement(t *testing.T) {
	w := testWorker(t)
	for _, ask := range []string{`sbatch -Q -a 1-2 --wrap true`, `sbatch -Q -a 1-2 -d aftercorr:1 --wrap true`} {
		if got := w.said(ask); got != "" {
			t.Fatalf("%s: %s", ask, got)
		}
	}
	w.ends(t, 1, 1)
	w.ends(t, 2, 0)
	if w.idle() {
		t.Error("it is idle, and an element can run")
	}
	w.ends(t, 4, 0)
	if got := w.said(`squeue -h -r -o %i|%r`); got != "3_1|DependencyNeverSatisfied" || !w.idle() {
		t.Errorf("%s; idle: %v", got, w.idle())
	}
}

// Documents of many jobs are made job by job, and are equal to one document of all jobs.
func TestDocuments(t *testing.T) {
	w := testWorker(t)
	empty := map[string][]string{"json": {`squeue --json`, `sacct --json`}, "yaml": {`squeue --yaml`, `sacct --yaml`}}
	count := func(kind, ask string) int {
		t.Helper()
		var v struct {
			Errors []any
			Meta   map[string]any
			Jobs   []map[string]any
		}
		var err error
		if text := w.said(ask); kind == "json" {
			err = json.Unmarshal([]byte(text), &v)
		} else {
			err = yaml.Unmarshal([]byte(text), &v)
		}
		if err != nil || v.Jobs == nil || v.Errors == nil || v.Meta["plugin"] == nil {
			t.Fatalf("%s: %v, %+v", ask, err, v)
		}
		for i, j := range v.Jobs {
			if fmt.Sprint(j["job_id"]) != fmt.Sprint(i+1) || j["name"] != "a\nb: [" {
				t.Fatalf("%s: job %d is %v", ask, i+1, j)
			}
		}
		return len(v.Jobs)
	}
	for kind, asks := range empty {
		for _, ask := range asks {
			if n := count(kind, ask); n != 0 {
				t.Errorf("%s: %d jobs", ask, n)
			}
		}
	}
	if got := w.said("sbatch --parsable -H -a 1-300 -J 'a\nb: [' --wrap true"); got != "1" {
		t.Fatal(got)
	}
	for kind, asks := range empty {
		for _, ask := range asks {
			if n := count(kind, ask); n != 300 {
				t.Errorf("%s: %d jobs", ask, n)
			}
		}
	}
}
