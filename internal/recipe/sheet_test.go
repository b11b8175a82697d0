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

// pairs is a recipe whose inputs are recognised by their endings. A pipe makes one of its outputs.
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
			samples, _, err := r.Sheet(file)
			var problems Problems
			if samples != nil || !errors.As(err, &problems) {
				t.Fatalf("got %v, %v; want Problems", samples, err)
			}
			golden(t, strings.TrimSuffix(file, ".csv")+".txt", err.Error(), "testdata/sheets")
		})
	}
}

func TestGoodSheet(t *testing.T) {
	samples, _, err := pairsRecipe(t).Sheet("testdata/sheets/good.csv")
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

// TestColumns reads sample sheets in the formats of other programs.
func TestColumns(t *testing.T) {
	const one = "inputs: [reads]\n"
	for _, c := range []struct{ name, keys, sheet, r1, r2, note, err string }{
		{name: "tabs", sheet: "# of us\nsample\tr1\tr2\nA\ta_1.fq\ta_2.fq\n", r1: "a_1.fq", r2: "a_2.fq"},
		{name: "tabs and an empty cell", sheet: "r1\tsample\tr2\n\tA\ta_2.fq\n", err: "s.csv:2: r1 is empty"},
		{name: "tabs and too few cells", sheet: "sample\tr1\tr2\nA\ta_1.fq\n", err: "hint: an empty cell still needs its tab"},
		{name: "nf-core", sheet: "sample,fastq_1,fastq_2,strandedness\nA,a_1.fq,a_2.fq,auto\n", r1: "a_1.fq", r2: "a_2.fq",
			note: "the columns were guessed: r1: fastq_1, r2: fastq_2; left out: strandedness; `columns: {r1: fastq_1, r2: fastq_2}` in the recipe says the same (s.csv:1)"},
		{name: "nf-core and tabs", sheet: "sample\tfastq_2\tfastq_1\nA\ta_2.fq\ta_1.fq\n", r1: "a_1.fq", r2: "a_2.fq",
			note: "the columns were guessed: r1: fastq_1, r2: fastq_2; `columns: {r1: fastq_1, r2: fastq_2}` in the recipe says the same (s.csv:1)"},
		{name: "nf-core, one file", keys: one, sheet: "sample,fastq_1\nA,a_1.fq\n", r1: "a_1.fq",
			note: "the columns were guessed: reads: fastq_1; `columns: {reads: fastq_1}` in the recipe says the same (s.csv:1)"},
		{name: "nf-core, a pair for one input", keys: one, sheet: "sample,fastq_1,fastq_2\nA,a_1.fq,a_2.fq\n", err: "s.csv:1: column reads is missing"},
		{name: "nf-core, one file of a pair", sheet: "sample,fastq_1,fastq_2\nA,a_1.fq,\n", err: "s.csv:2: r2 is empty"},
		{name: "half of the recipe's names", sheet: "sample,r1,fastq_2,fastq_1\nA,a_1.fq,a_2.fq,a_1.fq\n", err: "s.csv:1: column r2 is missing"},
		{name: "named", keys: "columns: {sample: id, r1: forward, r2: reverse}\n", sheet: "reverse,date,id,forward\na_2.fq,today,A,a_1.fq\n", r1: "a_1.fq", r2: "a_2.fq"},
		{name: "one named", keys: "columns: {r2: mate}\n", sheet: "sample,r1,mate,r2\nA,a_1.fq,a_2.fq,b_1.fq\n", r1: "a_1.fq", r2: "a_2.fq"},
		{name: "named, and missing", keys: "columns: {r1: forward, r2: reverse}\n", sheet: "sample,r1,r2\nA,a_1.fq,a_2.fq\n", err: "s.csv:1: column forward is missing"},
		{name: "named, and nearly there", keys: "columns: {r1: forward, r2: reverse}\n", sheet: "sample,foward,reverse\nA,a_1.fq,a_2.fq\n", err: "did you mean forward?"},
		{name: "named, and given to both", keys: "columns: {r1: x, r2: x}\n", err: "r1 and r2 would be read from the same column, x"},
		{name: "one named as the other", keys: "columns: {r1: r2}\n", err: "r1 and r2 would be read from the same column, r2"},
		{name: "not an input", keys: "columns: {r3: x}\n", err: "columns names r3, which is neither sample nor an input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "name: tool\noutputs: {stdout: \"${sample}.sam\"}\n" + c.keys
			if strings.Contains(text, "inputs:") {
				text += "command: tool ${reads}\n"
			} else {
				text += "command: tool ${r1} ${r2}\ninputs: [r1, r2]\n"
			}
			r, err := parse("r.yaml", "/r.yaml", []byte(text), Sources{})
			var samples []Sample
			var note string
			if err == nil {
				samples, note, err = r.sheet("s.csv", "testdata/sheets", []byte(c.sheet))
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || len(samples) != 1 || note != c.note {
				t.Fatalf("%v, %v\nnote %q, want\n     %q", samples, err, note, c.note)
			}
			in := samples[0].Inputs
			if filepath.Base(in[r.Inputs[0].Name]) != c.r1 || c.r2 != "" && filepath.Base(in["r2"]) != c.r2 || samples[0].Name != "A" {
				t.Errorf("%v", samples[0])
			}
		})
	}
}

func TestSheetEncodings(t *testing.T) {
	r := pairsRecipe(t)
	for text, want := range map[string]string{
		"\xff\xfes\x00a\x00":                   "UTF-16",
		"PK\x03\x04xx":                         "workbook",
		"\x1f\x8b\x08\x00xx":                   "compressed file",
		"@read 1\nACGT\n+\nF,\"F\n":            "s.csv:1: this is not a sample sheet: its first line names none of the columns\n  hint: the header is sample,r1,r2",
		"sample,r1,r2\nA\xff,x,y\n":            "UTF-8",
		"sample,r1,r2\r\nA\x00,a_1.fq,b\r\n":   "UTF-8",
		"sample,r1,r2\rA,a_1.fq,a_2.fq\rA,x,y": "occurs twice",
	} {
		_, _, err := r.sheet("s.csv", "testdata/sheets", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestPackedInputs uses compressed files for inputs with fixed names that have endings.
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
		{"{file: x.fq}", "a.fq.gz", "is gzip, but the tool expects plain text", "decompress: true"},
		{"{file: x.fq}", "a.bam", "is a file of the format BAM", "{file: NAME}"},
		{"{file: x.bam, decompress: true}", "a.bam", "which no tool reads decompressed", "remove `decompress`"},
		{"{decompress: true}", "a.bam", "which no tool reads decompressed", "remove `decompress`"},
	} {
		r, err := parse("r.yaml", "/r.yaml", []byte("name: tool\ncommand: tool ${r1}\ninputs: {r1: "+c.input+"}\noutputs: {stdout: \"${sample}.out\"}\n"), Sources{})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = r.sheet("s.csv", dir, []byte("sample,r1\nA,"+c.file+"\n"))
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
	_, _, err := pairsRecipe(t).sheet("s.csv", dir, []byte("sample,r1,r2\nA,r.fq,r.fq\n"))
	if err == nil || !strings.Contains(err.Error(), "you may not read it") {
		t.Errorf("got %v", err)
	}
}

// FuzzSheet checks that any text gives samples or problems, and that valid samples have safe names
// and distinct paths.
func FuzzSheet(f *testing.F) {
	for _, file := range []string{"good", "rows", "columns", "ragged", "shared"} {
		text, err := os.ReadFile("testdata/sheets/" + file + ".csv")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("sample\tfastq_1\tfastq_2\nA\ta_1.fq\ta_2.fq\n"))
	r := pairsRecipe(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		samples, _, err := r.sheet("s.csv", "testdata/sheets", text)
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
