package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"premix/store/cache"
	"premix/store/tree"
)

const (
	// usualProfile is prefetched where a mount names none, if the store has it.
	usualProfile = tree.UsualProfile
	noProfile    = "none"
)

// lookup is a profile on its way: the content of its object, nil where the store
// has none of that name.
type lookup struct {
	name    string
	asked   bool          // by the user, by name
	done    chan struct{} // closed when content and err are known
	content []byte
	err     error
	over    chan struct{} // closed when what the profile names is here, or does not come
}

// lookUp begins to look the profile of a mount up; nil where none is wanted. It
// needs the tree's digest and nothing else, so that the tree's manifest comes at
// the same time.
func (d *daemon) lookUp(m *mount, src *source) *lookup {
	l := &lookup{name: m.entry.Profile, asked: true, done: make(chan struct{}), over: make(chan struct{})}
	switch {
	case src == nil:
		return nil
	case l.name == noProfile || m.entry.Record != "" && l.name == "":
		// What is recorded should not depend on an earlier profile.
		d.say(m, "none")
		return nil
	case l.name == "":
		l.name, l.asked = usualProfile, false
	}
	if t, err := d.cache.Tree(m.ctx, m.entry.Tree, nil); err == nil {
		complete := t.IsComplete()
		_ = t.Close() // counts down, and cannot fail
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

// background begins what a mount fetches without being asked: what the profile
// names first, if there is one, then all, if that was wished. It has the tree open
// for as long.
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
		// From then on nobody knows what will be wanted. What is recorded is what was
		// asked for, and nothing else is fetched meanwhile.
		guess := func() {
			guided()
			if m.entry.Record == "" {
				t.Foresee()
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

// prefetch waits for a mount's profile and fetches what it names. It tells whether
// there is one.
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
	d.say(m, fmt.Sprintf("%s: %d chunks are here", l.name, len(p.Parts)))
	return true
}

// startTime is how long a start goes on, at a guess, after what its profile names
// is here.
const startTime = 10 * time.Second

// readFar has the kernel read ahead as usual when a profile can't tell any more
// what is wanted: far readahead during a start brings chunks that nobody asks for,
// and afterwards it saves requests of the kernel.
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

// partsRate is the most that is fetched in a second, in bytes of the image, behind a
// start whose profile has brought parts of chunks.
const partsRate = 8 << 20

// completeParts fetches the rest of the chunks of which a profile brought what a start
// touches. Parts end with the node: without it a second start would need the origin
// again for what the first one had read.
func (d *daemon) completeParts(m *mount, t *cache.Tree) {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := t.CompleteParts(m.ctx, partsRate)
		var full *cache.NoRoomError
		if err == nil || m.ctx.Err() != nil || errors.As(err, &full) {
			return
		}
		d.log.Info("what a profile brought in parts is not complete", "ref", m.entry.Ref, "error", err)
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
