package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"premix/store/cache"
)

const (
	// usualProfile is prefetched where a mount names none, if the store has it.
	usualProfile = "start"
	noProfile    = "none"
)

// background begins what a mount fetches without being asked: the profile first,
// then all, if that was wished. It has the tree open for as long.
func (d *daemon) background(m *mount) {
	d.mu.Lock()
	src := m.src
	d.mu.Unlock()
	if src == nil {
		return
	}
	t, err := d.cache.Tree(m.ctx, m.entry.Tree, nil)
	if err != nil {
		d.trouble(m, err)
		return
	}
	go func() {
		defer t.Close()
		d.prefetch(m, t, src)
		if m.entry.Eager || m.entry.Background > 0 {
			d.complete(m, t)
		}
	}()
}

// prefetch fetches the mount's profile and what it names.
func (d *daemon) prefetch(m *mount, t *cache.Tree, src *source) {
	name, asked := m.entry.Profile, true
	switch {
	case name == noProfile || m.entry.Record != "" && name == "":
		// What is recorded should not depend on an earlier profile.
		d.say(m, "none")
		return
	case name == "":
		name, asked = usualProfile, false
	}
	if t.IsComplete() {
		d.say(m, "not needed: the tree is complete")
		return
	}
	d.say(m, name+": looked up")
	p, err := src.profile(m.ctx, t, name)
	if err == nil && p == nil {
		if asked {
			d.trouble(m, fmt.Errorf("the store has no profile %s of this tree", name))
		}
		d.say(m, name+": the store has none")
		return
	}
	if err == nil {
		d.say(m, fmt.Sprintf("%s: fetching %d chunks", name, len(p.Chunks)))
		err = t.Prefetch(m.ctx, p, 0)
	}
	if err != nil {
		if m.ctx.Err() == nil {
			d.trouble(m, fmt.Errorf("profile %s: %w", name, err))
		}
		d.say(m, name+": failed, reads fetch what they need")
		return
	}
	d.say(m, fmt.Sprintf("%s: %d chunks are here", name, len(p.Chunks)))
}

// complete fetches all of the tree, again after a while where that fails.
func (d *daemon) complete(m *mount, t *cache.Tree) {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		rate := m.entry.Background
		if m.entry.Eager {
			rate = 0
		}
		err := t.Complete(m.ctx, rate)
		if err == nil || m.ctx.Err() != nil {
			return
		}
		d.trouble(m, fmt.Errorf("fetch all: %w", err))
		var full *cache.NoRoomError
		if errors.As(err, &full) {
			return // room does not come by itself
		}
		if !sleep(m.ctx, wait) {
			return
		}
	}
}

// say notes the state of a mount's prefetch.
func (d *daemon) say(m *mount, state string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.profile = state
}

// trouble notes what went wrong behind a mount that works.
func (d *daemon) trouble(m *mount, err error) {
	d.log.Warn("trouble", "ref", m.entry.Ref, "dir", m.entry.Dir, "error", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	m.cause = err
}

// Waits between tries to fetch all of a tree.
const (
	firstWait = time.Second
	lastWait  = time.Minute
)

// sleep returns false when ctx has ended.
func sleep(ctx context.Context, t time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(t):
		return true
	}
}
