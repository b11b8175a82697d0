package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"premix/internal/files/tiers"
	"premix/internal/kit/units"
)

func (a *app) filesMount() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "mount --tiers TIERS.yaml DIR",
		Short: "Show directories of fast and slow disks as one",
		Long: `Show the tiers of a file as one directory, until it is unmounted (umount DIR) or the
command gets SIGTERM or SIGINT. New files land on the first tier that has room. Files
move down by rules and watermarks, and keep their paths.

  tiers:
    - {name: flash, dir: /flash/project, high: 80, low: 70}
    - {name: disk, dir: /disk/project}
  rules:
    - {from: flash, to: disk, older: 30d, larger: 1 GB}

Each line of output is a file that moved, or could not.`,
		Args: arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			if file == "" {
				return &usageError{errors.New("--tiers is missing"), "give --tiers TIERS.yaml; premix help files-tiers has an example"}
			}
			return a.mountTiers(file, args[0])
		},
	}
	cmd.Flags().StringVar(&file, "tiers", "", "YAML file of tiers and rules")
	return cmd
}

// tierEvent is an event with its error as text.
type tierEvent struct {
	tiers.Event
	Error string `json:"error,omitempty"`
}

func (a *app) mountTiers(file, dir string) error {
	c, err := tiers.Load(file)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	var mu sync.Mutex
	// Ignore an error: the reader of the output may be gone, but the mount stays.
	tell := func(e tiers.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case a.json:
			line := tierEvent{Event: e}
			if e.Err != nil {
				line.Error = e.Err.Error()
			}
			_ = a.printJSON(line)
		case e.SetAside != "":
			fmt.Fprintf(a.stdout, "set aside %s as %s: %s\n", shown(e.Path), shown(e.SetAside), e.Why)
		case e.Err != nil && e.From == "":
			fmt.Fprintf(a.stdout, "note: %s: %v\n", shown(e.Path), e.Err)
		case e.Err != nil:
			fmt.Fprintf(a.stdout, "not moved %s from %s to %s: %v\n", shown(e.Path), e.From, e.To, e.Err)
		default:
			fmt.Fprintf(a.stdout, "moved %s from %s to %s, %s: %s\n", shown(e.Path), e.From, e.To, units.Size(e.Bytes), e.Why)
		}
	}
	m, err := tiers.Mount(ctx, c, dir, tell)
	if err != nil {
		return err
	}
	if !m.Passthrough() {
		fmt.Fprintln(a.notes(), "note: reads and writes go through premix: passthrough needs root and Linux 6.9")
	}
	return errors.Join(m.Run(ctx, tell), m.Unmount())
}
