package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"premix/internal/hotstart"
	"premix/internal/kit/units"
)

// The flags below read their values as recipes do. They implement pflag.Value.

// memoryFlag is an amount of memory in bytes.
type memoryFlag int64

func (m *memoryFlag) Set(s string) error {
	n, err := units.ParseMemory(s)
	if err != nil {
		return fmt.Errorf("%w: %s", err, units.SizeHint)
	}
	*m = memoryFlag(n)
	return nil
}
func (m *memoryFlag) Type() string   { return "size" }
func (m *memoryFlag) String() string { return "" }

// durationFlag is a time greater than 0.
type durationFlag time.Duration

func (d *durationFlag) Set(s string) error {
	v, err := units.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%w: %s", err, units.TimeHint)
	}
	*d = durationFlag(v)
	return nil
}
func (d *durationFlag) Type() string   { return "time" }
func (d *durationFlag) String() string { return "" }

// retriesFlag is a number from 0.
type retriesFlag int

func (r *retriesFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return errors.New("it is a whole number, and 0 means one try a task")
	}
	*r = retriesFlag(n)
	return nil
}
func (r *retriesFlag) Type() string   { return "n" }
func (r *retriesFlag) String() string { return "" }

// startFlag is a kind of start.
type startFlag hotstart.Kind

func (k *startFlag) Set(s string) error {
	switch hotstart.Kind(s) {
	case hotstart.Auto, hotstart.Hot, hotstart.Cold:
		*k = startFlag(s)
		return nil
	case "fork", "copy":
		return fmt.Errorf("%s starts were removed, give hot instead: a hot start needs neither root nor CRIU", s)
	}
	return errors.New("it is one of auto, hot and cold")
}
func (k *startFlag) Type() string   { return "kind" }
func (k *startFlag) String() string { return string(*k) }

// shareFlag is the share of the CPU time that verifying takes; nil: the recipe's.
type shareFlag struct{ share **hotstart.Share }

func (f shareFlag) Set(s string) error {
	share, err := hotstart.ParseShare(s)
	if err != nil {
		return errors.New("it is all, none, or a percentage of the CPU time such as 2%")
	}
	*f.share = &share
	return nil
}
func (shareFlag) Type() string   { return "share" }
func (shareFlag) String() string { return "" }

// countFlag is a number from 1.
type countFlag int

func (c *countFlag) Set(s string) error {
	var n int
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil || n < 1 || fmt.Sprint(n) != s {
		return errors.New("it is a whole number from 1")
	}
	*c = countFlag(n)
	return nil
}
func (c *countFlag) Type() string   { return "n" }
func (c *countFlag) String() string { return "" }

// snapshotsFlag adds the flag for a directory of snapshots. Its earlier name, which means a
// store of trees elsewhere, is still understood.
func snapshotsFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "snapshots", "", "directory of snapshots (default: $PREMIX_HOME/snapshots)")
	f.StringVar(dir, "store", "", "directory of snapshots")
	f.Lookup("store").Hidden = true
}
