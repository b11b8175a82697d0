package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/hotstart"
)

func (a *app) snapshotCommand() *cobra.Command {
	var store string
	cmd := group("ls, inspect, verify, rm, push or pull", &cobra.Command{
		Use:   "snapshot",
		Short: "List, inspect, verify, remove, push and pull snapshots",
	})
	cmd.PersistentFlags().StringVar(&store, "store", "", "directory of snapshots (default: $PREMIX_HOME/snapshots)")
	cmd.AddCommand(a.snapshotLs(&store), a.snapshotInspect(&store), a.snapshotVerify(&store), a.snapshotRm(&store),
		a.snapshotPush(&store), a.snapshotPull(&store))
	return cmd
}

// openStore is the store that was wished for, or the usual one.
func openStore(store string) (string, error) {
	if store != "" {
		return store, nil
	}
	return hotstart.DefaultStore()
}

// find looks one snapshot up.
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

// snapshotRow is a snapshot as ls prints it.
type snapshotRow struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Starts  []hotstart.Kind `json:"starts"` // that it has images for
	Proved  []hotstart.Kind `json:"proved"` // whose outputs were equal to those of a cold start
	Bytes   int64           `json:"bytes"`
	Created time.Time       `json:"created"`
	Seconds float64         `json:"seconds"`
	Dir     string          `json:"dir"`
}

func (a *app) snapshotLs(store *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List snapshots, newest first",
		Long: `List snapshots, newest first. STARTS are the kinds of start that a snapshot has
images for, PROVED those whose outputs were equal to the outputs of a cold start. A
fork needs no image: where it is proved, runs go without a proof of their own.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			dir, err := openStore(*store)
			if err != nil {
				return err
			}
			list, err := hotstart.List(dir)
			if err != nil {
				return &usageError{err, "name a directory of snapshots that you may read: --store DIR"}
			}
			rows := []snapshotRow{}
			for _, s := range list {
				rows = append(rows, snapshotRow{s.ID, s.Name, kindsOf(s), proved(s), s.Bytes(), s.Created, s.Seconds, s.Dir})
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tSTARTS\tPROVED\tMIB\tPREPARED IN\tCREATED")
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%.1f s\t%s\n", r.ID, r.Name, kindsText(r.Starts), kindsText(r.Proved), r.Bytes>>20, r.Seconds, r.Created.Local().Format(time.DateTime))
			}
			return w.Flush()
		},
	}
}

// kindsOf are the kinds that a snapshot has images for: none is a list, too.
func kindsOf(s *hotstart.Snapshot) []hotstart.Kind {
	return append([]hotstart.Kind{}, s.Kinds()...)
}

// proved are the kinds of start that were proved with a snapshot.
func proved(s *hotstart.Snapshot) []hotstart.Kind {
	list := []hotstart.Kind{}
	for _, k := range []hotstart.Kind{hotstart.Hot, hotstart.Copy, hotstart.Fork} {
		if s.Proofs[k].Equal {
			list = append(list, k)
		}
	}
	return list
}

func kindsText(kinds []hotstart.Kind) string {
	if len(kinds) == 0 {
		return "-"
	}
	var words []string
	for _, k := range kinds {
		words = append(words, string(k))
	}
	return strings.Join(words, ",")
}

func (a *app) snapshotInspect(store *string) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect ID",
		Short: "Print all that is known of a snapshot, as JSON",
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
			_, err = fmt.Fprintf(a.stdout, "%s is as it was made\n", s.ID)
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
			s, err := find(*store, args[0])
			if err != nil {
				return err
			}
			err = s.Remove()
			if errors.Is(err, hotstart.ErrInUse) {
				return &usageError{err, "wait until the run has ended"}
			}
			return err
		},
	}
}
