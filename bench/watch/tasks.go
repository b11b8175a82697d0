package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// dayTasks is the number of tasks of a day.
const dayTasks = 1_000_000

// measureTasks measures queries on a day of many tasks: the usage of users and steps (the
// dashboard's page of it), and the list of the longest tasks.
func measureTasks(ctx context.Context, b *bench) (err error) {
	dir := filepath.Join(b.dir, "tasks")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := series.Open(dir, series.Options{})
	if err != nil {
		return err
	}
	day := time.UnixMilli(begin)
	for i := range dayTasks {
		if i%100_000 == 0 { // premix does this by itself when there is time
			if err := db.CloseTables(); err != nil {
				return err
			}
		}
		began := day.Add(time.Duration(i) * (24 * time.Hour / dayTasks))
		db.Task(watch.Task{Key: fmt.Sprintf("/home/user/runs/cohort:%d.1", i), Name: fmt.Sprintf("sample-%07d", i), Run: "/home/user/runs/cohort",
			Step: fmt.Sprintf("step%d", i%7), User: fmt.Sprintf("user%d", i%5), Node: fmt.Sprintf("n%03d", i%40), Engine: "local", Start: "fork",
			Queued: began.Add(-time.Minute), Began: began, End: began.Add(time.Duration(1000+i*7919%9000) * time.Millisecond), OK: i%100 != 0, Cores: 1,
			Memory: 1 << 30, CPU: float64(i*7919%9000) / 1000, MaxRSS: int64(i%997) << 20, Read: int64(i) << 10, Written: int64(i), WarmedIn: 0.1})
	}
	if err := db.CloseTables(); err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	if db, err = series.Open(dir, series.Options{}); err != nil {
		return err
	}
	defer db.Close()
	q := series.TaskQuery{Start: day, End: day.Add(24 * time.Hour)}
	questions := []struct {
		name string
		ask  func() (int, error)
	}{
		{"usage", func() (n int, err error) {
			used := q
			used.Fields = series.TaskUser | series.TaskStep | series.TaskStart | series.TaskQueued | series.TaskBegan | series.TaskEnd | series.TaskOK |
				series.TaskCores | series.TaskMemory | series.TaskCPU | series.TaskMaxRSS | series.TaskWarmedIn
			err = db.EachTask(ctx, used, func(watch.Task) { n++ })
			return n, err
		}},
		{"whole", func() (n int, err error) {
			err = db.EachTask(ctx, q, func(watch.Task) { n++ })
			return n, err
		}},
		{"longest-2000", func() (int, error) {
			list := q
			list.Limit = 2000
			tasks, err := db.Tasks(ctx, list)
			return len(tasks), err
		}},
	}
	rows := [][]string{{"", "time", "processor time"}}
	for _, question := range questions {
		var took, cpu []float64
		for range queryReps {
			began, used := time.Now(), cpuTime()
			n, err := question.ask()
			if err != nil {
				return err
			}
			if n != dayTasks && n != 2000 {
				return fmt.Errorf("%s: %d tasks", question.name, n)
			}
			took, cpu = append(took, time.Since(began).Seconds()), append(cpu, (cpuTime()-used).Seconds())
		}
		t, c := quantile.Median(took), quantile.Median(cpu)
		rows = append(rows, []string{question.name, number(t, "s"), number(c, "s")})
		for _, f := range []figures.Figure{
			{Name: "watch/tasks/" + question.name, Value: t, Unit: "s", Note: "the goal is a second"},
			{Name: "watch/tasks/" + question.name + "/cpu", Value: c, Unit: "s"},
		} {
			if err := b.results.Add(f); err != nil {
				return err
			}
		}
	}
	b.results.Table(fmt.Sprintf("questions for a day of %d tasks", dayTasks), rows)
	return nil
}
