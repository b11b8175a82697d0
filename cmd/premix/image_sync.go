package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/image"
	"premix/internal/image/tagsync"
	"premix/internal/kit/units"
	"premix/internal/store"
)

func (a *app) imageSync(o *storeFlags) *cobra.Command {
	var opt tagsync.Options
	var maxBytes memoryFlag
	var once, status, schema, noSync bool
	cmd := &cobra.Command{
		Use:   "sync LIST.yaml",
		Short: "Keep the images of a watch list up to date",
		Long: `Keep a store's images equal to a watch list: tags of registries, with wildcards. New and
changed images are added, and images that left the list or their registry are removed.
The command runs until SIGTERM or SIGINT; the list may be changed while it runs, and
SIGHUP starts a round at once.

  premix image sync --store /srv/store images.yaml
  premix image sync --store /srv/store images.yaml --once      (for cron)
  premix image sync --store /srv/store images.yaml --status

premix help image describes the list.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if schema && len(args) == 0 {
				return nil
			}
			return arguments("LIST.yaml")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if schema {
				_, err := a.stdout.Write(tagsync.Schema())
				return err
			}
			if once && status {
				return &usageError{errors.New("--once and --status exclude each other"), "leave one of them out"}
			}
			s, err := o.openWith(store.Options{Home: store.Home(), Unsynced: noSync})
			if err != nil {
				return err
			}
			if status {
				return a.syncStatus(s, args[0])
			}
			if opt.Add.Key, err = s.Key(o.key); err != nil {
				return err
			}
			opt.Add.MaxBytes = int64(maxBytes)
			if once {
				return a.syncOnce(s, args[0], opt)
			}
			return a.syncDaemon(s, args[0], opt)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&once, "once", false, "make one round and end, with status 0 if all images agree with the list")
	f.BoolVar(&status, "status", false, "print the known state of the list's images, without asking registries")
	f.BoolVar(&opt.Eager, "now", false, "try recently failed images, too")
	f.BoolVar(&schema, "schema", false, "print the JSON Schema of a watch list")
	f.Var(&maxBytes, "max-bytes", "refuse an image that unpacks to more (default 256G)")
	f.Int64Var(&opt.Add.MaxEntries, "max-entries", image.DefaultEntries, "refuse an image with more files, directories and links")
	f.BoolVar(&noSync, "no-sync", false, "do not wait for the disk: verify the store after a power failure")
	return cmd
}

func (a *app) syncOnce(s *store.Store, file string, opt tagsync.Options) error {
	l, err := tagsync.Load(file)
	if err != nil {
		return err
	}
	if !a.json {
		opt.Report = a.syncRow
	}
	w, err := tagsync.New(s, l, opt)
	if err != nil {
		return err
	}
	defer w.Close()
	ctx, done := storeContext()
	defer done()
	sum, err := w.Round(ctx)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(syncedRow(sum)); err != nil {
			return err
		}
	} else {
		a.synced(sum)
	}
	return sum.Err()
}

func (a *app) syncDaemon(s *store.Store, file string, opt tagsync.Options) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	now := make(chan struct{}, 1)
	go func() {
		for sig := range signals {
			if sig != syscall.SIGHUP {
				// Notify delivers the signals of package syscall on this system.
				number, _ := sig.(syscall.Signal)
				signal.Reset()
				cancel(&storeInterrupted{number})
				return
			}
			select {
			case now <- struct{}{}:
			default: // one pending round is enough
			}
		}
	}()
	// Write a line of JSON for each image at once, so that a log can be followed.
	lines := json.NewEncoder(a.stdout)
	opt.Report = a.syncRow
	if a.json {
		opt.Report = func(r tagsync.Row) { _ = lines.Encode(r) } // a closed log must not end the daemon
	}
	d := &tagsync.Daemon{Store: s, File: file, Options: opt, Now: now,
		Broken: func(err error) {
			a.tell(err)
			fmt.Fprintln(a.notes(), "note: the previous list stays in use")
		},
		Done: func(sum *tagsync.Summary, err error) error {
			var access *store.AccessError
			switch {
			case errors.As(err, &access):
				a.tell(err) // a full disk may have room by the next round
			case err != nil:
				return err
			case !a.json:
				a.synced(sum)
			}
			return nil
		},
		Pause: func(until time.Time) {
			if !a.json {
				fmt.Fprintf(a.stdout, "next round at %s\n", until.Format(time.DateTime))
			}
		},
	}
	err := d.Run(ctx)
	var finished *storeInterrupted
	if errors.As(err, &finished) {
		return nil // a signal has ended it
	}
	return err
}

// syncRow prints the result for an image, if there is one.
func (a *app) syncRow(r tagsync.Row) {
	what := r.Ref
	if what == "" {
		what = r.Source
	}
	switch r.Action {
	case tagsync.Unchanged:
	case tagsync.Added, tagsync.Updated:
		fmt.Fprintf(a.stdout, "%s %s from %s, %s written\n", r.Action, what, r.Source, units.Size(r.Bytes))
	case tagsync.Removed:
		fmt.Fprintf(a.stdout, "removed %s\n", what)
	case tagsync.Vanished:
		fmt.Fprintf(a.stdout, "%s stays for now: %s has been missing since %s\n", what, r.Source, r.Gone.Local().Format(time.DateTime))
	case tagsync.Waiting:
		fmt.Fprintf(a.notes(), "note: %s is not tried before %s: %s\n", what, r.Retry.Local().Format(time.DateTime), r.Error)
	case tagsync.Failed:
		fmt.Fprintf(a.stderr, "error: %s: %s\n", what, r.Error)
		if r.Hint != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", r.Hint)
		}
	}
}

func (a *app) synced(sum *tagsync.Summary) {
	fmt.Fprintf(a.stdout, "%d images: %d unchanged, %d added, %d updated, %d removed, %d gone, %d failed, %d waiting\n", len(sum.Rows),
		sum.Count(tagsync.Unchanged), sum.Count(tagsync.Added), sum.Count(tagsync.Updated), sum.Count(tagsync.Removed),
		sum.Count(tagsync.Vanished), sum.Count(tagsync.Failed), sum.Count(tagsync.Waiting))
	if sum.GC != nil {
		fmt.Fprintf(a.stdout, "gc removed %d objects, %s\n", sum.GC.Removed, units.Size(sum.GC.Freed))
	}
}

// syncedJSON is a round in the output of --once.
type syncedJSON struct {
	Images []tagsync.Row `json:"images"`
	GC     *collectedRow `json:"gc,omitempty"`
}

func syncedRow(sum *tagsync.Summary) syncedJSON {
	j := syncedJSON{Images: sum.Rows}
	if j.Images == nil {
		j.Images = []tagsync.Row{}
	}
	if c := sum.GC; c != nil {
		j.GC = &collectedRow{false, c.Trees, c.Objects, c.Bytes, c.Young, c.Removed, c.Freed, c.Profiles, c.Writers}
	}
	return j
}

func (a *app) syncStatus(s *store.Store, file string) error {
	l, err := tagsync.Load(file)
	if err != nil {
		return err
	}
	st, err := tagsync.Read(s, l.Name)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(st)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tFROM\tDIGEST\tCHECKED\tSTATE")
	for _, i := range st.Images {
		state, checked := "here", "never"
		if !i.Checked.IsZero() {
			checked = i.Checked.Local().Format(time.DateTime)
		}
		switch {
		case i.Failures > 0:
			state = fmt.Sprintf("failed %d times, again at %s: %s", i.Failures, i.Retry.Local().Format(time.DateTime), i.Error)
		case !i.Gone.IsZero():
			state = "gone since " + i.Gone.Local().Format(time.DateTime)
		case i.Record.IsZero():
			state = "to come"
		}
		fmt.Fprintf(w, "%s\t%s\t%.19s\t%s\t%s\n", i.Ref, i.Source(), i.Digest, checked, state)
	}
	for _, t := range st.Entries {
		fmt.Fprintf(w, "-\t%s\t\t\tfailed %d times, again at %s: %s\n", t.Entry, t.Failures, t.Retry.Local().Format(time.DateTime), t.Error)
	}
	return w.Flush()
}
