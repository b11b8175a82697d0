package node

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
)

// Mount mounts a tree at dir through this user's node, which it starts if none is
// running. Paths in the request may be relative to the working directory.
func Mount(ctx context.Context, r MountRequest, dir string) (*Mounted, error) {
	_, missing := os.Lstat(dir)
	var err error
	if r.Dir, err = mountPoint(dir, false); err != nil {
		return nil, err
	}
	m, err := ask(ctx, r)
	if err != nil && errors.Is(missing, os.ErrNotExist) {
		os.Remove(r.Dir) // mountPoint has made it; this fails if the tree was mounted after all
	}
	return m, err
}

// MountOver mounts a tree over a directory, which need not be empty: its content is
// hidden until the mount ends.
func MountOver(ctx context.Context, r MountRequest, dir string) (*Mounted, error) {
	var err error
	if r.Dir, err = mountPoint(dir, true); err != nil {
		return nil, err
	}
	return ask(ctx, r)
}

// ask sends a request for a mount. Paths in it, except Dir, may be relative.
func ask(ctx context.Context, r MountRequest) (_ *Mounted, err error) {
	for _, p := range []*string{&r.KeyFile, &r.Credentials, &r.CAFile, &r.Record} {
		if *p != "" {
			if *p, err = filepath.Abs(*p); err != nil {
				return nil, err
			}
		}
	}
	for i, o := range r.Origins {
		if !strings.Contains(o, "://") {
			if r.Origins[i], err = filepath.Abs(o); err != nil {
				return nil, err
			}
		}
	}
	if r.CVMFS != nil {
		if r.CVMFS, err = r.CVMFS.absolute(); err != nil {
			return nil, err
		}
	}
	r.Namespace = mountNamespace()
	c, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	if r.CVMFS == nil && r.Layer == nil && len(r.Origins)+len(c.Origins) == 0 {
		return nil, usage("give --origin URL or --store DIR, or set origins in "+ConfigFile(), "there is no origin for %s", r.Ref)
	}
	client, _, err := Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return client.Mount(ctx, r)
}

// mountPoint returns the absolute path of dir, without symbolic links, if a tree can be
// mounted there: on an empty directory or, if over is set, on any.
func mountPoint(dir string, over bool) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// Check the table of mounts first: stat(2) of a dead mount fails or hangs.
	table, err := mountinfo.Read()
	if err != nil {
		return "", err
	}
	if m := mountinfo.Top(table, abs); m != nil {
		return "", usage("give an empty directory, or premix umount "+dir+" first", "%s is a mount point already (%s, %s)", dir, m.Type, m.Source)
	}
	path, err := filepath.EvalSymlinks(abs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		// Make only the last directory: a wrong parent is probably a typing error.
		if err := os.Mkdir(abs, 0o755); err != nil {
			hint := "mkdir -p " + dir
			if !errors.Is(err, os.ErrNotExist) {
				hint = "give an empty directory of your own"
			}
			return "", usage(hint, "%s does not exist, and cannot be made: %v", dir, errors.Unwrap(err))
		}
		return filepath.EvalSymlinks(abs)
	case err != nil:
		return "", usage("give an empty directory of your own", "%v", err)
	}
	if m := mountinfo.Top(table, path); m != nil {
		return "", usage("give an empty directory, or premix umount "+dir+" first", "%s is a mount point already (%s, %s)", dir, m.Type, m.Source)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", usage("give an empty directory of your own", "%v", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	switch {
	case over && err == nil:
	case errors.Is(err, unix.ENOTDIR):
		return "", usage("give an empty directory", "%s is not a directory", dir)
	case err == nil:
		return "", usage("give an empty directory", "%s is not empty: it contains %s", dir, names[0])
	case !errors.Is(err, io.EOF):
		return "", usage("give an empty directory of your own", "%v", err)
	}
	return path, nil
}

// Umount ends the mount at dir, or all mounts if dir is "". If no node is running and a
// dead one has left mounts, it starts a node to clean up.
func Umount(ctx context.Context, dir string, lazy bool) ([]Mounted, error) {
	r := UmountRequest{All: dir == "", Lazy: lazy}
	if dir != "" {
		r.Dir = mountedPath(dir)
	}
	list, err := NewClient(Dir()).Umount(ctx, r)
	if !IsKind(err, KindNotRunning) {
		return list, err
	}
	client, err := reviveFor(ctx, func(e entry) bool { return r.All || e.Dir == r.Dir })
	switch {
	case err != nil:
		return nil, err
	case client == nil && r.All:
		return nil, nil
	case client == nil:
		return nil, notMounted(r.Dir)
	}
	return client.Umount(ctx, r)
}

// Stop ends this user's node and all its mounts, including those of a dead node. It
// reports whether there were any.
func Stop(ctx context.Context, lazy bool) (was bool, err error) {
	r := StopRequest{Lazy: lazy}
	err = NewClient(Dir()).Stop(ctx, r)
	if !IsKind(err, KindNotRunning) {
		return true, err
	}
	client, err := reviveFor(ctx, func(entry) bool { return true })
	if err != nil || client == nil {
		return false, err
	}
	return true, client.Stop(ctx, r)
}

// reviveFor starts a node to clean up if a dead one has left a mount for which matters
// returns true. Otherwise the client is nil.
func reviveFor(ctx context.Context, matters func(entry) bool) (*Client, error) {
	j, err := readJournal(Dir())
	if err != nil || !slices.ContainsFunc(j.Mounts, matters) {
		return nil, err
	}
	c, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	client, _, err := Start(ctx, c)
	return client, err
}

func notMounted(dir string) error {
	return &Error{Kind: KindNotMounted, Message: dir + " is not a mount of premix", HintText: "premix node status lists them; others are unmounted with umount(8)"}
}

// mountedPath returns the absolute path of a mount point. The mount may be dead, so
// only its parent is accessed.
func mountedPath(dir string) string {
	abs := absolute(dir)
	if table, err := mountinfo.Read(); err == nil && mountinfo.Top(table, abs) != nil {
		return abs
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		path := filepath.Join(parent, filepath.Base(abs))
		if to, err := os.Readlink(path); err == nil {
			if !filepath.IsAbs(to) {
				to = filepath.Join(parent, to)
			}
			return to
		}
		return path
	}
	return abs
}
