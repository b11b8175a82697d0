package examples

import (
	"path/filepath"
	"strings"
	"testing"
)

// Snakemake with premix's executor plugin: results are right, a failure is told in
// premix's words, and a workflow that is interrupted leaves nothing behind.
func TestSnakemakePlugin(t *testing.T) {
	s := newScene(t)
	s.ecosystem("snakemake")
	plugin, err := filepath.Abs("../dist/snakemake-executor-plugin-premix")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"ok/Snakefile":   "rule b:\n    input: 'a1', 'a2'\n    output: '../result'\n    threads: 2\n    shell: 'cat {input} | sort -n >{output}'\nrule a:\n    output: 'a{n}'\n    priority: 5\n    resources: mem_mb=1500, runtime=60\n    shell: 'echo {wildcards.n} >{output}'\n",
		"bad/Snakefile":  "rule a:\n    output: 'a'\n    shell: 'exit 7'\n",
		"long/Snakefile": "rule a:\n    output: 'a'\n    shell: 'touch ../begun; sleep 3000'\n",
	} {
		s.write(name, text)
	}
	in := func(dir string) []string {
		return []string{"-c", `cd "$0" && PYTHONPATH="$1" exec snakemake --executor premix --jobs 4 --premix-dir ../tasks --seconds-between-status-checks 1`, s.path(dir), plugin}
	}
	s.must("sh", in("ok")...)
	if got := s.read("result"); got != "1\n2\n" {
		t.Errorf("the result is %q", got)
	}
	if got := s.must("premix", "task", "ls", "tasks", "--tasks", "--json"); strings.Count(got, `"state":"succeeded"`) != 3 || !strings.Contains(got, `"group":"b"`) {
		t.Errorf("the tasks are %s", got)
	}
	if !soak {
		t.Log("a failure and an interrupt are left out: PREMIX_SOAK is not set")
		return
	}
	out, err := s.run("sh", in("bad")...)
	if err == nil || !strings.Contains(out, "it failed once: the command ended with status 1") {
		t.Errorf("the failure is not told: %v\n%s", err, out)
	}

	s.interrupt(t, func() bool { return true }, in("long")...)
}
