package tiers

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"premix/internal/files/tiers/ring"
	"premix/internal/kit/exit"
)

// Mounted is a mount of tiers.
type Mounted struct {
	Dir    string
	config *Config
	tree   *tree
	server *fuse.Server
	rings  *ring.Server // nil: requests are read from /dev/fuse
	gone   chan struct{}
}

// cacheTime is the time for which the kernel caches a name. Changes that other programs
// make directly in a tier show after this time.
const cacheTime = time.Second

// Mount repairs the tiers after a crash and mounts them on a directory. It calls tell,
// which may be nil, for each file that it set aside. The error is a [DirError], a
// [MountError], or one of premix' own.
//
// The mount creates files with the requested modes: it sets the umask of this process to 0.
// It raises GOMAXPROCS to 8 if it is less.
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
	// The kernel checks access by modes, owners and ACLs, and so must get them unchanged,
	// even a mode of 0.
	b := &backings{t: t}
	raw := fs.NewNodeFS(&node{t: t, dir: &dirState{}}, &fs.Options{EntryTimeout: &second, AttrTimeout: &second, NullPermissions: true, ServerCallbacks: b})
	served := &inOrder{RawFileSystem: raw, t: t, backings: b}
	options := &fuse.MountOptions{
		FsName: "premix", Name: "tiers",
		AllowOther:  t.root,
		DirectMount: t.root,
		Options:     []string{"default_permissions"},
		EnableAcl:   true,
		// The umask does not apply in directories with a default ACL. The tiers clear
		// set-user-ID bits and file capabilities at a write, see [tree.unprivileged], so that
		// the kernel need not ask for the capabilities of a file before each write.
		ExtraCapabilities: fuse.CAP_DONT_MASK | fuse.CAP_SETXATTR_EXT | fuse.CAP_HANDLE_KILLPRIV_V2,
		MaxWrite:          1 << 20,
		MaxBackground:     64,
		MaxStackDepth:     2, // a tier may be an overlay
		// The kernel handles locks itself: all users of the tiers are on this machine.
		EnableLocks: false,
		Logger:      log.New(os.Stderr, "", 0),
	}
	server, rings, err := connect(served, dir, options)
	if err != nil {
		t.close()
		return nil, cannotMount(dir, err)
	}
	moreProcs()
	m := &Mounted{dir, c, t, server, rings, make(chan struct{})}
	go func() {
		defer close(m.gone)
		server.Serve()
		if rings != nil {
			rings.Wait()
		}
	}()
	if err := errors.Join(server.WaitMount(), m.neverPoll()); err != nil {
		return nil, errors.Join(cannotMount(dir, err), m.Unmount())
	}
	return m, nil
}

// connect mounts a file system. Where the kernel permits it, requests come over io_uring.
func connect(served fuse.RawFileSystem, dir string, o *fuse.MountOptions) (*fuse.Server, *ring.Server, error) {
	if !o.DirectMount || !ring.Available() {
		server, err := fuse.NewServer(served, dir, o)
		return server, nil, err
	}
	// After the kernel has the flag it waits for the queues, so they are made before.
	rings, err := ring.New(o.MaxWrite)
	if err != nil {
		server, err := fuse.NewServer(served, dir, o)
		return server, nil, err
	}
	o.ExtraCapabilities |= fuse.CAP_OVER_IO_URING
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		rings.Close()
		return nil, nil, err
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,max_read=%d,allow_other,%s", fd, unix.S_IFDIR, o.MaxWrite, strings.Join(o.Options, ","))
	if err := unix.Mount(o.FsName, dir, "fuse."+o.Name, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		rings.Close()
		return nil, nil, errors.Join(err, unix.Close(fd))
	}
	mounted := *o
	mounted.DirectMount = false                                                    // the name below stands for a mount
	server, err := fuse.NewServer(served, fmt.Sprintf("/dev/fd/%d", fd), &mounted) // it owns fd
	if err != nil {
		rings.Close()
		return nil, nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
	}
	if server.KernelSettings().Flags64()&fuse.CAP_OVER_IO_URING == 0 {
		rings.Close()
		return server, nil, nil
	}
	if err := rings.Start(fd, slow, answers(served, o, server.KernelSettings())); err == nil {
		return server, rings, nil
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return nil, nil, err
	}
	server.Serve()
	rings.Wait()
	o.ExtraCapabilities &^= fuse.CAP_OVER_IO_URING
	server, err = fuse.NewServer(served, dir, o)
	return server, nil, err
}

// answers returns a handler of requests for a file system whose first request, with the
// settings of the kernel, was answered.
func answers(served fuse.RawFileSystem, o *fuse.MountOptions, first *fuse.InitIn) ring.Handler {
	p := fuse.NewProtocolServer(served, o)
	in := *first
	// The answer was given by the server that reads from /dev/fuse.
	p.HandleRequest([][]byte{unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in))}, [][]byte{make([]byte, 1<<10)})
	return func(in, out [][]byte) int {
		n, _ := p.HandleRequest(in, out)
		return n
	}
}

// slow reports whether a request changes data, or more than one name, and so may wait for a
// disk for long.
func slow(opcode uint32) bool {
	switch opcode {
	case 1, 3, 5, 9, 14, 17, 18, 22, 23, 27, 29, 35: // include/uapi/linux/fuse.h: LOOKUP, GETATTR, READLINK, MKDIR, OPEN, STATFS, RELEASE, GETXATTR, LISTXATTR, OPENDIR, RELEASEDIR, CREATE
		return false
	}
	return true
}

// neverPoll makes the kernel learn that files of the mount need no poll(2). A Go program
// that opens a file of a mount that it serves itself could wait for itself otherwise. Servers
// of go-fuse that mount do the same.
func (m *Mounted) neverPoll() error {
	if m.rings == nil {
		return nil
	}
	fd, err := unix.Open(filepath.Join(m.Dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}, 0)
	return errors.Join(err, unix.Close(fd))
}

// spareProcs is the number of processors of the Go scheduler in addition to those that wait
// for requests of the kernel.
const spareProcs = 8

// cannotMount is the error for a mount that the kernel refuses.
func cannotMount(dir string, err error) error {
	return exit.Errorf(exit.Unavailable, "it needs /dev/fuse, and fusermount3 where premix does not run as root", "mounting on %s: %w", dir, err)
}

// moreProcs lets a request be taken up with fewer wake-ups. A thread that waits in a system
// call keeps its processor of the Go scheduler as long as others are free. With only as
// many processors as cores, readers of requests hold all of them; a monitor thread takes
// them away within 20 us, and each request must get one back and wake that thread again.
// Call it after [fuse.NewServer], which starts one reader per processor: more readers would
// only take turns.
func moreProcs() {
	if runtime.GOMAXPROCS(0) < spareProcs {
		runtime.GOMAXPROCS(spareProcs)
	}
}

// dead reports whether an error means that the server of a mount is gone. A request that
// waits while it goes is aborted.
func dead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// look returns the path of a directory without symbolic links, and its entries.
func look(dir string) (real string, list []os.DirEntry, err error) {
	var s unix.Statfs_t // it asks the server, while stat may be answered from a cache
	if err := unix.Statfs(dir, &s); dead(err) {
		return "", nil, err
	}
	if real, err = filepath.EvalSymlinks(dir); err == nil {
		list, err = os.ReadDir(real)
	}
	if err != nil {
		return "", nil, errors.Unwrap(err)
	}
	return real, list, nil
}

// mountPoint checks a directory for use as a mount point. It removes the mount of a killed
// server.
func mountPoint(c *Config, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, list, err := look(dir)
	// A server that was killed a moment ago can be gone in the middle of a look.
	for tries := 0; dead(err) && tries < 3; tries++ {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return "", &DirError{dir, fmt.Errorf("a mount whose server is gone: %w", err)}
		}
		real, list, err = look(dir)
	}
	if err != nil {
		return "", &DirError{dir, err}
	}
	if len(list) > 0 {
		return "", &DirError{dir, fmt.Errorf("it is not empty: it holds %s", list[0].Name())}
	}
	for _, t := range c.Tiers {
		if within(real, t.Dir) || within(t.Dir, real) {
			return "", &DirError{dir, fmt.Errorf("it contains tier %s, or lies in it", t.Name)}
		}
	}
	return real, nil
}

// Run moves files by the rules, in one pass after another, until the context ends or the
// directory is unmounted. It calls tell for each move.
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

// Passthrough reports whether the kernel can read and write without asking the server.
func (m *Mounted) Passthrough() bool {
	return os.Geteuid() == 0 && m.server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0
}

// Unmount ends the mount. If a program uses it, it is detached, and programs with open
// files lose them.
func (m *Mounted) Unmount() error {
	var err error
	select {
	case <-m.gone: // it was unmounted already
	default:
		if m.rings == nil {
			err = m.server.Unmount()
		}
		if (err != nil || m.rings != nil) && os.Geteuid() == 0 {
			if err = unix.Unmount(m.Dir, 0); err != nil {
				err = unix.Unmount(m.Dir, unix.MNT_DETACH)
			}
		}
		if err != nil {
			return cannotMount(m.Dir, err)
		}
		// A mount that is still in use is served until this process ends.
		select {
		case <-m.gone:
		case <-time.After(time.Second):
			return nil
		}
	}
	m.tree.close()
	return nil
}

// inOrder serializes the release of an open file with the opening of another one of the
// same inode. go-fuse gives new open files of an inode the backing file of the older ones
// until the last of those is completely gone, which is after its Release: without this, a
// file that moves in between would be read from its old place.
//
// It also passes on values that go-fuse's nodes do not receive: umasks above modes, and a
// flag of setxattr. And it registers backing files with the rights of [tree.unprivileged].
type inOrder struct {
	fuse.RawFileSystem
	t        *tree
	backings *backings
	locks    [64]sync.Mutex
}

const (
	umaskShift  = 16      // umasks are stored above modes
	killGroupID = 1 << 31 // flag of setxattr: clear the set-group-ID bit
)

// backings registers backing files. The kernel writes to them with the rights that the
// registering thread has.
type backings struct {
	*fuse.Server
	t *tree
}

// RegisterBackingFd implements the interface that go-fuse's nodes look for.
func (b *backings) RegisterBackingFd(m *fuse.BackingMap) (id int32, number syscall.Errno) {
	err := b.t.unprivileged(func() error {
		id, number = b.Server.RegisterBackingFd(m)
		return nil
	})
	if err != nil {
		return 0, errno(err)
	}
	return id, number
}

// Init is called once, before the first request. It leaves out the Init of go-fuse's nodes,
// which would replace the backings.
func (o *inOrder) Init(s *fuse.Server) { o.backings.Server = s }

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

// Rename prevents lookups of a path between the renaming on the tiers and in the mount.
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

// Flush is not needed, because written data is already with the tier. After this answer the
// kernel does not ask again.
func (o *inOrder) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (o *inOrder) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	defer o.lock(in.NodeId).Unlock()
	o.RawFileSystem.Release(cancel, in)
}
