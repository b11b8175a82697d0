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
	"syscall"

	"github.com/spf13/cobra"

	"premix/blast/database"
	"premix/blast/search"
	"premix/blast/service"
	"premix/engine"
	"premix/engine/local"
	"premix/engine/pack"
	"premix/engine/queue"
	"premix/engine/slurm"
	"premix/files"
	"premix/hotstart"
	"premix/image"
	"premix/image/snapshotter"
	"premix/image/watch"
	"premix/internal/problem"
	"premix/node"
	"premix/record"
	"premix/store"
	"premix/store/object"
	"premix/store/origin"
	"premix/store/tree"
	"premix/store/trust"
)

// Exit codes; see docs/exit-codes.md.
const (
	exitOK          = 0
	exitFailed      = 1   // some task failed, or a snapshot is damaged
	exitUsage       = 2   // command line, recipe or sample sheet
	exitUnavailable = 3   // the wished start is not possible here
	exitDirectory   = 4   // the run directory is locked or cannot be resumed
	exitOrigin      = 5   // no origin gave what is needed
	exitTrust       = 6   // what an origin gave is not to be trusted
	exitInternal    = 10  // anything else
	exitSignal      = 128 // plus the number of the signal that interrupted premix
)

// usageError is a mistake in the command line.
type usageError struct {
	err error
	way string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) Hint() string  { return e.way }

// app is what all verbs share.
type app struct {
	stdout, stderr io.Writer
	json           bool
}

// run executes one command line and returns premix' exit code.
func run(args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := a.root(args)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err != nil {
		a.tell(err)
	}
	return exitCode(err)
}

// verb is a command directly below premix, and what makes it.
type verb struct {
	name string
	make func() *cobra.Command
}

func (a *app) verbs() []verb {
	return []verb{
		{"run", a.runCommand}, {"task", a.taskCommand}, {"slurm-shim", a.slurmShimCommand}, {"prepare", a.prepareCommand}, {"report", a.reportCommand},
		{"snapshot", a.snapshotCommand}, {"store", a.storeCommand}, {"image", a.imageCommand}, {"exec", a.execCommand}, {"snapshotter", a.snapshotterCommand},
		{"mount", a.mountCommand}, {"umount", a.umountCommand}, {"node", a.nodeCommand}, {"cache", a.cacheCommand}, {"blast", a.blastCommand},
		{"files", a.filesCommand}, {"transfer", a.transferCommand}, {"doctor", a.doctorCommand}, {"version", a.versionCommand},
		{"replay", a.replayCommand}, {"watch", a.watchCommand},
	}
}

// root is the command premix, as args need it: with the one verb that they begin with, or
// with all. To describe the flags of all takes longer than some of them do.
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
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print results and errors as JSON")
	root.SetFlagErrorFunc(wrongFlag)
	verbs := a.verbs()
	if i := slices.IndexFunc(verbs, func(v verb) bool { return len(args) > 0 && v.name == args[0] }); i >= 0 {
		verbs = verbs[i : i+1]
	}
	for _, v := range verbs {
		root.AddCommand(v.make())
	}
	return root
}

// arguments wants exactly those that names lists.
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

// hinted is an error that knows the way out.
type hinted interface {
	error
	Hint() string
}

// message is an error as --json prints it, one a line.
type message struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	// Column is told of languages in which a line may hold several things.
	Column int `json:"column,omitempty"`
	Exit   int `json:"exit"`
}

// messages are what an error says to people.
func messages(err error) []message {
	code := exitCode(err)
	var status *commandStatus
	if errors.As(err, &status) {
		return nil // it has said itself what there was to say
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
	var unavailable *hotstart.Unavailable
	var damaged *hotstart.Damaged
	switch {
	case errors.As(err, &h):
		m.Hint = h.Hint()
	case errors.As(err, &unavailable):
		m.Hint = unavailable.Hint
	case errors.As(err, &damaged):
		m.Hint = "remove it with premix snapshot rm " + damaged.ID + ": the next run prepares a new one"
	}
	return []message{m}
}

// tell prints an error.
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

// exitCode is the documented code of an error.
func exitCode(err error) int {
	var (
		usage       *usageError
		input       *queue.InputError
		problems    problem.List
		budget      *local.BudgetError
		tool        *local.ToolError
		option      *pack.OptionError
		given       *pack.BusyError
		noSlurm     *slurm.MissingError
		refusedJobs *pack.RefusedError
		noEngine    *pack.UnreachableError
		lostJobs    *pack.LostError
		closed      *pack.ClosedError
		full        *local.FullError
		failed      *local.FailedError
		stopped     *local.StoppedError
		probe       *local.ProbeError
		interrupted *local.Interrupted
		unavailable *hotstart.Unavailable
		dir         *engine.DirError
		format      *record.FormatError
		blastOption *search.OptionError
		noBLAST     *search.MissingError
		damaged     *hotstart.Damaged
		use         *store.UseError
		source      *store.SourceError
		access      *store.AccessError
		damage      *store.DamageError
		found       *damagedStore
		cut         *storeInterrupted
		refused     *node.Error
		rotten      *cacheDamage
		noOrigin    *origin.OpenError
		secrets     *origin.CredentialsError
		silent      *origin.Error
		noTag       *trust.NoTagError
		noKey       *trust.KeyFileError
		state       *trust.StateError
		changed     *trust.ChangedError
		untrusted   *trust.UntrustedError
		rollback    *trust.RollbackError
		older       *store.OlderError
		bad         *image.Error
		lacking     *watch.FailedError
		busy        *watch.BusyError
		lost        *watch.StateError
		status      *commandStatus
		snapshots   *snapshotter.Error
		table       *files.TableError
		root        *files.RootError
		unwritten   *files.WriteError
		unread      *unreadFiles
		blast       *database.Error
		held        *service.BusyError
		tokens      *service.TokensError
	)
	if code, ok := replayExit(err); ok {
		return code
	}
	if code, ok := watchExit(err); ok {
		return code
	}
	switch {
	case err == nil:
		return exitOK
	case policyExit(err) != exitOK:
		return policyExit(err)
	case tiersExit(err) != exitOK:
		return tiersExit(err)
	case transferExit(err) != exitOK:
		return transferExit(err)
	case errors.As(err, &interrupted):
		return exitSignal + int(interrupted.Signal)
	case errors.As(err, &cut):
		return exitSignal + int(cut.signal)
	case errors.As(err, &refused):
		return nodeExit(refused.Kind)
	case errors.As(err, &status):
		return status.code
	case errors.As(err, &bad):
		return imageExit(bad.Kind)
	case errors.As(err, &snapshots):
		return snapshotterExit(snapshots.Kind)
	case errors.As(err, &held):
		return exitDirectory
	case errors.As(err, &tokens):
		return exitUsage
	case errors.As(err, &blast):
		return databaseExit(blast.Kind)
	case errors.As(err, &lacking):
		return syncExit(lacking)
	case errors.As(err, &usage), errors.As(err, &option), errors.As(err, &input), errors.As(err, &problems), errors.As(err, &budget), errors.As(err, &tool), errors.As(err, &use),
		errors.As(err, &table), errors.As(err, &root), errors.As(err, &blastOption), errors.As(err, &noBLAST), errors.As(err, &noOrigin), errors.As(err, &secrets), errors.As(err, &noTag), errors.As(err, &noKey), errors.As(err, &state):
		return exitUsage
	case errors.As(err, &changed), errors.As(err, &untrusted), errors.As(err, &rollback), errors.As(err, &older):
		return exitTrust
	case errors.As(err, &unavailable), errors.As(err, &refusedJobs), errors.As(err, &noSlurm):
		return exitUnavailable
	case errors.As(err, &dir), errors.As(err, &format), errors.As(err, &access), errors.As(err, &busy), errors.As(err, &given), errors.As(err, &unwritten):
		return exitDirectory
	case errors.As(err, &failed), errors.As(err, &unread), errors.As(err, &stopped), errors.As(err, &full), errors.As(err, &lostJobs), errors.As(err, &closed), errors.As(err, &probe), errors.As(err, &damaged), errors.As(err, &source), errors.As(err, &damage), errors.As(err, &found), errors.As(err, &rotten), errors.As(err, &lost):
		return exitFailed
	case errors.As(err, &silent), errors.As(err, &noEngine), object.IsCorrupt(err), tree.IsInvalid(err):
		return exitOrigin
	}
	return exitInternal
}

// interruptible is a context that the first SIGINT, SIGTERM or SIGHUP cancels
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
