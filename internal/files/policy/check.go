package policy

import (
	"fmt"
	"os/user"
	"path"
	"regexp"
	"strconv"
	"strings"

	"premix/internal/files"
	"premix/internal/kit/problem"
)

// typ is the type of an expression. Integers, times (nanoseconds since 1970) and spans of
// time (nanoseconds) have 64 bits.
type typ int

const (
	typeAny typ = iota // not known yet
	typeNumber
	typeText
	typeTime
	typeSpan
	typeBool
)

func (t typ) String() string {
	return [...]string{"anything", "a number", "a text", "a time", "a span of time", "a condition"}[t]
}

// op is the operation of a node.
type op int

const (
	opConst op = iota
	opColumn
	opCall
	opCase
	opOr
	opAnd
	opNot
	opEqual
	opUnequal
	opLess
	opAtMost
	opMore
	opAtLeast
	opMatch
	opIn
	opBetween
	opAdd
	opSubtract
	opMultiply
	opDivide
	opRest
	opBits
	opJoin
)

// node is a part of an expression. A checked expression has types and known columns; each
// of its constant parts is folded into one node, and it has no opBetween.
type node struct {
	op    op
	at    int // offset in the text
	typ   typ
	value int64  // of a constant that is not a text
	text  string // of a constant; name of a column or function; kind of a pattern
	args  []*node

	column *column                // of opColumn
	match  func(text []byte) bool // of opMatch
	now    bool                   // a constant relative to the present
}

// column is a column that rules may use.
type column struct {
	name string
	typ  typ
	// from is the column of the scan, if it has this column.
	from files.Column
	made made // how the column is computed otherwise
}

// made is a column that is computed from the scan.
type made int

const (
	asIs      made = iota
	madePath       // dir and name
	madeOwner      // the name of the user; the number if it has no name
	madeGroup
	madeSuffix
	madePool
	madeFiles // of a directory with all directories below: see totals
	madeBytes
	madeLargest
	madeNewest
)

var columnList = []column{
	{"path", typeText, files.ColumnName, madePath},
	{"dir", typeText, files.ColumnDir, asIs},
	{"name", typeText, files.ColumnName, asIs},
	{"suffix", typeText, files.ColumnName, madeSuffix},
	{"type", typeText, files.ColumnType, asIs},
	{"pool", typeText, files.ColumnDir, madePool},
	{"size", typeNumber, files.ColumnSize, asIs},
	{"allocated", typeNumber, files.ColumnAllocated, asIs},
	{"entries", typeNumber, files.ColumnEntries, asIs},
	{"mode", typeNumber, files.ColumnMode, asIs},
	{"uid", typeNumber, files.ColumnUID, asIs},
	{"gid", typeNumber, files.ColumnGID, asIs},
	{"owner", typeText, files.ColumnUID, madeOwner},
	{"group", typeText, files.ColumnGID, madeGroup},
	{"links", typeNumber, files.ColumnLinks, asIs},
	{"accessed", typeTime, files.ColumnAccessed, asIs},
	{"modified", typeTime, files.ColumnModified, asIs},
	{"changed", typeTime, files.ColumnChanged, asIs},
	{"files", typeNumber, files.ColumnDir, madeFiles},
	{"bytes", typeNumber, files.ColumnDir, madeBytes},
	{"largest", typeNumber, files.ColumnDir, madeLargest},
	{"newest", typeTime, files.ColumnDir, madeNewest},
}

// aliases are the names used by stat(2).
var aliases = map[string]string{"atime": "accessed", "mtime": "modified", "ctime": "changed", "nlink": "links", "user": "owner"}

func columnOf(name string) *column {
	if a, ok := aliases[name]; ok {
		name = a
	}
	for i := range columnList {
		if columnList[i].name == name {
			return &columnList[i]
		}
	}
	return nil
}

// checker determines the types of expressions, and folds constants.
type checker struct {
	rule  *Rule
	pools []string
}

func (c *checker) check(n *node) *mistake {
	for _, a := range n.args {
		if err := c.check(a); err != nil {
			return err
		}
	}
	switch n.op {
	case opConst:
		return nil
	case opColumn:
		return c.columnNode(n)
	case opCall:
		return c.call(n)
	case opCase:
		return c.caseNode(n)
	case opOr, opAnd, opNot:
		n.typ = typeBool
		for _, a := range n.args {
			if a.typ != typeBool {
				return wrong(a.at, "write a comparison on each side", "%s joins conditions, and this is %s", map[op]string{opOr: "OR", opAnd: "AND", opNot: "NOT"}[n.op], a.typ)
			}
		}
		return nil
	case opMatch:
		return c.matchNode(n)
	case opEqual, opUnequal, opLess, opAtMost, opMore, opAtLeast, opIn, opBetween:
		return c.comparison(n)
	case opJoin:
		n.typ = typeText
		for _, a := range n.args {
			if a.typ != typeText {
				return wrong(a.at, "", "|| joins texts, and this is %s", a.typ)
			}
		}
		if n.args[0].op == opConst && n.args[1].op == opConst {
			*n = node{op: opConst, at: n.at, typ: typeText, text: n.args[0].text + n.args[1].text}
		}
		return nil
	}
	return c.arithmetic(n)
}

func (c *checker) columnNode(n *node) *mistake {
	col := columnOf(n.text)
	if col == nil {
		hint := ""
		switch n.text {
		case "born", "btime", "crtime":
			hint = "not every file system records it, so rules cannot rely on it; use modified or changed"
		case "error":
			hint = "entries that could not be read are never changed"
		default:
			var names []string
			for _, col := range columnList {
				names = append(names, col.name)
			}
			hint = problem.Meant(n.text, names, "%s")
		}
		return wrong(n.at, hint, "unknown column %s", n.text)
	}
	if col.made >= madeFiles && c.rule.Verb != Pack {
		return wrong(n.at, "it is the total of a directory with all below it", "the column %s is only for PACK", col.name)
	}
	n.column, n.typ = col, col.typ
	return nil
}

func (c *checker) call(n *node) *mistake {
	switch n.text {
	case "now":
		if len(n.args) > 0 {
			return wrong(n.at, "", "now() takes no arguments")
		}
		*n = node{op: opConst, at: n.at, typ: typeTime, now: true}
	case "lower", "upper", "length":
		if len(n.args) != 1 || n.args[0].typ != typeText {
			return wrong(n.at, "as in "+n.text+"(name)", "%s() takes one text", n.text)
		}
		n.typ = typeText
		if n.text == "length" {
			n.typ = typeNumber
		}
	default:
		return wrong(n.at, problem.Meant(n.text, []string{"now()", "lower()", "upper()", "length()"}, "%s"), "unknown function %s()", n.text)
	}
	return nil
}

func (c *checker) caseNode(n *node) *mistake {
	last := n.args[len(n.args)-1]
	for i := 0; i+1 < len(n.args); i += 2 {
		when, then := n.args[i], n.args[i+1]
		if when.typ != typeBool {
			return wrong(when.at, "", "WHEN needs a condition, and this is %s", when.typ)
		}
		if then.typ != last.typ || then.typ == typeText || then.typ == typeBool {
			return wrong(then.at, "all of them are numbers, times, or spans of time", "the values of CASE are %s here and %s at ELSE", then.typ, last.typ)
		}
	}
	n.typ = last.typ
	return nil
}

// comparison converts both sides to one type: a text compared with a time is parsed as a
// time.
func (c *checker) comparison(n *node) *mistake {
	n.typ = typeBool
	first := n.args[0]
	for _, a := range n.args[1:] {
		for _, pair := range [][2]*node{{first, a}, {a, first}} {
			if pair[0].typ == typeTime && pair[1].op == opConst && pair[1].typ == typeText {
				t, err := timestamp(pair[1].at, pair[1].text)
				if err != nil {
					return err
				}
				*pair[1] = *t
			}
		}
		if a.typ != first.typ {
			hint := ""
			switch {
			case first.typ == typeTime && a.typ == typeSpan, first.typ == typeSpan && a.typ == typeTime:
				hint = "as in accessed < now() - INTERVAL 90 DAYS, or now() - accessed > INTERVAL 90 DAYS"
			case first.typ == typeNumber && a.op == opConst && a.typ == typeText:
				hint = "a number has no quotes, as in 1 MB"
			}
			return wrong(a.at, hint, "%s is compared with %s", first.typ, a.typ)
		}
		if a.typ == typeBool {
			return wrong(a.at, "join conditions with AND and OR", "conditions cannot be compared")
		}
		if err := c.known(first, a); err != nil {
			return err
		}
		if err := c.known(a, first); err != nil {
			return err
		}
	}
	if n.op == opBetween {
		v, low, high := n.args[0], n.args[1], n.args[2]
		*n = node{op: opAnd, at: n.at, typ: typeBool, args: []*node{
			{op: opAtLeast, at: n.at, typ: typeBool, args: []*node{v, low}},
			{op: opAtMost, at: n.at, typ: typeBool, args: []*node{v, high}},
		}}
	}
	return nil
}

// known refuses a constant that a column never has: NOT (owner = 'mistyped') would match
// all files.
func (c *checker) known(col, value *node) *mistake {
	if col.op != opColumn || value.op != opConst {
		return nil
	}
	switch {
	case col.column.made == madeOwner:
		if _, err := user.Lookup(value.text); err != nil && !decimal(value.text) {
			return wrong(value.at, "the number of a user also works: uid = 1000", "unknown user %s", value.text)
		}
	case col.column.made == madeGroup:
		if _, err := user.LookupGroup(value.text); err != nil && !decimal(value.text) {
			return wrong(value.at, "the number of a group also works: gid = 1000", "unknown group %s", value.text)
		}
	case col.column.made == madePool:
		for _, p := range c.pools {
			if p == value.text {
				return nil
			}
		}
		if value.text != "" {
			return wrong(value.at, problem.Meant(value.text, c.pools, "%s"), "unknown pool %s", value.text)
		}
	case col.column.name == "type":
		if !strings.Contains("fdlbcps", value.text) || len(value.text) != 1 {
			return wrong(value.at, "types are f(ile), d(irectory), l(ink), b(lock), c(haracter), p(ipe) and s(ocket)", "unknown type '%s'", value.text)
		}
	}
	return nil
}

func decimal(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

// arithmetic determines the type of an operation on numbers, times and spans.
func (c *checker) arithmetic(n *node) *mistake {
	l, r := n.args[0], n.args[1]
	if l.typ == typeAny { // the 0 before a sign
		l.typ = r.typ
		if r.typ == typeTime {
			return wrong(n.at, "", "a time has no sign")
		}
	}
	bad := func() *mistake {
		return wrong(n.at, "", "%s and %s cannot be joined with %s", l.typ, r.typ,
			map[op]string{opAdd: "+", opSubtract: "-", opMultiply: "*", opDivide: "/", opRest: "%", opBits: "&"}[n.op])
	}
	switch n.op {
	case opAdd:
		switch {
		case l.typ == typeTime && r.typ == typeSpan, l.typ == typeSpan && r.typ == typeTime:
			n.typ = typeTime
		case l.typ == r.typ && (l.typ == typeNumber || l.typ == typeSpan):
			n.typ = l.typ
		default:
			return bad()
		}
	case opSubtract:
		switch {
		case l.typ == typeTime && r.typ == typeSpan:
			n.typ = typeTime
		case l.typ == typeTime && r.typ == typeTime:
			n.typ = typeSpan
		case l.typ == r.typ && (l.typ == typeNumber || l.typ == typeSpan):
			n.typ = l.typ
		default:
			return bad()
		}
	case opMultiply:
		switch {
		case l.typ == typeNumber && r.typ == typeNumber:
			n.typ = typeNumber
		case l.typ == typeNumber && r.typ == typeSpan, l.typ == typeSpan && r.typ == typeNumber:
			n.typ = typeSpan
		default:
			return bad()
		}
	case opDivide, opRest, opBits:
		switch {
		case l.typ == typeNumber && r.typ == typeNumber:
			n.typ = typeNumber
		case n.op == opDivide && l.typ == typeSpan && r.typ == typeNumber:
			n.typ = typeSpan
		case n.op == opDivide && l.typ == typeSpan && r.typ == typeSpan:
			n.typ = typeNumber
		default:
			return bad()
		}
		if n.op != opBits && (r.op != opConst || r.value == 0) {
			return wrong(r.at, "a division by 0 has no result, so a rule could not say which files it takes", "the divisor has to be a constant other than 0")
		}
	}
	if l.op == opConst && r.op == opConst && !l.now && !r.now {
		*n = node{op: opConst, at: n.at, typ: n.typ, value: calculate(n.op, l.value, r.value)}
	}
	return nil
}

// calculate computes an operation on constants. A result beyond the range is the end of the
// range.
func calculate(o op, a, b int64) int64 {
	const least, most = -1 << 63, 1<<63 - 1
	switch o {
	case opAdd:
		if s := a + b; (s > a) == (b > 0) || b == 0 {
			return s
		} else if b > 0 {
			return most
		}
		return least
	case opSubtract:
		if s := a - b; (s < a) == (b > 0) || b == 0 {
			return s
		} else if b > 0 {
			return least
		}
		return most
	case opMultiply:
		if a == 0 || b == 0 {
			return 0
		}
		if p := a * b; p/b == a && !(a == least && b == -1) && !(b == least && a == -1) {
			return p
		} else if (a < 0) == (b < 0) {
			return most
		}
		return least
	case opDivide:
		if a == least && b == -1 {
			return most
		}
		return a / b
	case opRest:
		if b == -1 {
			return 0
		}
		return a % b
	case opBits:
		return a & b
	}
	panic(fmt.Sprintf("no arithmetic: %d", o))
}

func (c *checker) matchNode(n *node) *mistake {
	n.typ = typeBool
	v, pattern := n.args[0], n.args[1]
	if v.typ != typeText {
		return wrong(v.at, "", "patterns are for texts, and this is %s", v.typ)
	}
	escape := byte(0)
	if len(n.args) > 2 {
		escape = n.args[2].text[0]
	}
	kind := n.text
	n.args = n.args[:1]
	switch kind {
	case "like", "ilike":
		var ok bool
		// If the text after the last % contains no /, it is enough to match the name.
		if n.match, ok = like(pattern.text, escape, kind == "ilike"); !ok {
			return wrong(pattern.at, "", "the ESCAPE character has no character after it")
		}
		if v.op == opColumn && v.column.made == madePath && escape == 0 && strings.HasPrefix(pattern.text, "%") && !strings.Contains(pattern.text, "/") && !strings.ContainsAny(pattern.text[1:], "%_") {
			n.args = []*node{{op: opColumn, at: v.at, typ: typeText, column: columnOf("name")}}
		}
	case "glob":
		if _, err := path.Match(pattern.text, ""); err != nil {
			return wrong(pattern.at, "* ? and [a-z] match characters other than /", "'%s' is not a pattern: %v", pattern.text, err)
		}
		n.match = func(b []byte) bool {
			ok, _ := path.Match(pattern.text, string(b)) // the pattern has been checked
			return ok
		}
	case "regexp":
		re, err := regexp.Compile(pattern.text)
		if err != nil {
			return wrong(pattern.at, "see https://github.com/google/re2/wiki/Syntax", "'%s' is not a regular expression: %v", pattern.text, err)
		}
		n.match = re.Match
	}
	return nil
}
