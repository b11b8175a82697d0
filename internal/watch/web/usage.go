package web

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/units"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// usage is the sum of the resources that the tasks of one user and step requested and used.
// Times are in seconds, memory in bytes.
type usage struct {
	User    string `json:"user"`
	Step    string `json:"step"`
	Engine  string `json:"engine,omitempty"` // watch.ProcessEngine, or "" for tasks of premix
	Tasks   int    `json:"tasks"`            // finished
	Failed  int    `json:"failed"`
	Running int    `json:"running"`

	// The time of finished tasks from submission to end, in parts.
	Waited  float64 `json:"waited"`  // until they began
	Warming float64 `json:"warming"` // from their begin until they read their input, if known
	Working float64 `json:"working"` // on the processors that they held
	Idle    float64 `json:"idle"`    // the rest: waiting for data, or for fewer processors than they held

	WaitMedian float64 `json:"wait_median"`
	RunMedian  float64 `json:"run_median"`
	RunP95     float64 `json:"run_p95"`
	CPU        float64 `json:"cpu"`        // processor time
	Core       float64 `json:"core"`       // run time times cores held
	Efficiency float64 `json:"efficiency"` // CPU divided by Core

	Cores       float64 `json:"cores"`        // most that a task reserved
	MemoryAsked int64   `json:"memory_asked"` // most that a task requested; 0: no limit
	MemoryMost  int64   `json:"memory_most"`  // largest resident set
	MemoryP50   int64   `json:"memory_p50"`

	GPUTasks int     `json:"gpu_tasks"` // finished tasks that used a GPU, where that was seen
	GPUBusy  float64 `json:"gpu_busy"`  // part of their time in which their GPUs had work

	Advice []string `json:"advice"`
	Enough enough   `json:"enough"`

	gpu                     spread
	wait, run, used, memory spread
	cold                    int
}

// enough is a request that would have been enough for the tasks. A value is 0 where the
// request is right, or not known.
type enough struct {
	Cores  float64 `json:"cores"`
	Memory int64   `json:"memory"` // bytes
}

// fewToAdvise is the number of finished tasks below which there is no advice.
const fewToAdvise = 3

func usageOf(r *http.Request, db source) (any, error) {
	start, end, err := during(r, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	sums := make(usages)
	q := series.TaskQuery{Start: start, End: end, User: r.FormValue("user"), Step: r.FormValue("step"), Engine: r.FormValue("engine"), Fields: usageFields}
	if err := db.EachTask(r.Context(), q, sums.add); err != nil {
		return nil, err
	}
	if err := sums.addGPUs(r.Context(), db, q); err != nil {
		return nil, err
	}
	return map[string]any{"start": start, "end": end, "usage": sums.list()}, nil
}

// addGPUs adds the use of GPUs, of tasks that had one when it was sampled.
func (s usages) addGPUs(ctx context.Context, db source, q series.TaskQuery) error {
	const name = "task.gpu_busy"
	results, err := db.Query(ctx, series.Query{Name: name, Match: []watch.Label{{Key: "manager", Value: "premix"}}, Start: q.Start, End: q.End, Step: gpuStep, MaxPoints: mostGPUPoints})
	if err != nil || len(results) == 0 {
		return err
	}
	type mean struct{ sum, n float64 }
	of := make(map[string]mean)
	for _, r := range results {
		key := r.ID.Label("run") + "#" + r.ID.Label("task") // as in watch.Task
		m := of[key]
		for _, p := range r.Points {
			m.sum += p.Mean * float64(p.Count)
			m.n += float64(p.Count)
		}
		of[key] = m
	}
	q.Fields = series.TaskKey | series.TaskUser | series.TaskStep | series.TaskEngine | series.TaskEnd
	return db.EachTask(ctx, q, func(t watch.Task) {
		m, ok := of[t.Key]
		if u := s[usageKey{user: t.User, step: t.Step}]; ok && u != nil && m.n > 0 && !t.End.IsZero() {
			u.GPUTasks++
			u.gpu.add(m.sum / m.n)
		}
	})
}

// Bounds of the query of GPUs.
const (
	gpuStep       = time.Hour
	mostGPUPoints = 1_000_000
)

// usageFields are the fields that usages.add reads.
const usageFields = series.TaskUser | series.TaskStep | series.TaskEngine | series.TaskStart | series.TaskQueued | series.TaskBegan | series.TaskEnd | series.TaskOK |
	series.TaskCores | series.TaskMemory | series.TaskCPU | series.TaskMaxRSS | series.TaskWarmedIn

// usages holds the usage by user and step. Processes outside premix are apart from tasks.
type usages map[usageKey]*usage

type usageKey struct{ user, step, engine string }

func (s usages) add(t watch.Task) {
	key := usageKey{user: t.User, step: t.Step}
	if t.Engine == watch.ProcessEngine {
		key.engine = watch.ProcessEngine
	}
	u := s[key]
	if u == nil {
		// The strings of a task may share memory with larger ones.
		key.user, key.step = strings.Clone(t.User), strings.Clone(t.Step)
		u = &usage{User: key.user, Step: key.step, Engine: key.engine}
		s[key] = u
	}
	u.add(&t)
}

// list returns all usages, sorted by falling core time.
func (s usages) list() []*usage {
	list := []*usage{}
	for _, u := range s {
		list = append(list, u)
	}
	for _, u := range list {
		u.WaitMedian, u.RunMedian, u.RunP95 = u.wait.median(), u.run.median(), u.run.quantile(0.95)
		u.MemoryP50 = int64(u.memory.median())
		if u.Core > 0 {
			u.Efficiency = u.CPU / u.Core
		}
		if u.GPUTasks > 0 {
			u.GPUBusy = u.gpu.sum / float64(u.gpu.n)
		}
		u.Advice = u.advise()
	}
	slices.SortFunc(list, func(a, b *usage) int {
		return cmp.Or(cmp.Compare(b.Core, a.Core), cmp.Compare(a.User, b.User), cmp.Compare(a.Step, b.Step))
	})
	return list
}

func (u *usage) add(t *watch.Task) {
	u.Cores = max(u.Cores, t.Cores)
	u.MemoryAsked = max(u.MemoryAsked, t.Memory)
	if t.End.IsZero() {
		u.Running++
		return
	}
	u.Tasks++
	if !t.OK {
		u.Failed++
	}
	run := max(t.End.Sub(t.Began).Seconds(), 0)
	cores := max(t.Cores, 1)
	if !t.Queued.IsZero() {
		wait := max(t.Began.Sub(t.Queued).Seconds(), 0)
		u.Waited += wait
		u.wait.add(wait)
	}
	warming := min(t.WarmedIn, run)
	working := min(t.CPU/cores, run-warming)
	u.Warming += warming
	u.Working += working
	u.Idle += run - warming - working
	u.run.add(run)
	u.CPU += t.CPU
	u.Core += run * cores
	if t.Start == "cold" {
		u.cold++
	}
	if run > 0 {
		u.used.add(t.CPU / run)
	}
	if t.MaxRSS > 0 {
		u.MemoryMost = max(u.MemoryMost, t.MaxRSS)
		u.memory.add(float64(t.MaxRSS))
	}
}

// advise returns sentences that suggest better requests.
func (u *usage) advise() []string {
	list := []string{}
	if u.Tasks < fewToAdvise || u.Engine == watch.ProcessEngine {
		return list // a process outside premix has requested nothing
	}
	if u.MemoryAsked > 0 && u.memory.n >= fewToAdvise {
		// A quarter more than the largest so far, since the next sample may be larger.
		enough := roundMemory(1.25 * float64(u.MemoryMost))
		switch {
		case float64(u.MemoryMost) > 0.97*float64(u.MemoryAsked):
			u.Enough.Memory = enough
			list = append(list, fmt.Sprintf("used all of the %s it asked for: ask for %s", units.Size(u.MemoryAsked), units.Size(enough)))
		case 3*enough <= 2*u.MemoryAsked:
			u.Enough.Memory = enough
			list = append(list, fmt.Sprintf("asked for %s, used at most %s: ask for %s", units.Size(u.MemoryAsked), units.Size(u.MemoryMost), units.Size(enough)))
		}
	}
	if u.Cores >= 2 && u.used.n > 0 {
		used := u.used.quantile(0.95)
		if want := max(math.Ceil(used-0.2), 1); want <= 0.7*u.Cores {
			u.Enough.Cores = want
			list = append(list, fmt.Sprintf("held %s, used %s: ask for %.0f", count(u.Cores, "core"), trim(used), want))
		}
	}
	if u.GPUTasks >= fewToAdvise && u.GPUBusy < 0.15 {
		list = append(list, fmt.Sprintf("its GPUs had work %.0f %% of the time: run several tasks on one GPU, or none", 100*u.GPUBusy))
	}
	if run := u.Warming + u.Working + u.Idle; u.cold >= fewToAdvise && u.Warming > 0.2*run {
		list = append(list, fmt.Sprintf("%.0f %% of its time passes before it reads its input: premix prepare makes a snapshot of that", 100*u.Warming/run))
	}
	if u.RunMedian > 0 && u.WaitMedian > max(2*u.RunMedian, 60) {
		list = append(list, fmt.Sprintf("waits %s and runs %s: smaller requests start earlier", units.Seconds(u.WaitMedian), units.Seconds(u.RunMedian)))
	}
	if 10*u.Failed > u.Tasks {
		list = append(list, fmt.Sprintf("%d of %d failed: see why before running more", u.Failed, u.Tasks))
	}
	return list
}

// roundMemory rounds up to a round amount: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... times 256 MiB
// or more.
func roundMemory(v float64) int64 {
	for unit := int64(256 << 20); ; unit *= 2 {
		for _, n := range []int64{1, 2, 3} {
			if float64(n*unit) >= v {
				return n * unit
			}
		}
	}
}

func trim(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

func count(n float64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return trim(n) + " " + what + "s"
}
