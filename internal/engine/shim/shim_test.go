package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/engine/queue"
	"premix/internal/kit/hostlist"
)

func TestParseTime(t *testing.T) {
	for text, want := range map[string]string{
		"90": "1h30m", "1:30": "1m30s", "1:30:00": "1h30m", "2-12": "60h", "1-2:30": "26h30m", "1-0:0:5": "24h0m5s", "0": "0", "UNLIMITED": "0",
		"": "bad", "x": "bad", "1:2:3:4": "bad", "-5": "bad", "1-": "bad", "1-2:3:4:5": "bad",
	} {
		got, err := parseTime(text)
		d, werr := time.ParseDuration(want)
		if werr != nil && err == nil || werr == nil && (err != nil || got != d) {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]int64{"100": 100 << 20, "1G": 1 << 30, "2k": 2 << 10, "3T": 3 << 40, "0": 0, "": -1, "G": -1, "-1": -1, "1.5G": -1, "99999999999T": -1} {
		got, err := parseMemory(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseArray(t *testing.T) {
	for text, want := range map[string][]int{
		"3": {3}, "0-3": {0, 1, 2, 3}, "1-7:3": {1, 4, 7}, "5,1-2": {1, 2, 5}, "1,1": {1}, "2-3%1": {2, 3},
		"": nil, "3-1": nil, "1-": nil, "a": nil, "1-5:0": nil, "1%0": nil, "4:2": nil, "0-9999999": nil,
	} {
		got, limit, err := parseArray(text)
		if err != nil {
			got = nil
		}
		if !slices.Equal(got, want) || strings.Contains(text, "%1") && limit != 1 {
			t.Errorf("%q: %v %d %v; want %v", text, got, limit, err, want)
		}
	}
}

func TestParseMoment(t *testing.T) {
	now := time.Date(2025, 3, 4, 5, 6, 7, 0, time.Local)
	for text, want := range map[string]string{
		"now": "2025-03-04T05:06:07", "now-2days": "2025-03-02T05:06:07", "now+1hour": "2025-03-04T06:06:07", "now+30": "2025-03-04T05:06:37", "today": "2025-03-04T00:00:00",
		"2025-01-31": "2025-01-31T00:00:00", "2025-01-31T08:00": "2025-01-31T08:00:00", "2025-01-31T08:01:02": "2025-01-31T08:01:02", "16:00": "2025-03-04T16:00:00", "01/31/25": "2025-01-31T00:00:00",
		"": "bad", "soon": "bad", "now-": "bad", "now-2moons": "bad", "nowadays": "bad",
	} {
		got, err := parseMoment(text, now)
		if want == "bad" && err == nil || want != "bad" && (err != nil || clock(got) != want) {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		elapsed(25*time.Hour + 3*time.Second): "1-01:00:03", elapsed(62 * time.Second): "00:01:02", shortElapsed(62 * time.Second): "1:02", shortElapsed(3662 * time.Second): "1:01:02",
		shortElapsed(90000 * time.Second): "1-01:00:00", cpuTime(61.25): "01:01.250", cpuTime(3601): "01:00:01", sizeText(4 << 30): "4G", sizeText(1500 << 20): "1500M", sizeText(0): "0K", clock(time.Time{}): "Unknown",
	} {
		if got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

func TestWords(t *testing.T) {
	for line, want := range map[string][]string{
		` -J x  -t 10 # and so on`: {"-J", "x", "-t", "10"}, `--comment="a b"c 'd\e'`: {"--comment=a bc", `d\e`}, `a\ b ""`: {"a b", ""}, `x#y`: {"x#y"}, `"open`: nil,
	} {
		got, err := words(line)
		if !slices.Equal(got, want) || (want == nil) != (err != nil) {
			t.Errorf("%s: %q, %v; want %q", line, got, err, want)
		}
	}
}

// Options are parsed as by getopt_long(3).
func TestParseOptions(t *testing.T) {
	for args, want := range map[string]string{
		"-J x --wrap=y":         "job-name=x wrap=y",
		"-Jx -t10":              "job-name=x time=10",
		"--job-n x --parsable":  "job-name=x parsable=",
		"--exclusive script -c": "exclusive= | script -c",
		"--exclusive=user":      "exclusive=user",
		"-HQ -- -x":             "hold= quiet= | -x",
		"--no-re":               "no-requeue=",
		"--mem 1":               "mem=1",
		"--mem-per 1":           "bad", // two options have this prefix
		"--parsable=1":          "bad",
		"--time":                "bad",
		"-t":                    "bad",
		"-%":                    "bad",
		"--unknown":             "bad",
	} {
		list, rest, err := parseOptions(sbatchOptions(), strings.Fields(args), true)
		var got []string
		for _, g := range list {
			got = append(got, g.name+"="+g.value)
		}
		if len(rest) > 0 {
			got = append(append(got, "|"), rest...)
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = "bad"
		}
		if text != want {
			t.Errorf("%s: %s, %v; want %s", args, text, err, want)
		}
	}
}

// The names in each table of options are unique.
func TestTables(t *testing.T) {
	for name, options := range programs {
		seen := make(map[string]bool)
		for _, o := range options() {
			if seen[o.name] || o.short != 0 && seen[string(o.short)] {
				t.Errorf("%s: --%s or -%c stands twice", name, o.name, o.short)
			}
			seen[o.name] = true
			if o.short != 0 {
				seen[string(o.short)] = true
			}
		}
	}
	for _, v := range sbatchVariables {
		if o, err := find(sbatchOptions(), v[1]); err != nil || o.name != v[1] {
			t.Errorf("%s stands for no option", v[0])
		}
	}
}

// premix's tables contain all options in the help of each Slurm program, and agree with it about
// short options and arguments.
func TestOptionsOfSlurm(t *testing.T) {
	config := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(config, []byte("ClusterName=x\nSlurmctldHost=localhost\nAccountingStorageType=accounting_storage/slurmdbd\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ *(?:-([A-Za-z])(?:,| or)? *)?--([a-zA-Z][a-zA-Z-]*)(\[?=)?`)
	for name, options := range programs {
		if name == "sacct" {
			continue // it prints nothing without a database
		}
		cmd := exec.Command(name, "--help")
		cmd.Env = append(os.Environ(), "SLURM_CONF="+config)
		help, err := cmd.CombinedOutput()
		if err != nil && name != "sacctmgr" { // the help of sacctmgr exits with 1
			t.Errorf("%s --help: %v (scripts/setup.sh test installs Slurm)\n%s", name, err, help)
			continue
		}
		n := 0
		for _, m := range line.FindAllStringSubmatch(string(help), -1) {
			if m[2] == "help" || m[2] == "usage" || m[2] == "version" {
				continue // all programs have these
			}
			n++
			o, err := find(options(), m[2])
			switch {
			case err != nil:
				t.Errorf("%s: %q: %v", name, m[0], err)
			case o.name != m[2] && o.name != m[2]+"s": // the help of squeue has --step for --steps
				t.Errorf("%s: %q stands for --%s", name, m[0], o.name)
			case m[1] != "" && m[1] != string(o.short) && findShort(options(), m[1][0]) == nil:
				t.Errorf("%s: %q: there is no -%s", name, m[0], m[1])
			case m[3] != "" && o.arg == none:
				t.Errorf("%s: %q takes no argument here", name, m[0])
			}
		}
		if n < 3 {
			t.Errorf("%s: %d options in its help:\n%s", name, n, help)
		}
	}
}

func TestHosts(t *testing.T) {
	for list, want := range map[string]string{"n1": "n1", "n[1-3]": "n1 n2 n3", "n[01-03,7]": "n01 n02 n03 n7", "a,b[1-2]c": "a b1c b2c", "r[1-2]n[1-2]": "r1n1 r1n2 r2n1 r2n2", "n[1": "", "n[2-1]": "", "n[x]": "", "n[1-99999999]": ""} {
		got, err := hostnames(list)
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v; want %s", list, got, err, want)
		}
	}
	for names, want := range map[string]string{"n1": "n1", "n1 n2 n3": "n[1-3]", "n01 n02 m": "n[01-02],m", "n1 n3 n4 x": "n[1,3-4],x", "n3 n1": "n[3,1]", "n9 n10": "n9,n10"} {
		if got := joined(strings.Fields(names), false); got != want {
			t.Errorf("%s: %s; want %s", names, got, want)
		}
	}
	if got := joined([]string{"n3", "n1", "n3", "n2"}, true); got != "n[1-3]" {
		t.Error(got)
	}
	for text, want := range map[string][]int{"1": {1}, "1-5,9": {1, 2, 3, 4, 5, 9}, "0-8:2": {0, 2, 4, 6, 8}, "1,2,9": {1, 2, 9}, "1,3-4": {1, 3, 4}} {
		if got := ranges(want); got != text && !(text == "1,2,9" && got == "1-2,9") {
			t.Errorf("%v: %s; want %s", want, got, text)
		}
	}
}

// The command line takes precedence over the environment, and the environment over the script.
func TestDirectives(t *testing.T) {
	s, needs, err := parseSbatch([]string{"-J", "mine", "job.sh", "a"})
	if err != nil || !needs || s.script != "job.sh" || !slices.Equal(s.args, []string{"a"}) {
		t.Fatal(s, needs, err)
	}
	script := "#!/bin/sh\n\n#SBATCH -J script -p script -c 2\n# a comment\n#SBATCH --comment=kept\necho\n#SBATCH -c 9\n"
	environ := map[string]string{"SBATCH_PARTITION": "environment", "SBATCH_JOB_NAME": "environment"}
	if err := s.directives(environ, []byte(script)); err != nil {
		t.Fatal(err)
	}
	if err := s.interpret(environ, "/data", machine{4, 1 << 30, &gres{}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if s.Name != "mine" || s.Partition != "environment" || s.Cores != 2 || s.Comment != "kept" || s.Command != "/data/job.sh" {
		t.Errorf("%+v", s.jobMeta)
	}
	array := queue.NewArray([]int{1, 2, 9}, s.Name, s.Dir)
	if got := array.Expand(s.expand("%x-%j-%4A_%a-%3a-%%-%u-%q", 5, array, "me"), 7, 2); got != "/data/mine-7-0005_9-009-%-me-%q" {
		t.Error(got)
	}
	if got := s.expand("%j_%a", 5, nil, "me"); got != "/data/5_4294967294" {
		t.Error(got)
	}
	if err := s.directives(nil, []byte("#!/bin/sh\n#SBATCH --frob\n")); err == nil {
		t.Error("a bad directive is not noticed")
	}
}

func TestInterpreter(t *testing.T) {
	for script, want := range map[string]struct {
		argv  []string
		shell bool
	}{
		"#!/bin/sh\n":                                  {[]string{"/bin/sh"}, true},
		"#! /bin/bash -l\necho":                        {[]string{"/bin/bash", "-l"}, true},
		"#!/usr/bin/env bash\n":                        {[]string{"/usr/bin/env", "bash"}, true},
		"#!/usr/bin/env python3\n":                     {[]string{"/usr/bin/env", "python3"}, false},
		"#!/usr/bin/awk -f\n":                          {[]string{"/usr/bin/awk", "-f"}, false},
		"#!/bin/sh x\n":                                {[]string{"/bin/sh", "x"}, false},
		"#!/bin/sh\n" + strings.Repeat("#", maxScript): {[]string{"/bin/sh"}, false},
		"echo\n":          {},
		"#!\n":            {},
		"#!/bin/sh\r\n":   {},
		"#!/bin/sh\n\x00": {},
	} {
		argv, shell, err := interpreter([]byte(script))
		if !slices.Equal(argv, want.argv) && err == nil || shell != want.shell || (want.argv == nil) != (err != nil) {
			t.Errorf("%.30q: %q %v %v", script, argv, shell, err)
		}
	}
}

func TestStep(t *testing.T) {
	for name, want := range map[string]string{"nf-ALIGN_(sample_1)": "ALIGN", "nf-FLOW:CALL_(3)": "FLOW:CALL", "job_12": "job", "12": "12", "a,b": "a_b", "": "tasks"} {
		if got := (&submission{jobMeta: jobMeta{Name: name}}).step(); got != want {
			t.Errorf("%q: %q; want %q", name, got, want)
		}
	}
	if got := (&submission{jobMeta: jobMeta{Name: "0-uuid", Comment: "rule_call_wildcards_A_1"}}).step(); got != "call" {
		t.Error(got)
	}
}

func TestParseDependency(t *testing.T) {
	d, err := parseDependency("afterok:1:2_3,after:4+5,singleton")
	want := []condition{{kind: "afterok", jobs: []string{"1", "2_3"}}, {kind: "after", jobs: []string{"4"}, wait: 5 * time.Minute}, {kind: "singleton"}}
	if err != nil || d.any || !reflect.DeepEqual(d.conditions, want) {
		t.Errorf("%+v %v", d, err)
	}
	if d, err = parseDependency("afterany:1?afterok:2"); err != nil || !d.any || len(d.conditions) != 2 {
		t.Errorf("%+v %v", d, err)
	}
	for _, text := range []string{"", "x:1", "afterok:", "afterok:1?afterok:2,afterok:3", "afterok:1+2", "after:1+x"} {
		if _, err := parseDependency(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestEnvironment(t *testing.T) {
	environ := map[string]string{"HOME": "/h", "PATH": "/p", "A": "1", "B": "2"}
	for export, want := range map[string]map[string]string{
		"ALL":       environ,
		"ALL,A=x":   {"HOME": "/h", "PATH": "/p", "A": "x", "B": "2"},
		"B,C=3":     {"HOME": "/h", "PATH": "/p", "B": "2", "C": "3"},
		"NONE":      {"HOME": "/h", "PATH": "/usr/local/bin:/usr/bin:/bin"},
		"PATH=/own": {"HOME": "/h", "PATH": "/own"},
	} {
		if got := (&submission{export: export}).environment(environ); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v", export, got)
		}
	}
}

func TestColumns(t *testing.T) {
	byLetter, byName := lookup(jobFields())
	if list, err := parseFormat("<%.5i|%-3j%%%t>", byLetter); err == nil {
		t.Fatalf("%v", list)
	}
	for format, want := range map[string]string{"<%.5i|%3j%%%t>": "<    7|a n%PD>", "%Z": "/d", "%i%j": "7a name"} {
		list, err := parseFormat(format, byLetter)
		if err != nil {
			t.Fatal(err)
		}
		if got := written(list); got != want {
			t.Errorf("%s: %q; want %q", format, got, want)
		}
	}
	for format, want := range map[string]string{"jobid:.5,name:3|,statecompact:0": "    7a n|PD", "JobArrayID, state:4 ": "7                   PEND ", "jobid:x": "7                   x"} {
		list, err := parseLong(format, byName)
		if err != nil {
			t.Fatal(err)
		}
		if got := written(list); got != want {
			t.Errorf("%s: %q; want %q", format, got, want)
		}
	}
	for _, format := range []string{"", "jobid,", "jobid,nothing", "jobid:99999999999"} {
		if _, err := parseLong(format, byName); err == nil {
			t.Errorf("%q is taken", format)
		}
	}
	if got := hostlist.Split("1,2_[3,4-5],,6 7"); !slices.Equal(got, []string{"1", "2_[3,4-5]", "6", "7"}) {
		t.Errorf("%q", got)
	}
}

// written returns the line of a waiting job in a format.
func written(columns []column[jobField]) string {
	r := &row{job: &job{id: 7, jobMeta: &jobMeta{Name: "a name", Dir: "/d"}}, status: status{state: pending}}
	var b strings.Builder
	for _, c := range columns {
		v := ""
		if c.field != nil {
			v = c.field.value(r)
		}
		c.write(&b, v)
	}
	return b.String()
}

// The fields of squeue and sacct have values even for a job without data.
func TestFields(t *testing.T) {
	r := &row{job: &job{id: 7, jobMeta: &jobMeta{}}, status: status{state: pending}, step: &step{ID: "0"}}
	seen := make(map[string]bool)
	for _, f := range jobFields() {
		for _, key := range []string{string(f.letter), f.name} {
			if key != "\x00" && seen[key] {
				t.Errorf("field %s stands twice", key)
			}
			seen[key] = true
		}
		f.value(r)
	}
	for _, f := range stepFields() {
		f.value(r)
	}
	for _, f := range nodeFields() {
		f.value(&nodeState{})
	}
	for name, f := range sacctFields() {
		for _, a := range []account{{row: r}, {row: r, batch: true}, {row: r, step: r.step}} {
			if f.value(&a); f.width == 0 {
				t.Errorf("%s has no width", name)
			}
		}
	}
	for _, name := range sstatFields {
		if sacctFields()[name] == nil {
			t.Errorf("there is no field %s", name)
		}
	}
}
