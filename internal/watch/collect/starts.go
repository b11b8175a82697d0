package collect

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/hotstart/calls"
	"premix/internal/watch"
)

const (
	startsInterval = 30 * time.Second
	startsWindow   = 7 * 24 * time.Hour
	startsAge      = 10 * time.Minute // after which a table is read again even if nothing was added
)

// starts reports the commands that premix hot and premix shim have started on this machine in
// seven days: those of this user, or of all local users if premix watch belongs to root.
type starts struct {
	*machine
	b      batch
	tables func() []startsTable
	here   calls.Machine
	users  kept[userStarts]
	sums   map[string]*startsSum // by the directory of the table
}

// startsTable is the directory of a user's table of starts.
type startsTable struct {
	user string
	uid  int
	dir  string
}

type userStarts struct{ hot, cold, saved, bytes *gauge }

// startsSum is the sum of a table when it was read.
type startsSum struct {
	at      time.Time
	size    int64 // of the table's newest part
	changed time.Time
	calls.Sum
}

func newStarts(m *machine) *starts {
	c := &starts{machine: m, here: calls.ThisMachine(), sums: map[string]*startsSum{}}
	c.tables = ownTable
	if os.Geteuid() == 0 {
		c.tables = func() []startsTable { return append(ownTable(), allTables(m.root)...) }
	}
	return c
}

// ownTable returns the table of this user.
func ownTable() []startsTable {
	dir, err := calls.Dir()
	if err != nil {
		return nil
	}
	name := strconv.Itoa(os.Geteuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return []startsTable{{name, os.Geteuid(), dir}}
}

// allTables returns the default places of the tables of all users in /etc/passwd.
func allTables(root string) []startsTable {
	text, err := os.ReadFile(filepath.Join(root, "/etc/passwd"))
	if err != nil {
		return nil
	}
	var tables []startsTable
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(line, ":")
		if len(fields) < 7 || !filepath.IsAbs(fields[5]) {
			continue
		}
		uid, err := strconv.Atoi(fields[2])
		if err != nil || uid == os.Geteuid() {
			continue
		}
		tables = append(tables, startsTable{fields[0], uid, filepath.Join(root, fields[5], ".cache/premix/calls")})
	}
	return tables
}

// Name returns "start".
func (c *starts) Name() string { return "start" }

// Collect reads the tables that have changed.
func (c *starts) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	var errs []error
	for _, t := range c.tables() {
		s, err := c.sum(t, now)
		if err != nil {
			errs = append(errs, err)
		}
		if s == nil {
			continue
		}
		g := c.users.get(t.user, func() *userStarts {
			return &userStarts{c.level("task.week_hot_starts", t.user), c.level("task.week_cold_starts", t.user),
				c.level("task.week_saved", t.user), c.level("task.week_not_loaded", t.user)}
		})
		c.b.level(g.hot, float64(s.Hot))
		c.b.level(g.cold, float64(s.Cold))
		c.b.level(g.saved, s.Saved)
		c.b.level(g.bytes, float64(s.Bytes))
	}
	c.users.sweep(nil)
	to.Samples(c.b.samples)
	return errors.Join(errs...)
}

// sum returns the sum of a table, or nil if there is none.
func (c *starts) sum(t startsTable, now time.Time) (*startsSum, error) {
	info, err := os.Lstat(calls.StartsFile(t.dir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		delete(c.sums, t.dir)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := c.sums[t.dir]
	if s != nil && s.size == info.Size() && s.changed.Equal(info.ModTime()) && now.Sub(s.at) < startsAge {
		return s, nil
	}
	s = &startsSum{at: now, size: info.Size(), changed: info.ModTime()}
	err = calls.StartsIn(t.dir, t.uid, now.Add(-startsWindow), func(one calls.Start) {
		if c.here.Has(one) {
			s.Add(one)
		}
	})
	if err != nil {
		delete(c.sums, t.dir)
		return nil, err
	}
	c.sums[t.dir] = s
	return s, nil
}
