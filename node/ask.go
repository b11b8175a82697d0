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

	"premix/lazyfs"
)

// Mount mounts a tree at dir through this user's node, which is started if it does
// not run. Paths in the request may be relative to the working directory.
func Mount(ctx context.Context, r MountRequest, dir string) (*Mounted, error) {
	var err error
	if r.Dir, err = mountPoint(dir); err != nil {
		return nil, err
	}
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
	r.Namespace = mountNamespace()
	c, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	if len(r.Origins)+len(c.Origins) == 0 {
		return nil, usage("--origin URL, --store DIR, or origins in "+ConfigFile(), "there is no origin for %s", r.Ref)
	}
	client, _, err := Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return client.Mount(ctx, r)
}

// mountPoint returns the absolute path of dir, without symbolic links, if a tree
// can be mounted there.
func mountPoint(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// The table of mounts comes first: a dead mount cannot be looked at.
	table, err := lazyfs.Mounts()
	if err != nil {
		return "", err
	}
	if m := lazyfs.Top(table, abs); m != nil {
		return "", usage("give an empty directory, or premix umount "+dir+" first", "%s is a mount point already (%s, %s)", dir, m.Type, m.Source)
	}
	path, err := filepath.EvalSymlinks(abs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", usage("mkdir -p "+dir, "%s does not exist", dir)
	case err != nil:
		return "", usage("give an empty directory of your own", "%v", err)
	}
	if m := lazyfs.Top(table, path); m != nil {
		return "", usage("give an empty directory, or premix umount "+dir+" first", "%s is a mount point already (%s, %s)", dir, m.Type, m.Source)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", usage("give an empty directory of your own", "%v", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return "", usage("give an empty directory", "%s is not a directory", dir)
	case err == nil:
		return "", usage("give an empty directory", "%s is not empty: it holds %s", dir, names[0])
	case !errors.Is(err, io.EOF):
		return "", usage("give an empty directory of your own", "%v", err)
	}
	return path, nil
}

// Umount ends the mount at dir, or all where dir is "". Where no node runs and a
// dead one has left mounts, a node is started: it knows what to do with them.
func Umount(ctx context.Context, dir string, lazy bool) ([]Mounted, error) {
	r := UmountRequest{All: dir == "", Lazy: lazy}
	if dir != "" {
		r.Dir = mountedPath(dir)
	}
	list, err := NewClient(Dir()).Umount(ctx, r)
	if !IsKind(err, KindNotRunning) {
		return list, err
	}
	j, err := readJournal(Dir())
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(j.Mounts, func(e entry) bool { return r.All || e.Dir == r.Dir }) {
		if r.All {
			return nil, nil
		}
		return nil, notMounted(r.Dir)
	}
	c, err := ReadConfig()
	if err != nil {
		return nil, err
	}
	client, _, err := Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return client.Umount(ctx, r)
}

func notMounted(dir string) error {
	return &Error{Kind: KindNotMounted, Message: dir + " is no mount of premix", Way: "premix node status lists them; others are unmounted with umount(8)"}
}

// mountedPath is the absolute path of a directory at which something is mounted,
// which may be dead: only its parent is looked at.
func mountedPath(dir string) string {
	abs := absolute(dir)
	if table, err := lazyfs.Mounts(); err == nil && lazyfs.Top(table, abs) != nil {
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
