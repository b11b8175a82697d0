package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"premix/internal/hotstart"
	"premix/internal/kit/beneath"
	"premix/internal/kit/owner"
	"premix/internal/recipe"
	"premix/internal/record"
)

// Plan is the tasks of a run and their settings.
type Plan struct {
	Header Header
	Tasks  []Task // Tasks[i].Task is i+1
}

// Header is the first line of plan.jsonl.
type Header struct {
	record.Header        // Table is "plan"
	Recipe        string `json:"recipe"`      // name
	RecipeFile    string `json:"recipe_file"` // absolute
	SheetFile     string `json:"sheet_file"`  // absolute
	Start         string `json:"wished"`      // wished kind of start of the first invocation
	Threads       int    `json:"threads"`     // of one task
	Memory        int64  `json:"memory"`      // of one task, bytes; 0: no limit
	Tasks         int    `json:"tasks"`
	Frozen        Frozen `json:"frozen"`
}

// Frozen is the part of the plan that all tasks share and that their outputs depend on. A run
// whose Frozen changed is another run.
type Frozen struct {
	Tool   string            `json:"tool"` // absolute path of the program; as in Argv where it was not found
	Argv   []string          `json:"argv"` // with hotstart.SampleMark
	Env    map[string]string `json:"env"`  // the recipe's part of the environment
	Inputs []recipe.Input    `json:"inputs"`
	Data   map[string]string `json:"data"`
	Image  string            `json:"image,omitempty"` // NAME[:TAG] and the digest of its record
}

// Task is one command over one sample: a line of plan.jsonl.
type Task struct {
	Task    int               `json:"task"`
	Sample  string            `json:"sample"`
	Inputs  map[string]string `json:"inputs"` // input name to absolute path
	Pipe    string            `json:"pipe,omitempty"`
	Dirs    []string          `json:"dirs,omitempty"` // directories that the pipe expects in the work directory
	Outputs []recipe.Output   `json:"outputs"`
}

// Paths returns the task's outputs, relative to the run directory.
func (t *Task) Paths() []string {
	paths := make([]string, len(t.Outputs))
	for i, o := range t.Outputs {
		paths[i] = o.To
	}
	return paths
}

// NewPlan makes the plan of a recipe over the samples of a sheet. threads and
// memory (bytes) are for one task; 0 takes the recipe's. version is the version of
// this premix.
func NewPlan(version string, r *recipe.Recipe, sheet string, samples []recipe.Sample, threads int, memory int64) (*Plan, error) {
	sheet, err := filepath.Abs(sheet)
	if err != nil {
		return nil, err
	}
	if threads == 0 {
		threads = r.Threads
	}
	if memory == 0 {
		memory = r.Memory
	}
	spec := r.Spec(threads, memory)
	p := &Plan{Header: Header{
		Header:     NewHeader("plan", version),
		Recipe:     r.Name,
		RecipeFile: r.Path,
		SheetFile:  sheet,
		Threads:    threads,
		Memory:     memory,
		Tasks:      len(samples),
		Frozen: Frozen{
			Tool:   FindTool(spec.Argv[0], spec.Env),
			Argv:   spec.Argv,
			Env:    r.Env,
			Inputs: r.Inputs,
			Data:   r.Data,
		},
	}}
	if r.Image != nil {
		p.Header.Frozen.Tool = spec.Argv[0]
		p.Header.Frozen.Image = r.Image.Ref + " " + r.Image.Digest
	}
	for i, s := range samples {
		p.Tasks = append(p.Tasks, Task{
			Task:    i + 1,
			Sample:  s.Name,
			Inputs:  s.Inputs,
			Pipe:    r.PipeCommand(s, threads, memory),
			Dirs:    r.PipeDirs(s),
			Outputs: r.Outputs(s),
		})
	}
	return p, nil
}

// FindTool returns the absolute path of the program name. It searches the PATH of env, a
// list of KEY=VALUE. It returns name itself if it finds no program or if name is a path.
func FindTool(name string, env []string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(path) {
				return path
			}
		}
	}
	return name
}

// named returns an image as messages name it.
func named(image string) string {
	if image == "" {
		return "none"
	}
	return image
}

// Changed describes how a plan differs from the plan on the disk, as a sentence
// that follows "the run was started with"; "" if in nothing that matters.
func (p *Plan) Changed(old *Plan) string {
	a, b := &old.Header.Frozen, &p.Header.Frozen
	switch {
	case old.Header.Recipe != p.Header.Recipe:
		return fmt.Sprintf("recipe %s, this one is %s", old.Header.Recipe, p.Header.Recipe)
	case a.Image != b.Image:
		return fmt.Sprintf("image %s, it is now %s", named(a.Image), named(b.Image))
	case !slices.Equal(a.Argv, b.Argv):
		return fmt.Sprintf("command `%s`, it is now `%s`", strings.Join(hotstart.Command(a.Argv, "${sample}"), " "), strings.Join(hotstart.Command(b.Argv, "${sample}"), " "))
	case a.Tool != b.Tool:
		return fmt.Sprintf("tool %s, it is now %s", a.Tool, b.Tool)
	case !maps.Equal(a.Env, b.Env):
		return fmt.Sprintf("environment %v, it is now %v", a.Env, b.Env)
	case !maps.Equal(a.Data, b.Data):
		return fmt.Sprintf("data %v, it is now %v", a.Data, b.Data)
	case !slices.Equal(a.Inputs, b.Inputs):
		return "other inputs in its recipe"
	case len(old.Tasks) != len(p.Tasks):
		return fmt.Sprintf("%d samples, the sheet now has %d", len(old.Tasks), len(p.Tasks))
	}
	for i := range p.Tasks {
		s, t := &old.Tasks[i], &p.Tasks[i]
		switch {
		case s.Sample != t.Sample:
			return fmt.Sprintf("sample %s as number %d, it is now %s", s.Sample, s.Task, t.Sample)
		case !maps.Equal(s.Inputs, t.Inputs):
			return fmt.Sprintf("inputs %v of sample %s, they are now %v", s.Inputs, s.Sample, t.Inputs)
		case s.Pipe != t.Pipe:
			return fmt.Sprintf("pipe `%s`, it is now `%s`", s.Pipe, t.Pipe)
		case !reflect.DeepEqual(s.Outputs, t.Outputs):
			return "other outputs in its recipe"
		}
	}
	return ""
}

// Write writes the plan into the run directory dir, whole or not at all, and durably.
func (p *Plan) Write(dir string) error {
	path := filepath.Join(dir, StateDir, PlanFile)
	err := beneath.Write(path, 0o666, beneath.Durable, func(f io.Writer) error {
		w := bufio.NewWriter(f)
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(p.Header); err != nil {
			return err
		}
		for i := range p.Tasks {
			if err := enc.Encode(&p.Tasks[i]); err != nil {
				return err
			}
		}
		return w.Flush()
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ReadPlan reads the plan of the run in dir. The error is fs.ErrNotExist if dir has no
// plan, a *record.FormatError if a newer premix wrote it, and a *DirError if
// it is damaged.
func ReadPlan(dir string) (*Plan, error) {
	p := &Plan{}
	err := readPlan(dir, func(h *Header, _ int64, rest io.Reader) (whole bool, err error) {
		p.Header = *h
		torn, err := record.Lines(rest, func(line []byte) (bool, error) {
			var t Task
			if json.Unmarshal(line, &t) != nil {
				return false, nil
			}
			p.Tasks = append(p.Tasks, t)
			return true, nil
		})
		return torn == 0 && len(p.Tasks) == h.Tasks, err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ReadHeader reads the first line of the plan of the run in dir, and returns the offset of
// the first task in plan.jsonl. It returns the same errors as ReadPlan.
func ReadHeader(dir string) (h *Header, offset int64, err error) {
	err = readPlan(dir, func(read *Header, length int64, _ io.Reader) (bool, error) {
		h, offset = read, length
		return true, nil
	})
	return h, offset, err
}

// readPlan opens the plan in dir and calls f with its header, the length of that line and
// the lines behind it. f reports whether these are whole.
func readPlan(dir string, f func(h *Header, length int64, rest io.Reader) (whole bool, err error)) error {
	path := filepath.Join(dir, StateDir, PlanFile)
	file, err := owner.OpenOthers(path)
	if errors.Is(err, fs.ErrPermission) {
		return &DirError{Dir: dir, Reason: fmt.Sprintf("cannot be read: %v", err), HintText: "ask its owner to let you read it", Err: err}
	}
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	line, err := in.ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	h, whole := &Header{}, false
	if err == nil && json.Unmarshal(line, h) == nil && h.Format > 0 {
		if h.Format > record.Format {
			return &record.FormatError{Path: path, Format: h.Format}
		}
		if whole, err = f(h, int64(len(line)), in); err != nil {
			return err
		}
	}
	if !whole {
		return &DirError{Dir: dir, Reason: "has a damaged plan (" + path + ")", HintText: "give another directory with --out, or remove this one"}
	}
	return nil
}
