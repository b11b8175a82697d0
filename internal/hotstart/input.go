package hotstart

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/gzip"
)

// probeRecords is how many records of a FASTQ file make up a probe: enough for
// every phase of a tool to be run, few enough to cost nothing beside
// the loading of an index.
const probeRecords = 1000

// isGzip reports whether a file begins as gzip (RFC 1952). It does not move the offset.
func isGzip(f *os.File) (bool, error) {
	var magic [2]byte
	n, err := f.ReadAt(magic[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return n == 2 && magic == [2]byte{0x1f, 0x8b}, nil
}

// decompress writes the plain text of a gzip file, of one member or several
// (bgzip, concatenated), to a new file.
func decompress(f *os.File, path string) error {
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return &InputError{fmt.Errorf("%s: %w", f.Name(), err)}
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	w := bufio.NewWriterSize(out, 1<<20)
	if _, err := io.Copy(w, z); err != nil {
		return fmt.Errorf("decompress %s: %w", f.Name(), err)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return out.Close()
}

// cutProbe makes a small version of each input of a sample in dir. For a FASTQ file this
// is the first n records, gzipped if the original is. Other files stay unchanged.
func cutProbe(inputs map[string]string, dir string, n int) (map[string]string, error) {
	probe := map[string]string{}
	for name, path := range inputs {
		out := filepath.Join(dir, filepath.Base(name))
		cut, err := cutFASTQ(path, out, n)
		if err != nil {
			return nil, &InputError{fmt.Errorf("probe from %s: %w", path, err)}
		}
		if !cut {
			out = path
		}
		probe[name] = out
	}
	return probe, nil
}

func cutFASTQ(path, to string, records int) (bool, error) {
	in, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer in.Close()
	compressed, err := isGzip(in)
	if err != nil {
		return false, err
	}
	var text io.Reader = in
	if compressed {
		z, err := gzip.NewReader(in)
		if err != nil {
			return false, err
		}
		text = z
	}
	r := bufio.NewReaderSize(text, 1<<20)
	if first, err := r.Peek(1); err != nil || first[0] != '@' {
		return false, nil
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	defer out.Close()
	var w io.Writer = out
	var z *gzip.Writer
	if compressed {
		z = gzip.NewWriter(out)
		w = z
	}
	for n := 0; n < 4*records; n++ {
		line, err := r.ReadBytes('\n')
		if n == 2 && !bytes.HasPrefix(line, []byte("+")) {
			return false, nil // records of several lines, or not FASTQ at all
		}
		if _, werr := w.Write(line); werr != nil {
			return false, werr
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
	}
	if z != nil {
		if err := z.Close(); err != nil {
			return false, err
		}
	}
	return true, out.Close()
}
