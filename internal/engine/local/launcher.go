package local

import (
	"syscall"

	"premix/internal/engine/queue"
	"premix/internal/record"
)

// launcher starts the tries of tasks and reports their ends to its scheduler. The methods are
// called in the goroutine of the scheduler. There are two: spawners, for tasks without a recipe,
// and hot, for the tasks of a run.
type launcher interface {
	// recover completes the work of an earlier process that was killed.
	recover() error
	// open makes everything ready for the first try.
	open() error
	// ahead returns how many tries may be started beside those in the slots. They wait for a slot.
	ahead(t *queue.Task) int
	// start starts a try. It may keep the try back until hand is called.
	start(a *activeTask)
	hand()
	// drop gives back the tries that have not begun.
	drop()
	// cancel ends a try, with the grace of the scheduler.
	cancel(a *activeTask)
	// signal sends a signal to all tries that run.
	signal(sig syscall.Signal)
	// setTimeouts applies timeouts that were set while tasks were active.
	setTimeouts()
	// settled is called with the durable record of each try.
	settled(rec *record.Task)
	// idle is called when no task is left. It may have tasks wait again.
	idle()
	// line completes a progress line, and sumUp a summary.
	line() string
	sumUp(sum *Summary)
	close() error
}
