package trace

import (
	"archive/zip"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"premix/internal/kit/exit"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// Error is returned for a trace that cannot be read at all.
type Error struct {
	Path     string
	Reason   string
	HintText string // the hint
	Err      error
}

func (e *Error) Error() string { return fmt.Sprintf("trace %s: %s", e.Path, e.Reason) }

// ExitCode implements exit.Coded.
func (*Error) ExitCode() exit.Code { return exit.Usage }
func (e *Error) Unwrap() error     { return e.Err }

// Hint returns the way to resolve the error.
func (e *Error) Hint() string { return e.HintText }

// Options give information that a file lacks.
type Options struct {
	// Columns are the fields of sacct's parsable output without a header line, in the form
	// of its option --format; empty: the fields for which XDMoD asks sacct.
	Columns string
}

// maxLine is the length of the longest line.
const maxLine = 4 << 20

// maxDocument is the size of the largest JSON document, in bytes.
const maxDocument = 4 << 30

// Open reads a trace from a file, or from a directory of premix.
func Open(path string, o Options) (*Trace, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &Error{Path: path, Reason: reason(err), HintText: "give a trace: a Standard Workload File, an output of sacct, a trace of Nextflow, a WfInstance, or a directory of premix", Err: err}
	}
	if info.IsDir() {
		return openDir(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{Path: path, Reason: reason(err), Err: err}
	}
	defer f.Close()
	r, done, err := plain(f, info.Size())
	if err != nil {
		return nil, &Error{Path: path, Reason: err.Error(), HintText: "it should be plain, a .gz, or a .zip with one file in it", Err: err}
	}
	defer done()
	return Read(r, filepath.Base(path), info.Size(), o)
}

func reason(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// plain returns the uncompressed content of a file.
func plain(f *os.File, size int64) (io.Reader, func(), error) {
	head := make([]byte, 4)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, nil, fmt.Errorf("its gzip header is damaged: %w", err)
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		z, err := zip.NewReader(f, size)
		if err != nil {
			return nil, nil, fmt.Errorf("its zip directory is damaged: %w", err)
		}
		var only *zip.File
		for _, file := range z.File {
			if file.FileInfo().IsDir() || strings.HasPrefix(file.Name, "__MACOSX/") {
				continue
			}
			if only != nil {
				return nil, nil, fmt.Errorf("it holds %s, %s and perhaps more", only.Name, file.Name)
			}
			only = file
		}
		if only == nil {
			return nil, nil, errors.New("it contains no file")
		}
		r, err := only.Open()
		if err != nil {
			return nil, nil, fmt.Errorf("%s in it: %w", only.Name, err)
		}
		return r, func() { r.Close() }, nil
	}
	return f, func() {}, nil
}

// Read reads a trace of any format. name is used in messages; size is an estimate of its
// length.
func Read(r io.Reader, name string, size int64, o Options) (*Trace, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	head, err := b.Peek(64 << 10)
	if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
		return nil, &Error{Path: name, Reason: err.Error(), Err: err}
	}
	var t *Trace
	switch {
	case len(bytes.TrimSpace(head)) == 0:
		return nil, &Error{Path: name, Reason: "is empty", HintText: "the file may be cut short: compare it with its source"}
	case looksJSON(head):
		t, err = readJSON(b, name)
	case looksSacct(head):
		t, err = readSacct(b, name, o)
	case looksNextflow(head):
		t, err = readNextflow(b, name)
	default:
		t, err = readSWF(b, name, size)
	}
	if err != nil {
		var known *Error
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, &Error{Path: name, Reason: err.Error(), HintText: "the file may be cut short: compare it with its source", Err: err}
	}
	if t.Len() == 0 {
		e := &Error{Path: name, Reason: fmt.Sprintf("read as %s it has no job: %d bad lines, %d left out", t.Format, t.Read.Bad, t.Read.Out),
			HintText: "premix replay reads Standard Workload Files, sacct's output, traces of Nextflow and WfInstances"}
		if len(t.Read.First) > 0 {
			e.Reason += fmt.Sprintf("; line %d: %s", t.Read.First[0].Line, t.Read.First[0].Why)
		}
		return nil, e
	}
	return t, nil
}

func looksJSON(head []byte) bool {
	head = bytes.TrimSpace(head)
	return head[0] == '{' || head[0] == '['
}

// firstLine returns the first line that is not blank.
func firstLine(head []byte) []byte {
	for line := range bytes.Lines(head) {
		if line = bytes.TrimRight(line, "\r\n"); len(bytes.TrimSpace(line)) > 0 {
			return line
		}
	}
	return nil
}

// lines calls f with each line and its number. For a line that is too long, the line is
// nil.
func lines(r *bufio.Reader, f func(n int, line []byte)) error {
	var long []byte
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			long = long[:0]
			tooLong := false
			for err == bufio.ErrBufferFull {
				if tooLong = tooLong || len(long)+len(line) > maxLine; !tooLong {
					long = append(long, line...)
				}
				line, err = r.ReadSlice('\n')
			}
			if tooLong = tooLong || len(long)+len(line) > maxLine; !tooLong {
				long = append(long, line...)
			}
			if line = long; tooLong {
				line = nil
				f(n, nil)
				if err == nil {
					continue
				}
			}
		}
		if len(line) > 0 {
			f(n, bytes.TrimRight(line, "\r\n"))
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}
