package outputs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
)

// Kind is a kind of file that premix writes.
type Kind string

// Kinds, and their marks.
const (
	Page    Kind = "page"                 // HTML with the generator premix in its head
	Table   Kind = "table"                // Parquet with a key of premix in its metadata
	Trace   Kind = "trace"                // a Standard Workload File with the conversion premix in its header
	Profile Kind = "profile"              // a profile of a tree, which begins with the name of its format
	Tries   Kind = "task trace"           // a trace file of tasks, whose last column is [TraceColumn]
	Crate   Kind = "description of a run" // an RO-Crate whose description is [CrateMark]
	Text    Kind = "text"                 // a figure, or a text in another program's format, that ends with Mark
)

// Mark ends files of the kind Text in formats that have XML comments.
const Mark = "<!-- premix -->\n"

// TraceColumn ends the first line of a trace file of tasks.
const TraceColumn = "premix_start"

// CrateMark is the description of an RO-Crate in itself.
const CrateMark = "This description was written by premix report --ro-crate."

// TakenError reports a file that a command would have replaced.
type TakenError struct {
	Path string
	Kind Kind
}

func (e *TakenError) Error() string {
	return e.Path + " is there already, and is not a " + string(e.Kind) + " that premix wrote"
}

// Hint returns the advice for the user.
func (e *TakenError) Hint() string {
	return "give a name that is free; --force replaces the file, whose content is lost then"
}

// Check returns a [TakenError] if the file exists and is not of the kind. An empty file may
// be replaced. A file that is not a regular one, such as a pipe, may be written to.
func Check(path string, kind Kind) error {
	if path == "" || path == "-" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil // it does not exist, or the command will fail to write it
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	own, err := kind.of(f, info.Size())
	if err == nil && !own {
		err = &TakenError{path, kind}
	}
	return err
}

const (
	headMost   = 4 << 10  // bytes that are searched for a mark
	footerMost = 64 << 20 // bytes of a Parquet file's metadata
)

// keys are the metadata keys of premix's tables.
var keys = []string{"premix.files", "premix.records"}

// of reports whether a file has the mark of a kind.
func (k Kind) of(f io.ReaderAt, size int64) (bool, error) {
	head, err := part(f, 0, min(size, headMost))
	if err != nil {
		return false, err
	}
	switch k {
	case Page:
		return bytes.HasPrefix(head, []byte("<!doctype html>")) && bytes.Contains(head, []byte(`<meta name="generator" content="premix">`)), nil
	case Trace:
		return bytes.HasPrefix(head, []byte(";")) && bytes.Contains(head, []byte("\n; Conversion: premix\n")), nil
	case Tries:
		first, _, whole := bytes.Cut(head, []byte("\n"))
		return whole && bytes.HasSuffix(first, []byte("\t"+TraceColumn)), nil
	case Crate:
		return bytes.HasPrefix(head, []byte("{")) && bytes.Contains(head, []byte(CrateMark)), nil
	case Profile:
		return bytes.HasPrefix(head, []byte("{")) && bytes.Contains(head[:min(len(head), 100)], []byte("premix profile ")), nil
	case Text:
		tail, err := part(f, max(0, size-int64(len(Mark))), min(size, int64(len(Mark))))
		return string(tail) == Mark, err
	case Table:
		return table(f, head, size)
	}
	return false, nil
}

func table(f io.ReaderAt, head []byte, size int64) (bool, error) {
	const magic = "PAR1"
	if size < 12 || string(head[:4]) != magic {
		return false, nil
	}
	end, err := part(f, size-8, 8)
	if err != nil || string(end[4:]) != magic {
		return false, err
	}
	n := int64(binary.LittleEndian.Uint32(end))
	if n > min(size-12, footerMost) {
		return false, nil
	}
	footer, err := part(f, size-8-n, n)
	for _, key := range keys {
		if bytes.Contains(footer, []byte(key)) {
			return true, err
		}
	}
	return false, err
}

func part(f io.ReaderAt, at, n int64) ([]byte, error) {
	b := make([]byte, n)
	_, err := f.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, err
}
