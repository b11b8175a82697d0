package results

import (
	"fmt"
	"iter"
	"path/filepath"
	"time"

	"premix/internal/kit/owner"
	"premix/internal/record"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// Job is a row of jobs.parquet: a job under a policy. Times are seconds.
type Job struct {
	Policy    string    `parquet:"policy,dict"`
	Job       int64     `parquet:"job"` // number in the trace
	User      string    `parquet:"user,dict"`
	Account   string    `parquet:"account,dict"`
	Partition string    `parquet:"partition,dict"`
	QOS       string    `parquet:"qos,dict"`
	Cores     int32     `parquet:"cores"`
	Submit    float64   `parquet:"submit"` // since the begin of the trace
	Eligible  float64   `parquet:"eligible"`
	Start     float64   `parquet:"start"` // -1: the machine refused it
	End       float64   `parquet:"end"`
	Wait      float64   `parquet:"wait"`
	Run       float64   `parquet:"run"`
	Asked     float64   `parquet:"asked"` // -1: the user did not ask for a time
	Slowdown  float64   `parquet:"bounded_slowdown"`
	Charge    float64   `parquet:"charge"`
	Submitted time.Time `parquet:"submitted,timestamp(millisecond)"`
}

// Sum is a row of policies.parquet.
type Sum struct {
	Policy         string  `parquet:"policy" json:"policy"`
	Jobs           int     `parquet:"jobs" json:"jobs"`
	Refused        int     `parquet:"refused" json:"refused"`
	WaitMean       float64 `parquet:"wait_mean" json:"wait_mean"`
	WaitMedian     float64 `parquet:"wait_median" json:"wait_median"`
	WaitP95        float64 `parquet:"wait_p95" json:"wait_p95"`
	TurnaroundMean float64 `parquet:"turnaround_mean" json:"turnaround_mean"`
	SlowdownMean   float64 `parquet:"bounded_slowdown_mean" json:"bounded_slowdown_mean"`
	SlowdownP95    float64 `parquet:"bounded_slowdown_p95" json:"bounded_slowdown_p95"`
	Makespan       float64 `parquet:"makespan" json:"makespan"`
	Utilisation    float64 `parquet:"utilisation" json:"utilisation"`
	Fairness       float64 `parquet:"fairness" json:"fairness"`
	CoreHours      float64 `parquet:"core_hours" json:"core_hours"`
	Charge         float64 `parquet:"charge" json:"charge"`
}

// Point is a row of curves.parquet.
type Point struct {
	Policy      string  `parquet:"policy,dict"`
	Time        float64 `parquet:"time"` // middle of the stretch, seconds since the first job was eligible
	Utilisation float64 `parquet:"utilisation"`
	Waiting     float64 `parquet:"waiting"` // jobs
}

// WriteParquet writes jobs.parquet, policies.parquet and curves.parquet into a directory.
func (r *Results) WriteParquet(dir string, charge Charger) error {
	if err := owner.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := record.ToParquet(filepath.Join(dir, "jobs.parquet"), r.jobs(charge)); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	sums := func(yield func(*Sum, error) bool) {
		for _, p := range r.Policies {
			if !yield(&Sum{p.Name, p.Jobs, p.Refused, p.Wait.Mean, p.Wait.Median, p.Wait.P95, p.Turnaround.Mean, p.Slowdown.Mean, p.Slowdown.P95,
				p.Makespan, p.Utilisation, p.Fairness, p.CoreHours, p.Charge}, nil) {
				return
			}
		}
	}
	if err := record.ToParquet(filepath.Join(dir, "policies.parquet"), sums); err != nil {
		return fmt.Errorf("policies: %w", err)
	}
	points := func(yield func(*Point, error) bool) {
		for _, p := range r.Policies {
			for i := range p.Busy.Values {
				if !yield(&Point{p.Name, (float64(i) + 0.5) * p.Busy.Step, p.Busy.Values[i], p.Queue.Values[i]}, nil) {
					return
				}
			}
		}
	}
	if err := record.ToParquet(filepath.Join(dir, "curves.parquet"), points); err != nil {
		return fmt.Errorf("curves: %w", err)
	}
	return nil
}

func (r *Results) jobs(charge Charger) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		for _, s := range r.schedules {
			for i := range s.Start {
				if !yield(r.job(s, i, charge), nil) {
					return
				}
			}
		}
	}
}

func (r *Results) job(s *simulate.Schedule, i int, charge Charger) *Job {
	t := r.t
	j := &Job{Policy: s.Policy, Job: t.Number[i], User: t.Users.Names[t.User[i]], Account: t.Accounts.Names[t.Account[i]], Partition: t.Partitions.Names[t.Partition[i]],
		Cores: t.Cores[i], Submit: t.Submit[i].Seconds(), Eligible: s.Eligible[i].Seconds(), Start: -1, End: -1, Run: t.Run[i].Seconds(), Asked: -1, Submitted: t.Moment(t.Submit[i])}
	if len(t.QOSs.Names) > 0 {
		j.QOS = t.QOSs.Names[t.QOSOf(i)]
	}
	if t.Asked[i] != trace.Unknown {
		j.Asked = t.Asked[i].Seconds()
	}
	if s.Start[i] != trace.Unknown {
		j.Start, j.End, j.Wait, j.Run = s.Start[i].Seconds(), s.End[i].Seconds(), s.Wait(i).Seconds(), s.Ran(i).Seconds()
		j.Slowdown = slowdown(s, i)
		j.Charge = j.Run * float64(j.Cores) / 3600 * charge(int32(i))
	}
	return j
}
