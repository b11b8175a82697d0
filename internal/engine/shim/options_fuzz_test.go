package shim

import (
	"strings"
	"testing"
	"time"

	"premix/internal/engine/queue"

	"premix/internal/kit/hostlist"
)

// FuzzSbatch passes arguments as from a workflow manager and from a foreign script to sbatch. They
// are parsed or refused with a hint, and request no more tasks than an array may have.
func FuzzSbatch(f *testing.F) {
	f.Add("--time\x001-00:00:00\x00--mem=4G\x00-n2\x00job.sh\x00a b", "#!/bin/sh\n#SBATCH --array=1-10:3%2\n#SBATCH -o 'out %A_%a'\necho hello\n")
	f.Add("--array=0-99999999999\x00--wrap=true", "")
	f.Add("-J\x00x\x00--parsable\x00--dependency=afterok:1:2,singleton\x00--begin=now+1hour\x00--signal=B:USR1@60", "#SBATCH \"--comment=a\\\"b\"\n")
	f.Add("--export=ALL,A=b\x00--chdir=/x\x00--open-mode=append\x00--mem-per-cpu=9223372036854775807T", "#SBATCH --time=9223372036854775807-1\n")
	f.Fuzz(func(t *testing.T, line, script string) {
		s, _, err := parseSbatch(strings.Split(line, "\x00"))
		if err != nil {
			return
		}
		environ := map[string]string{"SBATCH_PARTITION": "p", "HOME": "/home/ann", "PATH": "/bin"}
		if s.directives(environ, []byte(script)) != nil {
			return
		}
		if s.interpret(environ, "/work", machine{8, 32 << 30, &gres{total: queue.Resources{"gpu": 4}}}, time.Unix(1_800_000_000, 0)) != nil {
			return
		}
		if len(s.indices) > 1_000_000 {
			t.Fatalf("%d tasks of an array", len(s.indices))
		}
		if argv, _, err := interpreter([]byte(script)); err == nil && len(argv) == 0 {
			t.Fatalf("no interpreter of %q", script)
		}
		for _, array := range []*queue.Array{nil, queue.NewArray([]int{0}, s.output)} {
			if out := s.expand(s.output, 1, array, "ann"); len(out) > 1<<16+len(s.output)*64 {
				t.Fatalf("%q becomes %d bytes", s.output, len(out))
			}
		}
	})
}

// FuzzValues parses values of options, and columns of squeue and sacct.
func FuzzValues(f *testing.F) {
	for _, text := range []string{"1-02:03:04", "90", "4G", "1-5,7:2%3", "now+2days", "%.18i %9P %j", "jobid:.5,name:20|", "n[1-3],m[01-03]x[5]", "jobid,state%20", "2026-11-19T14:00", "99999999999999999999", "200000000", "9223372036854775807-9223372036854775807", "1-2:9223372036854775807", "now+99999999999weeks"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseTime(text); err == nil && d < 0 {
			t.Fatalf("%q: %v", text, d)
		}
		if n, err := parseMemory(text); err == nil && n < 0 {
			t.Fatalf("%q: %d bytes", text, n)
		}
		if indices, limit, err := parseArray(text); err == nil && (len(indices) > 1_000_000 || limit < 0) {
			t.Fatalf("%q: %d tasks, %d at once", text, len(indices), limit)
		}
		_, _ = parseMoment(text, time.Unix(1_800_000_000, 0))
		_, _, _ = columnNames("sacct", text, acctCell)
		byLetter, byName := lookup(jobFields())
		_, _ = parseFormat(text, byLetter)
		_, _ = parseLong(text, byName)
		if names, err := hostnames(text); err == nil && len(names) > maxHosts {
			t.Fatalf("%q: %d names", text, len(names))
		}
		_, _ = parseStates(text)
		_, _ = words(text)
		hostlist.Split(text)
	})
}
