package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"premix/engine/shim"
)

func (a *app) slurmShimCommand() *cobra.Command {
	var (
		dir    string
		jobs   countFlag
		budget memoryFlag
		idle   = durationFlag(shim.DefaultIdle)
	)
	cmd := &cobra.Command{
		Use:   "slurm-shim --dir DIR",
		Short: "Have workflow managers that know Slurm run on premix",
		Long: `Make a directory of programs named sbatch, squeue, scancel, sacct, scontrol, sinfo and
srun, and print the directory to put before PATH. What is submitted with them runs as
tasks of this machine. A worker starts when it is needed and ends when it is idle.

  PATH="$(premix slurm-shim --dir shim):$PATH" nextflow run main.nf

DIR is a task directory: premix task ls, why, tail and premix report work with it, and
the numbers of tasks are those of jobs.`,
		Args: arguments(),
		RunE: func(_ *cobra.Command, _ []string) error {
			if dir == "" {
				return &usageError{fmt.Errorf("--dir is missing"), "say where the programs and the jobs are kept: --dir DIR"}
			}
			binary, err := os.Executable()
			if err != nil {
				return err
			}
			bin, err := shim.Make(dir, binary, version, shim.Config{Jobs: int(jobs), Memory: int64(budget), Idle: time.Duration(idle)})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"dir": dir, "bin": bin})
			}
			_, err = fmt.Fprintln(a.stdout, bin)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory of the programs and the jobs")
	f.VarP(&jobs, "jobs", "j", "cores that jobs take together (default: those of the machine)")
	f.Var(&budget, "memory", "memory that jobs take together, as in 16G (default: all)")
	f.Var(&idle, "idle", "how long a worker without work stays")
	return cmd
}
