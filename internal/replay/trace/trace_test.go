package trace

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, text string) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text), "test", int64(len(text)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

const swfText = `; MaxProcs: 64
; UnixStartTime: 1000
; Queue: 2 night
1 0 5 100 4 -1 -1 8 200 2048 1 7 3 -1 2 1 -1 -1
2 10.6 -1 50.5 -1 -1 -1 2 -1 -1 1 8 3 -1 0 1 1 30
3 5 -1 7 1 -1 -1 1 10 -1 1 7 3 -1 2 1 -1 -1 99 98
4 20 -1 -1 4 -1 -1 4 5 -1 5 1 1 -1 1 1 -1 -1
5 20 -1 10 4 -1 -1 4 5 -1 3 1 1 -1 1 1 -1 -1
6 20 -1 10 0 -1 -1 0 5 -1 1 1 1 -1 1 1 -1 -1
7 twenty -1 10 1 -1 -1 1 5 -1 1 1 1 -1 1 1 -1 -1
8 20 -1
`

func TestSWF(t *testing.T) {
	tr := read(t, swfText)
	if tr.Procs != 64 || tr.Begin != 1_000_000 || tr.Len() != 3 {
		t.Fatalf("%d cores, begin %d, %d jobs", tr.Procs, tr.Begin, tr.Len())
	}
	if want := []int64{1, 3, 2}; !slices.Equal(tr.Number, want) {
		t.Errorf("numbers %v, want %v", tr.Number, want)
	}
	if tr.Cores[0] != 4 || tr.Cores[2] != 2 || tr.Asked[0] != 200*Second || tr.Asked[2] != Unknown || tr.Run[2] != 50500 || tr.Submit[2] != 10600 {
		t.Errorf("cores %v, asked %v, run %v, submit %v", tr.Cores, tr.Asked, tr.Run, tr.Submit)
	}
	if tr.WaitedOf(0) != 5*Second || tr.WaitedOf(1) != Unknown || tr.MemoryOf(0) != 2 || tr.MemoryOf(1) != 0 {
		t.Errorf("waited %v, memory %v", tr.Waited, tr.Memory)
	}
	if before := tr.Before(2); !slices.Equal(before, []int32{0}) || tr.ThinkTime(2) != 30*Second {
		t.Errorf("job 2 comes after %v by %v", before, tr.ThinkTime(2))
	}
	if tr.QOSs.Names[tr.QOSOf(0)] != "night" || tr.User[0] != tr.User[1] || tr.User[0] == tr.User[2] {
		t.Errorf("names %v %v", tr.QOSs.Names, tr.User)
	}
	r := tr.Read
	if r.Bad != 3 || r.Out != 2 || len(r.First) != 3 || r.First[1].Line != 10 {
		t.Errorf("%+v", r)
	}
	if len(r.Notes) != 2 {
		t.Errorf("notes %q", r.Notes)
	}
}

// TestBlankLines checks that blank lines are skipped, and that only a long line is reported
// as long.
func TestBlankLines(t *testing.T) {
	job := "%d 0 5 100 4 -1 -1 8 200 2048 1 7 3 -1 2 1 -1 -1"
	tr := read(t, fmt.Sprintf("\n"+job+"\n\n \t \r\n\n"+job+"\n"+strings.Repeat(" ", maxLine+1<<20)+"\n"+job, 1, 2, 3))
	if tr.Len() != 3 || tr.Read.Bad != 1 || tr.Read.First[0] != (Line{7, "longer than 4 MiB"}) {
		t.Errorf("%d jobs, %+v", tr.Len(), tr.Read)
	}
}

// preceded returns a workload of n jobs. Each is recorded as a successor of job 1, which
// runs for ten hours, but the first early ones start before its end.
func preceded(n, early int) string {
	b := strings.Builder{}
	fmt.Fprintln(&b, "1 0 0 36000 1 -1 -1 1 36000 -1 1 1 1 -1 1 1 -1 -1")
	for i := 2; i <= n; i++ {
		submit, wait := 36000+i, 60
		if i < 2+early {
			submit, wait = 100+i, 10
		}
		fmt.Fprintf(&b, "%d %d %d 60 1 -1 -1 1 60 -1 1 1 1 -1 1 1 1 5\n", i, submit, wait)
	}
	return b.String()
}

func TestContradictedDependencies(t *testing.T) {
	for _, test := range []struct {
		n, early, left int
		note           string
	}{
		{200, 0, 199, ""},
		{201, 2, 198, "2 of 200 jobs started before the jobs ended that they are said to come after: their contradicted dependencies were ignored"},
		{201, 13, 0, "13 of 200 jobs started before the jobs ended that they are said to come after: all dependencies were ignored"},
	} {
		tr := read(t, preceded(test.n, test.early))
		if len(tr.After) != test.left || (tr.AfterAt == nil) != (test.left == 0) {
			t.Errorf("%d early: %d dependencies, want %d", test.early, len(tr.After), test.left)
		}
		if notes := strings.Join(tr.Read.Notes, "\n"); notes != test.note {
			t.Errorf("%d early: notes %q", test.early, notes)
		}
		for job := range tr.Len() {
			want := test.left > 0 && job > test.early
			if got := len(tr.Before(job)) > 0; got != want {
				t.Fatalf("%d early: job %d depends on others: %v", test.early, tr.Number[job], got)
			}
		}
	}
	// Because times are rounded to seconds, a job may begin a second before the end of
	// another.
	tr := read(t, "1 0 0 10 1 -1 -1 1 9 -1 1 1 1 -1 1 1 -1 -1\n2 0 9 10 1 -1 -1 1 9 -1 1 1 1 -1 1 1 1 0\n")
	if len(tr.After) != 1 || len(tr.Read.Notes) != 0 {
		t.Errorf("%v, %q", tr.After, tr.Read.Notes)
	}
}

func TestSWFAgain(t *testing.T) {
	tr := read(t, swfText)
	var b bytes.Buffer
	if err := tr.WriteSWF(&b, "a\nnote"); err != nil {
		t.Fatal(err)
	}
	again := read(t, b.String())
	if !slices.Equal(again.Number, tr.Number) || !slices.Equal(again.Cores, tr.Cores) || !slices.Equal(again.Asked, tr.Asked) || again.Begin != tr.Begin || again.Procs != tr.Procs {
		t.Errorf("written and read again:\n%s", &b)
	}
	if !slices.Equal(again.After, tr.After) || again.Read.Bad+again.Read.Out > 0 {
		t.Errorf("%+v", again.Read)
	}
}

const sacctText = `JobID|JobIDRaw|Partition|QOS|Account|User|Submit|Eligible|Start|End|Elapsed|State|NNodes|NCPUS|ReqMem|AllocTRES|Timelimit
10|10|main|normal|bio|anna|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-01T01:01:00|01:00:00|COMPLETED|2|8|16G|cpu=8,mem=16G,node=2|1-00:00:00
10.batch|10.batch||||||||2024-01-01T01:01:00|01:00:00|COMPLETED|1|4||cpu=4|
11_3|14|main|normal|bio|ben|2024-01-01T00:00:20|2024-01-01T00:00:20|2024-01-01T00:02:00|2024-01-01T00:02:30|00:00:30|FAILED|1|1|2Gc||UNLIMITED
11_[4-9%2]|11|main|normal|bio|ben|2024-01-01T00:00:20|2024-01-01T00:00:20|Unknown|Unknown|00:00:00|PENDING|1|1|2Gc||10:00
12|12|main|normal|bio|ben|2024-01-01T00:00:30|2024-01-01T00:00:30|2024-01-01T00:02:00|Unknown|00:10:00|RUNNING|1|1|0n||10:00
13|13|main|normal|bio|ben|yesterday||||00:10:00|FAILED|1|1|0n||10:00
15|15|main
`

func TestSacct(t *testing.T) {
	tr := read(t, sacctText)
	if tr.Len() != 2 || tr.Read.Bad != 2 || tr.Read.Out != 3 {
		t.Fatalf("%d jobs, %+v", tr.Len(), tr.Read)
	}
	if tr.Submit[1] != 10*Second || tr.Run[0] != Hour || tr.Waited[0] != 50*Second || tr.Asked[0] != Day || tr.Asked[1] != Unknown {
		t.Errorf("submit %v, run %v, waited %v, asked %v", tr.Submit, tr.Run, tr.Waited, tr.Asked)
	}
	if tr.Cores[0] != 8 || tr.NodesOf(0) != 2 || tr.MemoryOf(0) != 2048 || tr.MemoryOf(1) != 2048 || tr.ArrayOf(0) != -1 || tr.ArrayOf(1) != 0 || tr.Number[1] != 14 {
		t.Errorf("cores %v, nodes %v, memory %v, arrays %v", tr.Cores, tr.NodeCount, tr.Memory, tr.Array)
	}
}

// TestSacctNodes has a log of the jobs that ended in a time: job 1 ran before, and job 2
// waited. Job 4 was cancelled before it had nodes.
func TestSacctNodes(t *testing.T) {
	tr := read(t, `JobID|Partition|User|Submit|Eligible|Start|End|Elapsed|State|NNodes|NCPUS|NodeList
1|main|anna|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T00:10:00|00:09:50|COMPLETED|3|3|n[1-2],m1
2|main|anna|2024-01-01T00:00:05|2024-01-01T00:00:05|2024-01-01T00:10:00|2024-01-01T00:20:00|00:10:00|COMPLETED|1|4|n1
3|main|anna|2024-01-01T00:12:00|2024-01-01T00:12:00|2024-01-01T00:20:00|2024-01-01T00:21:00|00:01:00|COMPLETED|1|4|n1
4|main|anna|2024-01-01T00:13:00|2024-01-01T00:13:00|2024-01-01T00:20:30|2024-01-01T00:20:30|00:00:00|CANCELLED by 7|1|4|None assigned
`)
	var names []string
	for _, h := range tr.HostsOf(0) {
		names = append(names, tr.Hosts.Names[h])
	}
	if tr.Len() != 3 || tr.Read.Out != 1 || !slices.Equal(names, []string{"n1", "n2", "m1"}) || !slices.Equal(tr.HostsOf(1), tr.HostsOf(2)) {
		t.Fatalf("%d jobs, %+v, nodes %v", tr.Len(), tr.Read, names)
	}
	if tr.Since != 10*Minute || !tr.Given(0) || tr.Given(1) || tr.Given(2) {
		t.Errorf("since %v", tr.Since)
	}
	if notes := strings.Join(tr.Read.Notes, "\n"); !strings.Contains(notes, "1 jobs had started when the first job of the log ended") {
		t.Errorf("notes %s", notes)
	}
}

func TestSacctJSON(t *testing.T) {
	for name, text := range map[string]string{
		"objects": `{"meta": {}, "jobs": [{"job_id": 5, "account": "bio", "association": {"user": "anna"}, "partition": "main", "qos": "high", "state": {"current": ["COMPLETED"]},
			"array": {"job_id": 5, "limits": {"max": {"running": {"tasks": 3}}}},
			"time": {"submission": 100, "eligible": 100, "start": 160, "end": 220, "elapsed": 60, "limit": {"set": true, "infinite": false, "number": 30}},
			"tres": {"allocated": [{"type": "mem", "count": 4096}, {"type": "cpu", "count": 4}]}}, {"job_id": 6, "time": {"submission": 100, "start": 0}}, 7]}`,
		"numbers": `{"jobs": [{"job_id": 5, "account": "bio", "user": "anna", "partition": "main", "qos": "high", "state": {"current": "COMPLETED"},
			"array": {"job_id": 5, "limits": {"max": {"running": {"tasks": 3}}}},
			"time": {"submission": 100, "start": 160, "end": 220, "elapsed": 60, "limit": 30}, "required": {"CPUs": 4, "memory_per_cpu": 1024}}, {"job_id": 6, "time": {"submission": 100, "start": 0}}, "x"]}`,
	} {
		tr := read(t, text)
		if tr.Len() != 1 || tr.Read.Bad != 1 || tr.Read.Out != 1 {
			t.Fatalf("%s: %d jobs, %+v", name, tr.Len(), tr.Read)
		}
		if tr.Cores[0] != 4 || tr.MemoryOf(0) != 1024 || tr.Asked[0] != 30*Minute || tr.Run[0] != Minute || tr.Waited[0] != Minute || tr.Users.Names[0] != "anna" || tr.Arrays[0].Limit != 3 {
			t.Errorf("%s: %+v", name, tr)
		}
	}
}

func TestNextflow(t *testing.T) {
	tr := read(t, "task_id\tname\tstatus\texit\tsubmit\tduration\trealtime\t%cpu\tpeak_rss\n"+
		"1\tALIGN (a)\tCOMPLETED\t0\t2024-01-01 00:00:00.500\t1m 30s\t1m 10.5s\t250.1%\t1.5 GB\n"+
		"2\tALIGN (b)\tCACHED\t0\t2024-01-01 00:00:01.000\t1m\t1m\t90%\t10 MB\n"+
		"3\tSORT (a)\tFAILED\t1\t1704067210000\t2500\t1200\t90%\t1048576\n"+
		"4\tSORT (b)\tFAILED\t1\tnever\t-\t-\t-\t-\n")
	if tr.Len() != 2 || tr.Read.Bad != 1 || tr.Read.Out != 1 {
		t.Fatalf("%d jobs, %+v", tr.Len(), tr.Read)
	}
	if tr.Run[0] != 70500 || tr.Cores[0] != 3 || tr.MemoryOf(0) != 512 || tr.Run[1] != 1200 || tr.MemoryOf(1) != 1 || tr.Submit[1] != 9500 || tr.Accounts.Names[0] != "ALIGN" {
		t.Errorf("run %v, cores %v, memory %v, submit %v, %v", tr.Run, tr.Cores, tr.Memory, tr.Submit, tr.Accounts.Names)
	}
}

func TestWfInstances(t *testing.T) {
	for name, text := range map[string]string{
		"1.4": `{"name": "w", "workflow": {"tasks": [{"name": "a", "id": "1", "runtimeInSeconds": 1.5, "cores": 2, "parents": []}, {"name": "b", "id": "2", "runtimeInSeconds": 3, "avgCPU": 150, "parents": ["a"]},
			{"name": "c", "id": "3", "runtimeInSeconds": 1, "parents": ["1", "b", "gone"]}, {"name": "d", "id": "4"}], "machines": [{"cpu": {"count": 8}}]}}`,
		"1.5": `{"name": "w", "workflow": {"specification": {"tasks": [{"name": "a", "id": "1", "parents": []}, {"name": "b", "id": "2", "parents": ["1"]}, {"name": "c", "id": "3", "parents": ["1", "2", "9"]}, {"name": "d", "id": "4"}]},
			"execution": {"tasks": [{"id": "1", "runtimeInSeconds": 1.5, "coreCount": 2}, {"id": "2", "runtimeInSeconds": 3, "avgCPU": 150}, {"id": "3", "runtimeInSeconds": 1}], "machines": [{"cpu": {"coreCount": 8}}]}}}`,
	} {
		tr := read(t, text)
		if tr.Len() != 3 || tr.Read.Bad != 1 || tr.Procs != 8 {
			t.Fatalf("%s: %d jobs, %d cores, %+v", name, tr.Len(), tr.Procs, tr.Read)
		}
		if !slices.Equal(tr.Before(2), []int32{0, 1}) || !slices.Equal(tr.Cores, []int32{2, 2, 1}) || tr.Run[0] != 1500 {
			t.Errorf("%s: after %v, cores %v, run %v", name, tr.Before(2), tr.Cores, tr.Run)
		}
	}
}

func TestCircle(t *testing.T) {
	tr := read(t, "1 0 -1 1 1 -1 -1 1 1 -1 1 1 1 -1 1 1 2 0\n2 0 -1 1 1 -1 -1 1 1 -1 1 1 1 -1 1 1 1 0\n3 0 -1 1 1 -1 -1 1 1 -1 1 1 1 -1 1 1 2 0\n")
	if len(tr.Before(0))+len(tr.Before(1))+len(tr.Before(2)) > 0 || len(tr.Read.Notes) == 0 {
		t.Errorf("after %v, notes %q", tr.After, tr.Read.Notes)
	}
}

func TestCompressed(t *testing.T) {
	dir := t.TempDir()
	var z, g bytes.Buffer
	w := gzip.NewWriter(&g)
	w.Write([]byte(swfText))
	w.Close()
	a := zip.NewWriter(&z)
	f, _ := a.Create("in.swf")
	f.Write([]byte(swfText))
	a.Close()
	for name, content := range map[string][]byte{"a.gz": g.Bytes(), "b.zip": z.Bytes(), "c": []byte(swfText)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o666); err != nil {
			t.Fatal(err)
		}
		if tr, err := Open(path, Options{}); err != nil || tr.Len() != 3 {
			t.Errorf("%s: %v", name, err)
		}
	}
	cut := filepath.Join(dir, "cut.gz")
	if err := os.WriteFile(cut, g.Bytes()[:g.Len()/2], 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cut, Options{}); err == nil {
		t.Error("half a file is read")
	}
}

// TestReal reads the real traces.
func TestReal(t *testing.T) {
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set: no real traces")
	}
	for name, want := range map[string]int{"LCG.swf.gz": 188041, "NASA-iPSC-1993-3.1-cln.swf.zip": 18239, "slurm_sacct_phillips.log": 4046, "nextflow/rnaseq-dirt02-001.json": 197} {
		tr, err := Open(filepath.Join(data, "traces", name), Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		if tr.Len() != want || tr.Read.Bad > 0 {
			t.Errorf("%s: %d jobs, want %d; %+v", name, tr.Len(), want, tr.Read)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(swfText))
	f.Add([]byte(sacctText))
	f.Add([]byte(`{"jobs": [{"job_id": 5, "time": {"submission": 100, "start": 160, "end": 220}, "required": {"CPUs": 4}}]}`))
	f.Add([]byte(`{"workflow": {"tasks": [{"name": "a", "runtime": 1, "parents": ["a"]}]}}`))
	f.Add([]byte("task_id\tstatus\tsubmit\trealtime\n1\tCOMPLETED\t100\t1s\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Read(bytes.NewReader(b), "fuzz", int64(len(b)), Options{})
		if err != nil {
			return
		}
		n := tr.Len()
		for _, l := range []int{len(tr.Number), len(tr.Run), len(tr.Asked), len(tr.Cores), len(tr.User), len(tr.Account), len(tr.Partition)} {
			if l != n {
				t.Fatalf("columns of %d and %d jobs", n, l)
			}
		}
		if !slices.IsSorted(tr.Submit) {
			t.Fatal("not in order of submission")
		}
		for i := range n {
			if tr.Cores[i] < 1 || tr.Run[i] < 0 || tr.Asked[i] < Unknown || int(tr.User[i]) >= len(tr.Users.Names) || int(tr.QOSOf(i)) >= len(tr.QOSs.Names) {
				t.Fatalf("job %d: %v", i, fmt.Sprint(tr.Cores[i], tr.Run[i], tr.Asked[i]))
			}
		}
	})
}
