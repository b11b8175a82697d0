package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/transfer"
	"premix/internal/transfer/link"
	"premix/internal/transfer/testbed"
)

func (a *app) transferBench() *cobra.Command {
	var (
		o        testbed.Options
		repeat   countFlag
		at       string
		span     durationFlag
		timer    bool
		schema   bool
		schedule testbed.Schedule
	)
	cmd := &cobra.Command{
		Use:   "bench LINK.yaml --out DIR",
		Short: "Copy by every protocol of a link file, and measure each copy",
		Long: `Copy files and trees by every protocol of a link file, one at a time and in random
order, capture the packets of each copy, compare its content, and write a row for it.

  premix transfer bench link.yaml --out results --repeat 5 --packets
  premix transfer bench link.yaml --out results --at 03:00,13:00 --for 14d

With --at it keeps running, and does one round at each of these times. --print-timer
prints units for systemd and lines for cron instead. Rows of several invocations add up.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if schema && len(args) == 0 {
				return nil
			}
			return arguments("LINK.yaml")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if schema {
				_, err := a.stdout.Write(link.Schema())
				return err
			}
			switch {
			case o.Out == "" && !timer:
				return &usageError{errors.New("--out is missing"), "give a directory for the results: --out results"}
			case !slices.Contains([]string{testbed.CapturePacket, testbed.CaptureTcpdump, testbed.CaptureNone}, o.Capture):
				return &usageError{fmt.Errorf("there is no capture %q", o.Capture), "it is one of packet, tcpdump and none"}
			case o.Capture == testbed.CaptureNone && (o.Packets || o.Pcap):
				return &usageError{errors.New("without a capture there are no packets to keep"), "leave out --capture none, or --packets and --pcap"}
			case (span > 0 || timer) && at == "":
				return &usageError{errors.New("--at is missing"), "as in --at 03:00,13:00"}
			}
			if at != "" {
				if schedule.At, err = testbed.ParseTimes(at); err != nil {
					return &usageError{err, "as in --at 03:00,13:00"}
				}
			}
			l, err := link.Load(args[0])
			if err != nil {
				return err
			}
			o.Repeat, o.Version = int(repeat), version
			if o.Premix, err = os.Executable(); err != nil {
				return err
			}
			if timer {
				return a.printTimer(schedule, l, o)
			}
			ctx, done := storeContext()
			defer done()
			if at == "" {
				return a.benchOnce(ctx, l, o)
			}
			schedule.For = time.Duration(span)
			if o.Repeat == 0 {
				o.Repeat = 1
			}
			return a.benchDaemon(ctx, l, o, schedule)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "directory of results")
	f.Var(&repeat, "repeat", "rounds (default: the link file's, or 5; with --at 1)")
	f.BoolVar(&o.Packets, "packets", false, "keep a table of all packets of each copy (Parquet)")
	f.BoolVar(&o.Pcap, "pcap", false, "keep a pcap file of each copy, headers only")
	f.StringVar(&o.Capture, "capture", testbed.CapturePacket, "method of capturing packets: packet, tcpdump or none")
	f.StringSliceVar(&o.Only, "only", nil, "measure only these protocols of the link file")
	f.StringVar(&at, "at", "", "times of day to measure at, in local time, as in 03:00,13:00")
	f.Var(&span, "for", "duration with --at, as in 14d (default: until SIGTERM)")
	f.BoolVar(&timer, "print-timer", false, "print units for systemd and lines for cron, for --at")
	f.BoolVar(&schema, "schema", false, "print the JSON Schema of a link file")
	return cmd
}

func (a *app) printTimer(s testbed.Schedule, l *link.Link, o testbed.Options) error {
	out := o.Out
	if out == "" {
		out = l.Name + "-results"
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	command := []string{o.Premix, "transfer", "bench", l.Path, "--out", out, "--repeat", fmt.Sprint(max(1, o.Repeat)), "--capture", o.Capture}
	if o.Packets {
		command = append(command, "--packets")
	}
	if o.Pcap {
		command = append(command, "--pcap")
	}
	_, err = fmt.Fprint(a.stdout, s.Timer(l.Name, command))
	return err
}

func (a *app) benchOnce(ctx context.Context, l *link.Link, o testbed.Options) (err error) {
	o.Report = a.copyRow
	o.Note = func(text string) { fmt.Fprintf(a.notes(), "note: %s\n", text) }
	b, err := testbed.New(ctx, l, o)
	if err != nil {
		return err
	}
	sum, err := b.Run(ctx)
	err = errors.Join(err, b.Close())
	// The measurements of an interrupted bench count too.
	home, herr := transferHome()
	if herr == nil {
		herr = home.Remember(l, o.Out)
	}
	if herr != nil {
		fmt.Fprintf(a.notes(), "note: get and put cannot use these results: %v\n", herr)
	}
	if err != nil {
		return err
	}
	if !a.json {
		fmt.Fprintf(a.stdout, "%d copies, %d failed, %d disturbed: %s\n", sum.Copies, sum.Failed, sum.Disturbed, o.Out)
	}
	if sum.Failed > 0 {
		return exit.Errorf(exit.Failed, "the cause of each is in its row of transfers-*.jsonl", "%d of %d copies failed; the others are measured", sum.Failed, sum.Copies)
	}
	return nil
}

// benchDaemon does a round at each time. It continues after a failed round: the peer may
// be back for the next one.
func (a *app) benchDaemon(ctx context.Context, l *link.Link, o testbed.Options, s testbed.Schedule) error {
	started, err := testbed.ScheduleStart(o.Out, time.Now())
	if err != nil {
		return &usageError{err, "give a directory that you may write with --out"}
	}
	for {
		next := s.Next(time.Now())
		if s.For > 0 && next.After(started.Add(s.For)) {
			return nil
		}
		fmt.Fprintf(a.notes(), "next round at %s\n", next.Format("2006-01-02 15:04"))
		if err := testbed.Wait(ctx, next); err != nil {
			return err
		}
		if err := a.benchOnce(ctx, l, o); err != nil {
			if ctx.Err() != nil {
				return err
			}
			a.tell(err)
		}
	}
}

// copyRow prints a copy when it is done.
func (a *app) copyRow(c *transfer.Copy, p testbed.Progress) {
	if a.json {
		// A row has a JSON form; a closed output has no reader.
		_ = json.NewEncoder(a.stdout).Encode(c)
		return
	}
	note := ""
	if c.Disturbed != "" {
		note = "  disturbed: " + c.Disturbed
	}
	if !c.OK {
		note = "  " + c.Cause + ": " + c.Error
	}
	fmt.Fprintf(a.stdout, "%*d/%d  %-16s %s %8s %9.3f s  %12s%s\n", len(fmt.Sprint(p.All)), p.Done, p.All, c.Protocol, c.Direction, c.Data(), c.Seconds, units.Rate(c.Speed), note)
}
