package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"premix/internal/engine"
	"premix/internal/recipe"
)

// checkTool returns an error if a recipe's program is missing, or is not a program.
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
		if err = checkScript(tool); err == nil {
			return nil
		}
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

// scriptError is the reason why the kernel would not execute a script. It says more than the
// kernel's "exec format error" and "no such file or directory".
type scriptError struct{ reason, hint string }

func (e *scriptError) Error() string { return e.reason }

// checkScript looks at the first line of a program, if it is a script.
func checkScript(tool string) error {
	f, err := os.Open(tool)
	if err != nil {
		return nil // a program may be executed and not be read
	}
	defer f.Close()
	head := make([]byte, 256) // as much as the kernel looks at: BINPRM_BUF_SIZE
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	line, _, _ := strings.Cut(string(head[:n]), "\n")
	program, script := strings.CutPrefix(line, "#!")
	if !script {
		if n > 0 && bytes.IndexFunc(head[:n], func(r rune) bool { return r < ' ' && !unicode.IsSpace(r) || r == utf8.RuneError }) >= 0 {
			return nil // a binary, of whatever kind this machine executes
		}
		return &scriptError{"it does not begin with #!", "begin it with the path of its interpreter, as in #!/bin/sh"}
	}
	fields := strings.Fields(program)
	if len(fields) == 0 || !filepath.IsAbs(fields[0]) {
		return nil
	}
	if _, err := os.Stat(fields[0]); !errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(line, "\r") {
		return nil
	}
	if strings.HasSuffix(line, "\r") {
		return &scriptError{"its first line ends with a carriage return, as files from Windows have it", "convert it with dos2unix"}
	}
	return &scriptError{fmt.Sprintf("its interpreter %s is not there", fields[0]), "fix its first line, or install the interpreter"}
}
