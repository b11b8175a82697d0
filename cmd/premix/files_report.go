package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/files"
	"premix/internal/files/page"
	"premix/internal/kit/beneath"
	"premix/internal/kit/outputs"
	"premix/internal/kit/units"
)

func (a *app) filesReport() *cobra.Command {
	var (
		top  countFlag = 10
		html string
	)
	cmd := &cobra.Command{
		Use:   "report TABLE",
		Short: "Sum up a scan",
		Long: `Sum up a scan: deciles of size, files by size, age and owner, and the directories that
hold one file or thousands. A file with several names counts once. With --html a
self-contained page of tables and histograms is written.`,
		Args: arguments("TABLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := files.OpenTable(args[0])
			if err != nil {
				return err
			}
			defer t.Close()
			u, err := t.Usage(int(top))
			if err != nil {
				return err
			}
			if html != "" {
				if err := writeUsagePage(html, u); err != nil {
					return err
				}
			}
			if a.json {
				return a.printJSON(u)
			}
			return a.printUsage(u)
		},
	}
	outputFlag(cmd, &html, "html", "", outputs.Page, "write a page to this file, too")
	cmd.Flags().Var(&top, "top", "most rows of a table of directories, owners or files")
	return cmd
}

// writeUsagePage writes the page, which appears whole or not at all.
func writeUsagePage(path string, u *files.Usage) error {
	if err := beneath.Write(path, 0o666, beneath.Volatile, func(w io.Writer) error { return page.Write(w, u) }); err != nil {
		return files.CannotWrite(path, err)
	}
	return nil
}

func (a *app) printUsage(u *files.Usage) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	part := func(n, of int64) string {
		if of == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
	}
	amount := func(c *files.Amount) {
		fmt.Fprintf(w, "\t%d\t%s\t%s\t%s\t%s\t\n", c.Count, part(c.Count, u.Files.Count), units.Size(c.Bytes), part(c.Bytes, u.Files.Bytes), units.Size(c.Allocated))
	}
	const columns = "\tFILES\t\tBYTES\t\tON DISK\t\n"
	fmt.Fprintf(w, "%d files of %s on %s; half are no larger than %s, %d (%s) are empty; %d further names\n",
		u.Files.Count, units.Size(u.Files.Bytes), u.Started.Local().Format(time.DateTime), units.Size(u.Median), u.Files.Zero, part(u.Files.Zero, u.Files.Count), u.Linked)
	if u.Unread > 0 {
		fmt.Fprintf(w, "%d entries could not be read\n", u.Unread)
	}
	fmt.Fprintf(w, "\nDECILE\tUP TO\tBYTES\t\t\n")
	for _, d := range u.Deciles {
		fmt.Fprintf(w, "%d %%\t%s\t%s\t%s\t\n", d.Percent, units.Size(d.Size), units.Size(d.Bytes), part(d.Bytes, u.Files.Bytes))
	}
	for _, t := range []struct {
		name string
		list []files.Class
	}{{"SIZE", u.Sizes}, {"MODIFIED WITHIN", u.Modified}, {"READ WITHIN", u.Accessed}, {"SUFFIX", u.Suffixes}} {
		fmt.Fprintf(w, "\n%s%s", t.name, columns)
		for _, c := range t.list {
			if c.Count == 0 {
				continue
			}
			name := c.Name
			if name == "" {
				name = "none"
			}
			fmt.Fprint(w, shown(name))
			amount(&c.Amount)
		}
	}
	fmt.Fprintf(w, "\nOWNER%s", columns)
	for _, o := range u.Owners {
		fmt.Fprint(w, o.Name)
		amount(&o.Amount)
	}
	d := u.Directories
	fmt.Fprintf(w, "\n%d directories: %d (%s) with one entry, %d empty, %d with over %d\n\nENTRIES\t\n", d.Count, d.One, part(d.One, d.Count), d.Empty, d.Large, files.LargeDirectory)
	for _, l := range d.Largest {
		fmt.Fprintf(w, "%d\t  %s\n", l.Entries, shown(l.Path))
	}
	return w.Flush()
}
