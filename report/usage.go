package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"syscall"
	"text/tabwriter"

	"premix/engine"
	"premix/engine/queue"
	"premix/record"
)

// Usage is what tasks took of the cores that they held: of a run with a recipe, or of
// the tasks of a task directory. Times are seconds.
type Usage struct {
	Dir      string      `json:"dir"`
	Steps    []StepUsage `json:"steps"`     // by group; of a run with a recipe there is one, named as the recipe
	Sizes    []SizeUsage `json:"sizes"`     // by cores held
	RunTimes []TimeUsage `json:"run_times"` // by run time
}

// StepUsage sums up the tries of one step.
type StepUsage struct {
	Step  string `json:"step"`
	Tries int    `json:"tries"`
	OK    int    `json:"succeeded"`
	CoreUsage
	CPUTimes   Box `json:"cpu_of_a_try"`
	Seconds    Box `json:"seconds_of_a_try"`
	Efficiency Box `json:"efficiency_of_a_try"`
}

// CoreUsage compares CPU time with the core time held.
type CoreUsage struct {
	CPU        float64 `json:"cpu"`        // user and system
	Core       float64 `json:"core"`       // run time times cores held
	Efficiency float64 `json:"efficiency"` // the one divided by the other
}

func (u *CoreUsage) add(cpu, core float64) {
	u.CPU += cpu
	u.Core += core
	if u.Core > 0 {
		u.Efficiency = u.CPU / u.Core
	}
}

// Box is what a box plot draws.
type Box struct {
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
}

// SizeUsage sums up tries that held the same number of cores.
type SizeUsage struct {
	Cores int `json:"cores"`
	Tries int `json:"tries"`
	CoreUsage
}

// TimeUsage sums up tries whose run time is at least From and less than To.
type TimeUsage struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"` // 0: no end
	Tries int     `json:"tries"`
	CoreUsage
}

// runTimes are the borders of the table of run times.
var runTimes = []float64{0, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600}

// values are what boxes are drawn of. Half the precision is more than enough, and
// there may be millions.
type values struct{ cpu, seconds, efficiency []float32 }

func box(v []float32) Box {
	if len(v) == 0 {
		return Box{}
	}
	slices.Sort(v)
	at := func(q float64) float64 {
		x := q * float64(len(v)-1)
		i := int(x)
		if i+1 == len(v) {
			return float64(v[i])
		}
		return float64(v[i]) + (x-float64(i))*float64(v[i+1]-v[i])
	}
	return Box{at(0), at(0.25), at(0.5), at(0.75), at(1)}
}

// ReadUsage reads what the tasks in dir took. Where there are none it returns an
// *engine.DirError.
func ReadUsage(dir string) (*Usage, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if queue.IsDir(dir) {
		return usage(abs, queue.Records(abs), "", 1)
	}
	plan, err := engine.ReadPlan(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, &engine.DirError{Dir: dir, Reason: "holds no run", Way: "give the directory that was --out of premix run or premix task run"}
	}
	if err != nil {
		return nil, err
	}
	return usage(abs, engine.Records(dir), plan.Header.Recipe, plan.Header.Threads)
}

// usage sums records up. step and cores are those of records that do not say it.
func usage(dir string, records iter.Seq2[*record.Task, error], step string, cores int) (*Usage, error) {
	u := &Usage{Dir: dir, Steps: []StepUsage{}, Sizes: []SizeUsage{}, RunTimes: []TimeUsage{}}
	steps, sizes := make(map[string]int), make(map[int]int)
	var all []values
	for i, from := range runTimes {
		t := TimeUsage{From: from}
		if i+1 < len(runTimes) {
			t.To = runTimes[i+1]
		}
		u.RunTimes = append(u.RunTimes, t)
	}
	for rec, err := range records {
		if err != nil {
			return nil, err
		}
		name, held := rec.Group, rec.Cores
		if name == "" {
			name = step
		}
		if held == 0 {
			held = max(cores, 1)
		}
		cpu, core := rec.User+rec.System, rec.Seconds*float64(held)
		at, ok := steps[name]
		if !ok {
			at = len(u.Steps)
			steps[name] = at
			u.Steps, all = append(u.Steps, StepUsage{Step: name}), append(all, values{})
		}
		s, v := &u.Steps[at], &all[at]
		s.Tries++
		if rec.OK() {
			s.OK++
		}
		s.add(cpu, core)
		v.cpu, v.seconds = append(v.cpu, float32(cpu)), append(v.seconds, float32(rec.Seconds))
		if core > 0 {
			v.efficiency = append(v.efficiency, float32(cpu/core))
		}
		if at, ok = sizes[held]; !ok {
			at = len(u.Sizes)
			sizes[held] = at
			u.Sizes = append(u.Sizes, SizeUsage{Cores: held})
		}
		u.Sizes[at].Tries++
		u.Sizes[at].add(cpu, core)
		for i := len(runTimes) - 1; i >= 0; i-- {
			if rec.Seconds >= runTimes[i] {
				u.RunTimes[i].Tries++
				u.RunTimes[i].add(cpu, core)
				break
			}
		}
	}
	for i := range u.Steps {
		u.Steps[i].CPUTimes, u.Steps[i].Seconds, u.Steps[i].Efficiency = box(all[i].cpu), box(all[i].seconds), box(all[i].efficiency)
	}
	slices.SortFunc(u.Sizes, func(a, b SizeUsage) int { return a.Cores - b.Cores })
	return u, nil
}

// WriteJSON writes it as one object.
func (u *Usage) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(u)
}

// WriteText writes it for people.
func (u *Usage) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	percent := func(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }
	// Each table has columns of its own.
	end := func() error {
		if err := t.Flush(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w)
		return err
	}
	fmt.Fprintln(t, "step\ttries\tsucceeded\tCPU hours\tcore hours held\tefficiency\trun time: median\tq1\tq3\tlongest\t")
	for _, s := range u.Steps {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.3f\t%.3f\t%s\t%s\t%s\t%s\t%s\t\n", s.Step, s.Tries, s.OK, s.CPU/3600, s.Core/3600, percent(s.CoreUsage.Efficiency),
			Seconds(s.Seconds.Median), Seconds(s.Seconds.Q1), Seconds(s.Seconds.Q3), Seconds(s.Seconds.Max))
	}
	if err := end(); err != nil {
		return err
	}
	fmt.Fprintln(t, "cores\ttries\tCPU hours\tcore hours held\tefficiency\t")
	for _, s := range u.Sizes {
		fmt.Fprintf(t, "%d\t%d\t%.3f\t%.3f\t%s\t\n", s.Cores, s.Tries, s.CPU/3600, s.Core/3600, percent(s.Efficiency))
	}
	if err := end(); err != nil {
		return err
	}
	fmt.Fprintln(t, "run time from\tto\ttries\tcore hours held\tefficiency\t")
	for _, s := range u.RunTimes {
		if s.Tries == 0 {
			continue
		}
		to := "-"
		if s.To > 0 {
			to = Seconds(s.To)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%.3f\t%s\t\n", Seconds(s.From), to, s.Tries, s.Core/3600, percent(s.Efficiency))
	}
	return t.Flush()
}
