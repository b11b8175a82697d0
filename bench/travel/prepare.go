package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/netrelay"
	"premix/internal/workbench"
)

// Sizes of the samples.
const (
	pairs   = 2000
	length  = 100 // of a read, bases
	insert  = 300 // between the ends of a pair
	columns = 80  // of a line of FASTA
)

// benchmark is what the parts share. Its directory holds
//
//	genome/       genome.fa, the reads of two samples, ref/: STAR's index
//	served/       store/ and, for the full download, root.tar.gz and index.tar
//	node/         where premix' home is, on A and on B
//	star.yaml     the recipe; a.csv, b.csv: sample sheets
type benchmark struct {
	*workbench.Lab
	premix, builder, self string
	bases                 int
	index                 int64 // bytes

	link   *netrelay.Link
	origin *workbench.Origin
}

// recipeText: the shipped recipe's options, but records on standard output, early.
const recipeText = `name: star
image: biodepot/star:2.7
command: >-
  STAR --runThreadN 1 --genomeDir ${data.ref} --readFilesIn ${r1} ${r2}
  --outFileNamePrefix ${star}/ --outSAMtype SAM --outStd SAM
  --limitIObufferSize 8000 50000000
data: {ref: "tree:refs/generated:1"}
inputs: {r1: {file: r1.fq}, r2: {file: r2.fq}}
outputs:
  star: "${sample}/"
  stdout: "${sample}.sam"
ready: read
pipe: SELF ` + firstArg + ` DIR/first
varies:
  - {file: stdout, lines: '^@CO'}
  - {file: "${star}/Log.out"}
  - {file: "${star}/Log.final.out"}
  - {file: "${star}/Log.progress.out"}
`

func (b *benchmark) prepare(ctx context.Context) error {
	genome, err := b.Once("genome", func(dir string) error { return b.generate(ctx, dir) })
	if err != nil {
		return err
	}
	if b.index, err = workbench.Usage(filepath.Join(genome, "ref")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(b.Dir, "node"), 0o700); err != nil {
		return err
	}
	text := strings.NewReplacer("SELF", b.self, "DIR", b.Dir).Replace(recipeText)
	if err := os.WriteFile(b.recipe(), []byte(text), 0o644); err != nil {
		return err
	}
	for _, sample := range []string{"a", "b"} {
		sheet := fmt.Sprintf("sample,r1,r2\n%s,%[2]s/%[1]s_1.fq,%[2]s/%[1]s_2.fq\n", sample, genome)
		if err := os.WriteFile(b.sheet(sample), []byte(sheet), 0o644); err != nil {
			return err
		}
	}
	_, err = b.Once("served", func(dir string) error {
		// What A does: everything once, and the profile of sample a's start.
		return b.onNode(ctx, nil, nil, `set -e
mkdir "$OUT"; cd "$OUT"

PATH="$(dirname "$PREMIX"):$PATH"
"$PREMIX" store init store
"$BUILDER" store biodepot/star:2.7
"$PREMIX" store publish --store store "$LAB/genome/ref" refs/generated:1
"$PREMIX" prepare "$RECIPE" --origin "$OUT/store" --start hot --probe "$LAB/a.csv"
"$PREMIX" snapshot push star snaps/star:1 --to store
"$PREMIX" mount --origin "$OUT/store" biodepot/star:2.7 "$LAB/root"
tar -C "$LAB/root" -czf root.tar.gz .
tar -C "$LAB/genome/ref" -cf index.tar .
"$PREMIX" node stop --lazy
rmdir "$LAB/root"
rm -r "$PREMIX_HOME"/*
"$PREMIX" snapshot pull snaps/star:1 --origin "$OUT/store" --record "$LAB/start.json"
"$PREMIX" run "$RECIPE" "$LAB/a.csv" --origin "$OUT/store" --out "$LAB/recorded" --start hot
"$PREMIX" umount --all
rm -r "$LAB/recorded"
`, "OUT="+dir, "BUILDER="+b.builder)
	})
	return err
}

func (b *benchmark) recipe() string             { return filepath.Join(b.Dir, "star.yaml") }
func (b *benchmark) sheet(sample string) string { return filepath.Join(b.Dir, sample+".csv") }

// generate makes a genome of random bases, reads of it, and STAR's index.
func (b *benchmark) generate(ctx context.Context, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "ref"), 0o755); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 0))
	genome := make([]byte, b.bases)
	for i := range genome {
		genome[i] = "ACGT"[r.IntN(4)]
	}
	err := write(filepath.Join(dir, "genome.fa"), func(w *bufio.Writer) {
		fmt.Fprintln(w, ">chr1")
		for at := 0; at < len(genome); at += columns {
			w.Write(genome[at:min(at+columns, len(genome))])
			w.WriteByte('\n')
		}
	})
	if err != nil {
		return err
	}
	for _, sample := range []string{"a", "b"} {
		var at []int
		for range pairs {
			at = append(at, r.IntN(len(genome)-insert-length))
		}
		for end := 1; end <= 2; end++ {
			err := write(filepath.Join(dir, fmt.Sprintf("%s_%d.fq", sample, end)), func(w *bufio.Writer) {
				for i, p := range at {
					read := string(genome[p : p+length])
					if end == 2 {
						read = complement(genome[p+insert : p+insert+length])
					}
					fmt.Fprintf(w, "@%s%d\n%s\n+\n%s\n", sample, i, read, strings.Repeat("I", length))
				}
			})
			if err != nil {
				return err
			}
		}
	}
	cmd := workbench.Command(ctx, "STAR", "--runMode", "genomeGenerate", "--genomeDir", filepath.Join(dir, "ref"),
		"--genomeFastaFiles", filepath.Join(dir, "genome.fa"), "--genomeSAindexNbases", "12", "--runThreadN", "2",
		"--outFileNamePrefix", filepath.Join(dir, "log-"))
	return workbench.Run(nil, cmd)
}

func write(path string, fill func(*bufio.Writer)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	fill(w)
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// complement is the other strand, read in its direction.
func complement(read []byte) string {
	other := make([]byte, len(read))
	for i, base := range read {
		other[len(read)-1-i] = map[byte]byte{'A': 'T', 'C': 'G', 'G': 'C', 'T': 'A'}[base]
	}
	return string(other)
}
