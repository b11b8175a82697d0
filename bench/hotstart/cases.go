package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/hotstart"
	"premix/internal/recipe"
)

// benchCase is one tool with one reference.
type benchCase struct {
	name  string // tool-reference; synth-SIZE
	spec  hotstart.Spec
	index string // file that the tool loads; empty if it loads no file
	// samples maps a sample's name to its inputs, in the form of hotstart.Task.
	samples map[string]map[string]string
	reads   map[string]int // records of a sample; a pair is one record
	large   bool
	synth   int // megabytes; 0: a real tool
}

// Names of samples.
const (
	startSample = "start" // few reads, to measure the start
	shortSample = "short" // with longSample, to measure the mapping
	longSample  = "long"
	pagesSample = "pages" // synth touches all of its memory and waits
	rateSample  = "rate"  // synth reads at random
)

// Real reads, in the test data.
var (
	chipPairs = [2]string{"yeast/SRR5204809_chip_PE_100k_R1.fastq.gz", "yeast/SRR5204809_chip_PE_100k_R2.fastq.gz"}
	rnaReads  = "yeast/SRR4238379_rnaseq_SE51_100k.fastq.gz"
)

// readCounts are the sizes of the samples.
type readCounts struct{ start, short, long int }

// reference is a genome with its reads.
type reference struct {
	name  string
	fasta func() (string, error)
	pairs [2]string // real reads; empty: generated
	rna   string
	large bool
	// transcripts is set if the FASTA file has too many sequences for wgsim.
	transcripts bool
}

// caseMaker makes the cases of a benchmark.
type caseMaker struct {
	*data
	counts readCounts
}

func (m *caseMaker) references() []reference {
	return []reference{
		{name: "yeast", fasta: m.small, pairs: chipPairs, rna: rnaReads},
		{name: "large", fasta: m.large, large: true},
	}
}

// tools maps the name of a real tool to the maker of its cases.
func (m *caseMaker) tools() map[string]func(reference, string) (*benchCase, error) {
	return map[string]func(reference, string) (*benchCase, error){
		"bwa": m.bwa, "minimap2": m.minimap2, "kallisto": m.kallisto, "star": m.star,
	}
}

// toolOrder is the order of the tools in tables.
var toolOrder = []string{"bwa", "minimap2", "kallisto", "star"}

func (m *caseMaker) bwa(ref reference, fasta string) (*benchCase, error) {
	index, err := m.make("bwa-"+ref.name, func(path string) error {
		if err := os.Mkdir(path, 0o777); err != nil {
			return err
		}
		return run(path, "bwa", "index", "-p", "genome", fasta)
	})
	if err != nil {
		return nil, err
	}
	return m.aligner("bwa", ref, fasta, index, false, `command: bwa mem -t ${threads} ${data.index}/genome ${r1} ${r2}
outputs: {stdout: "${sample}.sam"}
`)
}

func (m *caseMaker) minimap2(ref reference, fasta string) (*benchCase, error) {
	index, err := m.make("minimap2-"+ref.name+".mmi", func(path string) error {
		return run(m.dir, "minimap2", "-x", "sr", "-d", path, fasta)
	})
	if err != nil {
		return nil, err
	}
	return m.aligner("minimap2", ref, fasta, index, false, `command: minimap2 -a -x sr -t ${threads} ${data.index} ${r1} ${r2}
outputs: {stdout: "${sample}.sam"}
`)
}

func (m *caseMaker) kallisto(ref reference, fasta string) (*benchCase, error) {
	var pieces string
	var err error
	if ref.large {
		ref.transcripts = true
		pieces, err = m.transcripts()
		fasta = pieces
	} else {
		pieces, err = m.pieces("pieces-"+ref.name+".fa", fasta)
	}
	if err != nil {
		return nil, err
	}
	index, err := m.make("kallisto-"+ref.name+".idx", func(path string) error {
		return run(m.dir, "kallisto", "index", "-i", path, pieces)
	})
	if err != nil {
		return nil, err
	}
	return m.aligner("kallisto", ref, fasta, index, false, `command: kallisto quant --plaintext -t ${threads} -i ${data.index} -o ${out} ${r1} ${r2}
outputs: {out: "${sample}/"}
varies:  [{file: out/run_info.json}]
`)
}

func (m *caseMaker) star(ref reference, fasta string) (*benchCase, error) {
	index, err := m.make("star-"+ref.name, func(path string) error {
		if err := os.Mkdir(path, 0o777); err != nil {
			return err
		}
		args := []string{"--runMode", "genomeGenerate", "--runThreadN", "2", "--genomeDir", path, "--genomeFastaFiles", fasta,
			"--limitGenomeGenerateRAM", "6442450944", "--outFileNamePrefix", path + "/"}
		// STAR's manual recommends min(14, log2(length)/2 - 1).
		if ref.large {
			args = append(args, "--genomeSAindexNbases", "12")
		} else {
			args = append(args, "--genomeSAindexNbases", "10")
			if gtf := m.real("yeast/genes.chrI-II.gtf"); gtf != "" {
				args = append(args, "--sjdbGTFfile", gtf, "--sjdbOverhang", "50")
			}
		}
		return run(m.dir, "STAR", args...)
	})
	if err != nil {
		return nil, err
	}
	return m.aligner("star", ref, fasta, index, true, `command: STAR --runThreadN ${threads} --genomeDir ${data.index} --readFilesIn ${r1} --outFileNamePrefix ${out}/
outputs: {out: "${sample}/"}
ready:   read
varies:  [{file: stdout}, {file: out/Log.out}, {file: out/Log.progress.out}, {file: out/Log.final.out}]
`)
}

// aligner completes the case of a real tool; text is the part of the recipe that differs
// between tools.
func (m *caseMaker) aligner(tool string, ref reference, fasta, index string, single bool, text string) (*benchCase, error) {
	c := &benchCase{name: tool + "-" + ref.name, index: index, large: ref.large, reads: map[string]int{
		startSample: m.counts.start, shortSample: m.counts.short, longSample: m.counts.long}}
	rows := map[string][]string{}
	for name, n := range c.reads {
		if single {
			path, err := m.singles(ref.name+"-rna", fasta, ref.rna, n)
			if err != nil {
				return nil, err
			}
			rows[name] = []string{path}
			continue
		}
		from, of := fasta, ref.name
		if ref.transcripts {
			var err error
			of = "transcripts"
			if from, err = m.spread(fmt.Sprintf("transcripts-%d.fa", n/2), fasta, n/2); err != nil {
				return nil, err
			}
		}
		pair, err := m.pairs(of, from, ref.pairs, n)
		if err != nil {
			return nil, err
		}
		rows[name] = pair[:]
	}
	columns := []string{"r1", "r2"}
	if single {
		columns = columns[:1]
	}
	text += fmt.Sprintf("data:    {index: %q}\ninputs:  [%s]\n", index, strings.Join(columns, ", "))
	return c, m.load(c, text, columns, rows)
}

// synthetic returns the case of a process with this many megabytes.
func (m *caseMaker) synthetic(megabytes int) (*benchCase, error) {
	tool, err := m.synth()
	if err != nil {
		return nil, err
	}
	c := &benchCase{name: fmt.Sprintf("synth-%dm", megabytes), synth: megabytes, large: megabytes >= 1024}
	keys := map[string]string{
		startSample: "read 1000\n",
		pagesSample: "pages\nhold 2000\n",
		rateSample:  strings.Repeat("read 20000000\n", 4) + "hold 500\n",
	}
	rows := map[string][]string{}
	for name, text := range keys {
		path := filepath.Join(m.dir, "synth-"+name+".keys")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			return nil, err
		}
		rows[name] = []string{path}
	}
	text := fmt.Sprintf("command: ${data.tool} %d ${keys}\ndata:    {tool: %q}\ninputs:  [keys]\noutputs: {stdout: \"${sample}.sum\"}\n", megabytes, tool)
	return c, m.load(c, text, []string{"keys"}, rows)
}

// load writes the recipe and the sample sheet, and reads them in the same way as premix.
func (m *caseMaker) load(c *benchCase, text string, columns []string, rows map[string][]string) error {
	dir := filepath.Join(m.dir, "recipes")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	path := filepath.Join(dir, c.name+".yaml")
	if err := os.WriteFile(path, []byte("name: "+c.name+"\n"+strings.TrimPrefix(text, "\n")), 0o666); err != nil {
		return err
	}
	sheet := "sample," + strings.Join(columns, ",") + "\n"
	for name, files := range rows {
		sheet += name + "," + strings.Join(files, ",") + "\n"
	}
	sheetPath := filepath.Join(dir, c.name+".csv")
	if err := os.WriteFile(sheetPath, []byte(sheet), 0o666); err != nil {
		return err
	}
	r, err := recipe.Load(path)
	if err != nil {
		return err
	}
	samples, _, err := r.Sheet(sheetPath)
	if err != nil {
		return err
	}
	c.spec = r.Spec(0, 0)
	c.samples = map[string]map[string]string{}
	for _, s := range samples {
		c.samples[s.Name] = r.Files(s.Inputs)
	}
	return nil
}
