package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine/local"
	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
	"premix/internal/kit/owner"
	"premix/internal/recipe"
)

// workVerb is the verb that the job of an engine executes. In a container PREMIX_HOME may
// belong to the owner of the task directory.
const workVerb = "work"

// taskWork returns the command that an engine's job executes; see package pilot.
func (a *app) taskWork() *cobra.Command {
	var (
		o      pilot.WorkOptions
		jobs   countFlag
		memory memoryFlag
		grace  durationFlag
	)
	cmd := &cobra.Command{
		Use:    workVerb + " DIR --engine NAME --wave N --index N",
		Short:  "Run a share of the tasks of a directory, as the job of an engine",
		Args:   arguments("DIR"),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, kill := interruptible()
			o.Kill, o.Grace, o.Cores, o.Memory = kill, time.Duration(grace), int(jobs), int64(memory)
			if o.Grace == 0 {
				o.Grace = local.Grace
			}
			if err := allocation(&o); err != nil {
				return err
			}
			owner.TrustOwner(args[0])
			if !queue.IsDir(args[0]) {
				d, err := pilot.WorkerOfRun(args[0], local.Options{Version: version}, func(t pilot.Trees) recipe.Sources {
					return a.sources(ctx, &treeFlags{origins: t.Origins, proxies: t.Proxies, keyFile: t.KeyFile, tokenFile: t.Credentials, ca: t.CAFile, cvmfs: t.CVMFS})
				})
				if err != nil {
					return err
				}
				return pilot.Work(ctx, d, o, pilot.Worker{Messages: a.stderr})
			}
			q, err := queue.Open(args[0], version, false)
			if err != nil {
				return err
			}
			defer q.Close()
			d, err := pilot.OpenTasks(q, false)
			if err != nil {
				return err
			}
			return pilot.Work(ctx, d, o, pilot.Worker{Messages: a.stderr})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Engine, "engine", "", "engine that has started this job")
	f.IntVar(&o.Wave, "wave", 0, "wave of the share")
	f.IntVar(&o.Index, "index", -1, "place of the share in its wave, from 0")
	f.VarP(&jobs, "jobs", "j", "cores for all tasks together (default: all of the job)")
	f.Var(&memory, "memory", "memory for all tasks together (default: all of the job)")
	f.Var(&grace, "grace", fmt.Sprintf("time between SIGTERM and SIGKILL (default: %v)", local.Grace))
	return cmd
}
