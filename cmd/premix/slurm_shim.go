package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine/pilot"
	"premix/internal/engine/shim"
)

func (a *app) slurmShimCommand() *cobra.Command {
	var (
		dir    string
		jobs   countFlag
		budget memoryFlag
		idle   = durationFlag(shim.DefaultIdle)
		engine engineFlags
	)
	cmd := &cobra.Command{
		Use:   "slurm-shim --dir DIR",
		Short: "Have workflow managers that know Slurm run on premix",
		Long: `Make a directory of programs named sbatch, squeue, scancel, sacct, scontrol, sinfo and
srun, and print the directory to put before PATH. What is submitted with them runs as
tasks of this machine. A worker starts when it is needed and ends when it is idle.

  PATH="$(premix slurm-shim --dir shim):$PATH" nextflow run main.nf

With --engine slurm they stand before a real Slurm instead: what is submitted is packed
into few of its jobs, and it is asked for all of them at once, however often and by
whomever.

DIR is a task directory: premix task ls, why, tail and premix report work with it, and
the numbers of tasks are those of jobs.`,
		Args: arguments(),
		RunE: func(_ *cobra.Command, _ []string) error {
			if dir == "" {
				return &usageError{fmt.Errorf("--dir is missing"), "say where the programs and the jobs are kept: --dir DIR"}
			}
			config := shim.Config{Jobs: int(jobs), Memory: int64(budget), Idle: time.Duration(idle), Engine: engine.name, Options: engine.options}
			if _, err := engine.open(&pilot.Options{}); err != nil {
				return err
			}
			if engine.name != engineLocal && (jobs > 0 || budget > 0) {
				return &usageError{errors.New("--cores and --memory are of the local engine"), "with another one say --engine-opt jobs=N, cores=N, memory=SIZE"}
			}
			binary, err := os.Executable()
			if err != nil {
				return err
			}
			bin, err := shim.Make(dir, binary, version, config)
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
	f.Var(&jobs, "cores", "cores that jobs take together (default: those of the machine)")
	f.Var(&budget, "memory", "memory that jobs take together, as in 16G (default: all)")
	f.Var(&idle, "idle", "how long a worker without work stays")
	engine.register(cmd)
	return cmd
}
