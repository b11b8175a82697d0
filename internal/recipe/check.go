package recipe

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/hotstart"
	"premix/internal/kit/problem"
	"premix/internal/kit/regex"
)

// inRun is the name in a run directory that is reserved for premix.
const inRun = ".premix"

// pathChars are the characters of fixed names and patterns. None of them has a
// meaning in a shell, so a pipe needs no quotes for them.
const pathChars = nameChars + "/,:=@%+"

// relative checks a path within a task's or a run's directory. written is the path
// as it is written in the file.
func (p *parser) relative(line int, s, written, what string) bool {
	switch {
	case path.IsAbs(s):
		p.Add(line, "write a relative path", "%s can't be the absolute path %s", what, written)
	case s == ".." || strings.HasPrefix(s, "../") || strings.Contains(s, "/../") || strings.HasSuffix(s, "/.."):
		p.Add(line, "leave out ..", "%s leads out of its directory: %s", what, written)
	case strings.Trim(s, pathChars) != "":
		bad := strings.Trim(s, pathChars)
		p.Add(line, "letters, digits and . _ - + = @ % , : / only", "%s can't contain %q: %s", what, firstRune(bad), written)
	case s != path.Clean(s) || s == ".":
		hint := ""
		if c := path.Clean(written); c != "." {
			hint = "write " + c
		}
		p.Add(line, hint, "%s is not written in the shortest form: %s", what, written)
	default:
		return true
	}
	return false
}

func firstRune(s string) string {
	for _, r := range s {
		return string(r)
	}
	return ""
}

func (p *parser) outputs(n *yaml.Node) {
	list := p.pairs(n, "outputs", `outputs: {stdout: "${sample}.sam"}`)
	if n.Kind == yaml.MappingNode && len(list) == 0 {
		p.Add(n.Line, `outputs: {stdout: "${sample}.sam"}`, "outputs is empty: a task would leave nothing behind")
	}
	for _, kv := range list {
		if !p.declare(kv.key, kv.line, "output") {
			continue
		}
		out := pattern{name: kv.key, line: kv.line}
		to := kv.value
		if to.Kind == yaml.MappingNode {
			to = p.output(&out, kv)
		}
		if to == nil {
			continue
		}
		if s, ok := p.text(to, "output "+kv.key); ok {
			p.pattern(&out, to, s)
		}
		// A wrong output is kept too, so that ${NAME} is not reported as unknown.
		p.r.outputs = append(p.r.outputs, out)
	}
	slices.SortStableFunc(p.r.outputs, func(a, b pattern) int { return strings.Compare(a.name, b.name) })
}

// output reads the long form of an output, and returns the node of its pattern.
func (p *parser) output(out *pattern, kv pair) *yaml.Node {
	var to *yaml.Node
	example := fmt.Sprintf(`%s: {file: Log.out, to: "${sample}.log"}`, kv.key)
	for _, opt := range p.pairs(kv.value, "output "+kv.key, example) {
		switch opt.key {
		case "file":
			if out.name == "stdout" {
				p.Add(opt.line, "leave it out", "stdout has no fixed name")
				continue
			}
			if s, ok := p.text(opt.value, kv.key+".file"); ok && !p.frozen(opt.value, s, "the fixed name of an output") &&
				p.relative(opt.value.Line, s, s, "the fixed name of output "+kv.key) {
				out.from = s
			}
		case "to":
			to = opt.value
		default:
			p.Add(opt.line, problem.Meant(opt.key, []string{"file", "to"}, "%s"), "unknown key %s in output %s", opt.key, kv.key)
		}
	}
	if to == nil {
		p.Add(kv.line, example, "output %s has no to", kv.key)
	}
	return to
}

// pattern checks the pattern of an output.
func (p *parser) pattern(out *pattern, n *yaml.Node, s string) {
	var clean strings.Builder
	samples, other := 0, false
	for _, seg := range segments(s, false) {
		switch {
		case !seg.holds:
			clean.WriteString(seg.text)
		case seg.name == "sample":
			samples++
			clean.WriteString("${sample}")
		default:
			other = true
			p.Add(n.Line, "${sample} is the only placeholder in the path of an output", "output %s: unknown placeholder %s", out.name, seg.text)
		}
	}
	if other {
		return
	}
	to, dir := strings.CutSuffix(clean.String(), "/")
	what := "output " + out.name
	if dir && out.name == "stdout" {
		p.Add(n.Line, "stdout: "+to, "stdout can't be a directory")
		return
	}
	// S is a valid name of a sample.
	if !p.relative(n.Line, strings.ReplaceAll(to, "${sample}", "S"), s, what) {
		return
	}
	if first, _, _ := strings.Cut(to, "/"); first == inRun {
		p.Add(n.Line, "take another directory", "%s lies in %s, which belongs to premix", what, inRun)
		return
	}
	if samples == 0 {
		d, base := path.Split(to)
		ext := path.Ext(base)
		hint := fmt.Sprintf("%s%s-${sample}%s", d, strings.TrimSuffix(base, ext), ext)
		if dir {
			hint = fmt.Sprintf("%s/${sample}/", to)
		}
		p.Add(n.Line, fmt.Sprintf("%s: %q", out.name, hint), "%s has no ${sample}: all samples would share %s", what, s)
		return
	}
	out.to, out.dir = to, dir
	if out.from == "" {
		out.from = strings.ReplaceAll(path.Base(to), "${sample}", out.name)
	} else {
		out.declared = true
	}
}

// words reads the command.
func (p *parser) words(n *yaml.Node) {
	p.command = n
	switch n.Kind {
	case yaml.ScalarNode:
		s, ok := p.text(n, "command")
		if !ok {
			return
		}
		words, found := splitWords(s)
		for _, m := range found {
			p.Add(p.at(n, m.offset), m.hint, "%s", m.message)
		}
		p.r.Command = words
		if len(words) == 0 && len(found) == 0 {
			p.Add(n.Line, "the tool and its arguments", "command is empty")
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			item = problem.Follow(item)
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				p.Add(item.Line, "quote it", "a word of command must be a text or a number")
				continue
			}
			p.r.Command = append(p.r.Command, item.Value)
		}
		if len(n.Content) == 0 {
			p.Add(n.Line, "the tool and its arguments", "command is empty")
		}
	default:
		p.Add(n.Line, "command: bwa mem ${data.ref}/genome.fa ${r1}", "command must be a text or a list of words")
		return
	}
	allowed := append(append(p.frozenNames(), "sample"), p.inputNames()...)
	for _, out := range p.r.outputs {
		if out.name != "stdout" {
			allowed = append(allowed, out.name)
		}
	}
	for _, w := range p.r.Command {
		p.placeholders(n, w, "command", allowed)
	}
	p.tool(n)
}

// frozenNames returns the placeholders with the same value for all samples.
func (p *parser) frozenNames() []string {
	names := []string{"threads", "memory"}
	for _, name := range slices.Sorted(maps.Keys(p.dataLines)) {
		names = append(names, "data."+name)
	}
	return names
}

// placeholders checks the placeholders in a text, and records that they are used.
func (p *parser) placeholders(n *yaml.Node, s, where string, allowed []string) {
	for _, seg := range segments(s, where == "pipe") {
		if !seg.holds {
			continue
		}
		line := p.find(n, seg.text)
		_, isInput := p.inputLines[seg.name]
		_, isData := p.dataLines[seg.name]
		switch {
		case seg.open:
			p.Add(line, "write ${NAME}, or $${ where a dollar sign and a brace are meant", "a placeholder is never closed: %s", seg.text)
		case slices.Contains(allowed, seg.name):
			p.used[seg.name] = true
			if where == "command" {
				p.usedBy[seg.name] = true
			}
			if seg.name == "memory" && p.memoryAt == 0 {
				p.memoryAt = line
			}
		case seg.name == "sample":
			p.sampleFrozen(n, where)
		case seg.name == "stdout":
			p.Add(line, "leave it out: premix collects the tool's standard output", "${stdout} is not a file that %s can name", where)
		case isInput:
			p.used[seg.name] = true
			hint := "inputs are there for command only"
			if where == "pipe" {
				hint = "a pipe reads the tool's standard output on its standard input"
			}
			p.Add(line, hint, "input ${%s} can't be used in %s", seg.name, where)
		case isData:
			p.used["data."+seg.name] = true
			p.Add(line, fmt.Sprintf("did you mean ${data.%s}?", seg.name), "unknown placeholder %s in %s", seg.text, where)
		default:
			hint := problem.Meant(seg.name, allowed, "${%s}")
			if k := problem.Near(seg.name, allowed); k != "" {
				// The misspelt name must not be reported as unused too.
				p.used[k], p.usedBy[k] = true, true
			} else if where == "pipe" {
				hint = fmt.Sprintf("for a variable of the shell write $%s; %s", seg.text, hint)
			}
			p.Add(line, hint, "unknown placeholder %s in %s", seg.text, where)
		}
	}
}

// assignment matches a word with which a shell would set a variable for the tool.
var assignment = regex.Lazy(`^([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)

// tool checks the first word of the command, and finds words that name files
// outside of data, which no fingerprint covers.
func (p *parser) tool(n *yaml.Node) {
	if len(p.r.Command) == 0 {
		return
	}
	first := p.r.Command[0]
	if slices.ContainsFunc(segments(first, false), func(s segment) bool { return s.holds && s.name == "sample" }) {
		p.Add(p.find(n, "${sample}"), "name the tool", "${sample} can't be used in the name of the tool")
		return
	}
	switch m := assignment().FindStringSubmatch(first); {
	case m != nil:
		p.Add(p.find(n, first), fmt.Sprintf("env: {%s: %q}", m[1], m[2]), "%s sets a variable: command has no shell", first)
	case strings.HasPrefix(first, "${"):
		if !strings.HasPrefix(first, "${data.") {
			p.Add(p.find(n, first), "name the tool", "the command begins with %s, which is not a tool", first)
		}
	case strings.Contains(first, "/") && !filepath.IsAbs(first) && p.r.Image != nil:
		p.Add(p.find(n, first), "name a program of the image: by its absolute path, or one on the image's PATH",
			"the tool %s would lie beside the recipe, but the command runs in an image", first)
	case strings.Contains(first, "/") && !filepath.IsAbs(first):
		abs := filepath.Join(p.dir, first)
		if _, err := os.Stat(abs); err != nil {
			message, hint := fileTrouble(abs, first, err)
			p.Add(p.find(n, first), hint, "the tool %s (relative to the recipe): %s", first, message)
			return
		}
		p.r.Command[0] = strings.ReplaceAll(abs, "$", "$$")
	}
	if p.r.Image != nil {
		return // the other words may name files in the image
	}
	fixed := make(map[string]bool)
	for _, in := range p.r.Inputs {
		fixed[in.File] = true
	}
	for _, out := range p.r.outputs {
		fixed[out.from] = true
	}
	for _, w := range p.r.Command[1:] {
		if !strings.Contains(w, "/") || strings.Contains(w, "${") || fixed[w] {
			continue
		}
		real := w
		if !filepath.IsAbs(w) {
			real = filepath.Join(p.dir, w)
		}
		info, err := os.Stat(real)
		if err != nil || filepath.IsAbs(w) && !info.Mode().IsRegular() {
			continue
		}
		hint := fmt.Sprintf("data: {ref: %s}, and ${data.ref} here", w)
		if filepath.IsAbs(w) {
			p.Add(p.find(n, w), hint, "%s is read by the tool, but is not in data: premix would not notice a change of it", w)
		} else {
			p.Add(p.find(n, w), hint, "%s is a path in the task's directory, where it does not exist", w)
		}
	}
}

func (p *parser) env(n *yaml.Node) {
	p.r.Env = make(map[string]string)
	allowed := p.frozenNames()
	for _, kv := range p.pairs(n, "env", "env: {NAME: VALUE}") {
		if !envForm().MatchString(kv.key) {
			p.Add(kv.line, "letters, digits and _, a letter first", "%q can't be the name of an environment variable", kv.key)
			continue
		}
		if kv.value.Kind != yaml.ScalarNode || kv.value.Tag == "!!null" || strings.ContainsRune(kv.value.Value, 0) {
			p.Add(kv.value.Line, fmt.Sprintf(`%s: "VALUE"`, kv.key), "env %s must be a text or a number", kv.key)
			continue
		}
		p.placeholders(kv.value, kv.value.Value, "env", allowed)
		p.r.Env[kv.key] = kv.value.Value
	}
}

// shell reads the pipe.
func (p *parser) shell(n *yaml.Node) {
	p.pipe = n
	s, ok := p.text(n, "pipe")
	if !ok {
		return
	}
	if strings.TrimSpace(s) == "" {
		p.Add(n.Line, "give it a command, or leave the key out", "pipe is empty")
		return
	}
	p.r.Pipe = s
	allowed := append(p.frozenNames(), "sample")
	for _, out := range p.r.outputs {
		if out.name != "stdout" {
			allowed = append(allowed, out.name)
		}
	}
	p.placeholders(n, s, "pipe", allowed)
	// Only a shell's own parser knows how to quote within these.
	nested := strings.Contains(s, "$(") || strings.Contains(s, "`") || strings.Contains(s, "<<")
	for _, seg := range segments(s, true) {
		name, ok := strings.CutPrefix(seg.name, "data.")
		if d := p.r.Data[name]; ok && seg.holds && d != "" && nested && !shellSafe(d) {
			p.Add(p.find(n, seg.text), "rename the directory, or do without $( ), ` ` and << in the pipe",
				"the path of %s contains characters with a meaning in a shell: %s", seg.text, d)
		}
	}
}

// cross checks rules about more than one key.
func (p *parser) cross(values map[string]*yaml.Node) {
	lines := make(map[string]int)
	for _, set := range []struct {
		what  string
		lines map[string]int
	}{{"input", p.inputLines}, {"entry of data", p.dataLines}} {
		for _, name := range slices.Sorted(maps.Keys(set.lines)) {
			p.once(lines, name, set.what, set.lines[name])
		}
	}
	for _, out := range p.r.outputs {
		p.once(lines, out.name, "output", out.line)
	}
	if p.memoryAt > 0 && p.r.Memory == 0 {
		p.Add(p.memoryAt, "add memory: 4G", "${memory} is used here, but the recipe has no memory")
	}
	// Without a readable command every name would be reported as unused.
	if p.command == nil || len(p.r.Command) == 0 {
		return
	}
	for _, in := range p.r.Inputs {
		if !p.usedBy[in.Name] && !p.used[in.Name] && !p.standsIn(in) {
			p.Add(p.inputLines[in.Name], fmt.Sprintf("write ${%s} where the tool takes the file, or remove it", in.Name),
				"input %s is never used in command", in.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.dataLines)) {
		if !p.used["data."+name] {
			p.Add(p.dataLines[name], fmt.Sprintf("write ${data.%s} in command, or remove it", name), "data.%s is never used", name)
		}
	}
	p.made(values["pipe"] != nil)
	p.apart()
}

func (p *parser) once(lines map[string]int, name, what string, line int) {
	if first, ok := lines[name]; ok {
		p.Add(max(line, first), "rename one of them", "the name %s is used for two things, in lines %d and %d", name, min(line, first), max(line, first))
		return
	}
	lines[name] = line
}

// standsIn reports whether the fixed name of an input, if the recipe gives one, or a
// parent of it, is a word of the command.
func (p *parser) standsIn(in Input) bool {
	if in.File == in.Name {
		return false
	}
	for d := in.File; d != "."; d = path.Dir(d) {
		for _, w := range p.r.Command {
			if w == d || strings.HasSuffix(w, "="+d) {
				return true
			}
		}
	}
	return false
}

// made sets the name of each output in a task's directory.
func (p *parser) made(hasPipe bool) {
	for i := range p.r.outputs {
		out := &p.r.outputs[i]
		switch {
		case out.name == "stdout":
			out.from = hotstart.StdoutName
			if hasPipe {
				out.from = PipeStdoutName
			}
		case p.used[out.name] || out.declared || out.to == "":
		case hasPipe:
			out.from = ""
		default:
			p.Add(out.line, fmt.Sprintf("write ${%s} in command where the tool takes its path, or give the name that the tool uses: %s: {file: NAME, to: ...}", out.name, out.name),
				"output %s can never be made: nothing in command names it", out.name)
		}
	}
}

// apart reports outputs that would overwrite each other, and fixed names that are
// used twice.
func (p *parser) apart() {
	for i, a := range p.r.outputs {
		for _, b := range p.r.outputs[i+1:] {
			if a.to == "" || b.to == "" {
				continue
			}
			early, late := a, b
			if early.line > late.line {
				early, late = late, early
			}
			switch {
			case a.to == b.to:
				p.Add(late.line, "give one of them another path", "outputs %s and %s share the path %s", early.name, late.name, a.to)
			case within(a.to, b.to) || within(b.to, a.to):
				p.Add(late.line, "give one of them a path of its own", "outputs %s and %s lie in one another: %s and %s",
					early.name, late.name, early.to, late.to)
			}
		}
	}
	taken := map[string]string{
		hotstart.StdoutName: "the standard output",
		hotstart.StderrName: "the standard error",
		PipeStdoutName:      "the pipe's standard output",
	}
	claim := func(file, what string, line int) {
		for _, other := range slices.Sorted(maps.Keys(taken)) {
			if other == file || within(file, other) || within(other, file) {
				p.Add(line, "give one of them another fixed name: {file: NAME}", "%s and %s would share %s in the task's directory", taken[other], what, file)
				return
			}
		}
		taken[file] = what
	}
	// Two inputs may be in one directory.
	for _, in := range p.r.Inputs {
		claim(in.File, "input "+in.Name, p.inputLines[in.Name])
	}
	for _, out := range p.r.outputs {
		if out.name != "stdout" && out.from != "" && out.to != "" {
			claim(out.from, "output "+out.name, out.line)
		}
	}
}

// within reports whether the path inner lies in the directory outer.
func within(inner, outer string) bool {
	return strings.HasPrefix(inner, outer+"/")
}
