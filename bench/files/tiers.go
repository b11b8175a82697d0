package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// tierWrites writes small files into a directory, and then through a mount of tiers whose
// first tier is this directory.
func tierWrites(ctx context.Context, results *figures.Results, dir, premix string, count, reps int) (err error) {
	if os.Geteuid() != 0 {
		fmt.Println("writes through tiers are left out: a mount with passthrough needs root")
		return nil
	}
	work := filepath.Join(dir, "tiers")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	mnt := filepath.Join(work, "mnt")
	for _, d := range []string{"flash", "disk", "mnt"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o755); err != nil {
			return err
		}
	}
	file := filepath.Join(work, "tiers.yaml")
	if err := os.WriteFile(file, []byte("tiers: [{name: flash, dir: flash, high: 100}, {name: disk, dir: disk}]\ninterval: 24h\n"), 0o666); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, premix, "files", "mount", "--tiers", file, mnt)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	var before, now unix.Stat_t
	if err := unix.Stat(mnt, &before); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	finished := make(chan error, 1)
	go func() { finished <- cmd.Wait() }()
	for now = before; now.Dev == before.Dev; {
		select {
		case err := <-finished:
			return fmt.Errorf("premix files mount: %w", errors.Join(err, errors.New("it ended early")))
		case <-time.After(10 * time.Millisecond):
		}
		if err := unix.Stat(mnt, &now); err != nil {
			return err
		}
	}
	defer func() {
		err = errors.Join(err, cmd.Process.Signal(unix.SIGTERM), <-finished)
	}()
	took := map[string][]float64{}
	content := make([]byte, 4096)
	for rep := range reps + 1 { // the first repetition warms up
		for _, c := range []struct{ name, top string }{{"native", filepath.Join(work, "flash")}, {"tiers", mnt}} {
			into := filepath.Join(c.top, fmt.Sprintf("%s-%d", c.name, rep))
			if err := os.Mkdir(into, 0o755); err != nil {
				return err
			}
			started := time.Now()
			for i := range count {
				if err := os.WriteFile(filepath.Join(into, fmt.Sprintf("%06d", i)), content, 0o644); err != nil {
					return err
				}
			}
			if s := time.Since(started).Seconds(); rep > 0 {
				took[c.name] = append(took[c.name], s)
			}
			if err := os.RemoveAll(into); err != nil {
				return err
			}
		}
	}
	native, tiers := quantile.Median(took["native"]), quantile.Median(took["tiers"])
	ratio := figures.Lower(tiers, native)
	if err := results.Add(figures.Figure{Name: "files/tiers/native", Value: native, Unit: "s"}); err != nil {
		return err
	}
	if err := results.Add(figures.Figure{Name: "files/tiers/mount", Value: tiers, Unit: "s", Peer: "files/tiers/native", Ratio: ratio}); err != nil {
		return err
	}
	results.Table(fmt.Sprintf("%d files of 4 KB written, medians of %d", count, reps), [][]string{
		{"", "time", "files a second", "against native"},
		{"native", figures.Seconds(native), fmt.Sprintf("%.0f", float64(count)/native), ""},
		{"tiers", figures.Seconds(tiers), fmt.Sprintf("%.0f", float64(count)/tiers), figures.Times(ratio)},
	})
	return nil
}
