package trust

import (
	"context"
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
	head  *tree.Opening
	rest  chan struct{} // closed when everything has come, or will not

	mu      sync.Mutex
	objects map[object.Digest][]byte // each until it was asked for
}

// askOpening is ask by an opening. It returns when its head has come.
func (r *Resolver) askOpening(ctx context.Context, from origin.Opener, ref tree.Ref, profile string) (*Resolved, error) {
	o := &Opening{rest: make(chan struct{}), objects: map[object.Digest][]byte{}}
	var failed error
	head := make(chan struct{})
	once := sync.OnceFunc(func() { close(head) })
	// The rest comes although the caller has what he waited for. The origin bounds how
	// long that may take.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	take := func(soFar []byte, ended bool) {
		select {
		case <-head:
			if !ended || o.head == nil { // this goroutine alone sets it
				return
			}
		default:
		}
		got, whole, _, err := tree.ParseOpening(soFar)
		switch {
		case err != nil:
			failed = err
		case !whole && ended:
			failed = &tree.InvalidError{What: "opening", Reason: "it ends within its head"}
		case !whole:
			return
		default:
			o.mu.Lock()
			if o.head == nil {
				o.head = got
			}
			for d, stored := range got.Objects {
				o.objects[d] = stored
			}
			o.mu.Unlock()
		}
		once()
	}
	go func() {
		defer cancel()
		defer close(o.rest)
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
	for _, later := range o.head.Later {
		if later != d {
			continue
		}
		select {
		case <-o.rest:
		case <-ctx.Done():
			return nil
		}
	}
	o.mu.Lock()
	stored, ok := o.objects[d]
	delete(o.objects, d)
	o.mu.Unlock()
	if !ok {
		return nil
	}
	content, err := object.Decode(nil, d, -1, stored)
	if err != nil {
		return nil // it is fetched from where it lies
	}
	return content
}
