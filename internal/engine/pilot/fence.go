package pilot

import (
	"os"
	"sync"

	"premix/internal/engine/local"
	"premix/internal/kit/owner"
)

// fence decides whether a worker may still write. It is first asked when the worker
// has the lock of its worker slot.
type fence struct {
	d      Directory
	mu     sync.Mutex // guards the rest
	l      *ledger
	worker *held
	began  bool
}

// check is used as a local.TaskOptions.Fence. It costs the opening of a file.
func (f *fence) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.l.read(); err != nil {
		return err
	}
	if f.worker.closed {
		return &ClosedError{f.worker.Worker}
	}
	if !f.began {
		if err := f.sign(); err != nil {
			return err
		}
		f.began = true
	}
	if f.l.drain {
		return local.ErrDrain
	}
	return nil
}

// sign writes the worker's number into its lock, for the dispatcher.
func (f *fence) sign() error {
	lock, err := owner.OpenFile(f.d.Lock(f.worker.SlotName()), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = lock.WriteString(beganLine(f.worker.Worker))
	return err
}
