package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/cvmfs"
	"premix/internal/image/lazylayer"
	"premix/internal/kit/mountinfo"
	"premix/internal/lazyfs"
	"premix/internal/store/cache"
	"premix/internal/store/neighbour"
	"premix/internal/store/object"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
)

// daemon is the state of a worker.
type daemon struct {
	config         Config
	version        string
	log            *slog.Logger
	supervisorConn *supervisorConn
	cache          *cache.Cache
	since          time.Time
	deaths         int

	ctx context.Context // ends with the daemon's background work
	end context.CancelFunc

	neighbours *neighbour.Site // nil without neighbours

	origins origins
	layers  layers
	reader  reader

	premounts premounts
	logins    logins

	journalMu sync.Mutex // held while the journal is written; mu is taken under it

	mu     sync.Mutex
	mounts map[string]*mount // by ID
	bases  map[string]*base  // by name

	soundness map[object.Digest]*soundness
	ending    bool
	lastBase  int // last number used in a base's name
}

// States of a mount.
const (
	stateMounting = "mounting"
	stateMounted  = "mounted"
	stateFailed   = "failed" // it should be mounted, and is tried again
	stateEnding   = "ending"
)

// mount is a requested mount. Its fields belong to daemon.mu unless stated otherwise.
type mount struct {
	entry entry
	base  *base
	state string
	err   error  // why it failed
	cause error  // the last problem of its background work
	note  string // for the user who requested it
	src   *source

	wanted bool               // it was requested, and is not only a premount: see premounts
	done   chan struct{}      // closed when the first try has ended
	shown  chan struct{}      // closed when base is set for the first time
	ctx    context.Context    // of its background work
	cancel context.CancelFunc // ends it

	work     sync.Mutex // held while it is mounted or unmounted
	profile  string     // state of the prefetch, for the status
	recorded *recording // nil without --record
}

// base is one image, layer or repository, mounted below the node's directory.
type base struct {
	name   string
	digest object.Digest
	wish   lazyfs.Backend
	shared bool

	work  sync.Mutex // held while it is made or removed
	m     *lazyfs.Mount
	img   *image           // of a tree, else nil
	live  *cvmfs.Live      // of a repository, else nil
	layer *lazylayer.Layer // of a registry, else nil
	users int              // under daemon.mu
	gone  bool
}

// close closes the image, the layer or the repository, after the last read.
func (b *base) close() error {
	switch {
	case b.live != nil:
		return b.live.Close()
	case b.layer != nil:
		return b.layer.Close()
	}
	return b.img.Close()
}

func newDaemon(t *supervisorConn, deaths int, version string) *daemon {
	d := &daemon{
		config: *t.config, version: version, log: t.log, supervisorConn: t, since: time.Now(), deaths: deaths,
		mounts: map[string]*mount{}, bases: map[string]*base{}, soundness: map[object.Digest]*soundness{}, reader: reader{log: t.log},
	}
	d.ctx, d.end = context.WithCancel(context.Background())
	return d
}

// save writes the journal.
func (d *daemon) save() error {
	d.journalMu.Lock()
	defer d.journalMu.Unlock()
	j := journal{Version: Version}
	d.mu.Lock()
	for _, m := range d.mounts {
		if m.entry.Step != "" {
			j.Mounts = append(j.Mounts, m.entry)
		}
	}
	d.mu.Unlock()
	slices.SortFunc(j.Mounts, func(a, b entry) int { return a.Since.Compare(b.Since) })
	if err := j.write(d.config.Dir); err != nil {
		return &Error{Kind: KindInternal, Message: fmt.Sprintf("the journal cannot be written: %v", err), HintText: "free space in " + d.config.Dir}
	}
	return nil
}

// step sets the step of a mount, and writes the journal.
func (d *daemon) step(m *mount, step string) error {
	d.mu.Lock()
	m.entry.Step = step
	d.mu.Unlock()
	return d.save()
}

// mount answers a request for a mount.
func (d *daemon) mount(ctx context.Context, r MountRequest) (*mount, error) {
	return d.mountWith(ctx, r, nil)
}

// mountWith is mount for a reference that was already resolved: bootstrap came with its
// record, and may be nil.
func (d *daemon) mountWith(ctx context.Context, r MountRequest, bootstrap *trust.Bootstrap) (*mount, error) {
	var ref tree.Ref
	var err error
	if r.Layer != nil {
		err = r.checkLayer()
	} else if r.CVMFS != nil {
		err = r.checkRepository()
	} else if ref, err = tree.ParseRef(r.Ref); err != nil {
		err = usage("write it as in refs/bacteria:2026", "%v", err)
	}
	if err != nil {
		return nil, err
	}
	if here := mountNamespace(); r.Namespace != "" && here != "" && r.Namespace != here {
		return nil, usage("run premix node stop, and mount again from here; or use a separate PREMIX_HOME in each namespace", "the node runs in another mount namespace: its mounts would not be visible here")
	}
	if r.Dir == "" && r.Layer != nil {
		return d.attachLayer(ctx, r)
	}
	if r.Dir == "" && r.CVMFS != nil {
		return d.attachRepository(ctx, r)
	}
	if r.Dir == "" {
		return d.attach(ctx, r, ref)
	}
	m, fresh, err := d.admit(r)
	if err != nil {
		return nil, err
	}
	if !fresh {
		// The client lost its connection and repeats the request.
		select {
		case <-m.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return m, m.err
	}
	defer close(m.done)
	err = d.first(ctx, m, ref, bootstrap)
	if err != nil {
		d.forget(m)
		d.mu.Lock()
		m.err = err
		d.mu.Unlock()
		return nil, err
	}
	return m, nil
}

// admit registers a mount, which reserves its directory. If an equal mount exists,
// admit returns that.
func (d *daemon) admit(r MountRequest) (m *mount, fresh bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending {
		return nil, false, &Error{Kind: KindUnavailable, Message: "the node is ending", HintText: "try again"}
	}
	if m := d.mounts[r.ID]; m != nil {
		return m, false, nil
	}
	for _, m := range d.mounts {
		if m.entry.Dir == r.Dir {
			return nil, false, usage("premix umount "+r.Dir, "%s is a mount of %s already", r.Dir, m.entry.Ref)
		}
	}
	m = &mount{entry: entry{MountRequest: r, Since: time.Now()}, state: stateMounting, done: make(chan struct{}), shown: make(chan struct{}), profile: "none"}
	m.ctx, m.cancel = context.WithCancel(d.ctx)
	d.mounts[r.ID] = m
	return m, true, nil
}

// forget removes a mount that is not mounted any more.
func (d *daemon) forget(m *mount) {
	m.cancel()
	d.mu.Lock()
	delete(d.mounts, m.entry.ID)
	journaled := m.entry.Step != ""
	d.mu.Unlock()
	if journaled {
		if err := d.save(); err != nil {
			d.log.Error(err.Error())
		}
	}
}

// first mounts for the first time. The reference is resolved now, and not again for
// this mount.
func (d *daemon) first(ctx context.Context, m *mount, ref tree.Ref, bootstrap *trust.Bootstrap) error {
	list, err := mountinfo.Read()
	if err != nil {
		return err
	}
	if at := mountinfo.Top(list, m.entry.Dir); at != nil {
		return usage("give an empty directory, or umount "+m.entry.Dir+" first", "%s is a mount point already (%s)", m.entry.Dir, at.Type)
	}
	if m.entry.CVMFS != nil {
		return d.makeRepository(ctx, m, false)
	}
	if m.entry.Layer != nil {
		return d.makeLayer(ctx, m)
	}
	src, err := d.source(m.entry.MountRequest)
	if err != nil {
		return err
	}
	digest, note, err := d.resolve(ctx, src, ref, m.entry.MountRequest)
	if err != nil {
		return err
	}
	if src.bootstrap == nil {
		src.bootstrap = bootstrap
	}
	d.mu.Lock()
	m.entry.Tree, m.note = digest, note
	d.mu.Unlock()
	return d.make(ctx, m, src)
}

// make mounts the tree of a registered mount.
func (d *daemon) make(ctx context.Context, m *mount, src *source) error {
	m.work.Lock()
	defer m.work.Unlock()
	if src != nil && src.share != nil {
		src.share.Tree(m.entry.Tree)
	}
	l := d.lookUp(m, src)
	t, err := d.cache.Tree(ctx, m.entry.Tree, src.fetcher())
	if err != nil {
		return explain(err)
	}
	d.mu.Lock()
	m.src = src
	d.mu.Unlock()
	// The profile is fetched while the kernel mounts.
	d.background(m, l)
	b, err := d.acquire(m, t.Size(), func(b *base) error { return d.makeBase(ctx, b, m, t, l != nil) })
	if err != nil {
		return errors.Join(err, t.Close())
	}
	err = t.Close() // the base has it open too
	if err == nil && src != nil {
		err = src.kept(ctx) // before the tree becomes visible
	}
	if err != nil {
		d.release(b)
		return err
	}
	if err := d.finish(m, b); err != nil {
		return err
	}
	if l != nil {
		go readFar(m, b, l)
	}
	return nil
}

// finish makes a base visible at the mount's directory. The caller holds m.work.
func (d *daemon) finish(m *mount, b *base) error {
	if err := d.bind(m, b); err != nil {
		d.release(b)
		return err
	}
	d.mu.Lock()
	m.base, m.state, m.err = b, stateMounted, nil
	m.entry.InUse, m.entry.Reason, m.entry.BDI = b.m.Backend(), b.m.Reason(), b.m.BDI()
	d.mu.Unlock()
	if err := d.step(m, stepMounted); err != nil {
		return errors.Join(err, d.unmake(m, true))
	}
	select {
	case <-m.shown: // it was mounted before
	default:
		close(m.shown)
	}
	d.log.Info("mounted", "ref", m.entry.Ref, "tree", m.entry.Tree.Short(), "dir", m.entry.Dir, "backend", b.m.Backend())
	return nil
}

// inPlace reports whether mounts are made directly at the users' directories: only root
// can make bind mounts.
func inPlace() bool { return os.Geteuid() != 0 }

// acquire returns the base for a mount, and makes one if there is none. The mount is in
// the journal before the first system call. size is the size of its image, and build
// mounts a base that is not mounted yet.
func (d *daemon) acquire(m *mount, size int64, build func(*base) error) (*base, error) {
	d.mu.Lock()
	var b *base
	if m.entry.shares() {
		for _, other := range d.bases {
			if other.shared && other.digest == m.entry.Tree && other.wish == m.entry.Backend {
				b = other
			}
		}
	}
	if b == nil {
		d.lastBase++
		b = &base{
			name: fmt.Sprintf("%s-%d-%d", m.entry.Tree.Short(), os.Getpid(), d.lastBase), digest: m.entry.Tree, wish: m.entry.Backend,
			shared: m.entry.shares(),
		}
		d.bases[b.name] = b
	}
	b.users++
	m.entry.Base = b.name
	m.entry.Size = size
	step := stepStarted
	if m.state == stateFailed {
		step = stepAgain
	}
	d.mu.Unlock()

	err := d.step(m, step)
	if err == nil {
		err = b.make(build)
	}
	if err != nil {
		d.release(b)
		return nil, err
	}
	return b, nil
}

// make makes a base unless it exists.
func (b *base) make(build func(*base) error) error {
	b.work.Lock()
	defer b.work.Unlock()
	if b.m != nil {
		return nil
	}
	if b.gone {
		return &Error{Kind: KindInternal, Message: "the tree is being unmounted", HintText: "try again"}
	}
	return build(b)
}

// makeBase mounts the image of a base. profiled reports that a profile is being looked
// up.
func (d *daemon) makeBase(ctx context.Context, b *base, m *mount, t *cache.Tree, profiled bool) error {
	img, err := d.openImage(ctx, t, m.entry)
	if err != nil {
		return explain(err)
	}
	o := d.options(b, m.entry)
	o.Profiled = profiled
	fail := func(err error) error { return errors.Join(err, img.Close(), d.sweep(b.name)) }
	if err := os.MkdirAll(o.Dir, 0o711); err != nil {
		return fail(err)
	}
	if !inPlace() {
		if err := img.keepShown(o.Dir); err != nil {
			return fail(err)
		}
	}
	if o.Record {
		r, err := recordTree(m.entry.Record, t, m.entry.Step == stepAgain)
		if err != nil {
			return fail(err)
		}
		d.mu.Lock()
		m.recorded = r
		d.mu.Unlock()
	} else if m.entry.Backend != lazyfs.FUSE && !inPlace() {
		o.NoFile = "verify is set in the configuration"
		if !d.config.Verify {
			if o.File, o.NoFile, err = img.whole(ctx); err != nil {
				return explain(fail(err))
			}
		}
	}
	b.m, err = lazyfs.New(ctx, img, o)
	if err != nil {
		d.supervisorConn.drop(b.name)
		return explain(fail(err))
	}
	if b.m.Backend() != lazyfs.File {
		img.letGo()
	}
	b.img = img
	return nil
}

// options returns the options of a base's mount.
func (d *daemon) options(b *base, e entry) lazyfs.Options {
	o := lazyfs.Options{
		Dir: filepath.Join(treesDir(d.config.Dir), b.name), Name: "premix:" + e.Ref, Backend: e.Backend,
		Record: e.Record != "", Kernel: d.supervisorConn,
		Keep: func(f *os.File, state []byte) { d.supervisorConn.keep(b.name, f, state) },
		Log:  func(msg string) { d.log.Warn(msg, "dir", e.Dir) },
	}
	if inPlace() {
		o.At, o.Own = e.Dir, e.Own
	}
	return o
}

// bind mounts a base at the mount's directory.
func (d *daemon) bind(m *mount, b *base) error {
	if inPlace() {
		return nil
	}
	if err := d.supervisorConn.Mount(b.m.Path(), m.entry.Dir, "", unix.MS_BIND, ""); err != nil {
		hint := "give an existing, empty directory"
		if errors.Is(err, unix.EPERM) {
			hint = "mounting needs the capability CAP_SYS_ADMIN"
		}
		return usage(hint, "mount at %s: %v", m.entry.Dir, err)
	}
	return nil
}

// release drops one use of a base, and removes it with the last.
func (d *daemon) release(b *base) {
	d.mu.Lock()
	b.users--
	last := b.users == 0
	if last {
		delete(d.bases, b.name)
	}
	d.mu.Unlock()
	if !last {
		return
	}
	b.work.Lock()
	defer b.work.Unlock()
	b.gone = true
	if b.m == nil {
		return
	}
	err := b.m.Close(false)
	busy := errors.Is(err, unix.EBUSY)
	if busy {
		err = b.m.Close(true)
	}
	if err != nil {
		d.log.Error("unmount", "base", b.name, "error", err)
	}
	// Processes with open files in a detached mount continue to read.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := b.m.Wait(); err != nil {
			d.log.Warn("a connection to the kernel ended", "base", b.name, "error", err)
		}
		d.supervisorConn.drop(b.name)
		if err := b.close(); err != nil {
			d.log.Warn("close a tree", "base", b.name, "error", err)
		}
	}()
	if !busy && err == nil {
		// Then premix cache drop finds nothing of it in use.
		select {
		case <-closed:
		case <-time.After(closeGrace):
		}
	}
}

// closeGrace bounds the time for which the end of a mount waits for the end of its fetches.
const closeGrace = 2 * time.Second

// umount answers a request to end one mount.
func (d *daemon) umount(dir string, lazy bool) (*mount, error) {
	d.mu.Lock()
	var m *mount
	for _, other := range d.mounts {
		if other.entry.Dir == dir {
			m = other
		}
	}
	d.mu.Unlock()
	if m == nil {
		return nil, notMounted(dir)
	}
	<-m.done
	m.work.Lock()
	defer m.work.Unlock()
	d.mu.Lock()
	gone := d.mounts[m.entry.ID] != m
	d.mu.Unlock()
	if gone {
		return nil, notMounted(dir)
	}
	if err := d.unmake(m, lazy); err != nil {
		return nil, err
	}
	return m, nil
}

// unmake unmounts. The caller holds m.work. After an error nothing has changed.
func (d *daemon) unmake(m *mount, lazy bool) error {
	d.mu.Lock()
	was := m.state
	m.state = stateEnding
	d.mu.Unlock()
	back := func(err error) error {
		d.mu.Lock()
		m.state = was
		d.mu.Unlock()
		if was == stateMounted {
			err = errors.Join(err, d.step(m, stepMounted))
		}
		return err
	}
	if err := d.step(m, stepEnding); err != nil {
		return back(err)
	}
	if m.base != nil {
		if err := d.unbind(m, lazy); err != nil {
			return back(err)
		}
	}
	m.cancel()
	if m.recorded != nil {
		if err := m.recorded.finish(); err != nil {
			d.log.Error("the recorded profile could not be written", "file", m.entry.Record, "error", err)
			m.cause = err
		}
	}
	if m.base != nil {
		d.release(m.base)
	}
	d.forget(m)
	d.log.Info("unmounted", "ref", m.entry.Ref, "dir", m.entry.Dir)
	return nil
}

// unbind unmounts the mount's directory.
func (d *daemon) unbind(m *mount, lazy bool) error {
	list, err := mountinfo.Read()
	if err != nil {
		return err
	}
	at := mountinfo.Top(list, m.entry.Dir)
	if at == nil {
		return nil // it was unmounted with umount(8)
	}
	busy := func() error {
		e := &Error{Kind: KindBusy, Message: m.entry.Dir + " is in use", HintText: "end these processes, or premix umount --lazy " + m.entry.Dir, Holders: holders(*at)}
		var names []string
		for _, h := range e.Holders {
			names = append(names, fmt.Sprintf("%d (%s, %s)", h.PID, h.Name, h.How))
		}
		if len(names) > 0 {
			e.Message += " by process " + strings.Join(names, ", ")
		} else {
			e.HintText = "premix umount --lazy " + m.entry.Dir + "; a mount below it, or another mount namespace, may hold it"
		}
		return e
	}
	if inPlace() {
		// fusermount3 would only report that it is busy, without the processes.
		if !lazy && len(holders(*at)) > 0 {
			return busy()
		}
		return nil // the base itself is mounted there
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err = retryBusy(*at, busyGrace, func() error { return d.supervisorConn.Unmount(m.entry.Dir, flags) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return busy()
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil // it has been unmounted since
	}
	return err
}

// umountAll ends all mounts. Without lazy it does nothing if one is in use.
func (d *daemon) umountAll(lazy bool) ([]*mount, error) {
	d.mu.Lock()
	var list []*mount
	for _, m := range d.mounts {
		list = append(list, m)
	}
	d.mu.Unlock()
	slices.SortFunc(list, func(a, b *mount) int { return b.entry.Since.Compare(a.entry.Since) })
	if !lazy {
		table, err := mountinfo.Read()
		if err != nil {
			return nil, err
		}
		var errs []error
		for _, m := range list {
			if at := mountinfo.Top(table, m.entry.Dir); at != nil {
				for _, h := range holders(*at) {
					errs = append(errs, &Error{Kind: KindBusy, Message: fmt.Sprintf("%s is in use by process %d (%s, %s)", m.entry.Dir, h.PID, h.Name, h.How), Holders: []Holder{h}})
				}
			}
		}
		if len(errs) > 0 {
			return nil, &Error{Kind: KindBusy, Message: errors.Join(errs...).Error(), HintText: "end these processes, or use --lazy"}
		}
	}
	var gone []*mount
	var errs []error
	for _, m := range list {
		switch m, err := d.umount(m.entry.Dir, lazy); {
		case err == nil:
			gone = append(gone, m)
		case !IsKind(err, KindNotMounted):
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return gone, errs[0]
	}
	return gone, nil
}

// retry mounts failed mounts again, until the daemon ends.
func (d *daemon) retry() {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(2 * time.Second):
		}
		d.mu.Lock()
		var list []*mount
		for _, m := range d.mounts {
			if m.state == stateFailed {
				list = append(list, m)
			}
		}
		d.mu.Unlock()
		for _, m := range list {
			d.again(m)
		}
	}
}

// again mounts a tree that an earlier node had mounted.
func (d *daemon) again(m *mount) {
	ctx, cancel := context.WithTimeout(m.ctx, time.Minute)
	defer cancel()
	if err := d.makeAgain(ctx, m); err != nil {
		d.mu.Lock()
		if m.err == nil {
			d.log.Error("mount again", "ref", m.entry.Ref, "dir", m.entry.Dir, "error", err)
		}
		m.err = err
		d.mu.Unlock()
	}
}

func (d *daemon) makeAgain(ctx context.Context, m *mount) error {
	if m.entry.CVMFS != nil {
		return d.makeRepository(ctx, m, true)
	}
	if m.entry.Layer != nil {
		d.logins.set(m.entry.Layer)
		return d.makeLayer(ctx, m)
	}
	src, err := d.source(m.entry.MountRequest)
	if err != nil {
		return err
	}
	return d.make(ctx, m, src)
}

// mountNamespace returns this process's mount namespace, "" if it is unknown.
func mountNamespace() string {
	ns, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return ""
	}
	return ns
}
