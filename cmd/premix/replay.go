package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/kit/outputs"
	"premix/internal/replay/combine"
	"premix/internal/replay/machine"
	"premix/internal/replay/results"
	"premix/internal/replay/scheduling"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
	"premix/internal/replay/whatif"
)

// replayFlags are the options of replay.
type replayFlags struct {
	policies  string
	file      string
	machine   string
	cores     countFlag
	estimates string
	kill      bool
	overhead  durationFlag
	pack      durationFlag
	columns   string
	html      string
	parquet   string
	whatIf    []string
	repeats   countFlag
	seed      uint64
}

func (a *app) replayCommand() *cobra.Command {
	var o replayFlags
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Replay a workload under scheduling policies",
		Long: `Replay the jobs of a trace on a machine under one or more scheduling policies, and print
their waits. The trace is a Standard Workload File, an output of sacct (--parsable2 or
--json), a trace of Nextflow, a WfInstance, or a directory of premix run or premix task;
files may be compressed. The machine is the machine of the trace, or one in a file.

  premix replay LCG.swf.gz --policy easy
  premix replay jobs.txt --policy recorded,easy,multifactor --machine cluster.yaml --html compare.html`,
		Args: arguments("TRACE"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.replay(args[0], &o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.policies, "policy", "easy", "policies to compare, with commas: "+strings.Join(scheduling.BuiltIns(), ", ")+", names of --policies, exec:COMMAND")
	f.StringVar(&o.file, "policies", "", "YAML file of policies")
	f.StringVar(&o.machine, "machine", "", "file of the machine: YAML, slurm.conf, or an output of sinfo (default: the machine of the trace)")
	f.Var(&o.cores, "cores", "cores of the machine, if it has no YAML file")
	f.StringVar(&o.estimates, "estimates", simulate.Asked, "run times that policies expect of jobs: asked, exact or learned")
	f.BoolVar(&o.kill, "kill", false, "end jobs at their time limit")
	f.Var(&o.overhead, "overhead", "time that each job needs to start, holding its cores")
	f.Var(&o.pack, "pack", "combine short jobs into packs of about this time")
	f.StringVar(&o.columns, "columns", "", "columns of sacct's output, if it has no header line (default: XDMoD's)")
	outputFlag(cmd, &o.html, "html", "", outputs.Page, "file for a page with curves and a Gantt chart")
	f.StringVar(&o.parquet, "parquet", "", "directory for tables of jobs, policies and curves")
	outputNames(cmd, func([]string) []string {
		if o.parquet == "" {
			return nil
		}
		return []string{filepath.Join(o.parquet, "jobs.parquet"), filepath.Join(o.parquet, "policies.parquet"), filepath.Join(o.parquet, "curves.parquet")}
	}, outputs.Table)
	f.StringArrayVar(&o.whatIf, "what-if", nil, "replay also with a change: more-jobs=10%, fewer-nodes=32 or fewer-nodes=5%; may be repeated")
	f.Var(&o.repeats, "repeats", "draws of further jobs with --what-if (default 5)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random numbers for the confidence intervals")
	cmd.AddCommand(a.replayGenerate())
	return cmd
}

func (a *app) replay(path string, o *replayFlags) error {
	switch o.estimates {
	case simulate.Asked, simulate.Exact, simulate.Learned:
	default:
		return &usageError{fmt.Errorf("there are no estimates %q", o.estimates), "--estimates is asked, exact or learned"}
	}
	if o.machine != "" && o.cores > 0 {
		return &usageError{errors.New("--cores and --machine cannot be given together"), "the file of the machine has its cores"}
	}
	var changes []whatif.Change
	for _, text := range o.whatIf {
		c, err := whatif.Parse(text)
		if err != nil {
			return err
		}
		changes = append(changes, c)
	}
	if len(changes) > 0 && o.pack > 0 {
		return &usageError{errors.New("--what-if and --pack cannot be given together"), "leave one of them out"}
	}
	var known []scheduling.Config
	if o.file != "" {
		var err error
		if known, err = scheduling.ReadFile(o.file); err != nil {
			return err
		}
	}
	policies, err := scheduling.Choose(strings.Split(o.policies, ","), known)
	if err != nil {
		return err
	}
	t, err := trace.Open(path, trace.Options{Columns: o.columns})
	if err != nil {
		return err
	}
	m := machine.FromTrace(t, int(o.cores))
	if o.machine != "" {
		if m, err = machine.Read(o.machine); err != nil {
			return err
		}
	}
	m.Kill = m.Kill || o.kill
	if o.overhead > 0 {
		m.Overhead = machine.Span(trace.FromDuration(time.Duration(o.overhead)))
	}
	options := results.Options{Estimates: o.estimates}
	replayed := t
	var packed *combine.Packed
	if o.pack > 0 {
		packed = combine.Pack(t, trace.FromDuration(time.Duration(o.pack)))
		replayed = packed.Trace
		options.Pack, options.Packed = time.Duration(o.pack).Seconds(), replayed.Len()
	}
	r := results.New(t, m, options)
	ctx, _ := interruptible()
	charge := m.Charger(t)
	for _, c := range policies {
		started := time.Now()
		var s *simulate.Schedule
		if c.Order == scheduling.Recorded {
			s, err = simulate.Recorded(t)
		} else {
			s, err = simulate.Run(ctx, replayed, m, scheduling.New(c), simulate.Options{Estimates: o.estimates})
		}
		if err != nil {
			return err
		}
		took := time.Since(started).Seconds()
		if packed != nil && c.Order != scheduling.Recorded {
			s = packed.Unpack(s, trace.Time(m.Overhead))
		}
		r.Add(s, charge, took)
	}
	repeats := int(o.repeats)
	if repeats == 0 {
		repeats = 5
	}
	if err := whatif.Run(ctx, r, t, m, policies, changes, simulate.Options{Estimates: o.estimates}, repeats, o.seed); err != nil {
		return err
	}
	r.Finish(o.seed)
	return a.printReplay(r, o, charge)
}

func (a *app) printReplay(r *results.Results, o *replayFlags, charge results.Charger) error {
	if o.parquet != "" {
		if err := r.WriteParquet(o.parquet, charge); err != nil {
			return &usageError{err, "give a directory with --parquet that you may write"}
		}
	}
	if o.html != "" {
		if err := r.WriteHTML(o.html); err != nil {
			return &usageError{err, "give a file with --html that you may write"}
		}
	}
	if a.json {
		return r.WriteJSON(a.stdout)
	}
	return r.WriteText(a.stdout)
}
