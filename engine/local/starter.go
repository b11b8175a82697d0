package local

import (
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"

	"premix/engine"
	"premix/recipe"
)

// checkTool says in plain words that a recipe's program is missing, or is none.
// The error is a *ToolError, or with an image an *image.Error.
func checkTool(rec *recipe.Recipe) error {
	spec := rec.Spec(0, 0)
	if spec.Image != nil {
		return spec.Image.Find(spec.Argv[0], spec.Env)
	}
	tool := engine.FindTool(spec.Argv[0], spec.Env)
	if filepath.Base(tool) == tool {
		return &ToolError{Tool: tool}
	}
	_, err := exec.LookPath(tool)
	if err == nil {
		return nil
	}
	// The outer errors repeat the path.
	var look *exec.Error
	if errors.As(err, &look) {
		err = look.Err
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &ToolError{Tool: tool, Err: err}
}
