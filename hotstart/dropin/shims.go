package dropin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"premix/hotstart/calls"
	"premix/internal/exit"
	"premix/tools"
)

// ShimError is the error for shims that cannot be made as they were asked for.
type ShimError struct {
	Err  error
	hint string
}

func (e *ShimError) Error() string { return e.Err.Error() }
func (e *ShimError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *ShimError) Hint() string { return e.hint }

// ExitCode implements exit.Coded.
func (*ShimError) ExitCode() exit.Code { return exit.Usage }

// MakeShims makes shims of tools in a directory, and returns its absolute path. An empty
// dir is shims in the user's directory of premix. With all, tools of the catalogue that
// are on PATH are added.
func MakeShims(dir string, names []string, all bool) (string, error) {
	shim, err := shimProgram()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.Contains(name, "/") || name == "" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "premix") {
			return "", &ShimError{errors.New("no shim can be called " + name), "name a program as it is called, without a directory"}
		}
		if _, err := calls.Program(name); err != nil {
			return "", err
		}
	}
	if all {
		for _, name := range tools.Names() {
			if _, err := calls.Program(name); err == nil {
				names = append(names, name)
			}
		}
	}
	if dir == "" {
		state, err := calls.Dir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(filepath.Dir(state), "shims")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	err = calls.MakeShims(dir, shim, names)
	if errors.Is(err, fs.ErrExist) {
		err = &ShimError{err, "give an empty directory with --dir"}
	}
	return dir, err
}

// shimProgram returns the path of premix-shim, which is installed beside premix.
func shimProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), calls.ShimName)
	if _, err := os.Stat(path); err != nil {
		return "", &ShimError{err, "install " + calls.ShimName + " beside premix: make builds both into bin"}
	}
	return path, nil
}
