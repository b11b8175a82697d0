package fuse

import (
	"context"

	"golang.org/x/sys/unix"
)

// ImageName is the name of the only file that MountImage shows.
const ImageName = "image"

const imageNode = 2

// imageFS is a directory with one file, the image.
type imageFS struct {
	img Image
	uid uint32
	gid uint32
}

func (f *imageFS) flags() uint64 { return initAsyncDIO }

func (f *imageFS) attr(_ context.Context, node uint64) (attr, error) {
	a := attr{ino: node, nlink: 1, uid: f.uid, gid: f.gid, blksize: 4096}
	switch node {
	case rootID:
		a.mode, a.nlink = unix.S_IFDIR|0o500, 2
	case imageNode:
		a.mode = unix.S_IFREG | 0o400
		a.size = uint64(f.img.Size())
		a.blocks = (a.size + 511) / 512
	default:
		return attr{}, unix.ESTALE
	}
	return a, nil
}

func (f *imageFS) lookup(ctx context.Context, dir uint64, name string) (uint64, attr, error) {
	if dir != rootID {
		return 0, attr{}, unix.ENOTDIR
	}
	if name != ImageName {
		return 0, attr{}, nil
	}
	a, err := f.attr(ctx, imageNode)
	return imageNode, a, err
}

func (f *imageFS) openFile(_ context.Context, node uint64) (uint32, error) {
	if node != imageNode {
		return 0, unix.EISDIR
	}
	// There is nothing to flush. Without FLUSH, a process that closes the file while
	// there is no server, such as a supervisor between fork and exec, does not wait for
	// one.
	return openKeepCache | openNoFlush, nil
}

func (f *imageFS) openDir(_ context.Context, node uint64) error {
	if node != rootID {
		return unix.ENOTDIR
	}
	return nil
}

func (f *imageFS) read(ctx context.Context, node uint64, p []byte, off int64) (int, error) {
	if node != imageNode {
		return 0, unix.EISDIR
	}
	left := f.img.Size() - off
	if left <= 0 {
		return 0, nil
	}
	p = p[:min(int64(len(p)), left)]
	if err := readFull(ctx, f.img, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *imageFS) readdir(_ context.Context, node, cookie uint64, emit func(dirent) bool) error {
	if node != rootID {
		return unix.ENOTDIR
	}
	all := []dirent{
		{ino: rootID, node: rootID, mode: unix.S_IFDIR, name: "."},
		{ino: rootID, node: rootID, mode: unix.S_IFDIR, name: ".."},
		{ino: imageNode, node: imageNode, mode: unix.S_IFREG, name: ImageName},
	}
	for i := cookie; i < uint64(len(all)); i++ {
		all[i].next = i + 1
		if !emit(all[i]) {
			break
		}
	}
	return nil
}

func (f *imageFS) readlink(context.Context, uint64) (string, error) { return "", unix.EINVAL }

// Without xattrs the kernel asks only once.
func (f *imageFS) xattr(context.Context, uint64, string) ([]byte, error) { return nil, unix.ENOSYS }
func (f *imageFS) xattrs(context.Context, uint64) ([]string, error)      { return nil, unix.ENOSYS }

// seek: the kernel treats a file without LSEEK as one without holes.
func (f *imageFS) seek(context.Context, uint64, int64, bool) (int64, error) { return 0, unix.ENOSYS }

func (f *imageFS) statfs(context.Context) (statfs, error) {
	return statfs{blocks: uint64(f.img.Size()+4095) / 4096, files: 2, blockSize: 4096}, nil
}
