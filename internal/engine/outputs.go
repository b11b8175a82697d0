package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"premix/internal/hotstart"
	"premix/internal/kit/beneath"
	"premix/internal/recipe"
)

// Check returns an *OutputError if the outputs of a try in the work directory are not
// complete: each must exist and have the right type, and a standard output must not be empty,
// since every format with a header (SAM, BAM, VCF) has at least the header.
func Check(work string, outputs []recipe.Output) error {
	for _, o := range outputs {
		fail := func(reason, hint string) error { return &OutputError{Name: o.Name, Reason: reason, HintText: hint} }
		info, err := os.Lstat(filepath.Join(work, filepath.FromSlash(o.From)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fail(fmt.Sprintf("the tool succeeded but left no %s", o.From), "compare the command with the recipe's outputs: one of them names another file")
		case err != nil:
			return fmt.Errorf("output %s: %w", o.Name, err)
		case o.Dir && !info.IsDir():
			return fail(fmt.Sprintf("%s is not a directory", o.From), "a file is declared without a slash at the end")
		case !o.Dir && info.IsDir():
			return fail(fmt.Sprintf("%s is a directory", o.From), "a directory is declared with a slash at the end")
		case !o.Dir && !info.Mode().IsRegular():
			return fail(fmt.Sprintf("%s is not a regular file (%s)", o.From, info.Mode().Type()), "let the tool write the file itself")
		case info.Mode().IsRegular() && info.Size() == 0 && (o.From == hotstart.StdoutName || o.From == recipe.PipeStdoutName):
			return fail("the tool succeeded but wrote nothing to its standard output", "look at its standard error; where nothing is right, let the tool write a file instead")
		}
	}
	return nil
}

// Publish makes the outputs of a try durable and renames them from the work
// directory into the run directory, where they replace earlier ones. The earlier
// ones are in the work directory afterwards, or removed. Both directories are on
// one file system.
func Publish(work, dir string, outputs []recipe.Output) error {
	dirs := make(map[string]bool)
	for _, o := range outputs {
		from := filepath.Join(work, filepath.FromSlash(o.From))
		to := filepath.Join(dir, filepath.FromSlash(o.To))
		if err := beneath.SyncTree(from); err != nil {
			return fmt.Errorf("output %s: %w", o.Name, err)
		}
		if err := makeParent(dir, to, dirs); err != nil {
			return fmt.Errorf("output %s: %w", o.Name, err)
		}
		if err := replace(from, to); err != nil {
			return fmt.Errorf("output %s: %w", o.Name, err)
		}
	}
	for d := range dirs {
		if err := beneath.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}

// makeParent makes the directory that path lies in and adds to dirs every
// directory whose entries are going to change.
func makeParent(root, path string, dirs map[string]bool) error {
	parent := filepath.Dir(path)
	if dirs[parent] {
		return nil
	}
	dirs[parent] = true
	if parent == root {
		return nil
	}
	if _, err := os.Lstat(parent); err == nil {
		return nil
	}
	if err := makeParent(root, parent, dirs); err != nil {
		return err
	}
	if err := os.Mkdir(parent, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// replace renames from to to, whatever is there.
func replace(from, to string) error {
	old, err := os.Lstat(to)
	if errors.Is(err, fs.ErrNotExist) {
		return beneath.Move(from, to, beneath.Volatile)
	}
	if err != nil {
		return err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !old.IsDir() && !info.IsDir() {
		return beneath.Move(from, to, beneath.Volatile)
	}
	// A file system may have no exchange: for a moment there is nothing then. The task has
	// no record yet, so a premix killed now runs it again.
	return beneath.Exchange(from, to)
}
