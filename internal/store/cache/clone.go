package cache

import (
	"errors"

	"golang.org/x/sys/unix"
)

// clone lets chunk i share its whole blocks with the same chunk in another image file,
// if the file system supports that (FICLONERANGE, ioctl_ficlonerange(2): XFS, btrfs).
// It returns the range of the image that is shared, which is empty if that was not
// possible. The sums were computed from the hashed content, so a later read also
// detects wrong bytes in the other file. The caller holds imageMu.
//
// If blocks cannot be shared, copying within the kernel would save nothing: the bytes
// are in memory already, since they had to be hashed.
func (t *Tree) clone(im *image, pg *page, i int, from target) (start, end int64) {
	if from.t == nil || t.c.noClone.Load() {
		return 0, 0
	}
	at, there := pg.offs[i], from.pg.offs[from.i]
	start, end = (at+block-1)&^(block-1), pg.offs[i+1]&^(block-1)
	if start >= end || (at-there)%block != 0 {
		return 0, 0
	}
	// The other file must be neither closed nor punched now. Waiting for its lock while
	// holding this one could deadlock.
	if from.t != t {
		if !from.t.imageMu.TryRLock() {
			return 0, 0
		}
		defer from.t.imageMu.RUnlock()
	}
	src := from.t.image.Load()
	if src == nil || !from.pg.present(from.i) {
		return 0, 0
	}
	err := unix.IoctlFileCloneRange(int(im.f.Fd()), &unix.FileCloneRange{
		Src_fd:     int64(src.f.Fd()),
		Src_offset: uint64(start - at + there), Src_length: uint64(end - start), Dest_offset: uint64(start),
	})
	switch {
	case err == nil:
		t.stats.cloned.Add(end - start)
		return start, end
	case errors.Is(err, unix.EXDEV): // one of the files is in memory
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		t.c.noClone.Store(true)
	}
	return 0, 0
}

// put writes a chunk's content, or shares the blocks of the image file that it was read
// from.
func (t *Tree) put(im *image, pg *page, i int, content []byte, from target) error {
	at := pg.offs[i]
	start, end := t.clone(im, pg, i, from)
	if start == end {
		_, err := im.f.WriteAt(content, at)
		return err
	}
	_, err := im.f.WriteAt(content[:start-at], at)
	_, errEnd := im.f.WriteAt(content[end-at:], end)
	return errors.Join(err, errEnd)
}
