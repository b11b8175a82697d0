package recipe

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"premix/internal/hotstart"
)

// PipeStdoutName is the file in a task's directory for the standard output of a
// recipe's pipe. The tool's own standard output is then the FIFO
// hotstart.StdoutName.
const PipeStdoutName = ".stdout.pipe"

// Recipe is a checked recipe.
type Recipe struct {
	Name    string
	Path    string            // absolute path of the recipe's file
	Command []string          // words, with unexpanded placeholders
	Data    map[string]string // name to absolute path; symbolic links are not resolved
	Inputs  []Input           // in the order of the file
	Columns map[string]string // "sample" or input name to column of the sample sheet; nil: their own names
	Ready   hotstart.Ready
	Pipe    string            // shell text, with unexpanded placeholders; empty: none
	Threads int               // at least 1
	Memory  int64             // bytes; 0: no limit
	Timeout time.Duration     // of one try; 0: none
	Retries int               // further tries after a failed one
	Env     map[string]string // in addition to the base environment, with unexpanded placeholders
	Varies  []hotstart.VariableLines
	Probe   map[string]string // input name to absolute path; nil: none
	Trust   bool              // tasks start hot even if memory differs without a known reason
	Verify  hotstart.Share    // share of a run's CPU time for comparing hot starts with cold ones
	Image   *hotstart.Image   // the image in which the tool runs; nil: none

	outputs []pattern
}

// Input is one file that the tool reads for each sample.
type Input struct {
	Name       string // as in ${NAME} and in the sample sheet's header
	File       string // fixed name
	Decompress bool   // the tool gets plain text, whether the sample's file is gzip or not
}

// Output is a file or directory that a task makes for one sample.
type Output struct {
	Name string
	Dir  bool
	From string // path in the task's directory, slash-separated, no trailing slash
	To   string // path in the run directory, slash-separated, no trailing slash
}

// pattern is an output of a recipe.
type pattern struct {
	name string
	dir  bool
	from string // fixed name; empty: the pipe writes the expanded pattern itself
	to   string // contains ${sample}; no trailing slash; empty until it was checked
	line int
	// declared means that the recipe gives the fixed name, and so states that the
	// tool makes the file.
	declared bool
}

// Sample is one row of a sample sheet.
type Sample struct {
	Name   string
	Inputs map[string]string // input name to absolute path
	Line   int               // in the sheet, from 1
}

// Outputs returns the outputs of a task for sample s, sorted by name, with their paths
// in the task's directory and in the run directory.
func (r *Recipe) Outputs(s Sample) []Output {
	outputs := make([]Output, 0, len(r.outputs))
	for _, p := range r.outputs {
		to := sampleIn(p.to, s.Name)
		from := p.from
		if from == "" {
			from = to
		}
		outputs = append(outputs, Output{Name: p.name, Dir: p.dir, From: from, To: to})
	}
	return outputs
}

// PipeDirs returns the directories, relative to the task's directory, in which the
// pipe writes outputs with the sample's own name. Parents come before their children.
func (r *Recipe) PipeDirs(s Sample) []string {
	dirs := make(map[string]bool)
	for _, p := range r.outputs {
		if p.from != "" {
			continue
		}
		to := sampleIn(p.to, s.Name)
		if !p.dir {
			to = path.Dir(to)
		}
		for ; to != "."; to = path.Dir(to) {
			dirs[to] = true
		}
	}
	return slices.Sorted(maps.Keys(dirs))
}

// Files converts a map by input name to a map by fixed name, for package hotstart.
func (r *Recipe) Files(inputs map[string]string) map[string]string {
	files := make(map[string]string, len(r.Inputs))
	for _, in := range r.Inputs {
		if p, ok := inputs[in.Name]; ok {
			files[in.File] = p
		}
	}
	return files
}

// Spec returns the specification that a hot start of this recipe freezes. threads and
// memory (bytes) are the values of the placeholders; 0 means the recipe's value. The
// environment is PATH, HOME and USER of premix, LANG=C.UTF-8, TMPDIR=. and the
// variables of the recipe, which take precedence. In an image it is LANG and TMPDIR,
// the image's variables and the recipe's. Where the command has ${sample}, Spec.Argv has
// hotstart.SampleMark, and the caller sets Spec.Sample.
//
// Spec.Recipe does not depend on the pipe's text, memory, timeout or retries
// (unless ${memory} is in the command), nor on Spec.Stream, which states whether
// there is a pipe.
func (r *Recipe) Spec(threads int, memory int64) hotstart.Spec {
	values := r.values(threads, memory)
	spec := hotstart.Spec{
		Name:   r.Name,
		Ready:  r.Ready,
		Stream: r.Pipe != "",
		Varies: slices.Clone(r.Varies),
		Env:    r.environment(values),
		Dirs:   r.dirs(),
		Image:  r.Image,
		Trust:  r.Trust,
	}
	values["sample"] = hotstart.SampleMark
	for _, w := range r.Command {
		spec.Argv = append(spec.Argv, expand(w, values))
	}
	for _, in := range r.Inputs {
		spec.Inputs = append(spec.Inputs, in.File)
		if in.Decompress {
			spec.Plain = append(spec.Plain, in.File)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Data)) {
		spec.Data = append(spec.Data, r.Data[name])
	}
	spec.Recipe = r.digest(spec)
	return spec
}

// PipeCommand returns the shell text of the pipe for sample s, or "" if the recipe has
// no pipe. threads and memory (bytes) are the task's; 0 means the recipe's value.
func (r *Recipe) PipeCommand(s Sample, threads int, memory int64) string {
	values := r.values(threads, memory)
	values["sample"] = s.Name
	return expandShell(r.Pipe, values)
}

// values returns the values of all placeholders except ${sample}.
func (r *Recipe) values(threads int, memory int64) map[string]string {
	if threads <= 0 {
		threads = r.Threads
	}
	if memory <= 0 {
		memory = r.Memory
	}
	values := map[string]string{
		"threads": strconv.Itoa(threads),
		"memory":  strconv.FormatInt(memory, 10),
	}
	for name, p := range r.Data {
		values["data."+name] = p
	}
	for _, in := range r.Inputs {
		values[in.Name] = in.File
	}
	for _, out := range r.outputs {
		values[out.name] = out.from
	}
	return values
}

func (r *Recipe) environment(values map[string]string) []string {
	env := map[string]string{"LANG": "C.UTF-8", "TMPDIR": "."}
	if r.Image != nil {
		for _, e := range r.Image.Env {
			name, v, _ := strings.Cut(e, "=")
			env[name] = v
		}
	} else {
		for _, name := range []string{"PATH", "HOME", "USER"} {
			if v, ok := os.LookupEnv(name); ok {
				env[name] = v
			}
		}
	}
	for name, v := range r.Env {
		env[name] = expand(v, values)
	}
	list := make([]string, 0, len(env))
	for name, v := range env {
		list = append(list, name+"="+v)
	}
	slices.Sort(list)
	return list
}

// dirs returns the directories that must exist before the tool starts: outputs that are
// directories, and parents of the fixed names of inputs.
func (r *Recipe) dirs() []string {
	dirs := make(map[string]bool)
	for _, out := range r.outputs {
		if out.dir && out.from != "" {
			dirs[out.from] = true
		}
	}
	for _, in := range r.Inputs {
		if d := path.Dir(in.File); d != "." {
			dirs[d] = true
		}
	}
	return slices.Sorted(maps.Keys(dirs))
}

// digest identifies everything that a start freezes or a proof depends on: the BLAKE3
// hash, in hexadecimal, of the JSON text of the struct frozen below.
func (r *Recipe) digest(spec hotstart.Spec) string {
	type vary struct{ File, Lines string }
	frozen := struct {
		Format int
		Argv   []string
		Env    []string
		Inputs []Input
		Dirs   []string
		Ready  string
		Line   string
		Data   []string
		Varies []vary
	}{
		Format: 1,
		Argv:   spec.Argv,
		Env:    spec.Env,
		Inputs: r.Inputs,
		Dirs:   spec.Dirs,
		Ready:  string(spec.Ready.Kind),
		Data:   spec.Data,
	}
	if spec.Ready.Line != nil {
		frozen.Line = spec.Ready.Line.String()
	}
	for _, v := range spec.Varies {
		w := vary{File: v.File}
		if v.Lines != nil {
			w.Lines = v.Lines.String()
		}
		frozen.Varies = append(frozen.Varies, w)
	}
	h := blake3.New()
	// Encode cannot fail: JSON can represent all strings, numbers and slices of
	// them, and a write to a hash has no error.
	_ = json.NewEncoder(h).Encode(frozen)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// sampleIn replaces ${sample} in a pattern.
func sampleIn(pattern, sample string) string {
	return strings.ReplaceAll(pattern, "${sample}", sample)
}
