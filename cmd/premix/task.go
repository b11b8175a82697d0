package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
)

func (a *app) taskCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "task",
		Short: "Run very many commands without a recipe",
		Long: `Run very many commands without a recipe: submit them to a directory, run them, and see
the result of each.

  seq 1000 | sed 's/.*/gzip part.&/' | premix task run --out out -
  premix task ls out
  premix task why out 471`,
	})
	cmd.AddCommand(a.taskSubmit(), a.taskRun(), a.taskLs(), a.taskWhy(), a.taskTail(), a.taskFollow(), a.taskCancel(), a.taskRetry(), a.taskPrune(), a.taskWork())
	return cmd
}

// batchFlags are the options of a batch: the form of its input, and the needs of its
// tasks.
type batchFlags struct {
	input   queue.Input
	batch   queue.BatchOptions
	format  string
	array   string
	cores   countFlag
	memory  memoryFlag
	timeout durationFlag
	growth  float64
	held    []string // resources
	after   string   // tasks
	names   []string // of the flags
}

func (b *batchFlags) register(cmd *cobra.Command) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	defer func() {
		f.VisitAll(func(flag *pflag.Flag) { b.names = append(b.names, flag.Name) })
		cmd.Flags().AddFlagSet(f)
	}()
	f.StringVar(&b.format, "format", "", "format of FILE: lines, jsonl, csv or tsv (default: by its name)")
	f.BoolVarP(&b.input.Null, "null", "0", false, "lines end with a byte of 0, not with a newline")
	f.StringVarP(&b.input.Template, "template", "t", "", "command with places for each line, or row of a table: {}, {1}, {name}, {.}, {/}")
	f.StringVar(&b.array, "array", "", "run each task once for every index, as in 1-100; it is in $PREMIX_INDEX")
	f.StringVar(&b.batch.Group, "group", "", "group of the tasks (default: "+queue.DefaultGroup+")")
	f.StringSliceVar(&b.batch.After, "after", nil, "start when all tasks of this group have succeeded")
	f.StringVar(&b.after, "after-tasks", "", "start when all these tasks of the directory have succeeded, as in 1-10,15")
	f.IntVar(&b.batch.Priority, "priority", 0, "higher ones start first")
	f.IntVar(&b.batch.Retries, "retries", 0, "further tries of a failed task")
	f.Var(&b.cores, "task-cores", "cores of a task (default: 1)")
	f.Var(&b.memory, "task-memory", "memory of a task, as in 2G: it is counted, and limited if possible")
	f.StringSliceVar(&b.held, "task-resource", nil, "resources of a task, as in gpu=1")
	f.Float64Var(&b.growth, "memory-growth", 2, "factor by which memory grows for a further try after a try that ran out of memory")
	f.Var(&b.timeout, "timeout", "longest time of a try, as in 2h")
	f.StringVar(&b.batch.Files, "files", "", "directory for one file of output per task, in place of a few files for all")
}

// given returns the names of the batch's flags that are on the command line.
func (b *batchFlags) given(f *pflag.FlagSet) (list []string) {
	for _, name := range b.names {
		if f.Changed(name) {
			list = append(list, name)
		}
	}
	return list
}

// open opens file, or standard input if it is "-", for the directory dir. Unless dir is
// already a task directory, open first checks all tasks, so that invalid tasks do not
// leave a new directory behind.
func (b *batchFlags) open(dir, file string) (in *os.File, err error) {
	if b.batch.Dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	if b.array != "" {
		if b.input.Array, err = queue.ParseArray(b.array); err != nil {
			return nil, err
		}
	}
	if b.after != "" {
		if b.batch.AfterTasks, err = queue.ParseArray(b.after); err != nil {
			return nil, &usageError{fmt.Errorf("--after-tasks: %q is not a list of tasks", b.after), "write numbers and ranges, as in 1-10,15"}
		}
	}
	b.batch.Cores, b.batch.Memory, b.batch.Timeout = int(b.cores), int64(b.memory), time.Duration(b.timeout)
	b.batch.Growth = b.growth
	if len(b.held) > 0 {
		r, err := queue.ParseResources(strings.Join(b.held, ","))
		if err != nil {
			return nil, &usageError{fmt.Errorf("--task-resource: %w", err), "write it as in --task-resource gpu=1"}
		}
		b.batch.Resources = r.String()
	}
	switch b.format {
	case "lines", "jsonl", "csv", "tsv":
		b.input.Format = queue.Format(b.format)
	case "":
		b.input.Format = map[string]queue.Format{".jsonl": queue.JSONL, ".ndjson": queue.JSONL, ".csv": queue.CSV, ".tsv": queue.TSV}[filepath.Ext(file)]
	default:
		return nil, &usageError{fmt.Errorf("there is no format %q", b.format), "it is one of lines, jsonl, csv and tsv"}
	}
	in = os.Stdin
	b.input.Name = "standard input"
	if file != "-" {
		if in, err = os.Open(file); err != nil {
			return nil, &usageError{err, hintCommands}
		}
		b.input.Name = file
	}
	if queue.IsDir(dir) {
		return in, nil
	}
	begin, err := in.Seek(0, io.SeekCurrent)
	if err != nil { // a pipe can be read only once
		pipe := in
		in, err = kept(pipe)
		pipe.Close()
		if err != nil {
			return nil, err
		}
	}
	if err = b.input.Check(in, b.batch); err == nil {
		_, err = in.Seek(begin, io.SeekStart)
	}
	if err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

// kept copies r to a file in memory, which can be read twice.
func kept(r io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate("tasks", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "standard input")
	if _, err = io.Copy(f, r); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// submit submits the tasks in the input that open has returned.
func (b *batchFlags) submit(q *queue.Queue, in io.Reader) (*queue.Submitted, error) {
	batch, err := q.Submit(b.batch)
	if err != nil {
		return nil, err
	}
	if err := b.input.Read(in, batch); err != nil {
		batch.Abort()
		return nil, err
	}
	return batch.Commit()
}

// hintCommands is the hint for a file of commands that cannot be read.
const hintCommands = "give a file of commands, or - for standard input"

// check checks the options on the command line, before a directory is made. file is empty
// if the command line has none.
func (b *batchFlags) check(file string) error {
	if file != "" && file != "-" {
		info, err := os.Stat(file)
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a directory", file)
		}
		if err != nil {
			return &usageError{err, hintCommands}
		}
	}
	switch {
	case b.batch.Retries < 0:
		return &usageError{fmt.Errorf("--retries is less than 0"), "0 means one try a task"}
	case b.growth < 1:
		return &usageError{fmt.Errorf("--memory-growth is less than 1"), "2 doubles the memory for each further try"}
	}
	return nil
}

// selection reads numbers of tasks from a command line.
func selection(group string, tasks []string) (*queue.Selection, error) {
	s := &queue.Selection{Group: group}
	for _, t := range tasks {
		if err := s.ParseTasks(t); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// atLeast requires a directory; more arguments may follow.
func atLeast(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{fmt.Errorf("DIR is missing"), "usage: " + cmd.UseLine()}
	}
	return nil
}
