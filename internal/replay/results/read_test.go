package results

import (
	"path/filepath"
	"testing"
)

// ReadTables returns the values that were written, as far as pages draw them.
func TestReadTables(t *testing.T) {
	r, _, tr := worked(t)
	dir := filepath.Join(t.TempDir(), "tables")
	if IsTables(dir) {
		t.Error("a directory that is not there has tables")
	}
	if err := r.WriteParquet(dir, func(int32) float64 { return 1 }); err != nil {
		t.Fatal(err)
	}
	if !IsTables(dir) {
		t.Fatal("no tables are seen")
	}
	tables, err := ReadTables(dir)
	if err != nil {
		t.Fatal(err)
	}
	if tables.Name != "tables" || len(tables.Policies) != len(r.Policies) {
		t.Fatalf("read %+v", tables)
	}
	for i, d := range tables.Policies {
		p, s := r.Policies[i], r.schedules[i]
		if d.Policy != p.Name || !near(d.WaitMean, p.Wait.Mean) || len(d.Time) != len(p.Busy.Values) || len(d.Waits) != 101 || !near(d.Waits[100], p.Wait.Max) {
			t.Errorf("policy %s came back as %+v", p.Name, d.Sum)
		}
		if len(d.Gantt) != p.Jobs {
			t.Fatalf("%d of %d jobs are drawn", len(d.Gantt), p.Jobs)
		}
		for _, b := range d.Gantt {
			k := int(b.Job) - 1
			if !near(b.End-b.Start, s.Ran(k).Seconds()) || b.Cores != tr.Cores[k] || b.Start < 0 {
				t.Errorf("job %+v", b)
			}
		}
	}
}

func TestClosest(t *testing.T) {
	var list []Bar
	for i := range 2 * shownJobs {
		list = append(list, Bar{Job: int64(i), Start: float64(i), End: float64(i) + 1})
	}
	for _, b := range closest(list, shownJobs) {
		if b.Job < shownJobs/2-1 || b.Job > 3*shownJobs/2+1 {
			t.Fatalf("job %d is not near", b.Job)
		}
	}
}
