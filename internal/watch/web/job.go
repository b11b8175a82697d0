package web

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/series"
)

// jobPoints is the number of points of a curve of a job.
const jobPoints = 200

// jobNode is the use of one machine by a job: of each quantity the mean, and the greatest
// mean of a step.
type jobNode struct {
	Node   string             `json:"node"`
	Series int                `json:"series"`
	First  time.Time          `json:"first"` // begin of the first and end of the last step with a sample
	Last   time.Time          `json:"last"`
	Mean   map[string]float64 `json:"mean"` // by name
	Most   map[string]float64 `json:"most"`
}

// jobCurve is one quantity of a job over time: the sum over its machines, or the mean where
// the unit is a ratio, and the machine with the greatest value.
type jobCurve struct {
	Name   string       `json:"name"`
	Unit   watch.Unit   `json:"unit"`
	Points [][3]float64 `json:"points"` // ms since 1970, sum or mean, greatest of one machine
}

// getJob answers with the use of the machines by a job of a batch system, all of its steps
// together, or by a run of premix.
func (s *Server) getJob(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "id", "manager", "run", "start", "end")
	if err != nil {
		return err
	}
	start, end, err := s.window(q)
	if err != nil {
		return err
	}
	id, manager, run := q.Get("id"), cmp.Or(q.Get("manager"), "slurm"), q.Get("run")
	if (id == "") == (run == "") {
		return bad("write id=4711 for a job of Slurm, or run=DIR for a run of premix", "a job has an id= or a run=")
	}
	query := series.Query{Name: string(watch.LayerTask) + ".*", Start: start, End: end, MaxPoints: s.c.Limits.Points, Step: jobStep(end.Sub(start))}
	if run != "" {
		query.Match = []watch.Label{{Key: "run", Value: run}}
	} else {
		query.Match = []watch.Label{{Key: "manager", Value: manager}}
		query.Pick = func(one watch.ID) bool {
			task := one.Label("task")
			return task == id || strings.HasPrefix(task, id+".")
		}
	}
	ctx, done, err := s.heavy(r)
	if err != nil {
		return err
	}
	defer done()
	results, err := s.c.DB.Query(ctx, query)
	if err != nil {
		return err
	}
	nodes, curves := jobOf(results)
	return marshalJSON(w, r, map[string]any{"start": start, "end": end, "step": query.Step.Seconds(), "nodes": nodes, "curves": curves})
}

// jobStep returns a step that gives at most jobPoints points: a whole number of the steps
// that roll-ups have, where there are some.
func jobStep(window time.Duration) time.Duration {
	step := max((window / jobPoints).Truncate(time.Second), time.Second)
	switch {
	case step > 20*time.Minute: // a week, for instance: the roll-ups of an hour are enough
		return (step + time.Hour - 1).Truncate(time.Hour)
	case step > 10*time.Second:
		return (step + time.Minute - 1).Truncate(time.Minute)
	}
	return step
}

// sums are the values of one quantity on one machine, by time.
type sums map[int64]float64

// jobOf sums up series by machine and by name. Series that are apart by other labels, such
// as the steps of a job, are added up, ratios averaged.
func jobOf(results []series.Result) ([]*jobNode, []*jobCurve) {
	type key struct{ node, name string }
	type cell struct {
		values sums
		parts  map[int64]int
	}
	cells := make(map[key]*cell)
	nodes := make(map[string]*jobNode)
	units := make(map[string]watch.Unit)
	for _, one := range results {
		// Pressure has two kinds of three resources, which are different quantities.
		name := one.ID.Name
		if resource := one.ID.Label("resource"); resource != "" {
			name += "." + resource + "." + one.ID.Label("kind")
		}
		units[name] = one.Unit
		k := key{one.ID.Label("node"), name}
		n := nodes[k.node]
		if n == nil {
			n = &jobNode{Node: k.node, Mean: make(map[string]float64), Most: make(map[string]float64)}
			nodes[k.node] = n
		}
		n.Series++
		c := cells[k]
		if c == nil {
			c = &cell{make(sums), make(map[int64]int)}
			cells[k] = c
		}
		for _, p := range one.Points {
			ms := p.Time.UnixMilli()
			c.values[ms] += p.Mean
			c.parts[ms]++
			if n.First.IsZero() || p.Time.Before(n.First) {
				n.First = p.Time
			}
			if last := p.Time.Add(one.Step); last.After(n.Last) {
				n.Last = last
			}
		}
	}
	curves := make(map[string]map[int64]*[3]float64)
	counts := make(map[string]map[int64]float64)
	for k, c := range cells {
		if curves[k.name] == nil {
			curves[k.name], counts[k.name] = make(map[int64]*[3]float64), make(map[int64]float64)
		}
		n := nodes[k.node]
		sum := 0.0
		for ms, v := range c.values {
			if units[k.name] == watch.Ratio {
				v /= float64(c.parts[ms])
			}
			sum += v
			n.Most[k.name] = max(n.Most[k.name], v)
			p := curves[k.name][ms]
			if p == nil {
				p = &[3]float64{float64(ms)}
				curves[k.name][ms] = p
			}
			p[1] += v
			p[2] = max(p[2], v)
			counts[k.name][ms]++
		}
		n.Mean[k.name] = sum / float64(max(len(c.values), 1))
	}
	list := []*jobCurve{}
	for name, points := range curves {
		c := &jobCurve{Name: name, Unit: units[name], Points: [][3]float64{}}
		for ms, p := range points {
			if c.Unit == watch.Ratio {
				p[1] /= counts[name][ms]
			}
			c.Points = append(c.Points, *p)
		}
		slices.SortFunc(c.Points, func(a, b [3]float64) int { return cmp.Compare(a[0], b[0]) })
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *jobCurve) int { return cmp.Compare(a.Name, b.Name) })
	all := []*jobNode{}
	for _, n := range nodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *jobNode) int { return cmp.Compare(a.Node, b.Node) })
	return all, list
}
