package explain

import (
	"cmp"
	"math"
	"slices"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/series"
)

// Names of the series that are computed here from the tasks themselves.
const (
	runningName = "task.running"
	ageName     = "task.age"
)

// causeOf returns the rank of a series among those with the same onset: causes come before
// symptoms.
func causeOf(id watch.ID) int {
	if id.Name == runningName {
		return 0
	}
	order := []watch.Layer{watch.LayerDisk, watch.LayerNetwork, watch.LayerVendor, watch.LayerMount, watch.LayerStore, watch.LayerScheduler, watch.LayerNode, watch.LayerTask}
	if i := slices.Index(order, id.Layer()); i >= 0 {
		return i + 1
	}
	return len(order) + 1
}

// bySteps combines the series of single tasks: the mean over the running tasks of a step,
// or of a run if no step is known.
func (s *search) bySteps(results []series.Result) []line {
	type sum struct {
		value float64
		n     int
	}
	type group struct {
		line
		buckets map[int64]*sum
	}
	groups := map[string]*group{}
	var order []*group
	for _, r := range results {
		id := watch.ID{Name: r.ID.Name}
		named := r.ID.Label("step") != ""
		for _, l := range r.ID.Labels {
			if l.Key != "task" && l.Key != "manager" && (l.Key != "run" || !named) {
				id.Labels = append(id.Labels, l)
			}
		}
		key := id.String()
		g := groups[key]
		if g == nil {
			g = &group{line: line{id: id, unit: r.Unit, step: id.Label("step"), run: id.Label("run")}, buckets: map[int64]*sum{}}
			groups[key] = g
			order = append(order, g)
		}
		for _, p := range r.Points {
			if p.Count == 0 || math.IsNaN(p.Mean) {
				continue
			}
			bucket := int64(p.Time.Sub(s.Baseline.Start) / s.step)
			b := g.buckets[bucket]
			if b == nil {
				b = &sum{}
				g.buckets[bucket] = b
			}
			b.value += p.Mean
			b.n++
		}
	}
	var list []line
	for _, g := range order {
		keys := make([]int64, 0, len(g.buckets))
		for k := range g.buckets {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			b := g.buckets[k]
			g.track.at = append(g.track.at, (time.Duration(k) * s.step).Seconds())
			g.track.value = append(g.track.value, b.value/float64(b.n))
		}
		list = append(list, g.line)
	}
	return list
}

// ofTasks returns two lines for each step: the number of running tasks, and their age. The
// age is a median, since one long task proves nothing.
func (s *search) ofTasks() []line {
	bySteps := map[string][]watch.Task{}
	for _, t := range s.tasks {
		bySteps[t.Step] = append(bySteps[t.Step], t)
	}
	steps := make([]string, 0, len(bySteps))
	for step := range bySteps {
		steps = append(steps, step)
	}
	slices.Sort(steps)
	n := int(s.Window.End.Sub(s.Baseline.Start) / s.step)
	var list []line
	for _, step := range steps {
		tasks := bySteps[step]
		slices.SortFunc(tasks, func(a, b watch.Task) int { return a.Began.Compare(b.Began) })
		running := line{id: watch.NewID(runningName, "step", step), unit: watch.Count, step: step}
		age := line{id: watch.NewID(ageName, "step", step), unit: watch.Seconds, step: step}
		var alive []watch.Task
		next := 0
		for i := range n {
			now := s.Baseline.Start.Add(time.Duration(i) * s.step)
			for ; next < len(tasks) && !tasks[next].Began.After(now); next++ {
				alive = append(alive, tasks[next])
			}
			alive = slices.DeleteFunc(alive, func(t watch.Task) bool { return !t.End.IsZero() && !t.End.After(now) })
			at := (time.Duration(i) * s.step).Seconds()
			running.track.at = append(running.track.at, at)
			running.track.value = append(running.track.value, float64(len(alive)))
			if len(alive) > 0 {
				median := alive[len(alive)/2] // they are sorted by their begin
				age.track.at = append(age.track.at, at)
				age.track.value = append(age.track.value, now.Sub(median.Began).Seconds())
			}
		}
		list = append(list, running, age)
	}
	return list
}

// affected returns the keys of the tasks of a step, or of a run, that ran during an
// excursion, longest first. If neither is known it returns all tasks.
func (s *search) affected(step, run string, from, to time.Time) []string {
	var list []watch.Task
	for _, t := range s.tasks {
		if (step == "" || t.Step == step) && (run == "" || t.Run == run) {
			list = append(list, t)
		}
	}
	return affected(list, from, to, s.Window.End)
}

// affected returns the keys of the tasks that ran from one time to another, longest first.
// Tasks that run still have lasted until now.
func affected(tasks []watch.Task, from, to, now time.Time) []string {
	var list []watch.Task
	for _, t := range tasks {
		if t.Began.Before(to) && (t.End.IsZero() || t.End.After(from)) {
			list = append(list, t)
		}
	}
	length := func(t watch.Task) time.Duration {
		if t.End.IsZero() {
			return now.Sub(t.Began)
		}
		return t.End.Sub(t.Began)
	}
	slices.SortFunc(list, func(a, b watch.Task) int {
		return cmp.Or(cmp.Compare(length(b), length(a)), cmp.Compare(a.Key, b.Key))
	})
	var keys []string
	for _, t := range list[:min(len(list), mostAffected)] {
		keys = append(keys, t.Key)
	}
	return keys
}

// mostAffected is the highest number of tasks that a finding names.
const mostAffected = 20
