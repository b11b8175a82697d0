package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/files/tiers/ring"
	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// overlay is a way to write into directories of one disk: directly, or through a file
// system of a program.
type overlay struct {
	name string
	// args returns the command that mounts the directories flash and disk of top on mnt and
	// serves the mount in the foreground.
	args func(top string) []string
}

// example is the source of libfuse's small pass-through, from Debian's libfuse3-dev.
const example = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"

// overlays returns the overlays that are installed.
func overlays(ctx context.Context, dir, premix string) ([]overlay, error) {
	at := func(top, name string) string { return filepath.Join(top, name) }
	list := []overlay{
		{"native", nil},
		{"tiers", func(top string) []string {
			return []string{premix, "files", "mount", "--tiers", at(top, "tiers.yaml"), at(top, "mnt")}
		}},
		{"mergerfs", func(top string) []string {
			return []string{"mergerfs", "-f", "-o", "allow_other,category.create=ff,minfreespace=1M", at(top, "flash") + ":" + at(top, "disk"), at(top, "mnt")}
		}},
		{"passthrough_hp", func(top string) []string {
			return []string{"passthrough_hp", "--foreground", at(top, "flash"), at(top, "mnt")}
		}},
		{"passthrough_ll", func(top string) []string {
			return []string{filepath.Join(dir, "passthrough_ll"), "-f", "-o", "source=" + at(top, "flash") + ",xattr,timeout=1,allow_other,default_permissions", at(top, "mnt")}
		}},
	}
	if ring.Available() { // the tiers use it, and the peer has to be asked to
		list = append(list, overlay{"passthrough_hp_io_uring", func(top string) []string {
			return []string{"passthrough_hp", "--foreground", "-o", "io_uring", at(top, "flash"), at(top, "mnt")}
		}})
	}
	if _, err := os.Stat(example); err == nil {
		script := `cc -O2 -o "$1" "$2" $(pkg-config fuse3 --cflags --libs)`
		if out, err := exec.CommandContext(ctx, "sh", "-c", script, "sh", filepath.Join(dir, "passthrough_ll"), example).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", example, err, out)
		}
	}
	have := list[:0]
	for _, o := range list {
		if o.args != nil {
			if _, err := exec.LookPath(o.args("")[0]); err != nil {
				fmt.Printf("%s is left out: %v\n", o.name, err)
				continue
			}
		}
		have = append(have, o)
	}
	return have, nil
}

// mount makes directories below top and mounts them. It returns the directory to write
// into, and a function that ends the mount.
func (o *overlay) mount(ctx context.Context, top string) (dir string, end func() error, err error) {
	if err := os.RemoveAll(top); err != nil {
		return "", nil, err
	}
	for _, d := range []string{"flash", "disk", "mnt"} {
		if err := os.MkdirAll(filepath.Join(top, d), 0o755); err != nil {
			return "", nil, err
		}
	}
	if o.args == nil {
		return filepath.Join(top, "flash"), func() error { return nil }, nil
	}
	text := "tiers: [{name: flash, dir: flash, high: 100}, {name: disk, dir: disk}]\ninterval: 24h\n"
	if err := os.WriteFile(filepath.Join(top, "tiers.yaml"), []byte(text), 0o666); err != nil {
		return "", nil, err
	}
	mnt, args := filepath.Join(top, "mnt"), o.args(top)
	log, err := os.Create(filepath.Join(top, "log"))
	if err != nil {
		return "", nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.Stdout, cmd.Stderr = log, log
	var before, now unix.Stat_t
	if err := unix.Stat(mnt, &before); err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	finished := make(chan error, 1)
	go func() { finished <- cmd.Wait() }()
	for now = before; now.Dev == before.Dev; {
		select {
		case err := <-finished:
			return "", nil, fmt.Errorf("%s: %w; see %s", strings.Join(args, " "), errors.Join(err, errors.New("it ended early")), log.Name())
		case <-time.After(10 * time.Millisecond):
		}
		if err := unix.Stat(mnt, &now); err != nil {
			return "", nil, err
		}
	}
	return mnt, func() error {
		err := unix.Unmount(mnt, 0)
		<-finished // the exit status after an unmount differs between programs
		return err
	}, nil
}

// workloads are the writes of one process: files made one after the other, and pieces
// appended to one file.
var workloads = []struct {
	name, title string
	write       func(dir string, count int) error
}{
	{"small", "files of 4 KB written", func(dir string, count int) error {
		content := make([]byte, 4096)
		for i := range count {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d", i)), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	}},
	{"append", "pieces of 4 KB appended", func(dir string, count int) error {
		f, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			return err
		}
		content := make([]byte, 4096)
		for range count {
			if _, err := f.Write(content); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		return f.Close()
	}},
}

// tierWrites writes into a directory, through a mount of tiers, and through peers. The
// directories are below dir.
func tierWrites(ctx context.Context, results *figures.Results, dir, premix string, count, reps int) (err error) {
	if os.Geteuid() != 0 {
		fmt.Println("writes through tiers are left out: a mount with passthrough needs root")
		return nil
	}
	if premix, err = filepath.Abs(premix); err != nil {
		return err
	}
	list, err := overlays(ctx, dir, premix)
	if err != nil {
		return err
	}
	dirs := make([]string, len(list))
	for i, o := range list {
		var end func() error
		if dirs[i], end, err = o.mount(ctx, filepath.Join(dir, "tiers", o.name)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	for _, w := range workloads {
		took := map[string][]float64{}
		for rep := range reps + 1 { // the first repetition warms up
			for i, o := range list {
				into := filepath.Join(dirs[i], fmt.Sprintf("%s-%d", w.name, rep))
				if err := os.Mkdir(into, 0o755); err != nil {
					return err
				}
				started := time.Now()
				if err := errors.Join(w.write(into, count), ctx.Err()); err != nil {
					return fmt.Errorf("%s: %w", o.name, err)
				}
				if s := time.Since(started).Seconds(); rep > 0 {
					took[o.name] = append(took[o.name], s)
				}
				if err := os.RemoveAll(into); err != nil {
					return err
				}
			}
		}
		name := func(o string) string { return "files/tiers/" + w.name + "/" + o }
		native := quantile.Median(took["native"])
		rows := [][]string{{"", "time", "each", "against native"}}
		for _, o := range list {
			f := figures.Figure{Name: name(o.name), Value: quantile.Median(took[o.name]), Unit: "s"}
			ratio := ""
			if o.args != nil {
				f.Peer, f.Ratio = name("native"), figures.Lower(f.Value, native)
				ratio = figures.Times(f.Ratio)
			}
			if err := results.Add(f); err != nil {
				return err
			}
			rows = append(rows, []string{o.name, figures.Seconds(f.Value), fmt.Sprintf("%.1f us", f.Value/float64(count)*1e6), ratio})
		}
		results.Table(fmt.Sprintf("%d %s, medians of %d", count, w.title, reps), rows)
	}
	return nil
}
