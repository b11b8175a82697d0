package archive

import (
	"bufio"
	"bytes"
	"io"
	"slices"
)

// Writer writes archives with the layout of BLAST+.
type Writer struct {
	out *bufio.Writer
	any bool // alignments were written in this archive
}

// NewWriter returns a writer of archives to w.
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

// End ends the archive. It returns the first error of the writer.
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
		w.out.Write(p) // Flush returns its error
	}
}

// GappedAsUngapped returns the tail with its Karlin-Altschul parameters of ungapped
// alignments repeated as those of gapped alignments, if it has none for these.
func (t *Tail) GappedAsUngapped() *Tail {
	at := bytes.Index(t.Text, []byte("ka-blocks {"))
	if at < 0 {
		return t
	}
	blocks := t.Text[at:]
	none := bytes.Index(blocks, []byte("lambda { -1, 10, 0 }"))
	first := bytes.Index(blocks, []byte("lambda {"))
	if none <= first {
		return t // it has both, or neither
	}
	end := bytes.Index(blocks[first:], []byte("gapped "))
	end2 := bytes.Index(blocks[none:], []byte("gapped "))
	if end < 0 || end2 < 0 {
		return t
	}
	return &Tail{slices.Concat(t.Text[:at+none], blocks[first:first+end], blocks[none+end2:])}
}
