package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
)

func (a *app) taskWhy() *cobra.Command {
	return &cobra.Command{
		Use:   "why DIR TASK",
		Short: "Explain in one sentence why a task waits or has failed",
		Args:  arguments("DIR", "TASK"),
		RunE: func(_ *cobra.Command, args []string) error {
			task, err := taskNumber(args[1])
			if err != nil {
				return err
			}
			q, err := queue.Open(args[0], version, false)
			if err != nil {
				return err
			}
			defer q.Close()
			x, err := q.Why(task)
			if err != nil {
				return err
			}
			if err := explainPlace(q, x); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(x)
			}
			return writeResult(a.stdout, x)
		},
	}
}

// writeResult writes the explanation of a task as text for people.
func writeResult(w io.Writer, x *queue.Explanation) error {
	name := ""
	if x.Name != "" {
		name = " (" + x.Name + ")"
	}
	_, err := fmt.Fprintf(w, "task %d%s: %s\n", x.Task, name, x.Why)
	for _, l := range x.Stderr {
		_, err = fmt.Fprintf(w, "    | %s\n", l)
	}
	if x.Hint != "" {
		_, err = fmt.Fprintf(w, "  hint: %s\n", x.Hint)
	}
	return err
}

// explainPlace explains what an engine's job waits for, if a task has been assigned to
// the job.
func explainPlace(q *queue.Queue, x *queue.Explanation) error {
	if q.State(x.Task) != queue.Waiting {
		return nil
	}
	p, err := pilot.FindPlace(q.Dir, x.Task)
	if p == nil || err != nil {
		return err
	}
	// If the engine is not available here, still show the ledger's explanation.
	eng, _ := newEngine(p.Engine, p.Options)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x.Why = p.Say(ctx, eng)
	return nil
}

// taskNumber reads the number of a task.
func taskNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, &usageError{fmt.Errorf("%q is not the number of a task", text), "premix task ls --tasks lists them"}
	}
	return n, nil
}
