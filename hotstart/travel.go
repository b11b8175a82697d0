package hotstart

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"premix/hotstart/criu"
	"premix/internal/regex"
)

// A snapshot that travels has the layout of one at home, but for three things:
// paths of stamps are relative to its directory, there is one kind of images
// (hot/ with the page file, or copy/ where there is no hot/), and Pages still
// says where the page file was, since that is how the images name it.

// servedPath recognises a path whose content its name fixes: it goes through the
// digest of a tree.
var servedPath = regex.Lazy(`/([0-9a-f]{64})/`)

// served tells whether a file lies in a mounted tree that its path names by
// digest. The store verifies every byte of such a file when it is read, and a
// path that contains a digest can't come to mean other bytes: reading the file
// whole to compare it, for 30 GB that have perhaps not even arrived, would tell
// nothing new.
func served(path string) bool {
	if !servedPath().MatchString(path) {
		return false
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		return false
	}
	return st.Type == unix.EROFS_SUPER_MAGIC_V1 || st.Type == unix.FUSE_SUPER_MAGIC
}

// Export lays a snapshot out in dir, so that it can travel. dir must be an
// empty directory on the snapshot's own filesystem: what is large is linked, not
// copied. The caller removes it once it has been published.
func (s *Snapshot) Export(dir string) error {
	if err := s.verify(false); err != nil {
		return err
	}
	kind := Copy
	if s.has(Hot) {
		kind = Hot
	}
	if !s.has(kind) {
		return fmt.Errorf("snapshot %s has no images: it only keeps proofs", s.ID)
	}
	away := *s
	away.Dir, away.lock, away.Stamps, away.Pages = dir, nil, nil, ""
	for _, stamp := range s.Stamps {
		rel, err := filepath.Rel(s.Dir, stamp.Path)
		if stamp.Path == s.pagePath() {
			rel, err = pageName, nil
			away.Pages = stamp.Path
		}
		if err != nil {
			return err
		}
		if rel != pageName && filepath.Dir(rel) != string(kind) {
			continue
		}
		target := filepath.Join(dir, rel)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		if err := linkOrCopy(stamp.Path, target); err != nil {
			return err
		}
		away.Stamps = append(away.Stamps, Stamp{Path: rel, Size: stamp.Size, Digest: stamp.Digest})
	}
	work := filepath.Join(dir, workName)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if err := copyDir(filepath.Join(s.Dir, workName), work, nil); err != nil {
		return err
	}
	if s.Fingerprint.Image != "" {
		upper := filepath.Join(dir, upperName)
		if err := os.Mkdir(upper, 0o700); err != nil {
			return err
		}
		if err := copyUpper(filepath.Join(s.Dir, upperName), upper); err != nil {
			return err
		}
	}
	return away.save()
}

// linkOrCopy copies where a link is impossible: out of a mounted tree.
func linkOrCopy(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return copyFile(from, to, 0o600)
	}
	return err
}

// Import makes a snapshot of this machine from one that Export laid out in dir:
// a mounted tree, which has to stay mounted for as long as the snapshot is used,
// and whose page file is not copied, or an ordinary directory, whose is. What
// makes the snapshot useless here, another kernel, CPU or binary, is a *Mismatch.
func Import(store, dir string) (*Snapshot, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := readTraveller(dir)
	if err != nil {
		return nil, err
	}
	if err := s.Fingerprint.settle(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, err
	}
	if store, err = filepath.Abs(store); err != nil {
		return nil, err
	}
	if !keyForm().MatchString(s.Key) {
		return nil, fmt.Errorf("%s: the key %q is malformed", filepath.Join(dir, metaName), s.Key)
	}
	if s.Dir, err = os.MkdirTemp(store, s.Key+"-"); err != nil {
		return nil, err
	}
	s.ID = filepath.Base(s.Dir)
	if err := s.moveIn(dir); err != nil {
		os.RemoveAll(s.Dir)
		return nil, err
	}
	return s, nil
}

func readTraveller(dir string) (*Snapshot, error) {
	name := filepath.Join(dir, metaName)
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if s.Version != metaVersion {
		return nil, fmt.Errorf("%s: format %d, this premix reads %d", name, s.Version, metaVersion)
	}
	return s, nil
}

// Needs returns the digests of the trees in which data of an exported snapshot
// lies, each once. They have to be mounted, at the same paths as where the
// snapshot was made, before Import.
func Needs(dir string) ([]string, error) {
	s, err := readTraveller(dir)
	if err != nil {
		return nil, err
	}
	var digests []string
	for _, f := range s.Fingerprint.Files {
		if m := servedPath().FindStringSubmatch(f.Path); m != nil && f.Served && !slices.Contains(digests, m[1]) {
			digests = append(digests, m[1])
		}
	}
	return digests, nil
}

var keyForm = regex.Lazy(`^[0-9a-f]{16}$`)

func (s *Snapshot) moveIn(dir string) error {
	kinds := 0
	for _, kind := range []Kind{Hot, Copy} {
		err := os.Mkdir(filepath.Join(s.Dir, string(kind)), 0o700)
		if err != nil {
			return err
		}
		err = copyDir(filepath.Join(dir, string(kind)), filepath.Join(s.Dir, string(kind)), nil)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(filepath.Join(s.Dir, string(kind)))
		} else {
			kinds++
		}
		if err != nil {
			return err
		}
	}
	if kinds == 0 {
		return fmt.Errorf("%s holds no images", dir)
	}
	if err := os.Mkdir(filepath.Join(s.Dir, workName), 0o700); err != nil {
		return err
	}
	if err := copyDir(filepath.Join(dir, workName), filepath.Join(s.Dir, workName), nil); err != nil {
		return err
	}
	was, pages := s.Pages, filepath.Join(dir, pageName)
	s.Pages = ""
	if was != "" {
		if served(pages) {
			s.Pages = pages
		} else if err := copyFile(pages, s.pagePath(), 0o600); err != nil {
			return err
		}
		if s.Fingerprint.Image == "" { // else it is mounted where the images say
			if err := criu.Relocate(filepath.Join(s.Dir, string(Hot)), was, s.pagePath()); err != nil {
				return err
			}
		}
	}
	if s.Fingerprint.Image != "" {
		upper := filepath.Join(s.Dir, upperName)
		if err := os.Mkdir(upper, 0o700); err != nil {
			return err
		}
		if err := copyUpper(filepath.Join(dir, upperName), upper); err != nil {
			return err
		}
	}
	// Each file is compared with what it was where it was made. The images that
	// name the page file are other bytes now, and the page file of a tree has
	// been verified by the store, or will be when it is read.
	for _, stamp := range s.Stamps {
		if filepath.IsAbs(stamp.Path) || !filepath.IsLocal(stamp.Path) {
			return fmt.Errorf("the snapshot names a file outside itself: %s", stamp.Path)
		}
		from := filepath.Join(dir, stamp.Path)
		if served(from) {
			continue
		}
		digest, err := "", error(nil)
		if stamp.Path == pageName {
			digest, err = s.digestPages()
		} else {
			digest, err = digestFile(from)
		}
		if err != nil {
			return err
		}
		if digest != stamp.Digest {
			return &Damaged{s.ID, from + " has other bytes"}
		}
	}
	s.Created = time.Now().UTC()
	if err := s.seal(); err != nil {
		return err
	}
	return s.save()
}

// settle compares a fingerprint from elsewhere with this machine and replaces
// what its stamps say of inodes and times by what holds here.
func (fp *Fingerprint) settle() error {
	now, err := hostFingerprint(Spec{Recipe: fp.Recipe})
	now.Image = fp.Image // a run compares it with the image that it has
	if err != nil {
		return err
	}
	if err := fp.compareHost(now); err != nil {
		return err
	}
	for i, there := range fp.Files {
		here, err := stampFile(there.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return &Mismatch{there.Path + " is missing here"}
		case err != nil:
			return err
		case here.Size != there.Size || here.Digest != there.Digest:
			return &Mismatch{there.Path + " is another file here"}
		}
		fp.Files[i] = here
	}
	return nil
}
