package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystem is a file system to be served. Nodes are identified by numbers that stay
// the same as long as the mount exists, whichever process serves it; the root is
// rootID. errnoOf converts errors.
type fileSystem interface {
	// flags returns the INIT flags beyond those common to all servers.
	flags() uint64
	attr(ctx context.Context, node uint64) (attr, error)
	// lookup returns node 0 and no error if the name does not exist.
	lookup(ctx context.Context, dir uint64, name string) (node uint64, a attr, err error)
	// openFile returns the flags of an OPEN reply. ENOSYS means that files need not be
	// opened, which the kernel remembers.
	openFile(ctx context.Context, node uint64) (flags uint32, err error)
	openDir(ctx context.Context, node uint64) error
	// read fills p from off, as far as the file extends.
	read(ctx context.Context, node uint64, p []byte, off int64) (int, error)
	// readdir calls emit with the entries from a cookie on (0 is the first), until emit
	// returns false.
	readdir(ctx context.Context, node, cookie uint64, emit func(dirent) bool) error
	readlink(ctx context.Context, node uint64) (string, error)
	// xattr returns ENODATA for a missing name.
	xattr(ctx context.Context, node uint64, name string) ([]byte, error)
	xattrs(ctx context.Context, node uint64) ([]string, error)
	// seek finds data (hole false) or a hole from off on, like lseek(2).
	seek(ctx context.Context, node uint64, off int64, hole bool) (int64, error)
	statfs(ctx context.Context) (statfs, error)
}

type statfs struct {
	blocks    uint64 // of blockSize bytes
	files     uint64
	blockSize uint32
}

// commonFlags are requested by every server; doc.go explains them.
const commonFlags = initAsyncRead | initParallelDirops | initAbortError | initMaxPages |
	initExplicitInval | initExt | initHasResend | initAllowIdmap

// answer encodes the reply to a request in r.out. It returns the number of bytes of
// file content in it.
func (s *Server) answer(r *request) (bytes int, err error) {
	if r.op == opInit {
		return 0, s.answerInit(r)
	}
	ctx := r.ctx
	switch r.op {
	case opDestroy:
		return 0, s.room(r, 0)
	case opLookup:
		name, err := parseName(r.body)
		if err != nil {
			return 0, unix.EINVAL
		}
		node, a, err := s.fs.lookup(ctx, r.node, name)
		if err != nil {
			return 0, err
		}
		if err := s.room(r, entrySize); err != nil {
			return 0, err
		}
		sec, nsec := s.validity()
		r.out = appendEntry(r.out, node, &a, sec, nsec)
		return 0, nil
	case opGetattr:
		a, err := s.fs.attr(ctx, r.node)
		if err != nil {
			return 0, err
		}
		if err := s.room(r, attrSize+16); err != nil {
			return 0, err
		}
		sec, nsec := s.validity()
		r.out = appendAttrOut(r.out, &a, sec, nsec)
		return 0, nil
	case opReadlink:
		target, err := s.fs.readlink(ctx, r.node)
		if err != nil {
			return 0, err
		}
		if err := s.room(r, len(target)); err != nil {
			return 0, err
		}
		r.out = append(r.out, target...)
		return 0, nil
	case opOpen:
		flags, err := s.fs.openFile(ctx, r.node)
		return 0, s.answerOpen(r, flags, err)
	case opOpendir:
		return 0, s.answerOpen(r, 0, s.fs.openDir(ctx, r.node))
	case opRelease, opReleasedir:
		return 0, s.room(r, 0)
	case opRead:
		return s.answerRead(r)
	case opReaddir, opReaddirplus:
		return 0, s.answerReaddir(r)
	case opGetxattr, opListxattr:
		return 0, s.answerXattr(r)
	case opLseek:
		return 0, s.answerLseek(r)
	case opStatfs:
		st, err := s.fs.statfs(ctx)
		if err != nil {
			return 0, err
		}
		if err := s.room(r, 80); err != nil {
			return 0, err
		}
		r.out = appendStatfs(r.out, st)
		return 0, nil
	case opSetattr, opSymlink, opMknod, opMkdir, opUnlink, opRmdir, opRename, opRename2, opLink,
		opWrite, opSetxattr, opRemovexattr, opCreate, opTmpfile, opFallocate:
		// The mount is read-only: the kernel itself refuses these.
		return 0, unix.EROFS
	}
	// The kernel sends FLUSH, FSYNC, ACCESS and others only once.
	return 0, unix.ENOSYS
}

// answerInit negotiates with the kernel.
func (s *Server) answerInit(r *request) error {
	in, err := parseInit(r.body)
	if err != nil {
		return unix.EPROTO
	}
	if err := s.room(r, initInSizeExt); err != nil {
		return err
	}
	if in.major > protoMajor {
		// The kernel will send INIT again with our major version.
		r.out = initOut{minor: protoMinor}.append(r.out)
		return nil
	}
	const needed = initMaxPages | initAsyncRead
	if in.major < protoMajor || in.minor < protoMinorMin || in.flags&needed != needed {
		s.fail(fmt.Errorf("%w: it speaks version %d.%d of the protocol, %d.%d is needed",
			ErrKernel, in.major, in.minor, protoMajor, protoMinorMin))
		return unix.EPROTO
	}
	out := initOut{
		minor:         min(in.minor, protoMinor),
		maxReadahead:  in.maxReadahead,
		flags:         in.flags & (commonFlags | s.fs.flags()),
		maxBackground: maxBackground,
		congestion:    congestion,
		maxWrite:      4096,
		maxPages:      maxRead / 4096,
	}
	r.out = out.append(r.out)
	s.readyOn.Do(func() {
		s.state.Minor, s.state.Flags = out.minor, out.flags
		close(s.ready)
	})
	return nil
}

func (s *Server) answerOpen(r *request, flags uint32, err error) error {
	if err != nil {
		return err
	}
	if err := s.room(r, 16); err != nil {
		return err
	}
	r.out = order.AppendUint64(r.out, 0) // no handle: it would not outlive this process
	r.out = order.AppendUint32(r.out, flags)
	r.out = order.AppendUint32(r.out, 0)
	return nil
}

func (s *Server) answerRead(r *request) (int, error) {
	in, err := parseRead(r.body)
	if err != nil || int64(in.offset) < 0 {
		return 0, unix.EINVAL
	}
	if err := s.room(r, int(min(in.size, maxRead))); err != nil {
		return 0, err
	}
	p := r.out[:min(in.size, maxRead)]
	n, err := s.fs.read(r.ctx, r.node, p, int64(in.offset))
	if err != nil {
		return 0, err
	}
	r.out = p[:n]
	return n, nil
}

func (s *Server) answerReaddir(r *request) error {
	in, err := parseRead(r.body)
	if err != nil {
		return unix.EINVAL
	}
	size := int(min(in.size, maxRead))
	if err := s.room(r, size); err != nil {
		return err
	}
	plus := r.op == opReaddirplus
	sec, nsec := s.validity()
	var failed error
	err = s.fs.readdir(r.ctx, r.node, in.offset, func(d dirent) bool {
		need := direntLen(len(d.name))
		if plus {
			need += entrySize
		}
		if len(r.out)+need > size {
			return false
		}
		if plus {
			// The kernel ignores nodes of "." and "..": node 0 means no node.
			var a attr
			node := uint64(0)
			if d.name != "." && d.name != ".." {
				node = d.node
				if d.attr != nil {
					a = *d.attr
				} else if a, failed = s.fs.attr(r.ctx, node); failed != nil {
					return false
				}
			}
			r.out = appendEntry(r.out, node, &a, sec, nsec)
		}
		r.out = d.append(r.out)
		return true
	})
	if err == nil {
		err = failed
	}
	if err != nil && len(r.out) > 0 {
		// Return the entries read so far; the error comes with the next request.
		return nil
	}
	return err
}

func (s *Server) answerXattr(r *request) error {
	if len(r.body) < getxattrInSize {
		return unix.EINVAL
	}
	size := order.Uint32(r.body)
	var value []byte
	if r.op == opGetxattr {
		name, err := parseName(r.body[getxattrInSize:])
		if err != nil {
			return unix.EINVAL
		}
		if value, err = s.fs.xattr(r.ctx, r.node, name); err != nil {
			return err
		}
	} else {
		names, err := s.fs.xattrs(r.ctx, r.node)
		if err != nil {
			return err
		}
		for _, n := range names {
			// The kernel does not show the values of these to unprivileged users, but
			// relies on file systems not to list them to those.
			if !strings.HasPrefix(n, "trusted.") || privileged(r.pid) {
				value = append(append(value, n...), 0)
			}
		}
	}
	switch {
	case size == 0: // the caller asks for the length
		if err := s.room(r, 8); err != nil {
			return err
		}
		r.out = order.AppendUint32(r.out, uint32(len(value)))
		r.out = order.AppendUint32(r.out, 0)
		return nil
	case len(value) > int(size) || len(value) > maxRead:
		return unix.ERANGE
	}
	if err := s.room(r, len(value)); err != nil {
		return err
	}
	r.out = append(r.out, value...)
	return nil
}

// privileged reports whether the thread that waits for a request has CAP_SYS_ADMIN and
// is in the user namespace of this process. The uid in a request does not show it: it
// is missing if mounts may be id-mapped (FUSE_ALLOW_IDMAP).
func privileged(pid uint32) bool {
	const capSysAdmin = 21 // linux/capability.h
	proc := fmt.Sprintf("/proc/%d/", pid)
	theirs, err := os.Readlink(proc + "ns/user")
	if err != nil {
		return false
	}
	if ours, err := os.Readlink("/proc/self/ns/user"); err != nil || ours != theirs {
		return false
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	caps, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && caps&(1<<capSysAdmin) != 0
}

func (s *Server) answerLseek(r *request) error {
	if len(r.body) < lseekInSize {
		return unix.EINVAL
	}
	off := int64(order.Uint64(r.body[8:]))
	whence := order.Uint32(r.body[16:])
	if off < 0 {
		return unix.ENXIO
	}
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return unix.EINVAL
	}
	at, err := s.fs.seek(r.ctx, r.node, off, whence == unix.SEEK_HOLE)
	if err != nil {
		return err
	}
	if err := s.room(r, 8); err != nil {
		return err
	}
	r.out = order.AppendUint64(r.out, uint64(at))
	return nil
}

// readFull reads all of p, which must lie within the image. Too few bytes are an error:
// the kernel would take them for the end of the file, and the rest for zeros.
//
// The cause of an error is not passed on. In particular, an origin's "not found" must
// never look like a missing name in a directory, which the kernel would remember.
func readFull(ctx context.Context, img Image, p []byte, off int64) error {
	n, err := img.ReadAt(ctx, p, off)
	switch {
	case n == len(p) && (err == nil || err == io.EOF):
		return nil
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	return unix.EIO
}
