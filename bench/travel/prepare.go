package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// Sizes of the samples.
const (
	reads   = 2000
	length  = 100 // of a read, bases
	columns = 80  // of a line of FASTA
)

// benchmark is the state that the parts share. Its directory holds
//
//	genome/       genome.fa, the reads of two samples, ref/: the index
//	served/       store/ and, for the full download, root.tar.gz and index.tar
//	home/         A's premix home
//	node/         the mount point of premix' home, on A and on B
//	map.yaml      the recipe; a.csv, b.csv: sample sheets
//	start.json    the order in which the start of sample a touched the snapshot
type benchmark struct {
	*workbench.Lab
	premix, builder, self string
	bases                 int
	index                 int64 // bytes

	link   *netrelay.Link
	origin *workbench.Origin
}

// command aligns read by read and outputs each record at once. INDEX and READS are
// placeholders for paths.
const command = "stdbuf -oL minimap2 -a -t 1 -K 1 INDEX/genome.mmi READS"

var recipeText = `name: map
image: tools/minimap2:1
command: ` + strings.NewReplacer("INDEX", "${data.ref}", "READS", "${reads}").Replace(command) + `
data: {ref: "tree:refs/generated:1"}
inputs: [reads]
outputs: {stdout: "${sample}.sam"}
pipe: SELF ` + firstArg + ` DIR/first
`

// steps are the steps that A does once, each in its own part of the work directory.
var steps = []struct{ made, script string }{
	{"served/store", `set -e
mkdir -p "$LAB/served"
"$PREMIX" store init "$OUT"
PATH="$(dirname "$PREMIX"):$PATH"
PACKAGES=minimap2 "$BUILDER" "$OUT" tools/minimap2:1`},
	{"published", `set -e
"$PREMIX" store publish --store "$LAB/served/store" "$LAB/genome/ref" refs/generated:1 >"$OUT"`},
	{"served/index.tar", `tar -C "$LAB/genome/ref" -cf "$OUT" .`},
	{"served/root.tar.gz", `set -e
"$PREMIX" mount --origin "$LAB/served/store" tools/minimap2:1 "$LAB/root"
tar -C "$LAB/root" -czf "$OUT" .
"$PREMIX" umount "$LAB/root"
rmdir "$LAB/root"`},
	{"pushed", `set -e
"$PREMIX" prepare "$RECIPE" --origin "$LAB/served/store" --start hot --probe "$LAB/a.csv"
"$PREMIX" snapshot push map snaps/map:1 --to "$LAB/served/store" >"$OUT"
"$PREMIX" snapshot rm map`},
	// Trace up to the first record: at its end minimap2 frees its index, and touches all
	// of it once more.
	{"start.json", `set -e
rm -f "$LAB/first"
"$PREMIX" snapshot pull snaps/map:1 --origin "$LAB/served/store" --record "$OUT"
"$PREMIX" run "$RECIPE" "$LAB/a.csv" --origin "$LAB/served/store" --out "$LAB/recorded" --start hot --record-image "$LAB/image.json" &
until [ -e "$LAB/first" ]; do kill -0 $!; sleep 0.02; done
kill -TERM $!
wait $! || true
"$PREMIX" umount --all
rm -r "$LAB/recorded"
"$PREMIX" snapshot rm map`},
	{"profiled", `"$PREMIX" store profile --store "$LAB/served/store" --name start snaps/map:1 "$LAB/start.json" >"$OUT" &&
"$PREMIX" store profile --store "$LAB/served/store" --name start tools/minimap2:1 "$LAB/image.json" >>"$OUT"`},
}

func (b *benchmark) prepare(ctx context.Context) error {
	genome, err := b.Once("genome", func(dir string) error { return b.generate(ctx, dir) })
	if err != nil {
		return err
	}
	if b.index, err = workbench.Usage(filepath.Join(genome, "ref")); err != nil {
		return err
	}
	for _, dir := range []string{"node", "home"} {
		if err := os.MkdirAll(filepath.Join(b.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	text := strings.NewReplacer("SELF", b.self, "DIR", b.Dir).Replace(recipeText)
	if err := os.WriteFile(b.recipe(), []byte(text), 0o644); err != nil {
		return err
	}
	for _, sample := range []string{"a", "b"} {
		sheet := fmt.Sprintf("sample,reads\n%s,%s/%[1]s.fq\n", sample, genome)
		if err := os.WriteFile(b.sheet(sample), []byte(sheet), 0o644); err != nil {
			return err
		}
	}
	for _, step := range steps {
		_, err := b.Once(step.made, func(path string) error {
			return b.onNode(ctx, nil, filepath.Join(b.Dir, "home"), nil, step.script, "OUT="+path, "BUILDER="+b.builder)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *benchmark) recipe() string             { return filepath.Join(b.Dir, "map.yaml") }
func (b *benchmark) sheet(sample string) string { return filepath.Join(b.Dir, sample+".csv") }

// generate makes a genome of random bases, reads of it, and the index.
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
		err := write(filepath.Join(dir, sample+".fq"), func(w *bufio.Writer) {
			for i := range reads {
				at := r.IntN(len(genome) - length)
				fmt.Fprintf(w, "@%s%d\n%s\n+\n%s\n", sample, i, genome[at:at+length], strings.Repeat("I", length))
			}
		})
		if err != nil {
			return err
		}
	}
	return workbench.Run(nil, workbench.Command(ctx, "minimap2", "-x", "sr", "-d", filepath.Join(dir, "ref", "genome.mmi"), filepath.Join(dir, "genome.fa")))
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
