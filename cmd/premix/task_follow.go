package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/cobra"

	"premix/internal/engine/queue"
)

func (a *app) taskFollow() *cobra.Command {
	var stay bool
	cmd := &cobra.Command{
		Use:   "follow DIR [TASK...]",
		Short: "Print the result of each task when it has ended",
		Long: `Print the result of each task when it has ended, in the form of premix task why:
first the tasks that have ended before, then the others as they end. A task that is
retried and ends once more is printed again. The command ends when all tasks have
ended, or with --stay when its standard input ends.`,
		Args: atLeast,
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := selection("", args[1:])
			if err != nil {
				return err
			}
			q, err := queue.Open(args[0], version, false)
			if err != nil {
				return err
			}
			defer q.Close()
			var ends <-chan struct{}
			if stay {
				ends = inputEnds()
			}
			w := bufio.NewWriter(a.stdout)
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			return q.Endings(s, ends, func(x *queue.Explanation) error {
				if a.json {
					return enc.Encode(x)
				}
				return writeResult(w, x)
			}, w.Flush)
		},
	}
	cmd.Flags().BoolVar(&stay, "stay", false, "wait for more tasks until standard input ends")
	return cmd
}

// inputEnds returns a channel that is closed when standard input ends.
func inputEnds() <-chan struct{} {
	ends := make(chan struct{})
	go func() {
		defer close(ends)
		_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end, too
	}()
	return ends
}
