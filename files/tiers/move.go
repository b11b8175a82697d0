package tiers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/files/content"
)

// ErrBusy tells that a file is not moved now: it is open for writing, has several names, was
// made this moment, or changed while it was copied.
var ErrBusy = errors.New("the file is in use")

// tick is longer than the clock of file systems may stand still. A file that is older has
// an identity that no other file gets, even one that is given its inode when it has moved.
const tick = 20 * time.Millisecond

// move moves a file between tiers; see the package's comment.
func (t *tree) move(ctx context.Context, rel string, from, to int) (int64, error) {
	src, dst := t.tiers[from], t.tiers[to]
	t.names.RLock()
	f, err := t.findIn(from, rel)
	var fd int
	if err == nil {
		young := time.Since(time.Unix(f.st.Btime.Sec, int64(f.st.Btime.Nsec))) < tick
		if !f.isRegular() || f.st.Nlink != 1 || hidden(rel) || young {
			err = ErrBusy
		} else {
			fd, err = src.openat(rel, unix.O_RDONLY|unix.O_NOATIME, 0)
			if errors.Is(err, unix.EPERM) { // O_NOATIME is for owners
				fd, err = src.openat(rel, unix.O_RDONLY, 0)
			}
		}
	}
	if err == nil && !t.beginMove(f.id) {
		unix.Close(fd) // only read
		err = ErrBusy
	}
	t.names.RUnlock()
	if err != nil {
		return 0, err
	}
	in := os.NewFile(uintptr(fd), rel)
	defer in.Close()
	defer t.endMove(f.id)

	name := t.privateName("copy")
	fd, err = unix.Openat(dst.private, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, err
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()
	err = content.Copy(out, in, int64(f.st.Size), func(int) error { return ctx.Err() })
	if errors.Is(err, content.ErrShorter) {
		err = ErrBusy
	}
	if err == nil {
		err = t.commit(rel, from, to, name, &f, in)
	}
	if err != nil {
		// Commit has given the copy its name only where it succeeds.
		if bad := unix.Unlinkat(dst.private, name, 0); bad != nil && !errors.Is(bad, unix.ENOENT) {
			err = errors.Join(err, bad)
		}
		return 0, err
	}
	return int64(f.st.Blocks) * 512, nil
}

// beginMove refuses files that are open for writing, or on their way already.
func (t *tree) beginMove(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[id]
	if o == nil {
		o = &openFile{}
		t.open[id] = o
	}
	if o.writers > 0 || o.moving || o.old != nil {
		return false
	}
	o.moving, o.changed = true, false
	return true
}

func (t *tree) endMove(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[id]
	o.moving = false
	if o.readers+o.writers == 0 {
		delete(t.open, id)
	}
}

// commit makes a copy the file, unless the source is not what was copied any more.
func (t *tree) commit(rel string, from, to int, name string, f *found, in *os.File) error {
	src, dst := t.tiers[from], t.tiers[to]
	t.names.Lock()
	defer t.names.Unlock()
	t.mu.Lock()
	o := t.open[f.id]
	busy := o.changed || o.writers > 0
	t.mu.Unlock()
	if busy {
		return ErrBusy
	}
	// A lease for reading is refused while anybody on this machine has the file open for
	// writing, also past the mount, and keeps others from opening it so. Some file systems
	// have none (EINVAL), and only owners get one (EACCES).
	_, err := unix.FcntlInt(in.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case err == nil:
		defer unix.FcntlInt(in.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	case errors.Is(err, unix.EAGAIN):
		return ErrBusy
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM):
		return err
	}
	now, err := t.findIn(from, rel)
	if absent(err) || err == nil && !same(&f.st, &now.st) {
		return ErrBusy
	}
	if err != nil {
		return err
	}
	source, err := src.place(rel)
	if err != nil {
		return err
	}
	defer source.close()
	copied := place{dir: dst.private, name: name}
	if err := copyMeta(copied, source, &now.st, t.xattr); err != nil {
		return err
	}
	if err := t.stamp(to, copied, f.id); err != nil {
		return err
	}
	if err := t.ensureDir(to, parent(rel)); err != nil {
		return err
	}
	target, err := dst.place(rel)
	if err != nil {
		return err
	}
	defer target.close()
	for _, ti := range []*tier{src, dst} {
		defer keepTimes(ti, parent(rel))()
	}
	if err := unix.Renameat2(copied.dir, copied.name, target.dir, target.name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	// The name must be on the disk before the source loses its own.
	if err := syncDir(dst, parent(rel)); err != nil {
		return errors.Join(err, unix.Unlinkat(target.dir, target.name, 0))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.readers > 0 {
		old := &retired{from, to, t.privateName("old")}
		if err = unix.Renameat(source.dir, source.name, src.private, old.name); err == nil {
			o.old = old
		}
	} else {
		err = unix.Unlinkat(source.dir, source.name, 0)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(target.dir, target.name, 0))
	}
	return nil
}

func syncDir(ti *tier, rel string) error {
	fd, err := ti.openat(rel, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsync(fd)
}

// same tells whether nothing happened to a file but reading.
func same(a, b *unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor && a.Size == b.Size && a.Nlink == b.Nlink && a.Mtime == b.Mtime && a.Ctime == b.Ctime
}

// takeBack undoes the move of a file that has readers from before, so that somebody can
// write to it. The retired file has the same content; what was done since to owner, mode,
// attributes and times is done to it, too. Callers hold names for writing.
func (t *tree) takeBack(rel string, f *found) error {
	old := t.retiredOf(f.id)
	if old == nil || f.tier != old.to {
		return nil
	}
	src := t.tiers[old.from]
	back := place{dir: src.private, name: old.name}
	from, err := t.tiers[f.tier].place(rel)
	if err != nil {
		return err
	}
	defer from.close()
	if err := copyMeta(back, from, &f.st, t.xattr); err != nil {
		return err
	}
	if err := t.stampIfOther(old.from, back, f.id); err != nil {
		return err
	}
	if err := t.ensureDir(old.from, parent(rel)); err != nil {
		return err
	}
	to, err := src.place(rel)
	if err != nil {
		return err
	}
	defer to.close()
	for _, ti := range []*tier{src, t.tiers[f.tier]} {
		defer keepTimes(ti, parent(rel))()
	}
	if err := unix.Renameat2(back.dir, back.name, to.dir, to.name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	if err := unix.Unlinkat(from.dir, from.name, 0); err != nil {
		return errors.Join(err, unix.Renameat(to.dir, to.name, back.dir, back.name))
	}
	t.mu.Lock()
	t.open[f.id].old = nil
	t.mu.Unlock()
	return nil
}

// stampIfOther writes an identity where it is not what the file has by itself.
func (t *tree) stampIfOther(i int, p place, id uint64) error {
	st, err := p.stat()
	if err != nil || t.identity(i, p, &st) == id {
		return err
	}
	return t.stamp(i, p, id)
}

// Event is something that happened to a file, or that a pass could not do.
type Event struct {
	Path     string `json:"path"` // below the mount
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"` // on the disk that it left
	Why      string `json:"why"`
	Err      error  `json:"-"`
	SetAside string `json:"set_aside,omitempty"` // name of the other of two files
}

// candidate is a file that may move.
type candidate struct {
	rel              string
	size, allocated  int64
	changed, lastUse time.Time
}

// list walks a tier. What cannot be read is passed over; other file systems that are mounted
// below are not entered.
func (t *tree) list(ctx context.Context, i int) ([]candidate, error) {
	ti := t.tiers[i]
	var root unix.Stat_t
	if err := unix.Fstat(ti.fd, &root); err != nil {
		return nil, err
	}
	var all []candidate
	err := filepath.WalkDir(ti.Dir, func(name string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil
		}
		rel, err := filepath.Rel(ti.Dir, name)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if unix.Lstat(name, &st) != nil {
			return nil
		}
		switch {
		case e.IsDir() && (rel == Private || st.Dev != root.Dev):
			return filepath.SkipDir
		case e.Type().IsRegular() && st.Dev == root.Dev:
			changed := time.Unix(st.Mtim.Unix())
			use := changed
			if a := time.Unix(st.Atim.Unix()); a.After(use) {
				use = a
			}
			all = append(all, candidate{rel, st.Size, st.Blocks * 512, changed, use})
		}
		return nil
	})
	return all, err
}

func (r *Rule) holds(c *candidate, now time.Time) bool {
	return now.Sub(c.changed) >= r.Older && now.Sub(c.lastUse) >= r.Idle && c.size >= r.Larger && (r.Smaller == 0 || c.size < r.Smaller)
}

// pass moves what rules and watermarks ask for, once. The slowest tiers come first, so that
// there is room below. tell may be nil.
func (t *tree) pass(ctx context.Context, rules []Rule, tell func(Event)) error {
	for i := len(t.tiers) - 1; i >= 0; i-- {
		if err := t.passTier(ctx, i, rules, tell); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) passTier(ctx context.Context, i int, rules []Rule, tell func(Event)) error {
	ti := t.tiers[i]
	rules = slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return r.From != ti.Name })
	last := i == len(t.tiers)-1
	capacity, used, err := ti.usage()
	if err != nil {
		return err
	}
	if len(rules) == 0 && ti.Capacity == 0 && (last || used*100 <= capacity*int64(ti.High)) {
		return nil
	}
	all, err := t.list(ctx, i)
	if err != nil {
		return err
	}
	if ti.Capacity > 0 {
		used = 0
		for _, c := range all {
			used += c.allocated
		}
	}
	move := func(c *candidate, to int, why string) (bool, error) {
		n, err := t.move(ctx, c.rel, i, to)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// Files in use and those that are gone are looked at again in the next pass.
		if tell != nil && !errors.Is(err, ErrBusy) && !absent(err) {
			tell(Event{Path: c.rel, From: ti.Name, To: t.tiers[to].Name, Bytes: n, Why: why, Err: err})
		}
		if err == nil {
			used -= n
		}
		return err == nil, nil
	}
	now := time.Now()
	var left []candidate
	for _, c := range all {
		moved := false
		for _, r := range rules {
			if r.holds(&c, now) {
				to := slices.IndexFunc(t.tiers, func(other *tier) bool { return other.Name == r.To })
				if moved, err = move(&c, to, "rule"); err != nil {
					return err
				}
				break
			}
		}
		if !moved {
			left = append(left, c)
		}
	}
	if !last && used*100 > capacity*int64(ti.High) {
		slices.SortFunc(left, func(a, b candidate) int {
			return cmp.Or(a.lastUse.Compare(b.lastUse), cmp.Compare(a.rel, b.rel))
		})
		why := fmt.Sprintf("%s is over %d %%", ti.Name, ti.High)
		for _, c := range left {
			if used*100 <= capacity*int64(ti.Low) {
				break
			}
			to := i + 1
			for to < len(t.tiers)-1 && t.tiers[to].full() {
				to++
			}
			if _, err := move(&c, to, why); err != nil {
				return err
			}
		}
	}
	ti.used.Store(used)
	return nil
}

// usage is what a tier holds and has, in bytes; with a Capacity, as last counted.
func (ti *tier) usage() (capacity, used int64, err error) {
	if ti.Capacity > 0 {
		return ti.Capacity, ti.used.Load(), nil
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(ti.fd, &s); err != nil {
		return 0, 0, err
	}
	used = int64(s.Blocks-s.Bfree) * s.Bsize
	return used + int64(s.Bavail)*s.Bsize, used, nil // without what is kept for root
}

// recover mends what a crash left; see the package's comment.
func (t *tree) recover(ctx context.Context, tell func(Event)) error {
	for _, ti := range t.tiers {
		private, err := os.ReadDir(filepath.Join(ti.Dir, Private))
		if err != nil {
			return err
		}
		for _, e := range private {
			if e.Name() == stampFile {
				continue
			}
			if err := os.RemoveAll(filepath.Join(ti.Dir, Private, e.Name())); err != nil {
				return err
			}
		}
	}
	for lower := len(t.tiers) - 1; lower > 0; lower-- {
		err := filepath.WalkDir(t.tiers[lower].Dir, func(name string, e fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(t.tiers[lower].Dir, name)
			if err != nil || rel == "." {
				return err
			}
			if rel == Private {
				return filepath.SkipDir
			}
			for upper := range lower {
				other, err := os.Lstat(filepath.Join(t.tiers[upper].Dir, rel))
				if err != nil || e.IsDir() && other.IsDir() {
					continue // one of them, or directories that are merged
				}
				if err := t.resolve(ctx, rel, upper, lower, tell); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// resolve makes one of two files of the same path.
func (t *tree) resolve(ctx context.Context, rel string, upper, lower int, tell func(Event)) error {
	a, err := t.findIn(upper, rel)
	if err != nil {
		return err
	}
	b, err := t.findIn(lower, rel)
	if err != nil {
		return err
	}
	if a.isRegular() && b.isRegular() && a.st.Size == b.st.Size {
		equal, err := t.equal(ctx, rel, upper, lower)
		if err != nil {
			return err
		}
		if equal {
			return t.unlinkIn(upper, rel, 0)
		}
	}
	loser := lower
	if after(b.st.Ctime, a.st.Ctime) {
		loser = upper
	}
	aside := rel + "." + t.tiers[loser].Name
	for n := 2; ; n++ {
		if _, err := t.find(aside); absent(err) {
			break
		}
		aside = fmt.Sprintf("%s.%s-%d", rel, t.tiers[loser].Name, n)
	}
	if tell != nil {
		tell(Event{Path: rel, Why: "two files had this path after a crash", SetAside: path.Base(aside)})
	}
	return t.renameIn(loser, rel, aside, unix.RENAME_NOREPLACE)
}

func after(a, b unix.StatxTimestamp) bool {
	return a.Sec > b.Sec || a.Sec == b.Sec && a.Nsec > b.Nsec
}

// equal compares two files of the same size.
func (t *tree) equal(ctx context.Context, rel string, i, j int) (bool, error) {
	var sums [2][]byte
	for k, at := range []int{i, j} {
		fd, err := t.tiers[at].openat(rel, unix.O_RDONLY, 0)
		if err != nil {
			return false, err
		}
		f := os.NewFile(uintptr(fd), rel)
		h := blake3.New()
		_, err = io.Copy(h, readerUntil{ctx, f})
		f.Close() // only read
		if err != nil {
			return false, err
		}
		sums[k] = h.Sum(nil)
	}
	return string(sums[0]) == string(sums[1]), nil
}

// readerUntil reads until a context ends.
type readerUntil struct {
	ctx context.Context
	r   io.Reader
}

func (r readerUntil) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
