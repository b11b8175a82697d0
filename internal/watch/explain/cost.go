package explain

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// Kind is the kind of a cause that delayed tasks.
type Kind string

// The kinds.
const (
	Metadata  Kind = "metadata storm"
	Bandwidth Kind = "bandwidth hog"
	Full      Kind = "disk nearly full"
	Log       Kind = "runaway log"
	Memory    Kind = "memory thrash"
	Forks     Kind = "fork storm"
	Network   Kind = "network saturation"
	Mount     Kind = "hung file system"
	Processor Kind = "processor taken"
	Quota     Kind = "throttled by quota"
	Failing   Kind = "failing tasks"
	Unknown   Kind = "unknown" // the wait is measured, and nothing took more than usual
)

// Lost is the time that tasks lost in the window.
type Lost struct {
	Observed float64 `json:"observed_seconds"` // of tasks, in the window; 0: no task is observed
	Share    float64 `json:"share"`            // part of it that they lost
	Usual    float64 `json:"usual_share"`      // part that they lost before: the median of stretches as long as the window
	Causes   []Cause `json:"causes"`           // the parts of it, the greatest first
}

// Cause is a part of the time that tasks lost.
type Cause struct {
	Node   string  `json:"node"`
	Cause  string  `json:"cause"` // as in the series task.lost
	Thing  string  `json:"thing"` // mount point or cgroup; "" for others
	Share  float64 `json:"share"`
	Usual  float64 `json:"usual_share"`
	Before float64 `json:"greatest_share"` // before, in a stretch as long as the window
}

const (
	// leastShare is the smallest part of their time that tasks lose to a finding, beyond the
	// usual.
	leastShare = 0.05
	// beyond is how many times the usual spread a loss exceeds the usual loss.
	beyond = 1.5
	// leastBlocks is the number of stretches of the baseline that a comparison needs.
	leastBlocks = 3
	// fullAt is the part of a file system that is free when it is nearly full.
	fullAt = 0.02
	// smallRequest is the mean size of the writes of a metadata storm, in bytes.
	smallRequest = 48 << 10
	// movedPerCore is the number of bytes a second for each core at which processor time
	// goes into the network.
	movedPerCore = 200e6
	// storedPerCore is the number of bytes a second for each core at which the processor time
	// of a program goes into its reads and writes.
	storedPerCore = 10e6
	// leastWait is the part of their time that tasks wait for a disk that they use.
	leastWait = 0.01
	// manyForks is the number of processes a second of a fork storm.
	manyForks = 50
	// leastTaker is the part of the excess use at which a program is named.
	leastTaker = 0.1
)

// Series that only costs are made of.
const (
	lostName     = "task.lost"
	observedName = "task.observed"
	endedName    = "node.ended_cpu"
	userPrefix   = "node.program_"
)

// forCosts reports whether a series is read for costs, and not compared with its usual range.
func forCosts(name string) bool {
	return name == lostName || name == observedName || name == endedName || strings.HasPrefix(name, userPrefix)
}

// costs holds the curves of one machine, from which costs are computed. All have one value
// for each step since start; a step without a sample has the value 0.
type costs struct {
	*search
	node     string
	asked    map[string][]curve // by name
	mine     []watch.Task       // tasks of the machine
	step     time.Duration
	start    time.Time
	n        int     // number of steps
	from     int     // first step of the window
	blocks   [][]int // steps of the stretches of the baseline, each as many as the window has
	observed []float64
	lost     map[lossKey][]float64
}

type lossKey struct{ cause, device, thing string }

// curve is a series on the grid.
type curve struct {
	id    watch.ID
	unit  watch.Unit
	value []float64
	has   []bool
}

// ask returns the series of a name on the grid.
func (c *costs) ask(ctx context.Context, name string) ([]curve, error) {
	if list, ok := c.asked[name]; ok {
		return list, nil
	}
	results, err := c.src.Query(ctx, series.Query{Name: name, Start: c.start, End: c.Window.End, Step: c.step})
	if err != nil {
		return nil, fmt.Errorf("series %s: %w", name, err)
	}
	var list []curve
	for _, r := range results {
		if r.ID.Label("node") != c.node || c.except != nil && c.except(r.ID) {
			continue
		}
		v := curve{r.ID, r.Unit, make([]float64, c.n), make([]bool, c.n)}
		for _, p := range r.Points {
			if i := int(p.Time.Sub(c.start) / c.step); i >= 0 && i < c.n && p.Count > 0 && !math.IsNaN(p.Mean) {
				v.value[i], v.has[i] = p.Mean, true
			}
		}
		list = append(list, v)
	}
	c.asked[name] = list
	return list, nil
}

// newCosts reads the losses on one machine. It returns nil if no task was observed, or the
// baseline is too short.
func (s *search) newCosts(ctx context.Context, node string) (*costs, error) {
	c := &costs{search: s, node: node, asked: make(map[string][]curve), step: max(s.step.Round(time.Second), time.Second), lost: make(map[lossKey][]float64)}
	for _, t := range s.tasks {
		if t.Node == node || t.Node == "" {
			c.mine = append(c.mine, t)
		}
	}
	// Samples that are farther apart than a second make the steps longer.
	results, err := s.src.Query(ctx, series.Query{Name: observedName, Start: s.Baseline.Start, End: s.Window.End, Step: c.step})
	if err != nil {
		return nil, fmt.Errorf("series %s: %w", observedName, err)
	}
	for _, r := range results {
		if r.ID.Label("node") != node {
			continue
		}
		t := track{at: make([]float64, 0, len(r.Points))}
		for _, p := range r.Points {
			t.at = append(t.at, s.seconds(p.Time))
		}
		if gap := time.Duration(t.spacing() * float64(time.Second)); gap > c.step {
			c.step = gap.Round(time.Second)
		}
	}
	c.start = s.Baseline.Start.Truncate(c.step)
	c.n = int((s.Window.End.Sub(c.start) + c.step - 1) / c.step)
	c.from = int(s.Window.Start.Sub(c.start) / c.step)
	observed, err := c.ask(ctx, observedName)
	if err != nil {
		return nil, err
	}
	c.observed = make([]float64, c.n)
	for _, v := range observed {
		for i, x := range v.value {
			c.observed[i] += x
		}
	}
	if sum(c.observed[c.from:]) == 0 {
		return nil, nil
	}
	losses, err := c.ask(ctx, lostName)
	if err != nil {
		return nil, err
	}
	for _, v := range losses {
		key := lossKey{v.id.Label("cause"), v.id.Label("device"), v.id.Label("thing")}
		if c.lost[key] == nil {
			c.lost[key] = make([]float64, c.n)
		}
		for i, x := range v.value {
			c.lost[key][i] += x
		}
	}
	// Stretches are made of all steps that belong to the baseline, across the gaps between
	// them.
	var block []int
	for i := int(s.Baseline.End.Sub(c.start)/c.step) - 1; i >= 0; i-- {
		at := c.start.Add(time.Duration(i) * c.step)
		if c.observed[i] == 0 || c.explained(at) || c.explained(at.Add(c.step-1)) {
			continue
		}
		if block = append(block, i); len(block) == c.n-c.from {
			c.blocks = append(c.blocks, block)
			block = nil
		}
	}
	if len(c.blocks) < leastBlocks {
		return nil, nil
	}
	return c, nil
}

func sum(list []float64) (total float64) {
	for _, v := range list {
		total += v
	}
	return total
}

// share returns the part of the tasks' time in [from, to) that a curve has.
func (c *costs) share(v []float64, from, to int) float64 {
	return sum(v[from:to]) / max(sum(c.observed[from:to]), 1e-9)
}

// usual returns the median share of the stretches of the baseline, and the greatest.
func (c *costs) usual(v []float64) (median, most float64) {
	var list []float64
	for _, block := range c.blocks {
		part, of := 0.0, 0.0
		for _, i := range block {
			part += v[i]
			of += c.observed[i]
		}
		list = append(list, part/max(of, 1e-9))
	}
	slices.Sort(list)
	return quantile.Sorted(list, 0.5), list[len(list)-1]
}

// bound returns the smallest excess over the median that counts.
func bound(median, most float64) float64 { return max(leastShare, beyond*(most-median)) }

// stretch returns the steps of the window in which the most of an excess falls.
func (c *costs) stretch(v []float64, level float64) (from, to int) {
	best, run, begin := 0.0, 0.0, c.from
	from, to = c.from, c.n
	for i := c.from; i < c.n; i++ {
		if run <= 0 {
			run, begin = 0, i
		}
		if run += v[i] - level*c.observed[i]; run > best {
			best, from, to = run, begin, i+1
		}
	}
	return from, to
}

// more returns by how much the mean of a curve in [from, to) exceeds its median in the
// stretches of the baseline.
func (c *costs) more(v curve, from, to int) float64 {
	var before []float64
	for _, block := range c.blocks {
		total := 0.0
		for _, i := range block {
			total += v.value[i]
		}
		before = append(before, total/float64(len(block)))
	}
	slices.Sort(before)
	return sum(v.value[from:to])/float64(to-from) - quantile.Sorted(before, 0.5)
}

// charge adds the findings with a cost, of all machines with observed tasks.
func (s *search) charge(ctx context.Context) error {
	results, err := s.src.Query(ctx, series.Query{Name: observedName, Start: s.Window.Start, End: s.Window.End, Step: max(s.step.Round(time.Second), time.Second)})
	if err != nil {
		return fmt.Errorf("series %s: %w", observedName, err)
	}
	var nodes []string
	for _, r := range results {
		if n := r.ID.Label("node"); !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	var list []Finding
	known := false
	for _, node := range nodes {
		c, err := s.newCosts(ctx, node)
		if err != nil {
			return err
		}
		if c == nil {
			continue
		}
		known = true
		found, err := c.find(ctx)
		if err != nil {
			return err
		}
		for i := range found {
			c.describe(&found[i], len(nodes) > 1)
		}
		list = append(list, found...)
	}
	if !known {
		return nil
	}
	if s.Lost.Observed > 0 {
		s.Lost.Share /= s.Lost.Observed
		s.Lost.Usual /= s.Lost.Observed
	}
	slices.SortStableFunc(s.Lost.Causes, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Thing, b.Thing))
	})
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.CostSeconds, a.CostSeconds), cmp.Compare(a.Sentence, b.Sentence))
	})
	// Findings without a cost come after those with one, as notes.
	s.Notes = append(s.Findings, s.Notes...)
	slices.SortStableFunc(s.Notes, func(a, b Finding) int { return a.Began.Compare(b.Began) })
	s.Findings = append(make([]Finding, 0, len(list)), list...)
	return nil
}

// find returns the findings of one machine, and adds its loss. Shares in Lost are seconds
// until charge divides them.
func (c *costs) find(ctx context.Context) ([]Finding, error) {
	total := make([]float64, c.n)
	for _, v := range c.lost {
		for i, x := range v {
			total[i] += x
		}
	}
	median, _ := c.usual(total)
	seconds := sum(c.observed[c.from:]) * c.step.Seconds()
	c.Lost.Observed += seconds
	c.Lost.Share += c.share(total, c.from, c.n) * seconds
	c.Lost.Usual += median * seconds
	for key, v := range c.lost {
		median, most := c.usual(v)
		c.Lost.Causes = append(c.Lost.Causes, Cause{c.node, key.cause, key.thing, c.share(v, c.from, c.n), median, most})
	}
	var list []Finding
	// add splits a loss, if it exceeds the usual loss.
	add := func(key lossKey, v []float64) error {
		median, most := c.usual(v)
		excess := c.share(v, c.from, c.n) - median
		least := bound(median, most)
		if excess < leastShare {
			return nil
		}
		from, to := c.stretch(v, median+min(least, excess)/2)
		if excess < least {
			// The wait alone is not out of the ordinary. It counts if the use of the disk is.
			if is, err := c.overused(ctx, key, from, to); err != nil || !is {
				return err
			}
			least = leastShare
		}
		found, err := c.split(ctx, key, from, to)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.Kind == Unknown {
				continue // Lost has it
			}
			f.CostSeconds *= excess * seconds
			f.Usual, f.Seen = [2]float64{median, most}, c.share(v, from, to)
			f.Score = excess / least
			list = append(list, c.finish(f, key, from, to))
		}
		return nil
	}
	for key, v := range c.lost {
		if err := add(key, v); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		// Programs that answer tasks wait for processors, too. So all waits together may be
		// longer, and none alone by much.
		if err := add(lossKey{cause: "processor"}, total); err != nil {
			return nil, err
		}
	}
	failed, err := c.failed(ctx)
	return merge(append(list, failed...)), err
}

// finish sets the fields that all findings with a cost have.
func (c *costs) finish(f Finding, key lossKey, from, to int) Finding {
	labels := []string{"cause", key.cause, "node", c.node}
	if c.node == "" {
		labels = labels[:2]
	}
	if key.device != "" {
		labels = append(labels, "device", key.device)
	}
	if key.thing != "" {
		labels = append(labels, "thing", key.thing)
	}
	f.Series, f.Unit, f.Layer = watch.NewID(lostName, labels...), watch.Ratio, watch.LayerTask
	f.Began, f.Until = c.start.Add(time.Duration(from)*c.step), c.start.Add(time.Duration(to)*c.step)
	f.Quantity = string(f.Kind)
	if f.Thing == "" {
		f.Thing = "tasks"
	}
	f.waits = []string{key.cause}
	return f
}

// merge joins the losses of several kinds to one cause: a storm of small files takes the
// disk, and processor time as well. The greatest gives the series.
func merge(list []Finding) (merged []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.CostSeconds, a.CostSeconds), cmp.Compare(a.Series.String(), b.Series.String()))
	})
	for _, f := range list {
		i := slices.IndexFunc(merged, func(m Finding) bool { return m.Kind == f.Kind && m.Thing == f.Thing && m.By == f.By })
		if i < 0 {
			merged = append(merged, f)
			continue
		}
		m := &merged[i]
		m.CostSeconds += f.CostSeconds
		m.Began = m.Began.Add(min(0, f.Began.Sub(m.Began)))
		m.Until = m.Until.Add(max(0, f.Until.Sub(m.Until)))
		for _, w := range f.waits {
			if !slices.Contains(m.waits, w) {
				m.waits = append(m.waits, w)
			}
		}
	}
	return merged
}

// describe sets the sentence of a finding, which begins with the machine if there are
// several, and its tasks.
func (c *costs) describe(f *Finding, named bool) {
	var states []string
	for _, w := range f.waits {
		states = append(states, cmp.Or(waits[w], "waiting for "+w))
	}
	f.Sentence = fmt.Sprintf("%s: tasks lost %s to it, %s (%s of their time; before, %s)", sentenceOf(*f), amount(f.CostSeconds, watch.Seconds),
		strings.Join(states, " and "), amount(f.Seen, watch.Ratio), usual(f.Usual, watch.Ratio))
	if named {
		f.Sentence = c.node + ": " + f.Sentence
	}
	f.Tasks = affected(c.mine, f.Began, f.Until, c.Window.End)
}

// waits describes the state of a task for each cause.
var waits = map[string]string{
	"processor":  "ready to run while others ran",
	"quota":      "throttled",
	"disk":       "waiting for the disk",
	"memory":     "waiting for memory",
	"filesystem": "waiting for the file system",
	"network":    "waiting for the network",
	"failed":     "in tries that failed",
}

func sentenceOf(f Finding) string {
	text := string(f.Kind)
	if f.Thing != "tasks" {
		text += " on " + f.Thing
	}
	if f.By != "" {
		text += " by " + f.By
	}
	if f.evidence != "" {
		text += " (" + f.evidence + ")"
	}
	return text
}

// taker is a program that used more of a resource than before.
type taker struct {
	name  string // with its cgroup
	group string
	much  float64
}

// takers returns the programs that used more of a resource than before, the greatest first.
// Programs that are known to use another device than the given one are left out.
func (c *costs) takers(ctx context.Context, name, device string, from, to int, least float64) (list []taker, err error) {
	curves, err := c.ask(ctx, userPrefix+name)
	if err != nil {
		return nil, err
	}
	for _, v := range curves {
		if on := v.id.Label("device"); on != "" && device != "" && on != device {
			continue
		}
		if much := c.more(v, from, to); much > least {
			by := v.id.Label("program")
			group := v.id.Label("cgroup")
			if group != "" {
				by += " of cgroup " + group
			}
			list = append(list, taker{by, group, much})
		}
	}
	slices.SortStableFunc(list, func(a, b taker) int { return cmp.Compare(b.much, a.much) })
	return list, nil
}

// one returns by how much the only series of a name exceeds its usual mean.
func (c *costs) one(ctx context.Context, name string, match func(watch.ID) bool, from, to int) (float64, error) {
	curves, err := c.ask(ctx, name)
	if err != nil {
		return 0, err
	}
	much := 0.0
	for _, v := range curves {
		if match == nil || match(v.id) {
			much += c.more(v, from, to)
		}
	}
	return much, nil
}

// busiest returns the interface that moved more bytes than before.
func (c *costs) busiest(ctx context.Context, from, to int) (name string, much float64, err error) {
	sums := map[string]float64{}
	for _, direction := range []string{"network.received_bytes", "network.sent_bytes"} {
		curves, err := c.ask(ctx, direction)
		if err != nil {
			return "", 0, err
		}
		for _, v := range curves {
			i := v.id.Label("interface")
			sums[i] = max(sums[i], c.more(v, from, to))
		}
	}
	for i, v := range sums {
		if v > much || v == much && i < name {
			name, much = i, v
		}
	}
	return name, much, nil
}

// split returns one finding for each taker of a loss. CostSeconds is its part, all parts
// together being 1.
func (c *costs) split(ctx context.Context, key lossKey, from, to int) ([]Finding, error) {
	switch key.cause {
	case "filesystem":
		return []Finding{{Kind: Mount, Thing: "file system " + key.thing, CostSeconds: 1}}, nil
	case "quota":
		return []Finding{{Kind: Quota, Thing: "cgroup " + key.thing, CostSeconds: 1}}, nil
	case "network":
		name, much, err := c.busiest(ctx, from, to)
		if err != nil || much < floor(watch.BytesPerSecond) {
			return []Finding{{Kind: Unknown, CostSeconds: 1}}, err
		}
		return []Finding{{Kind: Network, Thing: "network " + name, CostSeconds: 1, evidence: amount(much, watch.BytesPerSecond) + " more than before"}}, nil
	case "memory":
		list, err := c.takers(ctx, "memory", "", from, to, floor(watch.Bytes))
		// Programs below the same limit as the tasks, if there are any.
		if below := slices.DeleteFunc(slices.Clone(list), func(t taker) bool { return t.group == "" || !strings.HasSuffix(key.thing, t.group) }); len(below) > 0 {
			list = below
		}
		return parts(list, Memory, "", func(t taker) string { return amount(t.much, watch.Bytes) + " more than before" }), err
	case "processor":
		return c.processor(ctx, from, to)
	}
	return c.disk(ctx, key, from, to)
}

// parts splits a loss between takers in proportion to their use.
func parts(list []taker, kind Kind, thing string, evidence func(taker) string) []Finding {
	if len(list) == 0 {
		return []Finding{{Kind: Unknown, Thing: thing, CostSeconds: 1}}
	}
	total := 0.0
	for _, t := range list {
		total += t.much
	}
	var found []Finding
	for _, t := range list {
		if part := t.much / total; part >= leastTaker {
			found = append(found, Finding{Kind: kind, Thing: thing, By: t.name, CostSeconds: part, evidence: evidence(t)})
		}
	}
	return found
}

// processor splits the time in which others ran: processes too short to be seen, which are
// a fork storm if they are many, and programs.
func (c *costs) processor(ctx context.Context, from, to int) ([]Finding, error) {
	list, err := c.takers(ctx, "cpu", "", from, to, 0.05)
	if err != nil {
		return nil, err
	}
	ended, err := c.one(ctx, endedName, nil, from, to)
	if err != nil {
		return nil, err
	}
	forks, err := c.one(ctx, "node.forks", nil, from, to)
	if err != nil {
		return nil, err
	}
	name, moved, err := c.busiest(ctx, from, to)
	if err != nil {
		return nil, err
	}
	total := 0.0
	for _, t := range list {
		total += t.much
	}
	cores := func(t taker) string { return amount(t.much, watch.Cores) + " more than before" }
	if total+max(ended, 0) > 0 && moved >= movedPerCore*(total+max(ended, 0)) {
		by := ""
		if len(list) > 0 {
			by = list[0].name
		}
		return []Finding{{Kind: Network, Thing: "network " + name, By: by, CostSeconds: 1, evidence: amount(moved, watch.BytesPerSecond) + " more than before"}}, nil
	}
	if forks < manyForks || ended <= 0.05 {
		found := parts(list, Processor, "", cores)
		return found, c.stores(ctx, found, list, from, to)
	}
	parents, err := c.takers(ctx, "forked_cpu", "", from, to, 0.05)
	if err != nil {
		return nil, err
	}
	storm := Finding{Kind: Forks, evidence: fmt.Sprintf("%.0f processes/s more than before", forks)}
	if len(parents) > 0 {
		storm.By = parents[0].name
		// The parent's own time goes into its forks.
		list = slices.DeleteFunc(list, func(t taker) bool {
			if t.name == storm.By {
				ended += t.much
				total -= t.much
			}
			return t.name == storm.By
		})
	}
	storm.CostSeconds = ended / (ended + total)
	found := []Finding{storm}
	rest := parts(list, Processor, "", cores)
	if err := c.stores(ctx, rest, list, from, to); err != nil {
		return nil, err
	}
	for _, f := range rest {
		if f.Kind != Unknown && f.CostSeconds*(1-storm.CostSeconds) >= leastTaker {
			f.CostSeconds *= 1 - storm.CostSeconds
			found = append(found, f)
		}
	}
	return found, nil
}

// fill returns the free part of a file system at the end of a stretch, and by how many bytes
// a second the free space shrank in it. ok is false if it is not known.
func (c *costs) fill(ctx context.Context, mount string, from, to int) (free, shrank float64, ok bool, err error) {
	available, err := c.ask(ctx, "mount.available")
	if err != nil {
		return 0, 0, false, err
	}
	size, err := c.ask(ctx, "mount.size")
	if err != nil {
		return 0, 0, false, err
	}
	last := func(list []curve, before int) (v float64, at int) {
		at = -1
		for _, s := range list {
			if s.id.Label("mount") != mount {
				continue
			}
			for i := range min(before, c.n) {
				if s.has[i] {
					v, at = s.value[i], i
				}
			}
		}
		return v, at
	}
	now, at := last(available, to+1)
	all, _ := last(size, to+1)
	if at < 0 || all == 0 {
		return 0, 0, false, nil
	}
	if before, was := last(available, from); was >= 0 && at > was {
		shrank = (before - now) / (float64(at-was) * c.step.Seconds())
	}
	return now / all, shrank, true, nil
}

// useOf returns the kind of the additional use of a disk, or "" if there is none to speak
// of.
func (c *costs) useOf(ctx context.Context, key lossKey, from, to int) (kind Kind, evidence string, err error) {
	of := func(id watch.ID) bool { return id.Label("device") == key.device }
	var much [4]float64
	for i, name := range []string{"disk.written_bytes", "disk.writes", "disk.read_bytes", "disk.flushes"} {
		if much[i], err = c.one(ctx, name, of, from, to); err != nil {
			return "", "", err
		}
	}
	written, writes, read, flushes := much[0], much[1], much[2], much[3]
	free, shrank, known, err := c.fill(ctx, key.thing, from, to)
	if err != nil {
		return "", "", err
	}
	switch {
	case known && free < fullAt:
		return Full, amount(free, watch.Ratio) + " free", nil
	case known && shrank > 1e6 && shrank > written/2:
		return Log, "it fills by " + amount(shrank, watch.BytesPerSecond), nil
	case writes+flushes > 5 && written < smallRequest*writes && read < written:
		return Metadata, fmt.Sprintf("%.0f small writes/s more than before", writes), nil
	case written+read < floor(watch.BytesPerSecond):
		return "", "", nil
	}
	return Bandwidth, amount(max(written, 0)+max(read, 0), watch.BytesPerSecond) + " more than before", nil
}

// overused reports whether a disk moved more than ever in the baseline, by the factor
// beyond.
func (c *costs) overused(ctx context.Context, key lossKey, from, to int) (bool, error) {
	if key.device == "" {
		return false, nil
	}
	for _, name := range []string{"disk.written_bytes", "disk.read_bytes", "disk.writes"} {
		curves, err := c.ask(ctx, name)
		if err != nil {
			return false, err
		}
		for _, v := range curves {
			if v.id.Label("device") != key.device {
				continue
			}
			most := floor(v.unit)
			for _, block := range c.blocks {
				total := 0.0
				for _, i := range block {
					total += v.value[i]
				}
				most = max(most, total/float64(len(block)))
			}
			if sum(v.value[from:to])/float64(to-from) > beyond*most {
				return true, nil
			}
		}
	}
	return false, nil
}

// thingOf describes the disk or file system of a loss.
func thingOf(key lossKey) string {
	if key.device == "" {
		return "file system " + key.thing
	}
	return "disk " + key.device
}

// disk splits waits for a local file system.
func (c *costs) disk(ctx context.Context, key lossKey, from, to int) ([]Finding, error) {
	kind, evidence, err := c.useOf(ctx, key, from, to)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		return []Finding{{Kind: Unknown, Thing: thingOf(key), CostSeconds: 1}}, nil
	}
	list, err := c.takers(ctx, "bytes", key.device, from, to, floor(watch.BytesPerSecond))
	if err != nil {
		return nil, err
	}
	found := parts(list, kind, thingOf(key), func(taker) string { return evidence })
	if found[0].Kind == Unknown {
		found[0].Kind, found[0].evidence = kind, evidence
	}
	return found, nil
}

// stores changes the findings about programs whose processor time goes into a disk that
// tasks use.
func (c *costs) stores(ctx context.Context, found []Finding, cores []taker, from, to int) error {
	// The disk that tasks wait for most comes first.
	var keys []lossKey
	for key, v := range c.lost {
		if key.cause == "disk" && c.share(v, c.from, c.n) >= leastWait {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b lossKey) int {
		return cmp.Or(cmp.Compare(c.share(c.lost[b], c.from, c.n), c.share(c.lost[a], c.from, c.n)), cmp.Compare(a.thing, b.thing))
	})
	for _, key := range keys {
		list, err := c.takers(ctx, "bytes", key.device, from, to, floor(watch.BytesPerSecond))
		if err != nil {
			return err
		}
		for i := range found {
			f := &found[i]
			named := func(t taker) bool { return t.name == f.By }
			b, p := slices.IndexFunc(list, named), slices.IndexFunc(cores, named)
			if f.Kind != Processor || b < 0 || p < 0 || list[b].much < storedPerCore*cores[p].much {
				continue
			}
			kind, evidence, err := c.useOf(ctx, key, from, to)
			if err != nil {
				return err
			}
			if kind != "" {
				f.Kind, f.Thing, f.evidence = kind, thingOf(key), evidence
			}
		}
	}
	return nil
}

// failed returns a finding if tries of tasks failed for more of their time than before.
func (c *costs) failed(ctx context.Context) ([]Finding, error) {
	bad, all := make([]float64, c.n), make([]float64, c.n)
	last := c.from
	for _, t := range c.mine {
		if t.Engine == watch.ProcessEngine {
			continue
		}
		end := t.End
		if end.IsZero() {
			end = c.Window.End
		}
		for i := max(int(t.Began.Sub(c.start)/c.step), 0); i < c.n; i++ {
			at := c.start.Add(time.Duration(i) * c.step)
			if !at.Before(end) {
				break
			}
			overlap := min(end.Sub(at), c.step) - max(t.Began.Sub(at), 0)
			all[i] += overlap.Seconds()
			if !t.OK && !t.End.IsZero() {
				bad[i] += overlap.Seconds()
				if i >= c.from {
					last = i
				}
			}
		}
	}
	kept := c.observed
	c.observed = all
	defer func() { c.observed = kept }()
	if sum(bad[c.from:]) == 0 {
		return nil, nil
	}
	median, most := c.usual(bad)
	least := bound(median, most)
	excess := c.share(bad, c.from, c.n) - median
	if excess < least {
		return nil, nil
	}
	from, to := c.stretch(bad, median+least/2)
	f := Finding{Kind: Failing, CostSeconds: excess * sum(all[c.from:]), Usual: [2]float64{median, most}, Seen: c.share(bad, from, to), Score: excess / least}
	available, err := c.ask(ctx, "mount.available")
	if err != nil {
		return nil, err
	}
	for _, v := range available {
		mount := v.id.Label("mount")
		free, _, ok, err := c.fill(ctx, mount, from, last+1)
		if err != nil {
			return nil, err
		}
		if ok && free < fullAt && c.more(v, from, to) < -floor(watch.Bytes) {
			f.Kind, f.Thing, f.evidence = Full, "file system "+mount, amount(free, watch.Ratio)+" free"
			break
		}
	}
	return []Finding{c.finish(f, lossKey{cause: "failed", thing: path.Clean("/" + strings.TrimPrefix(f.Thing, "file system "))}, from, to)}, nil
}
