package inplace

import (
	"os"
	"os/exec"
	"testing"
)

// testData is the directory of real data, or skips the test.
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

// wantHotTimed is wantHot for a tool that writes times to standard error.
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
