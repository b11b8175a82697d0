package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/engine/local"
	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
)

func (a *app) taskRun() *cobra.Command {
	var (
		o      local.TaskOptions
		out    string
		jobs   countFlag
		cores  countFlag
		budget memoryFlag
		pin    string
		owned  []string
		stay   bool
		flags  batchFlags
		engine engineFlags
		packed pilot.Options
	)
	cmd := &cobra.Command{
		Use:   "run [FILE|-] --out DIR",
		Short: "Submit tasks, and run all waiting tasks",
		Long: `Submit tasks, as premix task submit does, and run all waiting tasks of the directory.
The same tasks are not submitted twice: the same command continues after an interruption.
Without FILE it runs the tasks of the directory. Exits with 0 only if all of them have
succeeded.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &usageError{fmt.Errorf("%q is one argument too many", args[1]), "usage: " + cmd.UseLine()}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return &usageError{errors.New("--out is missing"), "name the directory for the tasks: --out DIR"}
			}
			switch pin {
			case "", string(local.PinCore), string(local.PinNUMA):
			default:
				return &usageError{fmt.Errorf("there is no --pin %s", pin), "it is core or numa"}
			}
			if err := flags.check(append(args, "")[0]); err != nil {
				return err
			}
			if given := flags.given(cmd.Flags()); len(args) == 0 && len(given) > 0 {
				return &usageError{fmt.Errorf("--%s is for tasks that are submitted, and there is no FILE", given[0]), "give the FILE, or leave out the option: submitted tasks have their own values"}
			}
			if len(owned) > 0 {
				var err error
				if o.Resources, err = queue.ParseResources(strings.Join(owned, ",")); err != nil {
					return &usageError{fmt.Errorf("--resource: %w", err), "write it as in --resource gpu=4"}
				}
			}
			eng, err := engine.open(&packed)
			if err != nil {
				return err
			}
			if eng != nil && (len(owned) > 0 || jobs > 0 || cores > 0 || budget > 0 || pin != "") {
				return &usageError{errors.New("--jobs, --cores, --memory, --resource and --pin are for the local engine"), "for another engine give --engine-opt jobs=N, cores=N, memory=SIZE"}
			}
			if stay {
				if len(args) > 0 && args[0] == "-" {
					return &usageError{errors.New("--stay waits for the end of standard input, but the tasks are read from standard input"), "submit the tasks from a file, or with premix task submit"}
				}
				o.Stay = inputEnds()
				packed.Stay = o.Stay
			}
			var in *os.File
			if len(args) > 0 {
				if in, err = flags.open(out, args[0]); err != nil {
					return err
				}
				defer in.Close()
			}
			q, err := queue.Open(out, version, len(args) > 0)
			if err != nil {
				return err
			}
			defer q.Close()
			if !a.quiet && !a.json {
				o.Messages, o.Terminal = a.stderr, isTerminal(a.stderr)
			}
			if len(args) > 0 {
				flags.batch.Once = true
				s, err := flags.submit(q, in)
				if err != nil {
					return err
				}
				if s.Before && o.Messages != nil {
					fmt.Fprintf(o.Messages, "these %d tasks were submitted before, and continue with their settings of that time\n", s.Tasks)
				}
			}
			var sum *local.Summary
			if eng != nil {
				packed.Settings.FailFast, packed.Settings.KeepDaemons = o.FailFast, o.KeepDaemons
				sum, err = a.dispatchTasks(q, eng, packed, a.quiet)
			} else {
				ctx, kill := interruptible()
				o.Queue, o.Kill, o.Jobs, o.Cores, o.Memory, o.Pin, o.Fence = q, kill, int(jobs), int(cores), int64(budget), local.Pin(pin), pilot.BusyFence(q.Dir)
				sum, err = local.RunTasks(ctx, o)
			}
			if sum == nil {
				return err
			}
			if a.json {
				return errors.Join(err, a.printJSON(sum))
			}
			if a.quiet && err == nil {
				return nil
			}
			return errors.Join(err, sum.Write(a.stdout))
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "task directory: tasks, records and output")
	f.VarP(&jobs, "jobs", "j", "tasks at a time (default: as many as the cores hold)")
	f.Var(&cores, "cores", "cores for all tasks together (default: all of the machine, or --jobs if that is more)")
	f.Var(&budget, "memory", "memory for all tasks together, as in 16G (default: all)")
	f.StringSliceVar(&owned, "resource", nil, "resources that tasks hold, as in gpu=4; each task gets ids of its own")
	f.StringVar(&pin, "pin", "", "hold tasks to cores of their own (core) or to one NUMA node (numa)")
	f.BoolVar(&o.FailFast, "fail-fast", false, "start no more tasks after the first failure")
	f.BoolVar(&o.KeepDaemons, "keep-daemons", false, "do not end processes that tasks leave in sessions of their own")
	f.BoolVar(&stay, "stay", false, "wait for more tasks until standard input ends, and run these too")
	flags.register(cmd)
	engine.register(cmd)
	return cmd
}
