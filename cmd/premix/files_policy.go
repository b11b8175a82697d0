package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"premix/internal/files"
	"premix/internal/files/packdir"
	"premix/internal/files/policy"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

// policyFlags are the options of files policy.
type policyFlags struct {
	dryRun, apply bool
	pools         string
	candidates    string
	samples       countFlag
	journal       string
	files         countFlag
	bytes         memoryFlag
	workers       countFlag
}

func (a *app) filesPolicy() *cobra.Command {
	o := policyFlags{samples: 3}
	cmd := &cobra.Command{
		Use:   "policy RULES TABLE (--dry-run | --apply --journal DIR)",
		Short: "Place, move, pack and delete files by rules",
		Long: `Apply rules to the entries of a scan. Rules are SQL in one file, and each entry belongs
to the first rule that it matches:

  CREATE POOL flash AT '/flash';
  CREATE POOL disk AT '/disk';
  RULE 'references stay' EXCLUDE WHERE path LIKE '%/references/%';
  RULE 'old scratch' MIGRATE FROM POOL flash THRESHOLD 80 TO 70
    WEIGHT now() - accessed TO POOL disk WHERE size > 1 MB;

  premix files policy rules.sql scan.parquet --dry-run

prints the actions, with the rule and the reason of each, and changes nothing. Then

  premix files policy rules.sql scan.parquet --apply --journal DIR

executes them. Files that have changed since the scan are skipped. DIR has the plan and,
as JSON Lines, each action with its user and rule, and the entries of rules with LIST.
After a kill, the same command continues.

--candidates restricts all rules to the entries in a Parquet file, which any program may
have made from the scan:

  duckdb -c "COPY (SELECT dir, name, inode, changed FROM 'scan.parquet' WHERE ...) TO 'c.parquet'"
  premix files policy rules.sql scan.parquet --candidates c.parquet --dry-run`,
		Args: arguments("RULES", "TABLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case o.dryRun && o.apply:
				return &usageError{errors.New("--dry-run and --apply exclude each other"), "print the actions first: --dry-run"}
			case o.apply && o.journal == "":
				return &usageError{errors.New("--journal is missing"), "name the directory for plan and audit: --journal DIR"}
			case !o.dryRun && !o.apply:
				return &usageError{errors.New("neither --dry-run nor --apply is given"), "print the actions first: --dry-run"}
			}
			return a.policy(&o, args[0], args[1])
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "print the actions and their reasons, and change nothing")
	f.StringVar(&o.pools, "pools", "", "YAML file that declares pools")
	f.StringVar(&o.candidates, "candidates", "", "Parquet file of the entries to which the rules apply: a column path, or dir and name")
	f.Var(&o.samples, "samples", "number of files that a dry run names for each rule")
	f.BoolVar(&o.apply, "apply", false, "execute the actions")
	f.StringVar(&o.journal, "journal", "", "directory for plan and audit")
	f.Var(&o.files, "files-per-second", "most actions a second (default: no limit)")
	f.Var(&o.bytes, "bytes-per-second", "most bytes to copy a second, as in 100M (default: no limit)")
	f.Var(&o.workers, "workers", "simultaneous copies (default 4)")
	return cmd
}

// policyRules reads a file of rules, and a file of pools if the user named one.
func policyRules(path, pools string) (*policy.Rules, error) {
	var known []policy.Pool
	if pools != "" {
		var err error
		if known, err = policy.ReadPools(pools); err != nil {
			return nil, err
		}
	}
	return policy.ReadFile(path, known)
}

func (a *app) policy(o *policyFlags, rules, table string) error {
	r, err := policyRules(rules, o.pools)
	if err != nil {
		return err
	}
	t, err := files.OpenTable(table)
	if err != nil {
		return err
	}
	defer t.Close()
	options := policy.Options{Samples: int(o.samples), Count: true}
	if o.candidates != "" {
		if options.Candidates, err = policy.ReadCandidates(o.candidates); err != nil {
			return err
		}
	}
	ctx, done := storeContext()
	defer done()
	if o.apply {
		return a.policyApply(ctx, o, r, t, options.Candidates)
	}
	p, err := r.Plan(ctx, t, options)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(p)
	}
	return a.printPolicyPlan(p)
}

func (a *app) policyApply(ctx context.Context, o *policyFlags, r *policy.Rules, t *files.Table, c *policy.Candidates) error {
	var last atomic.Pointer[policy.Report]
	last.Store(&policy.Report{})
	stop := a.bar(func() string {
		p := last.Load()
		return fmt.Sprintf("%d of %d actions, %s", p.Done+p.Skipped+p.Failed, p.Actions, units.Size(p.Bytes))
	})
	rep, err := r.Apply(ctx, t, policy.ApplyOptions{
		Options: policy.Options{Candidates: c},
		Journal: o.journal, Files: float64(o.files), Bytes: int64(o.bytes), Workers: int(o.workers), Packer: packer{},
		Progress: func(p policy.Report) { last.Store(&p) },
	})
	stop()
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(rep)
	} else {
		err = a.printPolicyReport(rep)
	}
	if err == nil && rep.Failed > 0 {
		err = exit.Errorf(exit.Failed, "the reasons are in "+filepath.Join(rep.Journal, "audit.jsonl")+", on lines with failed", "%d of %d actions failed", rep.Failed, rep.Actions)
	}
	return err
}

// packer packs for a policy.
type packer struct{}

func (packer) Pack(ctx context.Context, dir string, device, inode int64, store, as string) (string, error) {
	tree, err := packdir.Pack(ctx, dir, device, inode, store, as)
	if errors.Is(err, packdir.ErrChanged) {
		err = policy.ErrChanged
	}
	return tree, err
}

func (a *app) printPolicyReport(rep *policy.Report) error {
	if _, err := fmt.Fprintf(a.stdout, "%d done, %s; %d skipped, %d failed; %s\n", rep.Done, units.Size(rep.Bytes), rep.Skipped, rep.Failed, rep.Journal); err != nil {
		return err
	}
	for _, why := range slices.Sorted(maps.Keys(rep.Why)) {
		if _, err := fmt.Fprintf(a.stdout, "  %d: %s\n", rep.Why[why], shown(why)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printPolicyPlan(p *policy.Plan) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s over %s, %d entries; nothing is changed\n", shown(p.File), shown(p.Table), p.Rows)
	if c := p.Candidates; c != nil {
		fmt.Fprintf(w, "candidates %s: %d, of which %d are not in the scan and %d differ from it\n", shown(c.File), c.Count, c.Gone, c.Other)
	}
	if len(p.Pools) > 0 {
		fmt.Fprint(w, "\nPOOL\tCAPACITY\tUSED\t\tAFTER\t\tCOUNTED BY\t\n")
	}
	for _, pool := range p.Pools {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f %%\t%s\t%.1f %%\t%s\t\n", pool.Name, units.Size(pool.Capacity), units.Size(pool.Used), pool.Percent(pool.Used),
			units.Size(pool.After), pool.Percent(pool.After), pool.By)
	}
	fmt.Fprint(w, "\nRULE\tDOES\tMATCHED\tBYTES\tTAKEN\tBYTES\tON DISK\t\n")
	for _, r := range p.Rules {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t\n", shown(r.Name), r.Verb, r.Matched.Count, units.Size(r.Matched.Bytes),
			r.Taken.Count, units.Size(r.Taken.Bytes), units.Size(r.Taken.Allocated))
	}
	fmt.Fprintf(w, "no rule\t\t%d\t\t\t\t\t\n", p.Unmatched)
	if p.Names > 0 {
		fmt.Fprintf(w, "further names\t\t%d\t\t\t\t\t\n", p.Names)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range p.Rules {
		if r.Why == "" && len(r.Samples) == 0 && len(r.Left) == 0 && r.Ahead == nil {
			continue
		}
		fmt.Fprintf(a.stdout, "\n%s (line %d): %s\n", shown(r.Name), r.Line, ruleDoes(r))
		if r.Why != "" {
			fmt.Fprintf(a.stdout, "  %s\n", r.Why)
		}
		for _, why := range slices.Sorted(maps.Keys(r.Left)) {
			fmt.Fprintf(a.stdout, "  left: %d, %s\n", r.Left[why], why)
		}
		for _, s := range r.Samples {
			line := "  " + shown(s.Path)
			if s.To != "" {
				line += " -> " + shown(s.To)
			}
			if r.Verb != policy.Pack {
				line += ", " + units.Size(s.Size)
			}
			fmt.Fprintln(a.stdout, line)
		}
		if more := r.Taken.Count - int64(len(r.Samples)); more > 0 && len(r.Samples) > 0 {
			fmt.Fprintf(a.stdout, "  and %d more\n", more)
		}
		if r.Ahead != nil {
			printAhead(a.stdout, r.To, r.Ahead)
		}
	}
	return nil
}

// printAhead prints the copies that a rule with PREMIGRATE makes and removes.
func printAhead(w io.Writer, pool string, p *policy.AheadPlan) {
	fmt.Fprintf(w, "  copies in %s: %d to make, %s on disk\n", pool, p.Taken.Count, units.Size(p.Taken.Allocated))
	for _, s := range p.Samples {
		fmt.Fprintf(w, "    %s, %s\n", shown(s.Path), units.Size(s.Size))
	}
	if p.Copied.Count > 0 {
		fmt.Fprintf(w, "    %d exist, of files that the rule takes, %s on disk\n", p.Copied.Count, units.Size(p.Copied.Allocated))
	}
	if p.Stale.Count > 0 {
		fmt.Fprintf(w, "    %d to remove, of files that have changed or are gone, %s on disk\n", p.Stale.Count, units.Size(p.Stale.Allocated))
	}
}

// ruleDoes describes the action of a rule.
func ruleDoes(r *policy.RulePlan) string {
	words := []string{string(r.Verb)}
	if r.Program != "" {
		words = append(words, shown(r.Program))
	}
	if r.From != "" {
		words = append(words, "from", r.From)
	}
	switch {
	case r.To != "" && r.Verb == policy.Place:
		words = append(words, "in", r.To)
	case r.To != "":
		words = append(words, "to", r.To)
	}
	return strings.Join(words, " ")
}
