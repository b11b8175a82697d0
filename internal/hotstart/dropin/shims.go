package dropin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/hotstart/calls"
	"premix/internal/hotstart/tools"
	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
)

// ShimOptions say which shims are made, and where.
type ShimOptions struct {
	Dir       string // empty: shims in the user's directory of premix
	All       bool   // tools of the catalogue that are on PATH too
	Container bool   // for tools in images, which need not be on PATH
}

// MakeShims makes shims of tools in a directory, and returns its absolute path. For
// containers the directory has everything that they need: the links are relative, and
// premix, premix-shim and env.sh, a file for BASH_ENV, are beside them.
func MakeShims(names []string, opt ShimOptions) (string, error) {
	shim, err := shimProgram()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.Contains(name, "/") || name == "" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "premix") {
			return "", exit.Errorf(exit.Usage, "give the name of a program, without a directory", "a shim cannot have the name %s", name)
		}
		var missing *calls.NotFound
		if _, _, err := calls.FindProgram(name); errors.As(err, &missing) && !opt.Container {
			return "", exit.Errorf(exit.Usage, missing.Hint()+"; for a tool in an image give --container", "%w", err)
		} else if err != nil && !opt.Container {
			return "", err
		}
	}
	if opt.All {
		for _, name := range tools.Names() {
			if _, _, err := calls.FindProgram(name); err == nil || opt.Container {
				names = append(names, name)
			}
		}
	}
	dir := opt.Dir
	if dir == "" {
		state, err := calls.Dir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(filepath.Dir(state), "shims")
		if opt.Container {
			dir += "-container"
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if opt.Container {
		if err := bring(dir, shim); err != nil {
			return "", err
		}
		shim = calls.ShimName
	}
	err = calls.MakeShims(dir, shim, names)
	if errors.Is(err, fs.ErrExist) {
		err = exit.Errorf(exit.Usage, "give an empty directory with --dir", "%w", err)
	}
	return dir, err
}

// bring copies premix and premix-shim into a directory, and writes env.sh there.
func bring(dir, shim string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for name, from := range map[string]string{"premix": self, calls.ShimName: shim} {
		program, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := beneath.Replace(filepath.Join(dir, name), 0o755, beneath.Volatile, program); err != nil {
			return err
		}
	}
	quoted := strings.ReplaceAll(dir, "'", `'\''`)
	env := "# For BASH_ENV: tools start through premix.\ncase \":$PATH:\" in\n*:'" + quoted + "':*) ;;\n*) PATH='" + quoted + "':$PATH ;;\nesac\n"
	return beneath.Replace(filepath.Join(dir, "env.sh"), 0o644, beneath.Volatile, []byte(env))
}

// shimProgram returns the path of premix-shim, which is installed beside premix.
func shimProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), calls.ShimName)
	if _, err := os.Stat(path); err != nil {
		return "", exit.Errorf(exit.Usage, "install "+calls.ShimName+" beside premix: make builds both into bin", "%w", err)
	}
	return path, nil
}
