package calls

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tools"
	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
)

// ShimName is the name of the program that shims are links to.
const ShimName = "premix-shim"

// besideName is argument 0 of a process that starts another one and ends.
const besideName = "premix-beside"

// Shim is the main function of a shim. It executes the next program of its name on PATH,
// directly or through premix. It returns only with an error.
func Shim() error {
	if RunBeside() {
		return nil
	}
	name := shimName()
	if name == ShimName {
		return errors.New("premix-shim has to be called by the name of a tool\nhint: premix shim TOOL makes a directory for PATH")
	}
	c := Call{Argv: slices.Clone(os.Args)}
	var err error
	if c.Path, c.Exe, err = FindProgram(name); err != nil {
		return err
	}
	if strings.Contains(c.Argv[0], "/") && filepath.Base(c.Argv[0]) == name { // the caller had found the shim by itself
		c.Argv[0] = c.Path
	}
	c.Env = Environ(c.Path)
	premix := premixProgram()
	if Disabled() || premix == "" {
		return RunPlain(c)
	}
	if c.Dir, err = WorkingDir(); err != nil {
		return RunPlain(c)
	}
	c.Inherited = procstate.Current()
	// A call whose state cannot be read starts cold, with the reason in its record.
	p, _ := Decide(c)
	p = Prepare(premix, c, p)
	if p.Hot || p.Behind != nil {
		// premix records how the command has started.
		args := append([]string{"premix", "hot", "--noted", "--waited", p.Waited.String(), "--exe", c.Exe, "--"}, c.Argv...)
		procstate.Restore()
		if err := syscall.Exec(premix, args, c.Env); err != nil {
			p.Reason = err.Error()
		}
	}
	RecordStart(Start{Tool: name, Start: "cold", Why: p.Reason, Waited: p.Waited.Seconds()})
	return RunPlain(c)
}

// shimName returns the name by which this shim was executed. Argument 0 may be another text,
// as with exec -a in a shell.
func shimName() string {
	name := filepath.Base(os.Args[0])
	if path := procstate.ExecPath(); path != "" && filepath.Base(path) != name && isShim(path) {
		return filepath.Base(path)
	}
	return name
}

// premixProgram returns the premix of a shim: the premix in the shim's directory, or else
// the premix on PATH.
func premixProgram() string {
	if self, err := os.Readlink("/proc/self/exe"); err == nil {
		if path := filepath.Join(filepath.Dir(self), "premix"); isProgram(path) {
			return path
		}
	}
	_, path, err := FindProgram("premix")
	if err != nil {
		return ""
	}
	return path
}

// RunPlain executes a command in place of this process. It returns only with an error.
func RunPlain(c Call) error {
	procstate.Restore()
	path := cmp.Or(c.Path, c.Exe) // a script prints it
	err := syscall.Exec(path, c.Argv, c.Env)
	if errors.Is(err, syscall.ENOEXEC) {
		// A script without a first line that names its interpreter, as execvp(3) has it.
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, c.Argv[1:]...), c.Env)
	}
	return fmt.Errorf("execute %s: %w", c.Exe, err)
}

// NotFound is the error for a program that is not on PATH.
type NotFound struct{ Name string }

func (e *NotFound) Error() string { return fmt.Sprintf("%s: no such program on PATH", e.Name) }

// Hint returns the hint for the user.
func (e *NotFound) Hint() string { return "install it, or add its directory to PATH" }

// ExitCode implements exit.Coded.
func (*NotFound) ExitCode() exit.Code { return exit.Usage }

// FindProgram returns the path by which a shell executes a program, and its absolute path. A
// name without a slash is the first one on PATH that is not a shim.
func FindProgram(name string) (path, exe string, err error) {
	found := func(path string) (string, string, error) {
		exe, err := filepath.Abs(path)
		return path, exe, err
	}
	if strings.Contains(name, "/") {
		if !isProgram(name) {
			return "", "", &NotFound{name}
		}
		return found(name)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			dir = "."
		}
		if path := strings.TrimSuffix(dir, "/") + "/" + name; isProgram(path) && !isShim(path) {
			return found(path)
		}
	}
	return "", "", &NotFound{name}
}

// Environ returns the environment of this process for a program in its place. A shell has put
// the path by which it has executed this process into the variable _.
func Environ(path string) []string {
	env := os.Environ()
	for i, v := range env {
		if v == "_="+procstate.ExecPath() {
			env[i] = "_=" + path
		}
	}
	return env
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}

// isShim reports whether a path leads to premix-shim, of whatever installation.
func isShim(path string) bool {
	real, err := filepath.EvalSymlinks(path)
	return err == nil && filepath.Base(real) == ShimName
}

// MakeShims makes shims of tools in a directory, which is made if it is missing. shim is
// the program premix-shim.
func MakeShims(dir, shim string, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		if to, err := os.Readlink(path); err == nil && to == shim {
			continue
		}
		if _, err := os.Lstat(path); err == nil && !isShim(path) {
			return &fs.PathError{Op: "make a shim", Path: path, Err: fs.ErrExist}
		}
		// A call may look for the shim at any time: it is replaced in one step.
		temporary := filepath.Join(dir, fmt.Sprintf(".%s.%d", name, os.Getpid()))
		if err := os.Symlink(shim, temporary); err != nil {
			return err
		}
		if err := beneath.Move(temporary, path, beneath.Volatile); err != nil {
			return errors.Join(err, os.Remove(temporary))
		}
	}
	return nil
}

// Prepare prepares a snapshot if the plan for a call asks for it, or waits for another process
// that prepares one, if this is worth it. It returns the plan of the call after that.
func Prepare(premix string, c Call, p Plan) Plan {
	if p.Prepare {
		l, err := Lock()
		if err != nil {
			return p
		}
		if l != nil {
			l.Close()
			return prepare(premix, c, p)
		}
	}
	if p.Await {
		return await(c, p)
	}
	return p
}

// prepare is Prepare where no other process prepares.
func prepare(premix string, c Call, p Plan) Plan {
	command := []string{"premix", "hot", "warm", "--beside", "--streams", c.Inherited.String(), "--exe", c.Exe}
	for _, k := range matching(c, p, tools.Output, fs.ModeDir) {
		command = append(command, "--directory", strconv.Itoa(k))
	}
	for _, k := range matching(c, p, tools.Input, fs.ModeNamedPipe) {
		command = append(command, "--pipe", strconv.Itoa(k))
	}
	command = append(append(command, "--"), c.Argv...)
	if !p.First {
		// The process belongs to another session, and is not a child of this one: the
		// caller's program gets no child that it does not know.
		self, err := os.Readlink("/proc/self/exe")
		if err == nil {
			execute(self, append([]string{besideName, premix}, command...), c, &syscall.SysProcAttr{Setsid: true})
		}
		return p
	}
	execute(premix, command, c, nil)
	if now, err := Preview(c); err == nil {
		now.Prepare = false
		return now
	}
	return p
}

// execute runs a program with the environment and in the directory of a call, and waits
// for its end. It is best effort.
func execute(exe string, args []string, c Call, attr *syscall.SysProcAttr) {
	files, end, err := besideFiles()
	if err != nil {
		return
	}
	defer end()
	pid, err := syscall.ForkExec(exe, args, &syscall.ProcAttr{Env: c.Env, Dir: c.Dir, Files: files, Sys: attr})
	if err != nil {
		return
	}
	var st syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &st, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// matching returns the indexes of the late words with a role whose files are of a type.
func matching(c Call, p Plan, role tools.Role, mode fs.FileMode) []int {
	var all []int
	for k, w := range p.Words {
		path := c.Argv[w.Arg][w.From:w.To]
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Dir, path)
		}
		if info, err := os.Stat(path); w.Role == role && err == nil && info.Mode().Type() == mode {
			all = append(all, k)
		}
	}
	return all
}

// besideFiles returns the descriptors of a process that runs during a call. Its standard
// streams are /dev/null, and all other descriptors are closed. Otherwise it would keep a
// pipe open, and a program would wait for the end of the pipe.
func besideFiles() (files []uintptr, end func(), err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	files = []uintptr{null.Fd(), null.Fd(), null.Fd()}
	all, err := procstate.Descriptors()
	if err != nil {
		null.Close()
		return nil, nil, err
	}
	for _, fd := range all {
		for len(files) <= fd {
			files = append(files, closed)
		}
	}
	return files, func() { null.Close() }, nil
}

// closed is a descriptor that syscall.ForkExec closes in the child.
const closed = ^uintptr(0)

// RunBeside starts the program of a process that runs during a call, if this process was
// started for that purpose, and reports whether it was.
func RunBeside() bool {
	if len(os.Args) < 3 || os.Args[0] != besideName {
		return false
	}
	// No process waits for this one, so it has no caller to report an error to.
	_, _ = syscall.ForkExec(os.Args[1], os.Args[2:], &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setsid: true}})
	return true
}
