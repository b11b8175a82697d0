package diamond

import (
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/exit"
)

// class determines how an option of DIAMOND is handled.
type class int

const (
	unknown class = iota // it is refused
	find                 // selects results: passed to the searches of fragments
	ours                 // files, threads, format: handled here
)

// option is an option of DIAMOND 2.1.
type option struct {
	class class
	value bool // a value follows
}

// options returns the table of the options, by their long names, and the long names of short
// ones.
func options() (table map[string]option, long map[string]string) {
	table = map[string]option{
		"db": {ours, true}, "query": {ours, true}, "out": {ours, true}, "outfmt": {ours, true}, "threads": {ours, true},
		"tmpdir": {ours, true}, "quiet": {ours, false}, "verbose": {ours, false}, "log": {ours, false},
	}
	for _, name := range []string{
		"algo", "approx-id", "band", "bin", "block-size", "comp-based-stats", "dbsize", "evalue", "ext", "ext-chunk-size",
		"freq-sd", "gapextend", "gapopen", "gapped-filter-evalue", "id", "id2", "index-chunks", "masking", "matrix", "max-hsps",
		"max-target-seqs", "min-orf", "min-score", "motif-masking", "query-cover", "query-gencode", "seed-cut", "shapes",
		"soft-masking", "stop-match-score", "strand", "subject-cover", "tantan-minMaskProb", "xdrop",
	} {
		table[name] = option{find, true}
	}
	for _, name := range []string{
		"fast", "faster", "freq-masking", "mid-sensitive", "more-sensitive", "no-ranking", "no-self-hits", "sensitive", "swipe",
		"ultra-sensitive", "very-sensitive",
	} {
		table[name] = option{find, false}
	}
	return table, map[string]string{
		"b": "block-size", "c": "index-chunks", "d": "db", "e": "evalue", "f": "outfmt", "k": "max-target-seqs", "l": "min-orf",
		"o": "out", "p": "threads", "q": "query", "s": "shapes", "t": "tmpdir", "v": "verbose", "x": "xdrop",
	}
}

// The columns of format 6 by default, and all that may be chosen. DIAMOND prints these equally
// for one block and for several.
const (
	standard = "qseqid sseqid pident length mismatch gapopen qstart qend sstart send evalue bitscore"
	columns  = standard + " qlen sallseqid slen qseq qseq_gapped qseq_translated full_qseq sseq sseq_gapped full_sseq corrected_bitscore score " +
		"nident positive gaps ppos qframe btop cigar stitle salltitles qcovhsp scovhsp qtitle qstrand"
)

// hidden are columns that are added to the chosen ones, for the merge. Their numbers of sequences
// count from 0.
var hidden = []string{"qnum", "snum", "score", "slen", "qlen", "qframe", "evalue"}

const runItself = "leave it out, or run diamond itself"

// Options are the parsed options of one search with DIAMOND.
type Options struct {
	DB, Query, Out string // empty: not set
	Threads        int    // 0: not set

	tmp     string
	columns []string
	find    []string
	values  map[string]string // of all options, by long name
}

// ParseOptions parses the options of blastp or blastx. It leaves it to DIAMOND to refuse values.
func ParseOptions(args []string) (*Options, error) {
	table, long := options()
	o := &Options{values: map[string]string{}, columns: strings.Fields(standard)}
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "--")
		if !ok {
			if name, ok = long[strings.TrimPrefix(args[i], "-")]; !ok || args[i][0] != '-' {
				return nil, exit.Errorf(exit.Usage, "options and values are separate words, as in -k 5; some options are refused, since they compare what is in different fragments", "%q is not an option of DIAMOND for searches of fragments", args[i])
			}
		}
		p := table[name]
		if p.class == unknown {
			return nil, exit.Errorf(exit.Usage, runItself, "the results with --%s cannot be merged exactly", name)
		}
		if _, again := o.values[name]; again {
			return nil, exit.Errorf(exit.Usage, "leave one of them out", "the option --%s is there twice", name)
		}
		given := args[i : i+1]
		if p.value {
			if i+1 == len(args) {
				return nil, exit.Errorf(exit.Usage, "give one", "the option --%s has no value", name)
			}
			i++
			given = args[i-1 : i+1]
		}
		o.values[name] = given[len(given)-1]
		if p.class == find {
			o.find = append(o.find, given...)
		}
		if name == "outfmt" {
			var chosen []string
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
				chosen = append(chosen, args[i])
			}
			if err := o.outfmt(chosen); err != nil {
				return nil, err
			}
		}
	}
	o.DB, o.Query, o.Out, o.tmp = o.values["db"], o.values["query"], o.values["out"], o.values["tmpdir"]
	if text, ok := o.values["threads"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, exit.Errorf(exit.Usage, "as in --threads 4", "%q is not a number of threads", text)
		}
		o.Threads = n
	}
	_, err := o.scoring("blastp", 1)
	return o, err
}

// outfmt reads the format and its columns.
func (o *Options) outfmt(chosen []string) error {
	if f := o.values["outfmt"]; f != "6" {
		return exit.Errorf(exit.Usage, "give --outfmt 6, with columns if needed", "results in the format %s cannot be merged", f)
	}
	known := strings.Fields(columns)
	for _, c := range chosen {
		if !slices.Contains(known, c) {
			return exit.Errorf(exit.Usage, "choose among "+columns, "the column %s cannot be merged exactly", c)
		}
	}
	if len(chosen) > 0 {
		o.columns = chosen
	}
	return nil
}

// targets returns the most targets of a query; 0: all.
func (o *Options) targets() (int, error) {
	text, ok := o.values["max-target-seqs"]
	if !ok {
		return 25, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, exit.Errorf(exit.Usage, "as in --max-target-seqs 25", "%q is not a number of targets", text)
	}
	return n, nil
}

// blockValue returns the value of -b, given or by default.
func (o *Options) blockValue() string {
	if b, ok := o.values["block-size"]; ok {
		return b
	}
	for _, name := range []string{"very-sensitive", "ultra-sensitive"} {
		if _, ok := o.values[name]; ok {
			return "0.4"
		}
	}
	return "2"
}
