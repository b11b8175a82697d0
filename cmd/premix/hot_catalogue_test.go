package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
)

// catalogued lists the tools of the catalogue in commands of pipelines. Words that begin with
// SAMPLE name files of the sample.
var catalogued = []struct {
	tool, ref, line string
	behind          string // program of which the tool is a script, if it has another name
	ext             string // of the input that the test damages
	times           string // patterns of files that contain times
	hot             bool   // whether it is known to start hot
	short           bool   // whether short runs include it
}{
	{tool: "bwa", ref: "genome.fa.bwt", line: `bwa mem -R '@RG\tID:SAMPLE\tSM:SAMPLE' ref/genome.fa SAMPLE_1.fq.gz SAMPLE_2.fq.gz >SAMPLE.sam`, ext: "_1.fq.gz", hot: true, short: true},
	{tool: "minimap2", ref: "genome.mmi", line: `minimap2 -t 1 -ax sr -R '@RG\tID:SAMPLE\tSM:SAMPLE' -o SAMPLE.sam ref/genome.mmi SAMPLE_1.fq.gz SAMPLE_2.fq.gz`, ext: "_1.fq.gz", hot: true, short: true},
	{tool: "bowtie2", ref: "bowtie2.1.bt2", line: `bowtie2 -x ref/bowtie2 --rg-id SAMPLE -1 SAMPLE_1.fq.gz -2 SAMPLE_2.fq.gz -S SAMPLE.sam`, ext: "_1.fq.gz", hot: true, short: true},
	{tool: "hisat2", ref: "hisat2.1.ht2", line: `hisat2 -x ref/hisat2 --rg-id SAMPLE -1 SAMPLE_1.fq -2 SAMPLE_2.fq -S SAMPLE.sam`, ext: "_1.fq", hot: true},
	{tool: "hisat2", ref: "hisat2.1.ht2", line: `hisat2 -x ref/hisat2 --rg-id SAMPLE -1 SAMPLE_1.fq.gz -2 SAMPLE_2.fq.gz | sed '/^@PG/s/[0-9]*.inpipe/inpipe/g' >SAMPLE.sam`, ext: "_1.fq.gz", hot: true},
	{tool: "STAR", ref: "star/SA", line: `STAR --genomeDir ref/star --readFilesIn SAMPLE_1.fq SAMPLE_2.fq --outFileNamePrefix SAMPLE.`, ext: "_1.fq", times: "*Log*.out descriptor?1", hot: true},
	{tool: "STAR", ref: "star/SA", line: `STAR --genomeDir ref/star --readFilesIn SAMPLE_1.fq.gz SAMPLE_2.fq.gz --readFilesCommand zcat --outSAMtype BAM Unsorted --outFileNamePrefix SAMPLE.`, ext: "_1.fq.gz", times: "*Log*.out descriptor?1", hot: true},
	{tool: "salmon", ref: "salmon/info.json", line: `salmon quant --noEffectiveLengthCorrection -i ref/salmon -l IU -p 1 -1 SAMPLE_1.fq.gz -2 SAMPLE_2.fq.gz -o SAMPLE`, ext: "_1.fq.gz", times: "*.log *.json"},
	{tool: "kallisto", ref: "kallisto.idx", line: `kallisto quant --plaintext -t 1 -i ref/kallisto.idx -o SAMPLE SAMPLE_1.fq.gz SAMPLE_2.fq.gz`, ext: "_1.fq.gz", times: "run_info.json", hot: true, short: true},
	{tool: "kraken2", ref: "kraken2/hash.k2d", line: `kraken2 --db ref/kraken2 --paired --report SAMPLE.txt --output SAMPLE.out SAMPLE_1.fq SAMPLE_2.fq`, ext: "_1.fq", behind: "classify", hot: true},
	{tool: "kraken2", ref: "kraken2/hash.k2d", line: `kraken2 --db ref/kraken2 --gzip-compressed --paired --report SAMPLE.txt --output SAMPLE.out SAMPLE_1.fq.gz SAMPLE_2.fq.gz`, ext: "_1.fq.gz", behind: "classify", hot: true},
	{tool: "diamond", ref: "diamond.dmnd", line: `diamond blastx --threads 1 -d ref/diamond -q SAMPLE.fa -f 6 -o SAMPLE.tsv`, ext: ".fa", hot: true},
	{tool: "mmseqs", ref: "proteins.fa", line: `mmseqs easy-search --threads 1 SAMPLE.faa ref/proteins.fa SAMPLE.tsv tmp`, ext: ".faa", times: "latest"},
	{tool: "blastn", ref: "nt.nsq", line: `blastn -num_threads 1 -db ref/nt -query SAMPLE.fa -out SAMPLE.tsv -outfmt 6`, ext: ".fa"},
	{tool: "hmmscan", ref: "p.hmm.h3m", line: `hmmscan --cpu 0 -o SAMPLE.out --tblout SAMPLE.tbl ref/p.hmm SAMPLE.faa`, ext: ".faa", times: "*.out *.tbl"},
}

// catalogueFiles makes the indexes in ref and the samples in reads: S1, S2 and S100 are good, the
// test damages S4 and makes S7 a FIFO.
const catalogueFiles = `gzip -dc DATA/spneumo/GCF_001457635.fna.gz | head -n 8000 >genome
"$SOURCE/examples/drop-in/prepare.sh" genome . TOOLS >log 2>&1
cd ref
if command -v STAR && echo TOOLS | grep -q STAR; then STAR --runMode genomeGenerate --genomeSAindexNbases 8 --genomeDir star --genomeFastaFiles genome.fa --outFileNamePrefix ../; fi >>../log 2>&1
if command -v makeblastdb && echo TOOLS | grep -q blastn; then makeblastdb -in genome.fa -dbtype nucl -out nt; fi >>../log 2>&1
if command -v hmmpress && echo TOOLS | grep -q hmmscan; then
	for i in 1 2 3 4 5 6 7 8; do awk -v n=$i '/^>/ { k++ } k == n' proteins.fa >one; hmmbuild --amino -n p$i one.hmm one; cat one.hmm; done >all 2>>../log
	sed -n '/^HMMER3/,/^\/\//p' all >p.hmm; hmmpress p.hmm
fi >>../log 2>&1
cd ..; mkdir reads; cd reads
n=0
for s in S1 S2 S4 S100; do
	n=$((n + 1))
	for i in 1 2; do
		gzip -dc DATA/spneumo/ERR1438863_R$i.fastq.gz 2>/dev/null | head -n 20000 | tail -n $((n * 2000)) >${s}_$i.fq
		gzip -k ${s}_$i.fq
	done
	awk 'NR % 4 == 1 { print ">" substr($1, 2) } NR % 4 == 2' ${s}_1.fq | head -n 800 >$s.fa
	awk -v n=$n '/^>/ { k++ } k > n && k < n + 8' ../ref/proteins.fa >$s.faa
done`

// outcome is the status of a call with everything that it wrote: files by name, and the streams.
type outcome struct {
	status string
	files  map[string]string
}

// inWork runs a command in a new directory w, which has links to ref and to the files of a sample.
// spoil changes the directory before the call. The last argument may act on the process while it
// runs.
func (d *drop) inWork(t *testing.T, line, sample, path string, spoil func(), meanwhile func(pid int)) outcome {
	t.Helper()
	d.shell(t, "find w -mindepth 1 -delete 2>/dev/null || mkdir w; ln -s ../ref w/ref; for f in reads/"+sample+"[._]*; do test ! -e $f || ln -s ../$f w/; done")
	if spoil != nil {
		spoil()
	}
	given := map[string]bool{}
	for name := range d.tree(t) {
		given[name] = true
	}
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(line, "SAMPLE", sample))
	cmd.Dir, cmd.Env, cmd.SysProcAttr = filepath.Join(d.dir, "w"), d.environ(path), d.user()
	for i := range 2 {
		f, err := os.CreateTemp(d.dir, "stream-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(f.Name())
		defer f.Close()
		if i == 0 {
			cmd.Stdout = f
		} else {
			cmd.Stderr = f
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if meanwhile != nil {
		meanwhile(cmd.Process.Pid)
	}
	_ = cmd.Wait() // the state shows the status
	o := outcome{status: cmd.ProcessState.String(), files: map[string]string{}}
	for name, text := range d.tree(t) {
		if !given[name] {
			o.files[name] = text
		}
	}
	for i, f := range []any{cmd.Stdout, cmd.Stderr} {
		b, err := os.ReadFile(f.(*os.File).Name())
		if err != nil {
			t.Fatal(err)
		}
		o.files[fmt.Sprintf("descriptor %d", i+1)] = string(b)
	}
	return o
}

// tree returns the contents of all files in w.
func (d *drop) tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	root := filepath.Join(d.dir, "w")
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		all[name] = e.Type().String()
		if e.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all[name] = string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// differences returns the names of the parts in which two outcomes differ. In messages and in files
// that match one of the patterns, numbers and the names of months and days may differ.
func differences(a, b outcome, times string) (names []string) {
	if a.status != b.status {
		names = append(names, fmt.Sprintf("the status (%s, %s)", a.status, b.status))
	}
	all := map[string]bool{}
	for name := range a.files {
		all[name] = true
	}
	for name := range b.files {
		all[name] = true
	}
	for name := range all {
		x, inA := a.files[name]
		y, inB := b.files[name]
		timed := name == "descriptor 2"
		for _, pattern := range strings.Fields(times) {
			if ok, _ := path.Match(pattern, path.Base(name)); ok {
				timed = true
			}
		}
		if timed {
			x, y = withoutTimes(x), withoutTimes(y)
		}
		if inA != inB || x != y {
			names = append(names, name)
		}
	}
	return names
}

var days = strings.NewReplacer("Mon", "D", "Tue", "D", "Wed", "D", "Thu", "D", "Fri", "D", "Sat", "D", "Sun", "D")

func withoutTimes(text string) string { return days.Replace(number.ReplaceAllString(text, "N")) }

// lastStart returns how and why the last call of a tool, or of a program that it runs, started.
func (d *drop) lastStart(t *testing.T, tool string) (start, why string) {
	t.Helper()
	for line := range strings.Lines(d.shell(t, `cat "$PREMIX_HOME"/calls/starts.jsonl 2>/dev/null || true`)) {
		var s struct{ Tool, Start, Why string }
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(s.Tool, tool) {
			start, why = s.Start, s.Why
		}
	}
	return start, why
}

// TestHotCatalogue calls the tools of the catalogue directly and through their shims, with three
// samples whose names have the same and a different length, and in all ways in which the tools
// fail. It prints the table of docs/hot.md.
func TestHotCatalogue(t *testing.T) {
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set")
	}
	whole := os.Getenv("PREMIX_SOAK") != ""
	d := newDrop(t)
	var tools []string
	for _, c := range catalogued {
		if c.short || whole {
			tools = append(tools, c.tool)
		}
	}
	d.shell(t, strings.NewReplacer("DATA", data, "TOOLS", strings.Join(tools, " ")).Replace(catalogueFiles))
	for _, c := range catalogued {
		if !c.short && !whole {
			continue
		}
		t.Run(c.tool, func(t *testing.T) {
			if _, err := exec.LookPath(c.tool); err != nil {
				t.Skipf("%v: scripts/setup.sh tools installs it", err)
			}
			if _, err := os.Stat(filepath.Join(d.dir, "ref", c.ref)); err != nil {
				t.Fatalf("%v\n%s", err, d.shell(t, "tail -n 30 log"))
			}
			d.shell(t, "premix shim --dir shims "+c.tool)
			start := map[string]string{} // by sample
			hot := 0
			same := func(how, line, sample string, calls int, spoil func(), meanwhile func(int)) {
				t.Helper()
				want := d.inWork(t, line, sample, "", spoil, meanwhile)
				for range calls {
					got := d.inWork(t, line, sample, d.shims(), spoil, meanwhile)
					d.settle(t)
					if names := differences(want, got, c.times); len(names) > 0 {
						if again := differences(want, d.inWork(t, line, sample, "", spoil, meanwhile), c.times); len(again) > 0 {
							t.Logf("%s, %s: %q differ from one plain call to the next, too", sample, how, again)
							names = slices.DeleteFunc(names, func(name string) bool {
								return slices.Contains(again, name) && !strings.HasPrefix(name, "the status")
							})
						}
						if how == "SIGTERM" { // the signal may come a little sooner or later
							names = slices.DeleteFunc(names, func(name string) bool {
								x, y := withoutTimes(want.files[name]), withoutTimes(got.files[name])
								return strings.HasPrefix(x, y) || strings.HasPrefix(y, x)
							})
						}
						for _, name := range names {
							t.Errorf("%s, %s: %s differs\n%.600s\nplain:\n%.600s", sample, how, name, got.files[name], want.files[name])
						}
					}
					kind, why := d.lastStart(t, cmp.Or(c.behind, c.tool))
					if kind == "hot" {
						hot++
					}
					start[sample+" "+how] = strings.TrimSuffix(kind+": "+why, ": ")
				}
				t.Logf("%s, %s: %s; %s", sample, how, want.status, start[sample+" "+how])
			}
			for _, sample := range []string{"S1", "S2", "S100"} {
				calls := 4
				if sample == "S2" {
					calls = 2
				}
				same("whole", c.line, sample, calls, nil, nil)
				if got := start[sample+" whole"]; c.hot && got != "hot" {
					t.Errorf("%s started %s", sample, got)
				}
			}
			if whole {
				in := func(sample string) string { return filepath.Join(d.dir, "w", sample+c.ext) }
				same("missing", c.line, "S2", 1, func() { _ = os.Remove(in("S2")) }, nil)
				same("truncated", c.line, "S4", 1, func() {
					b, err := os.ReadFile(in("S4"))
					if err == nil {
						err = os.Remove(in("S4"))
					}
					if err == nil {
						err = os.WriteFile(in("S4"), b[:len(b)*2/3-7], 0o644)
					}
					if err != nil {
						t.Fatal(err)
					}
				}, nil)
				same("empty", c.line, "S4", 1, func() {
					if err := os.Remove(in("S4")); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(in("S4"), nil, 0o644); err != nil {
						t.Fatal(err)
					}
				}, nil)
				same("a wrong option", strings.Replace(c.line, c.tool+" ", c.tool+" --no-such-option ", 1), "S1", 1, nil, nil)
				same("SIGTERM", c.line, "S4", 1, func() {
					if err := os.Remove(in("S4")); err != nil {
						t.Fatal(err)
					}
					if err := unix.Mkfifo(in("S4"), 0o600); err != nil {
						t.Fatal(err)
					}
				}, func(pid int) {
					var f *os.File
					opened := func() (ok bool) {
						var err error
						f, err = os.OpenFile(in("S4"), os.O_WRONLY|unix.O_NONBLOCK, 0)
						return err == nil || unix.Kill(pid, 0) != nil || state(pid) == 'Z'
					}
					if !comes(opened) {
						t.Error("the tool does not open its input")
					}
					_ = unix.Kill(-pid, unix.SIGTERM) // it may have ended
					if f != nil {
						f.Close()
					}
				})
				if os.Geteuid() == 0 {
					w := filepath.Join(d.dir, "w")
					d.shell(t, "rm -rf w; mkdir w")
					if err := unix.Mount("tmpfs", w, "tmpfs", 0, "size=16k"); err != nil {
						t.Fatal(err)
					}
					same("no room", c.line, "S2", 1, nil, nil)
					if err := unmount.Dir(w); err != nil {
						t.Error(err)
					}
				}
			}
			if c.hot && hot == 0 {
				t.Error("no call started hot")
			}
			t.Logf("| %s | %s | %s | %d |", c.tool, strings.ReplaceAll(c.line, "SAMPLE", "S1"), start["S100 whole"], hot)
		})
	}
}

// state returns the state letter of a process from proc_pid_stat(5), or 0.
func state(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndexByte(b, ')'); err == nil && i >= 0 && i+2 < len(b) {
		return b[i+2]
	}
	return 0
}
