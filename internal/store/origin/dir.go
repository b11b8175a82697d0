package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"premix/internal/store/object"
)

// Dir is the origin of a store in a local directory.
type Dir struct{ path string }

// NewDir returns the origin of the store in a directory, which need not exist yet.
func NewDir(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return &Dir{abs}, nil
}

func (d *Dir) String() string { return d.path }

// Object implements [Origin].
func (d *Dir) Object(ctx context.Context, name object.Digest) ([]byte, error) {
	return d.read(ctx, name.Path(), object.MaxStored)
}

// File implements [Origin].
func (d *Dir) File(ctx context.Context, name string) ([]byte, error) {
	return d.read(ctx, name, MaxFile)
}

func (d *Dir) read(ctx context.Context, name string, limit int64) ([]byte, error) {
	fail := func(k Kind, err error) ([]byte, error) {
		return nil, &Error{Origin: d.path, Name: name, Kind: k, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !fs.ValidPath(name) {
		return fail(Misnamed, nil)
	}
	// Open within the root, so that a link in a store cannot lead out of it.
	f, err := os.OpenInRoot(d.path, name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(d.path); err != nil {
			return fail(Unreachable, err)
		}
		return fail(NotFound, nil)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fail(Refused, err)
	}
	if err != nil {
		return fail(Broken, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fail(Broken, err)
	}
	if !info.Mode().IsRegular() {
		return fail(Unexpected, errors.New("it is not a regular file"))
	}
	if info.Size() > limit {
		return fail(TooLarge, fmt.Errorf("%d bytes", info.Size()))
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return fail(Truncated, err)
	}
	return b, nil
}
