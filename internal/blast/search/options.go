package search

import (
	"fmt"
	"premix/internal/kit/exit"
	"slices"
	"strconv"
	"strings"
)

// class determines how an option of BLAST+ is handled.
type class int

const (
	unknown class = iota // not in the table: the whole database is searched
	find                 // selects results: passed to the searches of fragments
	show                 // formats results: passed to blast_formatter
	both                 // passed to both
	ours                 // files, threads, limits: handled here
	entire               // chooses or compares subjects: the whole database is searched
	help                 // prints something and ends
	refused              // not possible with a database of premix
)

// option is an option of BLAST+ 2.12.
type option struct {
	class class
	value bool // a value follows
}

// options returns a table of all known options, from the -help of the programs. Options
// that are not in it are not refused: they are passed, with all others, to a search of the
// whole database.
func options() map[string]option {
	table := map[string]option{
		"db": {ours, true}, "query": {ours, true}, "out": {ours, true}, "num_threads": {ours, true},
		"max_target_seqs": {ours, true}, "num_descriptions": {ours, true}, "num_alignments": {ours, true},
		"outfmt": {ours, true}, "html": {show, false}, "show_gis": {show, false}, "line_length": {show, true},
		"sorthits": {show, true}, "sorthsps": {show, true}, "parse_deflines": {both, false},
		"subject": {refused, true}, "subject_loc": {refused, true}, "remote": {refused, false},
		"h": {help, false}, "help": {help, false}, "version": {help, false},
	}
	for _, name := range []string{
		"task", "evalue", "word_size", "gapopen", "gapextend", "penalty", "reward", "matrix", "threshold", "comp_based_stats",
		"seg", "dust", "soft_masking", "strand", "query_gencode", "db_gencode", "xdrop_ungap", "xdrop_gap", "xdrop_gap_final",
		"window_size", "perc_identity", "qcov_hsp_perc", "max_hsps", "min_raw_gapped_score", "off_diagonal_range", "template_type",
		"template_length", "sum_stats", "max_intron_length", "dbsize", "searchsp",
	} {
		table[name] = option{find, true}
	}
	for _, name := range []string{"ungapped", "no_greedy", "use_sw_tback", "subject_besthit"} {
		table[name] = option{find, false}
	}
	for _, name := range []string{
		"culling_limit", "best_hit_overhang", "best_hit_score_edge", // compare subjects
		"gilist", "seqidlist", "negative_gilist", "negative_seqidlist", "taxids", "negative_taxids", "taxidlist",
		"negative_taxidlist", "ipglist", "negative_ipglist", "entrez_query", // change the statistics
		"db_soft_mask", "db_hard_mask", "use_index", "index_name",
		"filtering_db", "window_masker_taxid", "window_masker_db", "import_search_strategy", "export_search_strategy",
		"query_loc", "mt_mode",
		"in_pssm", "in_msa", "msa_master_idx", "phi_pattern", "out_pssm", "out_ascii_pssm", // of profiles
		"num_iterations", "inclusion_ethresh", "domain_inclusion_ethresh", "pseudocount", "gap_trigger", "rpsdb",
	} {
		table[name] = option{entire, true}
	}
	for _, name := range []string{"lcase_masking", "ignore_msa_master", "save_pssm_after_last_round", "save_each_pssm", "show_domain_hits"} {
		table[name] = option{entire, false}
	}
	return table
}

// Options are the parsed options of one search with BLAST+.
type Options struct {
	Args []string // as given

	DB, Query, Out string // empty: not set
	Threads        int    // 0: not set

	format  int    // the number of -outfmt
	columns string // the text after the number
	hits    int    // -max_target_seqs, or the option that replaces it; 0: not set
	find    []string
	show    []string
	values  map[string]string // of all options, by name
	entire  string            // why the whole database must be searched, or ""
	help    bool

	unformed bool // -outfmt is not in fromArchives
}

// ParseOptions parses the options of BLAST+. It leaves it to BLAST+ to refuse invalid ones.
func ParseOptions(args []string) (*Options, error) {
	table := options()
	o := &Options{Args: args, values: map[string]string{}}
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "-")
		if !ok {
			o.whole(fmt.Sprintf("%q is not an option that premix knows", args[i]))
			break // BLAST+ will print a better error
		}
		name, value, joined := strings.Cut(name, "=")
		p := table[name]
		if p.class == unknown {
			o.whole(fmt.Sprintf("premix does not know the option -%s", name))
			continue
		}
		if _, again := o.values[name]; again {
			o.whole(fmt.Sprintf("the option -%s is there twice", name))
		}
		given := []string{args[i]}
		if p.value && !joined {
			if i+1 == len(args) {
				o.whole(fmt.Sprintf("the option -%s has no value", name))
				break
			}
			i++
			value = args[i]
			given = append(given, value)
		}
		o.values[name] = value
		switch p.class {
		case find:
			o.find = append(o.find, given...)
		case show:
			o.show = append(o.show, given...)
		case both:
			o.find = append(o.find, given...)
			o.show = append(o.show, given...)
		case entire:
			o.whole(fmt.Sprintf("-%s concerns the whole database", name))
		case help:
			o.help = true
		case refused:
			return nil, refuse(name)
		}
	}
	o.DB, o.Query, o.Out = o.values["db"], o.values["query"], o.values["out"]
	o.Threads = o.number("num_threads", 0)
	o.outfmt()
	return o, nil
}

func refuse(name string) error {
	if name == "remote" {
		return exit.Errorf(exit.Usage, "leave -remote out, or run BLAST+ itself", "-remote searches at NCBI, not in a database that is here")
	}
	return exit.Errorf(exit.Usage, "leave it out and name a database with -db, or run BLAST+ itself", "-%s compares with a file, not with a database", name)
}

// with returns a copy of the options with another value for one of them.
func (o *Options) with(name, value string) (*Options, error) {
	rest, err := o.without(name)
	if err != nil {
		return nil, err
	}
	return ParseOptions(append(rest.Args, "-"+name, value))
}

// without returns a copy of the options without those named.
func (o *Options) without(names ...string) (*Options, error) {
	table := options()
	var args []string
	for i := 0; i < len(o.Args); i++ {
		name, _, joined := strings.Cut(strings.TrimPrefix(o.Args[i], "-"), "=")
		given := o.Args[i : i+1]
		if table[name].value && !joined && i+1 < len(o.Args) {
			given = o.Args[i : i+2]
			i++
		}
		if !slices.Contains(names, name) {
			args = append(args, given...)
		}
	}
	return ParseOptions(args)
}

// otherQuery reports whether BLAST+ takes the query from another option than -query, and so
// does not read standard input.
func (o *Options) otherQuery() bool {
	for _, name := range []string{"in_pssm", "in_msa", "import_search_strategy"} {
		if _, ok := o.values[name]; ok {
			return true
		}
	}
	return false
}

// Domains returns the name of the database of domains of deltablast.
func (o *Options) Domains() string {
	if name, ok := o.values["rpsdb"]; ok {
		return name
	}
	return "cdd_delta"
}

// Help reports whether the options ask BLAST+ only for help or its version.
func (o *Options) Help() bool { return o.help }

// whole records why the whole database must be searched.
func (o *Options) whole(why string) {
	if o.entire == "" {
		o.entire = why
	}
}

// number returns the value of a numeric option.
func (o *Options) number(name string, absent int) int {
	s, ok := o.values[name]
	if !ok {
		return absent
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		o.whole(fmt.Sprintf("-%s %s is not a number", name, s))
		return absent
	}
	return n
}

// fromArchives are the formats that can be made from archives. Other formats need a search
// of the whole database.
var fromArchives = []int{0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 15, 17}

// isText reports whether a format is for people.
func isText(format int) bool { return format <= 4 }

// outfmt parses -outfmt and the limits, whose meaning depends on it.
//
// It follows CFormattingArgs::ExtractAlgorithmOptions of the toolkit: the formats up to 4
// have limits of their own, and the search keeps as many hits as the larger of them.
func (o *Options) outfmt() {
	number, columns, _ := strings.Cut(strings.TrimSpace(o.values["outfmt"]), " ")
	if number != "" {
		n, err := strconv.Atoi(number)
		if err != nil || !slices.Contains(fromArchives, n) {
			o.whole(fmt.Sprintf("-outfmt %s is made by BLAST+ itself", number))
			o.unformed = true
		}
		o.format = n
	}
	o.columns = strings.TrimSpace(columns)
	given := func(names ...string) {
		for _, n := range names {
			if v, ok := o.values[n]; ok {
				o.show = append(o.show, "-"+n, v)
			}
		}
	}
	limits := []string{"num_descriptions", "num_alignments"}
	o.hits = o.number("max_target_seqs", 0)
	if _, ok := o.values["max_target_seqs"]; ok && o.hits == 0 {
		o.whole("-max_target_seqs 0 is refused by BLAST+") // fragments are searched with longer lists
	}
	if isText(o.format) {
		_, d := o.values[limits[0]]
		_, a := o.values[limits[1]]
		if d || a {
			o.hits = max(o.number(limits[0], 500), o.number(limits[1], 250))
		}
		given("max_target_seqs")
		given(limits...)
		if o.number("sorthits", 0) == 2 {
			// Total scores are sums of bit scores. If they differ at all, then perhaps only
			// in the last bit, which decides the order. Archives have 15 digits of each
			// score.
			o.whole("-sorthits 2 sorts by sums of scores, which archives round")
		}
		return
	}
	if o.hits == 0 {
		o.hits = o.number("num_alignments", 0)
	}
	// These formats ignore some options, and only the search prints that.
	for _, n := range []string{"num_descriptions", "line_length", "sorthits", "sorthsps"} {
		if v, ok := o.values[n]; ok {
			o.find = append(o.find, "-"+n, v)
		}
	}
}

// describe returns the value of -outfmt for blast_formatter.
func describe(format int, columns string) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", format, columns))
}
