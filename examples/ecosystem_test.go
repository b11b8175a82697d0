package examples

import (
	"os"
	"strings"
	"testing"
)

// managers are workflow managers with three small workflows each: ok succeeds, bad has a
// task that fails, and long does not end.
var managers = []struct {
	name  string
	files map[string]string
	args  []string
}{
	{"nextflow", map[string]string{
		"ok/main.nf":   "process A {\n input: val x\n output: path 'a'\n script: \"echo $x >a\"\n}\nprocess B {\n cpus 2\n memory '100 MB'\n time '1h'\n publishDir '..', mode: 'copy'\n input: path 'a*'\n output: path 'result'\n script: 'cat a* | sort -n >result'\n}\nworkflow { A(Channel.of(1..5)).collect() | B }\n",
		"bad/main.nf":  "process A {\n script: 'echo words of the task >&2; exit 7'\n}\nworkflow { A() }\n",
		"long/main.nf": "process A {\n input: val x\n script: 'touch ../../../../begun; sleep 3000'\n}\nworkflow { A(Channel.of(1..4)) }\n",
	}, []string{"nextflow", "run", "main.nf", "-c", "../premix.config", "-profile", "premix"}},
	{"snakemake", map[string]string{
		"ok/Snakefile":   "rule b:\n    input: 'a1', 'a2'\n    output: '../result'\n    threads: 2\n    shell: 'cat {input} | sort -n >{output}'\nrule a:\n    output: 'a{n}'\n    resources: mem_mb=1500, runtime=60\n    shell: 'echo {wildcards.n} >{output}'\n",
		"bad/Snakefile":  "rule a:\n    output: 'a'\n    shell: 'echo words of the task >&2; exit 7'\n",
		"long/Snakefile": "rule a:\n    output: 'a'\n    shell: 'touch ../begun; sleep 3000'\n",
	}, []string{"snakemake", "--executor", "slurm", "--jobs", "4", "--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "1"}},
}

// Workflow managers run through the programs of a shim directory. Results are right, a
// failure is reported, and an interrupted workflow leaves nothing behind.
func TestEcosystem(t *testing.T) {
	for _, m := range managers {
		t.Run(m.name, func(t *testing.T) {
			if m.name == "snakemake" && !soak {
				t.Skip("each of its jobs takes seconds: PREMIX_SOAK is not set")
			}
			s := newScene(t)
			s.ecosystem(m.name)
			s.shim()
			config, err := os.ReadFile("../dist/nextflow/premix.config")
			if err != nil {
				t.Fatal(err)
			}
			s.write("premix.config", string(config))
			for name, text := range m.files {
				s.write(name, text)
			}
			in := func(dir string) []string {
				return append([]string{"-c", `cd "$0" && exec "$@"`, s.path(dir)}, m.args...)
			}
			s.must("sh", in("ok")...)
			want := "1\n2\n3\n4\n5\n"
			if m.name == "snakemake" {
				want = "1\n2\n"
			}
			if got := s.read("result"); got != want {
				t.Errorf("the result is %q", got)
			}
			if m.name == "nextflow" {
				if err := os.Remove(s.path("result")); err != nil {
					t.Fatal(err)
				}
				// With job arrays, the five tasks of the first process are one array.
				args := in("ok")
				args[len(args)-1] = "premix,premix_array"
				s.must("sh", args...)
				if got := s.read("result"); got != want {
					t.Errorf("the result of an array is %q", got)
				}
				if got := s.must("sacct", "-n", "-X", "-P", "-S", "now-1day", "-o", "jobid"); !strings.Contains(got, "_4\n") {
					t.Errorf("no job was an element of an array: %s", got)
				}
			}
			out, err := s.run("sh", in("bad")...)
			if err == nil || m.name == "nextflow" && !strings.Contains(out, "words of the task") {
				t.Errorf("the failure is not told: %v\n%s", err, out)
			}
			if got := s.must("sacct", "-n", "-X", "-P", "-S", "now-1day", "-s", "FAILED", "-o", "exitcode"); len(got) < 4 || strings.HasPrefix(got, "0:0") {
				t.Errorf("sacct tells of the failure so: %q", got)
			}

			// Nextflow does not cancel a job during its submission, so the test waits until
			// all are submitted.
			s.interrupt(t, func() bool {
				log, err := os.ReadFile(s.path("long/.nextflow.log"))
				return m.name != "nextflow" || err == nil && strings.Count(string(log), "> jobId: ") == 4
			}, in("long")...)
			if got := s.must("squeue", "-h"); got != "" {
				t.Errorf("jobs are left: %s", got)
			}
		})
	}
}
