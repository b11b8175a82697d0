package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/store"
)

// verifiedRow is the output of verify.
type verifiedRow struct {
	OK       bool         `json:"ok"`
	Objects  int64        `json:"objects"`
	Bytes    int64        `json:"bytes"`
	Trees    int          `json:"trees"`
	Records  int          `json:"records"` // of tags and profiles
	Dropped  int          `json:"dropped"` // damaged objects removed
	Findings []findingRow `json:"findings"`
}

type findingRow struct {
	What   string   `json:"what"`
	Reason string   `json:"reason"`
	Files  []string `json:"files,omitempty"`
}

// damagedStore reports damage that verify found.
type damagedStore struct {
	things  int
	dropped int
}

func (e *damagedStore) Error() string {
	if e.things == 1 {
		return "the store is damaged: one thing is wrong"
	}
	return fmt.Sprintf("the store is damaged: %d things are wrong", e.things)
}

// ExitCode implements exit.Coded.
func (*damagedStore) ExitCode() exit.Code { return exit.Failed }

func (e *damagedStore) Hint() string {
	if e.dropped > 0 {
		return "publish the damaged trees again: missing objects are written again"
	}
	return "premix store verify --drop removes damaged objects; trees that are published again then get them back"
}

func (a *app) storeVerify(o *storeFlags) *cobra.Command {
	var drop bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read the whole store and compare it with its digests",
		Long: `Read every object of a store and compare it with its digest, follow every tree to its
chunks, and check all signatures and histories. Damage is listed with the affected files.
Exits with 1 if there is damage.`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			s, err := o.open()
			if err != nil {
				return err
			}
			ctx, done := storeContext()
			defer done()
			opt := store.VerifyOptions{Drop: drop, Progress: &store.VerifyProgress{}}
			stop := a.bar(func() string {
				return fmt.Sprintf("read %d objects, %s", opt.Progress.Objects.Load(), units.Size(opt.Progress.Bytes.Load()))
			})
			v, err := s.Verify(ctx, opt)
			stop()
			if err != nil {
				return err
			}
			row := verifiedRow{OK: len(v.Findings) == 0, Objects: v.Objects, Bytes: v.Bytes, Trees: v.Trees, Records: v.Records, Dropped: v.Dropped, Findings: []findingRow{}}
			for _, f := range v.Findings {
				row.Findings = append(row.Findings, findingRow(f))
			}
			if a.json {
				err = a.printJSON(row)
			} else {
				err = a.printVerified(row)
			}
			if err == nil && !row.OK {
				err = &damagedStore{len(row.Findings), row.Dropped}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&drop, "drop", false, "remove damaged objects")
	return cmd
}

// filesShown is the number of files of a finding in the output for people.
const filesShown = 20

func (a *app) printVerified(row verifiedRow) error {
	for _, f := range row.Findings {
		fmt.Fprintf(a.stdout, "%s: %s\n", f.What, f.Reason)
		for i, name := range f.Files {
			if i == filesShown {
				fmt.Fprintf(a.stdout, "  and %d more files\n", len(f.Files)-i)
				break
			}
			fmt.Fprintf(a.stdout, "  %s\n", shown(name))
		}
	}
	if row.Dropped > 0 {
		fmt.Fprintf(a.stdout, "removed %d damaged objects\n", row.Dropped)
	}
	_, err := fmt.Fprintf(a.stdout, "read %d objects, %s; %d trees, %d records\n", row.Objects, units.Size(row.Bytes), row.Trees, row.Records)
	return err
}
