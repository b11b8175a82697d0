package database

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"premix/internal/blast/fasta"
	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
)

// fragmentSum computes the digest of the sequences of a fragment.
type fragmentSum struct {
	hash      *blake3.Hasher
	sequences int64
}

func newFragmentSum(settings string) *fragmentSum {
	f := &fragmentSum{hash: blake3.New()}
	_, _ = f.hash.WriteString(settings) // it never fails
	return f
}

func (f *fragmentSum) add(sum [16]byte) {
	f.sequences++
	_, _ = f.hash.Write(sum[:])
}

func (f *fragmentSum) sum() string { return hex.EncodeToString(f.hash.Sum(nil)[:16]) }

// settings returns a text of all settings on which the volumes of a sequence depend.
func (b *builder) settings() (string, error) {
	o, taxa := b.o, ""
	if o.TaxIDMap != "" {
		var err error
		if taxa, _, err = sumFile(context.Background(), o.TaxIDMap); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%q\n", []any{o.Type, o.Version, o.ParseIDs, o.Title, o.Masks, o.TaxID, taxa}), nil
}

// Updated are the numbers of fragments of an update.
type Updated struct{ Kept, Formatted int }

// Update replaces the content of a database by a FASTA file. It formats only the fragments that
// differ: it finds the sequences of each former fragment in the file, wherever they are now,
// and links its volumes. What lies between these is formatted. Settings that are not given in o
// are those of before.
//
// Searches that have opened the database go on with the former version, which is removed after
// them, or by the next update. If the database should be resident, the new version is loaded.
//
// BLAST+ orders volumes by their names, so a fragment can only be kept after the kept fragments
// that it followed before.
func Update(ctx context.Context, home string, o AddOptions) (*Record, *Description, Updated, error) {
	var n Updated
	r, unlock, err := lockChange(home, o.Name)
	if err != nil {
		return nil, nil, n, err
	}
	defer unlock()
	old, err := ReadDescription(r.Data)
	if err != nil {
		return nil, nil, n, damagedError(o.Name, err)
	}
	if err := o.continues(old); err != nil {
		return nil, nil, n, err
	}
	if err := o.check(); err != nil {
		return nil, nil, n, err
	}
	if err := sweep(home); err != nil {
		return nil, nil, n, err
	}
	tmp, release, err := newDir(home, ".new-")
	if err != nil {
		return nil, nil, n, accessError(home, err)
	}
	defer release()
	b := &builder{o: &o, data: filepath.Join(tmp, "data"), scratch: filepath.Join(tmp, "scratch"), kept: map[string]DataFile{}}
	if err := errors.Join(os.Mkdir(b.data, 0o755), os.Mkdir(b.scratch, 0o700)); err != nil {
		return nil, nil, n, accessError(home, err)
	}
	if n, err = b.update(ctx, old, r.Data); err != nil {
		return nil, nil, n, accessError(home, err)
	}
	desc, err := b.describe(ctx)
	if err != nil {
		return nil, nil, n, accessError(home, err)
	}
	if desc.ID == old.ID {
		return r, old, n, nil
	}
	dir := filepath.Join(home, o.Name)
	r.Data, r.Bytes, r.Tree, r.Ref, r.Store = filepath.Join(dir, "data-"+desc.ID[:12]), desc.Bytes(), "", "", ""
	if err := os.RemoveAll(r.Data); err != nil { // of an update that was killed
		return nil, nil, n, accessError(home, err)
	}
	if err := beneath.Move(b.data, r.Data, beneath.Durable); err != nil {
		return nil, nil, n, accessError(home, err)
	}
	if err := writeRecord(dir, r); err != nil {
		return nil, nil, n, accessError(home, err)
	}
	if err := evict(home, local(home, o.Name, old)); err != nil {
		return r, desc, n, err
	}
	if r.Warm {
		if _, err := r.load(ctx, home, desc, 0); err != nil {
			return r, desc, n, err
		}
	}
	return r, desc, n, sweepVersions(dir, r)
}

// continues takes over the settings of a database that are not given, and refuses to update one
// that was not made from FASTA.
func (o *AddOptions) continues(old *Description) error {
	again := "remove it and add it again: premix blast db rm " + o.Name
	if old.By() != BLAST {
		return &Error{Kind: Use, Message: fmt.Sprintf("%s is a database for %s, whose fragments end elsewhere after a change", o.Name, old.By()), HintText: again}
	}
	for _, f := range old.Fragments {
		if f.Sum == "" {
			return &Error{Kind: Use, Message: fmt.Sprintf("premix did not make the fragments of %s from FASTA, or an earlier version did", o.Name), HintText: again}
		}
	}
	if old.Taxonomy && o.TaxID == 0 && o.TaxIDMap == "" {
		return &Error{Kind: Use, Message: o.Name + " has taxonomy ids", HintText: "give --taxid-map or --taxid, as premix blast db add had it"}
	}
	o.Type, o.Version, o.ParseIDs, o.Masks = old.Type, old.Version, old.ParsedIDs, old.Masks
	if o.Title == "" {
		o.Title = old.Title
	}
	return nil
}

// match is a former fragment in the new file.
type match struct {
	fragment   int
	start, end mark
}

// matcher finds former fragments in a stream of sequences.
type matcher struct {
	old      *Description
	settings string
	heads    map[string][]int
	active   []*candidate
	found    []match
}

// candidate compares the sequences from start on with a former fragment.
type candidate struct {
	fragment int
	start    mark
	sum      *fragmentSum
}

// mostCandidates bounds the work for a file that repeats the first sequence of a fragment.
const mostCandidates = 64

func newMatcher(old *Description, settings string) *matcher {
	m := &matcher{old: old, settings: settings, heads: map[string][]int{}}
	for i, f := range old.Fragments {
		m.heads[f.Head] = append(m.heads[f.Head], i)
	}
	return m
}

// add adds a sequence that lies between two places.
func (m *matcher) add(sum [16]byte, from, to mark) {
	for _, i := range m.heads[hex.EncodeToString(sum[:])] {
		if len(m.active) < mostCandidates {
			m.active = append(m.active, &candidate{i, from, newFragmentSum(m.settings)})
		}
	}
	m.active = slices.DeleteFunc(m.active, func(a *candidate) bool {
		a.sum.add(sum)
		f := m.old.Fragments[a.fragment]
		if a.sum.sequences < f.Sequences {
			return false
		}
		if a.sum.sum() == f.Sum && to.letters-a.start.letters == f.Letters && m.follows(a) {
			m.found = append(m.found, match{a.fragment, a.start, to})
		}
		return true
	})
}

// follows reports whether a fragment can be kept after those that were found.
func (m *matcher) follows(a *candidate) bool {
	if len(m.found) == 0 {
		return true
	}
	last := m.found[len(m.found)-1]
	return a.fragment > last.fragment && a.start.sequences >= last.end.sequences
}

// piece is a part of the new file: a former fragment, or sequences to format.
type piece struct {
	fragment   int // -1: to format
	base       string
	start, end mark
}

// update fills the directory of the new version.
func (b *builder) update(ctx context.Context, old *Description, data string) (n Updated, err error) {
	o := b.o
	before, err := os.Stat(o.Source)
	if err != nil {
		return n, err
	}
	if !before.Mode().IsRegular() {
		return n, &Error{Kind: Use, Message: o.Source + " is not a regular file", HintText: "name a FASTA file"}
	}
	o.Progress.Whole.Store(before.Size())
	settings, err := b.settings()
	if err != nil {
		return n, err
	}
	alphabet := fasta.Nucleotides
	if o.Type == Prot {
		alphabet = fasta.AminoAcids
	}
	in, err := fasta.Open(o.Source)
	if err != nil {
		return n, err
	}
	var m marks
	finder := newMatcher(old, settings)
	// A sequence ends where the next one begins.
	var waits func(next mark)
	b.desc.UniqueIDs = !o.Duplicates && !o.ParseIDs // BLAST+ changes ids that it parses
	sum, err := fasta.Check(&countingReader{ctx, in, &o.Progress.Checked}, o.Source, fasta.Options{Alphabet: alphabet, Duplicates: o.Duplicates, Sums: true}, func(s fasta.Sequence) error {
		from := mark{s.Offset, m.sequences, m.letters}
		if waits != nil {
			waits(from)
		}
		b.desc.UniqueIDs = b.desc.UniqueIDs && plainID(s.ID)
		digest := s.Sum
		waits = func(to mark) { finder.add(digest, from, to) }
		m.add(s)
		return nil
	})
	if err = errors.Join(err, in.Close()); err != nil {
		return n, err
	}
	end := mark{sum.Bytes, sum.Sequences, sum.Letters}
	waits(end)
	pieces, err := o.pieces(old, finder.found, &m, end)
	if err != nil {
		return n, err
	}
	o.Progress.Fragments.Store(int64(len(pieces)))
	if in, err = fasta.Open(o.Source); err != nil {
		return n, err
	}
	defer in.Close()
	var at int64
	for _, p := range pieces {
		if p.fragment >= 0 {
			if err := b.keep(old, p.fragment, data); err != nil {
				return n, err
			}
			f := old.Fragments[p.fragment]
			f.First = p.start.sequences
			b.desc.Fragments = append(b.desc.Fragments, f)
			o.Progress.Formatted.Add(1)
			n.Kept++
			continue
		}
		if _, err := io.CopyN(io.Discard, &countingReader{ctx: ctx, r: in}, p.start.offset-at); err != nil {
			return n, err
		}
		at = p.end.offset
		f := Range{First: p.start.sequences, Sequences: p.end.sequences - p.start.sequences, Letters: p.end.letters - p.start.letters}
		if err := b.format(ctx, p.base, io.LimitReader(&countingReader{ctx: ctx, r: in}, p.end.offset-p.start.offset), &f); err != nil {
			return n, err
		}
		b.desc.Fragments = append(b.desc.Fragments, f)
		n.Formatted++
	}
	after, err := os.Stat(o.Source)
	if err != nil {
		return n, err
	}
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return n, &Error{Kind: Failed, Message: o.Source + " changed while it was read", HintText: "run the same command again: it starts from the beginning"}
	}
	d := &b.desc
	d.Type, d.Version, d.ParsedIDs, d.Title, d.Masks = o.Type, o.Version, o.ParseIDs, o.Title, o.Masks
	d.Taxonomy, d.Date = o.TaxID != 0 || o.TaxIDMap != "", before.ModTime().UTC().Truncate(time.Minute)
	return n, nil
}

// pieces returns the parts of the new file, in order.
func (o *AddOptions) pieces(old *Description, found []match, m *marks, end mark) ([]piece, error) {
	target := max(1, old.Letters/int64(len(old.Fragments)))
	var list []piece
	var at mark
	if len(m.list) > 0 {
		at = m.list[0] // there may be blank lines before it
	}
	gap := func(to mark, next string) error {
		if at.sequences == to.sequences {
			return nil
		}
		// A small fragment is formatted again, with what follows it, so that many updates leave
		// no row of small fragments.
		if k := len(list) - 1; k >= 0 && list[k].fragment >= 0 && list[k].end.letters-list[k].start.letters < target/2 {
			at, list = list[k].start, list[:k]
		}
		before := ""
		if len(list) > 0 {
			before = list[len(list)-1].base
		}
		n := int(max(1, (to.letters-at.letters+target/2)/target))
		cuts := m.between(at, to, n)
		names, err := o.bases(before, next, len(cuts))
		if err != nil {
			return err
		}
		for i, c := range cuts {
			stop := to
			if i+1 < len(cuts) {
				stop = cuts[i+1]
			}
			list = append(list, piece{-1, names[i], c, stop})
		}
		return nil
	}
	for _, f := range found {
		base := old.Fragments[f.fragment].base()
		if err := gap(f.start, base); err != nil {
			return nil, err
		}
		list = append(list, piece{f.fragment, base, f.start, f.end})
		at = f.end
	}
	return list, gap(end, "")
}

// between returns the beginnings of up to n parts of about equal size between two marks.
func (m *marks) between(from, to mark, n int) []mark {
	cuts := []mark{from}
	for i := 1; i < n; i++ {
		want := from.letters + (to.letters-from.letters)/int64(n)*int64(i)
		j, _ := slices.BinarySearchFunc(m.list, want, func(k mark, w int64) int { return compare(k.letters, w) })
		if j < len(m.list) && m.list[j].sequences > cuts[len(cuts)-1].sequences && m.list[j].sequences < to.sequences {
			cuts = append(cuts, m.list[j])
		}
	}
	return cuts
}

// base returns the name that the names of the files of a fragment begin with.
func (r *Range) base() string {
	if len(r.Volumes) == 1 {
		return r.Volumes[0]
	}
	return strings.TrimSuffix(r.Volumes[0], filepath.Ext(r.Volumes[0]))
}

// bases returns n names for fragments, which BLAST+ sorts between two others. before is empty
// for the first fragment, and next after the last one.
func (o *AddOptions) bases(before, next string, n int) (list []string, err error) {
	if before == "" {
		before = o.Name + ".-" // before NAME.000
		if next == "" {
			for i := range n {
				list = append(list, fmt.Sprintf("%s.%03d", o.Name, i))
			}
			return list, nil
		}
	}
	// A name with more zeros comes before one with fewer.
	for zeros := ""; len(before)+len(zeros) < 80; zeros += "a000" {
		if last := fmt.Sprintf("%s%sa%03d", before, zeros, n); next != "" && last >= next {
			continue
		}
		for i := range n {
			list = append(list, fmt.Sprintf("%s%sa%03d", before, zeros, i+1))
		}
		if n > 999 {
			break
		}
		return list, nil
	}
	return nil, &Error{Kind: Use, Message: fmt.Sprintf("%s was updated too often at the same place", o.Name), HintText: "remove it and add it again: premix blast db rm " + o.Name}
}

// keep links the files of a former fragment. The index is copied, because the date in it changes.
func (b *builder) keep(old *Description, i int, data string) error {
	prefix := old.Fragments[i].base() + "."
	for _, f := range old.Files {
		if !strings.HasPrefix(f.Name, prefix) {
			continue
		}
		from, to := filepath.Join(data, f.Name), filepath.Join(b.data, f.Name)
		if !strings.HasSuffix(f.Name, "."+old.Type.letter()+"in") {
			b.kept[f.Name] = f
			if os.Link(from, to) == nil {
				continue
			}
		}
		if _, err := copyFile(from, to); err != nil {
			return err
		}
	}
	return nil
}

// sweepVersions removes former versions of a database, if no search uses one of them.
func sweepVersions(dir string, r *Record) error {
	var held *os.File
	for range 5 {
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if err != nil {
			return accessError(dir, err)
		}
		if lock.Try(f, lock.Exclusive) == nil {
			held = f
			break
		}
		if err := f.Close(); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	if held == nil {
		return nil // the next update tries again
	}
	defer held.Close()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return accessError(dir, err)
	}
	current := []string{filepath.Base(r.Data), filepath.Base(aliasDir(filepath.Dir(dir), r.Name, r.Data))}
	for _, e := range entries {
		version := strings.HasPrefix(e.Name(), "data") || strings.HasPrefix(e.Name(), "alias")
		if e.IsDir() && version && !slices.Contains(current, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return accessError(dir, err)
}
