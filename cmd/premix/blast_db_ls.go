package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
)

// databaseRow is the JSON form of a database. Sizes are in bytes.
type databaseRow struct {
	Name       string           `json:"name"`
	Type       database.Type    `json:"type,omitempty"`
	Title      string           `json:"title,omitempty"`
	Version    int              `json:"version,omitempty"`
	ParsedIDs  bool             `json:"parsed_ids"`
	Masks      []string         `json:"masks,omitempty"`
	Profiles   string           `json:"profiles,omitempty"` // rps or delta
	Program    database.Program `json:"program"`            // blast or diamond
	Block      int64            `json:"block,omitempty"`    // letters of a block of DIAMOND
	Sequences  int64            `json:"sequences"`
	Letters    int64            `json:"letters"`
	Bytes      int64            `json:"bytes"`
	Fragments  []database.Range `json:"fragments"`
	Warm       bool             `json:"warm"`              // it should be in memory
	Resident   bool             `json:"resident"`          // it is in memory
	InMemory   int64            `json:"in_memory_bytes"`   // of the resident copy, not swapped out
	DiskCached int64            `json:"disk_cached_bytes"` // of the local copy, in the page cache
	RAM        string           `json:"ram_dir,omitempty"` // directory of the resident copy
	Data       string           `json:"data"`              // the local copy
	Ref        string           `json:"ref,omitempty"`     // the reference under which it was published
	Tree       string           `json:"tree,omitempty"`
	Store      string           `json:"store,omitempty"`
	Added      time.Time        `json:"added"`
	Damage     string           `json:"damage,omitempty"`
}

func databaseRowOf(s *database.Status) databaseRow {
	r := s.Record
	row := databaseRow{Name: r.Name, Bytes: r.Bytes, Warm: r.Warm, Data: r.Data, Ref: r.Ref, Tree: r.Tree, Store: r.Store, Added: r.Added}
	if d := s.Description; d != nil {
		row.Type, row.Title, row.Version, row.ParsedIDs, row.Masks = d.Type, d.Title, d.Version, d.ParsedIDs, d.Masks
		row.Profiles, row.Program, row.Block = string(d.Profiles), d.By(), d.Block
		row.Sequences, row.Letters, row.Fragments = d.Sequences, d.Letters, d.Fragments
	}
	if m := s.Resident; m != nil {
		row.Resident, row.RAM, row.InMemory, row.DiskCached = m.Dir != "", m.Dir, m.InMemory, m.DiskCached
	}
	if s.Err != nil {
		row.Damage = s.Err.Error()
	}
	return row
}

func (a *app) blastDBLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the databases, and mark those in memory",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			home, err := database.Home()
			if err != nil {
				return err
			}
			names, err := database.List(home)
			if err != nil {
				return err
			}
			rows := []databaseRow{}
			for _, name := range names {
				s, err := database.StatusOf(home, name)
				if err != nil {
					s = &database.Status{Record: &database.Record{Name: name}, Err: err}
				}
				rows = append(rows, databaseRowOf(s))
			}
			if a.json {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tTYPE\tSEQUENCES\tLETTERS\tSIZE\tFRAGMENTS\tIN MEMORY\tTREE")
			for _, r := range rows {
				if r.Damage != "" {
					fmt.Fprintf(w, "%s\tdamaged: %s\n", r.Name, r.Damage)
					continue
				}
				kind := string(r.Type)
				switch {
				case r.Profiles != "":
					kind += ", " + r.Profiles
				case r.Program != database.BLAST:
					kind += ", " + string(r.Program)
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n", r.Name, kind, r.Sequences, r.Letters, units.Size(r.Bytes), len(r.Fragments), residence(&r), shortTree(r.Tree))
			}
			return w.Flush()
		},
	}
}

// residence returns a short text about whether a database is in memory.
func residence(r *databaseRow) string {
	switch {
	case r.Resident && r.InMemory < r.Bytes:
		return "yes, " + units.Size(r.Bytes-r.InMemory) + " swapped out"
	case r.Resident:
		return "yes"
	case r.Warm:
		return "no, premix blast warm --all"
	}
	return "no"
}

func shortTree(digest string) string {
	if len(digest) < 12 {
		return "-"
	}
	return digest[:12]
}
