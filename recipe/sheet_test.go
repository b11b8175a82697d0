package recipe

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pairs is a recipe whose inputs go by their endings, one of which a pipe makes.
const pairs = `name: tool
command: tool ${r1} ${r2}
inputs: {r1: {file: r1.fq}, r2: }
outputs: {stdout: "${sample}.sam", sorted: "${sample}.sorted.sam", page: "${sample}.html"}
pipe: cat > ${sample}.sorted.sam
`

func pairsRecipe(t testing.TB) *Recipe {
	t.Helper()
	r, err := parse("r.yaml", "/r.yaml", []byte(pairs), Sources{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBadSheets(t *testing.T) {
	r := pairsRecipe(t)
	for _, file := range glob(t, "testdata/sheets/*.csv") {
		if filepath.Base(file) == "good.csv" {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			samples, err := r.Sheet(file)
			var problems Problems
			if samples != nil || !errors.As(err, &problems) {
				t.Fatalf("got %v, %v; want Problems", samples, err)
			}
			golden(t, strings.TrimSuffix(file, ".csv")+".txt", err.Error(), "testdata/sheets")
		})
	}
}

func TestGoodSheet(t *testing.T) {
	samples, err := pairsRecipe(t).Sheet("testdata/sheets/good.csv")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata/sheets")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range samples {
		rel, err := filepath.Rel(dir, s.Inputs["r1"])
		if err != nil || !filepath.IsAbs(s.Inputs["r2"]) {
			t.Errorf("%v: %v", s, err)
		}
		got = append(got, s.Name+" "+rel+" "+string(rune('0'+s.Line)))
	}
	if want := []string{"A a_1.fq 4", "B b_1.fq 5"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSheetEncodings(t *testing.T) {
	r := pairsRecipe(t)
	for text, want := range map[string]string{
		"\xff\xfes\x00a\x00":                   "UTF-16",
		"PK\x03\x04xx":                         "workbook",
		"\x1f\x8b\x08\x00xx":                   "compressed file",
		"@read 1\nACGT\n+\nF,\"F\n":            "s.csv:1: this is no sample sheet: its first line names none of the columns\n  hint: the header is sample,r1,r2",
		"sample,r1,r2\nA\xff,x,y\n":            "UTF-8",
		"sample,r1,r2\r\nA\x00,a_1.fq,b\r\n":   "UTF-8",
		"sample,r1,r2\rA,a_1.fq,a_2.fq\rA,x,y": "stands twice",
	} {
		_, err := r.sheet("s.csv", "testdata/sheets", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestPackedInputs has compressed files for inputs whose fixed names have endings.
func TestPackedInputs(t *testing.T) {
	dir := t.TempDir()
	packed := func(name, text string) {
		t.Helper()
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		io.WriteString(z, text)
		if err := errors.Join(z.Close(), os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	packed("a.bam", "BAM\x01")
	packed("a.rds", "X\n")
	packed("a.fq.gz", "@a\nC\n+\nI\n")
	for _, c := range []struct{ input, file, want, hint string }{
		{"{file: x.bam}", "a.bam", "", ""},
		{"{file: x.rds}", "a.rds", "", ""},
		{"{file: x.fq.gz}", "a.fq.gz", "", ""},
		{"{file: x.fq, decompress: true}", "a.fq.gz", "", ""},
		{"{file: x.fq}", "a.fq.gz", "is gzip, but the tool is told that it is not", "decompress: true"},
		{"{file: x.fq}", "a.bam", "is a file of the format BAM", "{file: NAME}"},
		{"{file: x.bam, decompress: true}", "a.bam", "which no tool reads decompressed", "take `decompress` out"},
		{"{decompress: true}", "a.bam", "which no tool reads decompressed", "take `decompress` out"},
	} {
		r, err := parse("r.yaml", "/r.yaml", []byte("name: tool\ncommand: tool ${r1}\ninputs: {r1: "+c.input+"}\noutputs: {stdout: \"${sample}.out\"}\n"), Sources{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.sheet("s.csv", dir, []byte("sample,r1\nA,"+c.file+"\n"))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s, %s: %v", c.input, c.file, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.hint)):
			t.Errorf("%s, %s: got %v, want %q and %q", c.input, c.file, err, c.want, c.hint)
		}
	}
}

func TestUnreadableInput(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read every file, so none is unreadable")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "r.fq")
	if err := os.WriteFile(file, nil, 0); err != nil {
		t.Fatal(err)
	}
	_, err := pairsRecipe(t).sheet("s.csv", dir, []byte("sample,r1,r2\nA,r.fq,r.fq\n"))
	if err == nil || !strings.Contains(err.Error(), "you may not read it") {
		t.Errorf("got %v", err)
	}
}

// FuzzSheet: any text gives samples or problems, and what passes has safe names
// and paths of its own.
func FuzzSheet(f *testing.F) {
	for _, file := range []string{"good", "rows", "columns", "ragged", "shared", "tabs"} {
		text, err := os.ReadFile("testdata/sheets/" + file + ".csv")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	r := pairsRecipe(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		samples, err := r.sheet("s.csv", "testdata/sheets", text)
		var problems Problems
		if err != nil {
			if !errors.As(err, &problems) || len(problems) == 0 || samples != nil {
				t.Fatalf("%v, %v", samples, err)
			}
			return
		}
		taken := make(map[string]bool)
		for _, s := range samples {
			if !sampleForm().MatchString(s.Name) || len(s.Inputs) != 2 {
				t.Fatalf("%+v", s)
			}
			for _, out := range r.Outputs(s) {
				if taken[out.To] || !filepath.IsLocal(out.To) {
					t.Fatalf("%s twice, or outside", out.To)
				}
				taken[out.To] = true
			}
		}
	})
}
