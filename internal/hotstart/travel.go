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

	"premix/internal/kit/owner"
	"premix/internal/kit/regex"
)

// An exported snapshot has the same layout as a snapshot in a store, but the paths of its
// stamps are relative to its directory.

// servedPath matches a path that contains the digest of a tree, and so always has the same
// content.
var servedPath = regex.Lazy(`/([0-9a-f]{64})/`)

// served reports whether a file lies in a mounted tree that its path names by
// digest. The store verifies every byte of this file when it is read, and a path that
// contains a digest always means the same bytes. So premix need not read the whole file
// to compare it. The file may have 30 GB, of which not all may be on this machine.
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

// Export writes a snapshot to dir in the form that another machine can import. dir must
// be an empty directory on the snapshot's filesystem, since Export links large files and
// does not copy them. The caller removes dir after it has published it.
func (s *Snapshot) Export(dir string) error {
	if err := s.verify(false); err != nil {
		return err
	}
	if !s.Whole() {
		return fmt.Errorf("snapshot %s has no image: its proof failed", s.ID)
	}
	away := *s
	away.Dir, away.lock, away.Stamps, away.Pages = dir, nil, nil, ""
	for _, stamp := range s.Stamps {
		name := filepath.Base(stamp.Path)
		if stamp.Path == s.pagePath() {
			name = pageName
		}
		if err := linkOrCopy(stamp.Path, filepath.Join(dir, name)); err != nil {
			return err
		}
		away.Stamps = append(away.Stamps, Stamp{Path: name, Size: stamp.Size, Digest: stamp.Digest})
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

// Import makes a snapshot on this machine from the files that Export wrote to dir. If
// dir is a mounted tree, it must stay mounted as long as the snapshot is used, and the
// page file is not copied; an earlier import of the same tree goes, unless a run uses it. From
// an ordinary directory the page file is copied. If the
// snapshot cannot be used here, because the kernel, the CPU or a binary differs, the
// error is a *Mismatch.
func Import(store, dir string) (*Snapshot, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := readTraveller(dir)
	if err != nil {
		return nil, err
	}
	s.Pages = ""
	if err := s.Fingerprint.settle(); err != nil {
		return nil, err
	}
	if err := owner.MkdirAll(store, 0o700); err != nil {
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
	return s, s.removeEarlier(store)
}

// removeEarlier removes earlier imports of the same tree, which no run uses.
func (s *Snapshot) removeEarlier(store string) error {
	all, err := List(store)
	if err != nil || s.Pages == "" {
		return err
	}
	for _, old := range all {
		if old.ID == s.ID || old.Pages != s.Pages {
			continue
		}
		if err := old.Remove(); err != nil && !errors.Is(err, ErrInUse) {
			return err
		}
	}
	return nil
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
		return nil, &oldFormat{name, s.Version}
	}
	return s, nil
}

// RequiredTrees returns the digests of the trees with the data of an exported snapshot, each once.
// Before Import they must be mounted at the same paths as on the machine where the
// snapshot was made.
func RequiredTrees(dir string) ([]string, error) {
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
	if err := os.Mkdir(filepath.Join(s.Dir, workName), 0o700); err != nil {
		return err
	}
	if err := copyDir(filepath.Join(dir, workName), filepath.Join(s.Dir, workName), nil); err != nil {
		return err
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
	seen := map[string]bool{}
	for _, stamp := range s.Stamps {
		if stamp.Path != imageName && stamp.Path != prefixName && stamp.Path != pageName {
			return fmt.Errorf("the snapshot names a file that is not its own: %s", stamp.Path)
		}
		seen[stamp.Path] = true
		from, to := filepath.Join(dir, stamp.Path), filepath.Join(s.Dir, stamp.Path)
		if stamp.Path == pageName && served(from) {
			s.Pages = from // verified by the store when it is read
			continue
		}
		if err := copyFile(from, to, 0o600); err != nil {
			return err
		}
		if stamp.Path == pageName {
			continue
		}
		digest, err := digestFile(to)
		if err != nil {
			return err
		}
		if digest != stamp.Digest {
			return &Damaged{s.ID, from + " has other bytes"}
		}
	}
	if !seen[imageName] || !seen[pageName] {
		return fmt.Errorf("%s holds no image", dir)
	}
	if s.Pages == "" {
		if err := s.verifyPages(); err != nil {
			return &Damaged{s.ID, err.Error()}
		}
	}
	s.Created = time.Now().UTC()
	if err := s.seal(); err != nil {
		return err
	}
	return s.save()
}

// settle compares a fingerprint from another machine with this machine. It replaces the
// inodes and times in its stamps by the values on this machine.
func (fp *Fingerprint) settle() error {
	now, err := hostFingerprint(Spec{Recipe: fp.Recipe})
	now.Image = fp.Image // a run compares it with the image that it has
	fp.User = now.User   // the user who takes it, with the capabilities that the user has here
	if fp.Image != "" {
		now.Umask, fp.User = fp.Umask, ""
		now.User = ""
	}
	if err != nil {
		return err
	}
	if err := fp.compareHost(now); err != nil {
		return err
	}
	for i, there := range fp.Files {
		if there.Aspect != "" {
			// The recorded times are from another machine.
			here, err := aspectStamp(there.Path, there.Aspect)
			if err != nil {
				return err
			}
			if here.Aspect != there.Aspect || here.Size != there.Size || here.Mode != there.Mode || here.Digest != there.Digest {
				return &Mismatch{there.Path + " differs on this machine"}
			}
			fp.Files[i] = here
			continue
		}
		here, err := stampFile(there.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return &Mismatch{there.Path + " is missing on this machine"}
		case err != nil:
			return err
		case here.Size != there.Size || here.Digest != there.Digest:
			return &Mismatch{there.Path + " differs on this machine"}
		}
		fp.Files[i] = here
	}
	return nil
}
