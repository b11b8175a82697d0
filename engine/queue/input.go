package queue

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"premix/recipe"
)

// Format is how tasks are written down.
type Format string

// Formats.
const (
	Lines Format = "lines" // one command a line, or one item for a template
	JSONL Format = "jsonl" // one object a line
	CSV   Format = "csv"   // a table with a header
	TSV   Format = "tsv"   // the same, separated by tabs
)

// Input says how tasks are read.
type Input struct {
	Name     string // of the file, for messages
	Format   Format
	Null     bool   // lines end with a byte of 0
	Template string // command with places for each line, or row; "" for none
	Array    [][2]int
}

// Read adds the tasks of r to a batch. What is wrong with one is an *InputError.
func (in *Input) Read(r io.Reader, b *Batch) error {
	switch in.Format {
	case JSONL:
		return in.readJSON(r, b)
	case CSV, TSV:
		return in.readTable(r, b)
	}
	return in.readLines(r, b)
}

// at gives an error a place.
func (in *Input) at(line int, err error) error {
	var e *InputError
	if errors.As(err, &e) {
		if e.Line == 0 {
			e.File, e.Line = in.Name, line
		}
		return e
	}
	return err
}

// add adds a task, or one for each index of its array.
func (in *Input) add(b *Batch, s *Spec, after []string, array [][2]int) error {
	if len(array) == 0 {
		return b.Add(s, after)
	}
	for _, r := range array {
		for i := r[0]; i <= r[1]; i++ {
			t := *s
			t.Index = &i
			if err := b.Add(&t, after); err != nil {
				return err
			}
		}
	}
	return nil
}

// ParseArray reads indexes as in 1-10,15.
func ParseArray(text string) ([][2]int, error) {
	var list [][2]int
	for _, f := range strings.Split(text, ",") {
		var s Selection
		if err := s.ParseTasks(f); err != nil {
			return nil, &InputError{Reason: fmt.Sprintf("%q is not a list of indexes", text), Way: "write numbers and ranges, as in 1-10,15"}
		}
		list = append(list, s.Tasks...)
	}
	return list, nil
}

func (in *Input) readLines(r io.Reader, b *Batch) error {
	var t *Template
	if in.Template != "" {
		var err error
		if t, err = in.template(nil); err != nil {
			return err
		}
	}
	end := byte('\n')
	if in.Null {
		end = 0
	}
	br := bufio.NewReaderSize(r, 256<<10)
	spec := &Spec{}
	rows := 0
	for n := 1; ; n++ {
		line, err := br.ReadSlice(end)
		if errors.Is(err, bufio.ErrBufferFull) {
			line = bytes.Clone(line)
			var more []byte
			more, err = br.ReadBytes(end)
			line = append(line, more...)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", in.Name, err)
		}
		text := bytes.TrimSuffix(line, []byte{end})
		blank := bytes.TrimLeft(text, " \t")
		if len(blank) > 0 && (t != nil || blank[0] != '#') {
			rows++
			*spec = Spec{Command: string(text)}
			if t != nil {
				command, err := t.Fill([]string{string(text)}, rows)
				if err != nil {
					return in.at(n, &InputError{Reason: err.Error(), Way: "with lines there is one field, {} or {1}"})
				}
				spec.Command = command
			}
			if err := in.add(b, spec, nil, in.Array); err != nil {
				return in.at(n, err)
			}
		}
		if err != nil {
			return nil
		}
	}
}

// template takes the template apart; without a place the row is put behind it.
func (in *Input) template(columns []string) (*Template, error) {
	t, err := ParseTemplate(in.Template, columns)
	if err == nil && !t.Places() {
		t, err = ParseTemplate(in.Template+" {}", columns)
	}
	return t, err
}

func (in *Input) readTable(r io.Reader, b *Batch) error {
	if in.Template == "" {
		return &InputError{Reason: "a table has no commands of its own", Way: "give a template with --template, such as 'gzip {file}'"}
	}
	table := csv.NewReader(bufio.NewReaderSize(r, 256<<10))
	table.ReuseRecord = true
	table.FieldsPerRecord = -1
	if in.Format == TSV {
		table.Comma = '\t'
		table.LazyQuotes = true
	}
	var t *Template
	columns := 0
	for n := 0; ; n++ {
		row, err := table.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			return &InputError{File: in.Name, Line: bad.Line, Reason: bad.Err.Error(), Way: "mend the table and submit it again: nothing was submitted"}
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", in.Name, err)
		}
		line, _ := table.FieldPos(0)
		if t == nil {
			columns = len(row)
			if t, err = in.template(append([]string(nil), row...)); err != nil {
				return err
			}
			continue
		}
		if len(row) != columns {
			return &InputError{File: in.Name, Line: line, Reason: fmt.Sprintf("the row has %d fields and the header %d", len(row), columns), Way: "mend the table and submit it again: nothing was submitted"}
		}
		command, err := t.Fill(row, n)
		if err != nil {
			return in.at(line, &InputError{Reason: err.Error()})
		}
		if err := in.add(b, &Spec{Command: command}, nil, in.Array); err != nil {
			return in.at(line, err)
		}
	}
}

// given is a task as people write it in JSON.
type given struct {
	Command       json.RawMessage   `json:"command"` // string or list
	Name          string            `json:"name"`
	Group         string            `json:"group"`
	After         []string          `json:"after"`
	Cwd           string            `json:"cwd"`
	Env           map[string]string `json:"env"`
	Cores         int               `json:"cores"`
	Memory        json.RawMessage   `json:"memory"`  // number of bytes, or as in "2G"
	Timeout       json.RawMessage   `json:"timeout"` // number of seconds, or as in "2h"
	Priority      int               `json:"priority"`
	Retries       *int              `json:"retries"`
	Growth        float64           `json:"growth"`
	Array         string            `json:"array"`
	Stdout        string            `json:"stdout"`
	Stderr        string            `json:"stderr"`
	Intermediates []string          `json:"intermediates"`
}

func (in *Input) readJSON(r io.Reader, b *Batch) error {
	br := bufio.NewReaderSize(r, 256<<10)
	for n := 1; ; n++ {
		line, err := br.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", in.Name, err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if err := in.addJSON(line, b); err != nil {
				return in.at(n, err)
			}
		}
		if err != nil {
			return nil
		}
	}
}

func (in *Input) addJSON(line []byte, b *Batch) error {
	var g given
	wrong := func(format string, args ...any) error {
		return &InputError{Reason: fmt.Sprintf(format, args...), Way: "see docs/task.md for the fields; nothing was submitted"}
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&g); err != nil {
		return wrong("not a task: %v", err)
	}
	s := &Spec{Name: g.Name, Env: g.Env, Stdout: g.Stdout, Stderr: g.Stderr, Intermediates: g.Intermediates,
		Options: Options{Group: g.Group, Dir: g.Cwd, Cores: g.Cores, Priority: g.Priority, Growth: g.Growth}}
	if g.Cwd != "" && !strings.HasPrefix(g.Cwd, "/") {
		return wrong("cwd %q is not absolute", g.Cwd)
	}
	if g.Retries != nil {
		s.Retries, s.Pure = *g.Retries, true
	}
	if len(g.Command) > 0 && g.Command[0] == '[' {
		if err := json.Unmarshal(g.Command, &s.Argv); err != nil {
			return wrong("command is neither a string nor a list of strings")
		}
	} else if err := json.Unmarshal(g.Command, &s.Command); err != nil {
		return wrong("command is neither a string nor a list of strings")
	}
	if len(g.Memory) > 0 {
		var text string
		if json.Unmarshal(g.Memory, &s.Memory) != nil {
			if json.Unmarshal(g.Memory, &text) != nil {
				return wrong("memory is neither a number nor a string")
			}
			n, err := recipe.ParseMemory(text)
			if err != nil {
				return wrong("memory: %v", err)
			}
			s.Memory = n
		}
	}
	if len(g.Timeout) > 0 {
		var text string
		var number float64
		if json.Unmarshal(g.Timeout, &number) == nil {
			text = strconv.FormatFloat(number, 'f', -1, 64) + "s"
		} else if json.Unmarshal(g.Timeout, &text) != nil {
			return wrong("timeout is neither a number nor a string")
		}
		d, err := recipe.ParseDuration(text)
		if err != nil {
			return wrong("timeout: %v", err)
		}
		s.Timeout = d
	}
	array := in.Array
	if g.Array != "" {
		var err error
		if array, err = ParseArray(g.Array); err != nil {
			return err
		}
	}
	return in.add(b, s, g.After, array)
}
