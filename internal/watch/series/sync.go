package series

import (
	"context"
	"sync"
	"time"
)

// groupSync lets many callers of Sync share one write to the disk.
type groupSync struct {
	mu      sync.Mutex
	running bool
	waiting []chan error
}

// gatherFor is the time for which further callers are waited for.
const gatherFor = 20 * time.Millisecond

// Sync returns when all data that was passed to the DB before is on the disk: samples survive
// a crash of the machine, tasks and events a kill of the process. It returns the error that
// prevents it; the data is then still in memory.
func (db *DB) Sync(ctx context.Context) error {
	g := &db.syncing
	done := make(chan error, 1)
	g.mu.Lock()
	g.waiting = append(g.waiting, done)
	if !g.running {
		g.running = true
		go db.syncAll()
	}
	g.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncAll serves callers of Sync until there are none.
func (db *DB) syncAll() {
	g := &db.syncing
	for {
		time.Sleep(gatherFor)
		g.mu.Lock()
		waiting := g.waiting
		g.waiting = nil
		if len(waiting) == 0 {
			g.running = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		db.flush(true)
		db.mu.RLock()
		err := db.trouble
		db.mu.RUnlock()
		for _, done := range waiting {
			done <- err
		}
	}
}
