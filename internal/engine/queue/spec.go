package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sort"
	"strconv"
	"time"
	"unicode/utf8"

	"premix/internal/engine"
)

// Spec is the description of a task: a line of tasks.jsonl. A zero field has the value of
// the batch.
type Spec struct {
	Command string   // for the shell
	Argv    []string // without a shell, in place of Command
	Options
	Env           map[string]string
	Name          string
	Stdin         string   // file to read, relative to its directory; empty: none
	Stdout        string   // file of its own, relative to its directory; empty: the log
	Stderr        string   // the same
	Intermediates []string // removed when no later group needs them
	Index         *int     // in its array
	Note          string   // a remark of the user who submitted it; premix keeps it and does not interpret it
	Ask           string   // for an engine: options of its own, KEY=VALUE, one a line
	Array         *Array   // the line stands for many tasks; nil for a task

	Recipe *engine.Task // of a run, from its plan; nil: without a recipe
}

// Options are the properties that a batch sets for all of its tasks, and a task for itself.
type Options struct {
	Group    string
	Dir      string        // working directory
	Cores    int           // that the task holds; 0: 1
	Memory   int64         // that the task holds and is limited to; 0: neither
	Priority int           // higher runs first
	Timeout  time.Duration // of a try; 0: none
	Retries  int           // tries after a failure
	Growth   float64       // of memory after a try that ran out of it; 0: engine.Growth
	Pure     bool          // Retries is set, even if to 0

	// Resources that the task holds besides cores and memory, as [Resources.String] writes them.
	Resources string
}

// wire is a Spec as JSON. Command comes last: a line that begins with it has nothing
// else.
type wire struct {
	Name          string            `json:"name,omitempty"`
	Group         string            `json:"group,omitempty"`
	Dir           string            `json:"dir,omitempty"`
	Cores         int               `json:"cores,omitempty"`
	Memory        int64             `json:"memory,omitempty"`
	Priority      int               `json:"priority,omitempty"`
	Timeout       float64           `json:"timeout,omitempty"`
	Retries       *int              `json:"retries,omitempty"`
	Growth        float64           `json:"growth,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Resources     string            `json:"resources,omitempty"`
	Stdin         string            `json:"stdin,omitempty"`
	Stdout        string            `json:"stdout,omitempty"`
	Stderr        string            `json:"stderr,omitempty"`
	Intermediates []string          `json:"intermediates,omitempty"`
	Index         *int              `json:"index,omitempty"`
	Note          string            `json:"note,omitempty"`
	Ask           string            `json:"ask,omitempty"`
	Array         *Array            `json:"array,omitempty"`
	// JSON has no form for bytes that are not UTF-8: these strings are here as a whole.
	Bytes    [][]byte          `json:"bytes,omitempty"`     // of Argv, or the one of Command
	EnvBytes map[string][]byte `json:"env_bytes,omitempty"` // values of Env
	Argv     []string          `json:"argv,omitempty"`
	// Command is the last field.
	Command string `json:"command,omitempty"`
}

// plain begins the line of a task that has only a command.
const plain = `{"command":"`

func (s *Spec) only() bool {
	return s.Argv == nil && s.Options == Options{} && s.Env == nil && s.Name == "" && s.Stdin == "" && s.Stdout == "" && s.Stderr == "" && s.Intermediates == nil && s.Index == nil && s.Note == "" && s.Ask == "" && s.Array == nil
}

// append appends the line of a spec.
func (s *Spec) append(b []byte) ([]byte, error) {
	if s.only() && utf8.ValidString(s.Command) {
		return append(appendString(append(b, plain[:len(plain)-1]...), s.Command), '}', '\n'), nil
	}
	w := wire{Name: s.Name, Group: s.Group, Dir: s.Dir, Cores: s.Cores, Memory: s.Memory, Priority: s.Priority,
		Timeout: s.Timeout.Seconds(), Growth: s.Growth, Env: s.Env, Resources: s.Resources, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
		Intermediates: s.Intermediates, Index: s.Index, Note: s.Note, Ask: s.Ask, Array: s.Array, Argv: s.Argv, Command: s.Command}
	if s.Pure {
		w.Retries = &s.Retries
	}
	for k, v := range s.Env {
		if utf8.ValidString(v) {
			continue
		}
		if w.EnvBytes == nil {
			w.EnvBytes, w.Env = make(map[string][]byte), maps.Clone(s.Env)
		}
		w.EnvBytes[k] = []byte(v)
		delete(w.Env, k)
	}
	if !utf8.ValidString(s.Command) {
		w.Bytes, w.Command = [][]byte{[]byte(s.Command)}, ""
	}
	for _, a := range s.Argv {
		if !utf8.ValidString(a) {
			w.Bytes, w.Argv = nil, []string{}
			for _, a := range s.Argv {
				w.Bytes = append(w.Bytes, []byte(a))
			}
			w.Argv = []string{""}
			break
		}
	}
	line, err := marshal(&w)
	return append(append(b, line...), '\n'), err
}

func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}

// appendString appends a JSON string. The text is UTF-8.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// parseSpec reads a line of tasks.jsonl.
func parseSpec(line []byte) (*Spec, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if body, ok := bytes.CutPrefix(line, []byte(plain)); ok {
		if text, ok := bytes.CutSuffix(body, []byte(`"}`)); ok && bytes.IndexByte(text, '\\') < 0 && bytes.IndexByte(text, '"') < 0 {
			return &Spec{Command: string(text)}, nil
		}
	}
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return nil, err
	}
	s := &Spec{Command: w.Command, Argv: w.Argv, Env: w.Env, Name: w.Name, Stdin: w.Stdin, Stdout: w.Stdout, Stderr: w.Stderr,
		Intermediates: w.Intermediates, Index: w.Index, Note: w.Note, Ask: w.Ask, Array: w.Array,
		Options: Options{Group: w.Group, Dir: w.Dir, Cores: w.Cores, Memory: w.Memory, Priority: w.Priority,
			Timeout: time.Duration(w.Timeout * float64(time.Second)), Growth: w.Growth, Resources: w.Resources}}
	if w.Retries != nil {
		s.Retries, s.Pure = *w.Retries, true
	}
	for k, v := range w.EnvBytes {
		if s.Env == nil {
			s.Env = make(map[string]string)
		}
		s.Env[k] = string(v)
	}
	if len(w.Bytes) > 0 {
		if w.Argv == nil {
			s.Command = string(w.Bytes[0])
		} else {
			s.Argv = nil
			for _, a := range w.Bytes {
				s.Argv = append(s.Argv, string(a))
			}
		}
	}
	if s.Command == "" && len(s.Argv) == 0 {
		return nil, errors.New("a task without a command")
	}
	if s.Array != nil {
		return s, s.Array.check()
	}
	return s, nil
}

// under sets the zero fields of a spec from its batch.
func (s *Spec) under(o *Options) {
	if s.Group == "" {
		s.Group = o.Group
	}
	if s.Dir == "" {
		s.Dir = o.Dir
	}
	if s.Cores == 0 {
		s.Cores = max(o.Cores, 1)
	}
	if s.Memory == 0 {
		s.Memory = o.Memory
	}
	if s.Priority == 0 {
		s.Priority = o.Priority
	}
	if s.Timeout == 0 {
		s.Timeout = o.Timeout
	}
	if s.Resources == "" {
		s.Resources = o.Resources
	}
	if !s.Pure {
		s.Retries = o.Retries
	}
	if s.Growth == 0 {
		s.Growth = o.Growth
	}
	if s.Growth == 0 {
		s.Growth = engine.Growth
	}
}

// Environ returns the task's part of the environment, sorted.
func (s *Spec) Environ() []string {
	var list []string
	for k, v := range s.Env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	if s.Index != nil {
		list = append(list, "PREMIX_INDEX="+strconv.Itoa(*s.Index))
	}
	return list
}

// Limits of execve(2).
const maxString = 128<<10 - 1 // MAX_ARG_STRLEN without its 0

// check returns the mistake in a task, or nil.
func (s *Spec) check() error {
	if s.Command == "" && len(s.Argv) == 0 {
		return errors.New("there is no command")
	}
	if s.Command != "" && len(s.Argv) > 0 {
		return errors.New("a command is either a string or a list")
	}
	for _, text := range append([]string{s.Command}, s.Argv...) {
		if i := bytes.IndexByte([]byte(text), 0); i >= 0 {
			return errors.New("a command cannot hold a byte of value 0")
		}
		if len(text) > maxString {
			return fmt.Errorf("a command of %d bytes is longer than the system's limit of %d", len(text), maxString)
		}
	}
	for k, v := range s.Env {
		if k == "" || bytes.ContainsAny([]byte(k), "=\x00") || bytes.IndexByte([]byte(v), 0) >= 0 {
			return fmt.Errorf("%q cannot be a variable of an environment", k)
		}
	}
	if s.Array != nil {
		if err := s.Array.check(); err != nil {
			return err
		}
	}
	switch {
	case s.Cores < 0:
		return errors.New("cores is less than 0")
	case s.Memory < 0:
		return errors.New("memory is less than 0")
	case s.Retries < 0 || s.Retries > maxRetries:
		return fmt.Errorf("retries is not between 0 and %d", maxRetries)
	case s.Timeout < 0:
		return errors.New("timeout is less than 0")
	case s.Priority < -maxPriority || s.Priority > maxPriority:
		return fmt.Errorf("priority is not between -%d and %d", maxPriority, maxPriority)
	case s.Growth != 0 && s.Growth < 1:
		return errors.New("growth is less than 1")
	}
	return nil
}

const (
	maxRetries  = 1000
	maxPriority = 1 << 20
)
