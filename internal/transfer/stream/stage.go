package stream

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/transfer"
)

// staged is a copy on its way to a name that does not exist yet: it is written to a stage,
// see package beneath, and renamed when it is complete.
type staged struct {
	place
	dir *beneath.Dir
	s   *beneath.Stage
}

// stage begins a copy to a place, or resumes one. Records of copies are in the directory
// records; if that is empty, no copy can be resumed.
func stage(final place, records string) (*staged, error) {
	parent := filepath.Dir(final.path)
	if err := final.mkdirAll(parent, 0o777); err != nil {
		return nil, fault(err)
	}
	root, err := final.openRoot(parent)
	if err != nil {
		return nil, fault(err)
	}
	defer root.Close()
	f, err := root.Open(".")
	if err != nil {
		return nil, fault(err)
	}
	c := &staged{dir: beneath.From(f, parent)}
	if c.s, err = c.dir.Stage(records, filepath.Base(final.path)); err != nil {
		var busy *beneath.BusyError
		if errors.As(err, &busy) {
			err = &busyError{fault(err), busy}
		} else {
			err = fault(err)
		}
		return nil, errors.Join(err, c.dir.Close())
	}
	if err := c.s.Free(); err != nil {
		return nil, errors.Join(fault(err), c.close())
	}
	c.place = place{path: c.s.Path()}
	return c, nil
}

// busyError is a fault that stageFor must recognise.
type busyError struct {
	error
	busy *beneath.BusyError
}

func (e *busyError) Unwrap() []error { return []error{e.error, e.busy} }

// stageFor is stage for a client. If the same client has lost its connection, its previous
// copy may end a moment later than the client returns.
func stageFor(ctx context.Context, final place, records string, q *request) (*staged, error) {
	for deadline := time.Now().Add(transfer.SilenceOf(q.Silence) / 2); ; {
		c, err := stage(final, records)
		var busy *beneath.BusyError
		if !errors.As(err, &busy) || time.Now().After(deadline) {
			return c, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// commit renames the copy to its name.
func (c *staged) commit() error {
	return fault(c.s.Commit())
}

// close releases the copy. Unless it was committed, it stays for a later call.
func (c *staged) close() error {
	return errors.Join(c.s.Close(), c.dir.Close())
}
