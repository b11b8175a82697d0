package files

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
)

// Difference is the result of comparing two scans.
type Difference struct {
	First   string `json:"first"` // path of the table
	Second  string `json:"second"`
	Added   Change `json:"added"`
	Removed Change `json:"removed"`
	Changed Change `json:"changed"` // their size, time of modification, type, mode or owner
	Same    int64  `json:"same"`    // entries
	// Growth lists bytes gained or lost by the first directory below a root, falling.
	Growth []Growth `json:"growth"`
	Owners []Growth `json:"owners"` // like Growth, by owner
	// Largest are the changes of the most bytes, falling.
	Largest []Changed `json:"largest"`
}

// Change is the sum of all changes of one kind.
type Change struct {
	Count int64 `json:"count"` // entries
	Bytes int64 `json:"bytes"` // gained by files, or lost if negative
}

// Growth is the change in one place.
type Growth struct {
	Name string `json:"name"`
	Change
}

// Changed is one entry that changed.
type Changed struct {
	Path  string `json:"path"`
	How   string `json:"how"` // added, removed or changed
	Bytes int64  `json:"bytes"`
}

// passEntries bounds the entries of the first scan that are in memory at a time. If it has
// more, both scans are read several times, each time for a part of the paths.
const passEntries = 8 << 20

// Compare compares two scans by the paths of entries. Each list in the result has at most
// top rows.
func Compare(first, second *Table, top int) (*Difference, error) {
	return compare(first, second, top, passEntries)
}

// known are the compared attributes of an entry of the first scan.
type known struct {
	size, modified int64
	uid            int64
	mode           int32
	kind           byte
	seen           bool
}

func compare(first, second *Table, top int, most int64) (*Difference, error) {
	d := &Difference{First: first.Path, Second: second.Path}
	places, owners := make(map[string]*Change), make(map[int64]*Change)
	seed := maphash.MakeSeed()
	passes := uint64(max(1, (first.Rows+most-1)/most))
	roots := append(slices.Clone(first.Roots), second.Roots...)
	note := func(c *Change, how string, e *Entry, bytes int64) {
		c.Count++
		c.Bytes += bytes
		place := placeOf(e, roots)
		if places[place] == nil {
			places[strings.Clone(place)] = new(Change)
		}
		if owners[e.UID] == nil {
			owners[e.UID] = new(Change)
		}
		for _, c := range []*Change{places[place], owners[e.UID]} {
			c.Count++
			c.Bytes += bytes
		}
		d.largest(how, e, bytes, top)
	}
	for pass := range passes {
		old := make(map[uint64]known, min(first.Rows, most))
		each := func(t *Table, f func(hash uint64, e *Entry)) error {
			return t.Each(func(e *Entry) error {
				var h maphash.Hash
				h.SetSeed(seed)
				h.WriteString(e.Dir)
				h.WriteByte(0)
				h.WriteString(e.Name)
				if hash := h.Sum64(); hash%passes == pass {
					f(hash, e)
				}
				return nil
			})
		}
		err := each(first, func(hash uint64, e *Entry) {
			old[hash] = known{size: e.bytes(), modified: e.Modified, uid: e.UID, mode: e.Mode, kind: e.Type[0]}
		})
		if err != nil {
			return nil, err
		}
		err = each(second, func(hash uint64, e *Entry) {
			k, ok := old[hash]
			switch {
			case !ok:
				note(&d.Added, "added", e, e.bytes())
				return
			case k.same(e):
				d.Same++
			default:
				note(&d.Changed, "changed", e, e.bytes()-k.size)
			}
			k.seen = true
			old[hash] = k
		})
		if err != nil {
			return nil, err
		}
		err = each(first, func(hash uint64, e *Entry) {
			if !old[hash].seen {
				note(&d.Removed, "removed", e, -e.bytes())
			}
		})
		if err != nil {
			return nil, err
		}
	}
	for place, c := range places {
		d.Growth = append(d.Growth, Growth{place, *c})
	}
	for uid, c := range owners {
		d.Owners = append(d.Owners, Growth{ownerName(uid), *c})
	}
	for _, list := range []*[]Growth{&d.Growth, &d.Owners} {
		slices.SortFunc(*list, func(a, b Growth) int {
			return cmp.Or(cmp.Compare(magnitude(b.Bytes), magnitude(a.Bytes)), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
		})
		*list = (*list)[:min(top, len(*list))]
	}
	return d, nil
}

// bytes returns the size that an entry counts with: only regular files have one.
func (e *Entry) bytes() int64 {
	if e.Type == "f" {
		return e.Size
	}
	return 0
}

// same reports whether an entry is unchanged. The time of a directory changes with its
// entries and is not compared.
func (k *known) same(e *Entry) bool {
	return k.size == e.bytes() && (k.modified == e.Modified || k.kind == 'd') && k.uid == e.UID && k.mode == e.Mode && k.kind == e.Type[0]
}

// placeOf returns the first directory below a root on the way to an entry, or the root
// itself for an entry directly in it.
func placeOf(e *Entry, roots []string) string {
	for _, root := range roots {
		if !within(e.Dir, root) {
			continue
		}
		below := strings.TrimPrefix(strings.TrimPrefix(e.Dir, root), "/")
		if below == "" {
			return root
		}
		name, _, _ := strings.Cut(below, "/")
		return join(root, bytesOf(name))
	}
	return e.Dir
}

func magnitude(n int64) int64 { return max(n, -n) }

// largest records a change if it is one of the largest.
func (d *Difference) largest(how string, e *Entry, bytes int64, top int) {
	n := magnitude(bytes)
	if n == 0 || top == 0 || len(d.Largest) == top && n <= magnitude(d.Largest[top-1].Bytes) {
		return
	}
	at := slices.IndexFunc(d.Largest, func(c Changed) bool { return magnitude(c.Bytes) < n })
	if at < 0 {
		at = len(d.Largest)
	}
	d.Largest = slices.Insert(d.Largest, at, Changed{strings.Clone(e.Path()), how, bytes})
	d.Largest = d.Largest[:min(top, len(d.Largest))]
}
