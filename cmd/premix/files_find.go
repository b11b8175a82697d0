package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/files"
	"premix/internal/files/policy"
	"premix/internal/kit/units"
)

// findFlags are the options of files find.
type findFlags struct {
	names           []string
	types           string
	larger, smaller memoryFlag
	older, newer    durationFlag
	owner, group    string
	where, by       string
	top             countFlag
	long, zero      bool
}

func (a *app) filesFind() *cobra.Command {
	var o findFlags
	cmd := &cobra.Command{
		Use:   "find TABLE [DIR]",
		Short: "Find entries of a scan",
		Long: `Print the paths of the entries of a scan, or of DIR in it, for which all conditions hold.
The disks are not looked at. --where takes any condition of the rules of
premix files policy.

  premix files find scan.parquet /project/anna --name '*.bam' --larger 1G --older 90d
  premix files find scan.parquet --where "owner = 'anna' AND links > 1" --by size --top 20 --long
  premix files find scan.parquet --name '*.tmp' -0 | xargs -0 ls -l`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return arguments("TABLE")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.find(&o, args) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.names, "name", nil, "pattern of the name, with *, ? and [a-z]; with several, one of them")
	f.StringVar(&o.types, "type", "", "types, with commas: f, d, l, b, c, p, s")
	f.Var(&o.larger, "larger", "more bytes than this")
	f.Var(&o.smaller, "smaller", "fewer bytes than this")
	f.Var(&o.older, "older", "modified longer ago than this, before now")
	f.Var(&o.newer, "newer", "modified less long ago than this, before now")
	f.StringVar(&o.owner, "owner", "", "name or number of the owner")
	f.StringVar(&o.group, "group", "", "name or number of the group")
	f.StringVar(&o.where, "where", "", "condition in the language of rules")
	f.StringVar(&o.by, "by", "", "expression whose greatest values come first, as in size or now() - accessed")
	f.Var(&o.top, "top", "number of entries (default: all)")
	f.BoolVar(&o.long, "long", false, "print type, bytes, bytes on disk and time of modification, too")
	f.BoolVarP(&o.zero, "print0", "0", false, "end each path with a byte 0, and print its bytes unchanged")
	return cmd
}

// condition returns the condition of the flags, without --where.
func (o *findFlags) condition(dir string) string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	var names []string
	for _, n := range o.names {
		names = append(names, "name GLOB "+quoted(n))
	}
	if len(names) > 0 {
		add("(%s)", strings.Join(names, " OR "))
	}
	if o.types != "" {
		var types []string
		for _, t := range strings.Split(o.types, ",") {
			types = append(types, quoted(strings.TrimSpace(t)))
		}
		add("type IN (%s)", strings.Join(types, ", "))
	}
	if o.larger > 0 {
		add("size > %d", int64(o.larger))
	}
	if o.smaller > 0 {
		add("size < %d", int64(o.smaller))
	}
	if o.older > 0 {
		add("modified < now() - %d seconds", int64(time.Duration(o.older).Seconds()))
	}
	if o.newer > 0 {
		add("modified > now() - %d seconds", int64(time.Duration(o.newer).Seconds()))
	}
	for column, v := range map[string]string{"owner": o.owner, "group": o.group} {
		if v == "" {
			continue
		}
		if _, err := strconv.ParseUint(v, 10, 32); err == nil {
			add("%s = %s", map[string]string{"owner": "uid", "group": "gid"}[column], v)
		} else {
			add("%s = %s", column, quoted(v))
		}
	}
	if dir != "" && dir != "/" {
		below := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(dir) + "/%"
		add(`(path = %s OR path LIKE %s ESCAPE '\')`, quoted(dir), quoted(below))
	}
	return strings.Join(list, " AND ")
}

// quoted returns a text of the language of rules.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (a *app) find(o *findFlags, args []string) error {
	dir := ""
	if len(args) == 2 {
		var err error
		if dir, err = filepath.Abs(args[1]); err != nil {
			return err
		}
	}
	if o.where != "" { // its mistakes have places in it
		if _, err := policy.ParseFind("--where", o.where, ""); err != nil {
			return err
		}
	}
	condition := o.condition(dir)
	switch {
	case o.where != "" && condition != "":
		condition += " AND (" + o.where + "\n)"
	case o.where != "":
		condition = o.where
	}
	r, err := policy.ParseFind("the options", condition, o.by)
	if err != nil {
		return err
	}
	t, err := files.OpenTable(args[0])
	if err != nil {
		return err
	}
	defer t.Close()
	ctx, done := storeContext()
	defer done()
	w := bufio.NewWriter(a.stdout)
	err = r.Find(ctx, t, policy.Options{}, int(o.top), func(e *files.Entry) error { return a.printFound(w, o, e) })
	if err != nil {
		return err
	}
	return w.Flush()
}

// foundEntry is an entry as --json prints it.
type foundEntry struct {
	Path      policy.Path `json:"path"`
	Type      string      `json:"type"`
	Size      int64       `json:"size"`
	Allocated int64       `json:"allocated"`
	Mode      int32       `json:"mode"`
	UID       int64       `json:"uid"`
	GID       int64       `json:"gid"`
	Accessed  int64       `json:"accessed"` // nanoseconds since 1970, as is the next one
	Modified  int64       `json:"modified"`
}

func (a *app) printFound(w *bufio.Writer, o *findFlags, e *files.Entry) error {
	if a.json {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(foundEntry{policy.Path(e.Path()), e.Type, e.Size, e.Allocated, e.Mode, e.UID, e.GID, e.Accessed, e.Modified})
	}
	path, end := shown(e.Path()), "\n"
	if o.zero {
		path, end = e.Path(), "\x00"
	}
	if o.long {
		at := time.Unix(0, e.Modified).Local().Format("2006-01-02 15:04")
		_, err := fmt.Fprintf(w, "%s %10s %10s  %s  %s%s", e.Type, units.Size(e.Size), units.Size(e.Allocated), at, path, end)
		return err
	}
	_, err := w.WriteString(path + end)
	return err
}
