package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/blast/database"
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
	// Queries are not distributed, so that this mode would be another one than the one asked for.
	s.ends(t, int(exit.Usage), "", "blast", "blastn", "--engine", "slurm", "--mode", "queries", "-db", "db", "-query", "q.fa")
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

// Nodes of a cluster run in an allocation of Slurm, and announce themselves. Searches on them
// print what BLAST+ prints for a database of makeblastdb. When the job is cancelled, nothing
// stays in memory.
func TestBlastClusterOnSlurm(t *testing.T) {
	if _, err := exec.LookPath("blastn"); err != nil {
		t.Skip("blastn is not installed: scripts/setup.sh test")
	}
	s := newSlurmScene(t, slurmtest.Options{})
	fasta, queries := someGenes()
	s.write(t, "db.fa", fasta)
	s.write(t, "q.fa", queries)
	s.ends(t, int(exit.OK), "", "store", "init", "store")
	s.ends(t, int(exit.OK), "", "blast", "db", "add", "db.fa", "--name", "db", "--title", "db", "--type", "nucl", "--fragments", "6", "--store", "store")
	s.ends(t, int(exit.OK), "", "blast", "cluster", "key", "key")
	if err := os.Mkdir(s.path("nodes"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The nodes of this Slurm are one machine, so each has a home of its own.
	node := fmt.Sprintf("srun sh -c 'PREMIX_HOME=%s-$SLURM_PROCID exec %s blast cluster node --key %s --origin %s --listen :0 --announce %s --memory 16M --cores 1 --drop'",
		s.path("home"), binary, s.path("key"), s.path("store"), s.path("nodes"))
	id, err := s.box.Run("sbatch", "--parsable", "-N", "3", "--ntasks-per-node=1", "--output="+s.path("job.log"), "--wrap", node)
	if err != nil {
		t.Fatal(err, id)
	}
	announcements := func() []string {
		list, err := filepath.Glob(s.path("nodes/*" + announced))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for i := 0; len(announcements()) < 3; i++ {
		if i == 1200 {
			s.show(t, s.path("job.log"))
			t.Fatalf("%q are announced after two minutes", announcements())
		}
		time.Sleep(100 * time.Millisecond)
	}
	onNodes := []string{"--nodes", "nodes", "--key", "key"}
	s.ends(t, int(exit.OK), "", append([]string{"blast", "cluster", "warm", "db", "--replicas", "2"}, onNodes...)...)
	cmd := exec.Command("makeblastdb", "-in", "db.fa", "-dbtype", "nucl", "-title", "db", "-out", "plain/db")
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("makeblastdb: %v\n%s", err, out)
	}
	for _, format := range []string{"0", "6"} {
		cmd := exec.Command("blastn", "-db", "db", "-query", "../q.fa", "-outfmt", format)
		cmd.Dir = s.path("plain")
		want, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		got := s.ends(t, int(exit.OK), "", append(append([]string{"blast", "blastn"}, onNodes...), "-db", "db", "-query", "q.fa", "-outfmt", format)...)
		if undated(got) != undated(string(want)) || !strings.Contains(got, "q33") {
			t.Errorf("-outfmt %s: got\n%s\nwant\n%s", format, got, want)
		}
	}
	var rows []struct {
		Status *struct{ Answered int64 }
	}
	text := s.ends(t, int(exit.OK), "", append([]string{"blast", "cluster", "ls", "--json"}, onNodes...)...)
	if err := json.Unmarshal([]byte(text), &rows); err != nil || len(rows) != 3 {
		t.Fatalf("%v: %s", err, text)
	}
	for i, row := range rows {
		if row.Status == nil || row.Status.Answered == 0 {
			t.Errorf("node %d has searched nothing: %s", i, text)
		}
	}
	for i := range 3 {
		t.Cleanup(func() { os.RemoveAll(database.RAM(s.path(fmt.Sprintf("home-%d/blast", i))) + "-node") })
	}
	held := func() (list []string) {
		for i := range 3 {
			files, err := filepath.Glob(filepath.Join(database.RAM(s.path(fmt.Sprintf("home-%d/blast", i)))+"-node", "*", "data", "*"))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, files...)
		}
		return list
	}
	if len(held()) == 0 {
		t.Error("no node has a file in memory")
	}
	if out, err := s.box.Run("scancel", strings.TrimSpace(id)); err != nil {
		t.Fatal(err, out)
	}
	var left []string
	for range 300 {
		if left = append(announcements(), held()...); len(left) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.show(t, s.path("job.log"))
	t.Errorf("the nodes leave %q", left)
}
