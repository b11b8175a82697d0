package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// hsp returns an alignment in the layout of BLAST+.
func hsp(query, oid, score int, evalue, name string) string {
	return fmt.Sprintf(`{
        type partial,
        dim 2,
        score {
          {
            id str "score",
            value int %d
          },
          {
            id str "%s",
            value real { %s }
          }
        },
        segs denseg {
          dim 2,
          ids {
            local str "Query_%d",
            general {
              db "BL_ORD_ID",
              tag id %d
            }
          }
        }
      }`, score, name, evalue, query, oid)
}

// made returns an archive of some queries.
func made(queries, hitlist int, alignments ...string) string {
	var b strings.Builder
	b.WriteString("Blast4-archive ::= {\n  request {\n    body queue-search {\n      queries bioseq-set {\n        seq-set {\n")
	for q := range queries {
		if q > 0 {
			b.WriteString(",\n")
		}
		// The strings contain text that could be mistaken for other parts of the archive.
		fmt.Fprintf(&b, "          seq {\n            id {\n              local str \"Query_%d\"\n            },\n            descr {\n              title \"a \"\"b\"\" } , { results {\n alignments {\"\n            }\n          }", q+1)
	}
	fmt.Fprintf(&b, "\n        }\n      },\n      algorithm-options {\n        {\n          name \"HitlistSize\",\n          value integer %d\n        }\n      }\n    }\n  },\n  results {\n    alignments {\n", hitlist)
	for i, a := range alignments {
		if i > 0 {
			b.WriteString(",\n")
		}
		b.WriteString("      " + a)
	}
	if len(alignments) > 0 {
		b.WriteString("\n")
	}
	b.WriteString("    },\n    masks {\n    },\n    ka-blocks {\n      {\n        lambda { 3, 10, -1 },\n        gapped FALSE\n      },\n      {\n        lambda { -1, 10, 0 },\n        gapped TRUE\n      }\n    }\n  }\n}\n")
	return b.String()
}

func merged(sources ...Source) (string, error) {
	var out bytes.Buffer
	w := NewWriter(&out)
	m := NewMerger(sources, 0)
	for {
		h, err := m.Next()
		if errors.Is(err, io.EOF) {
			return out.String(), nil
		}
		if err != nil {
			return "", err
		}
		w.Begin(h)
		for {
			found, err := m.Query()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return "", err
			}
			w.Add(found...)
		}
		t, err := m.Tail()
		if err != nil {
			return "", err
		}
		if err := w.End(t); err != nil {
			return "", err
		}
	}
}

// A single source is written unchanged.
func TestRoundTrip(t *testing.T) {
	text := made(2, 5, hsp(1, 7, 50, "1, 10, -9", "e_value"), hsp(2, 3, 40, "0, 10, 0", "e_value")) + made(1, 5) + made(1, 5, hsp(1, 0, 3, "5, 10, 0", "sum_e"))
	got, err := merged(Source{Archives: strings.NewReader(text)})
	if err != nil {
		t.Fatal(err)
	}
	if got != text {
		t.Errorf("got\n%s\nwant\n%s", got, text)
	}
}

// Lists that were searched longer are shortened, with the option in the head.
func TestKeep(t *testing.T) {
	const e = "e_value"
	a := made(1, 5, hsp(1, 0, 60, "1, 10, -9", e), hsp(1, 1, 50, "1, 10, -7", e))
	b := made(1, 5, hsp(1, 0, 55, "1, 10, -8", e), hsp(1, 1, 40, "1, 10, -5", e))
	m := NewMerger([]Source{{strings.NewReader(a), 0}, {strings.NewReader(b), 2}}, 3)
	h, err := m.Next()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(h.Text), "value integer 3", "value integer 5", 1); !strings.HasPrefix(a, want) || len(want) < 200 || want == string(h.Text) || h.Hitlist != 3 {
		t.Errorf("the head is\n%s", h.Text)
	}
	found, err := m.Query()
	if got := m.Lists(); err != nil || len(found) != 3 || got != (Lists{Limit: 3, Hits: 4}) {
		t.Errorf("%d alignments, %+v, %v", len(found), got, err)
	}
	m = NewMerger([]Source{{strings.NewReader(made(1, 2, hsp(1, 0, 60, "1, 10, -9", e), hsp(1, 1, 50, "1, 10, -7", e))), 0}}, 1)
	if _, err := m.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Query(); err != nil || !m.Lists().Full {
		t.Errorf("a full list counts as %+v, %v", m.Lists(), err)
	}
}

func TestOrder(t *testing.T) {
	const e = "e_value"
	a := made(2, 3,
		hsp(1, 5, 90, "1, 10, -200", e), // counts as 0
		hsp(1, 4, 50, "1, 10, -20", e),
		hsp(1, 4, 20, "1, 10, -3", e), // the second HSP of a hit
		hsp(1, 1, 30, "1, 10, -2", e),
		hsp(2, 1, 30, "1, 10, -2", e))
	b := made(2, 3,
		hsp(1, 0, 95, "1, 10, -190", e), // also 0, with a better score
		hsp(1, 2, 50, "1, 10, -20", e))  // a tie: the higher OID comes first
	want := made(2, 3,
		hsp(1, 10, 95, "1, 10, -190", e),
		hsp(1, 5, 90, "1, 10, -200", e),
		hsp(1, 12, 50, "1, 10, -20", e),
		hsp(2, 1, 30, "1, 10, -2", e))
	got, err := merged(Source{strings.NewReader(a), 0}, Source{strings.NewReader(b), 10})
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// In a hit of linked HSPs, the first HSP has the best e-value but not the best score. The order of
// these hits depends on whether all hits have a place.
func TestOrderOfLinked(t *testing.T) {
	const e = "sum_e"
	linked := []string{hsp(1, 1, 70, "1, 10, -200", e), hsp(1, 1, 90, "1, 10, -100", e)}
	single := []string{hsp(1, 2, 80, "1, 10, -200", e)}
	weak := []string{hsp(1, 3, 60, "1, 10, -200", e)}
	for hits, want := range map[int][]string{
		3: slices.Concat(linked, single, weak),
		2: slices.Concat(single, linked),
	} {
		a, b := made(1, hits, slices.Concat(linked, weak)...), made(1, hits, single...)
		got, err := merged(Source{strings.NewReader(a), 0}, Source{strings.NewReader(b), 0})
		if err != nil {
			t.Fatal(err)
		}
		if want := made(1, hits, want...); got != want {
			t.Errorf("%d hits: got\n%s\nwant\n%s", hits, got, want)
		}
	}
}

// Sources that do not match, and truncated sources, are refused.
func TestRefused(t *testing.T) {
	for name, sources := range map[string][]string{
		"other queries":   {made(1, 5), made(2, 5)},
		"fewer batches":   {made(1, 5) + made(1, 5), made(1, 5)},
		"more batches":    {made(1, 5), made(1, 5) + made(1, 5)},
		"cut":             {made(1, 5)[:400]},
		"cut in the tail": {made(1, 5)[:len(made(1, 5))-4]},
		"no archive":      {"BLASTP 2.12.0+\n"},
		"foreign query":   {made(1, 5, hsp(7, 1, 1, "1, 10, 0", "e_value"))},
		"no e-value":      {made(1, 5, hsp(1, 1, 1, "1, 10, 0", "p_value"))},
	} {
		var list []Source
		for _, s := range sources {
			list = append(list, Source{Archives: strings.NewReader(s)})
		}
		if _, err := merged(list...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The archive has no sequences of its queries, as if BLAST+ had recognised a query as swissprot {
// accession "P03928" }.
func TestNoQueries(t *testing.T) {
	text := made(1, 5)
	from, to := strings.Index(text, "bioseq-set {"), strings.Index(text, "      algorithm-options")
	text = text[:from] + "seq-loc-list {\n        int {\n          from 0,\n          to 66,\n          id swissprot {\n            accession \"P03928\"\n          }\n        }\n      },\n" + text[to:]
	if _, err := merged(Source{Archives: strings.NewReader(text)}); !errors.Is(err, ErrNoQueries) {
		t.Errorf("%v, want %v", err, ErrNoQueries)
	}
}

func TestGappedAsUngapped(t *testing.T) {
	r := NewReader(strings.NewReader(made(1, 5)))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	tail, err := r.Tail()
	if err != nil {
		t.Fatal(err)
	}
	got := string(tail.GappedAsUngapped().Text)
	if want := strings.Replace(string(tail.Text), "-1, 10, 0", "3, 10, -1", 1); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// FuzzReader checks that the reader ends on any input, and that merging accepted output again does
// not change it.
func FuzzReader(f *testing.F) {
	f.Add(made(2, 5, hsp(1, 7, 50, "1, 10, -9", "e_value"), hsp(2, 3, 40, "0, 10, 0", "sum_e")))
	f.Add(made(1, 0))
	f.Add("Blast4-archive ::= { results { alignments { } } }")
	f.Fuzz(func(t *testing.T, text string) {
		once, err := merged(Source{Archives: strings.NewReader(text)})
		if err != nil {
			return
		}
		twice, err := merged(Source{Archives: strings.NewReader(once)})
		if err != nil || twice != once {
			t.Errorf("%v: %q becomes %q, and that %q", err, text, once, twice)
		}
	})
}
