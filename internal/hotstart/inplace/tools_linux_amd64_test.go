package inplace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// testData returns the directory of real data, or skips the test.
func testData(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PREMIX_TESTDATA")
	if dir == "" {
		t.Skip("needs PREMIX_TESTDATA, the directory of real data")
	}
	return dir
}

// program finds a program, or skips the test.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s (scripts/setup.sh)", name)
	}
	return path
}

// shell runs a script in the place's directory.
func (p *place) shell(script string) {
	p.t.Helper()
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// samples makes two samples of paired reads, SRR5204809 and SRR5204810, and a genome.
func (p *place) samples(data string) {
	p.t.Helper()
	p.shell(`gzip -dc ` + data + `/spneumo/GCF_001457635.fna.gz | head -n 8000 >genome.fa
for i in 1 2; do
	gzip -dc ` + data + `/spneumo/ERR1438863_R$i.fastq.gz 2>/dev/null | head -n 2000 | gzip >SRR5204809_$i.fq.gz
	gzip -dc ` + data + `/spneumo/ERR1438863_R$i.fastq.gz 2>/dev/null | head -n 5000 | tail -n 2800 | gzip >SRR5204810_$i.fq.gz
done`)
}

func TestBWA(t *testing.T) {
	exe := program(t, "bwa")
	p := newPlace(t)
	p.samples(testData(t))
	p.shell("bwa index genome.fa 2>&1")
	v := func(name string) invocation {
		return invocation{exe: exe, args: []string{"mem", "-R", `@RG\tID:{label:` + name + `}\tSM:{label:` + name + `}`, "genome.fa", "{input:" + name + "_1.fq.gz}", "{input:" + name + "_2.fq.gz}"}}
	}
	p.mustPrepare(v("SRR5204809"))
	for _, name := range []string{"SRR5204809", "SRR5204810"} {
		p.wantHotTimed(v(name))
	}
	p.shell("head -c 3000 SRR5204810_1.fq.gz >SRR5204811_1.fq.gz; cp SRR5204810_2.fq.gz SRR5204811_2.fq.gz")
	p.wantHotTimed(v("SRR5204811")) // truncated
	p.wantHotTimed(v("SRR5204812")) // missing
}

// wantHotTimed is like wantHot for a tool that writes times to standard error.
func (p *place) wantHotTimed(v invocation) {
	p.t.Helper()
	p.timed = true
	p.wantHot(v)
}

func TestMinimap2(t *testing.T) {
	exe := program(t, "minimap2")
	p := newPlace(t)
	p.samples(testData(t))
	p.shell("minimap2 -x sr -d genome.mmi genome.fa 2>&1")
	v := func(name string) invocation {
		return invocation{exe: exe, args: []string{"-a", "-x", "sr", "-t", "2", "-R", `@RG\tID:{label:` + name + `}\tSM:{label:` + name + `}`, "genome.mmi", "{input:" + name + "_1.fq.gz}", "{input:" + name + "_2.fq.gz}"}}
	}
	p.mustPrepare(v("SRR5204809"))
	for _, name := range []string{"SRR5204809", "SRR5204810"} {
		p.wantHotTimed(v(name))
	}
}

// TestEarlyAligners uses aligners that look at their reads before they load their index.
func TestEarlyAligners(t *testing.T) {
	for _, c := range []struct{ program, build, ending, threads string }{
		{"bowtie2-align-s", "bowtie2-build", ".fq", "1"},
		{"bowtie2-align-s", "bowtie2-build", ".fq.gz", "3"},
		{"bowtie2-align-s", "bowtie2-build", ".fq.gz", "2 --reorder"},
		{"hisat2-align-s", "hisat2-build", ".fq", "1"},
		{"hisat2-align-s", "hisat2-build", ".fq", "3 --no-temp-splicesite"},
	} {
		t.Run(c.program+c.ending+" "+c.threads, func(t *testing.T) {
			exe := program(t, c.program)
			p := newPlace(t)
			p.samples(testData(t))
			p.shell(c.build + ` -q genome.fa genome >build.log 2>&1
for i in 1 2; do cp SRR5204810_$i.fq.gz SRR77_$i.fq.gz; head -c 3000 SRR5204810_$i.fq.gz >SRR5204811_$i.fq.gz; done
for f in *.fq.gz; do gzip -dcf $f >${f%.gz} || test $f != ${f#SRR5204811}; done`)
			p.mixed = strings.HasPrefix(c.threads, "3")
			v := func(name string) invocation {
				args := strings.Fields("--wrapper basic-0 -x genome --rg-id {label:NAME} -1 {input:NAME_1END} -2 {input:NAME_2END} -S {output:NAME.sam} -p " + c.threads)
				for i := range args {
					args[i] = strings.NewReplacer("NAME", name, "END", c.ending).Replace(args[i])
				}
				return invocation{exe: exe, args: args}
			}
			p.mustPrepare(v("SRR5204809"))
			p.wantHotTimed(v("SRR5204809"))
			p.wantHotTimed(v("SRR5204810"))
			// If the sample is larger than the probe, the parts that a direct start writes vary.
			if !p.mixed {
				p.wantHotTimed(v("SRR5204811")) // truncated, with a size between the compared sizes
			}
			p.wantCold(v("SRR5204812"), `"missing" instead of "file"`)
			p.wantCold(v("SRR77"), NotPrepared)
			p.shell("rm SRR77.sam") // a tool that makes this file would start cold
			p.mustPrepare(v("SRR77"))
			p.wantHotTimed(v("SRR77"))
		})
	}
}

// TestKallisto uses a tool that keeps the time of its start as text, and writes it at its end.
func TestKallisto(t *testing.T) {
	exe := program(t, "kallisto")
	p := newPlace(t)
	p.samples(testData(t))
	p.dated, p.timed = true, true
	p.shell("kallisto index -i index.kal genome.fa 2>&1")
	v := func(name string) invocation {
		return invocation{exe: exe, args: []string{"quant", "-i", "index.kal", "-o", "{output:" + name + ".quant}", "{input:" + name + "_1.fq.gz}", "{input:" + name + "_2.fq.gz}"}}
	}
	p.mustPrepare(v("SRR5204809"))
	for _, name := range []string{"SRR5204809", "SRR5204810"} {
		p.wantHot(v(name))
	}
}

// TestSTAR uses a tool that writes the time to a log and to standard output before it reads its
// input.
func TestSTAR(t *testing.T) {
	exe := program(t, "STAR")
	p := newPlace(t)
	p.samples(testData(t))
	p.dated, p.timed = true, true
	p.shell(`for f in *.fq.gz; do gzip -dc $f >${f%.gz}; done
mkdir genome; STAR --runMode genomeGenerate --genomeDir genome --genomeFastaFiles genome.fa --genomeSAindexNbases 8 >star.log 2>&1`)
	if programs, err := filepath.Glob("/usr/lib/rna-star/bin/STAR-plain"); err == nil && len(programs) > 0 {
		exe = programs[0] // STAR is a script that executes this program
	}
	v := func(name string) invocation {
		return invocation{exe: exe, rates: []string{"VmPeak:.*", "Mapping speed, .*"},
			args: []string{"--genomeDir", "genome", "--outFileNamePrefix", "{output:" + name + ".}", "--readFilesIn", "{input:" + name + "_1.fq}", "{input:" + name + "_2.fq}"}}
	}
	p.mustPrepare(v("SRR5204809"))
	for _, name := range []string{"SRR5204809", "SRR5204810"} {
		p.wantHot(v(name))
		p.shell("rm -r " + name + ".*")
	}
}

// TestSTARReads uses the same tool with compressed reads. It makes processes before it loads its
// index, and compresses its command into the header of its BAM file after that.
func TestSTARReads(t *testing.T) {
	exe := program(t, "STAR")
	p := newPlace(t)
	p.samples(testData(t))
	p.dated, p.timed = true, true
	p.shell(`mkdir genome; STAR --runMode genomeGenerate --genomeDir genome --genomeFastaFiles genome.fa --genomeSAindexNbases 8 >star.log 2>&1`)
	if programs, err := filepath.Glob("/usr/lib/rna-star/bin/STAR-plain"); err == nil && len(programs) > 0 {
		exe = programs[0] // STAR is a script that executes this program
	}
	for _, output := range []string{"SAM", "BAM Unsorted"} {
		v := func(name string) invocation {
			args := []string{"--genomeDir", "genome", "--outFileNamePrefix", "{output:" + name + ".}", "--readFilesCommand", "gzip", "-dc",
				"--readFilesIn", "{input:" + name + "_1.fq.gz}", "{input:" + name + "_2.fq.gz}", "--outSAMtype"}
			return invocation{exe: exe, rates: []string{"VmPeak:.*", "Mapping speed, .*"}, args: append(args, strings.Fields(output)...)}
		}
		p.mustPrepare(v("SRR5204809"))
		for _, name := range []string{"SRR5204809", "SRR5204810"} {
			p.wantHot(v(name))
			p.shell("rm -r " + name + ".*")
		}
	}
}

func TestDiamond(t *testing.T) {
	exe := program(t, "diamond")
	p := newPlace(t)
	proteins := testData(t) + "/blast/prokka_Archaea_sprot.faa"
	p.shell("head -c 400000 " + proteins + " >p.faa; diamond makedb --quiet --in p.faa -d index")
	v := func(name string) invocation {
		return invocation{exe: exe, args: []string{"blastp", "--quiet", "-p", "2", "-d", "index", "-q", "{input:" + name + ".faa}", "-o", "{output:" + name + ".tsv}"}}
	}
	for i, name := range []string{"sample4", "sample5", "sample6"} {
		p.shell(fmt.Sprintf("awk '/^>/{n++} n>%d && n<=%d' p.faa >%s.faa", 10*i, 10*i+5*i+3, name))
		if i == 0 {
			p.mustPrepare(v(name))
		}
		p.wantHot(v(name))
	}
}

// TestInterpreters calls scripts of interpreters, which copy their environment, in directories of
// one length, as workflow managers make them.
func TestInterpreters(t *testing.T) {
	for name, script := range map[string]string{
		"python3": "import sys, os, json, re\nprint(sum(len(l) for l in open(sys.argv[1])), os.environ['RUN'], os.environ['PWD'], os.getcwd() == os.environ['PWD'])\n",
		"perl":    "use POSIX; use Data::Dumper; open(my $f, '<', $ARGV[0]) or die; my $n = 0; while (<$f>) { $n += length } print \"$n $ENV{RUN} $ENV{PWD}\\n\";\n",
	} {
		t.Run(name, func(t *testing.T) {
			exe := program(t, "/usr/bin/"+name)
			p := newPlace(t)
			scripts := t.TempDir()
			path := filepath.Join(scripts, "script")
			if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
				t.Fatal(err)
			}
			first, second, longer := p.elsewhere(strings.Repeat("a", 120)), p.elsewhere(strings.Repeat("b", 120)), p.elsewhere(strings.Repeat("c", 121))
			v := func(dir, run, input string) invocation {
				return invocation{exe: exe, dir: dir, args: []string{path, "{input:" + input + "_1.fq}"}, late: []string{"RUN"},
					env: []string{"RUN=" + run, "OLDPWD=" + dir, "SHLVL=2", "_=/usr/bin/env", "LC_ALL=C"}}
			}
			p.mustPrepare(v(first, "task-1", "SRR5204809"))
			p.wantHot(v(first, "task-1", "SRR5204809"))
			p.wantHot(v(second, "task-2", "SRR5204810"))
			p.wantCold(v(second, "task-10", "SRR5204810"), "the variable RUN")
			p.wantCold(v(longer, "task-2", "SRR5204810"), "working directory")
			if err := os.WriteFile(path, []byte(script+"#\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			p.wantCold(v(second, "task-2", "SRR5204810"), "script has ")
		})
	}
}
