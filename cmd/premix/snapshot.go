package main

import (
	"cmp"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/hotstart"
)

func (a *app) snapshotCommand() *cobra.Command {
	var store string
	cmd := group(&cobra.Command{
		Use:   "snapshot",
		Short: "List, inspect, verify, remove, push and pull snapshots",
	})
	snapshotsFlag(cmd.PersistentFlags(), &store)
	cmd.AddCommand(a.snapshotLs(&store), a.snapshotInspect(&store), a.snapshotVerify(&store), a.snapshotRm(&store),
		a.snapshotPush(&store), a.snapshotPull(&store))
	return cmd
}

// openStore opens the store that the user named, or the default store.
func openStore(store string) (string, error) {
	if store != "" {
		return store, nil
	}
	return hotstart.DefaultStore()
}

// find returns a snapshot by its name.
func find(store, id string) (*hotstart.Snapshot, error) {
	dir, err := openStore(store)
	if err != nil {
		return nil, err
	}
	s, err := hotstart.Find(dir, id)
	if err != nil {
		return nil, &usageError{err, "name one by its id: premix snapshot ls lists them"}
	}
	return s, nil
}

// snapshotRow is a snapshot in the output of ls.
type snapshotRow struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	State   string    `json:"state"`            // see stateOf
	Reason  string    `json:"reason,omitempty"` // why tasks do not start from it
	Bytes   int64     `json:"bytes"`
	Created time.Time `json:"created"`
	Seconds float64   `json:"seconds"`
	Dir     string    `json:"dir"`
}

func (a *app) snapshotLs(store *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List snapshots, newest first",
		Long: `List snapshots, newest first. A snapshot is "equal" when its outputs for the probe
were equal to the outputs of a cold start, "not compared" before that, and "differs" if
they were not equal. It is in "quarantine" if a task of a run differed from a cold start
of the same sample. Then tasks start cold, and the snapshot only keeps the reason. A
snapshot that a premix is making is "in preparation". It is "unfinished" if that premix
was killed: a later run or preparation removes it.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			dir, err := openStore(*store)
			if err != nil {
				return err
			}
			list, err := hotstart.List(dir)
			if err != nil {
				return &usageError{err, "name a directory of snapshots that you may read: --snapshots DIR"}
			}
			rows := []snapshotRow{}
			for _, s := range list {
				rows = append(rows, snapshotRow{s.ID, s.Name, stateOf(s), reasonOf(s), s.Bytes(), s.Created, s.Seconds, s.Dir})
			}
			unfinished, err := hotstart.Unfinished(dir)
			if err != nil {
				return err
			}
			for _, s := range unfinished {
				state, reason := "unfinished", "its preparation was interrupted, or another version of premix made it"
				if s.Busy {
					state, reason = "in preparation", ""
				}
				rows = append(rows, snapshotRow{ID: s.ID, Name: "-", State: state, Reason: reason, Bytes: s.Bytes(), Created: s.Created, Dir: s.Dir})
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tSTATE\tMIB\tPREPARED IN\tCREATED\tREASON")
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.1f s\t%s\t%s\n", r.ID, r.Name, r.State, r.Bytes>>20, r.Seconds, r.Created.Local().Format(time.DateTime), cmp.Or(r.Reason, "-"))
			}
			return w.Flush()
		},
	}
}

// stateOf returns how far a snapshot has been compared with a cold start.
func stateOf(s *hotstart.Snapshot) string {
	switch {
	case s.Proof == nil:
		return "not compared"
	case s.Proof.Equal:
		return "equal"
	case s.Quarantined():
		return "quarantine"
	}
	return "differs"
}

// reasonOf returns the reason why tasks do not start from a snapshot, or "".
func reasonOf(s *hotstart.Snapshot) string {
	switch {
	case s.Quarantined():
		return "sample " + s.Proof.Sample + ": " + s.Proof.Reason
	case s.Proof != nil:
		return s.Proof.Reason
	}
	return ""
}

func (a *app) snapshotInspect(store *string) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect ID",
		Short: "Print all properties of a snapshot, as JSON",
		Args:  arguments("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := find(*store, args[0])
			if err != nil {
				return err
			}
			return a.printJSON(s)
		},
	}
}

func (a *app) snapshotVerify(store *string) *cobra.Command {
	return &cobra.Command{
		Use:   "verify ID",
		Short: "Read a snapshot whole and compare it with its digests",
		Long:  "Read every file of a snapshot and compare it with its digest. Exits with 1 if it is damaged.",
		Args:  arguments("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := find(*store, args[0])
			if err != nil {
				return err
			}
			if err := s.Verify(); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"id": s.ID, "ok": true})
			}
			_, err = fmt.Fprintf(a.stdout, "%s is undamaged\n", s.ID)
			return err
		},
	}
}

func (a *app) snapshotRm(store *string) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID",
		Short: "Remove a snapshot that no run uses",
		Args:  arguments("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := openStore(*store)
			if err != nil {
				return err
			}
			if was, err := hotstart.RemoveUnfinished(dir, args[0]); was {
				return removed(err)
			}
			s, err := find(*store, args[0])
			if err != nil {
				return err
			}
			return removed(s.Remove())
		},
	}
}

// removed adds a hint to the error of a snapshot that could not be removed.
func removed(err error) error {
	if errors.Is(err, hotstart.ErrInUse) {
		return &usageError{err, "wait until the run has ended"}
	}
	return err
}
