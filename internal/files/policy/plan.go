package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/files"
	"premix/internal/files/content"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

// Options configure how a plan is made.
type Options struct {
	Now     time.Time // the value of now(); zero: the present
	Workers int       // 0: as many as cores
	Samples int       // number of sample files for each rule
	// Candidates restrict all rules to some entries; nil: they apply to all.
	Candidates *Candidates
	Count      bool // count only: the plan can then not be written
}

// Plan lists the operations that a policy would do.
type Plan struct {
	File  string      `json:"rules_file"`
	Table string      `json:"table"`
	Now   time.Time   `json:"now"`
	Rows  int64       `json:"rows"`
	Pools []PoolPlan  `json:"pools"`
	Rules []*RulePlan `json:"rules"`
	// Unmatched is the number of entries, including directories, that match no rule.
	Unmatched int64 `json:"unmatched"`
	// Names is the number of additional names of files that match a rule. These files count
	// once. The entries of a scan are the matched and the unmatched ones and these.
	Names      int64           `json:"further_names"`
	Candidates *CandidatesPlan `json:"candidates,omitempty"`
	Pruned     int             `json:"pruned"` // row groups whose bounds alone showed that no rule takes a row
	Groups     int             `json:"groups"`
	Seconds    float64         `json:"seconds"`

	rules  *Rules
	table  *files.Table
	digest string // of the file of candidates
}

// PoolPlan is the present and planned use of a pool, in bytes.
type PoolPlan struct {
	Pool
	Used  int64  `json:"used"`
	After int64  `json:"after"`
	By    string `json:"by"` // "file system", or "scan" for a declared capacity
}

// Percent returns n bytes as a percentage of the capacity.
func (p *PoolPlan) Percent(n int64) float64 {
	if p.Capacity == 0 {
		return 0
	}
	return 100 * float64(n) / float64(p.Capacity)
}

// RulePlan is the part of a plan that belongs to one rule.
type RulePlan struct {
	Name    string `json:"name"`
	Verb    Verb   `json:"verb"`
	Line    int    `json:"line"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	Program string `json:"program,omitempty"`
	Active  bool   `json:"active"`        // false: the pool is below its threshold, and the rule is ignored
	Why     string `json:"why,omitempty"` // the state of the threshold, in words
	Matched Amount `json:"matched"`       // files that belong to the rule
	Taken   Amount `json:"taken"`         // files on which it would act
	// Left counts the files of the rule on which it does not act, by reason.
	Left    map[string]int64 `json:"left,omitempty"`
	Samples []Sample         `json:"samples,omitempty"`
	Ahead   *AheadPlan       `json:"premigrate,omitempty"` // of a rule with PREMIGRATE

	rule    *Rule
	mu      sync.Mutex
	refs    []ref       // for rules without an order
	ordered []candidate // the heaviest first, once the plan is made
	linked  map[inode]*linkedFile
	others  map[ref][]ref // additional names of a file
	freed   []int64       // bytes on disk, by pool
	bound   int64         // bytes that suffice; -1: unknown
	kept    int           // number of candidates after the last pruning
	floor   int64         // no candidate lighter than this is needed
	where   *condition
	weight  *number
	packs   map[string]bool // paths of directories
	copied  int64           // bytes on disk of files to move that need not be copied
}

// Amount is a number of files (for PACK, directories) and their bytes.
type Amount struct {
	Count     int64 `json:"count"`
	Bytes     int64 `json:"bytes"`
	Allocated int64 `json:"allocated"` // bytes on disk
}

// Sample is a file on which a rule would act.
type Sample struct {
	Path   string `json:"path"`
	To     string `json:"to,omitempty"`
	Size   int64  `json:"size"`
	Weight *int64 `json:"weight,omitempty"`
}

// ref is a row of a scan.
type ref struct{ group, row int32 }

func (a ref) compare(b ref) int {
	return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.row, b.row))
}

type candidate struct {
	ref
	weight, size, allocated int64
}

type inode struct{ device, number int64 }

// linkedFile is a file with several names, of which a rule has matched some.
type linkedFile struct {
	candidate
	names []ref
	links int64
	pool  int
}

// The reasons for not acting on a file.
const (
	leftNames   = "has further names that the rule does not take"
	leftEnough  = "not needed to reach the lower mark"
	leftEarlier = "an earlier rule takes something below it"
	leftWithin  = "lies in a directory that is packed"
)

// PoolError is returned for a pool whose directory cannot be used.
type PoolError struct {
	Pool Pool
	Err  error
}

func (e *PoolError) Error() string {
	return fmt.Sprintf("pool %s: %s: %v", e.Pool.Name, e.Pool.Dir, e.Err)
}

// ExitCode implements exit.Coded.
func (*PoolError) ExitCode() exit.Code { return exit.Usage }
func (e *PoolError) Unwrap() error     { return e.Err }

// Hint returns the way to resolve the error.
func (e *PoolError) Hint() string {
	if errors.Is(e.Err, errForeignCopies) {
		return "run premix as its owner, or check the files there and move " + content.Copies + " away"
	}
	return "a pool must be an existing directory"
}

// maker makes a plan.
type maker struct {
	*Plan
	options Options
	sums    totals
	fixed   int // the pool that contains every row; -1: none; -2: it depends on the row
	base    map[Verb]*condition
	copies  map[string]bool   // the directories of copies of premigrated files
	spares  map[string]spares // these copies, by the pool that they lie in

	mu        sync.Mutex
	unmatched int64
	pruned    int
	held      map[string]int // directories of PACK rules that contain entries of an earlier rule
}

// Plan computes the operations of the rules on the entries of a scan. It changes no files.
func (r *Rules) Plan(ctx context.Context, t *files.Table, o Options) (*Plan, error) {
	started := time.Now()
	if o.Now.IsZero() {
		o.Now = started
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	p := &Plan{File: r.File, Table: t.Path, Now: o.Now, Rows: t.Rows, Groups: t.Groups(), rules: r, table: t}
	m := &maker{Plan: p, options: o, held: make(map[string]int)}
	if slices.ContainsFunc(r.Rules, func(r Rule) bool { return r.Verb == Pack }) {
		var err error
		if m.sums, err = sumUp(ctx, t, o.Workers); err != nil {
			return nil, err
		}
	}
	if err := m.pools(ctx); err != nil {
		return nil, err
	}
	m.prepare()
	m.copies = m.copyDirs()
	if err := m.findCopies(ctx); err != nil {
		return nil, err
	}
	if m.sums != nil {
		if err := m.packs(ctx); err != nil {
			return nil, err
		}
	}
	err := eachGroup(ctx, t, o.Workers, func() func(*files.Group, int) error {
		b := newBatch(t, r.Pools, m.sums)
		return func(g *files.Group, n int) error {
			b.g = g
			return m.group(b, int32(n))
		}
	})
	if err != nil {
		return nil, err
	}
	p.Unmatched, p.Pruned = m.unmatched, m.pruned
	if o.Candidates != nil {
		p.Candidates, p.digest = o.Candidates.plan(), o.Candidates.Digest
	}
	if err := m.choose(); err != nil {
		return nil, err
	}
	for _, rule := range p.Rules {
		if err := rule.sample(p, o.Samples); err != nil {
			return nil, err
		}
	}
	p.Seconds = time.Since(started).Seconds()
	return p, nil
}

// pools determines the capacity and use of the pools.
func (m *maker) pools(ctx context.Context) error {
	watched := make(map[string]bool) // pools whose use a rule depends on
	for _, rule := range m.rules.Rules {
		if rule.High > 0 {
			watched[rule.From] = true
		}
	}
	var counted []int
	for _, pool := range m.rules.Pools {
		p := PoolPlan{Pool: pool, By: "file system"}
		var st unix.Statfs_t
		if err := unix.Statfs(pool.Dir, &st); err != nil {
			return &PoolError{pool, err}
		}
		if pool.Capacity > 0 {
			p.By = "scan"
			covered := slices.ContainsFunc(m.table.Roots, func(root string) bool { return within(pool.Dir, root) })
			switch {
			case covered:
				counted = append(counted, len(m.Pools))
			case watched[pool.Name]:
				return exit.Errorf(exit.Usage, "scan it too: premix files scan "+pool.Dir+" ...", "the scan %s does not cover pool %s (%s), whose capacity is declared", m.table.Path, pool.Name, pool.Dir)
			}
		} else {
			// Space reserved for root counts as used, as in df.
			p.Used = int64(st.Blocks-st.Bfree) * st.Bsize
			p.Capacity = p.Used + int64(st.Bavail)*st.Bsize
		}
		m.Pools = append(m.Pools, p)
	}
	if len(counted) > 0 {
		if err := m.count(ctx, counted); err != nil {
			return err
		}
	}
	for i := range m.Pools {
		m.Pools[i].After = m.Pools[i].Used
	}
	return nil
}

// count adds up the sizes of the scanned files in pools.
func (m *maker) count(ctx context.Context, pools []int) error {
	seen := make(map[inode]bool)
	var mu sync.Mutex
	return eachGroup(ctx, m.table, m.options.Workers, func() func(*files.Group, int) error {
		return func(g *files.Group, _ int) error {
			dirs, err := g.Texts(files.ColumnDir)
			if err != nil {
				return err
			}
			of := make([]int, dirs.Values())
			for n := range of {
				of[n] = slices.IndexFunc(pools, func(i int) bool { return within(string(dirs.Value(n)), m.Pools[i].Dir) })
			}
			allocated, err := g.Ints(files.ColumnAllocated)
			if err != nil {
				return err
			}
			// Directories also have several links, but only one name.
			var links, devices, inodes []int64
			if _, most, ok := g.Bounds(files.ColumnLinks); !ok || most > 1 {
				for to, c := range map[*[]int64]files.Column{&links: files.ColumnLinks, &devices: files.ColumnDevice, &inodes: files.ColumnInode} {
					if *to, err = g.Ints(c); err != nil {
						return err
					}
				}
			}
			types, err := g.Texts(files.ColumnType)
			if err != nil {
				return err
			}
			sums := make([]int64, len(pools))
			mu.Lock()
			defer mu.Unlock()
			for row := range int32(g.Rows()) {
				i := of[dirs.Number(row)]
				if i < 0 {
					continue
				}
				if links != nil && links[row] > 1 && types.Row(row)[0] != 'd' {
					f := inode{devices[row], inodes[row]}
					if seen[f] {
						continue
					}
					seen[f] = true
				}
				sums[i] += allocated[row]
			}
			for i, n := range pools {
				m.Pools[n].Used += sums[i]
			}
			return nil
		}
	})
}

func (m *maker) pool(name string) int {
	return slices.IndexFunc(m.Pools, func(p PoolPlan) bool { return p.Name == name })
}

// prepare compiles the rules, and determines which are active.
func (m *maker) prepare() {
	text := func(c files.Column, holds func([]byte) bool) *condition {
		return test(&text{cost: 1, values: func(b *batch) (textValues, error) {
			t, err := b.g.Texts(c)
			if err != nil || c == files.ColumnName {
				return textValues{row: t.Row}, err
			}
			return textValues{row: t.Row, number: t.Number, count: t.Values()}, nil
		}}, holds, 0)
	}
	is := func(kind byte) *condition {
		return text(files.ColumnType, func(b []byte) bool { return len(b) == 1 && b[0] == kind })
	}
	m.base = map[Verb]*condition{
		Exclude: {verdict: func(*files.Group) verdict { return all }},
		List:    {verdict: func(*files.Group) verdict { return all }},
		Pack: conjunction([]*condition{is('d'), compareColumn(opAtLeast, files.ColumnEntries, 0),
			text(files.ColumnName, func(b []byte) bool { return string(b) != "." })}),
	}
	for _, v := range []Verb{Place, Migrate, Delete, Exec} {
		m.base[v] = is('f')
	}
	m.fixed = -1
	for i := range m.Pools {
		for _, root := range m.table.Roots {
			switch dir := m.Pools[i].Dir; {
			case within(root, dir) && len(m.table.Roots) == 1:
				m.fixed = i
			case within(root, dir) || within(dir, root):
				m.fixed = -2
			}
		}
	}
	now := m.Now.UnixNano()
	fed := make(map[string]bool) // pools to which an earlier rule moves files
	for i := range m.rules.Rules {
		rule, p := &m.rules.Rules[i], new(RulePlan)
		m.Rules = append(m.Rules, p)
		p.Name, p.Verb, p.Line, p.From, p.To, p.Program = rule.Name, rule.Verb, rule.Line, rule.From, rule.To, rule.Program
		p.rule, p.Active, p.bound, p.floor = rule, true, -1, -1<<63
		p.linked, p.others, p.Left = make(map[inode]*linkedFile), make(map[ref][]ref), make(map[string]int64)
		p.freed = make([]int64, len(m.Pools))
		list := []*condition{m.base[rule.Verb]}
		if c := m.inPool(rule); c != nil {
			list = append(list, c)
		}
		if rule.Filesets != nil {
			list = append(list, m.rules.inFilesets(rule))
		}
		if rule.where != nil {
			list = append(list, compileCondition(bind(rule.where, now)))
		}
		p.where = conjunction(list)
		weight := rule.weight
		if weight == nil && rule.High > 0 { // the file not read for the longest time first
			weight = &node{op: opSubtract, typ: typeSpan, args: []*node{
				{op: opConst, typ: typeTime, now: true}, {op: opColumn, typ: typeTime, column: columnOf("accessed")},
			}}
		}
		if weight != nil {
			p.weight = compileNumber(bind(weight, now))
		}
		if rule.High > 0 {
			pool := &m.Pools[m.pool(rule.From)]
			p.Active = pool.Percent(pool.Used) > float64(rule.High)
			if !fed[rule.From] {
				p.bound = max(0, pool.Used-mark(pool, rule.Ahead))
			}
			if rule.Ahead < rule.Low {
				p.Ahead = new(AheadPlan)
			}
		}
		if rule.To != "" && p.Active {
			fed[rule.To] = true
		}
	}
}

// mark returns a percentage of a pool's capacity in bytes.
func mark(p *PoolPlan, percent int) int64 {
	return p.Capacity/100*int64(percent) + p.Capacity%100*int64(percent)/100
}

// inPool returns the condition on the pool that contains a row, or nil if the rule has
// none.
func (m *maker) inPool(rule *Rule) *condition {
	holds := func(pool int) bool {
		switch {
		case rule.From != "" && (pool < 0 || m.Pools[pool].Name != rule.From):
			return false
		case rule.To != "": // in the source pool, and not in the destination
			return pool >= 0 && m.Pools[pool].Name != rule.To
		}
		return true
	}
	if rule.From == "" && rule.To == "" {
		return nil
	}
	if m.fixed != -2 {
		v := none
		if holds(m.fixed) {
			v = all
		}
		return &condition{verdict: func(*files.Group) verdict { return v }}
	}
	return test(&text{cost: 2, values: func(b *batch) (textValues, error) {
		t, err := b.g.Texts(files.ColumnDir)
		return textValues{row: t.Row, number: t.Number, count: t.Values()}, err
	}}, func(dir []byte) bool { return holds(m.poolOf(string(dir))) }, 3)
}

// inFilesets returns the condition that a row lies in a directory of the filesets of a rule.
func (r *Rules) inFilesets(rule *Rule) *condition {
	return test(&text{cost: 2, values: func(b *batch) (textValues, error) {
		t, err := b.g.Texts(files.ColumnDir)
		return textValues{row: t.Row, number: t.Number, count: t.Values()}, err
	}}, func(dir []byte) bool {
		return slices.ContainsFunc(rule.Filesets, func(name string) bool { return within(string(dir), r.Filesets[name]) })
	}, len(rule.Filesets))
}

func (m *maker) poolOf(path string) int {
	return slices.IndexFunc(m.Pools, func(p PoolPlan) bool { return within(path, p.Dir) })
}

// packs finds the directories that PACK rules take, before other rules see their contents.
func (m *maker) packs(ctx context.Context) error {
	for i := range m.Rules {
		m.Rules[i].packs = make(map[string]bool)
	}
	err := eachGroup(ctx, m.table, m.options.Workers, func() func(*files.Group, int) error {
		b := newBatch(m.table, m.rules.Pools, m.sums)
		return func(g *files.Group, _ int) error {
			b.g = g
			return m.takes(b, func(i int, taken []int32) error {
				if i < 0 || m.Rules[i].Verb != Pack {
					return nil
				}
				p := m.Rules[i]
				path, err := paths(b)
				if err != nil {
					return err
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				for _, row := range taken {
					p.packs[string(path.row(row))] = true
				}
				return nil
			})
		}
	})
	if err != nil {
		return err
	}
	// If one directory contains another, the outer one is packed.
	for i := range m.Rules {
		for dir := range m.Rules[i].packs {
			for above := filepath.Dir(dir); above != "/"; above = filepath.Dir(above) {
				if m.packedBy(above) >= 0 {
					delete(m.Rules[i].packs, dir)
					m.Rules[i].Left[leftWithin]++
					break
				}
			}
		}
	}
	return nil
}

// packedBy returns the rule that packs a directory, or -1.
func (m *maker) packedBy(dir string) int {
	return slices.IndexFunc(m.Rules, func(p *RulePlan) bool { return p.packs[dir] })
}

// takes calls f with the rows of a group that belong to each rule, in the order of the
// rules, and at the end with rule -1 for the remaining rows.
func (m *maker) takes(b *batch, f func(rule int, taken []int32) error) error {
	left := b.list()
	for row := range int32(b.g.Rows()) {
		left = append(left, row)
	}
	defer func() { b.done(left) }()
	left, others, err := m.withoutCopies(b, left)
	if err != nil {
		return err
	}
	if c := m.options.Candidates; c != nil {
		kept, rest, err := c.split(b, left)
		b.done(left)
		left, others = kept, append(others, rest...)
		if err != nil {
			return err
		}
	}
	for i := range m.Rules {
		p := m.Rules[i]
		if !p.Active {
			continue
		}
		taken, err := p.where.apply(b, left, b.list())
		if err == nil && len(taken) > 0 {
			if err = f(i, taken); err == nil {
				rest := without(left, taken, b.list())
				b.done(left)
				left = rest
			}
		}
		b.done(taken)
		if err != nil {
			return err
		}
	}
	return f(-1, append(left, others...))
}

// group processes the rows of a group.
func (m *maker) group(b *batch, n int32) error {
	if m.sums == nil && m.options.Candidates == nil && !slices.ContainsFunc(m.Rules, func(p *RulePlan) bool { return p.Active && p.where.judge(b.g) != none }) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pruned++
		m.unmatched += int64(b.g.Rows())
		return nil
	}
	return m.takes(b, func(i int, taken []int32) error {
		if i < 0 {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.unmatched += int64(len(taken))
			return nil
		}
		p := m.Rules[i]
		if p.Verb == Pack {
			return m.packRows(b, p, n, taken)
		}
		if m.sums != nil {
			rest, err := m.below(b, i, taken)
			if err != nil {
				return err
			}
			defer b.done(rest)
			taken = rest
		}
		return p.rows(b, m, n, taken)
	})
}

// below finds the rows in directories that are to be packed. Rows of a later rule are
// packed with the directory; a row of an earlier rule prevents the packing.
func (m *maker) below(b *batch, rule int, taken []int32) ([]int32, error) {
	dirs, err := b.g.Texts(files.ColumnDir)
	if err != nil {
		return nil, err
	}
	const unknown = -2
	by := make([]int, dirs.Values())
	where := make([]string, dirs.Values())
	for i := range by {
		by[i] = unknown
	}
	rest := b.list()
	for _, row := range taken {
		n := dirs.Number(row)
		if by[n] == unknown {
			by[n] = -1
			for dir := string(dirs.Value(n)); dir != "/" && by[n] < 0; dir = filepath.Dir(dir) {
				by[n], where[n] = m.packedBy(dir), dir
			}
		}
		switch {
		case by[n] < 0:
		case by[n] > rule:
			m.mu.Lock()
			m.held[where[n]]++
			m.mu.Unlock()
		default:
			continue
		}
		rest = append(rest, row)
	}
	return rest, nil
}

// rows adds rows of a group to a rule.
func (p *RulePlan) rows(b *batch, m *maker, n int32, taken []int32) error {
	sizes, err := b.g.Ints(files.ColumnSize)
	if err != nil {
		return err
	}
	allocated, err := b.g.Ints(files.ColumnAllocated)
	if err != nil {
		return err
	}
	acts := p.Verb != Exclude && p.Verb != List && p.Verb != Exec // its files become fewer or smaller
	var weights []int64
	if p.weight != nil {
		weights = b.ints(len(taken))
		defer b.doneInts(weights)
		if err := p.weight.values(b, taken, weights); err != nil {
			return err
		}
	}
	var links, devices, inodes []int64
	if _, most, ok := b.g.Bounds(files.ColumnLinks); acts && (!ok || most > 1) {
		for to, c := range map[*[]int64]files.Column{&links: files.ColumnLinks, &devices: files.ColumnDevice, &inodes: files.ColumnInode} {
			if *to, err = b.g.Ints(c); err != nil {
				return err
			}
		}
	}
	pools := func(int32) int { return m.fixed }
	if m.fixed == -2 {
		dirs, err := b.g.Texts(files.ColumnDir)
		if err != nil {
			return err
		}
		of := make([]int, dirs.Values())
		for i := range of {
			of[i] = m.poolOf(string(dirs.Value(i)))
		}
		pools = func(row int32) int { return of[dirs.Number(row)] }
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, row := range taken {
		c := candidate{ref: ref{n, row}, size: sizes[row], allocated: allocated[row]}
		if weights != nil {
			c.weight = weights[i]
		}
		pool := pools(row)
		if links != nil && links[row] > 1 {
			f := inode{devices[row], inodes[row]}
			l := p.linked[f]
			if l == nil {
				l = &linkedFile{candidate: c, links: links[row], pool: pool}
				p.linked[f] = l
			}
			l.names = append(l.names, c.ref)
			continue
		}
		p.Matched.Count++
		p.Matched.Bytes += c.size
		p.Matched.Allocated += c.allocated
		if pool >= 0 && acts {
			p.freed[pool] += c.allocated
		}
		p.keep(m, c)
	}
	return nil
}

// keep stores a candidate of the rule. The caller holds p.mu.
func (p *RulePlan) keep(m *maker, c candidate) {
	switch {
	case p.Verb == Exclude:
	case p.weight != nil:
		if p.bound >= 0 && c.weight < p.floor {
			return
		}
		most := max(pruneAt, p.kept+p.kept/2)
		if p.bound >= 0 && len(p.ordered) == cap(p.ordered) {
			p.ordered = slices.Grow(p.ordered, min(len(p.ordered)+1, most-len(p.ordered)))
		}
		p.ordered = append(p.ordered, c)
		if p.bound >= 0 && len(p.ordered) >= most {
			p.prune(p.bound)
			p.kept = len(p.ordered)
		}
	default:
		if p.refs = append(p.refs, c.ref); m.options.Count && len(p.refs) >= m.options.Samples+1024 {
			slices.SortFunc(p.refs, ref.compare)
			p.refs = p.refs[:m.options.Samples]
		}
	}
}

// pruneAt is the number of candidates at which the unneeded ones are dropped.
const pruneAt = 1 << 16

// prune keeps only the heaviest candidates that free a number of bytes, in any order.
func (p *RulePlan) prune(bytes int64) (freed int64) {
	n, freed := heaviest(p.ordered, bytes)
	if n > 0 && n < len(p.ordered) {
		p.floor = p.ordered[0].weight
		for i := range p.ordered[:n] {
			p.floor = min(p.floor, p.ordered[i].weight)
		}
	}
	p.ordered = p.ordered[:n]
	return freed
}

// sort sorts the candidates, or only the samples if the plan just counts.
func (p *RulePlan) sort(o *Options) {
	sorted := p.ordered
	if o.Count {
		sorted = foremost(p.ordered, o.Samples)
	}
	slices.SortFunc(sorted, candidate.order)
}

// packRows adds directories to a PACK rule.
func (m *maker) packRows(b *batch, p *RulePlan, n int32, taken []int32) error {
	path, err := paths(b)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, row := range taken {
		dir := path.row(row)
		if !p.packs[string(dir)] {
			continue
		}
		sum := m.sums.of(dir)
		p.Matched.Count++
		p.Matched.Bytes += sum.bytes
		p.Matched.Allocated += sum.allocated
		p.refs = append(p.refs, ref{n, row})
	}
	return nil
}

// choose decides, rule by rule, on which files to act.
func (m *maker) choose() error {
	for _, p := range m.Rules {
		left := m.names(p)
		slices.SortFunc(p.refs, ref.compare)
		switch {
		case p.Verb == Exclude:
			continue
		case p.Verb == Pack:
			if err := m.holdBack(p); err != nil {
				return err
			}
			continue
		case p.rule.High > 0:
			if err := m.marks(p); err != nil {
				return err
			}
		default:
			p.Taken = Amount{p.Matched.Count - left.Count, p.Matched.Bytes - left.Bytes, p.Matched.Allocated - left.Allocated}
			p.sort(&m.options)
		}
		total := -p.copied
		for pool, n := range p.freed {
			m.Pools[pool].After -= n
			total += n
		}
		if p.To != "" {
			m.Pools[m.pool(p.To)].After += total
		}
	}
	return nil
}

// names handles files with several names: a rule acts on all of them or on none. It returns
// the files left out.
func (m *maker) names(p *RulePlan) (left Amount) {
	for _, l := range p.linked {
		m.Names += int64(len(l.names) - 1)
		p.Matched.Count++
		p.Matched.Bytes += l.size
		p.Matched.Allocated += l.allocated
		if int64(len(l.names)) != l.links && p.Verb != Delete {
			p.Left[leftNames]++
			left.Count++
			left.Bytes += l.size
			left.Allocated += l.allocated
			continue
		}
		slices.SortFunc(l.names, ref.compare)
		l.ref = l.names[0]
		if len(l.names) > 1 {
			p.others[l.ref] = l.names[1:]
		}
		if int64(len(l.names)) != l.links { // names are removed, but the bytes stay
			l.allocated = 0
		}
		if l.pool >= 0 && p.Verb != Exclude {
			p.freed[l.pool] += l.allocated
		}
		p.keep(m, l.candidate)
	}
	return left
}

// marks selects the files that bring a pool from above its upper mark to its lower one, and
// the files to premigrate.
func (m *maker) marks(p *RulePlan) error {
	pool := &m.Pools[m.pool(p.From)]
	low, high := mark(pool, p.rule.Low), p.rule.High
	clear(p.freed)
	full := fmt.Sprintf("pool %s holds %s of %s (%.1f %%)", p.From, units.Size(pool.Used), units.Size(pool.Capacity), pool.Percent(pool.Used))
	if !p.Active {
		p.Why = fmt.Sprintf("%s, not above %d %%: nothing to do", full, high)
		return nil
	}
	if pool.After != pool.Used {
		full += fmt.Sprintf(", and %s after the rules before", units.Size(pool.After))
	}
	need := max(0, pool.After-low)
	if p.Ahead != nil {
		n, _ := heaviest(p.ordered, max(need, pool.After-mark(pool, p.rule.Ahead)))
		p.ordered = p.ordered[:n]
	}
	next := p.ordered
	freed := p.prune(need)
	next = next[len(p.ordered):]
	p.sort(&m.options)
	for _, c := range p.ordered {
		p.Taken.Bytes += c.size
	}
	p.Taken.Count, p.Taken.Allocated = int64(len(p.ordered)), freed
	p.freed[m.pool(p.From)] = freed
	if p.Ahead != nil {
		if err := m.ahead(p, next); err != nil {
			return err
		}
	}
	p.Why = fmt.Sprintf("%s, above %d %%: %s must be freed to reach %d %%", full, high, units.Size(need), p.rule.Low)
	if freed < need {
		p.Why += fmt.Sprintf("; the rule can free only %s, which is %s too little", units.Size(freed), units.Size(need-freed))
	}
	enough := p.Matched.Count - p.Taken.Count - p.Left[leftNames]
	if p.Ahead != nil {
		p.Why += fmt.Sprintf("; then files are copied ahead, down to %d %%", p.rule.Ahead)
		enough -= int64(len(next))
	}
	if enough > 0 {
		p.Left[leftEnough] = enough
	}
	return nil
}

// holdBack leaves out directories in which an earlier rule acts on an entry.
func (m *maker) holdBack(p *RulePlan) error {
	kept := p.refs[:0]
	b, at := newBatch(m.table, nil, nil), int32(-1)
	for _, r := range p.refs {
		if r.group != at {
			b.g.Reset(int(r.group))
			at = r.group
		}
		path, err := paths(b)
		if err != nil {
			return err
		}
		dir := path.row(r.row)
		if m.held[string(dir)] > 0 {
			p.Left[leftEarlier]++
			continue
		}
		sum := m.sums.of(dir)
		p.Taken.Count++
		p.Taken.Bytes += sum.bytes
		p.Taken.Allocated += sum.allocated
		kept = append(kept, r)
	}
	p.refs = kept
	return nil
}

// taken returns the rows on which the rule acts, in order, at most limit of them.
func (p *RulePlan) taken(limit int) []ref {
	if p.weight == nil {
		return p.refs[:min(limit, len(p.refs))]
	}
	list := make([]ref, min(limit, len(p.ordered)))
	for i := range list {
		list[i] = p.ordered[i].ref
	}
	return list
}

func (p *RulePlan) sample(plan *Plan, most int) error {
	if !p.Active || p.Verb == Exclude {
		return nil
	}
	g := plan.table.NewGroup()
	for i, r := range p.taken(most) {
		g.Reset(int(r.group))
		var e files.Entry
		if err := g.Entry(r.row, &e); err != nil {
			return err
		}
		s := Sample{Path: e.Path(), Size: e.Size, To: plan.rules.destination(p.rule, e.Path())}
		if p.weight != nil {
			s.Weight = &p.ordered[i].weight
		}
		p.Samples = append(p.Samples, s)
	}
	if p.Ahead == nil {
		return nil
	}
	for _, c := range p.Ahead.candidates[:min(most, len(p.Ahead.candidates))] {
		g.Reset(int(c.group))
		var e files.Entry
		if err := g.Entry(c.row, &e); err != nil {
			return err
		}
		p.Ahead.Samples = append(p.Ahead.Samples, Sample{Path: e.Path(), Size: e.Size, Weight: &c.weight})
	}
	return nil
}

// destination returns the path to which a rule moves a file, or "" if it does not move
// files.
func (r *Rules) destination(rule *Rule, path string) string {
	if rule.To == "" {
		return ""
	}
	from := poolOf(r.Pools, path)
	if from == nil {
		return ""
	}
	return filepath.Join(r.Pool(rule.To).Dir, strings.TrimPrefix(path, from.Dir))
}
