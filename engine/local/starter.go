package local

import (
	"path/filepath"

	"premix/hotstart"
	"premix/recipe"
)

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
