package database

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
	"premix/internal/kit/spare"
	"premix/internal/kit/units"
)

// Budget is the memory that a database may use, and the limits that it comes from.
type Budget struct {
	Bytes     int64
	Available int64 // MemAvailable of /proc/meminfo, 0 if a limit was given
	Kept      int64 // part of Available that is left to other programs
	Cgroup    int64 // left by cgroups, -1 without a limit
	Room      int64 // free on the tmpfs
}

// String returns the limits in words.
func (b Budget) String() string {
	var list []string
	if b.Available > 0 {
		list = append(list, fmt.Sprintf("%s are available, of which %s are left to others", units.Size(b.Available), units.Size(b.Kept)))
	}
	if b.Cgroup >= 0 {
		list = append(list, fmt.Sprintf("the cgroup leaves %s", units.Size(b.Cgroup)))
	}
	return strings.Join(append(list, fmt.Sprintf("the tmpfs has room for %s", units.Size(b.Room))), "; ")
}

// budget returns the memory that may be used. With a limit of 0, a tenth of the machine's
// memory stays free, because searches need memory, too.
func budget(limit int64, dir string) (Budget, error) {
	b := Budget{Cgroup: -1}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return b, fmt.Errorf("%s: %w", dir, err)
	}
	b.Room = int64(fs.Bavail) * fs.Bsize
	b.Bytes = limit
	if limit == 0 {
		available, total, err := spare.Memory()
		if err != nil {
			return b, err
		}
		b.Available, b.Kept = available, total/10
		b.Bytes = max(0, b.Available-b.Kept)
		if free, ok := spare.Cgroup(); ok {
			b.Cgroup = free
			b.Bytes = min(b.Bytes, free)
		}
	}
	b.Bytes = min(b.Bytes, b.Room)
	return b, nil
}

// dropCached drops a file from the page cache. Its pages must be on the disk.
func dropCached(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// cachedBytes returns how much of a file is in memory, by mincore(2). The kernel reports
// that only to the owner of the file and to users who can write it; for others it reports
// that all of it is in memory.
func cachedBytes(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return 0, err
	}
	page := int64(os.Getpagesize())
	// Work in pieces, because the result has a byte for each page.
	const piece = 1 << 30
	var n int64
	for off := int64(0); off < st.Size(); off += piece {
		length := min(piece, st.Size()-off)
		m, err := unix.Mmap(int(f.Fd()), off, int(length), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, os.NewSyscallError("mmap", err)
		}
		pages := make([]byte, (length+page-1)/page)
		err = mincore(m, pages)
		if err2 := unix.Munmap(m); err == nil {
			err = err2
		}
		if err != nil {
			return 0, os.NewSyscallError("mincore", err)
		}
		for i, p := range pages {
			if p&1 != 0 {
				n += min(page, length-int64(i)*page)
			}
		}
	}
	return n, nil
}

// memoryDir creates a directory on a tmpfs that only this user can write to. It refuses one of
// another user, because its files are trusted.
func memoryDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return accessError(dir, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return accessError(dir, err)
	}
	if err := owner.Private(dir); err != nil {
		return &Error{Kind: Access, Message: fmt.Sprintf("%s is not a directory that only you can write to", dir), HintText: "remove it, or set PREMIX_BLAST_RAM to a directory of your own on a tmpfs"}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		return &Error{Kind: Use, Message: dir + " is not on a tmpfs: files in it are not in memory", HintText: "set PREMIX_BLAST_RAM to a directory on a tmpfs"}
	}
	return nil
}
