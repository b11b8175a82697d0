package recipe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/hotstart"
	"premix/internal/kit/problem"
	"premix/internal/kit/regex"
	"premix/internal/kit/units"
)

// maxRecipe is the largest size of a recipe, in bytes.
const maxRecipe = 1 << 20

// keys lists the keys of a recipe in their usual order.
var keys = []string{"name", "image", "command", "data", "inputs", "columns", "outputs", "ready", "pipe",
	"threads", "memory", "timeout", "retries", "env", "varies", "probe", "trust", "verify"}

// reserved lists names that have a meaning of their own, or seem to.
var reserved = []string{"sample", "threads", "memory", "data", "stdout", "stderr", "stdin"}

// Forms of names; the schema repeats them.
var (
	nameForm = regex.Lazy(`^[a-z0-9][a-z0-9._-]*$`)
	wordForm = regex.Lazy(`^[A-Za-z][A-Za-z0-9_-]*$`)
	envForm  = regex.Lazy(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Load reads and checks the recipe at path. It returns all mistakes that the writer
// of the recipe can correct as Problems; they name the file by path. A recipe that
// names a tree as data, or an image, is a mistake here: see LoadFrom.
func Load(path string) (*Recipe, error) { return LoadFrom(path, Sources{}) }

// LoadFrom is Load for recipes whose data may be trees, and whose tool may be in an
// image. It mounts them while it reads the recipe. If images cannot be used on this
// machine or by this user, the error is a *hotstart.Unavailable.
func LoadFrom(path string, from Sources) (*Recipe, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", path, err)
	}
	text, wrong := readFile(path, maxRecipe, "a recipe")
	if wrong != nil {
		return nil, Problems{*wrong}
	}
	return parse(path, abs, text, from)
}

// readFile reads a recipe or a sheet. An error is a Problem for its writer.
func readFile(path string, limit int64, what string) ([]byte, *Problem) {
	f, err := os.Open(path)
	if err != nil {
		message, hint := fileTrouble(path, path, err)
		if hint == "" {
			hint = "name " + what + ": premix help recipe shows one"
		}
		return nil, &Problem{File: path, Message: message, Hint: hint}
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	err = errors.Join(err, f.Close())
	switch {
	case err != nil:
		return nil, &Problem{File: path, Message: cause(err), Hint: fmt.Sprintf("give %s: a plain file", what)}
	case int64(len(text)) > limit:
		return nil, &Problem{File: path, Message: fmt.Sprintf("is larger than %s", units.Size(limit)), Hint: fmt.Sprintf("is this %s?", what)}
	}
	return text, nil
}

// fileTrouble returns the reason why the file at path can't be used, and a hint.
// written is the path as it is written in the file.
func fileTrouble(path, written string, err error) (message, hint string) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dir, base := filepath.Split(filepath.Clean(path))
		if dir == "" {
			dir = "."
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "there is no such file", fmt.Sprintf("there is no directory %s either", filepath.Clean(dir))
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if k := problem.Near(base, names); k != "" {
			hint = fmt.Sprintf("did you mean %s?", filepath.Join(filepath.Dir(written), k))
		}
		return "there is no such file", hint
	case errors.Is(err, fs.ErrPermission):
		return "you may not read it", "chmod or chown it, or run premix as a user who may"
	default:
		return cause(err), ""
	}
}

// cause returns the text of err without the operation and the path.
func cause(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// parser turns one YAML file into a Recipe.
type parser struct {
	problem.Collector
	r      *Recipe
	dir    string // absolute, of the recipe
	from   Sources
	lines  []string // of the file
	starts []int    // lines of the top-level keys

	dataLines  map[string]int
	inputLines map[string]int
	used       map[string]bool // placeholders in command, env or pipe
	usedBy     map[string]bool // placeholders in command
	memoryAt   int             // line of ${memory}; 0: not used
	command    *yaml.Node
	pipe       *yaml.Node

	unavailable *hotstart.Unavailable // why no image can be used; nil if not known
}

// pair is an entry KEY: VALUE of a mapping.
type pair struct {
	key   string
	line  int
	value *yaml.Node
}

// parse checks the text of a recipe. file is its name in problems.
func parse(file, abs string, text []byte, from Sources) (*Recipe, error) {
	p := &parser{
		Collector:  problem.Collector{File: file},
		r:          &Recipe{Path: abs, Threads: 1, Verify: hotstart.ShareUsual, Ready: hotstart.Ready{Kind: hotstart.ReadyOpen}},
		dir:        filepath.Dir(abs),
		from:       from,
		lines:      strings.Split(string(text), "\n"),
		dataLines:  make(map[string]int),
		inputLines: make(map[string]int),
		used:       make(map[string]bool),
		usedBy:     make(map[string]bool),
	}
	root := p.document(text)
	if root == nil {
		return nil, p.Err()
	}
	p.top(root)
	if p.unavailable != nil {
		return nil, p.unavailable // correcting the mistakes would not help
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return p.r, nil
}

// document returns the mapping at the top of the file, or nil.
func (p *parser) document(text []byte) *yaml.Node {
	return p.YAML(text, problem.Document{Name: "recipe", Form: "a recipe is lines of KEY: VALUE, with at least name, command, inputs and outputs", Syntax: p.syntax})
}

// syntax searches the line of a syntax error, and the next, for common mistakes.
func (p *parser) syntax(line int) (at int, hint string) {
	at = line
	for n := max(line, 1); n <= min(line+1, len(p.lines)); n++ {
		text := p.lines[n-1]
		switch indent := text[:len(text)-len(strings.TrimLeft(text, " \t"))]; {
		case strings.Contains(indent, "\t"):
			at, hint = n, "indent with spaces: YAML takes no tabs"
		case hint == "" && strings.Contains(text, "${") && strings.ContainsAny(text, "{[\"'"):
			hint = `inside { } and [ ] a value with ${...} must be quoted: {stdout: "${sample}.sam"}`
		}
	}
	return at, hint
}

// pairs returns the entries of a mapping, each key once. what is the name of the
// mapping in messages.
func (p *parser) pairs(n *yaml.Node, what, hint string) []pair {
	if n.Kind != yaml.MappingNode {
		p.Add(n.Line, hint, "%s must be a mapping of KEY: VALUE", what)
		return nil
	}
	var list []pair
	first := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], problem.Follow(n.Content[i+1])
		if k.Kind != yaml.ScalarNode {
			p.Add(k.Line, "", "a key in %s must be a plain word", what)
			continue
		}
		if line, ok := first[k.Value]; ok {
			p.Add(k.Line, "keep one of them", "%s occurs twice in %s, first in line %d", k.Value, what, line)
			continue
		}
		first[k.Value] = k.Line
		list = append(list, pair{k.Value, k.Line, v})
	}
	return list
}

// text returns the value of a scalar that must be a string.
func (p *parser) text(n *yaml.Node, what string) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		p.Add(n.Line, "", "%s must be a text", what)
		return "", false
	}
	if n.Tag == "!!null" || n.Value == "" {
		p.Add(n.Line, "give it a value, or leave the key out", "%s is empty", what)
		return "", false
	}
	if n.Tag != "!!str" {
		p.Add(n.Line, fmt.Sprintf("quote it: %q", n.Value), "%s must be a text, but YAML reads %s as another type", what, n.Value)
		return "", false
	}
	if strings.ContainsRune(n.Value, 0) {
		p.Add(n.Line, "", "%s contains a NUL byte", what)
		return "", false
	}
	return n.Value, true
}

// find returns the first line with token, in the value n of a top-level key.
func (p *parser) find(n *yaml.Node, token string) int {
	end := len(p.lines)
	for _, s := range p.starts {
		if s > n.Line {
			end = min(end, s-1)
		}
	}
	for line := n.Line; line <= end; line++ {
		if strings.Contains(p.lines[line-1], token) {
			return line
		}
	}
	return n.Line
}

// at returns the line of the byte at offset in n's value.
func (p *parser) at(n *yaml.Node, offset int) int {
	if n.Style&yaml.LiteralStyle != 0 {
		return n.Line + 1 + strings.Count(n.Value[:offset], "\n")
	}
	token := n.Value[offset:]
	return p.find(n, token[:span(token, func(b byte) bool { return b > ' ' })])
}

func (p *parser) top(root *yaml.Node) {
	values := make(map[string]*yaml.Node)
	for _, kv := range p.pairs(root, "the recipe", "") {
		p.starts = append(p.starts, kv.line)
		if !slices.Contains(keys, kv.key) {
			p.Add(kv.line, problem.Meant(kv.key, keys, "%s"), "unknown key %s", kv.key)
			continue
		}
		values[kv.key] = kv.value
	}
	for _, k := range []struct{ key, hint string }{
		{"name", "name: " + p.suggestName(filepath.Base(p.r.Path))},
		{"command", "command: the tool and its arguments"},
		{"inputs", "inputs: [r1, r2], the columns of the sample sheet"},
		{"outputs", `outputs: {stdout: "${sample}.out"}`},
	} {
		if values[k.key] == nil {
			p.Add(root.Line, k.hint, "%s is missing", k.key)
		}
	}
	// Names are declared before the texts that may use them.
	for _, step := range []struct {
		key  string
		read func(*yaml.Node)
	}{
		{"name", p.name}, {"image", p.image}, {"data", p.data}, {"inputs", p.inputs}, {"columns", p.columns}, {"outputs", p.outputs},
		{"ready", p.ready}, {"threads", p.threads}, {"memory", p.memory}, {"timeout", p.timeout},
		{"retries", p.retries}, {"command", p.words}, {"env", p.env}, {"pipe", p.shell},
		{"varies", p.varies}, {"probe", p.probe}, {"trust", p.trust}, {"verify", p.verify},
	} {
		if n := values[step.key]; n != nil {
			step.read(n)
		}
	}
	p.cross(values)
}

func (p *parser) suggestName(base string) string {
	base = strings.TrimSuffix(base, filepath.Ext(base))
	s := keep(strings.ToLower(base), func(b byte) bool { return b == '.' || b == '-' || isNameByte(b) }, '-')
	if !nameForm().MatchString(s) {
		return "my-tool"
	}
	return s
}

func (p *parser) name(n *yaml.Node) {
	s, ok := p.text(n, "name")
	if !ok {
		return
	}
	if !nameForm().MatchString(s) {
		p.Add(n.Line, "name: "+p.suggestName(s+"."), "name %q must be small letters, digits and . _ -, and begin with a letter or a digit", s)
		return
	}
	p.r.Name = s
}

// declare checks the name of an input, an output or a data path.
func (p *parser) declare(name string, line int, what string) bool {
	switch {
	case slices.Contains(reserved, name) && !(what == "output" && name == "stdout"):
		p.Add(line, "take another name", "%s can't be the name of an %s: it has a meaning of its own", name, what)
		return false
	case !wordForm().MatchString(name):
		hint := "begin with a letter"
		if s := keep(name, isNameByte, '_'); wordForm().MatchString(s) {
			hint = fmt.Sprintf("write %s", s)
		}
		p.Add(line, hint, "%q can't be the name of an %s: letters, digits, _ and - only, a letter first", name, what)
		return false
	}
	return true
}

func (p *parser) data(n *yaml.Node) {
	p.r.Data = make(map[string]string)
	for _, kv := range p.pairs(n, "data", "data: {ref: ./ref}") {
		ok := p.declare(kv.key, kv.line, "entry of data")
		// The name is declared even if its path is wrong: one mistake is one problem.
		p.dataLines[kv.key] = kv.line
		s, isText := p.text(kv.value, "data."+kv.key)
		if !isText || !ok || p.frozen(kv.value, s, "data") {
			continue
		}
		place := ""
		switch what := "data." + kv.key; {
		case strings.HasPrefix(s, treePrefix):
			place = p.tree(kv.value, s, what)
		case strings.HasPrefix(s, repositoryPrefix):
			place = p.repository(kv.value, s, what)
		default:
			place = p.existing(kv.value, s, what, false)
		}
		if place != "" {
			p.r.Data[kv.key] = place
		}
	}
}

// frozen reports placeholders in a text that can't contain any.
func (p *parser) frozen(n *yaml.Node, s, where string) bool {
	found := false
	for _, seg := range segments(s, false) {
		if !seg.holds {
			continue
		}
		found = true
		if seg.name == "sample" {
			p.sampleFrozen(n, where)
			continue
		}
		p.Add(p.find(n, seg.text), "write the value", "%s can't contain placeholders, but has %s", where, seg.text)
	}
	return found
}

func (p *parser) sampleFrozen(n *yaml.Node, where string) {
	p.Add(p.find(n, "${sample}"), "use command, or pipe, which is started for each sample", "${sample} can't be used in %s: a hot start freezes it for all samples", where)
}

// existing returns the absolute path of the file s, which is relative to the recipe.
// If it can't be used, existing reports that and returns "".
func (p *parser) existing(n *yaml.Node, s, what string, plain bool) string {
	if strings.HasPrefix(s, "~") {
		p.Add(n.Line, "write the whole path", "%s: ~ is not replaced by the home directory", what)
		return ""
	}
	abs := s
	if !filepath.IsAbs(s) {
		abs = filepath.Join(p.dir, s)
	}
	f, err := os.Open(abs)
	if err != nil {
		message, hint := fileTrouble(abs, s, err)
		if prefix := prefixHint(n.Value, abs, what); errors.Is(err, fs.ErrNotExist) && prefix != "" {
			hint = prefix
		} else if hint == "" {
			hint = fmt.Sprintf("paths are relative to the recipe: this is %s", abs)
		}
		p.Add(n.Line, hint, "%s: %s: %s", what, s, message)
		return ""
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil {
		p.Add(n.Line, "", "%s: %s: %s", what, s, cause(err))
		return ""
	}
	if plain && !info.Mode().IsRegular() {
		p.Add(n.Line, "name a file", "%s: %s is not a regular file", what, s)
		return ""
	}
	return abs
}

// prefixHint returns a hint for a path that does not exist, but is the prefix of
// names of files, as in an index that its tool names by prefix.
func prefixHint(written, abs, what string) string {
	dir, base := filepath.Split(abs)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), base); ok && strings.HasPrefix(rest, ".") {
			name := strings.TrimPrefix(what, "data.")
			return fmt.Sprintf("it begins the name of %s: name the directory (%s: %s) and write ${data.%s}/%s in command",
				e.Name(), name, filepath.Dir(written), name, base)
		}
	}
	return ""
}

func (p *parser) inputs(n *yaml.Node) {
	const example = "inputs: [r1, r2], or inputs: {r1: {file: r1.fq.gz}}"
	seen := func(name string, line int) bool {
		if first, ok := p.inputLines[name]; ok {
			p.Add(line, "keep one of them", "%s occurs twice in inputs, first in line %d", name, first)
			return false
		}
		p.inputLines[name] = line
		return p.declare(name, line, "input")
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			item = problem.Follow(item)
			if item.Kind == yaml.MappingNode {
				p.Add(item.Line, example, "a list of inputs contains names only")
				continue
			}
			if s, ok := p.text(item, "the name of an input"); ok && seen(s, item.Line) {
				p.r.Inputs = append(p.r.Inputs, Input{Name: s, File: s})
			}
		}
	case yaml.MappingNode:
		for _, kv := range p.pairs(n, "inputs", "") {
			if !seen(kv.key, kv.line) {
				continue
			}
			in := Input{Name: kv.key, File: kv.key}
			if kv.value.Tag != "!!null" {
				p.input(&in, kv)
			}
			p.r.Inputs = append(p.r.Inputs, in)
		}
	default:
		p.Add(n.Line, example, "inputs must be a list of names or a mapping")
		return
	}
	if len(n.Content) == 0 {
		p.Add(n.Line, example, "inputs is empty: a task has at least one file of its own")
	}
}

func (p *parser) input(in *Input, kv pair) {
	for _, opt := range p.pairs(kv.value, "input "+kv.key, fmt.Sprintf("%s: {file: %s.fq.gz}", kv.key, kv.key)) {
		switch opt.key {
		case "file":
			if s, ok := p.text(opt.value, kv.key+".file"); ok && !p.frozen(opt.value, s, "inputs") &&
				p.relative(opt.value.Line, s, s, "the fixed name of input "+kv.key) {
				in.File = s
			}
		case "decompress":
			if opt.value.Tag != "!!bool" {
				p.Add(opt.value.Line, "true or false", "decompress must be true or false")
				continue
			}
			in.Decompress = strings.EqualFold(opt.value.Value, "true")
		default:
			p.Add(opt.line, problem.Meant(opt.key, []string{"file", "decompress"}, "%s"), "unknown key %s in input %s", opt.key, kv.key)
		}
	}
	if in.Decompress && compressedName(in.File) {
		p.Add(kv.line, fmt.Sprintf("file: %s", plainName(in.File)),
			"input %s is given to the tool as plain text, but its fixed name %s says gzip", kv.key, in.File)
	}
}

func (p *parser) ready(n *yaml.Node) {
	const all = "ready: open, ready: read, or ready: {line: REGEX}"
	if n.Kind == yaml.ScalarNode {
		switch n.Value {
		case string(hotstart.ReadyOpen), string(hotstart.ReadyRead):
			p.r.Ready.Kind = hotstart.ReadyKind(n.Value)
		case string(hotstart.ReadyLine):
			p.Add(n.Line, "ready: {line: REGEX}", "ready: line needs the line that the tool prints")
		default:
			hint := all
			if k := problem.Near(n.Value, []string{"open", "read"}); k != "" {
				hint = fmt.Sprintf("did you mean %s?", k)
			}
			p.Add(n.Line, hint, "ready can't be %q", n.Value)
		}
		return
	}
	for _, kv := range p.pairs(n, "ready", all) {
		if kv.key != "line" {
			p.Add(kv.line, all, "unknown key %s in ready", kv.key)
			continue
		}
		if re := p.regex(kv.value, "ready.line"); re != nil {
			p.r.Ready = hotstart.Ready{Kind: hotstart.ReadyLine, Line: re}
		}
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		p.Add(n.Line, all, "ready is empty")
	}
}

func (p *parser) regex(n *yaml.Node, what string) *regexp.Regexp {
	s, ok := p.text(n, what)
	if !ok {
		return nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		p.Add(n.Line, "the syntax is RE2's: no look-around, no back references; double a backslash inside double quotes", "%s: %s", what, err)
		return nil
	}
	return re
}

// whole reads a whole number of at least least.
func (p *parser) whole(n *yaml.Node, what string, least int) (int, bool) {
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v < least {
		hint := ""
		if n.Tag == "!!str" && err == nil {
			hint = "remove the quotes"
		}
		p.Add(n.Line, hint, "%s must be a whole number, at least %d", what, least)
		return 0, false
	}
	return v, true
}

func (p *parser) threads(n *yaml.Node) {
	if v, ok := p.whole(n, "threads", 1); ok {
		p.r.Threads = v
	}
}

func (p *parser) retries(n *yaml.Node) {
	if v, ok := p.whole(n, "retries", 0); ok {
		p.r.Retries = v
	}
}

func (p *parser) memory(n *yaml.Node) {
	v, err := units.ParseMemory(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		hint := units.SizeHint
		if _, err := units.ParseMemory(n.Value + "G"); err == nil {
			hint = fmt.Sprintf("did you mean %sG?", n.Value)
		}
		p.Add(n.Line, hint, "memory can't be %q", n.Value)
		// ${memory} must not be reported as undefined too.
		v = 1
	}
	p.r.Memory = v
}

func (p *parser) timeout(n *yaml.Node) {
	v, err := units.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" || err != nil {
		hint := "a number and s, m, h or d: timeout: 2h"
		if _, err := strconv.Atoi(n.Value); err == nil {
			hint = fmt.Sprintf("did you mean %ss?", n.Value)
		}
		p.Add(n.Line, hint, "timeout can't be %q", n.Value)
		return
	}
	p.r.Timeout = v
}

func (p *parser) varies(n *yaml.Node) {
	const example = `varies: [{file: "star/Log.out", lines: "^DATE"}]`
	if n.Kind != yaml.SequenceNode {
		p.Add(n.Line, example, "varies must be a list")
		return
	}
	fixed := make(map[string]string)
	for _, out := range p.r.outputs {
		fixed[out.name] = out.from
	}
	for _, item := range n.Content {
		item = problem.Follow(item)
		before := len(p.List)
		var v hotstart.VariableLines
		for _, kv := range p.pairs(item, "an entry of varies", example) {
			switch kv.key {
			case "file":
				if s, ok := p.text(kv.value, "varies.file"); ok {
					v.File = p.variesFile(kv.value, s, fixed)
				}
			case "lines":
				v.Lines = p.regex(kv.value, "varies.lines")
			default:
				p.Add(kv.line, problem.Meant(kv.key, []string{"file", "lines"}, "%s"), "unknown key %s in varies", kv.key)
			}
		}
		switch {
		case len(p.List) > before:
		case v.File == "":
			p.Add(item.Line, example, "file is missing in an entry of varies")
		default:
			p.r.Varies = append(p.r.Varies, v)
		}
	}
}

func (p *parser) variesFile(n *yaml.Node, s string, fixed map[string]string) string {
	for _, seg := range segments(s, false) {
		switch _, ok := fixed[seg.name]; {
		case !seg.holds:
		case seg.name == "sample":
			p.Add(n.Line, "write the fixed name of the output, which is the same for every sample, as in ${NAME}/Log.out",
				"${sample} can't be used in varies")
			return ""
		case !ok || seg.name == "stdout":
			p.Add(n.Line, "the placeholder of an output, or stdout without dollar and braces", "unknown placeholder %s in varies", seg.text)
			return ""
		}
	}
	s = expand(s, fixed)
	if s == hotstart.StdoutName {
		p.Add(n.Line, "file: stdout", "the standard output is called stdout here")
		return ""
	}
	if _, err := filepath.Match(s, ""); err != nil {
		p.Add(n.Line, "* ? and [a-z] are patterns here; put a backslash before a character that is meant literally", "varies.file: %s", err)
		return ""
	}
	if filepath.IsAbs(s) || s != filepath.Clean(s) || s == ".." || strings.HasPrefix(s, "../") {
		p.Add(n.Line, "a path in the task's directory, such as star/Log.out", "varies.file can't be %s", s)
		return ""
	}
	return s
}

func (p *parser) trust(n *yaml.Node) {
	if n.Tag != "!!bool" {
		p.Add(n.Line, "true or false", "trust must be true or false")
		return
	}
	p.r.Trust = strings.EqualFold(n.Value, "true")
}

// columns reads the names of columns in sample sheets.
func (p *parser) columns(n *yaml.Node) {
	names := p.r.names()
	p.r.Columns = make(map[string]string)
	for _, kv := range p.pairs(n, "columns", "columns: {r1: fastq_1, r2: fastq_2}") {
		if !slices.Contains(names, kv.key) {
			p.Add(kv.line, problem.Meant(kv.key, names, "%s"), "columns names %s, which is neither sample nor an input", kv.key)
			continue
		}
		if column, ok := p.text(kv.value, "columns."+kv.key); ok {
			p.r.Columns[kv.key] = strings.TrimSpace(column)
		}
	}
	first := make(map[string]string)
	for _, name := range names {
		column := p.r.column(name)
		if other, ok := first[column]; ok {
			p.Add(n.Line, "give each a column of its own", "%s and %s would be read from the same column, %s", other, name, column)
		}
		first[column] = name
	}
}

func (p *parser) verify(n *yaml.Node) {
	text, ok := p.text(n, "verify")
	if !ok {
		return
	}
	share, err := hotstart.ParseShare(text)
	if err != nil {
		p.Add(n.Line, "verify: 2%", "verify: %s", err)
		return
	}
	p.r.Verify = share
}

func (p *parser) probe(n *yaml.Node) {
	names := p.inputNames()
	probe := make(map[string]string)
	named := make(map[string]bool)
	list := p.pairs(n, "probe", "probe: {r1: probe_1.fq}")
	free := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(list, func(kv pair) bool { return kv.key == name })
	})
	for _, kv := range list {
		i := slices.Index(names, kv.key)
		if i < 0 {
			p.Add(kv.line, problem.Meant(kv.key, free, "%s"), "probe names %s, which is not an input", kv.key)
			continue
		}
		named[kv.key] = true
		s, ok := p.text(kv.value, "probe."+kv.key)
		if !ok || p.frozen(kv.value, s, "probe") {
			continue
		}
		abs := p.existing(kv.value, s, "probe."+kv.key, true)
		if abs == "" {
			continue
		}
		if message, hint := p.r.Inputs[i].refuses(abs, s); message != "" {
			p.Add(kv.value.Line, hint, "probe.%s: %s", kv.key, message)
			continue
		}
		probe[kv.key] = abs
	}
	for _, name := range names {
		if n.Kind == yaml.MappingNode && !named[name] {
			p.Add(n.Line, "a probe is one whole sample", "probe has no %s", name)
		}
	}
	p.r.Probe = probe
}

func (p *parser) inputNames() []string {
	var names []string
	for _, in := range p.r.Inputs {
		names = append(names, in.Name)
	}
	return names
}
