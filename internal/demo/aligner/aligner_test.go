package aligner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Each aligned read differs as stated from the text of the reference at its position. Almost all
// reads are aligned, on both strands.
func TestAlign(t *testing.T) {
	dir := t.TempDir()
	r := NewReference(1_000_003)
	var fasta, reads, packed bytes.Buffer
	for _, err := range []error{r.WriteFASTA(&fasta), r.Sample(&reads, 3, 400), r.Write(&packed)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	head, lines, _ := strings.Cut(fasta.String(), "\n")
	sequence := strings.ReplaceAll(lines, "\n", "")
	if head != ">demo" || len(sequence) != r.length {
		t.Fatalf("%s, %d bases", head, len(sequence))
	}
	// One read does not occur in the reference, and one is at each end of it.
	fmt.Fprintf(&reads, "@nowhere\n%s\n+\n%s\n@first\n%s\n+\n%s\n@last\n%s\n+\n%s\n", strings.Repeat("A", 150), strings.Repeat("I", 150),
		sequence[:150], strings.Repeat("I", 150), sequence[len(sequence)-150:], strings.Repeat("I", 150))
	ref, fq := filepath.Join(dir, "ref"), filepath.Join(dir, "reads")
	for path, b := range map[string]*bytes.Buffer{ref: &packed, fq: &reads} {
		if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	var sam bytes.Buffer
	if err := Align(&sam, ref, fq); err != nil {
		t.Fatal(err)
	}
	flags := map[string]int{}
	places := map[string]int{}
	for line := range strings.Lines(sam.String()) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "@") {
			continue
		}
		flags[f[1]]++
		if f[1] == "4" {
			continue
		}
		place, err := strconv.Atoi(f[3])
		if err != nil || len(f) != 12 || f[5] != "150M" {
			t.Fatalf("%q", f)
		}
		places[f[0]] = place
		different := 0
		for i := range f[9] {
			if f[9][i] != sequence[place-1+i] {
				different++
			}
		}
		if f[11] != fmt.Sprintf("NM:i:%d", different) || different > 1 {
			t.Errorf("%s differs in %d bases, and the line has %s", f[0], different, f[11])
		}
	}
	if flags["4"] != 1 || flags["0"] < 100 || flags["16"] < 100 || flags["0"]+flags["16"] != 402 {
		t.Errorf("flags %v", flags)
	}
	if places["first"] != 1 || places["last"] != r.length-149 {
		t.Errorf("first %d, last %d", places["first"], places["last"])
	}
}

func TestAlignRefuses(t *testing.T) {
	dir := t.TempDir()
	r := NewReference(1000)
	var packed bytes.Buffer
	if err := r.Write(&packed); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ref": packed.String(), "short": packed.String()[:100], "other": "premix damo\nxxxxxxxxx", "reads": "ACGT\n\n\n\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range [][3]string{{"short", "reads", "has not all bases"}, {"other", "reads", "is not a reference"}, {"ref", "reads", "reads:1: not a read"}, {"ref", "none", "no such file"}} {
		err := Align(&bytes.Buffer{}, filepath.Join(dir, c[0]), filepath.Join(dir, c[1]))
		if err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
