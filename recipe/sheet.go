package recipe

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"premix/hotstart"
	"premix/hotstart/placeholder"
	"premix/internal/problem"
	"premix/internal/regex"
)

// maxSheet is the size above which a file is taken for something else, bytes.
const maxSheet = 256 << 20

// sampleForm is what a sample's name looks like: safe in a shell and in a path.
var sampleForm = regex.Lazy(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// maxSampleName leaves room, in the 255 bytes of a file's name, for an ending.
const maxSampleName = 200

// row is one row of a sheet, as read.
type row struct {
	line  int
	cells []string
}

// Sheet reads the sample sheet at path and checks it against the recipe: CSV
// (RFC 4180) in UTF-8 with or without a byte order mark, lines ended by LF or
// CRLF, lines that begin with # and empty ones left out. The header names the
// columns: "sample" and every input, in any order. Paths are relative to the
// sheet. Samples are returned in the sheet's order; what its writer can mend is
// returned as Problems, all of it.
func (r *Recipe) Sheet(path string) ([]Sample, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sample sheet %s: %w", path, err)
	}
	text, wrong := readFile(path, maxSheet, "a sample sheet")
	if wrong != nil {
		return nil, Problems{*wrong}
	}
	return r.sheet(path, filepath.Dir(abs), text)
}

// sheet checks the text of a sheet. file is how problems name it, dir what its
// paths are relative to.
func (r *Recipe) sheet(file, dir string, text []byte) ([]Sample, error) {
	c := &problem.Collector{File: file}
	rows := readRows(c, text)
	if len(rows) == 0 {
		if len(c.List) == 0 {
			c.Add(0, "write a header, "+r.header()+", and one row a sample", "the sample sheet is empty")
		}
		return nil, c.Err()
	}
	columns := r.columns(c, rows[0], text)
	if columns == nil {
		return nil, c.Err()
	}
	samples := make([]Sample, 0, len(rows)-1)
	first := make(map[string]int)
	for _, row := range rows[1:] {
		if len(row.cells) != len(rows[0].cells) {
			hint := "an empty cell still needs its comma; a cell that holds a comma must be quoted"
			c.Add(row.line, hint, "the row has %s, the header %d", count(len(row.cells), "cell"), len(rows[0].cells))
			continue
		}
		s := r.sample(c, row, columns, dir)
		if s.Name != "" {
			if line, ok := first[s.Name]; ok {
				c.Add(row.line, "give each row its own name; several files of one sample are joined before, or get a name each",
					"sample %s stands twice, in lines %d and %d", s.Name, line, row.line)
				continue
			}
			first[s.Name] = row.line
		}
		samples = append(samples, s)
	}
	if len(rows) == 1 {
		c.Add(rows[0].line, "write one row a sample below it", "the sample sheet has a header, but no sample")
	}
	r.apart(c, samples)
	if err := c.Err(); err != nil {
		return nil, err
	}
	return samples, nil
}

// header is the one that fits the recipe.
func (r *Recipe) header() string {
	names := []string{"sample"}
	for _, in := range r.Inputs {
		names = append(names, in.Name)
	}
	return strings.Join(names, ",")
}

// readRows cuts a sheet into rows of trimmed cells, without those that are empty.
func readRows(c *problem.Collector, text []byte) []row {
	if bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff}) {
		c.Add(0, `save it as "CSV UTF-8"`, "the sample sheet is in UTF-16")
		return nil
	}
	if bytes.HasPrefix(text, []byte("PK\x03\x04")) {
		c.Add(0, `save it as "CSV UTF-8"`, "this is a workbook, not a CSV file")
		return nil
	}
	if bytes.HasPrefix(text, []byte("\x1f\x8b")) {
		c.Add(0, "name the table that lists the samples; files of reads stand in it", "this is a compressed file, not a CSV file")
		return nil
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !bytes.Contains(text, []byte("\n")) {
		text = bytes.ReplaceAll(text, []byte("\r"), []byte("\n"))
	}
	reader := csv.NewReader(bytes.NewReader(text))
	reader.Comment = '#'
	reader.FieldsPerRecord = -1
	reader.TrimLeadingSpace = true
	var rows []row
	for {
		cells, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return rows
		}
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			c.Add(bad.StartLine, `quote a cell that holds a comma or a quote, and double the quotes in it: "a ""b"", c"`, "this is no CSV: %s", bad.Err)
			continue
		}
		if err != nil {
			c.Add(0, "", "%s", err)
			return rows
		}
		line, _ := reader.FieldPos(0)
		empty := true
		for i, cell := range cells {
			if !utf8.ValidString(cell) || strings.ContainsRune(cell, 0) {
				c.Add(line, `save the sheet as "CSV UTF-8"`, "the row is no text in UTF-8")
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

// columns maps each name to its column, or is nil where rows can't be read.
func (r *Recipe) columns(c *problem.Collector, header row, text []byte) map[string]int {
	if len(header.cells) == 1 {
		for sep, name := range map[string]string{"\t": "tabs", ";": "semicolons"} {
			if strings.Contains(header.cells[0], sep) {
				c.Add(header.line, "put commas between the cells (save it as CSV): "+r.header(), "the sample sheet is separated by %s", name)
				return nil
			}
		}
	}
	body := bytes.TrimPrefix(text, []byte("\ufeff"))
	if !slices.Contains(header.cells, "sample") && bytes.HasPrefix(body, []byte("#sample")) {
		c.Add(1, "take the # away: it makes a comment of the line", "the header is a comment")
		return nil
	}
	known := []string{"sample"}
	for _, in := range r.Inputs {
		known = append(known, in.Name)
	}
	columns := make(map[string]int)
	var unknown []string
	for i, name := range header.cells {
		if _, ok := columns[name]; ok {
			c.Add(header.line, "remove one of them", "column %s stands twice", name)
			continue
		}
		if name == "" {
			c.Add(header.line, "name it or remove it", "column %d has no name", i+1)
			continue
		}
		if slices.Contains(known, name) {
			columns[name] = i
		} else {
			unknown = append(unknown, name)
		}
	}
	var missing []string
	for _, name := range known {
		if _, ok := columns[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(columns) == 0 && !slices.ContainsFunc(unknown, func(name string) bool { return problem.Near(name, missing) != "" }) {
		// Another file, or rows without a header: what is wrong with its rows would be
		// told of each of them.
		c.List = nil
		c.Add(header.line, "the header is "+r.header(), "this is no sample sheet: its first line names none of the columns")
		return nil
	}
	guessed := make(map[string]bool)
	for _, name := range unknown {
		hint := "remove it, or declare it in the recipe: inputs: [" + strings.Join(append(known[1:len(known):len(known)], name), ", ") + "]"
		if k := problem.Near(name, missing); k != "" {
			hint = fmt.Sprintf("did you mean %s?", k)
			guessed[k] = true
		}
		c.Add(header.line, hint, "unknown column %s", name)
	}
	for _, name := range missing {
		if guessed[name] {
			continue
		}
		c.Add(header.line, "the header is "+r.header(), "column %s is missing", name)
	}
	return columns
}

// sample reads one row. Its name is empty where it is no good.
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

// checkFile says what is wrong with a sample's file, and the way out.
func (in Input) checkFile(dir, cell string) (message, hint string) {
	abs := absolute(dir, cell)
	info, err := os.Stat(abs)
	switch {
	case err != nil && strings.Contains(cell, "://"):
		return "is no path", "fetch it first: inputs are local files"
	case err != nil && strings.HasPrefix(cell, "~"):
		return "~ is not replaced by the home directory", "write the path out"
	case err != nil:
		message, hint = fileTrouble(abs, cell, err)
		if hint == "" && !filepath.IsAbs(cell) {
			hint = fmt.Sprintf("paths are relative to the sheet: this is %s", abs)
		}
		return message, hint
	case info.IsDir():
		return "is a directory", "name the file in it"
	case !info.Mode().IsRegular():
		return "is no plain file", "an input must be readable more than once"
	}
	return in.refuses(abs, cell)
}

// refuses says why the tool could not read the plain file at abs as this input:
// it may not be opened, or its content contradicts the fixed name's ending.
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
	only := "" // the format, where it is compressed in itself
	if packed && (in.Decompress || textName(in.File)) {
		// A damaged file fails its own task, and not the whole sheet.
		only, _ = placeholder.PackedOnly(abs)
	}
	switch {
	case only != "" && in.Decompress:
		return fmt.Sprintf("is a file of the format %s, which no tool reads decompressed", only),
			fmt.Sprintf("take `decompress` out of input %s of the recipe", in.Name)
	case only != "":
		return fmt.Sprintf("is a file of the format %s, and its fixed name is %s", only, in.File),
			fmt.Sprintf("in the recipe: %s: {file: NAME} with an ending that the tool expects", in.Name)
	case in.Decompress || packed == compressedName(in.File) || packed && !textName(in.File) || path.Ext(in.File) == "":
		return "", ""
	case packed:
		return fmt.Sprintf("is gzip, but the tool is told that it is not: its fixed name is %s", in.File),
			fmt.Sprintf("in the recipe: %s: {file: %s, decompress: true}, which takes both", in.Name, in.File)
	default:
		return fmt.Sprintf("is not gzip, but the tool is told that it is: its fixed name is %s", in.File),
			fmt.Sprintf("gzip %s, or in the recipe: %s: {file: %s, decompress: true}, which takes both", written, in.Name, plainName(in.File))
	}
}

func compressedName(file string) bool {
	ext := strings.ToLower(path.Ext(file))
	return ext == ".gz" || ext == ".bgz"
}

// textEndings are the endings by which tools know plain text. Files with other endings
// may be compressed in themselves, as BAM is.
var textEndings = []string{".fq", ".fastq", ".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn", ".fas", ".sam", ".vcf", ".bed", ".gff", ".gff3", ".gtf",
	".wig", ".bedgraph", ".txt", ".csv", ".tsv", ".tab", ".paf", ".maf", ".psl", ".json", ".xml"}

func textName(file string) bool {
	return slices.Contains(textEndings, strings.ToLower(path.Ext(file)))
}

func plainName(file string) string { return strings.TrimSuffix(file, path.Ext(file)) }

// reportName is what premix itself may write into a run directory.
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

// apartInTask reports outputs that a pipe writes under the sample's own name, and
// so over a fixed name in the task's directory.
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
