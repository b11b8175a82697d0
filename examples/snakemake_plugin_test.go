package examples

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Snakemake runs with premix's executor plugin. Results are right, a failure is reported in
// the words of premix, and an interrupted workflow leaves nothing behind.
func TestSnakemakePlugin(t *testing.T) {
	s := newScene(t)
	s.ecosystem("snakemake")
	plugin, err := filepath.Abs("../dist/snakemake-executor-plugin-premix")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"ok/Snakefile": "rule b:\n    input: 'a1', 'a2'\n    output: '../result'\n    threads: 2\n    shell: 'cat {input} | sort -n >{output}'\nrule a:\n    output: 'a{n}'\n    priority: 5\n    resources: mem_mb=1500, runtime=60\n    shell: 'echo {wildcards.n} >{output}'\n",
		// A failed job leaves nothing, and is repeated as often as Snakemake requests.
		"bad/Snakefile":  "rule a:\n    output: 'a'\n    retries: 1\n    resources: attempt=lambda w, attempt: attempt\n    shell: 'echo {resources.attempt} >>../tries; echo >{output}; exit 7'\n",
		"same/Snakefile": "import os\nos.environ['OWN'] = 'a b'\nrule a:\n    output: 'env'\n    threads: 2\n    params: x=lambda w, resources: resources.tmpdir\n    shell: r'(pwd; echo \"$-\" {params.x} {resources.tmpdir} {threads} \\'{{}}\\'; env | grep \"_NUM_THREADS=\\|^OWN=\\|^T[EM]*P[DIR]*=\" | sort) >{output}'\n",
		"long/Snakefile": "rule a:\n    output: 'a'\n    shell: 'touch ../begun; sleep 3000'\n",
	} {
		s.write(name, text)
	}
	in := func(dir string) []string {
		return []string{"-c", `cd "$0" && PYTHONPATH="$1" exec snakemake --executor premix --jobs 4 --premix-dir ../tasks --seconds-between-status-checks 600`, s.path(dir), plugin}
	}
	s.must("sh", in("ok")...)
	if got := s.read("result"); got != "1\n2\n" {
		t.Errorf("the result is %q", got)
	}
	if got := s.must("premix", "task", "ls", "tasks", "--tasks", "--json"); strings.Count(got, `"state":"succeeded"`) != 3 || !strings.Contains(got, `"group":"b"`) {
		t.Errorf("the tasks are %s", got)
	}
	// The shell commands ran without an own Snakemake process.
	if got := s.must("premix", "task", "tail", "tasks", "1", "--stderr"); strings.Contains(got, "SNAKEMAKE") || strings.Contains(got, "Snakemake") {
		t.Errorf("a task is a Snakemake: %s", got)
	}
	out, err := s.run("sh", in("bad")...)
	if err == nil || !strings.Contains(out, "it failed once: the command ended with status 7") {
		t.Errorf("the failure is not told: %v\n%s", err, out)
	}
	if got := s.read("tries"); got != "1\n2\n" {
		t.Errorf("the tries are %q", got)
	}
	if _, err := os.Stat(s.path("bad/a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the output of a failed job is there: %v", err)
	}

	// Each environment and each value is the same as with Snakemake's own executor.
	for _, how := range []string{"premix --jobs 4 --premix-dir ../tasks2", "local --cores 4"} {
		s.must("sh", "-c", `cd "$0" && PYTHONPATH="$1" exec snakemake --executor `+how, s.path("same"), plugin)
		if err := os.Rename(s.path("same/env"), s.path("env-"+how[:5])); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := s.read("env-premi"), s.read("env-local"); a != b || !strings.Contains(a, "OMP_NUM_THREADS=2") {
		t.Errorf("with premix:\n%s\nwithout:\n%s", a, b)
	}
	if !soak {
		t.Log("an interrupt is left out: PREMIX_SOAK is not set")
		return
	}

	s.interrupt(t, func() bool { return true }, in("long")...)
}
