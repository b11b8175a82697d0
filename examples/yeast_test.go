package examples

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// workflow returns the path of a script of the example.
func workflow(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("yeast-variants", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// records returns the lines of a VCF file except for the header.
func records(t *testing.T, text string) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	if len(list) == 0 {
		t.Fatalf("there are no calls:\n%.2000s", text)
	}
	return list
}

// same checks that two methods give the same calls.
func same(t *testing.T, way string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d calls, want %d", way, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: call %d is\n%s, want\n%s", way, i, got[i], want[i])
		}
	}
}

// generated writes a small random genome and paired reads of three samples.
func (s *scene) generated() (genome, sheet string) {
	s.t.Helper()
	random := rand.New(rand.NewPCG(7, 7))
	var text strings.Builder
	for i, size := range []int{60000, 40000, 25000} {
		fmt.Fprintf(&text, ">chr%d\n", i+1)
		for at := 0; at < size; at += 60 {
			line := make([]byte, min(60, size-at))
			for k := range line {
				line[k] = "ACGT"[random.IntN(4)]
			}
			fmt.Fprintf(&text, "%s\n", line)
		}
	}
	s.write("genome.fa", text.String())
	var samples [][3]string
	for i, name := range []string{"A", "B", "C"} {
		r1, r2 := s.path(name+".1.fq"), s.path(name+".2.fq")
		s.must("wgsim", "-S", fmt.Sprint(5+i), "-N", "3000", "-1", "100", "-2", "100", "-r", "0.002", "-e", "0.005", s.path("genome.fa"), r1, r2)
		samples = append(samples, [3]string{name, r1, r2})
	}
	return s.path("genome.fa"), s.sheet(samples)
}

// real splits the real reads into four samples. Only soak runs use all reads.
func (s *scene) real() (genome, sheet string) {
	s.t.Helper()
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		s.t.Skip("PREMIX_TESTDATA is not set: the yeast genome and real reads are not here")
	}
	const parts = 4
	most := 15000 // highest number of pairs
	if soak {
		most = 1 << 30
	}
	var samples [parts][3]string
	for mate := 1; mate <= 2; mate++ {
		f, err := os.Open(filepath.Join(data, "yeast", fmt.Sprintf("SRR5204809_chip_PE_100k_R%d.fastq.gz", mate)))
		if err != nil {
			s.t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			s.t.Fatal(err)
		}
		var out [parts]*bufio.Writer
		for i := range out {
			name := fmt.Sprintf("part%d.%d.fq", i+1, mate)
			file, err := os.Create(s.path(name))
			if err != nil {
				s.t.Fatal(err)
			}
			defer file.Close()
			out[i] = bufio.NewWriter(file)
			samples[i][0], samples[i][mate] = fmt.Sprintf("part%d", i+1), s.path(name)
		}
		r := bufio.NewReader(z)
		for line := 0; line < 4*most; line++ {
			text, err := r.ReadSlice('\n')
			if err == io.EOF {
				break
			}
			if err == nil {
				_, err = out[line/4%parts].Write(text)
			}
			if err != nil {
				s.t.Fatal(err)
			}
		}
		for _, w := range out {
			if err := w.Flush(); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return filepath.Join(data, "yeast", "genome.R64.fa.gz"), s.sheet(samples[:])
}

// plain is the workflow as a shell script, without premix and without a scatter.
const plain = `
mkdir plain
tail -n +2 work/samples.csv | while IFS=, read -r sample r1 r2; do
	bwa mem work/ref/genome.fa $r1 $r2 2>/dev/null |
		samtools addreplacerg -u -r "ID:$sample" -r "SM:$sample" -r PL:ILLUMINA - |
		samtools fixmate -m - - | samtools sort - | samtools markdup - plain/$sample.bam
	samtools index plain/$sample.bam
done
while read -r region; do
	bcftools mpileup -r $region -f work/ref/genome.fa -Ou plain/*.bam 2>/dev/null | bcftools call -mv -Ou 2>/dev/null | bcftools view -Ov
done <work/regions.txt | grep -v '^#'
`

func TestYeastVariants(t *testing.T) {
	for _, data := range []struct {
		name  string
		make  func(*scene) (genome, sheet string)
		calls int // lowest number of calls
	}{
		{"generated", (*scene).generated, 200},
		{"real", (*scene).real, 10},
	} {
		t.Run(data.name, func(t *testing.T) {
			s := newScene(t)
			genome, sheet := data.make(s)
			s.must(workflow(t, "prepare.sh"), "work", genome, sheet)
			if n := strings.Count(s.read("work/regions.txt"), "\n"); n != 64 {
				t.Errorf("%d regions", n)
			}
			want := records(t, s.must("bash", "-euo", "pipefail", "-c", plain))
			t.Logf("%d calls", len(want))
			if len(want) < data.calls {
				t.Errorf("only %d calls", len(want))
			}
			t.Run("tasks", func(t *testing.T) {
				s := s.of(t)
				out := s.must(workflow(t, "run.sh"), "work")
				t.Log(out)
				got := records(t, s.read("work/out/calls.vcf"))
				same(t, "tasks", got, want)
				if out := s.must("premix", "report", "work/out/tasks", "--usage"); !strings.Contains(out, "markdup") {
					t.Error(out)
				}
				// A repeated run succeeds although nothing is left to do.
				s.must(workflow(t, "run.sh"), "work")
			})
			if !soak {
				return // the workflow managers take minutes on a busy machine
			}
			t.Run("nextflow", func(t *testing.T) {
				s := s.of(t)
				s.ecosystem("nextflow")
				s.shim()
				s.write("nextflow.config", "process.executor = 'slurm'\nexecutor.pollInterval = '500ms'\nexecutor.queueStatInterval = '2s'\n")
				s.must("nextflow", "run", workflow(t, "main.nf"), "--work", s.path("work"))
				same(t, "Nextflow", records(t, s.read("work/nextflow/calls.vcf")), want)
				if out := s.must("premix", "report", s.path("shim"), "--usage"); !strings.Contains(out, "MARKDUP") {
					t.Error(out)
				}
			})
			t.Run("snakemake", func(t *testing.T) {
				s := s.of(t)
				s.ecosystem("snakemake")
				s.shim()
				s.must("snakemake", "--snakefile", workflow(t, "Snakefile"), "--directory", s.path("work"), "--executor", "slurm", "--jobs", "4",
					"--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "1", "--default-resources", "runtime=30", "mem_mb=2000")
				same(t, "Snakemake", records(t, s.read("work/snakemake/calls.vcf")), want)
			})
		})
	}
}

// of returns the scene for a subtest.
func (s *scene) of(t *testing.T) *scene {
	c := *s
	c.t = t
	return &c
}
