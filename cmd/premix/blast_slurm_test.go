package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"premix/internal/kit/exit"
	"premix/internal/testkit/slurmtest"
)

// someGenes returns sequences, and queries q3 to q33, which are pieces of every tenth sequence.
func someGenes() (fasta, queries string) {
	r := rand.New(rand.NewPCG(13, 14))
	var fa, q strings.Builder
	for i := range 40 {
		b := make([]byte, 500)
		for k := range b {
			b[k] = "ACGT"[r.IntN(4)]
		}
		fmt.Fprintf(&fa, ">s%d\n%s\n", i, b)
		if i%10 == 3 {
			fmt.Fprintf(&q, ">q%d\n%s\n", i, b[100:400])
		}
	}
	return fa.String(), q.String()
}

// A search on the nodes of Slurm prints the output of BLAST+.
func TestBlastOnSlurm(t *testing.T) {
	if _, err := exec.LookPath("blastn"); err != nil {
		t.Skip("blastn is not installed: scripts/setup.sh test")
	}
	s := newSlurmScene(t, slurmtest.Options{})
	fasta, queries := someGenes()
	s.write(t, "db.fa", fasta)
	s.write(t, "q.fa", queries)
	s.ends(t, int(exit.OK), "", "blast", "db", "add", "db.fa", "--name", "db", "--type", "nucl", "--fragments", "4")
	for _, format := range []string{"0", "6"} {
		want := s.ends(t, int(exit.OK), "", "blast", "blastn", "--mode", "whole", "-db", "db", "-query", "q.fa", "-outfmt", format)
		got := s.ends(t, int(exit.OK), "", "blast", "blastn", "--engine", "slurm", "--engine-opt", "poll=300ms", "-db", "db", "-query", "q.fa", "-outfmt", format)
		if got != want || strings.Count(want, "q33") == 0 {
			t.Errorf("-outfmt %s: got\n%s\nwant\n%s", format, got, want)
		}
	}
	// A failure on the nodes is reported and leaves no files. For -outfmt 11 premix runs no BLAST+
	// on this machine, so the failure comes from a node.
	out := s.ends(t, int(exit.Failed), "", "blast", "blastn", "--engine", "slurm", "--engine-opt", "poll=300ms", "-db", "db", "-query", "q.fa", "-outfmt", "11", "-word_size", "2")
	if !strings.Contains(out, "error: part ") || !strings.Contains(out, "of the search failed on slurm") {
		t.Errorf("%s", out)
	}
	s.ends(t, int(exit.Usage), "", "blast", "blastn", "--engine", "none", "-db", "db", "-query", "q.fa")
	s.ends(t, int(exit.Usage), "", "blast", "blastn", "--work", "there", "-db", "db", "-query", "q.fa")
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".premix-blast-") {
			t.Errorf("%s is left", e.Name())
		}
	}
}
