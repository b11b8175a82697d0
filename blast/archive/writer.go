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
	return &Tail{slices.Concat(t.Text[:at+none], blocks[first:first+end], blocks[none+end2:])}
}
