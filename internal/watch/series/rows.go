package series

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"strings"
	"time"

	"premix/internal/watch"
)

// TaskRow is a row of the tasks: the last report of a task.
type TaskRow struct {
	Key      string  `parquet:"key"`
	Name     string  `parquet:"name,dict"`
	Run      string  `parquet:"run,dict"`
	Step     string  `parquet:"step,dict"`
	User     string  `parquet:"user,dict"`
	Node     string  `parquet:"node,dict"`
	Engine   string  `parquet:"engine,dict"`
	Start    string  `parquet:"start,dict"`
	Reason   string  `parquet:"reason,dict"`
	Queued   int64   `parquet:"queued,delta,timestamp(millisecond)"` // 0: unknown
	Began    int64   `parquet:"began,delta,timestamp(millisecond)"`
	End      int64   `parquet:"end,delta,timestamp(millisecond)"` // 0: unknown
	Exit     int64   `parquet:"exit,dict"`
	OK       bool    `parquet:"ok"`
	Cores    float64 `parquet:"cores"`
	Memory   int64   `parquet:"memory"`  // requested bytes
	CPU      float64 `parquet:"cpu"`     // seconds
	MaxRSS   int64   `parquet:"max_rss"` // bytes
	Read     int64   `parquet:"read"`    // bytes
	Written  int64   `parquet:"written"` // bytes
	WarmedIn float64 `parquet:"warmed_in"`
}

// EventRow is a row of the events.
type EventRow struct {
	Time  int64  `parquet:"time,delta,timestamp(millisecond)"`
	Node  string `parquet:"node,dict"`
	Layer string `parquet:"layer,dict"`
	Kind  string `parquet:"kind,dict"`
	Text  string `parquet:"text"`
}

// The columns that hold the begin and the end of a row.
const (
	colBegan     = 10
	colEnd       = 11
	colEventTime = 0
)

// millis returns a time as it is stored in files; 0 if it is zero.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

var taskKind = kind[watch.Task, TaskRow]{
	key:     func(t *watch.Task) string { return t.Key },
	running: func(t *watch.Task) bool { return t.End.IsZero() },
	span: func(t *watch.Task) (from, to int64) {
		if t.End.IsZero() {
			return millis(t.Began), maxTime
		}
		return millis(t.Began), millis(t.End)
	},
	row: func(t *watch.Task) TaskRow {
		return TaskRow{t.Key, t.Name, t.Run, t.Step, t.User, t.Node, t.Engine, t.Start, t.Reason,
			millis(t.Queued), millis(t.Began), millis(t.End), int64(t.Exit), t.OK, t.Cores, t.Memory, t.CPU, t.MaxRSS, t.Read, t.Written, t.WarmedIn}
	},
	fields: []field[watch.Task]{
		textField(func(t *watch.Task, v string) { t.Key = v }),
		textField(func(t *watch.Task, v string) { t.Name = v }),
		textField(func(t *watch.Task, v string) { t.Run = v }),
		textField(func(t *watch.Task, v string) { t.Step = v }),
		textField(func(t *watch.Task, v string) { t.User = v }),
		textField(func(t *watch.Task, v string) { t.Node = v }),
		textField(func(t *watch.Task, v string) { t.Engine = v }),
		textField(func(t *watch.Task, v string) { t.Start = v }),
		textField(func(t *watch.Task, v string) { t.Reason = v }),
		timeField(func(t *watch.Task, v time.Time) { t.Queued = v }),
		timeField(func(t *watch.Task, v time.Time) { t.Began = v }),
		timeField(func(t *watch.Task, v time.Time) { t.End = v }),
		intField(func(t *watch.Task, v int64) { t.Exit = int(v) }),
		boolField(func(t *watch.Task, v bool) { t.OK = v }),
		floatField(func(t *watch.Task, v float64) { t.Cores = v }),
		intField(func(t *watch.Task, v int64) { t.Memory = v }),
		floatField(func(t *watch.Task, v float64) { t.CPU = v }),
		intField(func(t *watch.Task, v int64) { t.MaxRSS = v }),
		intField(func(t *watch.Task, v int64) { t.Read = v }),
		intField(func(t *watch.Task, v int64) { t.Written = v }),
		floatField(func(t *watch.Task, v float64) { t.WarmedIn = v }),
	},
	keyed: columns(TaskKey),
	from:  colBegan, to: colEnd,
}

var eventKind = kind[watch.Event, EventRow]{
	key:     func(*watch.Event) string { return "" },
	running: func(*watch.Event) bool { return false },
	span:    func(e *watch.Event) (from, to int64) { return millis(e.Time), millis(e.Time) },
	row: func(e *watch.Event) EventRow {
		return EventRow{millis(e.Time), e.Node, string(e.Layer), e.Kind, e.Text}
	},
	fields: []field[watch.Event]{
		timeField(func(e *watch.Event, v time.Time) { e.Time = v }),
		textField(func(e *watch.Event, v string) { e.Node = v }),
		textField(func(e *watch.Event, v string) { e.Layer = watch.Layer(v) }),
		textField(func(e *watch.Event, v string) { e.Kind = v }),
		textField(func(e *watch.Event, v string) { e.Text = v }),
	},
	from: colEventTime, to: colEventTime,
}

// TaskFields is a set of fields of tasks. Fields that are not requested may be left empty,
// which saves time if there are many tasks.
type TaskFields columns

// The fields of tasks, one for each column of TaskRow.
const (
	TaskKey TaskFields = 1 << iota
	TaskName
	TaskRun
	TaskStep
	TaskUser
	TaskNode
	TaskEngine
	TaskStart
	TaskReason
	TaskQueued
	TaskBegan
	TaskEnd
	TaskExit
	TaskOK
	TaskCores
	TaskMemory
	TaskCPU
	TaskMaxRSS
	TaskRead
	TaskWritten
	TaskWarmedIn
)

// TaskQuery selects tasks.
type TaskQuery struct {
	Start, End      time.Time // the task existed at some time from Start on and before End
	User, Run, Step string    // "" is any
	Engine          string    // "" is any; with a leading "-", all others
	State           TaskState // "" is any
	Words           []string  // each occurs in the task's name, step, run or user, in upper or lower case
	// Limit is the highest number of tasks to return; 0 returns all. If there are more, the
	// ones that last longest within the time are returned, or the ones that Waited.
	Limit  int
	Waited bool       // Limit keeps the tasks that waited longest until they began
	Fields TaskFields // 0 is all
}

// TaskState is the state of a task.
type TaskState string

// The states.
const (
	TaskRunning   TaskState = "running"
	TaskSucceeded TaskState = "succeeded"
	TaskFailed    TaskState = "failed"
)

// StateOf returns the state of a task.
func StateOf(t *watch.Task) TaskState {
	switch {
	case t.End.IsZero():
		return TaskRunning
	case t.OK:
		return TaskSucceeded
	}
	return TaskFailed
}

// Tasks returns the tasks that overlap a time, sorted by their begin, each as last
// reported. If it returns Limit tasks, there may be more.
func (db *DB) Tasks(ctx context.Context, q TaskQuery) ([]watch.Task, error) {
	best := &longest{q: q}
	pick := func(t *watch.Task) bool {
		return q.Limit <= 0 || len(best.tasks) < q.Limit || q.weight(t) > q.weight(&best.tasks[0])
	}
	err := db.eachTask(ctx, q, pick, func(t watch.Task) {
		// These strings share memory with tasks that are not returned.
		t.Key, t.Name = strings.Clone(t.Key), strings.Clone(t.Name)
		if q.Limit <= 0 {
			best.tasks = append(best.tasks, t)
			return
		}
		if len(best.tasks) < q.Limit {
			heap.Push(best, t)
		} else if q.weight(&t) > q.weight(&best.tasks[0]) {
			best.tasks[0] = t
			heap.Fix(best, 0)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(best.tasks, func(a, b watch.Task) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.Key, b.Key))
	})
	return best.tasks, nil
}

// EachTask calls f for the tasks that overlap a time, in no order, each as last reported.
// Their strings share memory with other tasks: clone those that are kept.
func (db *DB) EachTask(ctx context.Context, q TaskQuery, f func(watch.Task)) error {
	return db.eachTask(ctx, q, func(*watch.Task) bool { return true }, f)
}

// eachTask is EachTask for the tasks for which pick returns true. pick sees only the span
// of a task.
func (db *DB) eachTask(ctx context.Context, q TaskQuery, pick func(*watch.Task) bool, f func(watch.Task)) error {
	want := wanted[watch.Task]{columns: columns(q.Fields), pick: func(t *watch.Task) bool {
		return (q.User == "" || q.User == t.User) && (q.Run == "" || q.Run == t.Run) && (q.Step == "" || q.Step == t.Step) && q.ofEngine(t) &&
			(q.State == "" || q.State == StateOf(t)) && q.hasWords(t) && pick(t)
	}}
	if q.Fields == 0 {
		want.columns = allColumns
	}
	for _, asked := range []struct {
		value string
		field TaskFields
	}{{q.User, TaskUser}, {q.Run, TaskRun}, {q.Step, TaskStep}, {q.Engine, TaskEngine},
		{string(q.State), TaskOK | TaskEnd}, {strings.Join(q.Words, ""), TaskName | TaskStep | TaskRun | TaskUser}} {
		if asked.value != "" {
			want.picked |= columns(asked.field)
		}
	}
	if q.Waited {
		want.picked |= columns(TaskQueued)
	}
	err := db.tasks.visit(q.Start.UnixMilli(), q.End.UnixMilli(), want, func(t *watch.Task) bool {
		f(*t)
		return ctx.Err() == nil
	})
	return cmp.Or(err, ctx.Err())
}

func (q *TaskQuery) ofEngine(t *watch.Task) bool {
	if other, ok := strings.CutPrefix(q.Engine, "-"); ok {
		return t.Engine != other
	}
	return q.Engine == "" || q.Engine == t.Engine
}

// hasWords reports whether each of the words occurs in one of the task's texts.
func (q *TaskQuery) hasWords(t *watch.Task) bool {
	for _, w := range q.Words {
		w = strings.ToLower(w)
		has := func(text string) bool { return strings.Contains(strings.ToLower(text), w) }
		if !has(t.Name) && !has(t.Step) && !has(t.Run) && !has(t.User) {
			return false
		}
	}
	return true
}

// weight returns the time by which Limit chooses tasks.
func (q TaskQuery) weight(t *watch.Task) time.Duration {
	if !q.Waited {
		return q.Within(t)
	}
	if t.Queued.IsZero() {
		return 0
	}
	return t.Began.Sub(t.Queued)
}

// Shorter reports whether Limit keeps b before a.
func (q TaskQuery) Shorter(a, b *watch.Task) bool { return q.weight(a) < q.weight(b) }

// Within returns for how long a task lasts within the queried time.
func (q TaskQuery) Within(t *watch.Task) time.Duration {
	from, to := t.Began, t.End
	if from.Before(q.Start) {
		from = q.Start
	}
	if to.IsZero() || to.After(q.End) {
		to = q.End
	}
	return to.Sub(from)
}

// longest is a heap of tasks, with the task on top that lasts least within a time.
type longest struct {
	q     TaskQuery
	tasks []watch.Task
}

func (l *longest) Len() int           { return len(l.tasks) }
func (l *longest) Less(i, j int) bool { return l.q.weight(&l.tasks[i]) < l.q.weight(&l.tasks[j]) }
func (l *longest) Swap(i, j int)      { l.tasks[i], l.tasks[j] = l.tasks[j], l.tasks[i] }
func (l *longest) Push(t any)         { l.tasks = append(l.tasks, t.(watch.Task)) }
func (l *longest) Pop() any {
	t := l.tasks[len(l.tasks)-1]
	l.tasks = l.tasks[:len(l.tasks)-1]
	return t
}

// Events returns the events from start on and before end, by their time.
func (db *DB) Events(ctx context.Context, start, end time.Time) ([]watch.Event, error) {
	var all []watch.Event
	err := db.events.visit(start.UnixMilli(), end.UnixMilli(), wanted[watch.Event]{columns: allColumns}, func(e *watch.Event) bool {
		all = append(all, *e)
		return ctx.Err() == nil
	})
	slices.SortStableFunc(all, func(a, b watch.Event) int { return a.Time.Compare(b.Time) })
	return all, cmp.Or(err, ctx.Err())
}
