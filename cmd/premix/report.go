package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine"
	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/kit/outputs"
	"premix/internal/report"
)

func (a *app) reportCommand() *cobra.Command {
	var html, trace, nextflow string
	var usage, node, crate bool
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Sum up a run, and write its page",
		Long: `Sum up the run or the tasks in a directory, and write one self-contained HTML page to
DIR/report.html or the file of --html: failures, a timeline, a table of all tasks, and the
use of cores, memory and storage by step. premix run writes that page too, when it ends.

With --usage, and for a task directory, it prints the use of the cores that tasks held. For
a run it then writes the page only with --html.

With --trace it also writes a row for each try to a file, in the form of Nextflow's
trace files.

With --ro-crate it also writes DIR/ro-crate-metadata.json, which describes a run as an
RO-Crate: the tool, data, samples and outputs with their SHA-256, and the command of each
task. It reads all of these files.

With --node, and without DIR, it sums up the commands that premix hot and premix shim
started on this machine in the last seven days.

With --nextflow, and without DIR, it prints a trace file of Nextflow with the hot and cold
starts of the tools in each task, the seconds that hot starts saved, and the memory that
they did not load, in four further columns.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if node || nextflow != "" {
				return arguments()(cmd, args)
			}
			return arguments("DIR")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if nextflow != "" {
				return a.reportNextflow(nextflow)
			}
			if node {
				return a.reportNode()
			}
			if trace != "" {
				if err := report.WriteTrace(args[0], trace); err != nil {
					return traceError(trace, err)
				}
			}
			if crate {
				if err := report.WriteCrate(args[0]); err != nil {
					return err
				}
			}
			if usage || queue.IsDir(args[0]) {
				u, err := report.ReadUsage(args[0])
				if err != nil {
					return err
				}
				page := ""
				if html != "" || queue.IsDir(args[0]) {
					if page, err = u.WriteHTML(html); err != nil {
						return pageError(u.Dir, html, err)
					}
				}
				if a.json {
					return u.WriteJSON(a.stdout)
				}
				if err := u.WriteText(a.stdout); err != nil || page == "" {
					return err
				}
				_, err = fmt.Fprintf(a.stdout, "\npage: %s\n", page)
				return err
			}
			r, err := report.Read(args[0])
			if err != nil {
				return err
			}
			page, err := r.WriteHTML(html)
			if err != nil {
				return pageError(r.Run.Dir, html, err)
			}
			if a.json {
				return r.WriteJSON(a.stdout)
			}
			if err := r.WriteText(a.stdout); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "\npage: %s\n", page)
			return err
		},
	}
	cmd.Flags().BoolVar(&usage, "usage", false, "print CPU time, core time held and run times, by step and size")
	cmd.Flags().BoolVar(&node, "node", false, "print the time that hot starts of commands saved on this machine in seven days")
	cmd.Flags().StringVar(&nextflow, "nextflow", "", "print this trace `file` of Nextflow, with the hot and cold starts of each task")
	cmd.MarkFlagsMutuallyExclusive("node", "nextflow")
	outputFlag(cmd, &html, "html", "", outputs.Page, "file of the page (default: DIR/report.html)")
	outputFlag(cmd, &trace, "trace", "", outputs.Tries, "file for a row of each try, as in Nextflow's trace files")
	cmd.Flags().BoolVar(&crate, "ro-crate", false, "describe the run in DIR/ro-crate-metadata.json, with digests of its files")
	outputNames(cmd, func(args []string) []string {
		if !crate || len(args) == 0 {
			return nil
		}
		return []string{filepath.Join(args[0], report.CrateFile)}
	}, outputs.Crate)
	outputNames(cmd, func(args []string) []string {
		if html != "" || len(args) == 0 {
			return nil
		}
		return []string{filepath.Join(args[0], engine.ReportFile)}
	}, outputs.Page)
	return cmd
}

// traceError reports that the trace could not be written, if err has no code of its own.
func traceError(path string, err error) error {
	var coded exit.Coded
	if errors.As(err, &coded) {
		return err
	}
	return &usageError{fmt.Errorf("trace %s: %w", path, err), "give a file with --trace that you may write"}
}

// reportNode prints the savings by hot starts on this machine in seven days.
func (a *app) reportNode() error {
	n, err := report.ReadNode(time.Now().AddDate(0, 0, -7))
	if err != nil {
		return err
	}
	if a.json {
		return n.WriteJSON(a.stdout)
	}
	return n.WriteText(a.stdout)
}

// reportNextflow prints a trace file of Nextflow with the starts of each task.
func (a *app) reportNextflow(path string) error {
	n, err := report.ReadNextflow(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return &usageError{err, "give the file that Nextflow writes with -with-trace"}
	}
	if err != nil {
		return err
	}
	if a.json {
		return n.WriteJSON(a.stdout)
	}
	return n.WriteText(a.stdout)
}

// pageError reports that the page could not be written.
func pageError(dir, html string, err error) error {
	if html == "" {
		return &engine.DirError{Dir: dir, Reason: fmt.Sprintf("cannot hold the page: %v", err), HintText: "name the file with --html FILE", Err: err}
	}
	return &usageError{err, "give a file with --html that you may write"}
}
