package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/engine/batch"
	"premix/internal/engine/kubernetes"
	"premix/internal/engine/local"
	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
	"premix/internal/engine/slurm"
)

// engineFlags are the options of the engine that runs tasks.
type engineFlags struct {
	name    string
	options []string
}

func (e *engineFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&e.name, "engine", engineLocal, "system that runs the tasks: "+engines)
	f.StringArrayVar(&e.options, "engine-opt", nil, "option of the engine, as KEY=VALUE; may be repeated")
}

// engineLocal is the default engine.
const engineLocal = "local"

// engines lists all engines.
var engines = "local, slurm, kubernetes, " + strings.Join(batch.Names(), ", ")

// open makes the engine, or returns nil for the local one. It sets the common options of
// all engines in o.
func (e *engineFlags) open(o *pilot.Options) (pilot.Engine, error) {
	if e.name == engineLocal {
		if len(e.options) > 0 {
			return nil, &usageError{fmt.Errorf("--engine-opt %s is for another engine", e.options[0]), "name the engine with --engine"}
		}
		return nil, nil
	}
	rest, err := o.ParseOptions(e.options)
	if err != nil {
		return nil, err
	}
	o.Settings.Options = rest
	return newEngine(e.name, rest)
}

// newEngine makes an engine other than the local one.
func newEngine(name string, options map[string]string) (pilot.Engine, error) {
	if slices.Contains(batch.Names(), name) {
		e, err := batch.New(name, options)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
	switch name {
	case kubernetes.Name:
		o, err := kubernetes.Parse(options)
		if err != nil {
			return nil, err
		}
		e, err := kubernetes.New(*o)
		if err != nil {
			return nil, err
		}
		return e, nil
	case slurm.Name:
		e, err := slurm.New(options)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
	return nil, &usageError{fmt.Errorf("there is no engine %q", name), "it is one of " + engines}
}

// allocation sets the cores and memory that the engine has given to this job.
func allocation(o *pilot.WorkOptions) error {
	if slices.Contains(batch.Names(), o.Engine) {
		return nil // as for Kubernetes
	}
	switch o.Engine {
	case kubernetes.Name:
		return nil // the command has options for them
	case slurm.Name:
		slurm.Allocation(o)
		return nil
	default:
		return &usageError{fmt.Errorf("there is no engine %q", o.Engine), "premix itself runs this command"}
	}
}

// dispatch runs the waiting tasks of a directory on an engine.
func (a *app) dispatch(d pilot.Directory, eng pilot.Engine, o pilot.Options, quiet bool) error {
	ctx, kill := interruptible()
	o.Version, o.Kill = version, kill
	if !quiet && !a.json {
		o.Messages = local.NewMessages(a.stderr, isTerminal(a.stderr))
	}
	return pilot.Dispatch(ctx, d, eng, o)
}

// dispatchTasks runs the waiting tasks of a task directory on an engine. The summary is nil
// if the directory cannot be used.
func (a *app) dispatchTasks(q *queue.Queue, eng pilot.Engine, o pilot.Options, quiet bool) (*local.Summary, error) {
	d, err := pilot.OpenTasks(q, true)
	if err != nil {
		return nil, err
	}
	err = a.dispatch(d, eng, o, quiet)
	return d.Summary(), err
}

// dispatchRun runs the tasks of a run on an engine. The summary is nil if the directory
// cannot be used.
func (a *app) dispatchRun(o local.Options, from *treeFlags, eng pilot.Engine, p pilot.Options, quiet bool) (_ *local.Summary, err error) {
	trees, err := from.remote()
	if err != nil {
		return nil, err
	}
	d, err := pilot.OpenRun(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	options := p.Settings.Options
	p.Settings = d.Settings()
	p.Settings.Options, p.Settings.Trees = options, trees
	err = a.dispatch(d, eng, p, quiet)
	return d.Summary(), err
}
