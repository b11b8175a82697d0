package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine/local"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/kit/problem"
)

// usageError is a mistake in the command line.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }

// ExitCode implements exit.Coded.
func (*usageError) ExitCode() exit.Code { return exit.Usage }
func (e *usageError) Unwrap() error     { return e.err }
func (e *usageError) Hint() string      { return e.hint }

// app is the common state of all verbs.
type app struct {
	stdout, stderr io.Writer
	json, quiet    bool
	verbose        bool
}

// notes returns the writer for notes and progress, which --quiet leaves out. Errors and
// results are not among them.
func (a *app) notes() io.Writer {
	if a.quiet {
		return io.Discard
	}
	return a.stderr
}

// run executes one command line and returns premix's exit code.
func run(args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := a.root(args)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	began := time.Now()
	err := root.Execute()
	if err != nil {
		a.tell(err)
	}
	a.ended(began, exit.Of(err))
	return int(exit.Of(err))
}

// verb is a command directly below premix, its group in the help, and its constructor.
type verb struct {
	name, group string
	make        func() *cobra.Command
}

// groups are the groups of verbs in the help, in their order.
var groups = []string{"Run", "Data", "Images", "BLAST", "Transfer", "Watch", "Plan", "Node"}

func (a *app) verbs() []verb {
	return []verb{
		{"run", "Run", a.runCommand}, {"task", "Run", a.taskCommand}, {"hot", "Run", a.hotCommand}, {"shim", "Run", a.shimCommand},
		{"slurm-shim", "Run", a.slurmShimCommand}, {"prepare", "Run", a.prepareCommand}, {"snapshot", "Run", a.snapshotCommand}, {"report", "Run", a.reportCommand},
		{"demo", "Run", a.demoCommand},
		{"store", "Data", a.storeCommand}, {"mount", "Data", a.mountCommand}, {"umount", "Data", a.umountCommand}, {"cache", "Data", a.cacheCommand},
		{"files", "Data", a.filesCommand},
		{"image", "Images", a.imageCommand}, {"exec", "Images", a.execCommand}, {"snapshotter", "Images", a.snapshotterCommand},
		{"blast", "BLAST", a.blastCommand},
		{"transfer", "Transfer", a.transferCommand},
		{"watch", "Watch", a.watchCommand},
		{"replay", "Plan", a.replayCommand},
		{"node", "Node", a.nodeCommand}, {"doctor", "Node", a.doctorCommand}, {"version", "Node", a.versionCommand},
		{"verify-release", "Node", a.verifyReleaseCommand},
		{"manual", "", a.manualCommand},
	}
}

// root returns the command premix for args: with the verb that they begin with, or with all
// verbs. Making the flags of all verbs takes longer than some verbs run.
func (a *app) root(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "premix",
		Short: "Just add the sample: start a tool hot over many samples",
		Long: `premix runs one tool over many samples. The tool, its reference data and its own
memory are prepared once; each sample then starts from there.

  premix run bwa.yaml samples.csv --out out
  premix report out`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(cmd, args[0])
			}
			return nil
		},
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version: longVersion(), // for --version
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.before(cmd) }
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print results and errors as JSON")
	root.PersistentFlags().BoolVar(&a.quiet, "quiet", false, "print no notes, no progress and no summary of a run")
	root.PersistentFlags().BoolVar(&a.verbose, "verbose", false, "print the settings of the command, its decisions and its time, too")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		own := args
		if i := slices.Index(args, "--"); i >= 0 {
			own = args[:i]
		}
		a.json = a.json || slices.Contains(own, "--json") // flags after a wrong one are not parsed
		return wrongFlag(cmd, err)
	})
	for _, name := range groups {
		root.AddGroup(&cobra.Group{ID: name, Title: name + ":"})
	}
	root.SetHelpCommand(a.helpCommand())
	root.SetHelpCommandGroupID("Node")
	verbs := a.verbs()
	if i := slices.IndexFunc(verbs, func(v verb) bool { return len(args) > 0 && v.name == args[0] }); i >= 0 {
		verbs = verbs[i : i+1]
	}
	for _, v := range verbs {
		c := v.make()
		c.GroupID = v.group
		root.AddCommand(c)
	}
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		completeValues(root)
	}
	return root
}

// ownHome refuses a PREMIX_HOME to root in which another user could put keys, links and
// databases of their own; su(1) keeps the variable of the caller. A command of a pipeline is
// never refused: package calls decides how it starts.
func ownHome(cmd *cobra.Command) error {
	home := os.Getenv("PREMIX_HOME")
	verb := cmd
	for verb.HasParent() && verb.Parent().HasParent() {
		verb = verb.Parent()
	}
	if home == "" || slices.Contains([]string{"hot", "version", "help", "completion"}, verb.Name()) || cmd.Name() == workVerb {
		return nil
	}
	return owner.Trusted(home)
}

// arguments requires exactly the arguments in names.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return &usageError{fmt.Errorf("%s is missing", names[len(args)]), "usage: " + cmd.UseLine()}
		case len(args) > len(names) && nearCommand(cmd, args[0]) != "":
			return noCommand(cmd, args[0])
		case len(args) > len(names):
			return &usageError{fmt.Errorf("%q is one argument too many", args[len(names)]), "usage: " + cmd.UseLine()}
		}
		return nil
	}
}

// hinted is an error with a hint.
type hinted interface {
	error
	Hint() string
}

// message is an error in the output of --json, one a line.
type message struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	// Column is set for languages with several statements on a line.
	Column int `json:"column,omitempty"`
	Exit   int `json:"exit"`
}

// messages returns the messages of an error for people.
func messages(err error) []message {
	code := int(exit.Of(err))
	var status *commandStatus
	if errors.As(err, &status) {
		return nil // the command has printed its own messages
	}
	var problems problem.List
	if errors.As(err, &problems) {
		var list []message
		for _, p := range problems {
			list = append(list, message{Error: p.Message, Hint: p.Hint, File: p.File, Line: p.Line, Column: p.Column, Exit: code})
		}
		return list
	}
	m := message{Error: err.Error(), Exit: code}
	var h hinted
	if errors.As(err, &h) {
		m.Hint = h.Hint()
	}
	return []message{m}
}

// tell prints an error with its hint, as text or as JSON.
func (a *app) tell(err error) {
	for _, m := range messages(err) {
		if a.json {
			// Strings and numbers always have a JSON form; a closed stderr has no reader.
			_ = json.NewEncoder(a.stderr).Encode(m)
			continue
		}
		place := ""
		switch {
		case m.Column > 0:
			place = fmt.Sprintf(" (%s:%d:%d)", m.File, m.Line, m.Column)
		case m.Line > 0:
			place = fmt.Sprintf(" (%s:%d)", m.File, m.Line)
		case m.File != "":
			place = fmt.Sprintf(" (%s)", m.File)
		}
		fmt.Fprintf(a.stderr, "error: %s%s\n", m.Error, place)
		if m.Hint != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", m.Hint)
		}
	}
}

// interruptible returns a context that the first SIGINT, SIGTERM or SIGHUP cancels
// with a *local.Interrupted, and a channel that the second one closes.
func interruptible() (ctx context.Context, kill <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(context.Background())
	second := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		first := <-signals
		// Notify delivers the signals of package syscall on this system.
		number, _ := first.(syscall.Signal)
		cancel(&local.Interrupted{Signal: number})
		<-signals
		close(second)
	}()
	return ctx, second
}

// printJSON prints a result.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
