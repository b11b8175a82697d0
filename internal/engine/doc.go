// Package engine holds the parts that every engine needs: the plan of a run, and the
// durable renaming of outputs into place. The state of a run's tasks is in internal/engine/queue, as
// for tasks without a recipe. The packages that run tasks are below it, for example
// internal/engine/local.
//
// Words:
//
//   - run: all the tasks of one recipe over one sample sheet, in one run
//     directory.
//   - task: one command over one sample. Its number is its row in the sample
//     sheet, from 1.
//   - try: one execution of a task. Tries are counted over all invocations.
//   - plan: the tasks of the run and their settings. It is written once, before the first
//     task.
//   - journal: the records of the tries of one invocation of premix, in the
//     order in which they ended.
//   - done: a task is done if the last record of a try of it is a success and
//     all of its outputs exist.
//   - resume: to run the tasks that are not done.
//   - work directory: where one try runs. It is removed when the try has ended.
//
// A run directory:
//
//	DIR/...                      outputs, renamed into place, never partial
//	DIR/report.html              written by package report
//	DIR/.premix/orders.jsonl     record.Header, then one queue.Order a line
//	DIR/.premix/orders.lock      held (fcntl) while an order is written
//	DIR/.premix/lock             held (flock) by the premix that runs the tasks
//	DIR/.premix/plan.jsonl       [Header], then one [Task] a line
//	DIR/.premix/journal-N.jsonl  record.Header, then one record.Task a line
//	DIR/.premix/stderr.log       the standard error of all tries, one after another
//	DIR/.premix/tasks/N.TRY/     work directory
//	DIR/.premix/tasks.parquet    all records, written when an invocation ends
//
// The state of a run is its plan, its orders and its journals, and nothing else: there is no
// status file, and no file per task. Outputs are durable before they are renamed,
// and renamed before their record is durable. So at whatever moment premix is killed, a
// task is either done, with whole outputs, or it is run again.
package engine
