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
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/files/content"
)

// ErrBusy is returned for a file that cannot be moved now: it is open for writing, has
// several names, was just created, or changed while it was copied.
var ErrBusy = errors.New("the file is in use")

// tick is longer than one tick of a file system's clock. An older file has an identity that
// no other file gets, not even one that gets its inode after it has moved.
const tick = 20 * time.Millisecond

// move moves a file between tiers; see the package documentation.
func (t *tree) move(ctx context.Context, rel string, from, to int) (int64, error) {
	dst := t.tiers[to]
	t.names.RLock()
	f, err := t.findIn(from, rel)
	defer f.close()
	var fd int
	if err == nil {
		young := time.Since(time.Unix(f.st.Btime.Sec, int64(f.st.Btime.Nsec))) < tick
		if !f.isRegular() || f.st.Nlink != 1 || hidden(rel) || young {
			err = ErrBusy
		} else {
			fd, err = f.open(unix.O_RDONLY | unix.O_NOATIME)
			if errors.Is(err, unix.EPERM) { // O_NOATIME is for owners
				fd, err = f.open(unix.O_RDONLY)
			}
		}
	}
	if err == nil && !t.beginMove(f.id) {
		unix.Close(fd) // a close after reading cannot lose data
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
	fd, err = openBeneath(dst.private, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
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
		err = t.commit(rel, from, to, name, &f, in, out)
	}
	if err != nil {
		// If commit has succeeded, the copy has its final name.
		if bad := unix.Unlinkat(dst.private, name, 0); bad != nil && !errors.Is(bad, unix.ENOENT) {
			err = errors.Join(err, bad)
		}
		return 0, err
	}
	return int64(f.st.Blocks) * 512, nil
}

// beginMove marks a file as moving. It refuses files that are open for writing or moving
// already.
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

// commit puts a copy in place of the file, unless the source changed since it was copied.
// It works on open files: names below the mount may change at any time.
func (t *tree) commit(rel string, from, to int, name string, f *found, in, out *os.File) error {
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
	// A read lease is refused while any program on this machine has the file open for
	// writing, even directly in the tier, and prevents others from opening it so. Some file
	// systems do not support leases (EINVAL), and only the owner gets one (EACCES).
	_, err := unix.FcntlInt(in.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case err == nil:
		defer unix.FcntlInt(in.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	case errors.Is(err, unix.EAGAIN):
		return ErrBusy
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM):
		return err
	}
	now, err := statFd(int(in.Fd()))
	if err != nil {
		return err
	}
	if !same(&f.st, &now) {
		return ErrBusy
	}
	// Setting an attribute needs write permission, so the mode is set last.
	if err := t.stamp(to, int(out.Fd()), f.id); err != nil {
		return err
	}
	if err := copyMeta(int(out.Fd()), int(in.Fd()), &now, t.xattr); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	if err := t.ensureDir(to, parent(rel)); err != nil {
		return err
	}
	source, err := src.place(rel)
	if err != nil {
		return err
	}
	defer source.close()
	target, err := dst.place(rel)
	if err != nil {
		return err
	}
	defer target.close()
	copied, err := statFd(int(out.Fd()))
	if err != nil {
		return err
	}
	for _, ti := range []*tier{src, dst} {
		defer keepTimes(ti, parent(rel))()
	}
	if err := unix.Renameat2(dst.private, name, target.dir, target.name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	// The new name must be on the disk before the old one is removed.
	if err := syncDir(dst, parent(rel)); err != nil {
		return errors.Join(err, dst.remove(target, &copied))
	}
	taken, err := src.take(source, &now)
	if err != nil {
		return errors.Join(err, dst.remove(target, &copied))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.readers > 0 {
		old := &retired{from, to, t.privateName("old")}
		if err := unix.Renameat(src.private, taken, src.private, old.name); err != nil {
			return errors.Join(err, unix.Renameat2(src.private, taken, source.dir, source.name, unix.RENAME_NOREPLACE), dst.remove(target, &copied))
		}
		o.old = old
		return nil
	}
	// If it cannot be removed now, the next mount of the tiers removes it.
	_ = unix.Unlinkat(src.private, taken, 0)
	return nil
}

// take moves a file into Private, if it is the given one and this is its only name. If
// another file was put in its place from below the mount, that gets its name back, and the
// error is ErrBusy.
func (ti *tier) take(p place, want *unix.Statx_t) (string, error) {
	name := takenName(want)
	if err := unix.Renameat2(p.dir, p.name, ti.private, name, unix.RENAME_NOREPLACE); err != nil {
		if absent(err) {
			err = ErrBusy
		}
		return "", err
	}
	var st unix.Statx_t
	err := unix.Statx(ti.private, name, unix.AT_SYMLINK_NOFOLLOW, statMask, &st)
	if err == nil && (takenName(&st) != name || st.Dev_major != want.Dev_major || st.Dev_minor != want.Dev_minor || st.Nlink != 1) {
		err = ErrBusy
	}
	if err != nil {
		if back := unix.Renameat2(ti.private, name, p.dir, p.name, unix.RENAME_NOREPLACE); back != nil {
			err = fmt.Errorf("%w; another file was in its place, and is now %s/%s in tier %s: %w", err, Private, name, ti.Name, back)
		}
		return "", err
	}
	return name, nil
}

// takenName returns a name that identifies the file, so that another file is not mistaken
// for it after a crash.
func takenName(st *unix.Statx_t) string {
	return fmt.Sprintf("taken-%d-%d-%d.%09d", st.Ino, st.Size, st.Mtime.Sec, st.Mtime.Nsec)
}

// remove removes a name if it still refers to the given file.
func (ti *tier) remove(p place, want *unix.Statx_t) error {
	name, err := ti.take(p, want)
	if err == nil {
		err = unix.Unlinkat(ti.private, name, 0)
	}
	return err
}

func syncDir(ti *tier, rel string) error {
	fd, err := ti.openat(rel, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsync(fd)
}

// same reports whether a file is unchanged, except for having been read.
func same(a, b *unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor && a.Size == b.Size && a.Nlink == b.Nlink && a.Mtime == b.Mtime && a.Ctime == b.Ctime
}

// takeBack undoes the move of a file that has readers from before, so that a program can
// write to it. The retired file has the same content; takeBack copies later changes of
// owner, mode, attributes and times to it. Callers hold names for writing.
func (t *tree) takeBack(rel string, f *found) error {
	old := t.retiredOf(f.id)
	if old == nil || f.tier != old.to {
		return nil
	}
	src := t.tiers[old.from]
	back, err := openBeneath(src.private, old.name, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(back)
	if err := copyMeta(back, f.fd, &f.st, t.xattr); err != nil {
		return err
	}
	if err := t.stampIfOther(old.from, back, f.id); err != nil {
		return err
	}
	if err := t.ensureDir(old.from, parent(rel)); err != nil {
		return err
	}
	from, err := t.tiers[f.tier].place(rel)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := src.place(rel)
	if err != nil {
		return err
	}
	defer to.close()
	for _, ti := range []*tier{src, t.tiers[f.tier]} {
		defer keepTimes(ti, parent(rel))()
	}
	if err := unix.Renameat2(src.private, old.name, to.dir, to.name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	if err := t.tiers[f.tier].remove(from, &f.st); err != nil {
		return errors.Join(err, unix.Renameat2(to.dir, to.name, src.private, old.name, unix.RENAME_NOREPLACE))
	}
	t.mu.Lock()
	t.open[f.id].old = nil
	t.mu.Unlock()
	return nil
}

// stampIfOther writes an identity if it differs from the one that the file has by itself.
func (t *tree) stampIfOther(i, fd int, id uint64) error {
	st, err := statFd(fd)
	if err != nil || t.identity(i, fd, &st) == id {
		return err
	}
	return t.stamp(i, fd, id)
}

// Event is a change of a file, or an operation that a pass could not do.
type Event struct {
	Path     string `json:"path"` // below the mount
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"` // freed on the disk that it left
	Why      string `json:"why"`
	Err      error  `json:"-"`
	SetAside string `json:"set_aside,omitempty"` // new name of the other of two files
}

// candidate is a file that may be moved.
type candidate struct {
	rel              string
	size, allocated  int64
	changed, lastUse time.Time
}

// walk calls do for each entry of a tier, except below Private and in file systems mounted
// below. It does not follow links. If a directory cannot be read, do gets the error; if do
// returns false, walk does not enter the directory.
func (ti *tier) walk(ctx context.Context, do func(rel string, st *unix.Stat_t, err error) (bool, error)) error {
	var top unix.Stat_t
	if err := unix.Fstat(ti.fd, &top); err != nil {
		return err
	}
	var below func(rel string) error
	below = func(rel string) error {
		type entry struct {
			name string
			st   unix.Stat_t
		}
		var list []entry
		fd, err := ti.openat(rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			dir := os.NewFile(uintptr(fd), rel)
			var names []string
			names, err = dir.Readdirnames(-1)
			slices.Sort(names)
			for _, name := range names {
				e := entry{name: name}
				if unix.Fstatat(fd, name, &e.st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) == nil { // an error means that it was removed
					list = append(list, e)
				}
			}
			dir.Close() // a close after reading cannot lose data
		}
		if absent(err) {
			return nil
		}
		if err != nil {
			_, err = do(rel, nil, fmt.Errorf("%s: %w", join(ti.Dir, rel), err))
			return err
		}
		for _, e := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			path := join(rel, e.name)
			if hidden(path) || e.st.Dev != top.Dev {
				continue
			}
			enter, err := do(path, &e.st, nil)
			if err != nil {
				return err
			}
			if enter && e.st.Mode&unix.S_IFMT == unix.S_IFDIR {
				if err := below(path); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return below("")
}

// list returns the files of a tier that may be moved. It skips unreadable directories.
func (t *tree) list(ctx context.Context, i int) ([]candidate, error) {
	var all []candidate
	err := t.tiers[i].walk(ctx, func(rel string, st *unix.Stat_t, err error) (bool, error) {
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			changed := time.Unix(st.Mtim.Unix())
			use := changed
			if a := time.Unix(st.Atim.Unix()); a.After(use) {
				use = a
			}
			all = append(all, candidate{rel, st.Size, st.Blocks * 512, changed, use})
		}
		return true, nil
	})
	return all, err
}

func (r *Rule) holds(c *candidate, now time.Time) bool {
	return now.Sub(c.changed) >= r.Older && now.Sub(c.lastUse) >= r.Idle && c.size >= r.Larger && (r.Smaller == 0 || c.size < r.Smaller)
}

// pass moves the files that rules and watermarks select, once. It begins with the slowest
// tiers, so that they have space for files from above. tell may be nil.
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
		// Files in use and removed files are left to the next pass.
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

// usage returns the capacity and use of a tier in bytes; with a Capacity, the use as last
// counted.
func (ti *tier) usage() (capacity, used int64, err error) {
	if ti.Capacity > 0 {
		return ti.Capacity, ti.used.Load(), nil
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(ti.fd, &s); err != nil {
		return 0, 0, err
	}
	used = int64(s.Blocks-s.Bfree) * s.Bsize
	return used + int64(s.Bavail)*s.Bsize, used, nil // excluding space reserved for root
}

// recover repairs the tiers after a crash; see the package documentation.
func (t *tree) recover(ctx context.Context, tell func(Event)) error {
	if tell == nil {
		tell = func(Event) {}
	}
	for _, ti := range t.tiers {
		if err := ti.clearPrivate(tell); err != nil {
			return err
		}
	}
	for lower, ti := range t.tiers {
		for upper := range lower {
			if err := t.compareTops(upper, lower, tell); err != nil {
				return err
			}
		}
		if lower == 0 {
			continue
		}
		err := ti.walk(ctx, func(rel string, st *unix.Stat_t, err error) (bool, error) {
			if err != nil {
				return false, err
			}
			for upper := range lower {
				other, err := t.findIn(upper, rel)
				if absent(err) {
					continue // only one tier has it
				}
				if err != nil {
					return false, err
				}
				dirs := other.isDir() && st.Mode&unix.S_IFMT == unix.S_IFDIR
				other.close()
				if dirs {
					err = t.compare(rel, upper, lower, tell)
				} else {
					err = t.resolve(ctx, rel, upper, lower, tell)
				}
				if err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// clearPrivate removes files that moves left behind. The name of a taken file shows whether
// it is the one that was moved; another one stays.
func (ti *tier) clearPrivate(tell func(Event)) error {
	root, err := os.OpenRoot(fdPath(ti.private))
	if err != nil {
		return err
	}
	defer root.Close()
	list, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name() == stampFile {
			continue
		}
		if strings.HasPrefix(e.Name(), "taken-") {
			var st unix.Statx_t
			if err := unix.Statx(ti.private, e.Name(), unix.AT_SYMLINK_NOFOLLOW, statMask, &st); err != nil {
				return err
			}
			if takenName(&st) != e.Name() || st.Nlink != 1 {
				tell(Event{Path: join(Private, e.Name()), Why: "notice", Err: fmt.Errorf("tier %s: a file that replaced another one during its move, when premix ended, is kept there", ti.Name)})
				continue
			}
		}
		if err := root.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// compare reports a directory whose parts grant different access.
func (t *tree) compare(rel string, upper, lower int, tell func(Event)) error {
	if !t.root {
		return nil
	}
	var both [2]access
	for k, i := range []int{upper, lower} {
		f, err := t.findIn(i, rel)
		if absent(err) {
			return nil
		}
		if err != nil {
			return err
		}
		both[k] = accessOf(f.fd, &f.st)
		f.close()
	}
	if both[0] != both[1] {
		tell(Event{Path: rel, Why: "notice", Err: differing(t.tiers[upper], t.tiers[lower])})
	}
	return nil
}

func (t *tree) compareTops(upper, lower int, tell func(Event)) error {
	return t.compare("", upper, lower, func(e Event) {
		e.Path = "."
		tell(e)
	})
}

// resolve keeps one of two files with the same path.
func (t *tree) resolve(ctx context.Context, rel string, upper, lower int, tell func(Event)) error {
	a, err := t.findIn(upper, rel)
	if err != nil {
		return err
	}
	defer a.close()
	b, err := t.findIn(lower, rel)
	if err != nil {
		return err
	}
	defer b.close()
	if a.isRegular() && b.isRegular() && a.st.Size == b.st.Size && a.st.Nlink == 1 {
		equal, err := equal(ctx, &a, &b)
		if err != nil {
			return err
		}
		if equal {
			p, err := t.tiers[upper].place(rel)
			if err != nil {
				return err
			}
			defer p.close()
			return t.tiers[upper].remove(p, &a.st)
		}
	}
	loser := lower
	if after(b.st.Ctime, a.st.Ctime) {
		loser = upper
	}
	p, err := t.tiers[loser].place(rel)
	if err != nil {
		return err
	}
	defer p.close()
	aside := rel + "." + t.tiers[loser].Name
	for n := 2; ; n++ {
		other, err := t.find(aside)
		other.close()
		if absent(err) {
			break
		}
		aside = fmt.Sprintf("%s.%s-%d", rel, t.tiers[loser].Name, n)
	}
	tell(Event{Path: rel, Why: "two files had this path after a crash", SetAside: path.Base(aside)})
	return unix.Renameat2(p.dir, p.name, p.dir, path.Base(aside), unix.RENAME_NOREPLACE)
}

func after(a, b unix.StatxTimestamp) bool {
	return a.Sec > b.Sec || a.Sec == b.Sec && a.Nsec > b.Nsec
}

// equal compares two files of the same size.
func equal(ctx context.Context, a, b *found) (bool, error) {
	var sums [2][]byte
	for k, at := range []*found{a, b} {
		fd, err := at.open(unix.O_RDONLY)
		if err != nil {
			return false, err
		}
		f := os.NewFile(uintptr(fd), "")
		h := blake3.New()
		_, err = io.Copy(h, readerUntil{ctx, f})
		f.Close() // a close after reading cannot lose data
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
