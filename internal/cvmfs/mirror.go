package cvmfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// parallel is the number of objects that Mirror fetches at the same time.
const parallel = 8

// MirrorOptions configure a Mirror.
type MirrorOptions struct {
	// Variable returns the values of variables in the targets of symbolic links.
	Variable func(name string) (string, bool)
	Progress *Progress // may be nil
}

// Progress has the counts of a running Mirror.
type Progress struct {
	Entries atomic.Int64
	Files   atomic.Int64
	Done    atomic.Int64 // files
	Bytes   atomic.Int64 // of the contents of these
}

// place is an entry and its path in the copy.
type place struct {
	e  *Entry
	to string
}

// linkGroup identifies hard links.
type linkGroup struct {
	c *catalog
	n uint64
}

// Mirror copies a directory of the repository, and everything in it, into an empty
// directory. Contents, names, modes, times, xattrs, hard links and symbolic links are
// the repository's; owners too, if the caller is root. After an error the directory has
// a part of it.
func (r *Repository) Mirror(ctx context.Context, e *Entry, dir string, o MirrorOptions) error {
	if !e.IsDir() {
		return &Error{Kind: Usage, Reason: fmt.Sprintf("%s in %s is not a directory", e.Path, r.name), HintText: "name the directory that has it"}
	}
	if o.Progress == nil {
		o.Progress = &Progress{}
	}
	if o.Variable == nil {
		o.Variable = func(string) (string, bool) { return "", false }
	}
	m := &mirror{r: r, o: o, dir: dir, top: e.Path}
	if err := m.gather(ctx, e); err != nil {
		return err
	}
	all, within := errgroup.WithContext(ctx)
	all.SetLimit(parallel)
	for _, p := range m.files {
		all.Go(func() error { return m.file(within, p) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for _, l := range m.links {
		if err := os.Link(l[0], l[1]); err != nil {
			return err
		}
	}
	// Directories last, since entries in them change their times; the innermost first.
	for _, p := range slices.Backward(m.dirs) {
		if err := m.finish(p); err != nil {
			return err
		}
	}
	return nil
}

type mirror struct {
	r    *Repository
	o    MirrorOptions
	dir  string
	top  string
	dirs []place
	// files has a regular file once for all its names, links the further names.
	files []place
	links [][2]string
	first map[linkGroup]place
}

// gather makes directories and all entries but regular files.
func (m *mirror) gather(ctx context.Context, e *Entry) error {
	m.first = map[linkGroup]place{}
	m.dirs = append(m.dirs, place{e, m.dir})
	for i := 0; i < len(m.dirs); i++ {
		list, err := m.r.List(ctx, m.dirs[i].e)
		if err != nil {
			return err
		}
		for _, e := range list {
			m.o.Progress.Entries.Add(1)
			if err := m.make(place{e, filepath.Join(m.dir, strings.TrimPrefix(e.Path, m.top))}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *mirror) make(p place) error {
	switch p.e.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		m.dirs = append(m.dirs, p)
		return os.Mkdir(p.to, 0o700)
	case unix.S_IFREG:
		return m.plan(p)
	case unix.S_IFLNK:
		target := Expand(p.e.Target, m.o.Variable)
		if target == "" {
			return &Error{Kind: Cannot, Reason: fmt.Sprintf("%s is a symlink to %q, of which nothing is left without its variables", p.e.Path, p.e.Target), HintText: "set the variable in the environment"}
		}
		if err := os.Symlink(target, p.to); err != nil {
			return err
		}
	default:
		if err := unix.Mknod(p.to, p.e.Mode, int(p.e.Size)); errors.Is(err, unix.EPERM) {
			return &Error{Kind: Cannot, Reason: p.e.Path + " is a device, which only root can make", HintText: "import as root", Err: err}
		} else if err != nil {
			return &os.PathError{Op: "mknod", Path: p.to, Err: err}
		}
	}
	return m.finish(p)
}

// plan puts a file into files, or into links if another name of it is there.
func (m *mirror) plan(p place) error {
	g := linkGroup{p.e.catalog, p.e.Links}
	if first, ok := m.first[g]; ok && g.n != 0 {
		if first.e.Size != p.e.Size || first.e.content != p.e.content || first.e.Mode != p.e.Mode {
			return p.e.catalog.bad("%q and %q are links of one file, and differ", first.e.Path, p.e.Path)
		}
		m.links = append(m.links, [2]string{first.to, p.to})
		return nil
	}
	m.first[g] = p
	m.files = append(m.files, p)
	m.o.Progress.Files.Add(1)
	return nil
}

func (m *mirror) file(ctx context.Context, p place) error {
	f, err := os.OpenFile(p.to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = m.r.Content(ctx, p.e, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	m.o.Progress.Done.Add(1)
	m.o.Progress.Bytes.Add(p.e.Size)
	return m.finish(p)
}

// finish sets everything but the content.
func (m *mirror) finish(p place) error {
	fail := func(op string, err error) error {
		return &os.PathError{Op: op, Path: p.to, Err: err}
	}
	link := p.e.Mode&unix.S_IFMT == unix.S_IFLNK
	if os.Geteuid() == 0 {
		if err := unix.Lchown(p.to, int(p.e.UID), int(p.e.GID)); err != nil {
			return fail("lchown", err)
		}
	}
	for name, value := range p.e.Xattrs {
		if err := unix.Lsetxattr(p.to, name, value, 0); err != nil {
			return fail("setxattr "+name, err)
		}
	}
	if !link {
		if err := unix.Chmod(p.to, p.e.Mode&0o7777); err != nil {
			return fail("chmod", err)
		}
	}
	ts := unix.Timespec{Sec: p.e.Time.Unix(), Nsec: int64(p.e.Time.Nanosecond())}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, p.to, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail("utimensat", err)
	}
	return nil
}

// MirrorTo opens a repository, and copies the directory with the given path, of its
// newest revision, into an empty directory. It returns the description of the revision.
func MirrorTo(ctx context.Context, o Options, path, dir string, mo MirrorOptions) (m Manifest, err error) {
	r, err := Open(ctx, o)
	if err != nil {
		return Manifest{}, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	e, err := r.Lookup(ctx, path)
	if err != nil {
		return Manifest{}, err
	}
	return r.Manifest(), r.Mirror(ctx, e, dir, mo)
}
