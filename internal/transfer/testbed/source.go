package testbed

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"premix/internal/transfer/link"
	"premix/internal/transfer/peer"
)

// source is data to copy, here or at the peer.
type source struct {
	data   link.Data
	key    [16]byte
	digest string // see transfer.Copy.SHA256
}

// perDirectory is the number of files in a directory of a tree.
const perDirectory = 1000

func newSource(d link.Data, seed uint64) *source {
	h := sha256.Sum256(fmt.Appendf(nil, "premix transfer %d %d %d", seed, d.Files, d.Size))
	return &source{data: d, key: [16]byte(h[:16])}
}

// name returns the name of its file or directory.
func (s *source) name() string { return "data-" + s.data.String() }

// bytes returns an endless stream that begins with the data.
func (s *source) bytes() io.Reader {
	block, err := aes.NewCipher(s.key[:])
	if err != nil {
		panic(err) // AES accepts keys of 16 bytes
	}
	return cipher.StreamReader{S: cipher.NewCTR(block, make([]byte, aes.BlockSize)), R: zeros{}}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// make writes the data to at, or nowhere if at is empty, and stores its digest.
func (s *source) make(ctx context.Context, at string) error {
	in := &interruptible{ctx, bufio.NewReaderSize(s.bytes(), 1<<20)}
	if s.data.Files == 1 {
		sum, err := writeFile(at, in, s.data.Size)
		s.digest = sum
		return err
	}
	each := s.data.Size / int64(s.data.Files)
	list := sha256.New()
	for i := range s.data.Files {
		name := fmt.Sprintf("d%03d/f%06d", i/perDirectory, i)
		file := ""
		if at != "" {
			file = filepath.Join(at, name)
			if i%perDirectory == 0 {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					return err
				}
			}
		}
		sum, err := writeFile(file, in, each)
		if err != nil {
			return err
		}
		fmt.Fprintf(list, "%s  ./%s\n", sum, name)
	}
	s.digest = hex.EncodeToString(list.Sum(nil))
	return nil
}

type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(b []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.r.Read(b)
}

// writeFile writes n bytes to a file, or nowhere if at is empty, and returns their digest.
func writeFile(at string, in io.Reader, n int64) (string, error) {
	h := sha256.New()
	if at == "" {
		_, err := io.CopyN(h, in, n)
		return hex.EncodeToString(h.Sum(nil)), err
	}
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	_, err = io.CopyN(io.MultiWriter(f, h), in, n)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// makeAt creates the data at the peer, and compares its digest.
func (s *source) makeAt(ctx context.Context, p *peer.Session, l *link.Link, at string, upload func(ctx context.Context, in io.Reader, to string) error) error {
	if err := s.make(ctx, ""); err != nil { // for the digest
		return err
	}
	q := link.Quote(at)
	stream := fmt.Sprintf("openssl enc -aes-128-ctr -nosalt -K %x -iv %032d -in /dev/zero 2>/dev/null | head -c %d", s.key, 0, s.data.Size)
	if _, err := p.Run(ctx, "command -v openssl"); err != nil {
		if err := upload(ctx, io.LimitReader(s.bytes(), s.data.Size), at+".stream"); err != nil {
			return err
		}
		stream = "cat " + link.Quote(at+".stream")
	}
	script := stream + " >" + q
	if s.data.Files > 1 {
		script = fmt.Sprintf("mkdir -p %s && cd %s && %s | split -b %d -a 6 -d - f && for i in $(seq -f %%03g 0 %d); do mkdir d$i && mv f${i}??? d$i/ || exit 1; done",
			q, q, stream, s.data.Size/int64(s.data.Files), (s.data.Files-1)/perDirectory)
	}
	// With -C the shell opens files with O_EXCL, as writeFile does here.
	if _, err := p.Run(ctx, "set -C; "+script+"; s=$?; rm -f "+link.Quote(at+".stream")+"; exit $s"); err != nil {
		return fmt.Errorf("make %s at the peer: %w", path.Base(at), err)
	}
	sum, err := DigestAt(ctx, p, at, s.data.Files > 1)
	if err == nil && sum != s.digest {
		err = fmt.Errorf("%s at the peer has the wrong content: is its disk full?", at)
	}
	return err
}

// Digest returns the digest of a file or tree here, in the form of transfer.Copy.SHA256.
func Digest(ctx context.Context, at string) (string, error) {
	info, err := os.Lstat(at)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return digestFile(ctx, at)
	}
	var names []string
	err = filepath.WalkDir(at, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		rest, err := filepath.Rel(at, p)
		names = append(names, "./"+rest)
		return err
	})
	if err != nil {
		return "", err
	}
	slices.Sort(names)
	list := sha256.New()
	for _, n := range names {
		sum, err := digestFile(ctx, filepath.Join(at, n))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(list, "%s  %s\n", sum, n)
	}
	return hex.EncodeToString(list.Sum(nil)), nil
}

func digestFile(ctx context.Context, at string) (string, error) {
	f, err := os.Open(at)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, &interruptible{ctx, f})
	return hex.EncodeToString(h.Sum(nil)), err
}

// DigestAt is Digest for a file or tree at the peer.
func DigestAt(ctx context.Context, p *peer.Session, at string, tree bool) (string, error) {
	text, err := p.Run(ctx, DigestScript(at, tree))
	if err != nil {
		return "", err
	}
	return DigestOf(text), nil
}

// DigestScript returns a script of sh whose output begins with the result of Digest.
func DigestScript(at string, tree bool) string {
	q := link.Quote(at)
	if tree {
		return "cd " + q + " && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
	}
	return "sha256sum <" + q
}

// DigestOf returns the digest from the output of such a script.
func DigestOf(text string) string {
	sum, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	return sum
}
