package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"premix/internal/kit/exit"
	"strings"
	"testing"
	"time"
)

// A search in pods prints the output of BLAST+. The home directory of the pods differs from the
// user's; the database is in their volume.
func (c *testCluster) testBlast(t *testing.T) {
	if _, err := exec.LookPath("blastn"); err != nil {
		t.Skip("blastn is not installed: scripts/setup.sh test")
	}
	s := newTaskScene(t)
	fasta, queries := someGenes()
	s.write(t, "db.fa", fasta)
	s.write(t, "q.fa", queries)
	env := append(os.Environ(), s.mark, "HOME="+s.path("user"), "PREMIX_HOME=", "XDG_DATA_HOME=", "PREMIX_STORE=")
	blast := func(status int, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, append([]string{"blast"}, args...)...)
		cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, env, time.Second
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var finished *exec.ExitError
		if err != nil && !errors.As(err, &finished) || cmd.ProcessState.ExitCode() != status {
			t.Fatalf("premix blast %q: %v, want status %d\n%s%s", args, err, status, out, &stderr)
		}
		return string(out) + stderr.String()
	}
	blast(int(exit.OK), "db", "add", "db.fa", "--name", "db", "--type", "nucl", "--fragments", "4")
	in := append([]string{"blastn"}, c.options(s, c.template(t, s, ""))...)
	for _, format := range []string{"0", "6"} {
		rest := []string{"-db", "db", "-query", "q.fa", "-outfmt", format}
		want := blast(int(exit.OK), append([]string{"blastn", "--mode", "whole"}, rest...)...)
		since := c.since(t)
		if got := blast(int(exit.OK), append(in[:len(in):len(in)], rest...)...); got != want || strings.Count(want, "q33") == 0 {
			t.Errorf("-outfmt %s: got\n%s\nwant\n%s", format, got, want)
		}
		if n := since(); n < 1 || n > 4 {
			t.Errorf("-outfmt %s: %d pods for 4 fragments", format, n)
		}
	}
	// A failure in the pods is reported. For -outfmt 11 premix runs no BLAST+ on this machine, so
	// the failure comes from a pod.
	out := blast(int(exit.Failed), append(in[:len(in):len(in)], "-db", "db", "-query", "q.fa", "-outfmt", "11", "-word_size", "2")...)
	if !strings.Contains(out, "error: part ") || !strings.Contains(out, "of the search failed on kubernetes") {
		t.Errorf("%s", out)
	}
	if left, err := filepath.Glob(s.path(".premix-blast-*")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v is left", err, left)
	}
}
