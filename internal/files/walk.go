package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"premix/internal/kit/exit"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options select the directories of a scan and its table.
type Options struct {
	Roots   []string
	Table   string // path of the table
	Workers int    // 0: see [DefaultWorkers]
	OneFS   bool   // don't enter other file systems
	// Progress is called now and then with the counts so far. It may be nil.
	Progress func(Counts)
}

// DefaultWorkers returns the default number of workers: more than cores, since on a disk or
// over a network most of them wait.
func DefaultWorkers() int { return max(4, 2*runtime.GOMAXPROCS(0)) }

// Counts are the numbers of entries that a scan has found, by kind.
type Counts struct {
	Entries     int64 `json:"entries"`
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"`     // sizes of files; a hard link counts each time
	Allocated   int64 `json:"allocated"` // bytes of files on disk; a hard link counts each time
	Vanished    int64 `json:"vanished"`
	Unread      int64 `json:"unread"`
}

// Summary is the result of a scan.
type Summary struct {
	Table   string        `json:"table"`
	Roots   []string      `json:"roots"` // absolute
	Took    time.Duration `json:"-"`
	Seconds float64       `json:"seconds"`
	Counts
	// Problems are the first unread entries, as "path: reason".
	Problems []string `json:"problems,omitempty"`
}

// cannotScan is the error for a root of a scan.
func cannotScan(root string, err error) error {
	return exit.Errorf(exit.Usage, "a scan begins at directories that can be read", "cannot scan %s: %w", root, err)
}

// mostProblems is the highest number of problems in a summary.
const mostProblems = 20

const (
	// direntBuffer is the size of a worker's buffer for listings, in bytes.
	direntBuffer = 256 << 10
	// longPath is the length of a path that is resolved in one call: below PATH_MAX, with
	// space for a name.
	longPath = 3500
	// batchNames is the number of names of a large directory that are passed to another
	// worker together.
	batchNames = 1024
)

// Scan walks the roots and writes the table, which appears whole or not at all. It fails if
// a root cannot be read, if the table cannot be written, or if the context ends. Entries
// below a root that cannot be read are in the table and in the summary.
func Scan(ctx context.Context, o Options) (sum *Summary, err error) {
	started := time.Now()
	s := &scan{ctx: ctx, o: o}
	s.idle.L = &s.mu
	sum = &Summary{Table: o.Table}
	if o.Workers == 0 {
		s.o.Workers = DefaultWorkers()
	}
	for _, root := range o.Roots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return nil, cannotScan(root, err)
		}
		for _, other := range sum.Roots {
			if within(abs, other) || within(other, abs) {
				return nil, cannotScan(root, fmt.Errorf("it overlaps with %s, which is also a root", other))
			}
		}
		sum.Roots = append(sum.Roots, abs)
	}
	if s.w, err = newWriter(o.Table); err != nil {
		return nil, err
	}
	defer func() { err = s.w.close(err) }()
	for i, root := range sum.Roots {
		if err := s.root(o.Roots[i], root); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	defer stop()
	var workers sync.WaitGroup
	for range s.o.Workers {
		workers.Go(s.work)
	}
	if o.Progress != nil {
		over := make(chan struct{})
		defer close(over)
		go s.progress(over)
	}
	workers.Wait()
	if s.err != nil {
		return nil, s.err
	}
	sum.Counts, sum.Problems = s.counts(), s.problems
	sum.Took = time.Since(started)
	sum.Seconds = sum.Took.Seconds()
	roots, err := json.Marshal(sum.Roots)
	if err != nil {
		return nil, err
	}
	s.w.say(keyFormat, tableFormat)
	s.w.say(keyRoots, string(roots))
	s.w.say(keyStarted, started.Format(time.RFC3339Nano))
	s.w.say(keyFinished, time.Now().Format(time.RFC3339Nano))
	return sum, nil
}

// within reports whether a path is dir, or lies below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// dir is an open directory beneath which names are resolved. It is reference-counted; the
// last user closes it.
type dir struct {
	fd   int
	refs atomic.Int32
}

func openedDir(fd int) *dir {
	d := &dir{fd: fd}
	d.refs.Store(1)
	return d
}

func (d *dir) take() *dir {
	d.refs.Add(1)
	return d
}

func (d *dir) drop() {
	if d.refs.Add(-1) == 0 {
		// The descriptor is of a directory and was only read, so this does not wait.
		_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(d.fd), 0, 0)
	}
}

// listing is a directory to list, or some names of a directory whose attributes are to be read.
type listing struct {
	base *dir   // a reference is held
	rel  string // path beneath base, "" for base itself
	path string // absolute

	// For a directory: its row, in which the number of entries is still missing.
	row   unix.Statx_t
	name  string
	in    string
	mount uint64 // device of its root

	// For names: base is the directory itself.
	names []byte // for each: length in two bytes, d_type, the name, and a 0
	tally *tally
}

// tally counts down the unprocessed names of a directory, and then adds the directory's
// row.
type tally struct {
	listing listing // without names
	pending atomic.Int64
	entries atomic.Int64
	whole   bool // it was listed to its end
	reason  string
}

// scan is a running scan.
type scan struct {
	ctx context.Context
	o   Options
	w   *writer

	mu       sync.Mutex
	idle     sync.Cond
	stack    []listing
	waiting  int // idle workers
	done     bool
	err      error
	problems []string

	seen Counts // see worker.tell
}

func (s *scan) counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// progressInterval is the time between two calls of Progress.
const progressInterval = 200 * time.Millisecond

func (s *scan) progress(over <-chan struct{}) {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			s.o.Progress(s.counts())
		}
	}
}

// fail ends the scan.
func (s *scan) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		s.done, s.err = true, err
		s.idle.Broadcast()
	}
}

func (w *worker) problem(path, reason string) {
	w.own.Unread++
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) < mostProblems {
		w.problems = append(w.problems, path+": "+reason)
	}
}

// tell adds the worker's counts to those of the scan.
func (w *worker) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, c := &w.seen, &w.own
	s.Entries += c.Entries
	s.Files += c.Files
	s.Directories += c.Directories
	s.Bytes += c.Bytes
	s.Allocated += c.Allocated
	s.Vanished += c.Vanished
	s.Unread += c.Unread
	*c = Counts{}
}

const statxMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// root puts a root on the stack.
func (s *scan) root(given, abs string) error {
	fd, err := unix.Open(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotScan(given, err)
	}
	j := listing{base: openedDir(fd), path: abs, in: abs, name: "."}
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, statxMask, &j.row); err != nil {
		j.base.drop()
		return cannotScan(given, err)
	}
	j.mount = device(&j.row)
	s.stack = append(s.stack, j)
	return nil
}

func device(st *unix.Statx_t) uint64 { return unix.Mkdev(st.Dev_major, st.Dev_minor) }

// worker is one of the goroutines that walk.
type worker struct {
	*scan
	buf   []byte
	row   unix.Statx_t
	group *group
	subs  []listing // directories found in the one being listed
	own   Counts    // counts not yet added to those of the scan

	direct bool // statx(2) is called without the scheduler; see judge
	calls  int
	judged time.Time
}

const (
	// judgeCalls is the number of entries after which a worker looks at the clock.
	judgeCalls = 64
	// quickCall is the time of an entry up to which its attributes are in memory.
	quickCall = 20 * time.Microsecond
)

// judge decides how the next entries are read. A call that may wait for a disk or a server
// leaves the processor to another worker, for which Go's scheduler watches it. While
// attributes are in memory, that costs more than the call waits.
func (w *worker) judge() {
	now := time.Now()
	w.direct = now.Sub(w.judged) < judgeCalls*quickCall
	w.calls, w.judged = 0, now
}

func (s *scan) work() {
	w := &worker{scan: s, buf: make([]byte, direntBuffer), group: newGroup(s.w)}
	for {
		j, ok := s.next()
		if !ok {
			break
		}
		var err error
		if j.names != nil {
			err = w.look(&j, j.names)
			j.base.drop()
			if err == nil {
				err = w.settle(j.tally)
			}
		} else {
			err = w.list(&j)
		}
		w.tell()
		if err != nil {
			s.fail(err)
			break
		}
	}
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err == nil {
		if err = w.group.flush(); err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
		}
	}
}

// next returns the next listing, and waits for one if necessary. It returns false when all
// workers wait, because the scan is complete.
func (s *scan) next() (listing, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.done {
		if n := len(s.stack); n > 0 {
			j := s.stack[n-1]
			s.stack[n-1] = listing{}
			s.stack = s.stack[:n-1]
			return j, true
		}
		if s.waiting++; s.waiting == s.o.Workers {
			s.done = true
			s.idle.Broadcast()
			break
		}
		s.idle.Wait()
		s.waiting--
	}
	for _, j := range s.stack { // after a failure
		j.base.drop()
	}
	s.stack = nil
	return listing{}, false
}

// push puts listings on the stack.
func (s *scan) push(listings ...listing) {
	if len(listings) == 0 {
		return
	}
	s.mu.Lock()
	s.stack = append(s.stack, listings...)
	waiting := s.waiting
	s.mu.Unlock()
	switch {
	case waiting == 0:
	case len(listings) == 1:
		s.idle.Signal()
	default:
		s.idle.Broadcast()
	}
}

// hungry reports whether workers are idle and no listings are left for them.
func (s *scan) hungry() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting > 0 && len(s.stack) < s.waiting
}

// list lists a directory, and adds its entries.
func (w *worker) list(j *listing) error {
	d, reason := w.open(j)
	if d == nil {
		j.base.drop()
		if reason == "" {
			w.own.Vanished++
			return nil
		}
		return w.add(j.in, j.name, &j.row, -1, reason)
	}
	t := &tally{listing: *j}
	t.pending.Store(1)
	here := listing{base: d, path: j.path, mount: j.mount, tally: t}
	if len(j.rel) < longPath {
		here.base, here.rel = j.base, j.rel // base and rel of the parent, so that few descriptors are open
	} else {
		here.base = d.take()
		j.base.drop()
	}
	w.subs = w.subs[:0]
	var err error
	for err == nil {
		n, e := w.getdents(d.fd)
		if e == unix.EINTR {
			continue
		}
		if e == unix.ENOENT { // removed, including its entries not listed yet
			t.whole = true
			break
		}
		if e != 0 {
			t.reason = "cannot be listed: " + e.Error()
			break
		}
		if n == 0 {
			t.whole = true
			break
		}
		err = w.listed(&here, d, w.buf[:n])
	}
	d.drop()
	slices.Reverse(w.subs) // so that the first one is on top
	w.push(w.subs...)
	here.base.drop()
	if err != nil {
		return err
	}
	return w.settle(t)
}

// listed processes names as getdents64 returns them: struct linux_dirent64 is d_ino (8
// bytes), d_off (8), d_reclen (2), d_type (1) and d_name, which ends with a 0.
func (w *worker) listed(here *listing, d *dir, b []byte) error {
	entries, given := int64(0), []byte(nil)
	give := func() {
		if given == nil {
			return
		}
		here.tally.pending.Add(1)
		w.push(listing{base: d.take(), path: here.path, mount: here.mount, tally: here.tally, names: given})
		given = nil
	}
	share := len(b) > batchNames*32 && w.hungry()
	batch := 0
	for len(b) > 0 {
		size := binary.NativeEndian.Uint16(b[16:])
		name, kind := b[19:size], b[18]
		b = b[size:]
		if name[0] == '.' && (name[1] == 0 || name[1] == '.' && name[2] == 0) {
			continue
		}
		entries++
		// The listing worker keeps the directories, and puts them on the stack itself.
		if share && kind != unix.DT_DIR && kind != unix.DT_UNKNOWN {
			n := cstringLen(name)
			given = append(append(binary.NativeEndian.AppendUint16(given, uint16(n)), kind), name[:n+1]...)
			if batch++; batch == batchNames {
				give()
				batch, share = 0, w.hungry()
			}
			continue
		}
		if err := w.entry(here, d.fd, name, kind); err != nil {
			return err
		}
	}
	give()
	here.tally.entries.Add(entries)
	return nil
}

// look reads the attributes of names passed on by another worker.
func (w *worker) look(j *listing, names []byte) error {
	for len(names) > 0 {
		n := int(binary.NativeEndian.Uint16(names))
		if err := w.entry(j, j.base.fd, names[3:3+n+1], names[2]); err != nil {
			return err
		}
		names = names[3+n+1:]
	}
	return nil
}

// entry reads the attributes of an entry, whose name ends with a 0.
func (w *worker) entry(here *listing, fd int, name []byte, kind byte) error {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	var e syscall.Errno
	if w.direct {
		_, _, e = unix.RawSyscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&name[0])), flags, statxMask, uintptr(unsafe.Pointer(&w.row)), 0)
	} else {
		_, _, e = unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&name[0])), flags, statxMask, uintptr(unsafe.Pointer(&w.row)), 0)
	}
	if w.calls++; w.calls == judgeCalls {
		w.judge()
	}
	name = name[:cstringLen(name)]
	switch e {
	case 0:
	case unix.ENOENT, unix.ENOTDIR, unix.ESTALE:
		w.own.Vanished++
		here.tally.entries.Add(-1)
		return nil
	default:
		w.row = unix.Statx_t{Mode: uint16(kind) << 12}
		return w.add(here.path, string(name), &w.row, -1, "its attributes cannot be read: "+e.Error())
	}
	if w.row.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.addName(here.path, name, &w.row, -1, "")
	}
	sub := listing{path: join(here.path, name), row: w.row, in: here.path, name: string(name), mount: here.mount}
	if w.o.OneFS && device(&w.row) != here.mount {
		return w.add(sub.in, sub.name, &sub.row, -1, "")
	}
	sub.base, sub.rel = here.base.take(), sub.name
	if here.rel != "" {
		sub.rel = here.rel + "/" + sub.name
	}
	if here.names != nil { // it was replaced by a directory after the listing
		w.push(sub)
		return nil
	}
	w.subs = append(w.subs, sub)
	return nil
}

// getdents reads the next names of a directory into the worker's buffer.
func (w *worker) getdents(fd int) (int, syscall.Errno) {
	var n uintptr
	var e syscall.Errno
	if w.direct {
		n, _, e = unix.RawSyscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&w.buf[0])), uintptr(len(w.buf)))
	} else {
		n, _, e = unix.Syscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&w.buf[0])), uintptr(len(w.buf)))
	}
	return int(n), e
}

// settle adds the row of a directory when all of its names have been processed.
func (w *worker) settle(t *tally) error {
	if t.pending.Add(-1) > 0 {
		return nil
	}
	entries := t.entries.Load()
	if !t.whole {
		entries = -1
	}
	return w.add(t.listing.in, t.listing.name, &t.listing.row, entries, t.reason)
}

// open opens the directory of a listing. If that fails it returns the reason, or "" if the
// directory is gone or was replaced.
func (w *worker) open(j *listing) (*dir, string) {
	if j.rel == "" {
		return j.base.take(), ""
	}
	fd, err := w.openBeneath(j.base.fd, j.rel)
	switch {
	case err == nil:
		return openedDir(fd), ""
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ESTALE):
		return nil, ""
	}
	return nil, "cannot be opened: " + err.Error()
}

// noOpenat2 is set if the kernel has no openat2, or a sandbox forbids it.
var noOpenat2 atomic.Bool

func (w *worker) openBeneath(base int, rel string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	if !noOpenat2.Load() {
		how := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
		path, err := unix.BytePtrFromString(rel)
		if err != nil {
			return -1, err
		}
		for {
			var fd uintptr
			var e syscall.Errno
			if w.direct {
				fd, _, e = unix.RawSyscall6(unix.SYS_OPENAT2, uintptr(base), uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&how)), unix.SizeofOpenHow, 0, 0)
			} else {
				fd, _, e = unix.Syscall6(unix.SYS_OPENAT2, uintptr(base), uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&how)), unix.SizeofOpenHow, 0, 0)
			}
			switch e {
			case 0:
				return int(fd), nil
			case unix.EINTR, unix.EAGAIN: // a rename interfered
				continue
			case unix.ENOSYS, unix.EPERM:
				noOpenat2.Store(true)
			default:
				return -1, e
			}
			break
		}
	}
	fd := base
	for rel != "" {
		var name string
		name, rel, _ = strings.Cut(rel, "/")
		next, err := unix.Openat(fd, name, flags, 0)
		if fd != base {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// add adds a row.
func (w *worker) add(in, name string, st *unix.Statx_t, entries int64, reason string) error {
	return w.addName(in, bytesOf(name), st, entries, reason)
}

func (w *worker) addName(in string, name []byte, st *unix.Statx_t, entries int64, reason string) error {
	w.own.Entries++
	kind := byte('?')
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		kind = 'f'
		w.own.Files++
		w.own.Bytes += int64(st.Size)
		w.own.Allocated += int64(st.Blocks) * 512
	case unix.S_IFDIR:
		kind = 'd'
		w.own.Directories++
	case unix.S_IFLNK:
		kind = 'l'
	case unix.S_IFBLK:
		kind = 'b'
	case unix.S_IFCHR:
		kind = 'c'
	case unix.S_IFIFO:
		kind = 'p'
	case unix.S_IFSOCK:
		kind = 's'
	}
	if reason != "" {
		w.problem(filepath.Join(in, string(name)), reason)
	}
	return w.group.add(in, name, kind, entries, reason, st)
}

// nanoseconds returns a time as nanoseconds since 1970, limited to the range of int64.
func nanoseconds(t unix.StatxTimestamp) int64 {
	const most = math.MaxInt64 / int64(time.Second)
	switch {
	case t.Sec >= most:
		return math.MaxInt64
	case t.Sec <= -most:
		return math.MinInt64
	}
	return t.Sec*1e9 + int64(t.Nsec)
}

// join appends a name to an absolute path.
func join(path string, name []byte) string {
	if path == "/" {
		return path + string(name)
	}
	return path + "/" + string(name)
}

// cstringLen returns the length of a name that ends with a 0.
func cstringLen(b []byte) int {
	if n := bytes.IndexByte(b, 0); n >= 0 {
		return n
	}
	return len(b)
}

// bytesOf returns the bytes of a string. They must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
