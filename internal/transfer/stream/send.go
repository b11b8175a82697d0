package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"premix/internal/store"
	"premix/internal/store/object"
)

const (
	// maxStreams is the highest number of streams.
	maxStreams = 64
	// batchSize is the number of bytes of data in a batch of offers, and batchMost the
	// highest number of chunks in it.
	batchSize = 8 << 20
	batchMost = 512
	// listMost is the number of entries sent at once; the first lists are shorter, so that
	// their data can begin earlier.
	listMost = 1024
	// aheadMost is the highest number of chunks that wait for a stream. They are places,
	// not bytes: a chunk is read just before it is sent.
	aheadMost = 1024
	// heldMost is the number of bytes of attributes at which a list is sent.
	heldMost = 1 << 20
	// early is the number of bytes that take the control connection while the first stream
	// is being set up, and patience the time after which the remaining data takes it, too.
	early    = 1 << 20
	patience = time.Second
)

// sender sends a file or a tree.
type sender struct {
	ctl  *control
	at   place
	keep Keep

	files sync.Map // of uint32 to *sourceFile, while data of it may still be sent
	queue chan chunk
	sent  atomic.Int64

	first   chan struct{} // closed when the first stream exists
	once    sync.Once     // closes it
	mu      sync.Mutex    // guards the fields below; never held during a send
	streams []*stream
	total   totals
	batches map[uint32][]chunk // offered, and not answered yet
	number  uint32             // of the next batch
	answers chan struct{}      // signals an answer
	lost    failures
	single  bool                 // the source is a single file: the copy is complete or fails
	linked  map[[2]uint64]uint32 // entries of files with several names, by device and inode
	names   map[uint32][]string  // additional names of an entry
}

// sourceFile is a file that is being sent.
type sourceFile struct {
	path  string
	size  int64
	mtime int64
	// done is the number of its bytes that were sent or need not be sent.
	done atomic.Int64

	// The fields below are guarded by the sender's mu.
	sum   sum
	whole bool // sum has been added to the sum of the copy
	lost  bool // it is left out
}

func newSender(ctl *control, at place) *sender {
	return &sender{ctl: ctl, at: at, queue: make(chan chunk, aheadMost), batches: map[uint32][]chunk{}, linked: map[[2]uint64]uint32{}, names: map[uint32][]string{}, answers: make(chan struct{}, 1), first: make(chan struct{})}
}

// file returns the file of an entry.
func (s *sender) file(i uint32) *sourceFile {
	f, _ := s.files.Load(i)
	return f.(*sourceFile)
}

// settle records that a piece of a file is done, and forgets a file that is complete.
func (s *sender) settle(c *chunk) {
	f := s.file(c.entry)
	if f.done.Add(int64(c.size)) != f.size {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !f.lost {
		f.whole = true
		s.total.Sum.plus(&f.sum)
		s.files.Delete(c.entry)
	}
}

// survive returns nil if the error means that a file of a tree cannot be read, or changes:
// the file is then left out, and the other end is informed.
func (s *sender) survive(i uint32, file *sourceFile, err error) error {
	var source *SourceError
	if !errors.As(err, &source) {
		return err
	}
	s.mu.Lock()
	if s.single {
		s.mu.Unlock()
		return err
	}
	if file.lost {
		s.mu.Unlock()
		return nil
	}
	if file.lost = true; file.whole {
		s.total.Sum.minus(&file.sum)
	}
	s.total.Files--
	s.total.Bytes -= file.size
	rel := s.rel(file.path)
	s.lost.add(rel, source.short())
	for _, name := range s.names[i] {
		s.total.Files--
		s.lost.add(name, "it is another name of "+rel)
	}
	s.mu.Unlock()
	return s.ctl.sendJSON(kindLost, &lost{int(i), []byte(rel), source.short()})
}

// miss records a path that cannot be read and has no entry.
func (s *sender) miss(p string, err error) error {
	rel, reason := s.rel(p), reasonOf(err)
	s.mu.Lock()
	s.lost.add(rel, reason)
	s.mu.Unlock()
	return s.ctl.sendJSON(kindLost, &lost{-1, []byte(rel), reason})
}

// rel returns a path relative to the source.
func (s *sender) rel(p string) string {
	if rel, err := filepath.Rel(s.at.path, p); err == nil {
		return rel
	}
	return p
}

// run passes all chunks to the streams, and closes the queue. After an error the queue
// stays open, because a goroutine may still write to it.
func (s *sender) run(ctx context.Context, how start) error {
	work, inner := errgroup.WithContext(ctx) // done when work is
	work.SetLimit(runtime.GOMAXPROCS(0))
	err := s.walk(inner, how, work)
	if werr := work.Wait(); werr != nil {
		err = werr
	}
	if err != nil {
		return err
	}
	// Offers that were not answered may still be requested.
	for {
		s.mu.Lock()
		open := len(s.batches)
		s.mu.Unlock()
		if open == 0 {
			close(s.queue)
			return nil
		}
		select {
		case <-s.answers:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// walk lists all entries, and starts the work on their content.
func (s *sender) walk(ctx context.Context, how start, work *errgroup.Group) error {
	var list []entry
	first, most, held := uint32(0), 16, 0
	flush := func() error {
		if len(list) == 0 {
			return nil
		}
		if err := s.ctl.send(kindEntries, packEntries(list)); err != nil {
			return err
		}
		group := s.group(how, work)
		for i := range list {
			if list[i].kind == entryFile && list[i].size > 0 {
				if err := group.add(ctx, first+uint32(i), list[i].size); err != nil {
					return err
				}
			}
		}
		if err := group.flush(ctx); err != nil {
			return err
		}
		first, list, most, held = first+uint32(len(list)), list[:0], min(listMost, 2*most), 0
		return nil
	}
	if err := s.at.top(); err != nil {
		return &SourceError{Reason: err.Error(), cause: err}
	}
	err := s.at.walk(func(p string, d fs.DirEntry, err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil && p != s.at.path {
			return s.miss(p, err)
		}
		if err != nil {
			return &SourceError{Reason: err.Error(), cause: err}
		}
		var info fs.FileInfo
		switch {
		case p == s.at.path:
			info, err = s.at.stat(p) // if the source is a link, its target is copied
		case s.at.jail != nil:
			info, err = s.at.lstat(p) // d uses a path that may lead to another file by now
		default:
			info, err = d.Info()
		}
		var e entry
		ok := false
		if err == nil {
			e, ok, err = s.entry(p, info)
		}
		if err != nil {
			if p == s.at.path {
				return &SourceError{Reason: err.Error(), cause: err}
			}
			if err := s.miss(p, err); err != nil {
				return err
			}
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		s.mu.Lock()
		switch {
		case !ok:
			s.total.Skipped++
			s.mu.Unlock()
			return nil
		case e.kind == entryFile:
			s.total.Files++
			s.total.Bytes += e.size
		}
		n := s.total.Entries
		s.total.Entries++
		if s.keep.HardLinks && e.kind == entryFile {
			s.together(&e, uint32(n), info)
		}
		s.single = n == 0 && e.kind == entryFile
		s.mu.Unlock()
		if e.kind == entryFile && e.size > 0 {
			s.files.Store(uint32(n), &sourceFile{path: p, size: e.size, mtime: e.mtime})
		}
		for _, a := range e.attributes {
			held += len(a.value)
		}
		if list = append(list, e); len(list) < most && held < heldMost {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	if s.total.Entries == 0 {
		return &SourceError{Reason: s.at.path + " is neither a file nor a directory"}
	}
	return flush()
}

// together makes an entry another name of a file, if it is one. Callers hold mu.
func (s *sender) together(e *entry, n uint32, info fs.FileInfo) {
	_, _, names, id := ownerOf(info)
	if names < 2 {
		return
	}
	first, ok := s.linked[id]
	if !ok {
		s.linked[id] = n
		return
	}
	s.total.Bytes -= e.size
	e.kind, e.size, e.attributes = entryHard, int64(first), nil
	if f, ok := s.files.Load(first); ok && f.(*sourceFile).lost {
		s.total.Files--
		s.lost.add(e.path, "it is another name of "+s.rel(f.(*sourceFile).path))
		return
	}
	s.names[first] = append(s.names[first], e.path)
}

func (s *sender) entry(p string, info fs.FileInfo) (e entry, ok bool, err error) {
	rel, err := filepath.Rel(s.at.path, p)
	if err != nil {
		return e, false, err
	}
	if rel == "." {
		rel = ""
	}
	e = entry{path: rel, mode: info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky), mtime: info.ModTime().UnixNano()}
	switch {
	case info.Mode().IsRegular():
		e.kind, e.size = entryFile, info.Size()
	case info.IsDir():
		e.kind = entryDir
	case info.Mode()&fs.ModeSymlink != 0:
		e.kind = entryLink
		e.link, err = s.at.readlink(p)
	default:
		return e, false, nil
	}
	if s.keep.Owners {
		e.uid, e.gid, _, _ = ownerOf(info)
	}
	if err == nil && e.kind != entryLink && (s.keep.Attributes || s.keep.ACLs) {
		e.attributes, err = s.keep.readAttributes(s.at, p)
	}
	return e, true, err
}

// group processes the files of one list.
type group struct {
	s     *sender
	how   start
	work  *errgroup.Group
	small []chunk // whole files, to be offered in one batch
	size  int64
}

func (s *sender) group(how start, work *errgroup.Group) *group {
	return &group{s: s, how: how, work: work}
}

// add adds a file.
func (g *group) add(ctx context.Context, i uint32, size int64) error {
	switch {
	case g.how.Content && size >= store.LargeMin:
		g.work.Go(func() error { return g.s.cutByContent(ctx, i) })
		return nil
	case size <= minPiece && !g.how.Offer:
		return g.s.enqueue(ctx, chunk{entry: i, size: uint32(size)})
	case size <= minPiece:
		g.small = append(g.small, chunk{entry: i, size: uint32(size)})
		if g.size += size; g.size >= batchSize || len(g.small) >= batchMost {
			return g.flush(ctx)
		}
		return nil
	}
	return g.s.cutByPlace(ctx, i, g)
}

// flush sends the digests of the collected small files to the receiver, in the background.
func (g *group) flush(ctx context.Context) error {
	if len(g.small) == 0 {
		return nil
	}
	batch := g.small
	g.small, g.size = nil, 0
	g.work.Go(func() error {
		read := batch[:0]
		for _, c := range batch {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			file := g.s.file(c.entry)
			err := g.s.digest(&c)
			if err == nil {
				read = append(read, c)
			} else if err = g.s.survive(c.entry, file, err); err != nil {
				return err
			}
		}
		if len(read) == 0 {
			return nil
		}
		return g.s.offer(read)
	})
	return nil
}

// enqueue passes a chunk to the streams.
func (s *sender) enqueue(ctx context.Context, c chunk) error {
	select {
	case s.queue <- c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pieceOf returns the size of the next piece of a file that is cut by place, with rest
// bytes left: small enough that all streams have pieces until the end, and small at the
// end, because the copy waits for the last piece of the slowest stream.
func pieceOf(size, rest int64) int64 {
	return max(min(size/256, rest/64, maxPiece)>>16<<16, minPiece)
}

// cutByPlace sends, or offers, a file in pieces of equal size.
func (s *sender) cutByPlace(ctx context.Context, i uint32, g *group) error {
	file := s.file(i)
	return s.survive(i, file, s.pieces(ctx, i, file, g))
}

func (s *sender) pieces(ctx context.Context, i uint32, file *sourceFile, g *group) error {
	f, err := s.at.open(file.path)
	if err != nil {
		return &SourceError{Reason: err.Error(), cause: err}
	}
	defer f.Close()
	for at := int64(0); at < file.size; {
		from := nextData(f, at, file.size)
		if err := s.hole(i, at, from-at); err != nil {
			return err
		}
		to := nextHole(f, from, file.size)
		for at = from; at < to; {
			c := chunk{entry: i, offset: at, size: uint32(min(pieceOf(file.size, file.size-at), to-at))}
			at += int64(c.size)
			if !g.how.Offer {
				err = s.enqueue(ctx, c)
			} else if g.small = append(g.small, c); g.size+int64(c.size) >= batchSize {
				err = g.flush(ctx)
			} else {
				g.size += int64(c.size)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// nextData returns where data begins at or after off, at most size.
func nextData(f *os.File, off, size int64) int64 {
	next, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size
	case err != nil:
		return off // the file system does not report holes
	}
	return min(size, max(off, next))
}

// nextHole returns where the data that begins at off ends.
func nextHole(f *os.File, off, size int64) int64 {
	next, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
	if err != nil {
		return size
	}
	return min(size, max(off, next))
}

// hole sends a hole.
func (s *sender) hole(i uint32, at, length int64) error {
	var list []chunk
	for length > 0 {
		c := chunk{entry: i, offset: at, size: uint32(min(maxHole, length))}
		at, length = at+int64(c.size), length-int64(c.size)
		list = append(list, c)
		s.count(&c)
		s.settle(&c)
	}
	if len(list) == 0 {
		return nil
	}
	return s.ctl.send(kindChunks, binary.LittleEndian.AppendUint32(nil, 0), packChunks(list))
}

// cutByContent offers a file in the chunks of a store.
func (s *sender) cutByContent(ctx context.Context, i uint32) error {
	file := s.file(i)
	return s.survive(i, file, s.chunks(ctx, i, file))
}

func (s *sender) chunks(ctx context.Context, i uint32, file *sourceFile) error {
	f, err := s.at.open(file.path)
	if err != nil {
		return &SourceError{Reason: err.Error(), cause: err}
	}
	defer f.Close()
	var batch []chunk
	var size int64
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := s.offer(batch)
		batch, size = nil, 0
		return err
	}
	err = cutFile(ctx, f, file.size, func(at int64, length int64, data []byte) error {
		if data == nil {
			return s.hole(i, at, length)
		}
		batch = append(batch, chunk{entry: i, offset: at, size: uint32(len(data)), digest: object.Sum(data)})
		if size += length; size < batchSize {
			return nil
		}
		return flush()
	})
	var source *SourceError
	if err != nil {
		if context.Cause(ctx) == nil && !errors.As(err, &source) && errors.Is(err, errShort) {
			return &SourceError{Reason: file.path + " changes while it is copied", path: file.path}
		}
		return err
	}
	if err := unchanged(f, file); err != nil {
		return err
	}
	return flush()
}

// digest sets the digest of a chunk.
func (s *sender) digest(c *chunk) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	data := (*buf)[:c.size]
	if err := s.read(c, data); err != nil {
		return err
	}
	c.digest = object.Sum(data)
	return nil
}

// read reads the bytes of a chunk.
func (s *sender) read(c *chunk, data []byte) error {
	file := s.file(c.entry)
	f, err := s.at.open(file.path)
	if err != nil {
		return &SourceError{Reason: err.Error(), cause: err}
	}
	defer f.Close()
	if _, err := f.ReadAt(data, c.offset); err != nil {
		return &SourceError{Reason: fmt.Sprintf("%s changes while it is copied, or cannot be read: %v", file.path, reasonOf(err)), path: file.path}
	}
	return unchanged(f, file)
}

func unchanged(f *os.File, file *sourceFile) error {
	info, err := f.Stat()
	if err == nil && info.Size() == file.size && info.ModTime().UnixNano() == file.mtime {
		return nil
	}
	return &SourceError{Reason: file.path + " changes while it is copied", path: file.path}
}

// count adds a chunk to the totals of the copy.
func (s *sender) count(c *chunk) {
	file := s.file(c.entry)
	s.mu.Lock()
	defer s.mu.Unlock()
	file.sum.add(c)
}

// offer sends a batch of offers.
func (s *sender) offer(batch []chunk) error {
	s.mu.Lock()
	s.number++ // 0 is for holes, which are not answered
	n := s.number
	s.batches[n] = batch
	for i := range batch {
		s.file(batch[i].entry).sum.add(&batch[i])
	}
	s.mu.Unlock()
	return s.ctl.send(kindChunks, binary.LittleEndian.AppendUint32(nil, n), packChunks(batch))
}

// answer handles the receiver's answer to a batch, and sends the requested chunks.
func (s *sender) answer(ctx context.Context, payload []byte) error {
	if len(payload) < 4 {
		return errForm
	}
	n, bits := binary.LittleEndian.Uint32(payload), payload[4:]
	s.mu.Lock()
	batch, ok := s.batches[n]
	s.mu.Unlock()
	if !ok || len(bits) != (len(batch)+7)/8 {
		return errForm
	}
	for i, c := range batch {
		if bits[i/8]>>(i%8)&1 == 0 {
			s.settle(&c)
		} else if err := s.enqueue(ctx, c); err != nil {
			return err
		}
	}
	s.mu.Lock()
	delete(s.batches, n)
	s.mu.Unlock()
	select {
	case s.answers <- struct{}{}:
	default: // a signal is pending already
	}
	return nil
}

// frame reads a chunk and returns its frame, in buf, or nil if the file is left out. If the
// chunk has a digest already, it was offered with it.
func (s *sender) frame(c chunk, buf *[]byte) ([]byte, error) {
	file := s.file(c.entry)
	s.mu.Lock()
	left := file.lost
	s.mu.Unlock()
	if left {
		return nil, nil
	}
	b, err := s.fill(c, buf)
	if err != nil {
		return nil, s.survive(c.entry, file, err)
	}
	return b, nil
}

func (s *sender) fill(c chunk, buf *[]byte) ([]byte, error) {
	b := (*buf)[:chunkHeader+int(c.size)]
	data := b[chunkHeader:]
	if err := s.read(&c, data); err != nil {
		return nil, err
	}
	d := object.Sum(data)
	if c.digest.IsZero() {
		c.digest = d
		s.count(&c)
	} else if d != c.digest {
		path := s.file(c.entry).path
		return nil, &SourceError{Reason: path + " changes while it is copied", path: path}
	}
	c.append(b[:0])
	s.sent.Add(int64(c.size))
	s.settle(&c)
	return b, nil
}

// serve sends chunks through a stream until none are left.
func (s *sender) serve(ctx context.Context, t *stream) error {
	s.mu.Lock()
	s.streams = append(s.streams, t)
	s.mu.Unlock()
	s.once.Do(func() { close(s.first) })
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		c, ok, err := s.next(ctx, t.flush)
		if err != nil {
			return err
		}
		if !ok {
			return t.flush()
		}
		b, err := s.frame(c, buf)
		if err != nil {
			return err
		}
		if b == nil {
			continue
		}
		if err := writeFrame(t.tls, kindData, b); err != nil {
			return &PeerError{Err: err}
		}
	}
}

// next returns the next chunk to send. It calls idle before it waits for one.
func (s *sender) next(ctx context.Context, idle func() error) (c chunk, ok bool, err error) {
	select {
	case c, ok = <-s.queue:
		return c, ok, nil
	default:
	}
	if err := idle(); err != nil {
		return c, false, err
	}
	select {
	case c, ok = <-s.queue:
		return c, ok, nil
	case <-ctx.Done():
		return c, false, context.Cause(ctx)
	}
}

// inline sends chunks through the control connection until there is a stream: the first
// early bytes at once, and the others if no stream appears within patience, or can appear.
func (s *sender) inline(ctx context.Context, none <-chan struct{}) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for started := 0; ; {
		if started >= early {
			select {
			case <-s.first:
				return nil
			case <-none:
			case <-t.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			started = -1
		}
		select {
		case <-s.first: // which the other select may miss
			return nil
		default:
		}
		var c chunk
		ok := false
		select {
		case <-s.first:
			return nil
		case c, ok = <-s.queue:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !ok {
			return nil
		}
		b, err := s.frame(c, buf)
		if err != nil {
			return err
		}
		if b == nil {
			continue
		}
		if err := s.ctl.send(kindData, b); err != nil {
			return err
		}
		if started >= 0 {
			started += len(b)
		}
	}
}

// state returns the number of streams, and how many segments they have retransmitted; 0
// with BBR, which does not slow down for them.
func (s *sender) state() (streams int, resent uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.streams {
		if n, congestion := t.resent(); congestion != "bbr" {
			resent += uint64(n)
		}
	}
	return len(s.streams), resent
}

// grow requests more streams if loss slows the existing ones.
func (s *sender) grow(ctx context.Context, more func(n int) error) error {
	const interval = 400 * time.Millisecond
	t := time.NewTicker(interval)
	defer t.Stop()
	var sent, rate int64
	var resent uint64
	before := int64(0) // rate at the last doubling
	wait := 0
	for {
		select {
		case <-ctx.Done():
			return nil // all data has been sent
		case <-t.C:
		}
		n, r := s.state()
		now := s.sent.Load()
		rate, sent = now-sent, now
		lost := r > resent
		resent = r
		if wait > 0 {
			wait--
			continue
		}
		if n == 0 || !lost || len(s.queue) == 0 || n >= maxStreams {
			continue
		}
		if rate < before+before/8 {
			return nil // the last doubling did not help
		}
		before, wait = rate, 2
		if err := more(min(n, maxStreams-n)); err != nil {
			return err
		}
	}
}
