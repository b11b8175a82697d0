package search

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"premix/internal/blast/database"
)

// A program of BLAST+ needs 64 ms of CPU time to start, 50 ms of it in the dynamic linker. This is
// most of the time of a small search. `make soak-blast`, which makes hundreds of thousands of
// searches, starts each program once with testdata/served.c, and puts clients on PATH that let it
// fork (testdata/client.c).

// ownPath is PATH without these clients.
var ownPath = os.Getenv("PATH")

func TestMain(m *testing.M) {
	stop := func() {}
	if soak() {
		var err error
		if stop, err = startOnce(); err != nil {
			fmt.Fprintln(os.Stderr, "programs of BLAST+ start each time, which is slow:", err)
		}
	}
	code := m.Run()
	stop()
	os.Exit(code)
}

// startOnce puts clients for the programs of BLAST+ on PATH until stop is called.
func startOnce() (stop func(), err error) {
	var ends []func()
	stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
		ends = nil
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	dir, err := os.MkdirTemp("", "blast-")
	if err != nil {
		return stop, err
	}
	ends = append(ends, func() { os.RemoveAll(dir) })
	compile := func(args ...string) error {
		out, err := exec.Command("cc", append([]string{"-O1"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("cc: %w\n%s", err, out)
		}
		return nil
	}
	library := filepath.Join(dir, "served.so")
	if err := compile("-shared", "-fPIC", "-o", library, "testdata/served.c"); err != nil {
		return stop, err
	}
	for _, name := range []string{"blastn", "blastp", "blastx", "tblastn", "tblastx", "blast_formatter"} {
		path, err := exec.LookPath(name)
		if err != nil {
			return stop, err
		}
		socket := filepath.Join(dir, name+".socket")
		if err := compile("-static", "-o", filepath.Join(dir, name), fmt.Sprintf("-DSOCKET=%q", socket), "testdata/client.c"); err != nil {
			return stop, err
		}
		cmd := exec.Command(path)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+library, "PREMIX_TEST_SERVE="+socket)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return stop, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return stop, err
		}
		if err := cmd.Start(); err != nil {
			return stop, err
		}
		ends = append(ends, func() {
			in.Close()
			cmd.Wait()
		})
		if stderr, err := bufio.NewReader(out).ReadString('\n'); stderr != "ready\n" {
			return stop, fmt.Errorf("%s does not serve: %q, %w", name, stderr, err)
		}
	}
	err = os.Setenv("PATH", dir+string(filepath.ListSeparator)+ownPath)
	ends = append(ends, func() { os.Setenv("PATH", ownPath) })
	return stop, err
}

// A program that is started once has the same output and status as a program that starts each time.
func TestStartOnce(t *testing.T) {
	needBLAST(t)
	if os.Getenv("PATH") == ownPath {
		t.Skip("programs of BLAST+ start each time: PREMIX_SOAK=blast, and a C compiler")
	}
	r := rand.New(rand.NewPCG(101, 102))
	g := newGenes(r, 3)
	dbs := map[database.Type]*corpus{
		database.Nucl: newCorpus(t, "nucleotides", generated(r, g, false, 2), database.Nucl, []int{1}, database.AddOptions{}),
		database.Prot: newCorpus(t, "proteins", generated(r, g, true, 2), database.Prot, []int{1}, database.AddOptions{}),
	}
	text := map[bool]string{false: ">q\n" + g.dna[0] + "\n>low\nACACACACACACACACACAC\n", true: ">q\n" + g.protein[0] + "\n>unknown\nXXXXXXXX\n"}
	same, all := 0, 0
	for _, p := range programs {
		db := dbs[p.db].cuts[1]
		dir, err := alias(t.TempDir(), db, "plain", "", db.Whole)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range formatsOf(p.name) {
			for _, o := range []string{"", "-max_target_seqs 1", "-num_threads 2", "-nonsense"} {
				args := append([]string{"-db", db.Name, "-outfmt", f}, strings.Fields(o)...)
				ways := map[bool]answer{}
				for _, own := range []bool{true, false} {
					name := tool(p.name)
					path, err := lookPath(name, own)
					if err != nil {
						t.Fatal(err)
					}
					cmd := exec.Command(path, args...)
					cmd.Args[0] = name
					cmd.Dir = dir
					cmd.Env = environment(map[string]string{"BLASTDB": dir, "PATH": ownPath})
					cmd.Stdin = strings.NewReader(text[p.proteins])
					ways[own] = answered(t, cmd)
				}
				all++
				if ways[true] != ways[false] {
					t.Errorf("%s %q: %+v\nby a stand-in: %+v", p.name, args, ways[true], ways[false])
				} else {
					same++
				}
			}
		}
	}
	t.Logf("%d of %d equal", same, all)

	// Killing a client kills the program, which waits for queries here.
	path, err := lookPath("blastn", false)
	if err != nil {
		t.Fatal(err)
	}
	db := dbs[database.Nucl].cuts[1]
	dir, err := alias(t.TempDir(), db, "plain", "", db.Whole)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-db", db.Name, "-outfmt", "6")
	cmd.Env = environment(map[string]string{"BLASTDB": dir})
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("killed, it ends with %v", err)
	}
	if stderr, err := io.ReadAll(out); err != nil || len(stderr) > 0 {
		t.Errorf("killed, it writes %q, %v", stderr, err)
	}
}

// lookPath finds a program of BLAST+ itself, or its client.
func lookPath(name string, own bool) (string, error) {
	if !own {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(ownPath) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}
