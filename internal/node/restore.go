package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
	"premix/internal/lazyfs"
)

// restore brings the mounts into the state of the journal: live mounts are taken over,
// unfinished or dead ones are unmounted, and missing ones are mounted again. left holds
// the descriptors of earlier workers.
func (d *daemon) restore(left map[string]kept) error {
	j, err := readJournal(d.config.Dir)
	if err != nil {
		return err
	}
	table, err := mountinfo.Read()
	if err != nil {
		return err
	}
	byBase := map[string][]entry{}
	for _, e := range j.Mounts {
		byBase[e.Base] = append(byBase[e.Base], e)
	}
	alive := map[string]bool{}
	for _, name := range filesFirst(byBase) {
		entries := byBase[name]
		k, held := left[name]
		wanted := wantedEntries(entries)
		if len(wanted) == 0 || !d.lives(wanted[0], table, held) {
			continue
		}
		if err := d.revive(name, wanted, k, table); err != nil {
			// Its readers get EIO until it is mounted again, as after the death of a
			// node.
			d.log.Error("take over a mount", "ref", wanted[0].Ref, "error", err)
			continue
		}
		alive[name] = true
		delete(left, name)
	}
	for name, k := range left {
		d.supervisorConn.drop(name)
		k.fd.Close() // before anything is unmounted, so that readers do not wait for an answer
	}
	var again []*mount
	for name, entries := range byBase {
		for _, e := range entries {
			if alive[name] && e.Step == stepMounted {
				continue
			}
			if err := d.detach(e, table); err != nil {
				d.log.Error("unmount a dead mount", "dir", e.Dir, "error", err)
			}
			if e.Step == stepMounted || e.Step == stepAgain {
				again = append(again, d.readmit(e, stateFailed))
			}
		}
	}
	dirs, err := os.ReadDir(treesDir(d.config.Dir))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if !alive[dir.Name()] {
			if err := d.sweep(dir.Name()); err != nil {
				d.log.Error("unmount a dead base", "base", dir.Name(), "error", err)
			}
		}
	}
	var all sync.WaitGroup
	for _, m := range again {
		all.Go(func() { d.again(m) })
	}
	all.Wait()
	return d.save()
}

// filesFirst sorts bases: cached files that the kernel reads directly must be held
// before anything is fetched, which might evict them.
func filesFirst(byBase map[string][]entry) []string {
	var files, others []string
	for name, entries := range byBase {
		if slices.ContainsFunc(entries, func(e entry) bool { return e.InUse == lazyfs.File }) {
			files = append(files, name)
		} else {
			others = append(others, name)
		}
	}
	return append(files, others...)
}

// wantedEntries returns the entries that should be mounted.
func wantedEntries(entries []entry) []entry {
	var wanted []entry
	for _, e := range entries {
		if e.Step == stepMounted {
			wanted = append(wanted, e)
		}
	}
	return wanted
}

// basePath returns the mount point of an entry's base.
func (d *daemon) basePath(e entry) string {
	if inPlace() {
		return e.Dir
	}
	return filepath.Join(treesDir(d.config.Dir), e.Base, "tree")
}

// lives reports whether the base of an entry is mounted, and can be taken over.
func (d *daemon) lives(e entry, table []mountinfo.Mount, held bool) bool {
	return mountinfo.Top(table, d.basePath(e)) != nil && (held || e.InUse == lazyfs.File)
}

// revive takes over a base and its mounts.
func (d *daemon) revive(name string, entries []entry, k kept, table []mountinfo.Mount) error {
	e := entries[0]
	b := &base{name: name, digest: e.Tree, wish: e.Backend, shared: e.shares()}
	var src *source
	var r *recording
	var err error
	switch {
	case e.CVMFS != nil:
		r, err = d.reviveRepository(b, e, k)
	case e.Layer != nil:
		err = d.reviveLayer(b, e, k)
	default:
		src, r, err = d.reviveTree(b, e, k)
	}
	if err != nil {
		return err
	}
	if k.fd != nil {
		d.supervisorConn.hold(name, k.fd, k.state)
	}
	d.mu.Lock()
	d.bases[name] = b
	d.mu.Unlock()
	dev := mountinfo.Top(table, d.basePath(e)).Dev
	for _, e := range entries {
		if at := mountinfo.Top(table, e.Dir); at == nil || at.Dev != dev {
			d.log.Warn("it was unmounted by another program", "ref", e.Ref, "dir", e.Dir)
			continue
		}
		m := d.readmit(e, stateMounted)
		d.mu.Lock()
		b.users++
		m.base, m.recorded, m.src = b, r, src
		d.mu.Unlock()
		close(m.shown)
		d.background(m, d.lookUp(m, src))
	}
	if b.users == 0 {
		b.users = 1
		d.release(b)
	}
	return nil
}

// reviveTree takes over the base of a tree. src is nil if its origins cannot be opened.
func (d *daemon) reviveTree(b *base, e entry, k kept) (src *source, r *recording, err error) {
	if src, err = d.source(e.MountRequest); err != nil {
		d.log.Error("origins of a mount", "ref", e.Ref, "error", err)
	}
	b.img = d.reopenImage(e, src)
	if e.InUse == lazyfs.File {
		if err := b.img.holdAgain(); err != nil {
			return nil, nil, errors.Join(err, b.img.Close())
		}
	}
	if t := b.img.opened(); e.Record != "" && t != nil {
		if r, err = recordTree(e.Record, t, true); err != nil {
			d.log.Error("continue a recording", "file", e.Record, "error", err)
		}
	}
	o := d.options(b, e)
	o.BDI = e.BDI
	if !inPlace() && e.InUse != lazyfs.File {
		if err := b.img.keepShown(o.Dir); err != nil {
			return nil, nil, errors.Join(err, b.img.Close())
		}
	}
	if b.m, err = lazyfs.Resume(b.img, e.InUse, e.Reason, k.fd, k.state, o); err != nil {
		return nil, nil, errors.Join(err, b.img.Close())
	}
	return src, r, nil
}

// readmit registers a mount of the journal.
func (d *daemon) readmit(e entry, state string) *mount {
	m := &mount{entry: e, state: state, done: make(chan struct{}), shown: make(chan struct{}), profile: "none"}
	m.ctx, m.cancel = context.WithCancel(d.ctx)
	close(m.done)
	d.mu.Lock()
	d.mounts[e.ID] = m
	d.mu.Unlock()
	return m
}

// detach unmounts a user's directory, if the mount is premix's.
func (d *daemon) detach(e entry, table []mountinfo.Mount) error {
	at := mountinfo.Top(table, e.Dir)
	if at == nil || !d.ours(e, *at, table) {
		return nil
	}
	if inPlace() {
		return lazyfs.DetachByHelper(e.Dir)
	}
	return d.supervisorConn.Unmount(e.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// ours reports whether the mount at an entry's directory was made for it.
func (d *daemon) ours(e entry, at mountinfo.Mount, table []mountinfo.Mount) bool {
	if b := mountinfo.Top(table, d.basePath(e)); b != nil && !inPlace() {
		return b.Dev == at.Dev
	}
	under := func(dir string) bool { return strings.HasPrefix(at.Source, dir+"/") }
	return strings.HasPrefix(at.Source, "premix:") || under(treesDir(d.config.Dir)) || under(d.config.Cache)
}

// sweep unmounts everything in a base's directory, and removes the directory.
func (d *daemon) sweep(name string) error {
	dir := filepath.Join(treesDir(d.config.Dir), name)
	for started := time.Now(); ; {
		table, err := mountinfo.Read()
		if err != nil {
			return err
		}
		for _, m := range mountinfo.Under(table, dir) {
			// Force ends a connection for which a process still waits.
			flags := unix.MNT_DETACH | unix.UMOUNT_NOFOLLOW
			if strings.HasPrefix(m.Type, "fuse.") {
				flags |= unix.MNT_FORCE
			}
			if err := d.supervisorConn.Unmount(m.Path, flags); err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
		err = lazyfs.Remove(dir)
		// A mount(2) of a dead worker may be about to end.
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Since(started) > 10*time.Second {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
