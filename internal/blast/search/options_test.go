package search

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"premix/internal/blast/database"
	"premix/internal/kit/exit"
)

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		args, find, show string
		format, hits     int
		entire           string
	}{
		{"-db nt -query q.fa", "", "", 0, 0, ""},
		{"-db nt -evalue 1e-5 -html -out o", "-evalue 1e-5", "-html", 0, 0, ""},
		{"-outfmt 6 -max_target_seqs 5", "", "", 6, 5, ""},
		{"-outfmt 6 -num_alignments 7", "", "", 6, 7, ""},
		{"-outfmt 6 -num_descriptions 7", "-num_descriptions 7", "", 6, 0, ""},
		{"-max_target_seqs 5", "", "-max_target_seqs 5", 0, 5, ""},
		{"-num_descriptions 3", "", "-num_descriptions 3", 0, 250, ""},
		{"-num_alignments 3", "", "-num_alignments 3", 0, 500, ""},
		{"-num_alignments 3 -num_descriptions 4", "", "-num_descriptions 4 -num_alignments 3", 0, 4, ""},
		{"-parse_deflines", "-parse_deflines", "-parse_deflines", 0, 0, ""},
		{"-culling_limit 1", "", "", 0, 0, "-culling_limit concerns"},
		{"-sorthits 3", "", "-sorthits 3", 0, 0, ""},
		{"-sorthits 2", "", "-sorthits 2", 0, 0, "sums of scores"},
		{"-outfmt 6 -sorthits 2", "-sorthits 2", "-sorthits 2", 6, 0, ""},
		{"-outfmt 13", "", "", 13, 0, "-outfmt 13"},
		{"-nonsense", "", "", 0, 0, "premix does not know"},
		{"-evalue", "", "", 0, 0, "has no value"},
		{"-evalue 1 -evalue 2", "-evalue 1 -evalue 2", "", 0, 0, "twice"},
		{"nt", "", "", 0, 0, "not an option"},
	} {
		o, err := ParseOptions(strings.Fields(c.args))
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if find, show := strings.Join(o.find, " "), strings.Join(o.show, " "); find != c.find || show != c.show {
			t.Errorf("%s: find %q, show %q; want %q, %q", c.args, find, show, c.find, c.show)
		}
		if o.format != c.format || o.hits != c.hits || !strings.Contains(o.entire, c.entire) || (o.entire == "") != (c.entire == "") {
			t.Errorf("%s: format %d, hits %d, entire %q; want %d, %d, %q", c.args, o.format, o.hits, o.entire, c.format, c.hits, c.entire)
		}
	}
	for _, args := range []string{"-subject s.fa", "-subject_loc 1-5", "-remote"} {
		var refused *exit.Error
		if _, err := ParseOptions(strings.Fields(args)); !errors.As(err, &refused) || refused.Hint() == "" {
			t.Errorf("%s: %v, want a refusal with a hint", args, err)
		}
	}
}

// All fragments are searched in order, with at most the requested number of processes, and all
// cores are used.
func TestSpread(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for processes := 1; processes <= 6; processes++ {
			var fragments []database.Fragment
			for i := range n {
				fragments = append(fragments, database.Fragment{Path: fmt.Sprint(i), Letters: int64(100 + i%3)})
			}
			p := spread(fragments, processes, 6)
			if want := min(n, processes); len(p.parts) != want {
				t.Errorf("%d fragments, %d processes: %d parts", n, processes, len(p.parts))
			}
			var all []database.Fragment
			threads := 0
			for _, part := range p.parts {
				if len(part.fragments) == 0 || len(part.fragments) > (n+len(p.parts)-1)/len(p.parts)+1 {
					t.Errorf("%d fragments, %d processes: a part of %d", n, processes, len(part.fragments))
				}
				all = append(all, part.fragments...)
				threads += part.threads
			}
			if !slices.Equal(all, fragments) || threads != 6 {
				t.Errorf("%d fragments, %d processes: %d of them on %d threads", n, processes, len(all), threads)
			}
		}
	}
}
