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
		owned  []string
	)
	cmd := &cobra.Command{
		Use:   "slurm-shim --dir DIR",
		Short: "Run workflow managers on premix as if it were Slurm",
		Long: `Make a directory of programs named sbatch, srun, salloc, squeue, scancel, sacct, scontrol,
sinfo, sstat, sprio, sshare and sacctmgr, and print the directory, to be put first on PATH.
Jobs that are submitted with them run as tasks of this machine. A worker starts when it is
needed and ends when it is idle.

  PATH="$(premix slurm-shim --dir shim):$PATH" nextflow run main.nf

With --engine slurm they submit to a real Slurm instead: the jobs are packed into few jobs
of Slurm, which is asked once about all of them, for all callers.

DIR is a task directory: premix task ls, why, tail and premix report work with it, and
the number of a task is the number of its job.`,
		Args: arguments(),
		RunE: func(_ *cobra.Command, _ []string) error {
			if dir == "" {
				return &usageError{fmt.Errorf("--dir is missing"), "name the directory for the programs and the jobs: --dir DIR"}
			}
			config := shim.Config{Jobs: int(jobs), Memory: int64(budget), Idle: time.Duration(idle), Engine: engine.name, Options: engine.options, Resources: owned}
			if _, err := engine.open(&pilot.Options{}); err != nil {
				return err
			}
			if engine.name != engineLocal && (jobs > 0 || budget > 0 || len(owned) > 0) {
				return &usageError{errors.New("--cores, --memory and --resource are for the local engine"), "for another engine give --engine-opt jobs=N, cores=N, memory=SIZE"}
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
	f.Var(&jobs, "cores", "cores for all jobs together (default: all of the machine)")
	f.Var(&budget, "memory", "memory for all jobs together, as in 16G (default: all)")
	f.StringSliceVar(&owned, "resource", nil, "resources for all jobs together, as in gpu=4 or tmpspace=500G, for --gpus and --gres")
	f.Var(&idle, "idle", "time after which an idle worker ends")
	engine.register(cmd)
	return cmd
}
