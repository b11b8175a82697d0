package local

import (
	"strings"

	"premix/engine"
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
