package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
	"premix/internal/testkit/figures"
	"premix/internal/watch/collect"
	"premix/internal/watch/series"
)

// collectTasks is the number of watched tasks. One in collectBusy of them does something
// each second.
const (
	collectTasks = 1000
	collectBusy  = 4
)

// collectWarm is the time after which nothing is new: each task has had all its turns.
const collectWarm = 25 * time.Second

// busy is the main function of a task that does something each second.
func busy() {
	for {
		time.Sleep(time.Second)
	}
}

// measureCollect measures the cost of watching a machine once a second: the CPU time of
// the collectors and of storing their samples, without tasks and with a thousand. Each
// task is a process in its own cgroups in all hierarchies of this machine, and a quarter
// of them do something each second.
func measureCollect(ctx context.Context, b *bench) error {
	if os.Geteuid() != 0 {
		fmt.Println("collect is left out: it needs root to make cgroups")
		return nil
	}
	alone, err := b.collectFor(ctx, "none")
	if err != nil {
		return err
	}
	release, err := makeTasks(ctx, collectTasks)
	if err != nil {
		return errors.Join(err, release())
	}
	with, err := b.collectFor(ctx, "many")
	if err = errors.Join(err, release()); err != nil {
		return err
	}
	for _, f := range []figures.Figure{
		{Name: "watch/collect/0-tasks", Value: alone, Unit: "cores"},
		{Name: fmt.Sprintf("watch/collect/%d-tasks", collectTasks), Value: with, Unit: "cores", Peer: "watch/collect/0-tasks", Ratio: figures.Lower(with, alone),
			Note: "the goal is less than 0.01"},
	} {
		if err := b.results.Add(f); err != nil {
			return err
		}
	}
	b.results.Table(fmt.Sprintf("cost of watching, collectors and storage, over %d s", b.seconds), [][]string{
		{"", "of a core"},
		{"no tasks", fmt.Sprintf("%.2f %%", 100*alone)},
		{fmt.Sprintf("%d tasks in cgroups", collectTasks), fmt.Sprintf("%.2f %%", 100*with)},
	})
	return nil
}

// collectFor watches for the time of the option, and returns the CPU time of this process
// a second. The time until collectWarm does not count.
func (b *bench) collectFor(ctx context.Context, name string) (cores float64, err error) {
	dir := filepath.Join(b.dir, "collect-"+name)
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	db, err := series.Open(dir, series.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close(), os.RemoveAll(dir)) }()
	w, err := collect.New(collect.Options{Sink: db})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.Run(ctx)
	}()
	defer func() { cancel(); <-finished }()
	pause := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := pause(collectWarm); err != nil {
		return 0, err
	}
	before, began := cpuTime(), time.Now()
	if err := pause(time.Duration(b.seconds) * time.Second); err != nil {
		return 0, err
	}
	return (cpuTime() - before).Seconds() / time.Since(began).Seconds(), nil
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// makeTasks makes cgroups in the same way as premix, with a process in each. release ends
// the processes and removes the cgroups; it may be called even if makeTasks failed.
func makeTasks(ctx context.Context, many int) (release func() error, err error) {
	parent := fmt.Sprintf("premix-%d.0.0", os.Getpid())
	var processes []*exec.Cmd
	var dirs []string
	release = func() error {
		for _, p := range processes {
			_ = p.Process.Kill()
			_ = p.Wait() // it was killed
		}
		var errs []error
		for _, d := range dirs {
			errs = append(errs, removeSoon(d))
		}
		return errors.Join(errs...)
	}
	points, err := hierarchies()
	if err != nil {
		return release, err
	}
	self, err := os.Executable()
	if err != nil {
		return release, err
	}
	for i := range many {
		if err := ctx.Err(); err != nil {
			return release, err
		}
		p := exec.Command("sleep", "100000")
		if i%collectBusy == 0 {
			p = exec.Command(self, "busy")
		}
		p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := p.Start(); err != nil {
			return release, err
		}
		processes = append(processes, p)
		for _, point := range points {
			d := filepath.Join(point, parent, strconv.Itoa(i)+".1")
			if err := os.MkdirAll(d, 0o755); err != nil {
				return release, err
			}
			dirs = append(dirs, d)
			if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(p.Process.Pid)), 0o644); err != nil {
				return release, err
			}
		}
	}
	for _, point := range points {
		dirs = append(dirs, filepath.Join(point, parent))
	}
	return release, nil
}

// removeSoon removes a cgroup whose processes are dead, and retries until the kernel has
// noticed their end.
func removeSoon(dir string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if time.Now().After(end) {
			return &os.PathError{Op: "remove cgroup", Path: dir, Err: err}
		}
	}
}

// hierarchies returns the mount points of the cgroup hierarchies in which tasks are
// watched.
func hierarchies() ([]string, error) {
	mounts, err := mountinfo.Read()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, m := range mounts {
		used := m.Type == "cgroup2"
		for _, controller := range []string{"cpu", "cpuacct", "memory", "blkio", "pids"} {
			used = used || m.Type == "cgroup" && slices.Contains(m.Options, controller)
		}
		if used {
			list = append(list, m.Path)
		}
	}
	return list, nil
}
