package policy

import (
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/problem"
	"premix/internal/kit/units"
)

// parser parses statements by recursive descent, with one token of lookahead.
type parser struct {
	tokens []token
	next   int
	rules  *Rules
	base   string         // directory to which relative paths refer
	pools  map[string]int // offsets of their declarations
	at     []ruleAt       // by rule
}

// ruleAt holds the offsets of parts of a rule.
type ruleAt struct {
	name, from, to int
	filesets       []int
}

func (p *parser) peek() token { return p.tokens[p.next] }

func (p *parser) take() token {
	t := p.tokens[p.next]
	if t.kind != kindEnd {
		p.next++
	}
	return t
}

func (p *parser) sign(s string) bool {
	if t := p.peek(); t.kind == kindSign && t.text == s {
		p.next++
		return true
	}
	return false
}

func (p *parser) word(w string) bool {
	if t := p.peek(); t.kind == kindWord && t.text == w {
		p.next++
		return true
	}
	return false
}

func (p *parser) needWord(w, hint string) *mistake {
	if p.word(w) {
		return nil
	}
	return wrong(p.peek().at, hint, "%s is missing before %s", strings.ToUpper(w), p.peek().shown())
}

func (p *parser) needSign(s string) *mistake {
	if p.sign(s) {
		return nil
	}
	return wrong(p.peek().at, "", "%s is missing before %s", s, p.peek().shown())
}

// skip moves to the next statement after a mistake.
func (p *parser) skip() {
	for t := p.peek(); t.kind != kindEnd; t = p.peek() {
		p.next++
		if t.kind == kindSign && t.text == ";" {
			return
		}
	}
}

func (p *parser) statement() *mistake {
	t := p.take()
	var err *mistake
	switch {
	case t.kind == kindWord && t.text == "create" && p.word("fileset"):
		err = p.fileset()
	case t.kind == kindWord && t.text == "create":
		err = p.pool()
	case t.kind == kindWord && t.text == "rule":
		err = p.rule()
	default:
		return wrong(t.at, "a statement begins with CREATE POOL, CREATE FILESET or RULE", "%s cannot begin a statement", t.shown())
	}
	if err != nil {
		return err
	}
	if end := p.peek(); end.kind != kindEnd && !p.sign(";") {
		hint := "a statement ends with ;"
		if end.kind == kindWord {
			hint = "a statement ends with ; and its parts are FROM POOL, TO POOL, FOR FILESET, THRESHOLD, WEIGHT and WHERE"
		}
		return wrong(end.at, hint, "%s is not expected here", end.shown())
	}
	return nil
}

const poolHint = "write CREATE POOL name AT '/directory';"

// pool: CREATE POOL name AT 'directory' [CAPACITY number unit]
func (p *parser) pool() *mistake {
	if err := p.needWord("pool", poolHint); err != nil {
		return err
	}
	t := p.peek()
	name, err := p.name("a pool")
	if err != nil {
		return err
	}
	if err := p.needWord("at", poolHint); err != nil {
		return err
	}
	dir := p.take()
	if dir.kind != kindString || dir.text == "" {
		return wrong(dir.at, poolHint, "the directory of pool %s is missing", name)
	}
	pool := Pool{Name: name, Dir: dir.text}
	if !filepath.IsAbs(pool.Dir) {
		pool.Dir = filepath.Join(p.base, pool.Dir)
	}
	pool.Dir = filepath.Clean(pool.Dir)
	if p.word("capacity") {
		n, err := p.primary()
		if err != nil {
			return err
		}
		if n.op != opConst || n.typ != typeNumber || n.value <= 0 {
			return wrong(n.at, "as in CAPACITY 10 TB", "a capacity is a number of bytes")
		}
		pool.Capacity = n.value
	}
	if p.pools == nil {
		p.pools = make(map[string]int)
	}
	p.pools[name] = t.at
	p.rules.Pools = append(p.rules.Pools, pool)
	return nil
}

// fileset: CREATE FILESET name AT 'directory'
func (p *parser) fileset() *mistake {
	const hint = "write CREATE FILESET name AT '/directory';"
	t := p.peek()
	name, err := p.name("a fileset")
	if err != nil {
		return err
	}
	if err := p.needWord("at", hint); err != nil {
		return err
	}
	dir := p.take()
	if dir.kind != kindString || dir.text == "" {
		return wrong(dir.at, hint, "the directory of fileset %s is missing", name)
	}
	if _, ok := p.rules.Filesets[name]; ok {
		return wrong(t.at, "give it another name", "fileset %s is declared twice", name)
	}
	if p.rules.Filesets == nil {
		p.rules.Filesets = make(map[string]string)
	}
	if !filepath.IsAbs(dir.text) {
		dir.text = filepath.Join(p.base, dir.text)
	}
	p.rules.Filesets[name] = filepath.Clean(dir.text)
	return nil
}

// filesets: FOR FILESET name {, name}, perhaps in parentheses
func (p *parser) filesets(r *Rule, at *ruleAt) *mistake {
	if err := p.needWord("fileset", "as in FOR FILESET (anna, ben)"); err != nil {
		return err
	}
	open := p.sign("(")
	for {
		at.filesets = append(at.filesets, p.peek().at)
		name, err := p.name("a fileset")
		if err != nil {
			return err
		}
		r.Filesets = append(r.Filesets, name)
		if !p.sign(",") {
			break
		}
	}
	if open {
		return p.needSign(")")
	}
	return nil
}

// name parses a word, or any text in double quotes.
func (p *parser) name(of string) (string, *mistake) {
	t := p.take()
	if t.kind != kindWord && (t.kind != kindName || t.text == "") {
		return "", wrong(t.at, "", "the name of %s is missing before %s", of, t.shown())
	}
	return t.text, nil
}

// rule: RULE 'name' verb clauses
func (p *parser) rule() *mistake {
	t := p.take()
	if t.kind != kindString || t.text == "" {
		return wrong(t.at, "write it like RULE 'old scratch' MIGRATE FROM POOL flash TO POOL disk WHERE size > 1 MB;", "a rule begins with its name in quotes")
	}
	line, _ := place(p.rules.Text, t.at)
	r := Rule{Name: t.text, Line: line}
	at := ruleAt{name: t.at}
	verb := p.take()
	switch r.Verb = Verb(verb.text); {
	case verb.kind != kindWord:
		return wrong(verb.at, "a rule does one of EXCLUDE, PLACE, MIGRATE, DELETE, PACK, LIST and EXEC", "rule '%s' does not say what to do", r.Name)
	case r.Verb == Exclude, r.Verb == Place, r.Verb == Migrate, r.Verb == Delete, r.Verb == Pack, r.Verb == List:
	case r.Verb == Exec:
		file := p.take()
		if file.kind != kindString || file.text == "" {
			return wrong(file.at, "name it in quotes, as in EXEC '/usr/local/bin/archive'", "rule '%s' has no program", r.Name)
		}
		if r.Program = file.text; !filepath.IsAbs(r.Program) {
			r.Program = filepath.Join(p.base, r.Program)
		}
	default:
		return wrong(verb.at, problem.Meant(verb.text, []string{"EXCLUDE", "PLACE", "MIGRATE", "DELETE", "PACK", "LIST", "EXEC"}, "%s"), "unknown word %s", verb.shown())
	}
	seen := make(map[string]bool)
	for {
		t := p.peek()
		if t.kind != kindWord {
			break
		}
		clause := t.text
		switch clause {
		case "from", "to", "in", "for", "threshold", "weight", "where", "into":
		case "premigrate":
			return wrong(t.at, premigrateHint, "%s is not expected here", t.shown())
		case "rule", "create":
			return wrong(t.at, "end the statement before it with ;", "%s is not expected here", t.shown())
		default:
			return wrong(t.at, problem.Meant(t.text, []string{"FROM POOL", "TO POOL", "IN POOL", "FOR FILESET", "THRESHOLD", "WEIGHT", "WHERE", "INTO STORE"}, "%s"), "%s is not expected here", t.shown())
		}
		if seen[clause] {
			return wrong(t.at, "", "rule '%s' has %s twice", r.Name, t.shown())
		}
		seen[clause] = true
		p.next++
		if allowed := clauses[r.Verb]; !strings.Contains(allowed, " "+clause+" ") {
			return wrong(t.at, "it can have "+clauseNames(allowed), "%s cannot have %s", strings.ToUpper(string(r.Verb)), t.shown())
		}
		var err *mistake
		switch clause {
		case "from":
			at.from, r.From, err = p.poolOf("FROM")
		case "to", "in":
			at.to, r.To, err = p.poolOf(strings.ToUpper(clause))
		case "for":
			err = p.filesets(&r, &at)
		case "threshold":
			err = p.threshold(&r, t.at)
		case "weight":
			r.weight, err = p.expression()
		case "where":
			r.where, err = p.expression()
		case "into":
			err = p.into(&r)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case r.Verb == Migrate && r.To == "":
		return wrong(verb.at, "add TO POOL name", "rule '%s' has no destination", r.Name)
	case r.Verb == Place && r.To == "":
		return wrong(verb.at, "add IN POOL name", "rule '%s' has no pool", r.Name)
	case r.Verb == Pack && r.Store == "":
		return wrong(verb.at, "add INTO STORE '/directory'", "rule '%s' has no store", r.Name)
	case r.High > 0 && r.From == "":
		return wrong(verb.at, "add FROM POOL name", "rule '%s' has a threshold, but no pool that it applies to", r.Name)
	case r.Verb == Delete && r.where == nil:
		return wrong(verb.at, "write WHERE TRUE if all files are meant", "rule '%s' would delete everything", r.Name)
	case r.Verb == Exec && r.where == nil:
		return wrong(verb.at, "write WHERE TRUE if all files are meant", "rule '%s' would run for every file", r.Name)
	case r.Verb == Pack && r.where == nil:
		return wrong(verb.at, "select directories, as in WHERE files > 1000 AND largest < 1 MB", "rule '%s' would pack everything", r.Name)
	}
	p.rules.Rules = append(p.rules.Rules, r)
	p.at = append(p.at, at)
	return nil
}

// clauses lists the clauses that a rule of each verb may have.
var clauses = map[Verb]string{
	Exclude: " from for where ",
	Place:   " in for where ",
	Migrate: " from to for threshold weight where ",
	Delete:  " from for threshold weight where ",
	Pack:    " from into for where ",
	List:    " from for weight where ",
	Exec:    " from for weight where ",
}

// clauseNames returns clauses as they are written in rules.
func clauseNames(allowed string) string {
	var list []string
	for _, c := range strings.Fields(allowed) {
		name := strings.ToUpper(c)
		switch c {
		case "from", "to", "in":
			name += " POOL"
		case "into":
			name += " STORE"
		case "for":
			name += " FILESET"
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}

func (p *parser) poolOf(clause string) (int, string, *mistake) {
	if err := p.needWord("pool", "as in "+clause+" POOL flash"); err != nil {
		return 0, "", err
	}
	at := p.peek().at
	name, err := p.name("a pool")
	return at, name, err
}

const premigrateHint = "only MIGRATE copies files ahead, as in THRESHOLD 90 TO 80 PREMIGRATE 60"

// threshold: THRESHOLD high [TO low] [PREMIGRATE ahead]
func (p *parser) threshold(r *Rule, at int) *mistake {
	const hint = "as in THRESHOLD 80 TO 70: begin above 80 percent, stop at 70"
	percent := func() (int, *mistake) {
		t := p.take()
		n, err := strconv.Atoi(t.text)
		if t.kind != kindNumber || err != nil || n < 0 || n > 100 {
			return 0, wrong(t.at, hint, "a threshold must be a whole number of percents, not %s", t.shown())
		}
		p.sign("%")
		return n, nil
	}
	var err *mistake
	if r.High, err = percent(); err != nil {
		return err
	}
	r.Low = r.High
	if t := p.peek(); t.kind == kindWord && t.text == "to" && p.tokens[p.next+1].kind == kindNumber {
		p.next++
		if r.Low, err = percent(); err != nil {
			return err
		}
	}
	if r.High == 0 || r.Low > r.High {
		return wrong(at, hint, "a threshold must be from %d to %d percent", r.High, r.Low)
	}
	r.Ahead = r.Low
	if t := p.peek(); p.word("premigrate") {
		if r.Verb != Migrate {
			return wrong(t.at, premigrateHint, "%s cannot have PREMIGRATE", strings.ToUpper(string(r.Verb)))
		}
		if r.Ahead, err = percent(); err != nil {
			return err
		}
		if r.Ahead >= r.Low {
			return wrong(t.at, "as in THRESHOLD 90 TO 80 PREMIGRATE 60", "files are premigrated below the lower mark of %d percent, not to %d", r.Low, r.Ahead)
		}
	}
	return nil
}

// into: INTO STORE 'directory' [AS 'name']
func (p *parser) into(r *Rule) *mistake {
	const hint = "as in INTO STORE '/srv/store' AS 'packed/logs'"
	if err := p.needWord("store", hint); err != nil {
		return err
	}
	t := p.take()
	if t.kind != kindString || t.text == "" {
		return wrong(t.at, hint, "the directory of the store is missing")
	}
	if r.Store = t.text; !filepath.IsAbs(r.Store) {
		r.Store = filepath.Join(p.base, r.Store)
	}
	r.Store, r.As = filepath.Clean(r.Store), "packed"
	if p.word("as") {
		if t = p.take(); t.kind != kindString || t.text == "" {
			return wrong(t.at, hint, "the name of the trees is missing")
		}
		r.As = t.text
	}
	return nil
}

// Expressions by rising precedence: OR, AND, NOT, comparisons, + and - and ||, then * / %
// &, then a sign.

func (p *parser) expression() (*node, *mistake) {
	return p.chain("or", opOr, func() (*node, *mistake) {
		return p.chain("and", opAnd, p.negation)
	})
}

func (p *parser) chain(word string, o op, part func() (*node, *mistake)) (*node, *mistake) {
	n, err := part()
	for err == nil && p.peek().kind == kindWord && p.peek().text == word {
		at := p.take().at
		var right *node
		if right, err = part(); err == nil {
			n = &node{op: o, at: at, args: []*node{n, right}}
		}
	}
	return n, err
}

func (p *parser) negation() (*node, *mistake) {
	if t := p.peek(); p.word("not") {
		n, err := p.negation()
		return &node{op: opNot, at: t.at, args: []*node{n}}, err
	}
	return p.comparison()
}

var comparisons = map[string]op{"=": opEqual, "<>": opUnequal, "!=": opUnequal, "<": opLess, "<=": opAtMost, ">": opMore, ">=": opAtLeast}

func (p *parser) comparison() (*node, *mistake) {
	left, err := p.sum()
	if err != nil {
		return nil, err
	}
	t := p.peek()
	if o, ok := comparisons[t.text]; ok && t.kind == kindSign {
		p.next++
		right, err := p.sum()
		return &node{op: o, at: t.at, args: []*node{left, right}}, err
	}
	if t.kind != kindWord {
		return left, nil
	}
	begin, not := p.next, p.word("not")
	n := &node{at: p.peek().at, args: []*node{left}}
	switch w := p.peek(); w.text {
	case "like", "ilike", "glob", "regexp":
		p.next++
		n.op, n.text = opMatch, w.text
		pattern := p.take()
		if pattern.kind != kindString {
			return nil, wrong(pattern.at, "as in path LIKE '%.bam'", "%s needs a pattern in quotes, not %s", w.shown(), pattern.shown())
		}
		n.args = append(n.args, &node{op: opConst, at: pattern.at, typ: typeText, text: pattern.text})
		if p.word("escape") {
			e := p.take()
			if e.kind != kindString || len(e.text) != 1 || w.text == "glob" || w.text == "regexp" {
				return nil, wrong(e.at, `as in name LIKE '50\%%' ESCAPE '\'`, "ESCAPE is for LIKE, and takes one character")
			}
			n.args = append(n.args, &node{op: opConst, at: e.at, typ: typeText, text: e.text})
		}
	case "in":
		p.next++
		n.op = opIn
		if err := p.needSign("("); err != nil {
			return nil, err
		}
		for more := true; more; more = p.sign(",") {
			v, err := p.sum()
			if err != nil {
				return nil, err
			}
			n.args = append(n.args, v)
		}
		if err := p.needSign(")"); err != nil {
			return nil, err
		}
	case "between":
		p.next++
		n.op = opBetween
		for i := range 2 {
			if i == 1 {
				if err := p.needWord("and", "as in size BETWEEN 1 KB AND 1 MB"); err != nil {
					return nil, err
				}
			}
			v, err := p.sum()
			if err != nil {
				return nil, err
			}
			n.args = append(n.args, v)
		}
	case "is":
		return nil, wrong(w.at, "every column has a value; compare with = and <>", "IS is not supported")
	default:
		p.next = begin
		return left, nil
	}
	if not {
		n = &node{op: opNot, at: n.at, args: []*node{n}}
	}
	return n, nil
}

func (p *parser) sum() (*node, *mistake) {
	return p.binary(map[string]op{"+": opAdd, "-": opSubtract, "||": opJoin}, func() (*node, *mistake) {
		return p.binary(map[string]op{"*": opMultiply, "/": opDivide, "%": opRest, "&": opBits}, p.signed)
	})
}

func (p *parser) binary(ops map[string]op, part func() (*node, *mistake)) (*node, *mistake) {
	n, err := part()
	for err == nil && p.peek().kind == kindSign {
		o, ok := ops[p.peek().text]
		if !ok {
			break
		}
		at := p.take().at
		var right *node
		if right, err = part(); err == nil {
			n = &node{op: o, at: at, args: []*node{n, right}}
		}
	}
	return n, err
}

func (p *parser) signed() (*node, *mistake) {
	if t := p.peek(); p.sign("-") {
		n, err := p.signed()
		return &node{op: opSubtract, at: t.at, args: []*node{{op: opConst, at: t.at, typ: typeAny}, n}}, err
	}
	return p.primary()
}

// timeUnits are the units of spans of time, in nanoseconds.
var timeUnits = map[string]int64{
	"second": int64(time.Second), "minute": int64(time.Minute), "hour": int64(time.Hour),
	"day": day, "week": 7 * day, "month": 30 * day, "year": 365 * day,
}

const day = int64(24 * time.Hour)

func (p *parser) primary() (*node, *mistake) {
	t := p.take()
	switch t.kind {
	case kindNumber:
		return p.number(t)
	case kindString:
		return &node{op: opConst, at: t.at, typ: typeText, text: t.text}, nil
	case kindSign:
		if t.text == "(" {
			n, err := p.expression()
			if err == nil {
				err = p.needSign(")")
			}
			return n, err
		}
	case kindWord:
		switch t.text {
		case "true", "false":
			n := &node{op: opConst, at: t.at, typ: typeBool}
			if t.text == "true" {
				n.value = 1
			}
			return n, nil
		case "interval":
			return p.interval(t)
		case "timestamp", "date":
			if s := p.peek(); s.kind == kindString {
				p.next++
				return timestamp(s.at, s.text)
			}
		case "case":
			return p.cases(t)
		}
		if p.sign("(") {
			n := &node{op: opCall, at: t.at, text: t.text}
			for first := true; !p.sign(")"); first = false {
				if !first {
					if err := p.needSign(","); err != nil {
						return nil, err
					}
				}
				a, err := p.expression()
				if err != nil {
					return nil, err
				}
				n.args = append(n.args, a)
			}
			return n, nil
		}
		return &node{op: opColumn, at: t.at, text: t.text}, nil
	case kindName:
		return &node{op: opColumn, at: t.at, text: t.text}, nil
	}
	return nil, wrong(t.at, "", "a value is missing before %s", t.shown())
}

// number: digits, and perhaps a unit of bytes or of time.
func (p *parser) number(t token) (*node, *mistake) {
	unit, typ := int64(1), typeNumber
	if u := p.peek(); u.kind == kindWord {
		if n, ok := units.Unit(u.text); ok {
			unit = n
			p.next++
		} else if n, ok := timeUnits[strings.TrimSuffix(u.text, "s")]; ok {
			unit, typ = n, typeSpan
			p.next++
		}
	}
	n := &node{op: opConst, at: t.at, typ: typ}
	if octal(t.text) {
		return nil, wrong(t.at, "an octal number is written 0o755", "%s is not a number", t.text)
	}
	if v, err := strconv.ParseInt(t.text, 0, 64); err == nil {
		if n.value = v * unit; v != 0 && n.value/unit != v {
			return nil, wrong(t.at, "", "%s is too large", t.text)
		}
		return n, nil
	}
	v, err := strconv.ParseFloat(t.text, 64)
	if v *= float64(unit); err != nil {
		return nil, wrong(t.at, "", "%s is not a number", t.text)
	} else if v != math.Trunc(v) || v >= 1<<63 {
		return nil, wrong(t.at, "numbers must be whole and below 9 EB; 1.5 GB is allowed", "%s is not a whole number", t.text)
	}
	n.value = int64(v)
	return n, nil
}

// octal reports whether C would read a number as octal, and SQL as decimal.
func octal(s string) bool { return len(s) > 1 && s[0] == '0' && digit(s[1]) }

// interval: INTERVAL 30 DAYS, INTERVAL '30 days'
func (p *parser) interval(t token) (*node, *mistake) {
	const hint = "as in INTERVAL 30 DAYS, or INTERVAL '30 days'"
	v := p.take()
	text, unit := v.text, ""
	switch v.kind {
	case kindNumber:
		if u := p.peek(); u.kind == kindWord {
			unit = p.take().text
		}
	case kindString:
		if f := strings.Fields(strings.ToLower(text)); len(f) == 2 {
			text, unit = f[0], f[1]
		} else if u := p.peek(); len(f) == 1 && u.kind == kindWord {
			text, unit = f[0], p.take().text
		}
	default:
		return nil, wrong(t.at, hint, "INTERVAL needs a number and a unit of time")
	}
	each, ok := timeUnits[strings.TrimSuffix(unit, "s")]
	n, err := strconv.ParseFloat(text, 64)
	if !ok || err != nil || math.Abs(n)*float64(each) >= 1<<63 {
		return nil, wrong(t.at, hint, "INTERVAL needs a number and a unit of time")
	}
	return &node{op: opConst, at: t.at, typ: typeSpan, value: int64(n * float64(each))}, nil
}

var timeLayouts = []string{time.DateOnly, time.DateTime, "2006-01-02 15:04", "2006-01-02T15:04:05", time.RFC3339Nano}

// timestamp parses a date or a time, which is local unless it has a zone.
func timestamp(at int, s string) (*node, *mistake) {
	for _, l := range timeLayouts {
		if t, err := time.ParseInLocation(l, s, time.Local); err == nil && t.Year() > 1678 && t.Year() < 2262 {
			return &node{op: opConst, at: at, typ: typeTime, value: t.UnixNano()}, nil
		}
	}
	return nil, wrong(at, "as in '2026-01-31', '2026-01-31 12:00:00' or '2026-01-31T12:00:00Z'", "'%s' is not a time", s)
}

// cases parses CASE WHEN condition THEN value ... ELSE value END. The arguments of the node
// are conditions and values in turn, and the last value.
func (p *parser) cases(t token) (*node, *mistake) {
	const hint = "as in CASE WHEN size > 1 GB THEN 2 ELSE 1 END"
	n := &node{op: opCase, at: t.at}
	for p.word("when") {
		c, err := p.expression()
		if err == nil {
			err = p.needWord("then", hint)
		}
		if err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		n.args = append(n.args, c, v)
	}
	if len(n.args) == 0 {
		return nil, wrong(p.peek().at, hint, "WHEN is missing before %s", p.peek().shown())
	}
	if err := p.needWord("else", hint); err != nil {
		return nil, err
	}
	v, err := p.expression()
	if err == nil {
		err = p.needWord("end", hint)
	}
	n.args = append(n.args, v)
	return n, err
}
