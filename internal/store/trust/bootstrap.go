package trust

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
)

// Bootstrap holds the copies that an origin sent together with a tag's record, after the
// record was verified: see tree.Bootstrap. The copies are verified when they are used.
// Any number of goroutines may use an Bootstrap.
type Bootstrap struct {
	store string
	keys  []tree.PublicKey
	head  *tree.Bootstrap // does not change once set, but for its objects

	mu       sync.Mutex
	reader   *tree.BootstrapReader
	soFar    []byte        // of the file, as received
	woken    int           // length of soFar when changed was closed last
	changed  chan struct{} // closed, and replaced, when more has come
	finished bool          // no more is received
	given    map[object.Digest]bool
}

// take decodes the bytes received, and reports whether the head is complete.
func (o *Bootstrap) take(soFar []byte, finished bool) (head bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(soFar) < len(o.soFar) && !finished {
		if o.head != nil {
			return true, nil // the transfer began again; more will come
		}
		o.reader = tree.NewBootstrapReader()
	}
	o.soFar = soFar
	objects := len(o.reader.Objects)
	if err = o.reader.Take(soFar); err == nil && o.reader.Head && o.head == nil {
		known := o.reader.Bootstrap
		known.Files = map[string][]byte{} // so that soFar, which is large, can be freed
		for path, content := range o.reader.Files {
			known.Files[path] = bytes.Clone(content)
		}
		o.reader.Files = nil
		o.head = &known
	}
	if finished && err == nil && o.head == nil {
		err = &tree.InvalidError{What: "bootstrap", Reason: "it ends within its head"}
	}
	if len(o.reader.Objects) > objects || len(soFar) >= o.woken+step {
		o.woken = len(soFar)
		o.wake()
	}
	return o.head != nil, err
}

// step is the number of further bytes of an object that must have arrived before its
// waiting readers are woken.
const step = 24 << 10

// end records that no more bytes come.
func (o *Bootstrap) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished, o.soFar = true, nil
	o.wake()
}

// wake wakes all waiters. The caller holds mu.
func (o *Bootstrap) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// askBootstrap is ask by means of a bootstrap. It returns when the head has arrived.
func (r *Resolver) askBootstrap(ctx context.Context, from origin.Opener, ref tree.Ref, profile string) (*Resolved, error) {
	o := &Bootstrap{reader: tree.NewBootstrapReader(), changed: make(chan struct{}), given: map[object.Digest]bool{}}
	var failed error
	head := make(chan struct{})
	once := sync.OnceFunc(func() { close(head) })
	// The rest is received although the caller already has an answer. The origin bounds
	// how long that may take.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	damaged := false // nothing more is decoded
	take := func(soFar []byte, finished bool) {
		if damaged {
			return
		}
		here, err := o.take(soFar, finished)
		if err != nil {
			damaged = true
			if !here {
				failed = err
			}
		}
		if here || err != nil {
			once()
		}
	}
	go func() {
		defer cancel()
		defer o.end()
		defer once()
		content, err := from.Bootstrap(inner, ref.BootstrapPath(profile), func(soFar []byte) { take(soFar, false) })
		if err != nil {
			select {
			case <-head: // the rest is fetched from its usual paths
			default:
				failed = err
			}
			return
		}
		take(content, true)
	}()
	select {
	case <-head:
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
	o.mu.Lock()
	known := o.head
	o.mu.Unlock()
	if known == nil {
		return nil, failed
	}
	info, first, err := r.verifyStore(from, known.Files[tree.InfoPath], false)
	if err != nil {
		return nil, err
	}
	res, err := r.judge(from, ref, info, first, known.Files[ref.TagPath()], false)
	if err != nil {
		return nil, err
	}
	o.store, o.keys = res.Store, res.Keys
	res.Bootstrap = o
	// The disk is slow: pins and records are written while the caller continues, and
	// judged again then, since other processes may have written in between.
	res.keep = &pendingWrite{done: make(chan struct{})}
	go func() {
		defer close(res.keep.done)
		info, _, err := r.verifyStore(from, known.Files[tree.InfoPath], true)
		if err == nil {
			_, err = r.judge(from, ref, info, first, known.Files[ref.TagPath()], true)
		}
		res.keep.err = err
	}()
	return res, nil
}

// Profile returns the content of the object of a profile of the tree d. A nil content
// without an error means that the origin had no such profile when it made the bootstrap.
// If ok is false, the bootstrap has no answer.
func (o *Bootstrap) Profile(d object.Digest, name string) (content []byte, ok bool) {
	signed := o.head.Files[tree.ProfilePath(d, name)]
	if signed == nil {
		return nil, true
	}
	record, err := tree.OpenProfile(signed, o.store, d, name, o.keys)
	if err != nil {
		return nil, false
	}
	content = o.Object(context.Background(), record.Profile)
	return content, content != nil
}

// Next returns the tags that are mounted after ref, the tag of the bootstrap, as far as
// the origin knows them. They are neither signed nor verified.
func (o *Bootstrap) Next(ref tree.Ref) []tree.Ref {
	return tree.NextRefs(ref, func(path string) []byte { return o.head.Files[path] })
}

// Object returns the verified content of an object, once, or nil if the bootstrap does
// not have it. It waits for bytes that are still to arrive.
func (o *Bootstrap) Object(ctx context.Context, d object.Digest) []byte {
	stored, whole := o.await(ctx, d, -1)
	if !whole {
		return nil
	}
	content, err := object.Decode(nil, d, -1, stored)
	if err != nil {
		return nil // it is fetched from its usual path
	}
	return content
}

// Stream is Object for an object whose content has size bytes. Whenever there is more,
// and until Stream returns, it calls got with the content so far, which is not yet
// verified.
func (o *Bootstrap) Stream(ctx context.Context, d object.Digest, size int64, got func(soFar []byte)) []byte {
	stored, whole := o.await(ctx, d, 0)
	if stored == nil {
		return nil
	}
	u := object.Unpack(d, size, got)
	for !whole && stored != nil {
		u.More(stored)
		stored, whole = o.await(ctx, d, len(stored))
	}
	u.More(stored)
	content, err := u.End()
	if err != nil {
		return nil
	}
	return content
}

// await returns the stored form of an object when it is complete or, if beyond is not
// negative, when more than beyond bytes of it have arrived. It returns nil if the
// bootstrap does not have the object, or receives no more of it. An object that was
// returned whole is dropped.
func (o *Bootstrap) await(ctx context.Context, d object.Digest, beyond int) (stored []byte, whole bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.given[d] {
		if stored, ok := o.reader.Objects[d]; ok {
			delete(o.reader.Objects, d)
			o.given[d] = true
			return stored, true
		}
		if beyond >= 0 {
			if one, part, ok := o.reader.Arriving(o.soFar); ok && one == d && len(part) > beyond {
				return part, false
			}
		}
		if o.finished || !slices.Contains(o.head.Later, d) {
			break
		}
		changed := o.changed
		o.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		o.mu.Lock()
		if ctx.Err() != nil {
			break
		}
	}
	return nil, false
}
