package queue

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// A template is a command with places for the fields of a row:
//
//	{}      the row: all fields, separated by blanks
//	{1}     the first field, and so on
//	{name}  the field in the column of that name
//	{#}     the number of the row, from 1
//
// A place may end in one of these, which change the inserted text:
//
//	{.}   without its extension      {1.}   {name.}
//	{/}   without its directory      {1/}   {name/}
//	{//}  its directory              {1//}  {name//}
//	{/.}  without both               {1/.}  {name/.}
//
// The inserted text is quoted for the shell, as required at that place: bare,
// between double quotes or between single quotes. {{ and }} are literal braces.
// Braces with any other content, like ${HOME} or {a,b}, stay as they are.

// Template is a template that was taken apart.
type Template struct {
	parts []part
}

// Places where a value is put.
const (
	bare = iota
	inDouble
	inSingle
)

// part is a text, or a place.
type part struct {
	text   string
	place  bool
	column int // -1: the row; -2: its number
	change string
	where  int
}

// changes are the endings of places, the longer ones first.
var changes = []string{"//", "/.", "/", "."}

// ParseTemplate takes a template apart. columns are the names of the columns, nil if
// they have none.
func ParseTemplate(text string, columns []string) (*Template, error) {
	t := &Template{}
	var plain strings.Builder
	where := bare
	var nest []int // the quoting around each open $( and (
	flush := func() {
		if plain.Len() > 0 {
			t.parts = append(t.parts, part{text: plain.String()})
			plain.Reset()
		}
	}
	back := false // between backquotes
	for i := 0; i < len(text); i++ {
		c := text[i]
		rest := text[i:]
		if strings.HasPrefix(rest, "{{") || strings.HasPrefix(rest, "}}") {
			plain.WriteByte(c)
			i++
			continue
		}
		if end := strings.IndexByte(rest, '}'); c == '{' && end > 0 && (i == 0 || text[i-1] != '$') {
			p, ok, err := parsePlace(rest[1:end], columns)
			if err != nil {
				return nil, err
			}
			if ok {
				if back {
					return nil, &InputError{Reason: fmt.Sprintf("the place {%s} stands between backquotes, where it cannot be quoted", rest[1:end]), HintText: "write $(...) in place of `...`"}
				}
				flush()
				p.where = where
				t.parts = append(t.parts, p)
				i += end
				continue
			}
		}
		switch {
		case where == inSingle:
			if c == '\'' {
				where = bare
			}
		case c == '\\' && i+1 < len(text):
			plain.WriteByte(c)
			i++
			c = text[i]
		case c == '`':
			back = !back
		case c == '"' && where == bare:
			where = inDouble
		case c == '"':
			where = bare
		case c == '\'' && where == bare:
			where = inSingle
		case strings.HasPrefix(rest, "$("):
			nest = append(nest, where)
			where = bare
			plain.WriteByte(c)
			i++
			c = '('
		case c == '(' && where == bare:
			nest = append(nest, bare)
		case c == ')' && where == bare && len(nest) > 0:
			where = nest[len(nest)-1]
			nest = nest[:len(nest)-1]
		}
		plain.WriteByte(c)
	}
	flush()
	return t, nil
}

// parsePlace parses the text between braces. ok is false if it is not a place.
func parsePlace(text string, columns []string) (p part, ok bool, err error) {
	p = part{place: true, column: -1}
	if text == "#" {
		p.column = -2
		return p, true, nil
	}
	name := text
	isColumn := func(s string) bool {
		for i, c := range columns {
			if c == s {
				p.column = i
				return true
			}
		}
		return false
	}
	if !isColumn(name) {
		for _, c := range changes {
			if before, found := strings.CutSuffix(name, c); found {
				name, p.change = before, c
				break
			}
		}
	}
	switch n, nerr := strconv.Atoi(name); {
	case name == "" || p.column >= 0 || isColumn(name):
		return p, true, nil
	case nerr == nil && n > 0 && (columns == nil || n <= len(columns)):
		p.column = n - 1
		return p, true, nil
	case nerr == nil && n > 0:
		return p, false, &InputError{Reason: fmt.Sprintf("there is no column %d: the table has %d", n, len(columns)), HintText: "its columns are " + strings.Join(columns, ", ")}
	case columns != nil && isName(name):
		return p, false, &InputError{Reason: fmt.Sprintf("there is no column %s", name), HintText: "its columns are " + strings.Join(columns, ", ") + "; write {{ and }} for braces"}
	}
	return p, false, nil
}

func isName(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
}

// Places reports whether the template has places.
func (t *Template) Places() bool {
	for _, p := range t.parts {
		if p.place {
			return true
		}
	}
	return false
}

// Fill makes the command of a row.
func (t *Template) Fill(fields []string, number int) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		if !p.place {
			b.WriteString(p.text)
			continue
		}
		switch {
		case p.column == -2:
			b.WriteString(strconv.Itoa(number))
		case p.column >= len(fields):
			return "", fmt.Errorf("the row has %d fields, and the template wants number %d", len(fields), p.column+1)
		case p.column >= 0:
			b.WriteString(quoteIn(changed(fields[p.column], p.change), p.where))
		default:
			for i, f := range fields {
				if i > 0 {
					b.WriteByte(' ')
				}
				b.WriteString(quoteIn(changed(f, p.change), p.where))
			}
		}
	}
	return b.String(), nil
}

func changed(s, change string) string {
	noExtension := func(s string) string {
		if i := strings.LastIndexByte(s, '.'); i > strings.LastIndexByte(s, '/')+1 {
			return s[:i]
		}
		return s
	}
	base := func(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }
	switch change {
	case ".":
		return noExtension(s)
	case "/":
		return base(s)
	case "//":
		return path.Dir(s)
	case "/.":
		return noExtension(base(s))
	}
	return s
}

// quoteIn quotes a value for the place where it is put.
func quoteIn(s string, where int) string {
	switch where {
	case inSingle:
		return strings.ReplaceAll(s, "'", `'\''`)
	case inDouble:
		return strings.NewReplacer("\\", "\\\\", `"`, `\"`, "$", `\$`, "`", "\\`").Replace(s)
	}
	return Quote(s)
}
