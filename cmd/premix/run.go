package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"premix/internal/engine/local"
	"premix/internal/engine/pilot"
	"premix/internal/hotstart"
	"premix/internal/kit/outputs"
	"premix/internal/report"
)

func (a *app) runCommand() *cobra.Command {
	var (
		o       = local.Options{Version: version}
		start   = startFlag(hotstart.Auto)
		jobs    countFlag
		cores   countFlag
		threads countFlag
		from    treeFlags
		memory  memoryFlag
		timeout durationFlag
		engine  engineFlags
		packed  pilot.Options
	)
	cmd := &cobra.Command{
		Use:   "run RECIPE SAMPLES.csv --out DIR",
		Short: "Run a recipe over a sample sheet",
		Long: `Run a recipe over each sample of a sample sheet. Outputs appear in DIR whole or
not at all, with a summary in DIR/report.html. Exits with 0 only if all tasks
succeeded; the same command runs the tasks that are not done.`,
		Args: arguments("RECIPE", "SAMPLES.csv"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Out == "" {
				return &usageError{errors.New("--out is missing"), "name the directory for the outputs: --out DIR"}
			}
			eng, err := engine.open(&packed)
			if err != nil {
				return err
			}
			if eng != nil && (jobs > 0 || cores > 0 || memory > 0) {
				return &usageError{errors.New("--jobs, --cores and --memory are for the local engine"), "for another engine give --engine-opt jobs=N, cores=N, memory=SIZE"}
			}
			if o.Store, err = snapshotStore(o.Store, eng != nil); err != nil {
				return err
			}
			ctx, kill := interruptible()
			o.From = a.sources(ctx, &from)
			o.Recipe, o.Sheet, o.Kill = args[0], args[1], kill
			o.Start, o.Jobs, o.Cores, o.Threads = hotstart.Kind(start), int(jobs), int(cores), int(threads)
			o.Memory, o.Timeout = int64(memory), time.Duration(timeout)
			if !a.quiet && !a.json {
				o.Messages, o.Terminal = a.stderr, isTerminal(a.stderr)
			}
			var sum *local.Summary
			if eng != nil {
				sum, err = a.dispatchRun(o, &from, eng, packed, a.quiet)
			} else {
				if dir, err := filepath.Abs(o.Out); err == nil {
					o.Fence = pilot.BusyFence(dir)
				}
				sum, err = local.Run(ctx, o)
			}
			if sum == nil {
				return err
			}
			// A run without its page is still complete, for example on a full disk.
			r, perr := writePage(sum.Dir)
			if perr != nil && o.Messages != nil {
				fmt.Fprintf(o.Messages, "note: %v\n", perr)
			}
			a.reasons(r)
			if a.json {
				return errors.Join(err, a.printJSON(sum))
			}
			if a.quiet && err == nil {
				for _, q := range sum.Quarantined {
					fmt.Fprint(a.stderr, q.Text())
				}
				return nil
			}
			return errors.Join(err, sum.Write(a.stdout))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "run directory: outputs, records, state")
	f.Var(&start, "start", "kind of start: auto, hot or cold")
	f.BoolVar(&o.Trust, "trust", false, "start hot even if memory differs without a known reason")
	f.Var(shareFlag{&o.Verify}, "verify", "part of the CPU time for comparing hot starts with cold ones: a percentage, all or none (default: the recipe's, 2%)")
	f.VarP(&jobs, "jobs", "j", "tasks at a time (default: cores divided by threads)")
	f.Var(&cores, "cores", "cores for all tasks together (default: all of the machine, or as many as --jobs need)")
	f.Var(&threads, "threads", "threads of one task (default: the recipe's)")
	f.Var(&memory, "memory", "memory for all tasks together, as in 16G (default: all)")
	f.BoolVar(&o.Resume, "resume", false, "accept also a run in DIR whose tasks are all done")
	o.Retries = -1
	f.Var((*retriesFlag)(&o.Retries), "retries", "further tries of a failed task (default: the recipe's)")
	f.Var(&timeout, "timeout", "longest time of a try, as in 2h (default: the recipe's)")
	f.BoolVar(&o.FailFast, "fail-fast", false, "start no more tasks after the first failure")
	engine.register(cmd)
	snapshotsFlag(f, &o.Store)
	from.registerData(cmd)
	outputFlag(cmd, &from.recordImage, "record-image", "", outputs.Profile, "write the order in which the recipe's image is touched to this file, at umount")
	return cmd
}

// snapshotStore returns the absolute path of a store of snapshots that the user named, or
// "" without one. It checks first that the store can be used, so that no user waits for
// snapshots that cannot be kept. If elsewhere is set, the store is on the nodes of a
// batch system, and may not exist here.
func snapshotStore(dir string, remote bool) (string, error) {
	if dir == "" {
		return "", nil
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		_, err = os.Stat(dir)
		if remote && err != nil && !errors.Is(err, unix.ENOTDIR) {
			return dir, nil
		}
		err = hotstart.CheckStore(dir)
	}
	if err != nil {
		return "", &usageError{fmt.Errorf("snapshots cannot be kept in the directory of --snapshots: %w", err), "name a directory that you may write, or leave out --snapshots"}
	}
	return dir, nil
}

// writePage writes the page of the run in dir, and returns the report of the run, or nil if
// it cannot be read.
func writePage(dir string) (*report.Report, error) {
	r, err := report.Read(dir)
	if err != nil {
		return nil, err
	}
	_, err = r.WriteHTML("")
	return r, err
}

// reasons prints as details why the tasks of a run started as they did.
func (a *app) reasons(r *report.Report) {
	if r == nil {
		return
	}
	for _, s := range r.Run.Starts {
		for _, why := range s.Reasons {
			a.detail("%d tasks started %s: %s", why.Tasks, s.Kind, why.Reason)
		}
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}
