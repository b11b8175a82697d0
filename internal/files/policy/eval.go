package policy

import (
	"bytes"
	"cmp"
	"os/user"
	"slices"
	"strconv"

	"premix/internal/files"
)

// Expressions are evaluated a row group at a time, over a rising list of the remaining row
// numbers. A condition reads a column only if there are rows left to decide, and if the
// bounds of the row group do not decide all of them.

// batch is a row group over which expressions are evaluated. One goroutine may use it at a
// time.
type batch struct {
	g      *files.Group
	pools  []Pool
	totals totals
	users  map[int64][]byte
	groups map[int64][]byte
	rows   [][]int32 // lists for reuse
	values [][]int64
	text   []byte
}

func newBatch(t *files.Table, pools []Pool, sums totals) *batch {
	return &batch{g: t.NewGroup(), pools: pools, totals: sums, users: make(map[int64][]byte), groups: make(map[int64][]byte)}
}

// list returns an empty list of rows. The caller returns it with done.
func (b *batch) list() []int32 {
	if n := len(b.rows); n > 0 {
		l := b.rows[n-1]
		b.rows = b.rows[:n-1]
		return l[:0]
	}
	return make([]int32, 0, b.g.Rows())
}

func (b *batch) done(l []int32) { b.rows = append(b.rows, l) }

// ints returns a slice of n numbers. The caller returns it with doneInts.
func (b *batch) ints(n int) []int64 {
	if k := len(b.values); k > 0 {
		v := b.values[k-1]
		b.values = b.values[:k-1]
		return slices.Grow(v[:0], n)[:n]
	}
	return make([]int64, n, max(n, b.g.Rows()))
}

func (b *batch) doneInts(v []int64) { b.values = append(b.values, v) }

// condition is a compiled condition.
type condition struct {
	// filter appends to out the rows for which the condition holds.
	filter func(b *batch, rows, out []int32) ([]int32, error)
	// verdict reports from the bounds alone whether the condition holds for all rows of a
	// group, or for none. It is nil if bounds cannot decide that.
	verdict func(g *files.Group) verdict
	cost    int // cost per row, by which joined conditions are ordered
}

type verdict int

const (
	some verdict = iota
	none
	all
)

func (c *condition) judge(g *files.Group) verdict {
	if c.verdict == nil {
		return some
	}
	return c.verdict(g)
}

// apply calls verdict, and filter if verdict does not decide.
func (c *condition) apply(b *batch, rows, out []int32) ([]int32, error) {
	if len(rows) == 0 {
		return out, nil
	}
	switch c.judge(b.g) {
	case none:
		return out, nil
	case all:
		return append(out, rows...), nil
	}
	return c.filter(b, rows, out)
}

// number is a compiled expression of type number, time or span.
type number struct {
	values func(b *batch, rows []int32, out []int64) error
	column files.Column // if plain
	plain  bool
	value  int64 // if constant
	fixed  bool
	cost   int
}

// textValues are the texts of an expression for the rows of a group.
type textValues struct {
	row func(row int32) []byte // valid until the next call
	// number returns equal numbers below count for rows with the same text. It is nil if
	// rows do not share texts.
	number func(row int32) int
	count  int
}

// text is a compiled expression of type text.
type text struct {
	values func(b *batch) (textValues, error)
	value  []byte // if fixed
	fixed  bool
	cost   int
}

// bind returns a copy of an expression for a moment: now() becomes a constant, and constant
// parts are folded.
func bind(n *node, now int64) *node {
	c := *n
	if n.now {
		c.value, c.now = now, false
	}
	c.args = make([]*node, len(n.args))
	for i, a := range n.args {
		c.args[i] = bind(a, now)
	}
	if n.op >= opAdd && n.op <= opBits && c.args[0].op == opConst && c.args[1].op == opConst {
		return &node{op: opConst, at: n.at, typ: n.typ, value: calculate(n.op, c.args[0].value, c.args[1].value)}
	}
	return &c
}

// compileCondition compiles a bound, checked expression.
func compileCondition(n *node) *condition {
	switch n.op {
	case opConst:
		v := none
		if n.value != 0 {
			v = all
		}
		return &condition{verdict: func(*files.Group) verdict { return v }}
	case opNot:
		return negated(compileCondition(n.args[0]))
	case opAnd:
		return conjunction(flatten(opAnd, n, nil))
	case opOr:
		return disjunction(flatten(opOr, n, nil))
	case opMatch:
		return test(compileText(n.args[0]), n.match, 20)
	case opIn:
		return in(n)
	}
	l, r := n.args[0], n.args[1]
	if l.typ == typeText {
		return compareTexts(n.op, compileText(l), compileText(r))
	}
	return compareNumbers(n.op, l, r)
}

func flatten(o op, n *node, list []*condition) []*condition {
	for _, a := range n.args {
		if a.op == o {
			list = flatten(o, a, list)
		} else {
			list = append(list, compileCondition(a))
		}
	}
	return list
}

func negated(c *condition) *condition {
	return &condition{
		cost: c.cost,
		verdict: func(g *files.Group) verdict {
			return [...]verdict{some: some, none: all, all: none}[c.judge(g)]
		},
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			yes := b.list()
			yes, err := c.apply(b, rows, yes)
			if err == nil {
				out = without(rows, yes, out)
			}
			b.done(yes)
			return out, err
		},
	}
}

// without appends the rows that are not in some.
func without(rows, some, out []int32) []int32 {
	k := 0
	for _, r := range rows {
		if k < len(some) && some[k] == r {
			k++
			continue
		}
		out = append(out, r)
	}
	return out
}

func byCost(list []*condition) (cost int) {
	slices.SortStableFunc(list, func(a, b *condition) int { return cmp.Compare(a.cost, b.cost) })
	for _, c := range list {
		cost += c.cost
	}
	return cost
}

func conjunction(list []*condition) *condition {
	return &condition{
		cost: byCost(list),
		verdict: func(g *files.Group) verdict {
			v := all
			for _, c := range list {
				switch c.judge(g) {
				case none:
					return none
				case some:
					v = some
				}
			}
			return v
		},
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			left, spare := rows, []int32(nil)
			for i, c := range list {
				if i == len(list)-1 {
					out, err := c.apply(b, left, out)
					if i > 0 {
						b.done(left)
					}
					return out, err
				}
				next := b.list()
				next, err := c.apply(b, left, next)
				if spare != nil {
					b.done(spare)
				}
				left, spare = next, next
				if err != nil {
					b.done(next)
					return out, err
				}
			}
			return out, nil
		},
	}
}

func disjunction(list []*condition) *condition {
	return &condition{
		cost: byCost(list),
		verdict: func(g *files.Group) verdict {
			v := none
			for _, c := range list {
				switch c.judge(g) {
				case all:
					return all
				case some:
					v = some
				}
			}
			return v
		},
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			left, yes, begin := append(b.list(), rows...), b.list(), len(out)
			defer func() { b.done(left); b.done(yes) }()
			for _, c := range list {
				var err error
				if yes, err = c.apply(b, left, yes[:0]); err != nil {
					return out, err
				}
				if len(yes) > 0 {
					out = append(out, yes...)
					rest := without(left, yes, b.list())
					b.done(left)
					left = rest
				}
			}
			slices.Sort(out[begin:])
			return out, nil
		},
	}
}

// holds reports whether a comparison holds, given the result of cmp.Compare.
func holds(o op, order int) bool {
	switch o {
	case opEqual:
		return order == 0
	case opUnequal:
		return order != 0
	case opLess:
		return order < 0
	case opAtMost:
		return order <= 0
	case opMore:
		return order > 0
	}
	return order >= 0
}

var flipped = map[op]op{opEqual: opEqual, opUnequal: opUnequal, opLess: opMore, opAtMost: opAtLeast, opMore: opLess, opAtLeast: opAtMost}

// compareNumbers rewrites a comparison as one of a column with a constant, where it can.
func compareNumbers(o op, l, r *node) *condition {
	if l.op == opConst && r.op != opConst {
		l, r, o = r, l, flipped[o]
	}
	if l.op == opSubtract && r.op == opConst {
		switch a, b := l.args[0], l.args[1]; {
		case a.op == opConst && b.op == opColumn: // now() - accessed > 90 days
			l, r, o = b, &node{op: opConst, typ: b.typ, value: calculate(opSubtract, a.value, r.value)}, flipped[o]
		case a.op == opColumn && b.op == opConst:
			l, r = a, &node{op: opConst, typ: a.typ, value: calculate(opAdd, b.value, r.value)}
		}
	}
	left, right := compileNumber(l), compileNumber(r)
	if left.plain && right.fixed {
		return compareColumn(o, left.column, right.value)
	}
	return &condition{
		cost: left.cost + right.cost,
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			x, y := b.ints(len(rows)), b.ints(len(rows))
			defer func() { b.doneInts(x); b.doneInts(y) }()
			if err := left.values(b, rows, x); err != nil {
				return out, err
			}
			if err := right.values(b, rows, y); err != nil {
				return out, err
			}
			for i, r := range rows {
				if holds(o, cmp.Compare(x[i], y[i])) {
					out = append(out, r)
				}
			}
			return out, nil
		},
	}
}

// compareColumn compares a column with a constant.
func compareColumn(o op, c files.Column, v int64) *condition {
	// Each comparison but <> is a test for a range, which needs no branch that depends on
	// the operator.
	low, high, not := int64(-1<<63), int64(1<<63-1), false
	empty := false
	switch o {
	case opEqual, opUnequal:
		low, high, not = v, v, o == opUnequal
	case opLess:
		empty = v == low
		high = v - 1
	case opAtMost:
		high = v
	case opMore:
		empty = v == high
		low = v + 1
	case opAtLeast:
		low = v
	}
	if empty {
		return &condition{verdict: func(*files.Group) verdict { return none }}
	}
	in := &condition{
		cost: 1,
		verdict: func(g *files.Group) verdict {
			least, greatest, ok := g.Bounds(c)
			switch {
			case !ok:
				return some
			case greatest < low || least > high:
				return none
			case least >= low && greatest <= high:
				return all
			}
			return some
		},
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			values, err := b.g.Ints(c)
			if err != nil {
				return out, err
			}
			for _, r := range rows {
				if x := values[r]; x >= low && x <= high {
					out = append(out, r)
				}
			}
			return out, nil
		},
	}
	if not {
		return negated(in)
	}
	return in
}

// in compiles IN: the first argument is among the others.
func in(n *node) *condition {
	v := n.args[0]
	constant := !slices.ContainsFunc(n.args[1:], func(a *node) bool { return a.op != opConst })
	switch {
	case constant && v.typ == typeText:
		set := make(map[string]bool)
		for _, a := range n.args[1:] {
			set[a.text] = true
		}
		return test(compileText(v), func(b []byte) bool { return set[string(b)] }, 5)
	default:
		var list []*condition
		for _, a := range n.args[1:] {
			list = append(list, compileCondition(&node{op: opEqual, typ: typeBool, args: []*node{v, a}}))
		}
		return disjunction(list)
	}
}

// test compiles a condition on one text. If rows share texts, it evaluates each text once.
func test(t *text, holds func([]byte) bool, cost int) *condition {
	if t.fixed {
		v := none
		if holds(t.value) {
			v = all
		}
		return &condition{verdict: func(*files.Group) verdict { return v }}
	}
	return &condition{
		cost: t.cost + cost,
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			values, err := t.values(b)
			if err != nil {
				return out, err
			}
			if values.number == nil {
				for _, r := range rows {
					if holds(values.row(r)) {
						out = append(out, r)
					}
				}
				return out, nil
			}
			const yes, no = 1, 2
			seen := make([]byte, values.count)
			for _, r := range rows {
				s := &seen[values.number(r)]
				if *s == 0 {
					if *s = no; holds(values.row(r)) {
						*s = yes
					}
				}
				if *s == yes {
					out = append(out, r)
				}
			}
			return out, nil
		},
	}
}

func compareTexts(o op, l, r *text) *condition {
	switch {
	case l.fixed && !r.fixed:
		return compareTexts(flipped[o], r, l)
	case r.fixed:
		return test(l, func(b []byte) bool { return holds(o, bytes.Compare(b, r.value)) }, 3)
	}
	return &condition{
		cost: l.cost + r.cost,
		filter: func(b *batch, rows, out []int32) ([]int32, error) {
			x, err := l.values(b)
			if err != nil {
				return out, err
			}
			y, err := r.values(b)
			if err != nil {
				return out, err
			}
			var first []byte
			for _, row := range rows {
				first = append(first[:0], x.row(row)...)
				if holds(o, bytes.Compare(first, y.row(row))) {
					out = append(out, row)
				}
			}
			return out, nil
		},
	}
}

func compileNumber(n *node) *number {
	switch n.op {
	case opConst:
		return &number{fixed: true, value: n.value, values: func(_ *batch, rows []int32, out []int64) error {
			for i := range rows {
				out[i] = n.value
			}
			return nil
		}}
	case opColumn:
		return numberColumn(n.column)
	case opCall: // length()
		t := compileText(n.args[0])
		return &number{cost: t.cost, values: func(b *batch, rows []int32, out []int64) error {
			v, err := t.values(b)
			if err != nil {
				return err
			}
			for i, r := range rows {
				out[i] = int64(len([]rune(string(v.row(r)))))
			}
			return nil
		}}
	case opCase:
		return caseNumber(n)
	}
	l, r := compileNumber(n.args[0]), compileNumber(n.args[1])
	return &number{cost: l.cost + r.cost + 1, values: func(b *batch, rows []int32, out []int64) error {
		if err := l.values(b, rows, out); err != nil {
			return err
		}
		right := b.ints(len(rows))
		defer b.doneInts(right)
		if err := r.values(b, rows, right); err != nil {
			return err
		}
		for i := range rows {
			out[i] = calculate(n.op, out[i], right[i])
		}
		return nil
	}}
}

func numberColumn(c *column) *number {
	if c.made == asIs {
		return &number{plain: true, column: c.from, cost: 1, values: func(b *batch, rows []int32, out []int64) error {
			v, err := b.g.Ints(c.from)
			if err != nil {
				return err
			}
			for i, r := range rows {
				out[i] = v[r]
			}
			return nil
		}}
	}
	return &number{cost: 50, values: func(b *batch, rows []int32, out []int64) error {
		path, err := paths(b)
		if err != nil {
			return err
		}
		for i, r := range rows {
			out[i] = b.totals.of(path.row(r)).get(c.made)
		}
		return nil
	}}
}

// caseNumber compiles CASE: the first condition that holds decides.
func caseNumber(n *node) *number {
	var whens []*condition
	var thens []*number
	for i := 0; i+1 < len(n.args); i += 2 {
		whens = append(whens, compileCondition(n.args[i]))
		thens = append(thens, compileNumber(n.args[i+1]))
	}
	last := compileNumber(n.args[len(n.args)-1])
	return &number{cost: 10, values: func(b *batch, rows []int32, out []int64) error {
		left := append(b.list(), rows...)
		defer func() { b.done(left) }()
		put := func(v *number, taken []int32) error {
			x := b.ints(len(taken))
			defer b.doneInts(x)
			if err := v.values(b, taken, x); err != nil {
				return err
			}
			k := 0
			for i, r := range rows {
				if k < len(taken) && taken[k] == r {
					out[i] = x[k]
					k++
				}
			}
			return nil
		}
		for i, when := range whens {
			yes, err := when.apply(b, left, b.list())
			if err == nil {
				err = put(thens[i], yes)
			}
			if err != nil {
				return err
			}
			rest := without(left, yes, b.list())
			b.done(left)
			b.done(yes)
			left = rest
		}
		return put(last, left)
	}}
}

func compileText(n *node) *text {
	switch n.op {
	case opConst:
		v := []byte(n.text)
		return &text{fixed: true, value: v, values: func(*batch) (textValues, error) {
			return textValues{row: func(int32) []byte { return v }}, nil
		}}
	case opColumn:
		return textColumn(n.column)
	case opJoin:
		l, r := compileText(n.args[0]), compileText(n.args[1])
		return &text{cost: l.cost + r.cost, values: func(b *batch) (textValues, error) {
			x, err := l.values(b)
			if err != nil {
				return x, err
			}
			y, err := r.values(b)
			var joined []byte
			return textValues{row: func(row int32) []byte {
				joined = append(joined[:0], x.row(row)...)
				joined = append(joined, y.row(row)...)
				return joined
			}}, err
		}}
	}
	t := compileText(n.args[0])
	change := bytes.ToLower
	if n.text == "upper" {
		change = bytes.ToUpper
	}
	return &text{cost: t.cost + 5, values: func(b *batch) (textValues, error) {
		v, err := t.values(b)
		inner := v.row
		v.row = func(row int32) []byte { return change(inner(row)) }
		return v, err
	}}
}

func textColumn(c *column) *text {
	switch c.made {
	case madePath:
		return &text{cost: 30, values: paths}
	case madeOwner, madeGroup:
		return &text{cost: 5, values: func(b *batch) (textValues, error) {
			ids, err := b.g.Ints(c.from)
			return textValues{row: func(row int32) []byte { return b.nameOf(c.made, ids[row]) }}, err
		}}
	case madeSuffix:
		return &text{cost: 15, values: func(b *batch) (textValues, error) {
			names, err := b.g.Texts(files.ColumnName)
			return textValues{row: func(row int32) []byte { return files.Suffix(names.Row(row)) }}, err
		}}
	case madePool:
		return &text{cost: 5, values: func(b *batch) (textValues, error) {
			dirs, err := b.g.Texts(files.ColumnDir)
			if err != nil {
				return textValues{}, err
			}
			return textValues{number: dirs.Number, count: dirs.Values(), row: func(row int32) []byte {
				if p := poolOf(b.pools, string(dirs.Row(row))); p != nil {
					return []byte(p.Name)
				}
				return nil
			}}, nil
		}}
	}
	cost := 5
	if c.from == files.ColumnName {
		cost = 15
	}
	return &text{cost: cost, values: func(b *batch) (textValues, error) {
		t, err := b.g.Texts(c.from)
		if err != nil {
			return textValues{}, err
		}
		v := textValues{row: t.Row}
		if c.from != files.ColumnName {
			v.number, v.count = t.Number, t.Values()
		}
		return v, nil
	}}
}

// paths returns the paths of entries.
func paths(b *batch) (textValues, error) {
	dirs, err := b.g.Texts(files.ColumnDir)
	if err != nil {
		return textValues{}, err
	}
	names, err := b.g.Texts(files.ColumnName)
	return textValues{row: func(row int32) []byte {
		dir, name := dirs.Row(row), names.Row(row)
		b.text = append(b.text[:0], dir...)
		if len(name) == 1 && name[0] == '.' {
			return b.text
		}
		if len(dir) > 1 {
			b.text = append(b.text, '/')
		}
		b.text = append(b.text, name...)
		return b.text
	}}, err
}

// nameOf returns the name of a user or group, or the number if it has no name.
func (b *batch) nameOf(what made, id int64) []byte {
	known := b.users
	if what == madeGroup {
		known = b.groups
	}
	name, ok := known[id]
	if !ok {
		number := strconv.FormatInt(id, 10)
		name = []byte(number)
		if what == madeOwner {
			if u, err := user.LookupId(number); err == nil {
				name = []byte(u.Username)
			}
		} else if g, err := user.LookupGroupId(number); err == nil {
			name = []byte(g.Name)
		}
		known[id] = name
	}
	return name
}

// poolOf returns the pool that contains a path, or nil.
func poolOf(pools []Pool, path string) *Pool {
	for i := range pools {
		if within(path, pools[i].Dir) {
			return &pools[i]
		}
	}
	return nil
}
