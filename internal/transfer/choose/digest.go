package choose

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/transfer"
	"premix/internal/transfer/link"
	"premix/internal/transfer/peer"
	"premix/internal/transfer/testbed"
)

// digest is a SHA-256 that is computed during a copy, so that little is left to read at the
// end.
type digest struct {
	there *peer.Server // computes it at the peer
	here  chan answer  // or receives it from here
	stop  context.CancelFunc
	known string
}

type answer struct {
	sum string
	err error
}

// digestHere starts to compute a digest here.
func digestHere(ctx context.Context, read func(context.Context) (string, error)) *digest {
	ctx, stop := context.WithCancel(ctx)
	d := &digest{here: make(chan answer, 1), stop: stop}
	go func() {
		sum, err := read(ctx)
		d.here <- answer{sum, err}
	}()
	return d
}

// wait waits for the digest.
func (d *digest) wait(ctx context.Context) (string, error) {
	switch {
	case d.known != "":
		return d.known, nil
	case d.there != nil:
		text, err := d.there.Wait(ctx)
		if err != nil {
			return "", err
		}
		d.known = testbed.DigestOf(text)
		return d.known, nil
	}
	select {
	case a := <-d.here:
		d.here <- a // for further calls
		return a.sum, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// drop stops the computation of a digest, which may be nil.
func (r *run) drop(ctx context.Context, d *digest) {
	switch {
	case d == nil:
	case d.there != nil && d.known == "":
		r.stop(ctx, d.there)
	case d.stop != nil:
		d.stop()
	}
}

// forget stops the computations of a copy.
func (r *run) forget(ctx context.Context) { r.drop(ctx, r.source) }

// watch begins to read both ends: the source, and the target while it is written. It
// returns the digest of the target, or nil if the target cannot be read while it is
// written.
func (r *run) watch(ctx context.Context) (*digest, error) {
	tree := r.d.Files > 1
	if r.Direction == transfer.Get {
		if r.source == nil {
			v, err := r.s.Serve(ctx, testbed.DigestScript(r.remote, tree), path.Join(r.s.Temp(), "source"))
			if err != nil {
				return nil, err
			}
			r.source = &digest{there: v}
		}
		if _, err := os.Lstat(r.local); tree || err == nil {
			return nil, nil
		}
		return digestHere(ctx, func(ctx context.Context) (string, error) { return follow(ctx, r.local, r.d.Size) }), nil
	}
	if r.source == nil {
		r.source = digestHere(ctx, func(ctx context.Context) (string, error) { return testbed.Digest(ctx, r.local) })
	}
	if tree {
		return nil, nil
	}
	// tail ends when head has read enough.
	q := link.Quote(r.there.path())
	const script = `[ ! -e "$f" ] || exit 0; until [ -e "$f" ]; do sleep 0.1; done; tail -c +1 -f "$f" 2>/dev/null | head -c "$n" | sha256sum`
	v, err := r.s.Serve(ctx, "f="+q+"; n="+strconv.FormatInt(r.d.Size, 10)+"; "+script, path.Join(r.s.Temp(), "target"))
	if err != nil {
		return nil, err
	}
	return &digest{there: v}, nil
}

// errSkips is returned for a file that is not written from its beginning to its end.
var errSkips = errors.New("the file has holes")

// behind is the number of bytes by which follow stays behind the end of a file: close to
// the end, writes may come out of order.
const behind = 4 << 20

// follow computes the digest of a file while it is written, for as long as the writes seem
// to be in order. The caller must compare it with the source's.
func follow(ctx context.Context, at string, size int64) (string, error) {
	h := sha256.New()
	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	for done := int64(0); done < size; {
		var s unix.Stat_t
		if f == nil {
			var err error
			if f, err = os.Open(at); err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", err
			}
		}
		upTo := int64(0)
		if f != nil {
			if err := unix.Fstat(int(f.Fd()), &s); err != nil {
				return "", err
			}
			if s.Size-s.Blocks*512 > behind {
				return "", errSkips
			}
			if upTo = s.Size; upTo < size {
				upTo -= behind
			}
		}
		if upTo > done {
			n, err := io.Copy(h, io.NewSectionReader(f, done, upTo-done))
			done += n
			if err != nil || n == 0 {
				return "", errors.Join(errSkips, err)
			}
			continue
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// verify compares both ends. If target is nil or differs, it reads the target again.
func (r *run) verify(ctx context.Context, target *digest) error {
	want, err := r.source.wait(ctx)
	if err != nil {
		return err
	}
	if target != nil && r.whole(ctx) {
		if sum, err := target.wait(ctx); err == nil && sum == want {
			r.d.SHA256, r.d.Verified = sum, "SHA-256"
			return nil
		}
	}
	r.drop(ctx, target)
	var sum string
	if tree := r.d.Files > 1; r.Direction == transfer.Get {
		sum, err = testbed.Digest(ctx, r.local)
	} else {
		sum, err = testbed.DigestAt(ctx, r.s, r.there.path(), tree)
	}
	if err != nil {
		return err
	}
	if sum != want {
		return errors.New("the copy differs from the source by its SHA-256")
	}
	r.d.SHA256, r.d.Verified = sum, "SHA-256"
	return nil
}

// whole reports whether the target has the expected size. Following a file that has not
// would never end.
func (r *run) whole(ctx context.Context) bool {
	if r.Direction == transfer.Get {
		info, err := os.Stat(r.local)
		return err == nil && info.Size() == r.d.Size
	}
	_, err := r.s.Run(ctx, "[ \"$(wc -c <"+link.Quote(r.there.path())+")\" = "+strconv.FormatInt(r.d.Size, 10)+" ]")
	return err == nil
}
