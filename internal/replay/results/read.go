package results

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"premix/internal/record"
)

// Tables are the tables that WriteParquet writes, summarized for drawing.
type Tables struct {
	Name     string          `json:"name"`
	Policies []PolicyFigures `json:"policies"`
}

// PolicyFigures is the data of one policy.
type PolicyFigures struct {
	Sum
	Time        []float64 `json:"time"` // of the curves, seconds since the first job was eligible
	Utilisation []float64 `json:"utilisation_over_time"`
	Waiting     []float64 `json:"waiting_over_time"` // jobs
	// Waits are the waiting times, in seconds, that 0, 1, ..., 100 % of the jobs do not exceed.
	Waits []float64 `json:"waits"`
	// Gantt are the jobs around the moment at which most jobs waited under any policy.
	Gantt []Bar `json:"gantt"`
}

// Bar is a job in a Gantt chart. Times are seconds, as in the curves.
type Bar struct {
	Job   int64   `json:"job"`
	User  string  `json:"user"`
	Cores int32   `json:"cores"`
	Start float64 `json:"start"`
	End   float64 `json:"end"`
	Wait  float64 `json:"wait"`
}

const (
	jobsFile     = "jobs.parquet"
	policiesFile = "policies.parquet"
	curvesFile   = "curves.parquet"
)

// IsTables reports whether a directory has the tables that WriteParquet writes.
func IsTables(dir string) bool {
	for _, name := range []string{jobsFile, policiesFile, curvesFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// ReadSums reads one row for each policy, and the time at which they were written.
func ReadSums(dir string) ([]Sum, time.Time, error) {
	path := filepath.Join(dir, policiesFile)
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	var sums []Sum
	err = record.FromParquet(path, func(s *Sum) error {
		sums = append(sums, *s)
		return nil
	})
	return sums, info.ModTime(), err
}

// ReadTables reads tables of any size: it keeps only the jobs to draw, and the waiting time
// of each job.
func ReadTables(dir string) (*Tables, error) {
	sums, _, err := ReadSums(dir)
	if err != nil {
		return nil, err
	}
	t := &Tables{Name: filepath.Base(dir)}
	of := map[string]*PolicyFigures{}
	for _, s := range sums {
		t.Policies = append(t.Policies, PolicyFigures{Sum: s, Gantt: []Bar{}})
	}
	for i := range t.Policies {
		of[t.Policies[i].Policy] = &t.Policies[i]
	}
	busiest, most := 0.0, -1.0
	err = record.FromParquet(filepath.Join(dir, curvesFile), func(p *Point) error {
		d := of[p.Policy]
		if d == nil {
			return fmt.Errorf("%s: policy %s is not in %s", curvesFile, p.Policy, policiesFile)
		}
		d.Time = append(d.Time, p.Time)
		d.Utilisation = append(d.Utilisation, p.Utilisation)
		d.Waiting = append(d.Waiting, p.Waiting)
		if p.Waiting > most {
			busiest, most = p.Time, p.Waiting
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Times of jobs count from the begin of the trace; those of curves from the moment at
	// which the first job was eligible.
	first := 0.0
	began := false
	waits := map[string][]float64{}
	path := filepath.Join(dir, jobsFile)
	if err := record.FromParquet(path, func(j *Job) error {
		if j.Start < 0 {
			return nil // refused
		}
		if !began || j.Eligible < first {
			first, began = j.Eligible, true
		}
		waits[j.Policy] = append(waits[j.Policy], j.Wait)
		return nil
	}); err != nil {
		return nil, err
	}
	nearest := map[string][]Bar{}
	if err := record.FromParquet(path, func(j *Job) error {
		if j.Start < 0 {
			return nil
		}
		list := append(nearest[j.Policy], Bar{j.Job, j.User, j.Cores, j.Start - first, j.End - first, j.Wait})
		if len(list) > 4*shownJobs {
			list = closest(list, busiest)
		}
		nearest[j.Policy] = list
		return nil
	}); err != nil {
		return nil, err
	}
	for i := range t.Policies {
		d := &t.Policies[i]
		list := waits[d.Policy]
		slices.Sort(list)
		for k := 0; k <= 100 && len(list) > 0; k++ {
			d.Waits = append(d.Waits, list[k*(len(list)-1)/100])
		}
		d.Gantt = append(d.Gantt, closest(nearest[d.Policy], busiest)...)
		slices.SortFunc(d.Gantt, func(a, b Bar) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Job, b.Job)) })
	}
	return t, nil
}

// closest returns the jobs nearest to a moment, first those that run at that time.
func closest(list []Bar, at float64) []Bar {
	distance := func(b Bar) float64 { return max(b.Start-at, at-b.End, 0) }
	slices.SortStableFunc(list, func(a, b Bar) int { return cmp.Compare(distance(a), distance(b)) })
	return list[:min(len(list), shownJobs)]
}
