package shim

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// stringsBetween returns the strings between first and last in a Slurm program: the names in one of
// its tables.
func stringsBetween(t *testing.T, program, first, last string) (names []string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v (scripts/setup.sh test installs Slurm)", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\x00"+first+"\x00")
	list, _, ends := strings.Cut(rest, "\x00"+last+"\x00")
	if !ok || !ends {
		t.Fatalf("%s has no table from %s to %s", program, first, last)
	}
	name := regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]+$`)
	for text := range strings.SplitSeq(list, "\x00") {
		if name.MatchString(text) {
			names = append(names, text)
		}
	}
	return append(names, first, last)
}

// Each field of Slurm's own sacct, sstat and squeue --Format has a value here.
func TestFieldsOfSlurm(t *testing.T) {
	names := stringsBetween(t, "sacct", "AllocCPUS", "WorkDir")
	if len(names) < 80 {
		t.Errorf("sacct has %d fields: %q", len(names), names)
	}
	for _, name := range names {
		if sacctFields()[strings.ToLower(name)] == nil {
			t.Errorf("sacct: there is no field %s", name)
		}
	}
	_, byName := lookup(jobFields())
	names = stringsBetween(t, "squeue", "accruetime", "hetjobidset")
	if len(names) < 30 {
		t.Errorf("squeue has %d fields: %q", len(names), names)
	}
	for _, name := range names {
		if byName(name) == nil {
			t.Errorf("squeue: there is no field %s", name)
		}
	}
}

// Slurm's own sacct prints its help only with a database. The test reads the text from the program
// file.
func TestOptionsOfSacct(t *testing.T) {
	path, err := exec.LookPath("sacct")
	if err != nil {
		t.Fatalf("%v (scripts/setup.sh test installs Slurm)", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^     (?:-([A-Za-z]), |    )--([a-z][a-z0-9-]*)`).FindAllSubmatch(text, -1)
	if len(found) < 30 {
		t.Fatalf("%d options stand in sacct", len(found))
	}
	for _, m := range found {
		letter, name := string(m[1]), string(m[2])
		if name == "help" || name == "usage" || name == "version" {
			continue
		}
		if o, err := find(sacctOptions(), name); err != nil || o.name != name {
			t.Errorf("--%s: %+v, %v", name, o, err)
		}
		if letter != "" && findShort(sacctOptions(), letter[0]) == nil {
			t.Errorf("there is no -%s, which is --%s", letter, name)
		}
	}
}

// TestNamed checks each option and command that clients are known to use. Each want is a regular
// expression for the whole answer. The scripts slurm_*.txtar contain the cases that need processes.
func TestNamed(t *testing.T) {
	w := testWorker(t)
	const (
		taken   = `(?s)(Submitted batch job \d+)?`
		missing = `(?s)!\w+: error: option '--%' is not supported by premix\n\w+: hint: .+`
	)
	refuses := func(name string) string { return strings.ReplaceAll(missing, "%", regexp.QuoteMeta(name)) }
	node := regexp.QuoteMeta(nodeName())
	for _, c := range []struct{ ask, want string }{
		// sbatch options that change the job, that have no effect on one machine, and that are
		// refused.
		{`sbatch -H --signal=USR2@90 -t 5 --wrap true`, taken},
		{`sbatch -H --signal=B:USR2@90 --wrap true`, taken},
		{`sbatch -H --signal=R:12 --wrap true`, taken},
		{`sbatch -H --signal=USR2@x --wrap true`, `(?s)!sbatch: error: invalid --signal=USR2@x.*`},
		{`sbatch -H --wait-all-nodes=1 --requeue --hint=nomultithread --mail-type=END --wrap true`, taken},
		{`sbatch -H --no-requeue --gpu-bind=none --gres-flags=enforce-binding --gpu-freq=low --wrap true`, taken},
		{`sbatch -H --gres=gpu:1 --wrap true`, taken},
		{`sbatch -H --gres=gpu:a100:2,tmpspace:10G --wrap true`, taken},
		{`sbatch -H --gpus=2 --cpus-per-gpu=2 --mem-per-gpu=1G --wrap true`, taken},
		{`sbatch -H -n 2 --gpus-per-task=1 --wrap true`, taken},
		{`sbatch -H --gpus-per-node=1 --gpus-per-socket=1 --ntasks-per-gpu=3 --wrap true`, taken},
		{`squeue -h -o %i|%C|%m|%b -j 6,7,8,9,10`, `6\|1\|0\|gres:gpu:1\n7\|1\|0\|gres:gpu:2,gres:tmpspace:10G\n8\|4\|2G\|gres:gpu:2\n9\|2\|0\|gres:gpu:2\n10\|3\|0\|gres:gpu:1`},
		{`scancel 1 2 3 4 5 6 7 8 9`, ``},
		{`sbatch --gpus=3 --wrap true`, `(?s)!sbatch: error: .*Requested node configuration is not available.*gpu=3 and there are gpu=2.*`},
		{`sbatch --gres=gpu --gpus=2 --wrap true`, `(?s)!sbatch: error: --gpus and --gres do not agree.*`},
		{`sbatch --gres=:: --wrap true`, `(?s)!sbatch: error: Invalid generic resource.*`},
		{`sbatch --gres=gpu:99999999999999999999 --wrap true`, `(?s)!sbatch: error: Invalid generic resource.*`},
		{`sbatch --deadline=now --wrap true`, refuses("deadline")},
		{`sbatch --container=x --wrap true`, refuses("container")},
		{`sbatch --deadline=now --wrap true`, refuses("deadline")},
		{`sbatch -B 1 --wrap true`, refuses("extra-node-info")},
		// squeue
		{`squeue -h -O jobarrayid:4,name:6,gres:12,requeue:2`, `10  wrap  gres:gpu:1  1`},
		{`squeue --Format=jobid:6,tres-per-node:12`, `JOBID TRES_PER_NOD\n10    gres:gpu:1`},
		{`squeue -h --start`, `(?s) *10 +local +wrap .* N/A +1 .*\(JobHeldUser\)`},
		{`squeue -h --steps`, ``},
		{`squeue --steps --json`, `(?s)!squeue: error: squeue --steps has no --json.*hint: sacct --json.*`},
		{`squeue --json`, `(?s)\{.*"job_id": 10,.*"tres_per_node": "gres:gpu:1".*\}`},
		{`squeue --yaml`, `(?s)errors: \[\].* job_id: 10\n.*`},
		{`squeue -h --iterate=1 -o %i`, `10`}, // the client repeats the request
		{`squeue -h --notme`, ``},
		{`squeue -L lic`, refuses("licenses")},
		// sacct
		{`sacct --json`, `(?s)\{.*"job_id": 10,.*\}`},
		{`sacct -B -j 10`, `(?s)Batch Script for 10\n-+\n#!/bin/sh\ntrue`},
		{`sacct -n -P -X -j 10 -N ` + nodeName() + ` -o jobid`, ``}, // the job has not started
		{`sacct -n -P -X -j 10 -o consumedenergy,consumedenergyraw,reqtres,submitline`, `\|\|cpu=3,node=1,billing=3,gres/gpu=1\|sbatch -H --gpus-per-node=1 .*`},
		{`sacct -c`, refuses("completion")},
		{`sacct --units=G`, `(?s)!sacct: error: premix shows sizes.*`},
		// sinfo
		{`sinfo -h -O partition:8,gres:22,gresused:22,cpusstate`, `local\*  gpu:2,tmpspace:100G   \(null\) +0/4/0/4`},
		{`sinfo --json`, `(?s)\{.*"gres": "gpu:2,tmpspace:100G".*\}`},
		// scontrol
		{`scontrol update JobId=10 Partition=p QOS=q JobName=n Comment=c Account=a`, ``},
		{`squeue -h -o %i|%P|%q|%j|%k|%a`, `10\|p\|q\|n\|c\|a`},
		{`scontrol update JobId=10 Nice=9`, `(?s)!scontrol: error: premix does not change nice of a job\nscontrol: hint: it changes Name,.*`},
		{`scontrol update JobId=10 TimeLimit-=9`, `!scontrol: error: Job 10 has no time limit\nscontrol: hint: set one as in TimeLimit=60`},
		{`scontrol hold 10`, ``},
		{`scontrol requeue 10`, `(?s)!scontrol: error: Job 10: Job is pending execution.*`},
		{`scontrol suspend 10`, `(?s)!scontrol: error: Job 10: Requested operation is presently disabled.*`},
		{`scontrol resume 10`, `(?s)!scontrol: error: Job 10: Requested operation is presently disabled.*`},
		{`scontrol show job 10 --json`, `(?s)\{.*"job_id": 10,.*\}`},
		{`scontrol show nodes --json`, `(?s)\{.*"gres": "gpu:2,tmpspace:100G".*"name": "` + node + `".*\}`},
		{`scontrol show partition --yaml`, `(?s).*\n    total_cpus: 4\n.*`},
		{`scontrol show step --json`, `(?s)!scontrol: error: scontrol show step has no --json.*`},
		{`scontrol show hostnames n[1-3]`, `n1\nn2\nn3`},
		{`scontrol show node`, `(?s)NodeName=` + node + ` .*Gres=gpu:2,tmpspace:100G GresUsed=\(null\).*`},
		{`scontrol show job 10`, `(?s)JobId=10 .*\n   TresPerNode=gres:gpu:1\n.*`},
		// The other programs.
		{`sstat -j 10`, `(?s)!sstat: error: couldn't get steps for job 10.*`},
		{`sprio -h -l`, `10 +p +\S+ +0( +0){8}`},
		{`sprio -h -j 10`, `10 +p +0 +0`},
		{`sprio -h -j 9`, ``},
		{`sprio -j 99`, `(?s)!sprio: error: Invalid job id specified.*`},
		{`sprio 10`, `(?s)!sprio: error: Unrecognized option: 10.*`},
		{`sprio -n`, refuses("norm")},
		{`sstat -i -j 10`, refuses("pidformat")},
		{`sacct -n -P -X -j 10 -o jobn,jobidr,stat`, `n\|10\|PENDING`},
		{`sacctmgr -n -P show user nobody format=user`, ``},
		{`sacctmgr -n -P show assoc where users=` + userName() + ` cluster=premix format=cluster,def`, `premix\|normal`},
		{`sacctmgr -n -P show assoc cluster=other`, ``},
		{`sacctmgr show assoc frob=1`, `(?s)!sacctmgr: error: Unknown condition: frob=1.*`},
		{`sinfo -R`, `REASON +USER +TIMESTAMP +NODELIST`},
		{`sinfo -T`, `No reservations in the system`},
		{`sprio -w`, `(?s)!sprio: error: premix has no weights of priorities.*`},
		{`sshare -n -P -o rawshares,normshares`, `1\|1.000000`},
		{`sacctmgr -n -P show assoc format=cluster,share`, `premix\|1`},
		{`sacctmgr -n -P show cluster format=cluster`, `premix`},
		{`sacctmgr --json show qos`, refuses("json")},
	} {
		if got := w.said(c.ask); !regexp.MustCompile(`^(?:` + c.want + `)$`).MatchString(got) {
			t.Errorf("%s:\n%s\nwant\n%s", c.ask, got, c.want)
		}
	}
}
