package stream

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// place is the path of a copy at one end: a path of this machine or, if there is a jail, a
// path in that directory, out of which no link leads.
type place struct {
	jail *os.Root
	path string
}

var errOutside = errors.New("the path leads out of the served directory")

// within returns the place in a jail for a path that the other end has sent. A leading /
// refers to the jail.
func within(jail *os.Root, asked string) (place, error) {
	rel := filepath.Clean(strings.TrimLeft(asked, "/"))
	if !filepath.IsLocal(rel) {
		return place{}, errOutside
	}
	return place{jail, rel}, nil
}

// top checks the place itself. If it is a link, top replaces it by the path of its target.
func (p *place) top() error {
	if p.jail != nil {
		_, err := p.jail.Stat(p.path)
		return err
	}
	at, err := filepath.EvalSymlinks(p.path)
	if err == nil {
		p.path = at
	}
	return err
}

func (p place) stat(at string) (fs.FileInfo, error) {
	if p.jail != nil {
		return p.jail.Stat(at)
	}
	return os.Stat(at)
}

func (p place) lstat(at string) (fs.FileInfo, error) {
	if p.jail != nil {
		return p.jail.Lstat(at)
	}
	return os.Lstat(at)
}

func (p place) open(at string) (*os.File, error) {
	if p.jail != nil {
		return p.jail.Open(at)
	}
	return os.Open(at)
}

func (p place) readlink(at string) (string, error) {
	if p.jail != nil {
		return p.jail.Readlink(at)
	}
	return os.Readlink(at)
}

// walk calls each for the place and all files below it.
func (p place) walk(each fs.WalkDirFunc) error {
	if p.jail != nil {
		return fs.WalkDir(p.jail.FS(), p.path, each)
	}
	return filepath.WalkDir(p.path, each)
}

func (p place) mkdirAll(at string, mode fs.FileMode) error {
	if p.jail != nil {
		return p.jail.MkdirAll(at, mode)
	}
	return os.MkdirAll(at, mode)
}

func (p place) openRoot(at string) (*os.Root, error) {
	if p.jail != nil {
		return p.jail.OpenRoot(at)
	}
	return os.OpenRoot(at)
}
