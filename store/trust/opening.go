package trust

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"premix/store/object"
	"premix/store/origin"
	"premix/store/tree"
)

// Opening is what an origin has sent together with a tag's record, which was
// believed: see tree.Opening. What of it is used is verified like all that comes from
// an origin. It may be used by any number of goroutines.
type Opening struct {
	store string
	keys  []tree.PublicKey
	head  *tree.Opening // changes no more when it is here, but for its objects

	mu      sync.Mutex
	reader  *tree.OpeningReader
	soFar   []byte        // of the file
	woken   int           // length of soFar when changed was closed last
	changed chan struct{} // closed, and replaced, when more has come
	ended   bool          // everything has come, or will not
	given   map[object.Digest]bool
}

// take reads what has come, and tells whether the head is there.
func (o *Opening) take(soFar []byte, ended bool) (head bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(soFar) < len(o.soFar) && !ended {
		if o.head != nil {
			return true, nil // it has begun anew; there will be more
		}
		o.reader = tree.NewOpeningReader()
	}
	o.soFar = soFar
	objects := len(o.reader.Objects)
	if err = o.reader.Take(soFar); err == nil && o.reader.Head && o.head == nil {
		known := o.reader.Opening
		known.Files = map[string][]byte{} // soFar is large, and let go of
		for path, content := range o.reader.Files {
			known.Files[path] = bytes.Clone(content)
		}
		o.reader.Files = nil
		o.head = &known
	}
	if ended && err == nil && o.head == nil {
		err = &tree.InvalidError{What: "opening", Reason: "it ends within its head"}
	}
	if len(o.reader.Objects) > objects || len(soFar) >= o.woken+step {
		o.woken = len(soFar)
		o.wake()
	}
	return o.head != nil, err
}

// step is how much more of an object has come when those go on that use it while it
// arrives, in bytes.
const step = 24 << 10

// end says that no more comes.
func (o *Opening) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.soFar = true, nil
	o.wake()
}

// wake is under mu.
func (o *Opening) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// askOpening is ask by an opening. It returns when its head has come.
func (r *Resolver) askOpening(ctx context.Context, from origin.Opener, ref tree.Ref, profile string) (*Resolved, error) {
	o := &Opening{reader: tree.NewOpeningReader(), changed: make(chan struct{}), given: map[object.Digest]bool{}}
	var failed error
	head := make(chan struct{})
	once := sync.OnceFunc(func() { close(head) })
	// The rest comes although the caller has what he waited for. The origin bounds how
	// long that may take.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	damaged := false // nothing behind it is read
	take := func(soFar []byte, ended bool) {
		if damaged {
			return
		}
		here, err := o.take(soFar, ended)
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
		content, err := from.Opening(inner, ref.OpeningPath(profile), func(soFar []byte) { take(soFar, false) })
		if err != nil {
			select {
			case <-head: // the rest is fetched from where it lies
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
	info, first, err := r.believe(from, known.Files[tree.InfoPath], false)
	if err != nil {
		return nil, err
	}
	res, err := r.judge(from, ref, info, first, known.Files[ref.TagPath()], false)
	if err != nil {
		return nil, err
	}
	o.store, o.keys = res.Store, res.Keys
	res.Opening = o
	// The disk is slow: what was believed is brought there while its user goes on, and
	// judged once more then, since others may have come first.
	res.keep = &keeping{done: make(chan struct{})}
	go func() {
		defer close(res.keep.done)
		info, _, err := r.believe(from, known.Files[tree.InfoPath], true)
		if err == nil {
			_, err = r.judge(from, ref, info, first, known.Files[ref.TagPath()], true)
		}
		res.keep.err = err
	}()
	return res, nil
}

// Profile returns the content of the object of a profile of the tree d. Without an
// error, nil says that the origin had no such profile when it made the opening. Where
// ok is false the opening can't tell.
func (o *Opening) Profile(d object.Digest, name string) (content []byte, ok bool) {
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

// Next are the tags that are mounted after ref, of which the opening is, as far as the
// origin can tell. Nothing vouches for them.
func (o *Opening) Next(ref tree.Ref) []tree.Ref {
	return tree.Row(ref, func(path string) []byte { return o.head.Files[path] })
}

// Object returns the verified content of an object, once, or nil where the opening
// does not have it. It waits for what is still on its way.
func (o *Opening) Object(ctx context.Context, d object.Digest) []byte {
	stored, whole := o.await(ctx, d, -1)
	if !whole {
		return nil
	}
	content, err := object.Decode(nil, d, -1, stored)
	if err != nil {
		return nil // it is fetched from where it lies
	}
	return content
}

// Stream is Object for an object whose content has so many bytes. It calls got with the
// content so far, which nobody has verified yet, whenever there is more, and not after it
// has returned.
func (o *Opening) Stream(ctx context.Context, d object.Digest, size int64, got func(soFar []byte)) []byte {
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

// await returns the stored form of an object when all of it has come, or, where beyond
// is not below 0, when more than so much of it has. Without any the opening does not have
// it, or no more of it. What was given whole is forgotten.
func (o *Opening) await(ctx context.Context, d object.Digest, beyond int) (stored []byte, whole bool) {
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
		if o.ended || !slices.Contains(o.head.Later, d) {
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
