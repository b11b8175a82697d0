package diamond

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/exit"
)

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		args string
		ok   bool
	}{
		{"-d sp -q q.faa", true},
		{"--db sp --query q.faa --outfmt 6 qseqid sseqid evalue --very-sensitive -k 5", true},
		{"-d sp -f 6 -q q.faa -p 4 -t /tmp -e 1e-5", true},
		{"-d sp --gapopen 9 --gapextend 2", true},
		{"-d sp --matrix BLOSUM62", true},
		{"-d sp --matrix PAM70", false},
		{"-d sp --gapopen 5", false},
		{"-d sp --top 10", false},
		{"-d sp --iterate", false},
		{"-d sp --global-ranking 100", false},
		{"-d sp --range-culling", false},
		{"-d sp -F 15", false},
		{"-d sp --taxonlist 9606", false},
		{"-d sp --un unaligned.faa", false},
		{"-d sp -f 5", false},
		{"-d sp -f 100", false},
		{"-d sp -f 6 qseqid approx_pident", false},
		{"-d sp -f 6 qseqid staxids", false},
		{"-d sp -k", false},
		{"-d sp -k 5 --max-target-seqs 5", false},
		{"-d sp -k5", false},
		{"-d sp --unknown", false},
		{"-d sp extra", false},
	} {
		o, err := ParseOptions(strings.Fields(c.args))
		var refused *exit.Error
		if (err == nil) != c.ok || err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: %v", c.args, err)
		}
		if err == nil && o.DB != "sp" {
			t.Errorf("%s: the database is %q", c.args, o.DB)
		}
	}
}

func TestBlocks(t *testing.T) {
	for _, c := range []struct{ args, value string }{{"", "2"}, {"--sensitive", "2"}, {"--very-sensitive", "0.4"}, {"--ultra-sensitive -b 1", "1"}} {
		o, err := ParseOptions(strings.Fields(c.args))
		if err != nil || o.blockValue() != c.value {
			t.Errorf("%s: %s, %v", c.args, o.blockValue(), err)
		}
	}
	two := &database.Database{Name: "sp", Program: database.DIAMOND, Block: 100, Letters: 150, Fragments: []database.Fragment{{Letters: 100}, {Letters: 50}}}
	large := &database.Database{Name: "nr", Program: database.DIAMOND, Block: 2e9, Letters: 2e9 + 1000, Fragments: []database.Fragment{{Letters: 2e9}, {Letters: 1000}}}
	one := &database.Database{Name: "one", Program: database.DIAMOND, Block: 2e9, Letters: 150, Fragments: []database.Fragment{{Letters: 150}}}
	for _, c := range []struct {
		d    *database.Database
		args string
		ok   bool
	}{
		{two, "", false}, // diamond would search one block
		{two, "-b 0.0000001", true},
		{two, "-b 0.0000002", false},
		{one, "", true},
		{one, "--very-sensitive", true}, // the fragment is the whole
		{large, "", false},              // the algorithm is not clear
		{large, "--algo 0", true},
		{large, "--algo 0 --very-sensitive", false},
		{&database.Database{Program: database.BLAST}, "", false},
	} {
		o, err := ParseOptions(strings.Fields(c.args))
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Tool: "blastp", Database: c.d, Options: o}
		if _, err := r.order(); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.d.Name, c.args, err)
		}
	}
}

func TestCheck(t *testing.T) {
	columns := strings.Join(hidden, " ")
	for _, c := range []struct {
		tool, args string
		ok         bool
	}{
		{"blastp", "--evalue 1 --outfmt 6 qseqid " + columns, true},
		{"blastx", "--dbsize 7 --outfmt 6 " + columns, true},
		{"makedb", "--outfmt 6 qseqid " + columns, false},
		{"blastp", "--outfmt 6 qseqid", false},
		{"blastp", "--query /etc/passwd --outfmt 6 qseqid " + columns, false},
		{"blastp", "--out /tmp/x --outfmt 6 qseqid " + columns, false},
		{"blastp", "-o /tmp/x --outfmt 6 qseqid " + columns, false},
		{"blastp", "--tmpdir /tmp --outfmt 6 qseqid " + columns, false},
		{"blastp", "--db other --outfmt 6 qseqid " + columns, false},
		{"blastp", "--un /tmp/x --outfmt 6 qseqid " + columns, false},
		{"blastp", "--threads 64 --outfmt 6 qseqid " + columns, false},
	} {
		err := Parts{}.Check(&part.Order{Tool: c.tool, Args: strings.Fields(c.args)})
		if (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.tool, c.args, err)
		}
	}
}

// DIAMOND 2.1.3 prints these e-values for sequences of Swiss-Prot, of which the database has
// 7,104,484 letters.
func TestEvalue(t *testing.T) {
	for _, c := range []struct {
		tool, options               string
		score, query, frame, length int
		want                        string
	}{
		{"blastp", "", 1883, 398, 0, 398, "1.24e-268"},
		{"blastp", "", 232, 398, 0, 347, "1.42e-21"},
		{"blastp", "", 1275, 378, 0, 386, "1.29e-176"},
		{"blastp", "", 785, 378, 0, 389, "2.50e-102"},
		{"blastp", "", 2751, 549, 0, 549, "0.0"},
		{"blastp", "", 383, 549, 0, 525, "3.54e-40"},
		{"blastp", "--gapopen 9 --gapextend 2", 1883, 398, 0, 398, "1.21e-283"},
		{"blastp", "--gapopen 9 --gapextend 2", 230, 398, 0, 347, "8.43e-22"},
		{"blastp", "--gapopen 9 --gapextend 2", 1275, 378, 0, 386, "2.90e-185"},
		{"blastp", "--gapopen 9 --gapextend 2", 784, 378, 0, 389, "7.92e-106"},
		{"blastp", "--gapopen 9 --gapextend 2", 2469, 549, 0, 553, "0.0"},
		{"blastp", "--gapopen 9 --gapextend 2", 377, 549, 0, 525, "4.09e-40"},
		{"blastp", "", 2634, 3951, 0, 4434, "1.66e-303"},
		{"blastp", "", 2677, 3951, 0, 7095, "2.29e-307"},
		{"blastp", "", 2696, 3951, 0, 4383, "1.23e-311"},
		{"blastp", "", 2653, 509, 0, 509, "0.0"},
		{"blastx", "-e 10", 291, 150, -2, 372, "5.79e-34"},
		{"blastx", "-e 10", 246, 2000, -2, 336, "7.71e-23"},
		{"blastx", "-e 10", 503, 300, 1, 155, "2.25e-67"},
		{"blastx", "-e 10", 505, 300, 3, 653, "2.23e-62"},
		{"blastx", "-e 10", 928, 900, 1, 213, "8.27e-128"},
		{"blastx", "-e 10", 558, 300, -2, 222, "8.00e-75"},
	} {
		o, err := ParseOptions(strings.Fields(c.options))
		if err != nil {
			t.Fatal(err)
		}
		s, err := o.scoring(c.tool, 7104484)
		if err != nil {
			t.Fatal(err)
		}
		e := s.evalue(c.score, c.query, c.frame, c.length)
		if _, ok := e.printed(c.want); !ok {
			t.Errorf("%s %s: %d letters, score %d: %.3g, want %s", c.tool, c.options, c.length, c.score, e, c.want)
		}
	}
}

func TestMerge(t *testing.T) {
	s := &scoring{letters: 1000, lambda: 0.1, k: 1, leastVariance: 1e-12}
	// With these parameters the e-value is 1000 * exp(-score/10) * query.
	line := func(name, rest string) string {
		return name + "\t" + strings.ReplaceAll(rest, " ", "\t") + "\n"
	}
	for _, c := range []struct {
		about   string
		results []string
		most    int
		want    string // "": refused
	}{
		{"by e-value", []string{
			line("a", "0 0 100 10 10 0 4.54e-01") + line("b", "0 4 70 10 10 0 9.12e+00"),
			line("c", "0 2 90 10 10 0 1.23e+00"),
		}, 0, "a c b"},
		{"equal ones by number", []string{
			line("a", "0 5 90 10 10 0 1.23e+00"),
			line("b", "0 2 90 10 10 0 1.23e+00"),
			line("c", "0 5 90 10 10 0 1.23e+00"),
		}, 0, "a b c"},
		{"no more than -k", []string{
			line("a", "0 0 100 10 10 0 4.54e-01") + line("d", "1 4 70 10 10 0 9.12e+00"),
			line("b", "0 2 90 10 10 0 1.23e+00") + line("c", "1 2 90 10 10 0 1.23e+00"),
		}, 1, "a c"},
		{"several alignments of a sequence", []string{
			line("a", "0 0 100 10 10 0 4.54e-01") + line("a2", "0 0 60 10 10 0 2.48e+01") + line("b", "0 4 80 10 10 0 3.35e+00"),
			line("c", "0 2 90 10 10 0 1.23e+00"),
		}, 2, "a a2 c"},
		{"nothing in a fragment", []string{"", line("a", "7 0 100 10 10 0 4.54e-01")}, 0, "a"},
		{"another e-value", []string{line("a", "0 0 100 10 10 0 4.64e-01")}, 0, ""},
		{"another order", []string{line("a", "0 0 70 10 10 0 9.12e+00") + line("b", "0 4 100 10 10 0 4.54e-01")}, 0, ""},
		{"an earlier query", []string{line("a", "1 0 70 10 10 0 9.12e+00") + line("b", "0 4 100 10 10 0 4.54e-01")}, 0, ""},
		{"a cut line", []string{"a\t0\t0\t100"}, 0, ""},
		{"too few columns", []string{"0\t0\t100\t10\t10\t0\t4.54e-01\n"}, 0, ""},
	} {
		var sources []*source
		var err error
		var out bytes.Buffer
		for i, text := range c.results {
			var r *source
			if r, err = newSource(strings.NewReader(text), s, int64(100*i)); err != nil {
				break
			}
			sources = append(sources, r)
		}
		if err == nil {
			err = merge(sources, c.most, true, &out)
		}
		if got := strings.Join(strings.Fields(out.String()), " "); c.want == "" != (err != nil) || err == nil && got != c.want {
			t.Errorf("%s: %q, %v", c.about, got, err)
		}
	}
}

func TestUncertain(t *testing.T) {
	at := func(low, high float64) interval { return interval{low, high} }
	a := &target{subject: 1, evalue: at(1e-50, 1.1e-50), score: 200, slength: 100, qlength: 50}
	zero := &target{subject: 1, score: 4000, slength: 100}
	for _, c := range []struct {
		a    *target
		b    target
		want int
		ok   bool
	}{
		{a, target{subject: 2, evalue: a.evalue, score: 200, slength: 100, qlength: 50}, -1, true},
		{a, target{subject: 2, evalue: at(1.2e-50, 1.3e-50), score: 201, slength: 120, qlength: 50}, -1, true},
		{a, target{subject: 2, evalue: at(0.8e-50, 0.9e-50), score: 199, slength: 120, qlength: 50}, 1, true},
		{a, target{subject: 2, evalue: at(1.05e-50, 1.2e-50), score: 201, slength: 120, qlength: 50}, 0, false},
		{a, target{query: 1, subject: 2, evalue: a.evalue, score: 201}, -1, true},
		{zero, target{subject: 0, score: 4100}, 1, true},
		{zero, target{subject: 0, score: 4000}, 1, true},
		{zero, target{subject: 2, score: 2600, evalue: at(1e-320, 1e-319)}, -1, true},
	} {
		if got, err := compare(c.a, &c.b); got != c.want || (err == nil) != c.ok {
			t.Errorf("%+v: %d, %v", c.b, got, err)
		}
	}
}

// Results come from other machines.
func FuzzMerge(f *testing.F) {
	f.Add("a\t0\t0\t100\t10\t10\t0\t4.54e-01\nb\t0\t4\t70\t10\t10\t0\t9.12e+00\n", "c\t0\t2\t90\t10\t10\t0\t1.23e+00\n", 2)
	f.Add("a\tb\t0\t0\t100\t10\t10\t-3\t0.0\n", "", 0)
	f.Fuzz(func(t *testing.T, a, b string, most int) {
		s := &scoring{translated: most%2 == 1, letters: 1000, lambda: 0.1, k: 1, leastVariance: 1e-12}
		var sources []*source
		for i, text := range []string{a, b} {
			r, err := newSource(strings.NewReader(text), s, int64(100*i))
			if err != nil {
				return
			}
			sources = append(sources, r)
		}
		var out bytes.Buffer
		if err := merge(sources, max(0, most), true, &out); err == nil && bytes.Count(out.Bytes(), []byte("\n")) > strings.Count(a+b, "\n") {
			t.Errorf("%d lines of %q and %q", bytes.Count(out.Bytes(), []byte("\n")), a, b)
		}
	})
}
