package local

import (
	"path/filepath"
	"strings"

	"premix/engine"
	"premix/hotstart"
	"premix/recipe"
)

// checkTool says in plain words that a recipe's program is missing.
func checkTool(rec *recipe.Recipe) error {
	spec := rec.Spec(0, 0)
	tool := engine.FindTool(spec.Argv[0], spec.Env)
	if strings.Contains(tool, "/") {
		return nil
	}
	e := &ToolError{Tool: tool}
	for _, kv := range spec.Env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			e.Path = path
		}
	}
	return e
}

// newStarter makes the starter of a recipe's tasks.
func newStarter(rec *recipe.Recipe, threads int, memory int64, o hotstart.Options) (*hotstart.Starter, error) {
	if o.Store != "" {
		// Snapshots are used from other working directories than this one.
		store, err := filepath.Abs(o.Store)
		if err != nil {
			return nil, err
		}
		o.Store = store
	}
	spec := rec.Spec(threads, memory)
	spec.Plain = nil
	for _, in := range rec.Inputs {
		if in.Decompress {
			spec.Plain = append(spec.Plain, in.File)
		}
	}
	return hotstart.New(spec, o)
}
