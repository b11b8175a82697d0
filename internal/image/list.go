package image

import (
	"context"
	"errors"
	"strings"

	"premix/internal/store"
	"premix/internal/store/tree"
)

// Listed is an image of a store.
type Listed struct {
	Ref    tree.Ref
	Tag    *tree.TagRecord // of its record; nil if it is damaged
	Image  *Image          // nil if it is damaged
	Inodes int64           // of the root
	Bytes  int64           // of its files
	Err    error           // the damage found, or nil
}

// List returns the images of a store, in order of names.
func List(s *store.Store) ([]Listed, error) {
	refs, err := s.Tags()
	if err != nil {
		return nil, err
	}
	var list []Listed
	for _, ref := range refs {
		name, ok := strings.CutPrefix(ref.Name, imagesPrefix)
		if !ok {
			continue
		}
		l := Listed{Ref: tree.Ref{Name: name, Tag: ref.Tag}}
		if l.Image, l.Tag, l.Err = Load(s, l.Ref); l.Err == nil {
			m, err := s.Manifest(l.Image.Root)
			if l.Err = err; err == nil {
				l.Inodes, l.Bytes = m.Inodes, m.Bytes
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// CheckLoose returns an error if a tag may not be removed by itself: it does not exist,
// it names a tree by digest, or it belongs to an image.
func CheckLoose(s *store.Store, ref tree.Ref) error {
	if ref.Tag == "" {
		return &Error{Kind: Usage, Reason: ref.String() + " names a tree by its digest", HintText: "name a tag: " + ref.Name + ":" + tree.DefaultTag}
	}
	for _, p := range []string{imagesPrefix, layersPrefix, chainsPrefix} {
		if strings.HasPrefix(ref.Name, p) {
			return &Error{Kind: Usage, Reason: ref.String() + " belongs to an image", HintText: "premix image ls lists the images, premix image rm removes one"}
		}
	}
	if _, err := s.Resolve(ref); err != nil {
		return err
	}
	_, err := s.Resolve(RecordRef(ref))
	var use *store.UsageError
	if errors.As(err, &use) {
		return nil
	}
	return &Error{Kind: Usage, Reason: ref.String() + " is the root of an image", HintText: "premix image rm " + ref.String() + " removes the image", Err: err}
}

// Removed is the result of removing an image.
type Removed struct {
	Ref    tree.Ref
	Layers int // removed tags of layers and chains that no image needs any more
}

// Remove removes an image's tags, and the tags of layers that no image needs any more.
// The next gc removes their objects. If another image's record cannot be read, no layer
// is removed, and the error says so.
func Remove(ctx context.Context, s *store.Store, ref tree.Ref) (*Removed, error) {
	unlock, err := s.Lock(ctx, lockName)
	if err != nil {
		return nil, err
	}
	defer unlock()
	was, err := s.Untag(ctx, RecordRef(ref))
	if err != nil {
		return nil, err
	}
	if !was {
		return nil, &Error{Kind: Usage, Reason: "the store " + s.Dir() + " has no image " + ref.String(), HintText: "premix image ls --store " + s.Dir() + " lists its images"}
	}
	if _, err := s.Untag(ctx, ref); err != nil {
		return nil, err
	}
	r := &Removed{Ref: ref}
	list, err := List(s)
	if err != nil {
		return nil, err
	}
	needed := map[tree.Ref]bool{}
	var damaged error
	for _, l := range list {
		if l.Image == nil {
			damaged = errors.Join(damaged, l.Err)
			continue
		}
		for _, y := range l.Image.Layers {
			needed[LayerRef(y.DiffID)] = true
			needed[ChainRef(y.ChainID)] = true
		}
	}
	if damaged != nil {
		return nil, &Error{Kind: Damaged, Reason: ref.String() + " is removed, but its layers stay: another image cannot be read: " + damaged.Error(), HintText: "premix image ls names it: add that image again, or remove it", Err: damaged}
	}
	refs, err := s.Tags()
	if err != nil {
		return nil, err
	}
	for _, t := range refs {
		part := strings.HasPrefix(t.Name, layersPrefix) || strings.HasPrefix(t.Name, chainsPrefix)
		if !part || needed[t] {
			continue
		}
		if _, err := s.Untag(ctx, t); err != nil {
			return nil, err
		}
		r.Layers++
	}
	return r, nil
}
