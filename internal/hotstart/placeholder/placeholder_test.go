package placeholder

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	sam = "@HD\tVN:1.6\tSO:coordinate\n@SQ\tSN:chr1\tLN:1000\n"
	vcf = "##fileformat=VCFv4.2\n##contig=<ID=chr1,length=1000>\n##INFO=<ID=DP,Number=1,Type=Integer,Description=\"d\">\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
)

func alignments(n int) string {
	var b strings.Builder
	b.WriteString(sam)
	for i := range n {
		fmt.Fprintf(&b, "r%d\t0\tchr1\t%d\t60\t4M\t*\t0\t0\tACGT\tIIII\n", i, i+1)
	}
	return b.String()
}

func variants(n int) string {
	var b strings.Builder
	b.WriteString(vcf)
	for i := range n {
		fmt.Fprintf(&b, "chr1\t%d\t.\tA\tC\t50\tPASS\tDP=%d\n", i+1, i)
	}
	return b.String()
}

func lines(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// converted returns a file that an official program of the format has written.
func converted(t *testing.T, text string, argv ...string) string {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Fatalf("the tests need %s: %v", argv[0], err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	return string(out)
}

// TestMake makes both placeholders of files of each format, and reads them with programs that know
// the format.
func TestMake(t *testing.T) {
	bam := []string{"samtools", "view", "-b", "-"}
	bcf := []string{"bcftools", "view", "-Ob", "-"}
	readSAM := []string{"samtools", "view", "-h", "--no-PG"}
	readVCF := []string{"bcftools", "view", "--no-version"}
	fastq := lines("@read%d\nACGTACGTACGT\n+\nIIIIIIIIIIII\n", 9)
	fasta := lines(">seq%d\nACGTACGTACGT\nACGTACGT\n", 7)
	var bgzf bytes.Buffer
	if err := writeBGZF(&bgzf, []byte(variants(20))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, content string
		cut           bool
		read          []string // a program that prints the content, and fails if the content is invalid
		kind          string
	}{
		{"fastq", fastq, true, nil, "FASTQ"},
		{"one read", "@read\nACGTACGTACGT\n+\nIIIIIIIIIIII\n", true, nil, "FASTQ"},
		{"long read", "@read\n" + strings.Repeat("A", 200<<10) + "\n+\n" + strings.Repeat("I", 200<<10) + "\n", true, nil, "FASTQ"},
		{"fastq gzip", zipped(t, fastq), true, []string{"gzip", "-dc"}, "FASTQ in gzip"},
		{"fastq of several lines", "@a\nACGT\nACGT\n+\nIIII\nIIII\n", false, nil, "binary"},
		{"fasta", fasta, true, nil, "FASTA"},
		{"one sequence", ">a\nACGTACGTAACC\n", true, nil, "FASTA"},
		{"sam", alignments(30), true, readSAM, "SAM with header"},
		{"one alignment", alignments(1), true, readSAM, "SAM with header"},
		{"bam", converted(t, alignments(3000), bam...), true, readSAM, "BAM in BGZF with header"},
		{"bam of one", converted(t, alignments(1), bam...), true, readSAM, "BAM in BGZF with header"},
		{"bam of none", converted(t, alignments(0), bam...), false, readSAM, "BAM in BGZF with header"},
		{"vcf", variants(10), true, readVCF, "text with header"},
		{"vcf bgzf", bgzf.String(), true, readVCF, "text in BGZF with header"},
		{"bcf", converted(t, variants(500), bcf...), true, readVCF, "BCF in BGZF with header"},
		{"text", lines("word %d\n", 5), true, nil, "text"},
		{"text without an end", "a\nb", true, nil, "text"},
		{"one line", "word\n", false, nil, "text"},
		{"json", "{\"a\":\n1}\n", false, nil, "binary"},
		{"binary", "\x89HDF\r\n\x1a\n" + strings.Repeat("\x00x", 4000), false, nil, "binary"},
		{"empty", "", false, nil, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			real := filepath.Join(dir, "real")
			if err := os.WriteFile(real, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			kind, err := Kind(real, false)
			if err != nil || !strings.HasPrefix(kind, c.kind) {
				t.Errorf("kind %q, %v; want %q", kind, err, c.kind)
			}
			texts := map[string]string{"the sample": text(t, real, c.read)}
			sizes := map[int]string{len(c.content): "the sample"}
			for number := range 2 {
				path := filepath.Join(dir, fmt.Sprint("placeholder-", number))
				cut, err := Make(real, path, number, false)
				if err != nil || cut != c.cut {
					t.Fatalf("placeholder %d: %v, %v", number, cut, err)
				}
				if again, err := Kind(path, false); err != nil || again != kind {
					t.Errorf("placeholder %d has kind %q, %v; want %q", number, again, err, kind)
				}
				got := text(t, path, c.read)
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				for name, other := range texts {
					if (got == other) == c.cut {
						t.Errorf("placeholder %d and %s have equal content: %v", number, name, got == other)
					}
				}
				name := fmt.Sprint("placeholder ", number)
				texts[name] = got
				if other := sizes[len(b)]; c.cut && other != "" {
					t.Errorf("%s and %s have %d bytes", name, other, len(b))
				}
				sizes[len(b)] = name
			}
		})
	}
}

// text returns the content of a file as printed by a program, or its bytes.
func text(t *testing.T, path string, program []string) string {
	t.Helper()
	if program == nil {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	cmd := exec.Command(program[0], append(program[1:], path)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 { // samtools warns if the end marker is missing
		t.Fatalf("%s: %v %s", program[0], err, &stderr)
	}
	return string(out)
}

// TestPlain makes placeholders of inputs that a tool gets decompressed.
func TestPlain(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"fastq":  lines("@read%d\nACGT\n+\nIIII\n", 4),
		"binary": "\x89HDF\r\n\x1a\n\x00",
	} {
		real, to := filepath.Join(dir, name), filepath.Join(dir, "to-"+name)
		if err := os.WriteFile(real, []byte(zipped(t, content)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Make(real, to, 0, true); err != nil {
			t.Fatal(err)
		}
		got := text(t, to, nil)
		if got[:4] != content[:4] {
			t.Errorf("%s: %q", name, got)
		}
		a, err := Kind(real, true)
		b, err2 := Kind(to, false)
		if err != nil || err2 != nil || a != b {
			t.Errorf("kinds %q, %q, %v, %v", a, b, err, err2)
		}
	}
}

// TestDamaged uses truncated files.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	whole := converted(t, alignments(3000), "samtools", "view", "-b", "-")
	for _, content := range []string{whole[:len(whole)/8], whole[:17], whole[:40], zipped(t, strings.Repeat("@a\nC\n+\nI\n", 9999))[:60]} {
		if err := os.WriteFile(real, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Make(real, filepath.Join(dir, "to"), 0, false); err == nil || !strings.Contains(err.Error(), real) {
			t.Errorf("%d bytes: error %v", len(content), err)
		}
	}
}

func TestPackedOnly(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{
		converted(t, alignments(3), "samtools", "view", "-b", "-"): "BAM",
		converted(t, variants(3), "bcftools", "view", "-Ob", "-"):  "BCF",
		zipped(t, "CSI\x01"):       "CSI index",
		zipped(t, "@a\nC\n+\nI\n"): "",
		"BAM\x01":                  "",
		"":                         "",
	} {
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := PackedOnly(path); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", content[:min(len(content), 4)], got, err, want)
		}
	}
}

// FuzzMake checks that any content gives a placeholder or an error.
func FuzzMake(f *testing.F) {
	for _, s := range []string{"", "@a\nC\n+\nI\n@b\nG\n+\nI\n", ">a\nC\n>b\nG\n", sam, alignments(2), vcf, "BAM\x01\x00\x00\x00\x00\x01\x00\x00\x00", "a\nb\n", "\x1f\x8b\x08\x04"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		real := filepath.Join(dir, "real")
		if err := os.WriteFile(real, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for number := range 2 {
			Make(real, filepath.Join(dir, "to"), number, number == 1)
		}
		if _, err := Kind(real, false); err != nil && !strings.Contains(err.Error(), real) {
			t.Errorf("the error %q does not name the file", err)
		}
	})
}

// TestMarks has files with reads of different kinds, whose placeholders are equal.
func TestMarks(t *testing.T) {
	const plain = "@r1\nACGT\n+\nIIII\n@r2\nACGTACGT\n+\nIIIIIIII\n"
	for name, c := range map[string]struct{ text, want string }{
		"plain":            {plain, "FASTQ"},
		"other names":      {strings.ReplaceAll(plain, "@r", "@c:9:x y/"), "FASTQ"},
		"small letters":    {strings.Replace(plain, "ACGTACGT", "ACGTacgt", 1), "FASTQ, small letters"},
		"carriage returns": {strings.ReplaceAll(plain, "\n", "\r\n"), "FASTQ, carriage returns"},
		"RNA":              {strings.ReplaceAll(plain, "T", "U"), "FASTQ, letters other than ACGTN"},
		"names again":      {strings.Replace(plain, "\n+\n", "\n+r1\n", 1), "FASTQ, names in the third line"},
		"FASTA":            {">s\nACGT\nAcGT\n", "FASTA, small letters"},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Kind(path, false)
		if err != nil || got != c.want || !FullyVariable(got) {
			t.Errorf("%s: kind %q, %v, want %q", name, got, err, c.want)
		}
		var counts [2]int
		for number := range 2 {
			to := fmt.Sprint(path, number)
			if _, err := Make(path, to, number, false); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(to)
			if err != nil {
				t.Fatal(err)
			}
			counts[number] = bytes.Count(b, []byte("\n"))
			if bytes.Contains(b, []byte("\r")) != strings.Contains(c.text, "\r") {
				t.Errorf("%s: placeholder %d has other ends of lines: %q", name, number, b)
			}
		}
		if c.text[0] == '>' && counts[0] <= counts[1] {
			t.Errorf("%s: the placeholders have %d and %d lines", name, counts[0], counts[1])
		}
	}
}
