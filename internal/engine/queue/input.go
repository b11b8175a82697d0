package queue

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/problem"
	"premix/internal/kit/units"
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

// Input describes how tasks are read.
type Input struct {
	Name     string // of the file, for messages
	Format   Format
	Null     bool   // lines end with a byte of 0
	Template string // command with places for each line, or row; "" for none
	Array    [][2]int

	wrong problem.Collector
}

// Read adds the tasks of r to a batch. Mistakes in lines or rows are returned as a
// [problem.List] with the first problem.Enough of them, and other mistakes as an *InputError.
func (in *Input) Read(r io.Reader, b *Batch) error {
	in.wrong = problem.Collector{File: in.Name}
	var err error
	hint := "give one command a line"
	switch in.Format {
	case JSONL:
		err = in.readJSON(r, b)
		hint = `give one task a line, as in {"command": "gzip a"}`
	case CSV, TSV:
		err = in.readTable(r, b)
		hint = "give a header and one row a task"
	default:
		err = in.readLines(r, b)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if len(in.wrong.List) == 0 && b.tasks == 0 {
		in.wrong.Add(0, hint, "there are no tasks")
	}
	if !errors.Is(err, errEnough) {
		if err := b.connect(in.keep); err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	return in.wrong.Err()
}

// Check reads the tasks of r as [Input.Read] does for a directory that is not there yet.
// Nothing is made and nothing is written.
func (in *Input) Check(r io.Reader, o BatchOptions) error {
	if o.Group == "" {
		o.Group = DefaultGroup
	}
	b := &Batch{q: &Queue{}, o: o, known: make(map[string]int)}
	if _, err := b.note(o.Group, o.After); err != nil {
		return err
	}
	return in.Read(r, b)
}

// errEnough ends the reading of tasks of which enough are wrong.
var errEnough = errors.New("enough mistakes")

// keep adds an *InputError to the problems of its line. It returns other errors.
func (in *Input) keep(line int, err error) error {
	var e *InputError
	if !errors.As(err, &e) {
		return err
	}
	in.wrong.Add(line, e.HintText, "%s", e.Reason)
	if len(in.wrong.List) >= problem.MaxProblems {
		return errEnough
	}
	return nil
}

// add adds the task of a line, or one for each index of its array.
func (in *Input) add(b *Batch, line int, s *Spec, after []string, l *Links, array [][2]int) error {
	before, group := b.tasks, s.Group
	if err := in.addAll(b, s, after, array); err != nil {
		return err
	}
	return b.link(line, before, group, l)
}

// addAll adds a task, or one for each index of its array.
func (in *Input) addAll(b *Batch, s *Spec, after []string, array [][2]int) error {
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
			return nil, &InputError{Reason: fmt.Sprintf("%q is not a list of indexes", text), HintText: "write numbers and ranges, as in 1-10,15"}
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
					return &InputError{Reason: err.Error(), HintText: "with lines there is one field, {} or {1}"}
				}
				spec.Command = command
			}
			if err := in.keep(n, in.add(b, n, spec, nil, &Links{}, in.Array)); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// template parses the template; if it has no place, the row is appended.
func (in *Input) template(columns []string) (*Template, error) {
	t, err := ParseTemplate(in.Template, columns)
	if err == nil && !t.Places() {
		t, err = ParseTemplate(in.Template+" {}", columns)
	}
	return t, err
}

const hintTable = "fix the table and submit it again: nothing was submitted"

func (in *Input) readTable(r io.Reader, b *Batch) error {
	if in.Template == "" {
		return &InputError{Reason: "a table has no commands of its own", HintText: "give a template with --template, such as 'gzip {file}'"}
	}
	table := csv.NewReader(bufio.NewReaderSize(r, 256<<10))
	table.ReuseRecord = true
	table.FieldsPerRecord = -1
	if in.Format == TSV {
		table.Comma = '\t'
		table.LazyQuotes = true
	}
	var t *Template
	var links linkColumns
	columns := 0
	for n := 0; ; n++ {
		row, err := table.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			in.wrong.Add(bad.Line, hintTable, "%v", bad.Err)
			return nil // where the next row begins is not known
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
			links = linkColumnsOf(row)
			continue
		}
		if len(row) != columns {
			if err := in.keep(line, &InputError{Reason: fmt.Sprintf("the row has %d fields and the header %d", len(row), columns), HintText: hintTable}); err != nil {
				return err
			}
			continue
		}
		command, err := t.Fill(row, n)
		if err != nil {
			err = &InputError{Reason: err.Error(), HintText: hintTable}
		} else {
			err = in.add(b, line, &Spec{Command: command}, nil, links.of(row), in.Array)
		}
		if err := in.keep(line, err); err != nil {
			return err
		}
	}
}

// Names of the columns of a table, and of the fields of a task, with edges.
const (
	columnID    = "id"
	columnAfter = "after_tasks"
)

// linkColumns are the columns with the ids and the edges of tasks. A table has them if it has a
// column after_tasks: id is a usual name of columns with other content.
type linkColumns struct {
	has       bool
	id, after int // id is negative where there is none
}

// linkColumnsOf finds the columns in a header.
func linkColumnsOf(header []string) linkColumns {
	after := slices.Index(header, columnAfter)
	return linkColumns{after >= 0, slices.Index(header, columnID), after}
}

// of returns the edges of a row.
func (c linkColumns) of(row []string) *Links {
	if !c.has {
		return &Links{}
	}
	l := &Links{IDs: SplitIDs(row[c.after])}
	for i, id := range l.IDs {
		l.IDs[i] = strings.Clone(id) // the row is used again
	}
	if c.id >= 0 {
		l.ID = strings.Clone(row[c.id])
	}
	return l
}

// given is a task as people write it in JSON.
type given struct {
	Command       json.RawMessage   `json:"command"` // string or list
	Name          *string           `json:"name"`
	Group         string            `json:"group"`
	After         []string          `json:"after"`
	ID            string            `json:"id"`
	AfterTasks    []json.RawMessage `json:"after_tasks"` // ids, and numbers of tasks
	Cwd           string            `json:"cwd"`
	Env           map[string]string `json:"env"`
	Cores         int               `json:"cores"`
	Memory        json.RawMessage   `json:"memory"`  // number of bytes, or as in "2G"
	Timeout       json.RawMessage   `json:"timeout"` // number of seconds, or as in "2h"
	Priority      int               `json:"priority"`
	Retries       *int              `json:"retries"`
	Growth        float64           `json:"growth"`
	Array         string            `json:"array"`
	Resources     Resources         `json:"resources"`
	Stdin         string            `json:"stdin"`
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
			if err := in.addJSON(n, line, b); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// addJSON adds the task of a line, or records all mistakes in the line.
func (in *Input) addJSON(n int, line []byte, b *Batch) error {
	var g given
	var full error
	wrong := func(format string, args ...any) {
		full = errors.Join(full, in.keep(n, &InputError{Reason: fmt.Sprintf(format, args...), HintText: "see premix help task for the fields; nothing was submitted"}))
	}
	before := len(in.wrong.List)
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&g); err != nil {
		var fields map[string]json.RawMessage
		if json.Unmarshal(line, &fields) != nil {
			b.blind = true
			wrong("not a task: %v", err)
			return full
		}
		known := fieldNames()
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }) {
				full = errors.Join(full, in.keep(n, &InputError{Reason: "unknown field " + name, HintText: problem.Meant(name, known, "%s")}))
			}
		}
		g = given{}
		var kind *json.UnmarshalTypeError
		if err := json.Unmarshal(line, &g); errors.As(err, &kind) {
			wrong("%s cannot be a %s", kind.Field, kind.Value)
		} else if err != nil {
			wrong("not a task: %v", err)
		}
	} else if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		wrong("more stands behind the task: a line has one")
	}
	s := &Spec{Name: g.ID, Env: g.Env, Stdin: g.Stdin, Stdout: g.Stdout, Stderr: g.Stderr, Intermediates: g.Intermediates,
		Options: Options{Group: g.Group, Dir: g.Cwd, Cores: g.Cores, Priority: g.Priority, Growth: g.Growth, Resources: g.Resources.String()}}
	if err := g.Resources.check(); err != nil {
		wrong("resources: %v", err)
	}
	if g.Cwd != "" && !strings.HasPrefix(g.Cwd, "/") {
		wrong("cwd %q is not absolute", g.Cwd)
	}
	if g.Retries != nil {
		s.Retries, s.Pure = *g.Retries, true
	}
	switch {
	case len(g.Command) == 0: // which may be another field's name, misspelt
		if len(in.wrong.List) == before {
			wrong("there is no command")
		}
	case g.Command[0] == '[' && json.Unmarshal(g.Command, &s.Argv) != nil, g.Command[0] != '[' && json.Unmarshal(g.Command, &s.Command) != nil:
		wrong("command is neither a string nor a list of strings")
	}
	if len(g.Memory) > 0 {
		var text string
		if json.Unmarshal(g.Memory, &s.Memory) != nil {
			if json.Unmarshal(g.Memory, &text) != nil {
				wrong("memory is neither a number nor a string")
			} else if n, err := units.ParseMemory(text); err != nil {
				wrong("memory: %v", err)
			} else {
				s.Memory = n
			}
		}
	}
	if len(g.Timeout) > 0 {
		var text string
		var number float64
		if json.Unmarshal(g.Timeout, &number) == nil {
			text = strconv.FormatFloat(number, 'f', -1, 64) + "s"
		} else if json.Unmarshal(g.Timeout, &text) != nil {
			wrong("timeout is neither a number nor a string")
			text = "1s"
		}
		d, err := units.ParseDuration(text)
		if err != nil {
			wrong("timeout: %v", err)
		}
		s.Timeout = d
	}
	links := &Links{ID: g.ID}
	for _, a := range g.AfterTasks {
		var id string
		var number int
		switch {
		case json.Unmarshal(a, &id) == nil && string(a) != "null":
			links.IDs = append(links.IDs, id)
		case json.Unmarshal(a, &number) == nil && number > 0:
			links.Tasks = append(links.Tasks, [2]int{number, number})
		default:
			wrong("after_tasks has %s, which is neither an id nor the number of a task", a)
		}
	}
	if g.Name != nil {
		s.Name = *g.Name
	}
	array := in.Array
	if g.Array != "" {
		var err error
		if array, err = ParseArray(g.Array); err != nil {
			full = errors.Join(full, in.keep(n, err))
		}
	}
	if len(in.wrong.List) == before {
		return in.keep(n, in.add(b, n, s, g.After, links, array))
	}
	if g.ID != "" && b.ids[g.ID].line == 0 {
		_ = b.link(n, b.tasks, g.Group, &Links{ID: g.ID}) // other lines may name it
	}
	if g.Group != "" {
		// Tasks of later lines may come after this group, which is allowed.
		_, _ = b.note(g.Group, nil)
	}
	return full
}

// fieldNames returns the fields that a task may have.
func fieldNames() []string {
	var names []string
	t := reflect.TypeFor[given]()
	for i := range t.NumField() {
		names = append(names, t.Field(i).Tag.Get("json"))
	}
	return names
}
