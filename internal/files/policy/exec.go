package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// outputFile is the file of a journal with the output of the programs of rules with EXEC.
const outputFile = "output.txt"

// again is set in the environment of a program if an earlier call was killed while the
// program ran for the same file, or before.
const again = "PREMIX_AGAIN=1"

// skipEnded is the reason for not running a program again.
const skipEnded skip = "premix was killed while the program ran, and the file is gone or has changed since"

// programOf returns the path of the program of a rule. It refuses a program that other users
// can change, since they would get the rights of root.
func programOf(rule *Rule) (string, error) {
	path, err := filepath.EvalSymlinks(rule.Program)
	if err != nil {
		return "", err
	}
	f, err := owner.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	return path, errors.Join(f.Close(), owner.Trusted(filepath.Dir(path)))
}

// execute runs programs for files, several at a time. Before that it notes all of them, so
// that a later call finds the programs that may have run.
//
// The programs inherit the lock of the journal. So no other call can run while one of them,
// or a process that it started, is left of a killed premix.
func (x *runner) execute(ctx context.Context, list []*Action) error {
	if len(list) == 0 {
		return nil
	}
	for _, a := range list {
		x.j.note(a, Event{Result: Running})
	}
	if err := x.j.write(); err != nil {
		return err
	}
	output, err := owner.OpenFile(filepath.Join(x.j.dir, outputFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o664)
	if err != nil {
		return exit.Errorf(exit.Directory, "", "the journal %s cannot be written: %w", x.j.dir, err)
	}
	defer output.Close() // programs wrote to it, and their data is not premix's
	errs := make([]error, len(list))
	var all sync.WaitGroup
	slots := make(chan struct{}, x.o.Workers)
	for i, a := range list {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = x.executeOne(ctx, a, output)
		})
	}
	all.Wait()
	for i, a := range list {
		if ctx.Err() != nil && errors.Is(errs[i], context.Cause(ctx)) {
			continue // it is run again
		}
		e := Event{}
		var status *exec.ExitError
		if errors.As(errs[i], &status) {
			e.Status = status.ExitCode()
		}
		x.settle(a, errs[i], e)
	}
	if err := x.j.write(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// executeOne runs the program of a rule for one file: with its path as the argument, and the
// open file, which is the file that the scan found, as the standard input.
func (x *runner) executeOne(ctx context.Context, a *Action, output *os.File) error {
	if x.files != nil {
		if err := interrupted(ctx, x.files.Wait(ctx)); err != nil {
			return err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	path, err := programOf(x.ruleOf(a))
	if err != nil {
		return fmt.Errorf("its program: %w", err)
	}
	r, err := x.open(a)
	if x.running[a.ID] && (errors.Is(err, skipGone) || errors.Is(err, skipChanged)) {
		return skipEnded
	}
	if err != nil {
		return err
	}
	defer r.close()
	if r.leased { // the program may write to the file
		if _, err := unix.FcntlInt(r.src.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, path, string(a.Path))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.src, output, output
	cmd.ExtraFiles = []*os.File{x.j.lock}
	cmd.Env = append(os.Environ(), "PREMIX_RULE="+a.Rule)
	if x.running[a.ID] {
		cmd.Env = append(cmd.Env, again)
	}
	err = cmd.Run()
	if ctx.Err() != nil && err != nil {
		return context.Cause(ctx)
	}
	var status *exec.ExitError
	if errors.As(err, &status) {
		return fmt.Errorf("its program: %w", err)
	}
	return err
}
