package tiers

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"premix/internal/exit"
	"runtime"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Mounted is a mount of tiers.
type Mounted struct {
	Dir    string
	config *Config
	tree   *tree
	server *fuse.Server
	gone   chan struct{}
}

// cacheTime is for how long the kernel trusts what it has been told about a name. Others
// who move files below the mount are noticed after it.
const cacheTime = time.Second

// Mount shows tiers in a directory, when it has mended what a crash left. tell, which may
// be nil, hears of files that were set aside. The error is a [DirError], a [MountError], or
// premix' own.
//
// The mount makes files with the modes that it is asked for: the umask of this process
// becomes 0. GOMAXPROCS becomes 8 where it is less.
func Mount(ctx context.Context, c *Config, dir string, tell func(Event)) (*Mounted, error) {
	dir, err := mountPoint(c, dir)
	if err != nil {
		return nil, err
	}
	t, err := openTree(c.Tiers)
	if err != nil {
		return nil, err
	}
	if err := t.recover(ctx, tell); err != nil {
		t.close()
		return nil, err
	}
	unix.Umask(0)
	second := cacheTime
	// The kernel decides by modes, owners and ACLs who may do what, and so must see them as
	// they are; a mode of 0 too.
	raw := fs.NewNodeFS(&node{t: t, dir: &dirState{}}, &fs.Options{EntryTimeout: &second, AttrTimeout: &second, NullPermissions: true})
	server, err := fuse.NewServer(&inOrder{RawFileSystem: raw, t: t}, dir, &fuse.MountOptions{
		FsName: "premix", Name: "tiers",
		AllowOther:  os.Geteuid() == 0,
		DirectMount: os.Geteuid() == 0,
		Options:     []string{"default_permissions"},
		EnableAcl:   true,
		// Umasks are for directories without a default ACL.
		ExtraCapabilities: fuse.CAP_DONT_MASK | fuse.CAP_SETXATTR_EXT,
		MaxWrite:          1 << 20,
		MaxBackground:     64,
		MaxStackDepth:     2, // a tier may be an overlay
		// The kernel keeps locks itself: the tiers are this machine's.
		EnableLocks: false,
		Logger:      log.New(os.Stderr, "", 0),
	})
	if err != nil {
		t.close()
		return nil, &MountError{dir, err}
	}
	moreProcs()
	m := &Mounted{dir, c, t, server, make(chan struct{})}
	go func() {
		defer close(m.gone)
		server.Serve()
	}()
	if err := server.WaitMount(); err != nil {
		return nil, errors.Join(&MountError{dir, err}, m.Unmount())
	}
	return m, nil
}

// spareProcs are what the scheduler of Go has beyond those that wait for the kernel's
// requests.
const spareProcs = 8

// moreProcs lets a request be taken up with fewer wake-ups. A thread that waits in a system
// call keeps its place in the scheduler as long as others are free; with as many places as
// there are cores, of which readers of requests take all, a thread that watches takes them
// away within 20 us, and each request has to ask for one, and to wake that thread again. It
// comes after [fuse.NewServer], which has as many readers as there are places: more of them
// would only take turns.
func moreProcs() {
	if runtime.GOMAXPROCS(0) < spareProcs {
		runtime.GOMAXPROCS(spareProcs)
	}
}

// MountError tells that the kernel did not mount.
type MountError struct {
	Dir string
	Err error
}

func (e *MountError) Error() string { return fmt.Sprintf("mounting on %s: %v", e.Dir, e.Err) }

// ExitCode implements exit.Coded.
func (*MountError) ExitCode() exit.Code { return exit.Unavailable }
func (e *MountError) Unwrap() error     { return e.Err }
func (e *MountError) Hint() string {
	return "it needs /dev/fuse, and fusermount3 where premix does not run as root"
}

// mountPoint checks a directory. A mount whose server was killed is taken away.
func mountPoint(c *Config, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	var s unix.Statfs_t // which asks the server, while stat may be answered from memory
	if err := unix.Statfs(dir, &s); errors.Is(err, unix.ENOTCONN) {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return "", &DirError{dir, fmt.Errorf("a mount whose server is gone: %w", err)}
		}
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", &DirError{dir, errors.Unwrap(err)}
	}
	list, err := os.ReadDir(real)
	if err != nil {
		return "", &DirError{dir, errors.Unwrap(err)}
	}
	if len(list) > 0 {
		return "", &DirError{dir, fmt.Errorf("it is not empty: it holds %s", list[0].Name())}
	}
	for _, t := range c.Tiers {
		if within(real, t.Dir) || within(t.Dir, real) {
			return "", &DirError{dir, fmt.Errorf("it and tier %s lie in each other", t.Name)}
		}
	}
	return real, nil
}

// Run moves files by the rules, again and again, until the context ends or somebody
// unmounts. tell hears of every move.
func (m *Mounted) Run(ctx context.Context, tell func(Event)) error {
	tick := time.NewTicker(m.config.Interval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		if err := m.tree.pass(ctx, m.config.Rules, tell); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Pass moves what rules and watermarks ask for, once.
func (m *Mounted) Pass(ctx context.Context, tell func(Event)) error {
	return m.tree.pass(ctx, m.config.Rules, tell)
}

// Passthrough tells whether the kernel can read and write without asking.
func (m *Mounted) Passthrough() bool {
	return os.Geteuid() == 0 && m.server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0
}

// Unmount ends the mount; it goes from sight where somebody uses it, and who has files open
// loses them.
func (m *Mounted) Unmount() error {
	var err error
	select {
	case <-m.gone: // somebody has unmounted it
	default:
		if err = m.server.Unmount(); err != nil && os.Geteuid() == 0 {
			err = unix.Unmount(m.Dir, unix.MNT_DETACH)
		}
		if err != nil {
			return &MountError{m.Dir, err}
		}
		// A mount that somebody still uses is served until this process ends.
		select {
		case <-m.gone:
		case <-time.After(time.Second):
			return nil
		}
	}
	m.tree.close()
	return nil
}

// inOrder makes the end of an open file and the beginning of another one of the same
// inode wait for each other. go-fuse gives an inode's new open files the backing file that
// older ones have until the last of those is gone altogether, which is after its Release:
// a file that moves in between would be read where it is no more.
//
// It also hands on what go-fuse's nodes do not get: umasks above modes, and a flag of
// setxattr in another place.
type inOrder struct {
	fuse.RawFileSystem
	t     *tree
	locks [64]sync.Mutex
}

const (
	umaskShift  = 16      // of umasks above modes
	killGroupID = 1 << 31 // among the flags of setxattr: take the set-group-ID bit away
)

func (o *inOrder) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	in.Mode |= in.Umask << umaskShift
	return o.RawFileSystem.Create(cancel, in, name, out)
}

func (o *inOrder) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	in.Mode |= in.Umask << umaskShift
	return o.RawFileSystem.Tmpfile(cancel, in, out)
}

func (o *inOrder) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	in.Mode |= in.Umask << umaskShift
	return o.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (o *inOrder) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	in.Mode |= in.Umask << umaskShift
	return o.RawFileSystem.Mknod(cancel, in, name, out)
}

func (o *inOrder) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		in.Flags |= killGroupID
	}
	return o.RawFileSystem.SetXAttr(cancel, in, name, value)
}

// Rename lets nobody look for a path between the renaming on the tiers and in the mount.
func (o *inOrder) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	o.t.names.Lock()
	defer o.t.names.Unlock()
	return o.RawFileSystem.Rename(cancel, in, name, newName)
}

func (o *inOrder) lock(id uint64) *sync.Mutex {
	l := &o.locks[id%uint64(len(o.locks))]
	l.Lock()
	return l
}

func (o *inOrder) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer o.lock(in.NodeId).Unlock()
	return o.RawFileSystem.Open(cancel, in, out)
}

// Flush is not needed: what was written is with the tier. The kernel asks once.
func (o *inOrder) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (o *inOrder) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	defer o.lock(in.NodeId).Unlock()
	o.RawFileSystem.Release(cancel, in)
}
