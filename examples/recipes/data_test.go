package recipes_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// genomePath is the path of the genome of E. coli 536 in Debian's package bowtie-examples.
const genomePath = "/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz"

// The sizes of the E. coli data.
const (
	pairs     = 3000      // per sample
	smallSize = 1_000_000 // bases of the genome that STAR and the transcripts use
	geneEvery = 5000      // bases from the start of one gene to the start of the next
	exonSize  = 600       // bases; a gene has two exons
	intron    = 300       // bases between the exons
)

// The number of reads of each sample from the yeast files. They suffice for several batches
// of a tool, and all kinds of start take at most a minute.
const (
	yeastPairs  = 12_000
	yeastSingle = 20_000
)

// dataset is a directory with a genome and reads, and with the recipes and their indices:
//
//	genome.fa small.fa transcripts.fa genes.gtf
//	reads/
//	RECIPE/RECIPE.yaml RECIPE/ref/ RECIPE/samples.csv
type dataset struct {
	dir   string
	reads map[string][2][]string // maps a prefix of the recipe's index to the files of A and of B
	edit  map[string][]string    // maps a recipe to replacements in the shipped text: old, new, old, new

	mu     sync.Mutex
	placed map[string]error // maps a placed recipe to its error
}

// indexers are the commands that make ./ref of each recipe in the current directory, as the
// comments of the recipes describe. The data set is in the parent directory.
var indexers = map[string][][]string{
	"bwa-mem":  {{"cp", "../genome.fa", "ref/genome.fa"}, {"bwa", "index", "ref/genome.fa"}},
	"minimap2": {{"minimap2", "-x", "sr", "-d", "ref/genome.mmi", "../genome.fa"}},
	"star": {{"STAR", "--runMode", "genomeGenerate", "--genomeDir", "ref", "--genomeFastaFiles", "../small.fa",
		"--sjdbGTFfile", "../genes.gtf", "--genomeSAindexNbases", "8", "--runThreadN", "2", "--outFileNamePrefix", "index/"}},
	"kallisto": {{"kallisto", "index", "-i", "ref/transcripts.idx", "../transcripts.fa"}},
	"salmon":   {{"salmon", "index", "-t", "../transcripts.fa", "-i", "ref/salmon", "-p", "2"}},
}

// place puts a recipe with its index and sample sheet into the data set at its first call,
// and returns the paths of recipe and sheet.
func (d *dataset) place(name string) (recipePath, sheet string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := filepath.Join(d.dir, name)
	if _, ok := d.placed[name]; !ok {
		d.placed[name] = d.build(name, dir)
	}
	return filepath.Join(dir, name+".yaml"), filepath.Join(dir, "samples.csv"), d.placed[name]
}

func (d *dataset) build(name, dir string) error {
	text, err := os.ReadFile(name + ".yaml")
	if err != nil {
		return err
	}
	for edits := d.edit[name]; len(edits) > 0; edits = edits[2:] {
		if n := bytes.Count(text, []byte(edits[0])); n != 1 {
			return fmt.Errorf("%s.yaml: %q stands there %d times, not once", name, edits[0], n)
		}
		text = bytes.Replace(text, []byte(edits[0]), []byte(edits[1]), 1)
	}
	for _, sub := range []string{"ref", "index"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	for _, argv := range indexers[name] {
		if err := tool(dir, argv...); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, name+".yaml"), text, 0o644); err != nil {
		return err
	}
	var sheet strings.Builder
	header := "sample,r1,r2"
	if len(d.reads[name][0]) == 1 {
		header = "sample,r1"
	}
	fmt.Fprintln(&sheet, header)
	for i, sample := range samples {
		fmt.Fprintln(&sheet, sample+","+strings.Join(d.reads[name][i], ","))
	}
	return os.WriteFile(filepath.Join(dir, "samples.csv"), []byte(sheet.String()), 0o644)
}

// tool runs a program and waits for its end.
func tool(dir string, argv ...string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return missing(argv[0], err)
	}
	cmd := exec.Command(path, argv[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return nil
}

func missing(what string, err error) error {
	return fmt.Errorf("%s is not there: run `make setup` (%w)", what, err)
}

// ecoli returns the data set that every machine has.
var ecoli = sync.OnceValues(func() (*dataset, error) {
	dir, err := newDataset("ecoli")
	if err != nil {
		return nil, err
	}
	d := &dataset{dir: dir, placed: map[string]error{}, reads: map[string][2][]string{}}
	genome, err := ecoliGenome()
	if err != nil {
		return nil, err
	}
	genes, transcripts := annotate(genome[:smallSize])
	for name, text := range map[string]string{
		"genome.fa":      fasta("chromosome", genome),
		"small.fa":       fasta("chromosome", genome[:smallSize]),
		"genes.gtf":      genes,
		"transcripts.fa": transcripts,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	dna, err := d.simulate("genome.fa", "dna", "100")
	if err != nil {
		return nil, err
	}
	rna, err := d.simulate("transcripts.fa", "rna", "75")
	if err != nil {
		return nil, err
	}
	for name := range indexers {
		d.reads[name] = rna
	}
	d.reads["bwa-mem"], d.reads["minimap2"] = dna, dna
	return d, nil
})

func newDataset(name string) (string, error) {
	dir := filepath.Join(root, name)
	return dir, os.MkdirAll(filepath.Join(dir, "reads"), 0o755)
}

// ecoliGenome returns the sequence of the genome. If /usr/share/doc is missing, as in
// minimal images of Debian, it downloads the package.
func ecoliGenome() (string, error) {
	path := genomePath
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		dir := filepath.Join(root, "package")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		if err := tool(dir, "sh", "-c", "apt-get -q download bowtie-examples && dpkg-deb -x bowtie-examples_*.deb ."); err != nil {
			return "", fmt.Errorf("%s of Debian's package bowtie-examples is not there, and the package cannot be fetched (as root: apt-get update): %w", genomePath, err)
		}
		path = filepath.Join(dir, genomePath)
	}
	text, err := gunzip(path)
	if err != nil {
		return "", err
	}
	_, sequence, _ := strings.Cut(string(text), "\n")
	sequence = strings.ToUpper(strings.ReplaceAll(sequence, "\n", ""))
	if len(sequence) < smallSize {
		return "", fmt.Errorf("%s has %d bases only", path, len(sequence))
	}
	return sequence, nil
}

// annotate places genes of two exons on a sequence. It returns them as GTF, and their
// transcripts as FASTA.
func annotate(sequence string) (genes, transcripts string) {
	var gtf, fa strings.Builder
	for n, start := 1, geneEvery/2; start+2*exonSize+intron <= len(sequence); n, start = n+1, start+geneEvery {
		second := start + exonSize + intron
		for _, from := range []int{start, second} {
			// GTF counts from 1, and its intervals include the end.
			fmt.Fprintf(&gtf, "chromosome\ttest\texon\t%d\t%d\t.\t+\t.\tgene_id \"g%d\"; transcript_id \"t%d\";\n", from+1, from+exonSize, n, n)
		}
		fa.WriteString(fasta(fmt.Sprintf("t%d", n), sequence[start:start+exonSize]+sequence[second:second+exonSize]))
	}
	return gtf.String(), fa.String()
}

func fasta(name, sequence string) string {
	const width = 70
	var b strings.Builder
	fmt.Fprintf(&b, ">%s\n", name)
	for ; len(sequence) > width; sequence = sequence[width:] {
		fmt.Fprintln(&b, sequence[:width])
	}
	fmt.Fprintln(&b, sequence)
	return b.String()
}

// simulate cuts the reads of both samples from a FASTA file, with fixed seeds.
func (d *dataset) simulate(from, prefix, length string) (files [2][]string, err error) {
	for i, sample := range samples {
		var plain []string
		for _, end := range []string{"1", "2"} {
			plain = append(plain, filepath.Join(d.dir, "reads", prefix+sample+"_"+end+".fq"))
		}
		argv := []string{"wgsim", "-S", fmt.Sprint(i + 1), "-N", fmt.Sprint(pairs), "-1", length, "-2", length, "-e", "0.005", from}
		if err := tool(d.dir, append(argv, plain...)...); err != nil {
			return files, err
		}
		for _, path := range plain {
			text, err := os.ReadFile(path)
			if err != nil {
				return files, err
			}
			if path, err = writeReads(path, text, sample); err != nil {
				return files, err
			}
			files[i] = append(files[i], path)
		}
	}
	return files, nil
}

// writeReads writes a FASTQ file, compressed for sample A, and returns its path.
func writeReads(path string, text []byte, sample string) (string, error) {
	if sample == "A" {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(text); err != nil {
			return "", err
		}
		if err := z.Close(); err != nil {
			return "", err
		}
		path, text = path+".gz", b.Bytes()
	}
	return path, os.WriteFile(path, text, 0o644)
}

func gunzip(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// yeast returns the data set in PREMIX_TESTDATA: paired reads of a ChIP-seq for bwa and
// minimap2, and single reads of an RNA-seq for STAR.
var yeast = sync.OnceValues(func() (*dataset, error) {
	given := filepath.Join(os.Getenv("PREMIX_TESTDATA"), "yeast")
	dir, err := newDataset("yeast")
	if err != nil {
		return nil, err
	}
	d := &dataset{
		dir: dir, placed: map[string]error{}, reads: map[string][2][]string{},
		edit: map[string][]string{"star": {
			"--readFilesIn ${r1} ${r2} ", "--readFilesIn ${r1} ",
			"  r2: {file: r2.fq, decompress: true}\n", "",
		}},
	}
	genome, err := gunzip(filepath.Join(given, "genome.R64.fa.gz"))
	if err != nil {
		return nil, err
	}
	genes, err := os.ReadFile(filepath.Join(given, "genes.chrI-II.gtf"))
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{"genome.fa": genome, "small.fa": genome, "genes.gtf": genes} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	var paired, single [2][]string
	for _, end := range []string{"1", "2"} {
		if err := d.split(&paired, filepath.Join(given, "SRR5204809_chip_PE_100k_R"+end+".fastq.gz"), "chip_"+end, yeastPairs); err != nil {
			return nil, err
		}
	}
	if err := d.split(&single, filepath.Join(given, "SRR4238379_rnaseq_SE51_100k.fastq.gz"), "rna", yeastSingle); err != nil {
		return nil, err
	}
	d.reads["bwa-mem"], d.reads["minimap2"], d.reads["star"] = paired, paired, single
	return d, nil
})

// split gives the first records of a FASTQ file to A and the next ones to B.
func (d *dataset) split(files *[2][]string, from, name string, records int) error {
	text, err := gunzip(from)
	if err != nil {
		return err
	}
	r := bufio.NewReader(bytes.NewReader(text))
	for i, sample := range samples {
		var part bytes.Buffer
		for range 4 * records {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
			part.Write(line)
		}
		path, err := writeReads(filepath.Join(d.dir, "reads", name+sample+".fq"), part.Bytes(), sample)
		if err != nil {
			return err
		}
		files[i] = append(files[i], path)
	}
	return nil
}
