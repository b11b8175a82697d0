package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	var a, b strings.Builder
	const n = chunkSize + 205
	if err := generate(&a, n, 7); err != nil {
		t.Fatal(err)
	}
	if err := generate(&b, n, 7); err != nil {
		t.Fatal(err)
	}
	if a.String() != b.String() {
		t.Error("the same seed gives different sequences")
	}
	sequences, count := 0, 0
	var of [256]int
	for line := range strings.Lines(a.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, ">") {
			sequences++
			continue
		}
		if len(line) > lineLength {
			t.Fatalf("a line of %d bases", len(line))
		}
		count += len(line)
		for i := range len(line) {
			of[line[i]]++
		}
	}
	if sequences != 2 || count != n {
		t.Errorf("%d sequences of %d bases, want 2 of %d", sequences, count, n)
	}
	for _, base := range bases {
		if share := float64(of[base]) / n; share < 0.249 || share > 0.251 {
			t.Errorf("%c makes up %.3f of the sequence", base, share)
		}
	}
}

func TestCut(t *testing.T) {
	fasta := ">a\n" + strings.Repeat("A", pieceSize-10) + "\n" + strings.Repeat("C", pieceSize) + "\n>b\n" + strings.Repeat("G", pieceSize+1) + "\n"
	var got strings.Builder
	if err := cut(&got, strings.NewReader(fasta)); err != nil {
		t.Fatal(err)
	}
	want := ">t1\n" + strings.Repeat("A", pieceSize-10) + strings.Repeat("C", 10) + "\n>t2\n" + strings.Repeat("G", pieceSize) + "\n"
	if got.String() != want {
		t.Errorf("cut wrote %d bytes, want %d: pieces must not cross sequences, and ends are left out", got.Len(), len(want))
	}
}

func TestTranscribe(t *testing.T) {
	var text strings.Builder
	if err := transcribe(&text, 100_000, 7); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	total := 0
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSuffix(line, "\n")
		if seen[line] {
			t.Fatalf("%.40s is there twice", line)
		}
		seen[line] = true
		if line[0] == '>' {
			continue
		}
		total += len(line)
		if len(line) < shortest || len(line) > 8*400 {
			t.Errorf("a transcript of %d bases", len(line))
		}
	}
	if total < 100_000 || total > 100_000+4*8*400 {
		t.Errorf("%d bases, want 100000 or a gene more", total)
	}
}

func TestSpread(t *testing.T) {
	d := &data{dir: t.TempDir(), log: t.Logf}
	fasta := filepath.Join(d.dir, "all.fa")
	var text strings.Builder
	for i := range 10 {
		fmt.Fprintf(&text, ">s%d\n%d%d\n", i, i, i)
	}
	if err := os.WriteFile(fasta, []byte(text.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	path, err := d.spread("some.fa", fasta, 4)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := ">s0\n00\n>s3\n33\n>s5\n55\n>s8\n88\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadRates(t *testing.T) {
	got := readRates("read 100: 2.0 s\nhold 5: 0.005 s\nread 100: 0.5 s\n")
	if len(got) != 2 || got[0] != 50 || got[1] != 200 {
		t.Errorf("readRates = %v, want [50 200]", got)
	}
}

func TestRollup(t *testing.T) {
	f := rollup("00400000-7ffd [rollup]\nRss:      1000 kB\nPss:        12 kB\nPss_Dirty:   3 kB\n")
	if f["Pss"] != 12<<10 || f["Pss_Dirty"] != 3<<10 {
		t.Errorf("rollup = %v", f)
	}
}
