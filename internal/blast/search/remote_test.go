package search

import (
	"context"
	"errors"
	"strings"
	"testing"

	"premix/internal/blast/part"
	"premix/internal/kit/exit"
)

func TestCheckOrder(t *testing.T) {
	const plain = "-db nt -outfmt 11"
	for _, c := range []struct {
		tool, args string
		ok         bool
	}{
		{"blastn", plain, true},
		{"blastn", plain + " -task blastn -evalue 1e-5 -max_target_seqs 5 -dust no -ungapped", true},
		{"blastp", plain + " -matrix BLOSUM80 -parse_deflines", true},
		{"blastp", "-db nt -outfmt 6", false},
		{"blastp", "-db other -outfmt 11", false},
		{"blastp", "-outfmt 11", false},
		{"megablast", plain, false},
		{"sh", plain, false},
		{"blastn", plain + " -out /tmp/x", false},
		{"blastn", plain + " -query /etc/passwd", false},
		{"blastn", plain + " -seqidlist /etc/passwd", false},
		{"blastn", plain + " -export_search_strategy /tmp/x", false},
		{"blastn", plain + " -num_threads 64", false},
		{"blastn", plain + " -remote", false},
		{"blastn", plain + " -subject /etc/passwd", false},
		{"blastn", plain + " -no_such_option 1", false},
		{"blastn", plain + " -help", false},
		{"blastn", plain + " extra", false},
		{"blastn", plain + " -db nt -db other", false},
	} {
		if err := (Parts{}).Check(&part.Order{Tool: c.tool, Database: "nt", Args: strings.Fields(c.args)}); (err == nil) != c.ok {
			t.Errorf("%s %s: %v, want %v", c.tool, c.args, err, c.ok)
		}
	}
}

// Other machines search fragments, and no search of the whole takes place there in silence.
func TestModeElsewhere(t *testing.T) {
	away := errors.New("away")
	remote := func(context.Context, part.Order, []string) ([]part.Result, error) { return nil, away }
	o, err := ParseOptions([]string{"-db", "nt", "-query", "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{Queries, Whole} {
		var refused *exit.Error
		if err := Run(t.Context(), Request{Program: "blastp", Options: o, Settings: Settings{Mode: mode}, Remote: remote}); !errors.As(err, &refused) {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

// The environment of the user who started a service or a node does not affect its results.
func TestApart(t *testing.T) {
	for _, name := range []string{"BATCH_SIZE", "NCBI", "BLASTDB"} {
		t.Setenv(name, "of the user")
	}
	for _, v := range environment(places("/dir", true)) {
		if strings.HasSuffix(v, "=of the user") {
			t.Errorf("BLAST+ gets %s", v)
		}
	}
}
