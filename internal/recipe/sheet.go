package recipe

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"premix/internal/hotstart"
	"premix/internal/hotstart/placeholder"
	"premix/internal/kit/problem"
	"premix/internal/kit/regex"
)

// maxSheet is the largest size of a sample sheet, in bytes.
const maxSheet = 256 << 20

// sampleForm matches names of samples. They are safe in a shell and in a path.
var sampleForm = regex.Lazy(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// maxSampleName leaves space for a suffix in the 255 bytes of a file's name.
const maxSampleName = 200

// row is a row of a sheet.
type row struct {
	line  int
	cells []string
}

// Sheet reads the sample sheet at path and checks it against the recipe: CSV
// (RFC 4180) or tab-separated values, in UTF-8 with or without a byte order mark, with
// lines that end in LF or CRLF. Empty lines and lines that begin with # are ignored. The
// header has the names of the columns in any order: "sample" and every input, or their
// names in Recipe.Columns. Paths are relative to the sheet. Sheet returns the samples in
// the sheet's order, and a note if the columns were guessed. It returns all mistakes in
// the sheet as Problems.
func (r *Recipe) Sheet(path string) (samples []Sample, note string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, "", fmt.Errorf("sample sheet %s: %w", path, err)
	}
	text, wrong := readFile(path, maxSheet, "a sample sheet")
	if wrong != nil {
		return nil, "", Problems{*wrong}
	}
	return r.sheet(path, filepath.Dir(abs), text)
}

// sheet checks the text of a sheet. file is its name in problems, dir the directory of its
// relative paths.
func (r *Recipe) sheet(file, dir string, text []byte) ([]Sample, string, error) {
	c := &problem.Collector{File: file}
	rows, separator := readRows(c, text)
	if len(rows) == 0 {
		if len(c.List) == 0 {
			c.Add(0, "write a header, "+r.header()+", and one row for each sample", "the sample sheet is empty")
		}
		return nil, "", c.Err()
	}
	columns, note := r.columns(c, rows[0], text)
	if columns == nil {
		return nil, "", c.Err()
	}
	samples := make([]Sample, 0, len(rows)-1)
	first := make(map[string]int)
	for _, row := range rows[1:] {
		if len(row.cells) != len(rows[0].cells) {
			hint := "an empty cell still needs its comma; a cell that holds a comma must be quoted"
			if separator == '\t' {
				hint = "an empty cell still needs its tab"
			}
			c.Add(row.line, hint, "the row has %s, the header %d", count(len(row.cells), "cell"), len(rows[0].cells))
			continue
		}
		s := r.sample(c, row, columns, dir)
		if s.Name != "" {
			if line, ok := first[s.Name]; ok {
				c.Add(row.line, "give each row its own name; join several files of one sample beforehand, or give each its own name",
					"sample %s occurs twice, in lines %d and %d", s.Name, line, row.line)
				continue
			}
			first[s.Name] = row.line
		}
		samples = append(samples, s)
	}
	if len(rows) == 1 {
		c.Add(rows[0].line, "write one row for each sample below it", "the sample sheet has a header, but no sample")
	}
	r.apart(c, samples)
	if err := c.Err(); err != nil {
		return nil, "", err
	}
	if note != "" {
		note += fmt.Sprintf(" (%s:%d)", file, rows[0].line)
	}
	return samples, note, nil
}

// names returns "sample" and the names of the inputs.
func (r *Recipe) names() []string {
	names := []string{"sample"}
	for _, in := range r.Inputs {
		names = append(names, in.Name)
	}
	return names
}

// column returns the name of the column for "sample" or an input.
func (r *Recipe) column(name string) string {
	if c, ok := r.Columns[name]; ok {
		return c
	}
	return name
}

// header returns a header for sheets of the recipe.
func (r *Recipe) header() string {
	names := r.names()
	for i, name := range names {
		names[i] = r.column(name)
	}
	return strings.Join(names, ",")
}

// tabs reports whether the cells in the header of a sheet are separated by tabs.
func tabs(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return bytes.IndexByte(line, '\t') >= 0 && bytes.IndexByte(line, ',') < 0
		}
	}
	return false
}

// readRows splits a sheet into rows of trimmed cells, without empty rows. It also returns
// the separator of the cells.
func readRows(c *problem.Collector, text []byte) ([]row, rune) {
	if bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff}) {
		c.Add(0, `save it as "CSV UTF-8"`, "the sample sheet is in UTF-16")
		return nil, 0
	}
	if bytes.HasPrefix(text, []byte("PK\x03\x04")) {
		c.Add(0, `save it as "CSV UTF-8"`, "this is a workbook, not a CSV file")
		return nil, 0
	}
	if bytes.HasPrefix(text, []byte("\x1f\x8b")) {
		c.Add(0, "name the table that lists the samples; the files of reads are named in it", "this is a compressed file, not a CSV file")
		return nil, 0
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !bytes.Contains(text, []byte("\n")) {
		text = bytes.ReplaceAll(text, []byte("\r"), []byte("\n"))
	}
	reader := csv.NewReader(bytes.NewReader(text))
	reader.Comment = '#'
	reader.FieldsPerRecord = -1
	reader.TrimLeadingSpace = true
	if tabs(text) {
		reader.Comma, reader.TrimLeadingSpace = '\t', false // trimming would remove the tabs of empty cells
	}
	var rows []row
	for {
		cells, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return rows, reader.Comma
		}
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			c.Add(bad.StartLine, `quote a cell that holds a comma or a quote, and double the quotes in it: "a ""b"", c"`, "this is not CSV: %s", bad.Err)
			continue
		}
		if err != nil {
			c.Add(0, "", "%s", err)
			return rows, reader.Comma
		}
		line, _ := reader.FieldPos(0)
		empty := true
		for i, cell := range cells {
			if !utf8.ValidString(cell) || strings.ContainsRune(cell, 0) {
				c.Add(line, `save the sheet as "CSV UTF-8"`, "the row is not UTF-8 text")
				cell = strings.ToValidUTF8(strings.ReplaceAll(cell, "\x00", "?"), "?")
			}
			cells[i] = strings.TrimSpace(cell)
			empty = empty && cells[i] == ""
		}
		if !empty {
			rows = append(rows, row{line, cells})
		}
	}
}

// columns returns the index of the column of "sample" and each input, or nil if rows can't
// be read. The note names the columns that were guessed.
func (r *Recipe) columns(c *problem.Collector, header row, text []byte) (columns map[string]int, note string) {
	if len(header.cells) == 1 && strings.Contains(header.cells[0], ";") {
		c.Add(header.line, "put commas between the cells (save it as CSV): "+r.header(), "the sample sheet is separated by semicolons")
		return nil, ""
	}
	body := bytes.TrimPrefix(text, []byte("\ufeff"))
	if !slices.Contains(header.cells, r.column("sample")) && bytes.HasPrefix(body, []byte("#"+r.column("sample"))) {
		c.Add(1, "remove the #, which makes the line a comment", "the header is a comment")
		return nil, ""
	}
	known := make(map[string]string) // column to name
	for _, name := range r.names() {
		known[r.column(name)] = name
	}
	guess := r.guess(header.cells)
	for name, column := range guess {
		delete(known, name)
		known[column] = name
	}
	columns = make(map[string]int)
	var unknown []string
	for i, cell := range header.cells {
		name, ok := known[cell]
		if _, twice := columns[name]; twice {
			c.Add(header.line, "remove one of them", "column %s occurs twice", cell)
		} else if ok {
			columns[name] = i
		} else if cell == "" {
			c.Add(header.line, "name it or remove it", "column %d has no name", i+1)
		} else {
			unknown = append(unknown, cell)
		}
	}
	var missing []string
	for _, name := range r.names() {
		if _, ok := columns[name]; !ok {
			missing = append(missing, r.column(name))
		}
	}
	if len(columns) == 0 && !slices.ContainsFunc(unknown, func(name string) bool { return problem.Near(name, missing) != "" }) {
		// This is another file, or it has no header: every row would be a mistake.
		c.List = nil
		c.Add(header.line, "the header is "+r.header(), "this is not a sample sheet: its first line names none of the columns")
		return nil, ""
	}
	guessed := make(map[string]bool)
	for _, cell := range unknown {
		near := problem.Near(cell, missing)
		switch {
		case near != "":
			guessed[near] = true
			c.Add(header.line, fmt.Sprintf("did you mean %s?", near), "unknown column %s", cell)
		case r.Columns == nil && guess == nil:
			names := append(r.names()[1:], cell)
			c.Add(header.line, "remove it, or declare it in the recipe: inputs: ["+strings.Join(names, ", ")+"]; with `columns`, others are left out", "unknown column %s", cell)
		}
	}
	for _, column := range missing {
		if !guessed[column] {
			c.Add(header.line, "the header is "+r.header(), "column %s is missing", column)
		}
	}
	if guess != nil {
		note = "the columns were guessed: " + guess.String()
		if len(unknown) > 0 {
			note += "; left out: " + strings.Join(unknown, ", ")
		}
		note += "; `columns: {" + guess.String() + "}` in the recipe says the same"
	}
	return columns, note
}

// guess maps names of inputs to names of columns.
type guess map[string]string

// String prints a guess as YAML, sorted by input.
func (g guess) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		all = append(all, name+": "+g[name])
	}
	return strings.Join(all, ", ")
}

// guess returns the columns of the recipe's one or two inputs if a sheet has, instead of
// their names, the columns of nf-core's pipelines: fastq_1, and fastq_2 for two inputs. It
// guesses nothing if the sheet has fastq_2 and the recipe has one input.
func (r *Recipe) guess(header []string) guess {
	usual := []string{"fastq_1", "fastq_2"}
	if r.Columns != nil || len(r.Inputs) > len(usual) || !slices.Contains(header, "sample") {
		return nil
	}
	g := guess{}
	for i, column := range usual {
		if slices.Contains(header, column) != (i < len(r.Inputs)) {
			return nil
		}
		if i < len(r.Inputs) {
			if slices.Contains(header, r.Inputs[i].Name) {
				return nil
			}
			g[r.Inputs[i].Name] = column
		}
	}
	return g
}

// sample reads one row. An invalid name is reported and left empty.
func (r *Recipe) sample(c *problem.Collector, row row, columns map[string]int, dir string) Sample {
	s := Sample{Inputs: make(map[string]string), Line: row.line}
	if i, ok := columns["sample"]; ok {
		name := row.cells[i]
		switch {
		case name == "":
			c.Add(row.line, "", "the sample has no name")
		case !sampleForm().MatchString(name):
			hint := "begin with a letter or a digit"
			if better := keep(name, func(b byte) bool { return strings.IndexByte(nameChars, b) >= 0 }, '_'); sampleForm().MatchString(better) {
				hint = "write " + better
			}
			c.Add(row.line, hint, "%q can't be the name of a sample: letters, digits and . _ - only", name)
		case len(name) > maxSampleName:
			c.Add(row.line, fmt.Sprintf("at most %d", maxSampleName), "the name of the sample has %d characters", len(name))
		default:
			s.Name = name
		}
	}
	for _, in := range r.Inputs {
		i, ok := columns[in.Name]
		if !ok {
			continue
		}
		cell := row.cells[i]
		if cell == "" {
			c.Add(row.line, "every sample needs a file of its own here", "%s is empty", in.Name)
			continue
		}
		if message, hint := in.checkFile(dir, cell); message != "" {
			c.Add(row.line, hint, "%s: %s: %s", in.Name, cell, message)
			continue
		}
		s.Inputs[in.Name] = absolute(dir, cell)
	}
	return s
}

func absolute(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

// checkFile returns a message and a hint if a sample's file can't be used.
func (in Input) checkFile(dir, cell string) (message, hint string) {
	abs := absolute(dir, cell)
	info, err := os.Stat(abs)
	switch {
	case err != nil && strings.Contains(cell, "://"):
		return "is a URL, not a path", "fetch it first: inputs are local files"
	case err != nil && strings.HasPrefix(cell, "~"):
		return "~ is not replaced by the home directory", "write the whole path"
	case err != nil:
		message, hint = fileTrouble(abs, cell, err)
		if hint == "" && !filepath.IsAbs(cell) {
			hint = fmt.Sprintf("paths are relative to the sheet: this is %s", abs)
		}
		return message, hint
	case info.IsDir():
		return "is a directory", "name the file in it"
	case !info.Mode().IsRegular():
		return "is not a regular file", "an input must be readable more than once"
	}
	return in.refuses(abs, cell)
}

// refuses returns a message and a hint if the tool could not read the regular file at abs
// as this input: premix can't open it, or its content contradicts the fixed name's suffix.
func (in Input) refuses(abs, written string) (message, hint string) {
	f, err := os.Open(abs)
	if err != nil {
		return fileTrouble(abs, written, err)
	}
	magic := make([]byte, 2)
	n, err := io.ReadFull(f, magic)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return cause(errors.Join(err, f.Close())), ""
	}
	if err := f.Close(); err != nil {
		return cause(err), ""
	}
	// RFC 1952, 2.3.1: ID1 and ID2.
	packed := n == 2 && magic[0] == 0x1f && magic[1] == 0x8b
	only := "" // the format, if compression is a part of it
	if packed && (in.Decompress || textName(in.File)) {
		// A damaged file makes its own task fail, but is not a mistake in the sheet.
		only, _ = placeholder.PackedOnly(abs)
	}
	switch {
	case only != "" && in.Decompress:
		return fmt.Sprintf("is a file of the format %s, which no tool reads decompressed", only),
			fmt.Sprintf("remove `decompress` from input %s of the recipe", in.Name)
	case only != "":
		return fmt.Sprintf("is a file of the format %s, and its fixed name is %s", only, in.File),
			fmt.Sprintf("in the recipe: %s: {file: NAME} with an ending that the tool expects", in.Name)
	case in.Decompress || packed == compressedName(in.File) || packed && !textName(in.File) || path.Ext(in.File) == "":
		return "", ""
	case packed:
		return fmt.Sprintf("is gzip, but the tool expects plain text: its fixed name is %s", in.File),
			fmt.Sprintf("in the recipe: %s: {file: %s, decompress: true}, which takes both", in.Name, in.File)
	default:
		return fmt.Sprintf("is not gzip, but the tool expects gzip: its fixed name is %s", in.File),
			fmt.Sprintf("gzip %s, or in the recipe: %s: {file: %s, decompress: true}, which takes both", written, in.Name, plainName(in.File))
	}
}

func compressedName(file string) bool {
	ext := strings.ToLower(path.Ext(file))
	return ext == ".gz" || ext == ".bgz"
}

// textEndings are the suffixes of plain text files. In other formats compression may be a
// part of the format, as in BAM.
var textEndings = []string{".fq", ".fastq", ".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn", ".fas", ".sam", ".vcf", ".bed", ".gff", ".gff3", ".gtf",
	".wig", ".bedgraph", ".txt", ".csv", ".tsv", ".tab", ".paf", ".maf", ".psl", ".json", ".xml"}

func textName(file string) bool {
	return slices.Contains(textEndings, strings.ToLower(path.Ext(file)))
}

func plainName(file string) string { return strings.TrimSuffix(file, path.Ext(file)) }

// reportName is the name of a file that premix itself may write into a run directory.
const reportName = "report.html"

// apart reports paths that two samples, or a sample and premix, would share.
func (r *Recipe) apart(c *problem.Collector, samples []Sample) {
	type owner struct {
		sample Sample
		output Output
	}
	owners := make(map[string]owner)
	var all []owner
	for _, s := range samples {
		if s.Name == "" {
			continue
		}
		r.apartInTask(c, s)
		for _, out := range r.Outputs(s) {
			o := owner{s, out}
			if first, _, _ := strings.Cut(out.To, "/"); first == inRun || out.To == reportName || within(out.To, reportName) {
				c.Add(s.Line, "rename the sample or change the output's path", "output %s of sample %s would be %s, which belongs to premix", out.Name, s.Name, out.To)
				continue
			}
			if other, ok := owners[out.To]; ok {
				c.Add(s.Line, "rename one of the samples or change the output's path in the recipe",
					"samples %s (line %d) and %s would share the path %s (outputs %s and %s)",
					other.sample.Name, other.sample.Line, s.Name, out.To, other.output.Name, out.Name)
				continue
			}
			owners[out.To] = o
			all = append(all, o)
		}
	}
	for _, o := range all {
		for d := path.Dir(o.output.To); d != "."; d = path.Dir(d) {
			other, ok := owners[d]
			if !ok {
				continue
			}
			late := slices.MaxFunc([]owner{o, other}, func(a, b owner) int { return cmp.Compare(a.sample.Line, b.sample.Line) })
			c.Add(late.sample.Line, "rename one of the samples or change the output's path in the recipe",
				"%s of sample %s (line %d) would lie in %s of sample %s (line %d)",
				o.output.To, o.sample.Name, o.sample.Line, other.output.To, other.sample.Name, other.sample.Line)
		}
	}
}

// apartInTask reports outputs that a pipe writes with the sample's own name, if that
// would overwrite a fixed name in the task's directory.
func (r *Recipe) apartInTask(c *problem.Collector, s Sample) {
	taken := []string{hotstart.StdoutName, hotstart.StderrName, PipeStdoutName}
	for _, in := range r.Inputs {
		taken = append(taken, in.File)
	}
	var own []Output
	for _, out := range r.Outputs(s) {
		if out.From == out.To {
			own = append(own, out)
		} else {
			taken = append(taken, out.From)
		}
	}
	for _, out := range own {
		for _, t := range taken {
			if out.From == t || within(out.From, t) || within(t, out.From) {
				c.Add(s.Line, "rename the sample, or change the path in the recipe",
					"output %s of sample %s would be %s in the task's directory, where %s is", out.Name, s.Name, out.From, t)
				break
			}
		}
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
