package files

import (
	"cmp"
	"maps"
	"math/bits"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// Usage summarizes a scan: numbers, sizes, owners and ages of its entries. Files are
// regular files; a file with several names counts once.
type Usage struct {
	Table    string           `json:"table"`
	Roots    []string         `json:"roots"`
	Started  time.Time        `json:"begun"`
	Finished time.Time        `json:"ended"`
	Types    map[string]int64 `json:"types"`  // entries by type, as in [Entry]
	Unread   int64            `json:"unread"` // entries that have an error
	Files    Amount           `json:"files"`
	Linked   int64            `json:"linked"` // additional names of files that have several
	Median   int64            `json:"median"` // median size of files, bytes

	Deciles     []Decile    `json:"deciles"`
	Sizes       []Class     `json:"sizes"`
	Modified    []Class     `json:"modified"` // by age at the time of the scan
	Accessed    []Class     `json:"accessed"`
	Owners      []Owner     `json:"owners"`   // by bytes, falling
	Suffixes    []Class     `json:"suffixes"` // of names, by count, falling; "" for none
	Directories Directories `json:"directories"`
}

// Amount is a number of files and their sizes.
type Amount struct {
	Count     int64 `json:"count"`
	Bytes     int64 `json:"bytes"`
	Allocated int64 `json:"allocated"` // bytes on disk
	Zero      int64 `json:"zero"`      // files of size zero
}

func (a *Amount) add(e *Entry) {
	a.Count++
	a.Bytes += e.Size
	a.Allocated += e.Allocated
	if e.Size == 0 {
		a.Zero++
	}
}

// Decile is a tenth of the files, ordered by size.
type Decile struct {
	Percent int   `json:"percent"` // fraction of all files up to the end of this tenth
	Size    int64 `json:"size"`    // of the largest file, bytes
	Bytes   int64 `json:"bytes"`   // total of the files in this tenth
}

// Class is a class of files.
type Class struct {
	Name string `json:"name"`
	Amount
}

// Owner is the total of a user's files.
type Owner struct {
	UID  int64  `json:"uid"`
	Name string `json:"name"` // the number if the user has no name on this machine
	Amount
	Median int64 `json:"median"` // median size, bytes
}

// Directories summarizes the numbers of entries of directories.
type Directories struct {
	Count   int64       `json:"count"`
	Empty   int64       `json:"empty"`
	One     int64       `json:"one"`   // directories with one entry
	Large   int64       `json:"large"` // directories with more than LargeDirectory
	Median  int64       `json:"median"`
	Largest []Directory `json:"largest"` // by entries, falling
	// Classes groups directories by their number of entries.
	Classes []DirectoryClass `json:"classes"`
}

// DirectoryClass is a class of directories.
type DirectoryClass struct {
	Name    string `json:"name"`
	Count   int64  `json:"count"`
	Entries int64  `json:"entries"` // in all directories of the class
}

// Directory is a directory with many entries.
type Directory struct {
	Path    string `json:"path"`
	Entries int64  `json:"entries"`
}

// LargeDirectory is the number of entries above which a directory counts as large.
const LargeDirectory = 10_000

// bound is the upper end of a class, inclusive.
type bound struct {
	name string
	upTo int64
}

var sizeBounds = []bound{
	{"0", 0}, {"1-10 B", 10}, {"11-100 B", 100}, {"101 B-1 KB", 1e3}, {"1-10 KB", 1e4}, {"10-100 KB", 1e5}, {"100 KB-1 MB", 1e6},
	{"1-10 MB", 1e7}, {"10-100 MB", 1e8}, {"100 MB-1 GB", 1e9}, {"1-10 GB", 1e10}, {"10-100 GB", 1e11}, {"100 GB-1 TB", 1e12}, {"over 1 TB", 1<<63 - 1},
}

var entryBounds = []bound{
	{"0", 0}, {"1", 1}, {"2-10", 10}, {"11-100", 100}, {"101-1,000", 1e3}, {"1,001-10,000", LargeDirectory}, {"10,001-100,000", 1e5}, {"over 100,000", 1<<63 - 1},
}

const day = int64(24 * time.Hour)

var ageBounds = []bound{
	{"in the future", -1}, {"1 day", day}, {"1 week", 7 * day}, {"1 month", 30 * day}, {"3 months", 91 * day}, {"6 months", 182 * day},
	{"1 year", 365 * day}, {"2 years", 730 * day}, {"5 years", 1826 * day}, {"over 5 years", 1<<63 - 1},
}

func classes(bounds []bound) []Class {
	list := make([]Class, len(bounds))
	for i, b := range bounds {
		list[i].Name = b.name
	}
	return list
}

func classOf(bounds []bound, v int64) int {
	return slices.IndexFunc(bounds, func(b bound) bool { return v <= b.upTo })
}

// sizes counts files by size. Sizes above 1 MiB are rounded down to 10 binary digits, which
// is exact to 0.1 %.
type sizes map[int64]*[2]int64 // number of files, bytes

func (s sizes) add(size int64) {
	key := size
	if n := bits.Len64(uint64(size)); n > 20 {
		key = size >> (n - 11) << (n - 11)
	}
	v := s[key]
	if v == nil {
		v = new([2]int64)
		s[key] = v
	}
	v[0]++
	v[1] += size
}

// quantile returns the smallest size that at least the given fraction of the files do not
// exceed.
func (s sizes) quantile(share float64) int64 {
	total := int64(0)
	for _, v := range s {
		total += v[0]
	}
	sum := int64(0)
	for _, size := range slices.Sorted(maps.Keys(s)) {
		if sum += s[size][0]; float64(sum) >= share*float64(total) {
			return size
		}
	}
	return 0
}

// deciles splits the files, ordered by size, into ten parts of equal count. The bytes of a
// size at a boundary are divided between both parts.
func (s sizes) deciles() []Decile {
	var list []Decile
	total, bytes := int64(0), int64(0)
	for _, v := range s {
		total += v[0]
	}
	if total == 0 {
		return list
	}
	var sum, before float64
	cut := func(n int) float64 { return float64(total) * float64(n) / 10 }
	for _, size := range slices.Sorted(maps.Keys(s)) {
		v := s[size]
		end, mean := sum+float64(v[0]), float64(v[1])/float64(v[0])
		for len(list) < 10 && end >= cut(len(list)+1) {
			c := cut(len(list) + 1)
			before += (c - sum) * mean
			sum = c
			list = append(list, Decile{Percent: 10 * (len(list) + 1), Size: size, Bytes: int64(before+0.5) - bytes})
			bytes = int64(before + 0.5)
		}
		before += (end - sum) * mean
		sum = end
	}
	return list
}

// Usage reads the table and summarizes it. Lists without a natural length have at most top
// rows.
func (t *Table) Usage(top int) (*Usage, error) {
	u := &Usage{Table: t.Path, Roots: t.Roots, Started: t.Started, Finished: t.Finished, Types: make(map[string]int64),
		Sizes: classes(sizeBounds), Modified: classes(ageBounds), Accessed: classes(ageBounds)}
	all := sizes{}
	type owned struct {
		Amount
		sizes
	}
	owners := make(map[int64]*owned)
	suffixes := make(map[string]*Amount)
	type file struct{ device, inode int64 }
	linked := make(map[file]bool)
	entries := sizes{}
	now := t.Finished.UnixNano()
	err := t.Each(func(e *Entry) error {
		u.Types[e.Type]++
		if e.Error != "" {
			u.Unread++
		}
		switch {
		case e.Type == "d":
			u.Directories.add(e, entries, top)
			return nil
		case e.Type != "f":
			return nil
		case e.Links > 1:
			if f := (file{e.Device, e.Inode}); linked[f] {
				u.Linked++
				return nil
			} else {
				linked[f] = true
			}
		}
		u.Files.add(e)
		all.add(e.Size)
		u.Sizes[classOf(sizeBounds, e.Size)].add(e)
		u.Modified[classOf(ageBounds, now-e.Modified)].add(e)
		u.Accessed[classOf(ageBounds, now-e.Accessed)].add(e)
		o := owners[e.UID]
		if o == nil {
			o = &owned{sizes: sizes{}}
			owners[e.UID] = o
		}
		o.Amount.add(e)
		o.sizes.add(e.Size)
		suffix := suffixOf(e.Name)
		a := suffixes[suffix]
		if a == nil {
			a = new(Amount)
			suffixes[strings.Clone(suffix)] = a
		}
		a.add(e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	u.Median, u.Deciles = all.quantile(0.5), all.deciles()
	u.Directories.Median = entries.quantile(0.5)
	for uid, o := range owners {
		u.Owners = append(u.Owners, Owner{UID: uid, Name: ownerName(uid), Amount: o.Amount, Median: o.quantile(0.5)})
	}
	slices.SortFunc(u.Owners, func(a, b Owner) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID)) })
	u.Owners = u.Owners[:min(top, len(u.Owners))]
	for name, a := range suffixes {
		u.Suffixes = append(u.Suffixes, Class{name, *a})
	}
	slices.SortFunc(u.Suffixes, func(a, b Class) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) })
	u.Suffixes = u.Suffixes[:min(top, len(u.Suffixes))]
	return u, nil
}

// add counts a directory.
func (d *Directories) add(e *Entry, entries sizes, top int) {
	d.Count++
	n := e.Entries
	if n < 0 {
		return
	}
	entries.add(n)
	if d.Classes == nil {
		for _, b := range entryBounds {
			d.Classes = append(d.Classes, DirectoryClass{Name: b.name})
		}
	}
	c := &d.Classes[classOf(entryBounds, n)]
	c.Count++
	c.Entries += n
	switch {
	case n == 0:
		d.Empty++
	case n == 1:
		d.One++
	case n > LargeDirectory:
		d.Large++
	}
	if top == 0 || len(d.Largest) == top && n <= d.Largest[top-1].Entries {
		return
	}
	at, _ := slices.BinarySearchFunc(d.Largest, n, func(have Directory, n int64) int { return cmp.Compare(n, have.Entries) })
	for at < len(d.Largest) && d.Largest[at].Entries == n {
		at++
	}
	d.Largest = slices.Insert(d.Largest, at, Directory{strings.Clone(e.Path()), n})
	d.Largest = d.Largest[:min(top, len(d.Largest))]
}

// longSuffix is the longest suffix: a longer one counts as part of the name.
const longSuffix = 10

// Suffix returns the suffix of a name; see [Usage].
func Suffix(name []byte) []byte {
	return bytesOf(suffixOf(unsafe.String(unsafe.SliceData(name), len(name))))
}

// suffixOf returns the suffix that denotes a file's kind. For a compressed file it includes
// the suffix before: .fastq.gz.
func suffixOf(name string) string {
	suffix := filepath.Ext(name)
	switch suffix {
	case ".gz", ".bz2", ".xz", ".zst", ".lz4", ".bgz":
		if inner := filepath.Ext(strings.TrimSuffix(name, suffix)); len(inner) > 1 {
			suffix = inner + suffix
		}
	}
	if len(suffix) <= 1 || len(suffix) > longSuffix || suffix == name {
		return ""
	}
	return suffix
}

func ownerName(uid int64) string {
	id := strconv.FormatInt(uid, 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}
