package fuse

import (
	"encoding/binary"
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// Messages have the byte order of the machine (fuse(4)).
var order = binary.NativeEndian

// The version of the protocol: 7.40 came with Linux 6.9 and is the first with
// notifyResend. Kernels from 7.31 (Linux 5.4) on work too.
const (
	protoMajor    = 7
	protoMinor    = 40
	protoMinorMin = 31
)

// Operations (enum fuse_opcode).
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opReadlink    = 5
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opSetxattr    = 21
	opGetxattr    = 22
	opListxattr   = 23
	opRemovexattr = 24
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opFsyncdir    = 30
	opAccess      = 34
	opCreate      = 35
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
	opFallocate   = 43
	opReaddirplus = 44
	opRename2     = 45
	opLseek       = 46
	opTmpfile     = 51

	opCount = 64 // one more than the last operation with a counter of its own
)

var opNames = [opCount]string{
	0:        "other",
	opLookup: "lookup", opForget: "forget", opGetattr: "getattr", opSetattr: "setattr",
	opReadlink: "readlink", opSymlink: "symlink", opMknod: "mknod", opMkdir: "mkdir",
	opUnlink: "unlink", opRmdir: "rmdir", opRename: "rename", opLink: "link", opOpen: "open",
	opRead: "read", opWrite: "write", opStatfs: "statfs", opRelease: "release", opFsync: "fsync",
	opSetxattr: "setxattr", opGetxattr: "getxattr", opListxattr: "listxattr",
	opRemovexattr: "removexattr", opFlush: "flush", opInit: "init", opOpendir: "opendir",
	opReaddir: "readdir", opReleasedir: "releasedir", opFsyncdir: "fsyncdir",
	opAccess: "access", opCreate: "create", opInterrupt: "interrupt", opDestroy: "destroy",
	opBatchForget: "batch_forget", opFallocate: "fallocate", opReaddirplus: "readdirplus",
	opRename2: "rename2", opLseek: "lseek", opTmpfile: "tmpfile",
}

// Flags of INIT (FUSE_* in linux/fuse.h); doc.go explains those used.
const (
	initAsyncRead       = 1 << 0
	initExportSupport   = 1 << 4
	initDoReaddirplus   = 1 << 13
	initReaddirplusAuto = 1 << 14
	initAsyncDIO        = 1 << 15
	initNoOpen          = 1 << 17
	initParallelDirops  = 1 << 18
	initPosixACL        = 1 << 20
	initAbortError      = 1 << 21
	initMaxPages        = 1 << 22
	initCacheSymlinks   = 1 << 23
	initNoOpendir       = 1 << 24
	initExplicitInval   = 1 << 25
	initExt             = 1 << 30
	initHasResend       = 1 << 39
	initAllowIdmap      = 1 << 40
)

// Flags of an OPEN reply.
const (
	openKeepCache = 1 << 1
	openNoFlush   = 1 << 5
)

// Code of an unsolicited message.
const notifyResend = 7

// uniqueResend marks the number of a request that was delivered before. The reply must
// carry it too.
const uniqueResend = 1 << 63

const rootID = 1 // FUSE_ROOT_ID

// Sizes of the fixed parts of messages, in bytes.
const (
	inHeaderSize   = 40
	outHeaderSize  = 16
	attrSize       = 88
	entrySize      = 40 + attrSize
	direntSize     = 24
	initInSize     = 16 // as sent by kernels before 7.36
	initInSizeExt  = 64
	readInSize     = 40
	lseekInSize    = 24
	getxattrInSize = 8
)

// forever is a validity in seconds without a limit. The kernel takes any number this
// large for the largest that it can represent.
const forever = math.MaxInt32

// errShort reports a message that is too short for its operation.
var errShort = errors.New("message too short")

// inHeader begins every request (struct fuse_in_header).
type inHeader struct {
	length uint32
	op     uint32
	unique uint64
	node   uint64
	pid    uint32 // of the waiting thread, 0 outside of our PID namespace
}

// parseHeader splits a message into its header and its body.
func parseHeader(msg []byte) (inHeader, []byte, error) {
	if len(msg) < inHeaderSize {
		return inHeader{}, nil, errShort
	}
	h := inHeader{
		length: order.Uint32(msg[0:]),
		op:     order.Uint32(msg[4:]),
		unique: order.Uint64(msg[8:]),
		node:   order.Uint64(msg[16:]),
		pid:    order.Uint32(msg[32:]),
	}
	if int64(h.length) != int64(len(msg)) {
		return h, nil, errShort
	}
	return h, msg[inHeaderSize:], nil
}

// parseName returns the name at the start of body, which ends with a zero byte.
func parseName(body []byte) (string, error) {
	for i, c := range body {
		if c == 0 {
			return string(body[:i]), nil
		}
	}
	return "", errShort
}

// initIn is the kernel's offer (struct fuse_init_in).
type initIn struct {
	major, minor uint32
	maxReadahead uint32 // bytes
	flags        uint64
}

func parseInit(body []byte) (initIn, error) {
	if len(body) < initInSize {
		return initIn{}, errShort
	}
	in := initIn{
		major:        order.Uint32(body[0:]),
		minor:        order.Uint32(body[4:]),
		maxReadahead: order.Uint32(body[8:]),
		flags:        uint64(order.Uint32(body[12:])),
	}
	if in.flags&initExt != 0 && len(body) >= initInSizeExt {
		in.flags |= uint64(order.Uint32(body[16:])) << 32
	}
	return in, nil
}

// initOut is the answer to it (struct fuse_init_out).
type initOut struct {
	minor         uint32
	maxReadahead  uint32 // bytes
	flags         uint64
	maxBackground uint16 // requests
	congestion    uint16 // requests
	maxWrite      uint32 // bytes
	maxPages      uint16
}

func (o initOut) append(b []byte) []byte {
	b = order.AppendUint32(b, protoMajor)
	b = order.AppendUint32(b, o.minor)
	b = order.AppendUint32(b, o.maxReadahead)
	b = order.AppendUint32(b, uint32(o.flags))
	b = order.AppendUint16(b, o.maxBackground)
	b = order.AppendUint16(b, o.congestion)
	b = order.AppendUint32(b, o.maxWrite)
	b = order.AppendUint32(b, 1) // times have nanoseconds
	b = order.AppendUint16(b, o.maxPages)
	b = order.AppendUint16(b, 0)
	b = order.AppendUint32(b, uint32(o.flags>>32))
	return append(b, make([]byte, 28)...)
}

// attr has the attributes of an inode for stat(2) (struct fuse_attr).
type attr struct {
	ino                 uint64
	size                uint64 // bytes
	blocks              uint64 // of 512 bytes
	atime, mtime, ctime unix.Timespec
	mode                uint32 // with the file type
	nlink               uint32
	uid, gid            uint32
	rdev                uint32 // as EROFS and the kernel encode it, in 32 bits
	blksize             uint32 // bytes
}

func (a *attr) append(b []byte) []byte {
	b = order.AppendUint64(b, a.ino)
	b = order.AppendUint64(b, a.size)
	b = order.AppendUint64(b, a.blocks)
	b = order.AppendUint64(b, uint64(a.atime.Sec))
	b = order.AppendUint64(b, uint64(a.mtime.Sec))
	b = order.AppendUint64(b, uint64(a.ctime.Sec))
	b = order.AppendUint32(b, uint32(a.atime.Nsec))
	b = order.AppendUint32(b, uint32(a.mtime.Nsec))
	b = order.AppendUint32(b, uint32(a.ctime.Nsec))
	b = order.AppendUint32(b, a.mode)
	b = order.AppendUint32(b, a.nlink)
	b = order.AppendUint32(b, a.uid)
	b = order.AppendUint32(b, a.gid)
	b = order.AppendUint32(b, a.rdev)
	b = order.AppendUint32(b, a.blksize)
	return order.AppendUint32(b, 0)
}

// appendAttrOut encodes a reply to GETATTR (struct fuse_attr_out), valid for sec and nsec.
func appendAttrOut(b []byte, a *attr, sec uint64, nsec uint32) []byte {
	b = order.AppendUint64(b, sec)
	b = order.AppendUint32(b, nsec)
	b = order.AppendUint32(b, 0)
	return a.append(b)
}

// appendEntry encodes a reply to LOOKUP (struct fuse_entry_out). Node 0 means that the
// name does not exist, which the kernel may remember. Both are valid for sec and nsec.
func appendEntry(b []byte, node uint64, a *attr, sec uint64, nsec uint32) []byte {
	b = order.AppendUint64(b, node)
	b = order.AppendUint64(b, 0) // generation: node numbers are never reused
	b = order.AppendUint64(b, sec)
	b = order.AppendUint64(b, sec)
	b = order.AppendUint32(b, nsec)
	b = order.AppendUint32(b, nsec)
	return a.append(b)
}

// A dirent is one name in a directory.
type dirent struct {
	node uint64
	ino  uint64
	next uint64 // the cookie of the following entry
	mode uint32 // only the file type is used
	name string
	attr *attr // nil: fileSystem.attr returns them
}

// direntLen returns the size of an entry with a name of n bytes (FUSE_DIRENT_SIZE).
func direntLen(n int) int { return (direntSize + n + 7) &^ 7 }

func (d *dirent) append(b []byte) []byte {
	b = order.AppendUint64(b, d.ino)
	b = order.AppendUint64(b, d.next)
	b = order.AppendUint32(b, uint32(len(d.name)))
	b = order.AppendUint32(b, d.mode>>12&0xf) // DT_*
	b = append(b, d.name...)
	return append(b, make([]byte, direntLen(len(d.name))-direntSize-len(d.name))...)
}

// readIn is struct fuse_read_in, of READ, READDIR and READDIRPLUS.
type readIn struct {
	offset uint64
	size   uint32
}

func parseRead(body []byte) (readIn, error) {
	if len(body) < readInSize {
		return readIn{}, errShort
	}
	return readIn{offset: order.Uint64(body[8:]), size: order.Uint32(body[16:])}, nil
}

// appendStatfs encodes a reply to STATFS (struct fuse_statfs_out).
func appendStatfs(b []byte, s statfs) []byte {
	b = order.AppendUint64(b, s.blocks)
	b = order.AppendUint64(b, 0)
	b = order.AppendUint64(b, 0)
	b = order.AppendUint64(b, s.files)
	b = order.AppendUint64(b, 0)
	b = order.AppendUint32(b, s.blockSize)
	b = order.AppendUint32(b, unix.NAME_MAX)
	b = order.AppendUint32(b, s.blockSize)
	return append(b, make([]byte, 28)...)
}

// putOutHeader writes the header of a reply of length bytes (struct fuse_out_header) to
// the start of b. A notification has unique 0, and its code in place of the error.
func putOutHeader(b []byte, length int, code int32, unique uint64) {
	order.PutUint32(b[0:], uint32(length))
	order.PutUint32(b[4:], uint32(code))
	order.PutUint64(b[8:], unique)
}
