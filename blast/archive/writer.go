package archive

import (
	"bufio"
	"bytes"
	"io"
	"slices"
)

// Writer writes archives, laid out as BLAST+ does.
type Writer struct {
	out *bufio.Writer
	any bool // alignments were written in this archive
}

// NewWriter writes archives to w.
func NewWriter(w io.Writer) *Writer { return &Writer{out: bufio.NewWriterSize(w, 256<<10)} }

// Begin begins an archive.
func (w *Writer) Begin(h *Head) {
	w.any = false
	w.put(h.Text, []byte("\n"))
}

// Add adds alignments.
func (w *Writer) Add(alignments ...[]byte) {
	for _, a := range alignments {
		if w.any {
			w.put([]byte(",\n"))
		} else {
			w.put([]byte("    alignments {\n"))
			w.any = true
		}
		w.put([]byte("      "), a)
	}
}

// End ends the archive. The writer's errors are told here.
func (w *Writer) End(t *Tail) error {
	if !w.any {
		w.put([]byte("    alignments {"))
	}
	w.put([]byte("\n    },\n    "))
	w.put(bytes.TrimSpace(t.Text), []byte("\n"))
	return w.out.Flush()
}

func (w *Writer) put(pieces ...[]byte) {
	for _, p := range pieces {
		w.out.Write(p) // its error is kept and returned by Flush
	}
}

// JoinHeads makes the head of one archive of those of several, which differ in their
// queries.
func JoinHeads(heads []*Head) *Head {
	first := heads[0]
	if len(heads) == 1 || len(first.queries) == 0 {
		return first
	}
	j := &Head{Hitlist: first.Hitlist}
	j.Text = append(j.Text, first.Text[:first.queries[0].from]...)
	for _, h := range heads {
		for _, q := range h.queries {
			if len(j.queries) > 0 {
				j.Text = append(j.Text, ",\n          "...)
			}
			at := len(j.Text)
			j.Text = append(j.Text, h.Text[q.from:q.to]...)
			j.queries = append(j.queries, span{at, len(j.Text)})
		}
		j.Queries = append(j.Queries, h.Queries...)
	}
	j.Text = append(j.Text, first.Text[first.queries[len(first.queries)-1].to:]...)
	return j
}

// JoinTails makes the tail of one archive of those of several: all masks, and all else
// of the first, as BLAST+ has it.
func JoinTails(tails []*Tail) *Tail {
	first := tails[0]
	var masks []byte
	for _, t := range tails {
		m := bytes.TrimSpace(t.Text[t.masks.from:t.masks.to])
		if len(m) == 0 {
			continue
		}
		if len(masks) > 0 {
			masks = append(masks, ",\n      "...)
		}
		masks = append(masks, m...)
	}
	if len(tails) == 1 || len(masks) == 0 {
		return first
	}
	j := &Tail{}
	j.Text = append(j.Text, first.Text[:first.masks.from]...)
	j.Text = append(j.Text, "\n      "...)
	j.Text = append(j.Text, masks...)
	j.masks = span{first.masks.from, len(j.Text)}
	j.Text = append(j.Text, "\n    "...)
	j.Text = append(j.Text, first.Text[first.masks.to:]...)
	return j
}

// GappedAsUngapped is the tail with the Karlin-Altschul parameters of ungapped alignments
// also for gapped ones, where it has none for those.
func (t *Tail) GappedAsUngapped() *Tail {
	at := bytes.Index(t.Text, []byte("ka-blocks {"))
	if at < 0 {
		return t
	}
	blocks := t.Text[at:]
	none := bytes.Index(blocks, []byte("lambda { -1, 10, 0 }"))
	first := bytes.Index(blocks, []byte("lambda {"))
	if none <= first {
		return t // there are some, or none at all
	}
	end := bytes.Index(blocks[first:], []byte("gapped "))
	end2 := bytes.Index(blocks[none:], []byte("gapped "))
	if end < 0 || end2 < 0 {
		return t
	}
	return &Tail{
		Text:  slices.Concat(t.Text[:at+none], blocks[first:first+end], blocks[none+end2:]),
		masks: t.masks, // they stand before
	}
}

// Rename gives the query of a head another number. BLAST+ calls queries without parsed
// ids Query_1, Query_2, ...
func (h *Head) Rename(from, to string) *Head {
	if from == to {
		return h
	}
	r := &Head{Hitlist: h.Hitlist, Queries: slices.Clone(h.Queries)}
	for i, q := range r.Queries {
		if q == `local str "`+from+`"` {
			r.Queries[i] = `local str "` + to + `"`
		}
	}
	at := 0
	for _, q := range h.queries {
		r.Text = append(r.Text, h.Text[at:q.from]...)
		n := len(r.Text)
		r.Text = append(r.Text, Rename(h.Text[q.from:q.to], from, to)...)
		r.queries = append(r.queries, span{n, len(r.Text)})
		at = q.to
	}
	r.Text = append(r.Text, h.Text[at:]...)
	return r
}

// Rename gives the query of a tail another number.
func (t *Tail) Rename(from, to string) *Tail {
	if from == to {
		return t
	}
	masks := Rename(t.Text[t.masks.from:t.masks.to], from, to)
	r := &Tail{masks: span{t.masks.from, t.masks.from + len(masks)}}
	r.Text = slices.Concat(t.Text[:t.masks.from], masks, t.Text[t.masks.to:])
	return r
}

// Rename gives the query of an alignment another number.
func Rename(text []byte, from, to string) []byte {
	return bytes.ReplaceAll(text, []byte(`local str "`+from+`"`), []byte(`local str "`+to+`"`))
}
