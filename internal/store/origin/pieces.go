package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"premix/internal/kit/dial"
)

// A file that is requested in pieces, each over a connection of its own, arrives after one
// round trip where one connection would need several, since a connection is slow at first:
// it begins with ten packets (RFC 6928).
const (
	// pieces is the number of pieces, and of connections.
	pieces = dial.Spares + 1
	// pieceSize is the size of all pieces but the last, in bytes. With the header of a
	// response it fits into ten packets of a network with an MTU of 1500.
	pieceSize = 13 << 10
)

// errPieces is returned when a file could not be fetched in pieces, for example from a server
// that ignores ranges, or since it changed meanwhile.
var errPieces = errors.New("the file does not come in pieces")

// joiner puts a file together whose pieces arrive at the same time.
type joiner struct {
	got func(soFar []byte)

	mu   sync.Mutex // held while got runs
	have [pieces][]byte
	done [pieces]bool
	next int    // the first piece of which not all is in all
	used int    // bytes of it that are
	all  []byte // the beginning of the file
}

// add records the bytes of piece k so far. done is set if there will be no more.
func (j *joiner) add(k int, soFar []byte, done bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.have[k], j.done[k] = soFar, done
	before := len(j.all)
	for {
		j.all = append(j.all, j.have[j.next][j.used:]...)
		j.used = len(j.have[j.next])
		if !j.done[j.next] || j.used < pieceSize || j.next == pieces-1 {
			break
		}
		j.next, j.used = j.next+1, 0
	}
	if len(j.all) > before && j.got != nil {
		j.got(j.all)
	}
}

// inPieces is once for a file that is requested in pieces. The error is errPieces unless the
// file could not be had in any other way over this route.
func (w *web) inPieces(ctx context.Context, r *route, req request) ([]byte, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	j := &joiner{got: req.got}
	var errs [pieces]error
	var versions [pieces]string
	var wait sync.WaitGroup
	for k := range pieces {
		part := req
		part.offset, part.length, part.version = int64(k)*pieceSize, pieceSize, &versions[k]
		if k == pieces-1 {
			part.length = req.limit + 1 - part.offset
		}
		part.got = func(soFar []byte) { j.add(k, soFar, false) }
		wait.Go(func() {
			b, err := w.once(inner, r, part)
			if err != nil {
				errs[k] = err
				cancel() // the other pieces are of no use
				return
			}
			j.add(k, b, true)
		})
	}
	wait.Wait()
	switch err := errors.Join(errs[:]...); {
	case err == nil && slices.ContainsFunc(versions[:], func(v string) bool { return v != versions[0] && !strings.HasPrefix(versions[0], v+" ") }):
		return nil, errPieces
	case err == nil && int64(len(j.all)) > req.limit:
		return nil, &Error{Origin: w.name, Name: req.name, Kind: TooLarge, Err: fmt.Errorf("more than %d bytes", req.limit)}
	case err == nil:
		return j.all, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	for _, err := range errs {
		switch KindOf(err) {
		case NotFound, Refused, Unreachable, TimedOut:
			return nil, err
		}
	}
	return nil, errPieces
}
