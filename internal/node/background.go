package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"premix/internal/store/cache"
	"premix/internal/store/tree"
)

const (
	// usualProfile is prefetched if a mount does not name a profile and the store has
	// it.
	usualProfile = tree.DefaultProfile
	noProfile    = "none"
)

// lookup is a profile being looked up: the content of its object, nil if the store has
// no profile of the name.
type lookup struct {
	name    string
	asked   bool          // the user named it
	done    chan struct{} // closed when content and err are known
	content []byte
	err     error
	over    chan struct{} // closed when the prefetch of the profile has ended
}

// lookUp begins to look up the profile of a mount; it returns nil if no profile is
// wanted. It needs only the tree's digest, so that the tree's manifest can be fetched
// at the same time.
func (d *daemon) lookUp(m *mount, src *source) *lookup {
	l := &lookup{name: m.entry.Profile, asked: true, done: make(chan struct{}), over: make(chan struct{})}
	switch {
	case src == nil:
		return nil
	case l.name == noProfile || m.entry.Record != "" && l.name == "":
		// A recording must not depend on an earlier profile.
		d.say(m, "none")
		return nil
	case l.name == "":
		l.name, l.asked = usualProfile, false
	}
	if t, err := d.cache.Tree(m.ctx, m.entry.Tree, nil); err == nil {
		complete := t.IsComplete()
		_ = t.Close() // only decrements a count, and cannot fail
		if complete {
			d.say(m, "not needed: the tree is complete")
			return nil
		}
	}
	d.say(m, l.name+": looked up")
	go func() {
		defer close(l.done)
		l.content, l.err = src.profile(m.ctx, m.entry.Tree, l.name)
	}()
	return l
}

// background starts the fetches of a mount that no reader waits for: first the profile,
// if there is one, then the whole tree, if that was requested. It keeps the tree open
// until they end.
func (d *daemon) background(m *mount, l *lookup) {
	d.mu.Lock()
	src := m.src
	d.mu.Unlock()
	if src == nil {
		return
	}
	t, err := d.cache.Tree(m.ctx, m.entry.Tree, nil)
	if err != nil {
		d.trouble(m, err)
		if l != nil {
			close(l.over)
		}
		return
	}
	guided := func() {}
	if l != nil {
		guided = t.Guide()
	}
	go func() {
		defer t.Close()
		profiled := l != nil && d.prefetch(m, t, l)
		if l != nil {
			close(l.over)
		}
		started := make(chan struct{})
		// After the profile the next reads are unknown, so speculative fetches begin. A
		// recording contains only reads that were requested, and nothing else is
		// fetched while it is made.
		guess := func() {
			guided()
			if m.entry.Record == "" {
				t.Speculate()
			}
		}
		if !profiled {
			guess()
		} else {
			go func() {
				defer close(started)
				sleep(m.ctx, startTime)
				guess()
			}()
		}
		switch {
		case m.entry.Eager || m.entry.Background > 0:
			d.complete(m, t)
		case profiled:
			<-started
			d.completeParts(m, t)
		}
	}()
}

// prefetch waits for a mount's profile and fetches its chunks. It reports whether there
// is a profile.
func (d *daemon) prefetch(m *mount, t *cache.Tree, l *lookup) bool {
	<-l.done
	if l.err == nil && l.content == nil {
		if l.asked {
			d.trouble(m, fmt.Errorf("the store has no profile %s of this tree", l.name))
		}
		d.say(m, l.name+": the store has none")
		return false
	}
	err := l.err
	var p *tree.Profile
	if err == nil {
		p, err = tree.ParseProfile(l.content, t.Digest(), t.Manifest().Chunks())
	}
	if err == nil {
		d.say(m, fmt.Sprintf("%s: fetching %d chunks", l.name, len(p.Parts)))
		ahead := make([]*ahead, len(p.Bundles))
		for i, b := range p.Bundles {
			ahead[i] = newAhead(b)
		}
		err = t.Prefetch(m.ctx, p, 0, func(bundle int, here int64) { d.readAhead(m, ahead[bundle].upTo(here)) })
	}
	if err != nil {
		if m.ctx.Err() == nil {
			d.trouble(m, fmt.Errorf("profile %s: %w", l.name, err))
		}
		d.say(m, l.name+": failed, reads fetch what they need")
		return p != nil
	}
	d.say(m, fmt.Sprintf("%s: %d chunks fetched", l.name, len(p.Parts)))
	return true
}

// startTime is a guess of how long a program continues to start after its profile was
// fetched.
const startTime = 10 * time.Second

// readFar sets the usual readahead of the kernel when the profile no longer predicts
// the reads. Large readahead during a start fetches unneeded chunks; afterwards it
// saves requests of the kernel.
func readFar(m *mount, b *base, l *lookup) {
	select {
	case <-l.over:
	case <-m.ctx.Done():
		return
	}
	<-l.done
	if l.content == nil || sleep(m.ctx, startTime) {
		b.m.ReadFar()
	}
}

// complete fetches the whole tree, and retries after a delay if that fails.
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
			return // space does not free itself
		}
		if !sleep(m.ctx, wait) {
			return
		}
	}
}

// partsRate limits CompleteParts, in bytes of the image per second: the start of a
// program has priority.
const partsRate = 8 << 20

// completeParts fetches the rest of the chunks of which a profile brought parts. Parts
// are lost when the node ends: without this a second start would need the origin again
// for the data that the first one had read.
func (d *daemon) completeParts(m *mount, t *cache.Tree) {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := t.CompleteParts(m.ctx, partsRate)
		var full *cache.NoRoomError
		if err == nil || m.ctx.Err() != nil || errors.As(err, &full) {
			return
		}
		d.log.Info("chunks of a profile are not complete", "ref", m.entry.Ref, "error", err)
		if !sleep(m.ctx, wait) {
			return
		}
	}
}

// say sets the state of a mount's prefetch, for the status.
func (d *daemon) say(m *mount, state string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.profile = state
}

// trouble records a problem of a mount that still works.
func (d *daemon) trouble(m *mount, err error) {
	d.log.Warn("trouble", "ref", m.entry.Ref, "dir", m.entry.Dir, "error", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	m.cause = err
}

// Delays between tries to fetch a whole tree.
const (
	firstWait = time.Second
	lastWait  = time.Minute
)

// sleep reports whether ctx is still active after the time.
func sleep(ctx context.Context, t time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(t):
		return true
	}
}
