package examples

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// dropinGenome writes a genome: the genome of yeast, or a random one of 1 Mb.
func (s *scene) dropinGenome() string {
	s.t.Helper()
	if data := os.Getenv("PREMIX_TESTDATA"); data != "" {
		f, err := os.Open(filepath.Join(data, "yeast/genome.R64.fa.gz"))
		if err != nil {
			s.t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			s.t.Fatal(err)
		}
		text, err := io.ReadAll(io.LimitReader(z, 1<<20))
		if err != nil {
			s.t.Fatal(err)
		}
		s.write("genome.fa", string(text[:bytes.LastIndexByte(text, '\n')+1]))
		return s.path("genome.fa")
	}
	random := rand.New(rand.NewPCG(7, 7))
	var text strings.Builder
	for chromosome := range 1 {
		fmt.Fprintf(&text, ">chr%d\n", chromosome+1)
		for range 1 << 20 / 60 {
			line := make([]byte, 60)
			for k := range line {
				line[k] = "ACGT"[random.IntN(4)]
			}
			fmt.Fprintf(&text, "%s\n", line)
		}
	}
	s.write("genome.fa", text.String())
	return s.path("genome.fa")
}

// files returns the contents of all files below a directory of the scene.
func (s *scene) files(dir string) map[string]string {
	s.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(s.path(dir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.Contains(path, "/.") || strings.HasSuffix(path, ".log") {
			return err
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, s.path(dir))] = string(text)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// Pipelines give the same outputs with and without premix's links in front of PATH, and
// tools with a snapshot start hot.
func TestDropIn(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("hot starts need x86-64")
	}
	if soak {
		t.Run("root", func(t *testing.T) { testDropIn(t, newScene(t)) })
	}
	t.Run("user", func(t *testing.T) { testDropIn(t, newUserScene(t)) })
}

func testDropIn(t *testing.T, s *scene) {
	example, err := filepath.Abs("drop-in")
	if err != nil {
		t.Fatal(err)
	}
	dist := filepath.Join(example, "../../dist")
	for _, tool := range []string{"bwa", "minimap2", "samtools", "wgsim"} {
		if _, err := s.run("which", tool); err != nil {
			t.Skipf("%s is not installed: scripts/setup.sh test installs it", tool)
		}
	}
	genome := s.dropinGenome()
	tools, runs := []string{"bowtie2", "hisat2", "kallisto"}, 2
	if soak {
		tools, runs = nil, 3 // all tools
	}
	s.must(filepath.Join(example, "prepare.sh"), append([]string{genome, s.dir}, tools...)...)
	s.must("mkdir", "reads", "user")
	for i := range 3 {
		r := s.path(fmt.Sprintf("reads/S%d_", i+1))
		s.must("wgsim", "-S", fmt.Sprint(5+i), "-N", "1000", "-1", "100", "-2", "100", genome, r+"1.fq", r+"2.fq")
	}
	has := func(file string) bool { _, err := os.Stat(s.path("ref/" + file)); return err == nil }

	for _, m := range []struct {
		name    string
		needs   []string // files in the directory ref
		command func(out string) []string
		hot     func(shims string) (env, args []string) // settings of the manager; nil if it uses the shims in front of PATH
	}{
		{"nextflow", nil, func(out string) []string {
			var list []string
			for tool, file := range map[string]string{"bwa": "genome.fa", "minimap2": "genome.mmi", "bowtie2": "bowtie2.1.bt2", "hisat2": "hisat2.1.ht2", "kallisto": "kallisto.idx", "salmon": "salmon", "kraken2": "kraken2", "diamond": "diamond.dmnd"} {
				if has(file) {
					list = append(list, tool)
				}
			}
			return []string{"nextflow", "-log", s.path(out + ".log"), "run", filepath.Join(example, "main.nf"), "-work-dir", s.path(out + ".work"), "-with-trace", s.path(out + ".trace.txt"), "--tools", strings.Join(list, ","),
				"--ref", s.path("ref"), "--reads", s.path("reads"), "--out", s.path(out)}
		}, func(shims string) (env, args []string) {
			return []string{"PREMIX_SHIMS=" + shims}, []string{"-c", filepath.Join(dist, "nextflow/premix.config"), "-profile", "hot"}
		}},
		{"snakemake", nil, func(out string) []string {
			return []string{"snakemake", "-q", "-c", "2", "-s", filepath.Join(example, "Snakefile"), "--directory", s.path(out), "--config", "ref=" + s.path("ref"), "reads=" + s.path("reads")}
		}, func(shims string) (env, args []string) {
			return []string{"PREMIX_SHIMS=" + shims, "BASH_ENV=" + shims + "/env.sh"}, []string{"--profile", filepath.Join(dist, "snakemake/premix")}
		}},
		{"make", nil, func(out string) []string {
			return []string{"make", "-s", "-j", "2", "-f", filepath.Join(example, "Makefile"), "REF=" + s.path("ref"), "READS=" + s.path("reads"), "OUT=" + s.path(out)}
		}, nil},
		{"parallel", []string{"hisat2.1.ht2"}, func(out string) []string {
			return []string{filepath.Join(example, "run.sh"), s.dir, s.path(out)}
		}, nil},
	} {
		t.Run(m.name, func(t *testing.T) {
			s := &scene{t: t, dir: s.dir, bin: s.bin, mark: s.mark, user: s.user}
			if m.name == "nextflow" || m.name == "snakemake" {
				s.ecosystem(m.name)
			} else if _, err := s.run("which", m.name); err != nil {
				t.Skipf("%s is not installed: scripts/setup.sh bench installs it", m.name)
			}
			for _, file := range m.needs {
				if !has(file) {
					t.Skipf("%s is missing: its tool is not installed", file)
				}
			}
			// The paths have the same length in all runs, because the outputs contain them.
			out := func(n int) string { return fmt.Sprintf("out-%s-%d", m.name, n) }
			var env, settings []string
			run := func(n int) map[string]string {
				t.Helper()
				args := append(append(append([]string{"env"}, env...), m.command(out(n))...), settings...)
				s.must(args[0], args[1:]...)
				// Background processes of the calls end before the next run.
				var left []string
				if !comes(func() bool { left = s.marked(); return len(left) == 0 }) {
					t.Fatalf("processes are left: %q", left)
				}
				files := s.files(out(n))
				for name, text := range files { // tools print their command lines, which contain the directory
					files[name] = strings.ReplaceAll(text, out(n), "out")
				}
				return files
			}
			want := run(0)
			if len(want) < 6 {
				t.Fatalf("there are %d outputs", len(want))
			}
			if m.hot == nil {
				s.bin = append([]string{strings.TrimSpace(s.must("premix", "shim", "--all", "--dir", s.path("shims")))}, s.bin...)
			} else {
				env, settings = m.hot(strings.TrimSpace(s.must("premix", "shim", "--all", "--container", "--dir", s.path("settings"))))
			}
			before := starts(s.nodeReport())
			var traced toolStarts
			// Snapshots are prepared one at a time, while calls start cold.
			for n := 1; n <= runs || len(s.unused()) > 0 && n < 8; n++ {
				got := run(n)
				if len(got) != len(want) {
					t.Errorf("run %d: %d outputs, want %d", n, len(got), len(want))
				}
				for name, text := range want {
					if got[name] != text {
						t.Errorf("run %d: %s differs", n, name)
					}
				}
				if m.name == "nextflow" {
					s.addTrace(&traced, out(n)+".trace.txt")
				}
			}
			if now := starts(s.nodeReport()); m.name == "nextflow" && (now.Hot-before.Hot != traced.Hot || now.Cold-before.Cold != traced.Cold) {
				t.Errorf("the traces have %d hot and %d cold starts, the table %d and %d", traced.Hot, traced.Cold, now.Hot-before.Hot, now.Cold-before.Cold)
			}
		})
	}
	if tools := s.unused(); len(tools) > 0 {
		t.Errorf("%q have a snapshot, and did not start hot", tools)
	}
	hot := 0
	report := s.nodeReport()
	for _, r := range report {
		hot += r.Hot
	}
	if len(report) < 2 || hot == 0 {
		t.Errorf("the links recorded starts of %d tools, %d of them hot", len(report), hot)
	}
}

// toolStarts counts the starts of a tool in the report on a node.
type toolStarts struct {
	Tool      string
	Hot, Cold int
	Why       string
}

func (s *scene) nodeReport() []toolStarts {
	s.t.Helper()
	var report struct{ Tools []toolStarts }
	if err := json.Unmarshal([]byte(s.must("premix", "report", "--node", "--json")), &report); err != nil {
		s.t.Fatal(err)
	}
	return report.Tools
}

// starts returns the sums over a report.
func starts(report []toolStarts) (sum toolStarts) {
	for _, r := range report {
		sum.Hot, sum.Cold = sum.Hot+r.Hot, sum.Cold+r.Cold
	}
	return sum
}

// addTrace adds the starts in a trace file of Nextflow.
func (s *scene) addTrace(sum *toolStarts, trace string) {
	s.t.Helper()
	var rows []struct{ Hot, Cold string }
	if err := json.Unmarshal([]byte(s.must("premix", "report", "--nextflow", trace, "--json")), &rows); err != nil {
		s.t.Fatal(err)
	}
	for _, row := range rows {
		hot, err := strconv.Atoi(row.Hot)
		cold, err2 := strconv.Atoi(row.Cold)
		if err != nil || err2 != nil {
			s.t.Fatalf("a row has the starts %+v", row)
		}
		sum.Hot, sum.Cold = sum.Hot+hot, sum.Cold+cold
	}
}

// unused returns the tools that have a snapshot, but have not started hot.
func (s *scene) unused() []string {
	s.t.Helper()
	hot := map[string]int{}
	for _, r := range s.nodeReport() {
		hot[r.Tool] = r.Hot
		s.t.Logf("%-10s %3d hot, %3d cold, the last since %s", r.Tool, r.Hot, r.Cold, r.Why)
	}
	var status struct{ Snapshots []struct{ Tool string } }
	if err := json.Unmarshal([]byte(s.must("premix", "hot", "status", "--json")), &status); err != nil {
		s.t.Fatal(err)
	}
	var tools []string
	for _, snapshot := range status.Snapshots {
		if hot[snapshot.Tool] == 0 {
			tools = append(tools, snapshot.Tool)
		}
	}
	return tools
}
