package service

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"premix/internal/blast/fasta"
	"premix/internal/kit/regex"
)

// longestValue is the highest length of the value of an option, or of a list of columns, in
// bytes: about a hundred taxa. Counted repetitions in the expressions below would make them
// large.
const longestValue = 1000

// The forms of the values of options.
var (
	whole    = regex.Lazy(`^-?[0-9]{1,15}$`)
	number   = regex.Lazy(`^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$|^-?\.[0-9]+$`)
	word     = regex.Lazy(`^[A-Za-z0-9_-]+$`)
	truth    = regex.Lazy(`^(true|false)$`)
	masking  = regex.Lazy(`^(yes|no|[0-9.]+ [0-9.]+ [0-9.]+)$`)
	interval = regex.Lazy(`^[0-9]{1,12}-[0-9]{1,12}$`)
	taxonomy = regex.Lazy(`^[0-9]+(,[0-9]+)*$`)
)

// flag is the form of options that have no value in BLAST+. A request gives them as true.
var flag func() *regexp.Regexp

// allowed are the options of BLAST+ that a user may give, with the form of their values. It
// does not include options that name files, set the use of the machine, or choose the
// output.
var allowed = map[string]func() *regexp.Regexp{
	"evalue": number, "word_size": whole, "gapopen": whole, "gapextend": whole, "reward": whole, "penalty": whole,
	"matrix": word, "threshold": number, "comp_based_stats": word, "task": word, "strand": word,
	"seg": masking, "dust": masking, "soft_masking": truth, "lcase_masking": flag,
	"perc_identity": number, "qcov_hsp_perc": number, "max_hsps": whole, "max_target_seqs": whole,
	"culling_limit": whole, "best_hit_overhang": number, "best_hit_score_edge": number, "subject_besthit": flag,
	"query_loc": interval, "query_gencode": whole, "db_gencode": whole, "taxids": taxonomy, "negative_taxids": taxonomy,
	"db_soft_mask": word, "db_hard_mask": word, "searchsp": whole, "dbsize": whole, "window_size": whole,
	"xdrop_ungap": number, "xdrop_gap": number, "xdrop_gap_final": number, "ungapped": flag, "use_sw_tback": flag,
	"template_type": word, "template_length": whole, "no_greedy": flag, "min_raw_gapped_score": whole, "off_diagonal_range": whole,
	"max_intron_length": whole, "sum_stats": truth,
}

// programs are the programs, with the alphabet of their queries.
var programs = map[string]fasta.Alphabet{
	"blastn": fasta.Nucleotides, "megablast": fasta.Nucleotides, "blastx": fasta.Nucleotides, "tblastx": fasta.Nucleotides,
	"blastp": fasta.AminoAcids, "tblastn": fasta.AminoAcids,
}

// overAminoAcids reports whether a program searches protein databases.
func overAminoAcids(program string) bool { return program == "blastp" || program == "blastx" }

// arguments returns a user's options as arguments of BLAST+, in an order that depends only
// on the options.
func arguments(options map[string]string) ([]string, error) {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := strings.TrimSpace(options[name])
		form, ok := allowed[name]
		isFlag := ok && form == nil
		switch {
		case !ok:
			return nil, refused(400, "option", "there is no option %q", name)
		case isFlag && value == "false":
			continue
		case isFlag && value != "" && value != "true", !isFlag && (len(value) > longestValue || !form().MatchString(value)):
			return nil, refused(400, "option", "%q is not a value of the option %s", value, name)
		}
		args = append(args, "-"+name)
		if !isFlag {
			args = append(args, value)
		}
	}
	return args, nil
}

// format is an output format.
type format struct {
	outfmt  string // for -outfmt
	html    bool
	content string // media type
}

// formats are the formats by NCBI's names and by shorter ones, in lower case.
var formats = map[string]format{
	"xml":     {outfmt: "5", content: "application/xml"},
	"xml2_s":  {outfmt: "16", content: "application/xml"},
	"text":    {outfmt: "0", content: "text/plain; charset=utf-8"},
	"html":    {outfmt: "0", html: true, content: "text/html; charset=utf-8"},
	"tabular": {outfmt: "6", content: "text/plain; charset=utf-8"},
	"table":   {outfmt: "7", content: "text/plain; charset=utf-8"},
	"csv":     {outfmt: "10", content: "text/csv; charset=utf-8"},
	"json":    {outfmt: "15", content: "application/json"},
	"json2_s": {outfmt: "15", content: "application/json"},
	"sam":     {outfmt: "17", content: "text/plain; charset=utf-8"},
	"archive": {outfmt: "11", content: "text/plain; charset=utf-8"},
}

var columnsForm = regex.Lazy(`^[a-z]+( [a-z]+)*$`)

// formatOf finds a format by its name. columns are the columns of a table, "" for the
// default.
func formatOf(name, columns string) (canonical string, f format, err error) {
	name = strings.ToLower(name)
	switch name { // NCBI's other names
	case "json2":
		name = "json2_s"
	case "xml2":
		name = "xml2_s"
	case "asn.1":
		name = "archive"
	}
	f, ok := formats[name]
	if !ok {
		return "", f, refused(400, "format", "there is no format %q", name)
	}
	if name == "json2_s" {
		name = "json"
	}
	if columns == "" {
		return name, f, nil
	}
	if f.outfmt != "6" && f.outfmt != "7" && f.outfmt != "10" || len(columns) > longestValue || !columnsForm().MatchString(columns) {
		return "", f, refused(400, "format", "the columns %q cannot be had in the format %s", columns, name)
	}
	f.outfmt += " " + columns
	return name + " " + columns, f, nil
}

// formatNamed returns the format with a canonical name.
func formatNamed(canonical string) (format, error) {
	name, columns, _ := strings.Cut(canonical, " ")
	_, f, err := formatOf(name, columns)
	return f, err
}

// Refusal is the error of a request that is refused.
type Refusal struct {
	Status  int    // of HTTP
	Reason  string // a word, for programs and metrics
	Message string
	After   int // seconds after which to try again; 0: do not
}

func (r *Refusal) Error() string { return r.Message }

func refused(status int, reason, text string, args ...any) error {
	return &Refusal{Status: status, Reason: reason, Message: fmt.Sprintf(text, args...)}
}
