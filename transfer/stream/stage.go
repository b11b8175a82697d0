package stream

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"premix/internal/beneath"
	"premix/transfer"
)

// staged is a copy on its way to a name that is free: it is made in a stage, see package
// beneath, and has its name when it is whole.
type staged struct {
	place
	dir *beneath.Dir
	s   *beneath.Stage
}

// stage begins a copy to a place, or goes on with one. Records of copies are kept in the
// directory records; where that is empty, nothing is gone on with.
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

// busyError is a fault of which stageFor is to know the reason.
type busyError struct {
	error
	busy *beneath.BusyError
}

func (e *busyError) Unwrap() []error { return []error{e.error, e.busy} }

// stageFor is stage for a client. The premix that had lost the connection of the same
// client may take a moment longer to notice it than the client has.
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

// commit gives the copy its name.
func (c *staged) commit() error {
	return fault(c.s.Commit())
}

// close lets go of the copy, which stays for a later call unless it was committed.
func (c *staged) close() error {
	return errors.Join(c.s.Close(), c.dir.Close())
}
