package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/blast/diamond"
	"premix/internal/blast/part"
	"premix/internal/blast/search"
	"premix/internal/engine/kubernetes"
	"premix/internal/engine/pilot"
	"premix/internal/engine/queue"
)

// blastShard is the command of the tasks of a search on other machines.
func (a *app) blastShard() *cobra.Command {
	return &cobra.Command{
		Use:    "shard DIR N",
		Short:  "Search a part of a database for premix on another machine",
		Hidden: true,
		Args:   arguments("DIR", "N"),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return &usageError{fmt.Errorf("%q is not a number of a part", args[1]), "premix itself runs this command"}
			}
			home, err := database.Home()
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			err = part.SearchIn(ctx, parts(), home, args[0], n, a.stderr)
			var exit *part.ExitError
			if errors.As(err, &exit) {
				return &commandStatus{exit.Code}
			}
			return err
		},
	}
}

// parts returns the programs that search fragments.
func parts() part.Programs { return part.Programs{search.Parts{}, diamond.Parts{}} }

// elsewhere returns the search of fragments by a program that the user has chosen: on the nodes
// of an engine or of a cluster, or nil for this machine.
func (a *app) elsewhere(s searchFlags, program part.Program, db *database.Database, explain func(string)) (remote part.Remote, done func(), err error) {
	switch {
	case s.engine.name != engineLocal:
		return a.remote(s)
	case s.cluster.given():
		h, err := s.cluster.head(func(s string) { fmt.Fprintln(a.notes(), "note:", s) })
		if err != nil {
			return nil, nil, err
		}
		h.Explain = explain
		dir, err := os.MkdirTemp("", "premix-blast-")
		if err != nil {
			h.Close()
			return nil, nil, err
		}
		return h.Remote(program, db, dir), func() { h.Close(); _ = os.RemoveAll(dir) }, nil
	}
	return nil, func() {}, nil
}

// remote returns the search of fragments on the nodes of an engine.
func (a *app) remote(s searchFlags) (remote part.Remote, done func(), err error) {
	var o pilot.Options
	eng, err := s.engine.open(&o)
	if err != nil {
		return nil, nil, err
	}
	done = func() {}
	shared := s.work
	if shared == "" {
		if shared, err = os.MkdirTemp(".", ".premix-blast-"); err != nil {
			return nil, nil, err
		}
		done = func() { _ = os.RemoveAll(shared) } // if that fails, the name of the directory shows its purpose
	} else if err := os.Mkdir(s.work, 0o755); err != nil {
		return nil, nil, &usageError{err, "--work names a directory that does not exist yet"}
	}
	if shared, err = filepath.Abs(shared); err != nil {
		done()
		return nil, nil, err
	}
	self, err := programThere(eng, &o)
	if err != nil {
		done()
		return nil, nil, err
	}
	return part.InDirectory(shared, func(_ context.Context, p part.Directory) error {
		return a.runShards(eng, o, self, p)
	}), done, nil
}

// programThere returns the path of premix where an engine runs tasks: the same path on the
// nodes of a batch system, another one in an image.
func programThere(eng pilot.Engine, o *pilot.Options) (string, error) {
	if eng.Name() != kubernetes.Name {
		return os.Executable()
	}
	if path := o.Settings.Options["premix"]; path != "" {
		return path, nil
	}
	return "premix", nil
}

// runShards runs a task for each part of a search.
func (a *app) runShards(eng pilot.Engine, o pilot.Options, self string, p part.Directory) error {
	q, err := queue.Open(filepath.Join(p.Path, "tasks"), version, true)
	if err != nil {
		return err
	}
	defer q.Close()
	home, err := database.Home()
	if err != nil {
		return err
	}
	// A pod has another home directory than the user.
	env := map[string]string{"PREMIX_HOME": filepath.Dir(home)}
	for _, name := range []string{"PREMIX_BLAST_RAM", "BLASTDB"} {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	var text strings.Builder
	for i := range p.Count {
		line, err := json.Marshal(map[string]any{"command": []string{self, "blast", "shard", p.Path, strconv.Itoa(i)}, "env": env, "cores": p.Threads, "retries": 1})
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	batch, err := q.Submit(queue.BatchOptions{Options: queue.Options{Dir: p.Path}})
	if err != nil {
		return err
	}
	in := queue.Input{Name: "the parts of a search", Format: queue.JSONL}
	if err := in.Read(strings.NewReader(text.String()), batch); err != nil {
		batch.Abort()
		return err
	}
	if _, err := batch.Commit(); err != nil {
		return err
	}
	if o.Jobs == 0 {
		o.Jobs = min(p.Count, pilot.DefaultJobs)
	}
	if o.Cores < p.Threads {
		o.Cores = p.Threads
	}
	sum, err := a.dispatchTasks(q, eng, o, true)
	if sum != nil && len(sum.Failures) > 0 {
		f := sum.Failures[0]
		return &database.Error{Kind: database.Failed, Message: fmt.Sprintf("part %d of the search failed on %s: %s", f.Task, eng.Name(), f.Error), HintText: f.Hint}
	}
	return err
}
