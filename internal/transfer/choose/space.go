package choose

import "golang.org/x/sys/unix"

// freeSpace returns the bytes that this user can write to the file system of a directory.
func freeSpace(dir string) int64 {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}
