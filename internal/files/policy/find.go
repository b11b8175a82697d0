package policy

import (
	"context"

	"premix/internal/files"
	"premix/internal/kit/problem"
)

// ParseFind returns a rule that lists the entries for which a condition holds; with "", all.
// by is an expression of which the greatest values come first, or "" for the order of the
// scan. file names the place of the condition in errors, which are a [problem.List].
func ParseFind(file, condition, by string) (*Rules, error) {
	r := &Rules{File: file, Text: condition}
	rule := Rule{Name: "find", Verb: List, Line: 1}
	at := &parser{rules: r, at: []ruleAt{{}}}
	for _, part := range []struct {
		text, name string
		to         **node
	}{{condition, file, &rule.where}, {by, "--by", &rule.weight}} {
		if part.text == "" {
			continue
		}
		tokens, bad := lex(part.text)
		if bad == nil {
			p := &parser{tokens: tokens, rules: r}
			if *part.to, bad = p.expression(); bad == nil && p.peek().kind != kindEnd {
				bad = wrong(p.peek().at, "", "%s is not expected here", p.peek().shown())
			}
		}
		if bad == nil {
			// Check the part alone, so that its places are places in its own text.
			alone := Rules{File: file, Rules: []Rule{{Name: rule.Name, Verb: List}}}
			if part.to == &rule.where {
				alone.Rules[0].where = rule.where
			} else {
				alone.Rules[0].weight = rule.weight
			}
			if found := alone.check(at); len(found) > 0 {
				bad = found[0]
			}
		}
		if bad != nil {
			c := problem.Collector{File: part.name}
			line, column := place(part.text, bad.at)
			c.AddAt(line, column, bad.hint, "%s", bad.what)
			return nil, c.Err()
		}
	}
	r.Rules = []Rule{rule}
	return r, nil
}

// Find calls f with the entries that a rule of ParseFind lists, at most most of them, if it is
// not 0.
func (r *Rules) Find(ctx context.Context, t *files.Table, o Options, most int, f func(*files.Entry) error) error {
	p, err := r.Plan(ctx, t, o)
	if err != nil {
		return err
	}
	rule := p.Rules[0]
	if most == 0 {
		most = int(rule.Taken.Count)
	}
	g, group := t.NewGroup(), int32(-1)
	var e files.Entry
	for _, at := range rule.taken(most) {
		if at.group != group {
			g.Reset(int(at.group))
			group = at.group
		}
		if err := g.Entry(at.row, &e); err != nil {
			return err
		}
		if err := f(&e); err != nil {
			return err
		}
	}
	return nil
}
