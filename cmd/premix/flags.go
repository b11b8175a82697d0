package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"premix/hotstart"
	"premix/recipe"
)

// The flags below read their values as recipes do. They implement pflag.Value.

// memoryFlag is an amount of memory in bytes.
type memoryFlag int64

func (m *memoryFlag) Set(s string) error {
	n, err := recipe.ParseMemory(s)
	if err != nil {
		return fmt.Errorf("%w: write a number and K, M, G or T, as in 16G", err)
	}
	*m = memoryFlag(n)
	return nil
}
func (m *memoryFlag) Type() string   { return "size" }
func (m *memoryFlag) String() string { return "" }

// durationFlag is a time of more than nothing.
type durationFlag time.Duration

func (d *durationFlag) Set(s string) error {
	v, err := recipe.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%w: write it as in 90s, 2h or 1d12h", err)
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

// startFlag is a wished kind of start.
type startFlag hotstart.Kind

func (k *startFlag) Set(s string) error {
	known := []hotstart.Kind{hotstart.Auto, hotstart.Fork, hotstart.Hot, hotstart.Copy, hotstart.Cold}
	if !slices.Contains(known, hotstart.Kind(s)) {
		return errors.New("it is one of auto, fork, hot, copy and cold")
	}
	*k = startFlag(s)
	return nil
}
func (k *startFlag) Type() string   { return "kind" }
func (k *startFlag) String() string { return string(*k) }

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
