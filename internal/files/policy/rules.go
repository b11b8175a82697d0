package policy

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"premix/internal/kit/exit"
	"premix/internal/kit/problem"
)

// Verb is the operation of a rule.
type Verb string

// The verbs.
const (
	Exclude Verb = "exclude" // leave it unchanged
	Place   Verb = "place"   // move it to a pool, wherever it is now
	Migrate Verb = "migrate" // move it from one pool to another
	Delete  Verb = "delete"
	Pack    Verb = "pack" // make a directory a tree in a store
	List    Verb = "list" // write it to a list, and leave it unchanged
	Exec    Verb = "exec" // run a program for it
	// Premigrate is the verb of actions, and not of rules: copy the file to the pool to
	// which a rule with MIGRATE would move it.
	Premigrate Verb = "premigrate"
)

// Rules is the content of a file of rules.
type Rules struct {
	File  string
	Text  string
	Pools []Pool
	Rules []Rule

	Filesets map[string]string // directories, absolute and clean, by name
}

// Pool is a directory on one kind of disk. A file that moves from one pool to another keeps
// its relative path.
type Pool struct {
	Name     string `json:"name"`
	Dir      string `json:"dir"`                // absolute and clean
	Capacity int64  `json:"capacity,omitempty"` // bytes; 0: the size of the file system
}

// Rule is one rule. An entry belongs to the first one that it matches.
type Rule struct {
	Name string
	Verb Verb
	Line int
	From string // name of a pool, "" for anywhere
	To   string // name of a pool
	// High and Low are percents of the capacity of From: the rule acts if the pool holds
	// more than High, until it holds no more than Low. High is 0 if the rule always acts.
	High, Low int
	// Ahead is the percentage down to which files are premigrated: the files that the rule
	// would take next get a copy in To. It is Low if none are.
	Ahead    int
	Store    string   // of Pack: directory of the store
	As       string   // of Pack: name of the trees
	Program  string   // of Exec: absolute path
	Filesets []string // names of the filesets to which it applies; nil: everywhere

	weight *node // nil for none; see weightOf
	where  *node // nil for all
}

// actsOn reports whether the rule may change files in a pool, or with "", outside of all
// pools.
func (r *Rule) actsOn(pool string) bool {
	switch {
	case r.Verb == Exclude, r.Verb == List:
		return false
	case r.From != "":
		return pool == r.From && pool != r.To
	case r.To != "":
		return pool != "" && pool != r.To
	}
	return true
}

// Pool returns a pool by its name.
func (r *Rules) Pool(name string) *Pool {
	if i := slices.IndexFunc(r.Pools, func(p Pool) bool { return p.Name == name }); i >= 0 {
		return &r.Pools[i]
	}
	return nil
}

// lists reports whether a rule writes a list.
func (r *Rules) lists() bool {
	return slices.ContainsFunc(r.Rules, func(r Rule) bool { return r.Verb == List })
}

// cannotRead is the error for a file of rules or pools.
func cannotRead(path string, err error) error {
	return exit.Errorf(exit.Usage, "name a file of rules: see premix help files-policy", "cannot read %s: %w", path, err)
}

// ReadFile reads a file of rules. pools are known in advance; the file may declare more.
// Relative directories are relative to the directory of the file. A mistake in
// the file is a [problem.List].
func ReadFile(path string, pools []Pool) (*Rules, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cannotRead(path, err)
	}
	return Parse(path, string(text), pools)
}

// Parse parses the text of a file of rules.
func Parse(file, text string, pools []Pool) (*Rules, error) {
	r := &Rules{File: file, Text: text, Pools: slices.Clone(pools)}
	var found []*mistake
	tokens, bad := lex(text)
	if bad != nil {
		found = append(found, bad)
	}
	base, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, cannotRead(file, err)
	}
	p := &parser{tokens: tokens, rules: r, base: base}
	for bad == nil && p.peek().kind != kindEnd {
		if p.sign(";") {
			continue
		}
		if err := p.statement(); err != nil {
			found = append(found, err)
			p.skip()
		}
	}
	found = append(found, r.check(p)...)
	c := problem.Collector{File: file}
	if len(found) == 0 {
		if len(r.Rules) > 0 || len(r.Pools) > len(pools) {
			return r, nil
		}
		c.Add(0, "write a rule, as in RULE 'references stay' EXCLUDE WHERE path LIKE '%/references/%';", "the file has no rules")
	}
	for _, f := range found {
		line, column := place(text, f.at)
		c.AddAt(line, column, f.hint, "%s", f.what)
	}
	return nil, c.Err()
}

// check checks that rules and pools fit together, and compiles the expressions.
func (r *Rules) check(p *parser) []*mistake {
	var found []*mistake
	var names []string
	for _, pool := range r.Pools {
		names = append(names, pool.Name)
	}
	for i, pool := range r.Pools {
		for _, other := range r.Pools[:i] {
			at := p.pools[pool.Name]
			if other.Name == pool.Name {
				found = append(found, wrong(at, "give it another name", "pool %s is declared twice", pool.Name))
			} else if within(pool.Dir, other.Dir) || within(other.Dir, pool.Dir) {
				found = append(found, wrong(at, "pools must not contain each other", "the pools %s and %s overlap", other.Name, pool.Name))
			}
		}
	}
	for i := range r.Rules {
		rule, at := &r.Rules[i], p.at[i]
		for _, other := range r.Rules[:i] {
			if other.Name == rule.Name {
				found = append(found, wrong(at.name, "the audit names rules: give it another name", "rule '%s' is declared twice", rule.Name))
			}
		}
		for _, pool := range []struct {
			name string
			at   int
		}{{rule.From, at.from}, {rule.To, at.to}} {
			if pool.name != "" && r.Pool(pool.name) == nil {
				hint := "declare it: CREATE POOL " + pool.name + " AT '/some/directory';"
				if near := problem.Near(pool.name, names); near != "" {
					hint = "did you mean " + near + "?"
				}
				found = append(found, wrong(pool.at, hint, "unknown pool %s", pool.name))
			}
		}
		for k, name := range rule.Filesets {
			if _, ok := r.Filesets[name]; !ok {
				hint := "declare it: CREATE FILESET " + name + " AT '/some/directory';"
				if near := problem.Near(name, slices.Sorted(maps.Keys(r.Filesets))); near != "" {
					hint = "did you mean " + near + "?"
				}
				found = append(found, wrong(at.filesets[k], hint, "unknown fileset %s", name))
			}
		}
		if rule.From != "" && rule.From == rule.To {
			found = append(found, wrong(at.to, "name two pools", "rule '%s' moves from pool %s to itself", rule.Name, rule.To))
		}
		c := &checker{rule: rule, pools: names}
		if rule.where != nil {
			if err := c.check(rule.where); err != nil {
				found = append(found, err)
			} else if rule.where.typ != typeBool {
				found = append(found, wrong(rule.where.at, "write a comparison, as in WHERE size > 1 MB", "WHERE needs a condition, and this is %s", rule.where.typ))
			}
		}
		if rule.weight != nil {
			if err := c.check(rule.weight); err != nil {
				found = append(found, err)
			} else if rule.weight.typ != typeNumber && rule.weight.typ != typeSpan {
				found = append(found, wrong(rule.weight.at, "the heaviest go first, as in WEIGHT now() - accessed", "WEIGHT needs a number or a span of time, and this is %s", rule.weight.typ))
			}
		}
	}
	return found
}

// within reports whether a path is dir, or lies below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
