package batch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/kit/exit"
	"premix/internal/testkit/fakebatch"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, out string
		want      listing
		bad       bool
	}{
		{"lsf", "101|1|RUN|premix-a[1]|n1|-|-\n101|2|PEND|premix-a[2]|-|-|New job is waiting for scheduling;\n102|0|EXIT|premix-b|4*n2|TERM_PREEMPT: job was killed|-\n103|0|DONE|other|n3|-|-\n104|3|PSUSP|premix-c[3]|-|-|Held | by user;\n", listing{
			{Number: "101", Index: 1, Name: "premix-a", Phase: pilot.Running, Word: "RUN", Node: "n1"},
			{Number: "101", Index: 2, Name: "premix-a", Phase: pilot.Pending, Word: "PEND", Reason: "LSF says New job is waiting for scheduling"},
			{Number: "102", Index: none, Name: "premix-b", Phase: pilot.Ended, Word: "EXIT", Node: "4*n2", Reason: "TERM_PREEMPT: job was killed", Blameless: true},
			{Number: "104", Index: 3, Name: "premix-c", Phase: pilot.Pending, Word: "PSUSP", Reason: lsfStates["PSUSP"].reason},
		}, false},
		{"lsf", "", nil, false},
		{"lsf", "JOBID USER STAT\n", nil, true},
		{"lsf", "1|0|NEW|premix-a|-|-|-\n", nil, true},
		{"pbs", "\nsrv:\n     Req'd  Req'd   Elap\nJob ID  Username Queue Jobname SessID NDS TSK Memory Time S Time\n------\n" +
			"12[].srv  u workq premix-AB12cd34 -- 1 1 -- -- B --  --\n12[0].srv u workq premix-AB12cd34 77 1 1 -- -- R 00:01 n1/0*2\n12[1].srv u workq premix-AB12cd34 -- 1 1 -- -- Q -- --\n12[2].srv u workq premix-AB12cd34 -- 1 1 -- -- X -- --\n13.srv.very.lon* u workq premix-b -- 1 1 -- -- H -- --\n14.srv u workq other -- 1 1 -- -- Z -- --\n", listing{
			{Number: "12", Index: 0, Name: "premix-AB12cd34", Phase: pilot.Running, Word: "R", Node: "n1"},
			{Number: "12", Index: 1, Name: "premix-AB12cd34", Phase: pilot.Pending, Word: "Q", Reason: pbsStates["Q"].reason},
			{Number: "12", Index: 2, Name: "premix-AB12cd34", Phase: pilot.Ended, Word: "X", Reason: "it ended"},
			{Number: "13", Index: none, Name: "premix-b", Phase: pilot.Pending, Word: "H", Reason: pbsStates["H"].reason},
		}, false},
		{"pbs", "12.srv u workq premix-a -- 1 1 -- -- ? --\n", nil, true},
		{"pbs", "12.srv u workq premix-a\n", nil, true},
		{"sge", `<job_info><queue_info><job_list><JB_job_number>7</JB_job_number><JB_name>premix-a</JB_name><state>r</state><queue_name>all.q@n1</queue_name><tasks>1</tasks></job_list></queue_info>` +
			`<job_info><job_list><JB_job_number>7</JB_job_number><JB_name>premix-a</JB_name><state>qw</state><queue_name></queue_name><tasks>2-6:2,9</tasks></job_list>` +
			`<job_list><JB_job_number>8</JB_job_number><JB_name>premix-b</JB_name><state>Eqw</state></job_list><job_list><JB_job_number>9</JB_job_number><JB_name>x</JB_name><state>qw</state></job_list></job_info></job_info>`, listing{
			{Number: "7", Index: 1, Name: "premix-a", Phase: pilot.Running, Word: "r", Node: "n1"},
			{Number: "7", Index: 2, Name: "premix-a", Phase: pilot.Pending, Word: "qw", Reason: "it is queued"},
			{Number: "7", Index: 4, Name: "premix-a", Phase: pilot.Pending, Word: "qw", Reason: "it is queued"},
			{Number: "7", Index: 6, Name: "premix-a", Phase: pilot.Pending, Word: "qw", Reason: "it is queued"},
			{Number: "7", Index: 9, Name: "premix-a", Phase: pilot.Pending, Word: "qw", Reason: "it is queued"},
			{Number: "8", Index: none, Name: "premix-b", Phase: pilot.Pending, Word: "Eqw", Reason: "it could not be started (qstat -j 8)", Stuck: true},
		}, false},
		{"sge", "error: commlib error\n", nil, true},
		{"sge", "<job_info><job_info><job_list><JB_job_number>7</JB_job_number><JB_name>premix-a</JB_name><state>qw</state><tasks>1-99999999999:1</tasks></job_list></job_info></job_info>", nil, true},
	} {
		for i := range dialects {
			if dialects[i].name != c.name {
				continue
			}
			got, err := dialects[i].parse(c.out)
			if !reflect.DeepEqual(got, c.want) || (err != nil) != c.bad {
				t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
			}
		}
	}
}

// scene is an engine with a simulated batch system.
type scene struct {
	*Engine
	state string
}

func newScene(t *testing.T, name string, options map[string]string) *scene {
	t.Helper()
	bin, state, err := fakebatch.Install(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("FAKE_BATCH", state)
	t.Setenv("PREMIX_HOME", t.TempDir())
	e, err := New(name, options)
	if err != nil {
		t.Fatal(err)
	}
	return &scene{e, state}
}

func (s *scene) mark(t *testing.T, name string, set bool) {
	t.Helper()
	path := filepath.Join(s.state, name)
	err := os.Remove(path)
	if set {
		err = os.WriteFile(path, []byte("no such queue"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// until polls the status of jobs until is returns true for all of them.
func (s *scene) until(t *testing.T, ids []string, is func(pilot.Status) bool) {
	t.Helper()
	var st map[string]pilot.Status
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		st, err = s.Status(context.Background(), ids)
		all := err == nil && len(st) == len(ids)
		for _, one := range st {
			all = all && is(one)
		}
		if all {
			return
		}
	}
	t.Fatalf("%v %v", st, err)
}

// The jobs of a wave run, wait, are found again, are refused and are cancelled, as an array and as
// a single job.
func TestWave(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) { testWave(t, name) })
	}
}

func testWave(t *testing.T, name string) {
	s := newScene(t, name, map[string]string{"premix": "/bin/echo", "poll": "1ms", "q": "short"})
	dir := t.TempDir()
	wave := func(token string, jobs, cores int) *pilot.Wave {
		w := &pilot.Wave{Number: 7, Token: token, Dir: dir, Log: filepath.Join(dir, "log of $JOB's %J"), Target: time.Minute}
		for range jobs {
			w.Shares = append(w.Shares, pilot.Share{Cores: cores, Memory: 64 << 20})
		}
		return w
	}
	ctx := context.Background()
	over := func(st pilot.Status) bool { return st.Phase >= pilot.Ended }
	ids, err := s.Submit(ctx, wave("AAAAAAAA", 3, 2))
	if err != nil || len(ids) != 3 {
		t.Fatal(ids, err)
	}
	s.until(t, ids, over)
	one, err := s.Submit(ctx, wave("BBBBBBBB", 1, 1))
	if err != nil || len(one) != 1 {
		t.Fatal(one, err)
	}
	s.until(t, one, over)
	text, err := os.ReadFile(filepath.Join(dir, "log of $JOB's %J"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--index 0 -j 2 --memory 64M", "--index 1 -j 2", "--index 2 -j 2", "--index 0 -j 1"} {
		if !strings.Contains(string(text), "task work "+dir+" --engine "+name+" --wave 7 "+want) {
			t.Errorf("no job ran with %s: %s", want, text)
		}
	}

	s.mark(t, "hold", true)
	held := wave("CCCCCCCC", 3, 1)
	if ids, err = s.Submit(ctx, held); err != nil {
		t.Fatal(err)
	}
	s.until(t, ids, func(st pilot.Status) bool { return st.Phase == pilot.Pending && st.Reason != "" })
	if again, err := s.Find(ctx, held); err != nil || !reflect.DeepEqual(again, ids) {
		t.Errorf("%v is found as %v, %v", ids, again, err)
	}
	// A job with another name and the same number is not cancelled.
	stranger := strings.Replace(ids[0], "CCCCCCCC", "DDDDDDDD", 1)
	if err := s.Cancel(ctx, []string{stranger, ids[1], ids[2]}); err != nil {
		t.Fatal(err)
	}
	s.until(t, ids[1:], over)
	s.until(t, ids[:1], func(st pilot.Status) bool { return st.Phase == pilot.Pending })
	if err := s.Cancel(ctx, ids); err != nil {
		t.Fatal(err)
	}
	s.until(t, ids, over)

	s.mark(t, "refuse", true)
	var refused *pilot.RefusedError
	if _, err := s.Submit(ctx, wave("EEEEEEEE", 2, 1)); !errors.As(err, &refused) || refused.Reason != "no such queue" {
		t.Error(err)
	}
	s.mark(t, "down", true)
	if _, err := s.Submit(ctx, wave("FFFFFFFF", 2, 1)); err == nil || errors.As(err, &refused) {
		t.Error(err)
	}
	if err := s.Reach(ctx, dir); err == nil {
		t.Error("a system that is down answers")
	}
}

// A running job ends when it is cancelled.
func TestCancelRunning(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			long := filepath.Join(dir, "long")
			if err := os.WriteFile(long, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			s := newScene(t, name, map[string]string{"premix": long, "poll": "1ms"})
			ids, err := s.Submit(context.Background(), &pilot.Wave{Token: "AAAAAAAA", Dir: dir, Log: filepath.Join(dir, "log"), Shares: make([]pilot.Share, 2)})
			if err != nil {
				t.Fatal(err)
			}
			s.until(t, ids, func(st pilot.Status) bool { return st.Phase == pilot.Running && st.Node == "fakehost" })
			if err := s.Cancel(context.Background(), ids); err != nil {
				t.Fatal(err)
			}
			s.until(t, ids, func(st pilot.Status) bool { return st.Phase >= pilot.Ended })
		})
	}
}

func TestOptions(t *testing.T) {
	newScene(t, "sge", nil)
	for _, o := range []map[string]string{{"premix": "premix"}, {"poll": "soon"}, {"N": "name"}, {"V": ""}} {
		var bad *exit.Error
		if _, err := New("sge", o); !errors.As(err, &bad) {
			t.Errorf("%v: %v", o, err)
		}
	}
	e, err := New("sge", map[string]string{"pe": "openmp", "memory-resource": "h_rss", "l": "h_rt=60", "r": ""})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(append(e.options(e, &pilot.Share{Cores: 4, Memory: 1 << 30}, "premix-a", 1), e.more...), " ")
	if want := "-terse -N premix-a -o /dev/null -j y -S /bin/sh -V -pe openmp 4 -l h_rss=288M -l h_rt=60 -r"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := New("lsf", nil); exit.Of(err) != exit.Unavailable || !strings.Contains(err.Error(), "no bsub on PATH") {
		t.Error(err)
	}
}
