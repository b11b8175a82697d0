package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/workbench"
)

// native is the directory itself.
type native struct{}

func (native) name() string                                { return "native" }
func (native) prepare(context.Context, tree, string) error { return nil }
func (native) open(_ context.Context, p place) (shown, error) {
	return here(p.tree.dir), nil
}

// here is a directory that does not need a mount.
type here string

func (d here) mount(context.Context) (string, error) { return string(d), nil }
func (here) close() error                            { return nil }

// overlayfs is the mount that a container engine makes after it has unpacked a layer.
type overlayfs struct{}

func (overlayfs) name() string                                { return "overlayfs" }
func (overlayfs) prepare(context.Context, tree, string) error { return nil }
func (overlayfs) open(_ context.Context, p place) (shown, error) {
	for _, sub := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(p.scratch, sub), 0o755); err != nil {
			return nil, err
		}
	}
	return overlayMount{p}, nil
}

type overlayMount struct{ place }

func (o overlayMount) dir() string { return filepath.Join(o.scratch, "merged") }

func (o overlayMount) mount(context.Context) (string, error) {
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", o.tree.dir, o.scratch, o.scratch)
	return o.dir(), os.NewSyscallError("mount", unix.Mount("overlay", o.dir(), "overlay", 0, data))
}

func (o overlayMount) close() error { return unmount(o.dir()) }

// erofs is the kernel's EROFS on an image that mkfs.erofs(1) makes, mounted from the
// file. It is the upper bound for all mounts by EROFS when everything is warm.
type erofs struct{ lab *lab }

func newErofs(l *lab) (contender, error) {
	_, err := exec.LookPath("mkfs.erofs")
	return &erofs{l}, err
}

func (*erofs) name() string { return "erofs" }

func (e *erofs) image(t tree) string { return filepath.Join(e.lab.Dir, "images", t.name+".erofs") }

func (e *erofs) prepare(ctx context.Context, t tree, _ string) error {
	_, err := e.lab.Once("images/"+t.name+".erofs", func(path string) error {
		return workbench.Run(nil, workbench.Command(ctx, "mkfs.erofs", "--quiet", path, t.dir))
	})
	return err
}

func (e *erofs) open(_ context.Context, p place) (shown, error) {
	m := erofsMount{e.image(p.tree), filepath.Join(p.scratch, "mnt")}
	return m, os.Mkdir(m.dir, 0o755)
}

type erofsMount struct{ image, dir string }

// mount mounts the image without a loop device: Linux 6.12 mounts EROFS from a file.
func (m erofsMount) mount(context.Context) (string, error) {
	return m.dir, os.NewSyscallError("mount", unix.Mount(m.image, m.dir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, ""))
}

func (m erofsMount) close() error { return unmount(m.dir) }

// pull downloads a layer (tar and gzip), checks its digest and unpacks it, all at once,
// like a container engine at its best.
type pull struct{ lab *lab }

func (*pull) name() string { return "pull" }

func (p *pull) prepare(ctx context.Context, t tree, _ string) error {
	archive, err := p.lab.tar(ctx, t)
	if err != nil {
		return err
	}
	_, err = p.lab.Once("served/pull/"+t.name+".tar.gz", func(path string) error {
		return workbench.Run(nil, workbench.Command(ctx, "sh", "-c", `gzip -n -c "$1" >"$2"`, "sh", archive, path))
	})
	return err
}

func (p *pull) open(_ context.Context, at place) (shown, error) { return &pulled{at}, nil }

type pulled struct{ place }

func (p *pulled) mount(ctx context.Context) (string, error) {
	dir := filepath.Join(p.scratch, "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, workbench.Run(p.client, workbench.Command(ctx, os.Args[0], "pull", p.origin+"/pull/"+p.tree.name+".tar.gz", dir))
}

func (p *pulled) close() error { return os.RemoveAll(filepath.Join(p.scratch, "root")) }

// pullMain is `pull URL DIR`. It writes a file other than a layer to the file DIR; with
// DIR "-" it reads and discards it.
func pullMain(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: pull URL DIR")
	}
	if args[1] == "-" {
		return download(args[0], io.Discard)
	}
	if filepath.Ext(args[0]) != ".gz" {
		f, err := os.Create(args[1])
		if err != nil {
			return err
		}
		if err := download(args[0], f); err != nil {
			return err
		}
		return f.Close()
	}
	// gzip(1) and tar(1) are separate processes, so that two processors are used.
	cmd := exec.Command("tar", "--use-compress-program=gzip", "--numeric-owner", "--xattrs", "-xpf", "-", "-C", args[1])
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	hash := sha256.New()
	err = download(args[0], io.MultiWriter(hash, in))
	return errors.Join(err, in.Close(), cmd.Wait())
}
