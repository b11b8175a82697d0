package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/hotstart/dropin"
	"premix/internal/hotstart/procstate"
	"premix/internal/kit/units"
)

func (a *app) hotWarmCommand() *cobra.Command {
	var (
		beside  bool
		dirs    []int
		pipes   []int
		exe     string
		quota   memoryFlag
		streams = streamsFlag{Streams: [3]procstate.Stream{procstate.Null, procstate.File, procstate.File}}
	)
	cmd := &cobra.Command{
		Use:   "warm [flags] -- COMMAND...",
		Short: "Prepare a snapshot for a command now",
		Long: `Prepare a snapshot for a command now. The command is not run over its whole inputs: the
head of each is a probe, and the outputs of a hot and a plain start over it are compared.

The snapshot serves calls whose words for inputs, outputs and labels have the same
lengths, and whose standard streams are of the same kinds, which --streams names.

  premix hot warm --streams null,pipe,file -- bwa mem ref/genome.fa a_1.fq a_2.fq`,
		DisableFlagsInUseLine: true,
		Args:                  commandAfterDashes,
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, _ := interruptible()
			c, err := dropin.NewCall(exe, args)
			if err != nil {
				return err
			}
			c.Inherited.Streams, c.Inherited.Joined = streams.Streams, streams.Joined
			if beside { // otherwise with the streams that calls from this shell will have
				c.Inherited.Extra, c.Inherited.Ignored = streams.Extra, streams.Ignored
				c.Running, c.Directories, c.Pipes = true, dirs, pipes
			}
			set, err := dropin.ReadSettings()
			if err != nil {
				return err
			}
			if quota > 0 {
				set.Quota = int64(quota)
			}
			log := func(format string, args ...any) { fmt.Fprintf(a.notes(), format+"\n", args...) }
			if beside {
				return dropin.WarmBeside(ctx, c, set)
			}
			s, err := dropin.Warm(ctx, c, set, log)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			_, err = fmt.Fprintf(a.stdout, "%s: %s, saves about %.2f s a start\n", s.ID, units.Size(s.Bytes()), s.Loaded)
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&beside, "beside", false, "a call of the command is running")
	f.IntSliceVar(&dirs, "directory", nil, "index of an output that was a directory before the call")
	f.IntSliceVar(&pipes, "pipe", nil, "index of an input that was a pipe")
	f.StringVar(&exe, "exe", "", "program of the command")
	f.Var(&quota, "quota", "size up to which snapshots are kept, as in 50G (default: $PREMIX_HOT_QUOTA, or quota in hot.yaml, or 32G)")
	f.Var(&streams, "streams", "kinds of standard input, output and error: null, file, pipe, terminal; joined, for standard error in the same place as the output")
	hide(cmd, "beside", "directory", "pipe", "exe")
	return cmd
}

// streamsFlag is the kinds of standard streams.
type streamsFlag procstate.Inherited

func (s *streamsFlag) Set(text string) error {
	a, err := procstate.Parse(text)
	*s = streamsFlag(a)
	return err
}
func (s *streamsFlag) Type() string   { return "kinds" }
func (s *streamsFlag) String() string { return procstate.Inherited(*s).String() }
