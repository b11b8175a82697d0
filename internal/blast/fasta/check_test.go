package fasta_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"premix/internal/blast/fasta"
)

func TestCheck(t *testing.T) {
	prot, headless := fasta.Options{Alphabet: fasta.AminoAcids}, fasta.Options{Headless: true}
	for _, c := range []struct {
		name, text string
		o          fasta.Options
		want       string // id:line:offset:letters of the sequences, or line: message of the problems
	}{
		{"plain", ">a one\nACGT\nacgu\n>b\nN\n", fasta.Options{}, "a:1:0:8 b:4:17:1"},
		{"no newline at the end", ">a\nACGT", fasta.Options{}, "a:1:0:4"},
		{"CRLF", ">a one\r\nAC\r\n\r\nGT\r\n>b\r\nN\r\n", fasta.Options{}, "a:1:0:4 b:5:18:1"},
		{"blanks", "\n  \n>a\tone\n AC GT \n\nA\n", fasta.Options{}, "a:3:4:5"},
		{"comments", ";made by hand\n>a\nAC\n;GT!\nGT\n", fasta.Options{}, "a:2:14:4"},
		{"proteins", ">a\nMKV*\n>b\nbjouxz\n", prot, "a:1:0:4 b:3:8:6"},
		{"a bare sequence", "ACGT\nAC\n>b\nA\n", headless, ":1:0:6 b:3:8:1"},
		{"no id", ">\nACGT\n> x\nA\n", fasta.Options{}, ":1:0:4 :3:7:1"},
		{"duplicates allowed", ">a\nA\n>a\nC\n", fasta.Options{Duplicates: true}, "a:1:0:1 a:3:5:1"},

		{"nothing", "", fasta.Options{}, "0: the file has no sequence"},
		{"only blank lines", "\n\n", fasta.Options{}, "0: the file has no sequence"},
		{"no header", "ACGT\n>b\nA\n", fasta.Options{}, "1: the first sequence has no header"},
		{"empty", ">a\n>b\nA\n>c\n\n", fasta.Options{}, `1: the sequence "a" is empty; 4: the sequence "c" is empty`},
		{"duplicates", ">a\nA\n>b\nA\n>a x\nC\n", fasta.Options{}, `5: an earlier sequence has the same id "a"`},
		{"a gap", ">a\nAC-GT\nA?\n", fasta.Options{}, `2: '-' is not a valid nucleotide; 3: '?' is not a valid nucleotide`},
		{"proteins as nucleotides", ">a\nMKVLQ\n", fasta.Options{}, `2: 'L' is not a valid nucleotide`},
		{"a header within a line", ">a\nACGT>b\nACGT\n", fasta.Options{}, `2: '>' is not a valid nucleotide`},
		{"digits", ">a\n  1 ACGT\n", fasta.Options{}, `2: '1' is not a valid nucleotide`},
		{"a NUL", ">a\nAC\x00T\n", prot, `2: '\x00' is not a valid amino acid`},
		{"FASTQ", "@r\nACGT\n+\nIIII\n", fasta.Options{Headless: true}, `1: '@' is not a valid nucleotide; 3: '+' is not a valid nucleotide; 4: 'I' is not a valid nucleotide`},
		{"old Macintosh", ">a\rACGT\r>b\rA\r", fasta.Options{}, `1: the sequence "a" is empty`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(c.text), iotest.OneByteReader(strings.NewReader(c.text))} {
				var got []string
				sum, err := fasta.Check(r, "x.fa", c.o, func(s fasta.Sequence) error {
					got = append(got, fmt.Sprintf("%s:%d:%d:%d", s.ID, s.Line, s.Offset, s.Letters))
					return nil
				})
				if err != nil {
					var p fasta.Problems
					if !errors.As(err, &p) {
						t.Fatal(err)
					}
					var list []string
					for _, one := range p {
						list = append(list, fmt.Sprintf("%d: %s", one.Line, one.Message))
						if one.File != "x.fa" || one.Hint == "" {
							t.Errorf("file %q, hint %q", one.File, one.Hint)
						}
					}
					got = []string{strings.Join(list, "; ")}
				} else if sum.Sequences != int64(len(got)) || sum.Bytes != int64(len(c.text)) {
					t.Errorf("summary %+v for %d sequences of %d bytes", sum, len(got), len(c.text))
				}
				if s := strings.Join(got, " "); s != c.want {
					t.Errorf("got  %s\nwant %s", s, c.want)
				}
			}
		})
	}
}

func TestManyProblems(t *testing.T) {
	_, err := fasta.Check(strings.NewReader(strings.Repeat(">a\n!\n", 1000)), "x", fasta.Options{}, nil)
	var p fasta.Problems
	if !errors.As(err, &p) || len(p) != 20 {
		t.Fatalf("%d problems: %v", len(p), err)
	}
}

func TestLimits(t *testing.T) {
	text := ">a\nACGT\n>b\nACGT\n"
	for _, c := range []struct {
		o    fasta.Options
		what string
	}{
		{fasta.Options{MaxSequences: 1}, "sequences"},
		{fasta.Options{MaxLetters: 7}, "letters"},
		{fasta.Options{MaxSequences: 2, MaxLetters: 8}, ""},
	} {
		_, err := fasta.Check(strings.NewReader(text), "x", c.o, nil)
		var limit *fasta.LimitError
		if got := errors.As(err, &limit); got != (c.what != "") || got && limit.What != c.what {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

// Duplicates are found among many IDs, and unique IDs are not reported.
func TestDuplicatesAmongMany(t *testing.T) {
	var b bytes.Buffer
	const n = 200_000
	for i := range n {
		fmt.Fprintf(&b, ">id%d\nA\n", i)
	}
	if sum, err := fasta.Check(bytes.NewReader(b.Bytes()), "x", fasta.Options{}, nil); err != nil || sum.Sequences != n {
		t.Fatalf("%+v, %v", sum, err)
	}
	b.WriteString(">id77\nA\n")
	_, err := fasta.Check(&b, "x", fasta.Options{}, nil)
	var p fasta.Problems
	if !errors.As(err, &p) || len(p) != 1 || p[0].Line != 2*n+1 {
		t.Fatalf("%v", err)
	}
}

func TestOpen(t *testing.T) {
	const text = ">a\nACGT\n"
	var members bytes.Buffer
	for range 2 {
		z := gzip.NewWriter(&members)
		if _, err := io.WriteString(z, text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"plain.fa", []byte(text), text},
		{"empty.fa", nil, ""},
		{"short.fa", []byte(">"), ">"},
		{"two.fa.gz", members.Bytes(), text + text},
		{"cut.fa.gz", members.Bytes()[:members.Len()-6], "damaged"},
		{"head.fa.gz", members.Bytes()[:4], "damaged"},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		var got []byte
		r, err := fasta.Open(path)
		if err == nil {
			got, err = io.ReadAll(r)
			r.Close()
		}
		var p fasta.Problems
		switch {
		case c.want == "damaged":
			if !errors.As(err, &p) || p[0].File != path {
				t.Errorf("%s: %v", c.name, err)
			}
		case err != nil || string(got) != c.want:
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(">a\nACGT\r\n;x\n>b\n\nN"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The division of a stream into reads makes no difference.
		read := func(r io.Reader) string {
			var got strings.Builder
			sum, err := fasta.Check(r, "x", fasta.Options{}, func(s fasta.Sequence) error {
				fmt.Fprintf(&got, "%q %d %d %d;", s.ID, s.Line, s.Offset, s.Letters)
				return nil
			})
			fmt.Fprint(&got, sum, err)
			return got.String()
		}
		if one, all := read(iotest.OneByteReader(bytes.NewReader(b))), read(bytes.NewReader(b)); one != all {
			t.Errorf("byte by byte: %s\nat once: %s", one, all)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var text bytes.Buffer
	for i := range 10_000 {
		fmt.Fprintf(&text, ">id%d some words\n", i)
		for range 20 {
			for range 80 {
				text.WriteByte("ACGT"[r.IntN(4)])
			}
			text.WriteByte('\n')
		}
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if _, err := fasta.Check(bytes.NewReader(text.Bytes()), "x", fasta.Options{}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
