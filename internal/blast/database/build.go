package database

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/blast/fasta"
	"premix/internal/kit/beneath"
)

// builder creates the local copy of a database.
type builder struct {
	o       *AddOptions
	data    string // directory of the copy
	scratch string
	desc    Description
	kept    map[string]DataFile // files of the former version, by name; see Update
}

// mark is an offset before a header, where a file of sequences can be cut.
type mark struct {
	offset    int64 // uncompressed
	sequences int64 // before it
	letters   int64 // before it
}

// marks are offsets spread evenly over a stream of unknown length: when there are too many,
// every second one is dropped, and from then on fewer are kept.
type marks struct {
	list      []mark
	stride    int64 // sequences from one to the next
	sequences int64 // so far
	letters   int64
}

// plainID reports whether BLAST+ prints an id unchanged. It may omit parts of an id with bars, and
// prints a number in place of a missing one.
func plainID(id []byte) bool {
	for _, c := range id {
		if c <= ' ' || c > '~' || c == '|' {
			return false
		}
	}
	return len(id) > 0
}

// mostMarks bounds the difference in size between fragments to about one part in 60,000 of
// the whole, if there are many sequences.
const mostMarks = 1 << 17

func (m *marks) add(s fasta.Sequence) {
	if m.stride == 0 {
		m.stride = 1
	}
	if m.sequences%m.stride == 0 {
		if len(m.list) == mostMarks {
			for i := range mostMarks / 2 {
				m.list[i] = m.list[2*i]
			}
			m.list, m.stride = m.list[:mostMarks/2], 2*m.stride
		}
		if m.sequences%m.stride == 0 {
			m.list = append(m.list, mark{s.Offset, m.sequences, m.letters})
		}
	}
	m.sequences, m.letters = m.sequences+1, m.letters+s.Letters
}

// cut returns where each of n fragments begins, so that their numbers of letters are as
// equal as possible. There are at least n marks.
func (m *marks) cut(n int) []mark {
	var at []int
	for i := range n {
		want := m.letters / int64(n) * int64(i)
		j, found := slices.BinarySearchFunc(m.list, want, func(k mark, w int64) int { return compare(k.letters, w) })
		if !found && j > 0 && (j == len(m.list) || want-m.list[j-1].letters < m.list[j].letters-want) {
			j--
		}
		// Each fragment has a sequence, including the ones still to come.
		low := 0
		if i > 0 {
			low = at[i-1] + 1
		}
		at = append(at, max(low, min(j, len(m.list)-n+i)))
	}
	at[0] = 0
	cuts := make([]mark, n)
	for i, j := range at {
		cuts[i] = m.list[j]
	}
	return cuts
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// fasta formats a FASTA file. It reads the file twice: to check it and find where to cut
// it, and to format the fragments.
func (b *builder) fasta(ctx context.Context, path, title string) error {
	o := b.o
	if o.Type == "" {
		return &Error{Kind: Use, Message: "the type of the sequences is not given", HintText: "give --type nucl or --type prot"}
	}
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	o.Progress.Whole.Store(before.Size())
	var m marks
	alphabet := fasta.Nucleotides
	if o.Type == Prot {
		alphabet = fasta.AminoAcids
	}
	r, err := fasta.Open(path)
	if err != nil {
		return err
	}
	b.desc.UniqueIDs = !o.Duplicates && !o.ParseIDs // BLAST+ changes ids that it parses
	sum, err := fasta.Check(&countingReader{ctx, r, &o.Progress.Checked}, path, fasta.Options{Alphabet: alphabet, Duplicates: o.Duplicates}, func(s fasta.Sequence) error {
		b.desc.UniqueIDs = b.desc.UniqueIDs && plainID(s.ID)
		m.add(s)
		return nil
	})
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	n := o.fragments(o.Type, sum.Letters)
	if o.Fragments == 0 {
		n = min(n, len(m.list))
	}
	if n > len(m.list) {
		return &Error{Kind: Use, Message: fmt.Sprintf("%s has %d sequences, too few for %d fragments", path, sum.Sequences, n), HintText: "ask for fewer with --fragments"}
	}
	cuts := m.cut(n)
	o.Progress.Fragments.Store(int64(n))
	if o.Title == "" {
		o.Title = title
	}
	if r, err = fasta.Open(path); err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, cuts[0].offset); err != nil {
		return err
	}
	for i, c := range cuts {
		end := mark{sum.Bytes, sum.Sequences, sum.Letters}
		if i+1 < n {
			end = cuts[i+1]
		}
		p := Range{First: c.sequences, Sequences: end.sequences - c.sequences, Letters: end.letters - c.letters}
		if err := b.format(ctx, fmt.Sprintf("%s.%03d", o.Name, i), io.LimitReader(&countingReader{ctx: ctx, r: r}, end.offset-c.offset), &p); err != nil {
			return err
		}
		b.desc.Fragments = append(b.desc.Fragments, p)
	}
	if err := unchanged(path, before); err != nil {
		return err
	}
	b.desc.Type, b.desc.Version, b.desc.ParsedIDs = o.Type, o.Version, o.ParseIDs
	b.desc.Title, b.desc.Masks, b.desc.Taxonomy = o.Title, o.Masks, o.TaxID != 0 || o.TaxIDMap != ""
	if b.desc.Date.IsZero() {
		b.desc.Date = dateOf(before)
	}
	return nil
}

// unchanged fails if a file has changed since its state was before.
func unchanged(path string, before os.FileInfo) error {
	after, err := os.Stat(path)
	if err != nil {
		return err
	}
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return &Error{Kind: Failed, Message: path + " changed while it was read", HintText: "run the same command again: it starts from the beginning"}
	}
	return nil
}

// dateOf returns the date of a database that was made of a file.
func dateOf(st os.FileInfo) time.Time { return st.ModTime().UTC().Truncate(time.Minute) }

// format runs makeblastdb for one fragment, whose volumes begin with base, and stores their
// names and the digests in p.
func (b *builder) format(ctx context.Context, base string, in io.Reader, p *Range) error {
	o := b.o
	in, digests, err := b.digested(in)
	if err != nil {
		return err
	}
	if err := b.makeblastdb(ctx, base, in, p); err != nil {
		_, _, _ = digests() // the error of makeblastdb is the one to know
		return err
	}
	p.Sum, p.Head, err = digests()
	if err == nil && o.Progress != nil {
		o.Progress.Formatted.Add(1)
	}
	return err
}

// digested returns a reader of the same FASTA, and a function that returns the digests of the
// sequences that were read.
func (b *builder) digested(in io.Reader) (io.Reader, func() (sum, head string, err error), error) {
	settings, err := b.settings()
	if err != nil {
		return nil, nil, err
	}
	alphabet := fasta.Nucleotides
	if b.o.Type == Prot {
		alphabet = fasta.AminoAcids
	}
	read, write := io.Pipe()
	h, head := newFragmentSum(settings), ""
	done := make(chan error, 1)
	go func() {
		_, err := fasta.Check(read, b.o.Source, fasta.Options{Alphabet: alphabet, Duplicates: true, Sums: true}, func(s fasta.Sequence) error {
			if head == "" {
				head = hex.EncodeToString(s.Sum[:])
			}
			h.add(s.Sum)
			return nil
		})
		read.CloseWithError(err)
		done <- err
	}()
	return io.TeeReader(in, write), func() (string, string, error) {
		err := errors.Join(write.Close(), <-done)
		return h.sum(), head, err
	}, nil
}

// makeblastdb runs makeblastdb for one fragment.
func (b *builder) makeblastdb(ctx context.Context, base string, in io.Reader, p *Range) error {
	o := b.o
	args := []string{"-dbtype", string(o.Type), "-title", o.Title, "-out", base, "-blastdb_version", strconv.Itoa(o.Version), "-max_file_sz", "3GB", "-logfile", filepath.Join(b.scratch, "log")}
	if o.ParseIDs {
		args = append(args, "-parse_seqids")
	}
	if o.TaxID != 0 {
		args = append(args, "-taxid", strconv.Itoa(o.TaxID))
	}
	if o.TaxIDMap != "" {
		abs, err := filepath.Abs(o.TaxIDMap)
		if err != nil {
			return err
		}
		args = append(args, "-taxid_map", abs)
	}
	if len(o.Masks) == 0 {
		args = append(args, "-in", "-")
	} else {
		// A masker needs the piece before makeblastdb does.
		piece := filepath.Join(b.scratch, "piece.fa")
		if err := writeAll(piece, in); err != nil {
			return err
		}
		defer os.Remove(piece)
		in = nil
		masks, err := b.mask(ctx, piece)
		if err != nil {
			return err
		}
		args = append(args, "-in", piece, "-mask_data", masks)
	}
	said, err := b.tool(ctx, in, "makeblastdb", args...)
	if err != nil {
		return toolError("makeblastdb", said, err)
	}
	sequences, letters, err := b.volumes(base, o.Type, p)
	if err != nil {
		return err
	}
	// makeblastdb skips sequences that it cannot use, and still exits with 0.
	if sequences != p.Sequences || letters != p.Letters {
		return &Error{Kind: Failed, Message: fmt.Sprintf("makeblastdb has formatted %d sequences of %d letters, but there are %d of %d: %s", sequences, letters, p.Sequences, p.Letters, bytes.TrimSpace(said))}
	}
	return nil
}

// volumes stores the names of the volumes that a program of BLAST+ has made under the name
// base in p, and returns their numbers of sequences and letters.
func (b *builder) volumes(base string, kind Type, p *Range) (sequences, letters int64, err error) {
	index, err := filepath.Glob(filepath.Join(b.data, base+".*"+kind.letter()+"in"))
	if err != nil {
		return 0, 0, err
	}
	if single := filepath.Join(b.data, base+"."+kind.letter()+"in"); exists(single) {
		index = []string{single}
	}
	slices.Sort(index)
	for _, path := range index {
		x, err := readIndex(path)
		if err != nil {
			return 0, 0, err
		}
		p.Volumes = append(p.Volumes, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
		sequences, letters = sequences+x.sequences, letters+x.letters
	}
	// The alias that is written for several volumes is not used.
	if err := os.Remove(filepath.Join(b.data, base+"."+kind.letter()+"al")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, 0, err
	}
	return sequences, letters, nil
}

// mask runs the requested masker over a piece.
func (b *builder) mask(ctx context.Context, piece string) (string, error) {
	out := filepath.Join(b.scratch, "masks")
	program := map[string]string{"dust": "dustmasker", "seg": "segmasker"}[b.o.Masks[0]]
	args := []string{"-in", piece, "-infmt", "fasta", "-outfmt", "maskinfo_asn1_bin", "-out", out}
	if b.o.ParseIDs {
		args = append(args, "-parse_seqids")
	}
	said, err := b.tool(ctx, nil, program, args...)
	if err != nil {
		return "", toolError(program, said, err)
	}
	return out, nil
}

// tool runs a program in the directory of the local copy and returns its output.
func (b *builder) tool(ctx context.Context, in io.Reader, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdin = b.data, in
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	said, err := cmd.CombinedOutput()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return said, err
}

// describe hashes the files, sets the date of the database in them, and writes the
// description.
func (b *builder) describe(ctx context.Context) (*Description, error) {
	d := &b.desc
	d.Format = descriptionFormat
	for _, p := range d.Fragments {
		d.Sequences, d.Letters = d.Sequences+p.Sequences, d.Letters+p.Letters
		if d.By() != BLAST {
			continue // its files have no date
		}
		for _, v := range p.Volumes {
			if err := setDate(filepath.Join(b.data, v+"."+d.Type.letter()+"in"), d.Date.Format(dateForm)); err != nil {
				return nil, err
			}
		}
	}
	names, err := sortedFiles(b.data)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := filepath.Join(b.data, name)
		if f, ok := b.kept[name]; ok {
			d.Files = append(d.Files, f)
			continue
		}
		sum, size, err := sumFile(ctx, path)
		if err != nil {
			return nil, err
		}
		d.Files = append(d.Files, DataFile{Name: name, Size: size, BLAKE3: sum})
		if err := os.Chmod(path, 0o644); err != nil {
			return nil, err
		}
	}
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	sum := blake3.Sum256(content)
	d.ID = hex.EncodeToString(sum[:16])
	if err := writeJSON(filepath.Join(b.data, DescriptionFile), d); err != nil {
		return nil, err
	}
	for _, name := range append(names, DescriptionFile, ".") {
		if err := os.Chtimes(filepath.Join(b.data, name), d.Date, d.Date); err != nil {
			return nil, err
		}
	}
	return d, d.check()
}

// sumFile returns the digest of a file.
func sumFile(ctx context.Context, path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := blake3.New()
	size, err = io.CopyBuffer(struct{ io.Writer }{h}, &countingReader{ctx: ctx, r: f}, make([]byte, 1<<20))
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// countingReader counts the bytes read, and fails when its context ends.
type countingReader struct {
	ctx   context.Context
	r     io.Reader
	count interface{ Add(int64) int64 } // may be nil
}

func (c *countingReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	if c.count != nil {
		c.count.Add(int64(n))
	}
	return n, err
}

// writeAll writes a file under a temporary name and renames it.
func writeAll(path string, r io.Reader) error {
	return beneath.Write(path, 0o666, beneath.Volatile, func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
