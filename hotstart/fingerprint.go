package hotstart

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"
)

// Fingerprint is what must be equal for a snapshot to be valid. CRIU itself
// compares sizes and build ids only, and a build id names a build, not bytes.
type Fingerprint struct {
	Kernel string  `json:"kernel"`          // uname(2), release
	CPU    string  `json:"cpu"`             // digest of the CPU's vendor and features
	Image  string  `json:"image,omitempty"` // digest of the record of the image that the tool runs in
	Recipe string  `json:"recipe"`          // digest of what the recipe freezes
	Files  []Stamp `json:"files"`           // binary, libraries and data; with an image, data only
}

// Stamp is what a file was like. Where size, times and inode are unchanged the
// content is taken to be so: the change time cannot be set back by touch(1).
// Where they differ, the digest decides.
type Stamp struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mtime  int64  `json:"mtime"` // ns since the epoch
	Ctime  int64  `json:"ctime"` // ns since the epoch
	Inode  uint64 `json:"inode"`
	Device uint64 `json:"device"`
	Digest string `json:"digest"` // BLAKE3-256 of the content, hexadecimal
	// Served says that the file lies in a mounted tree: see served. Then size and
	// modification time are all that is noted, since the rest belongs to the mount.
	Served bool `json:"served,omitempty"`
}

// Mismatch says what of a fingerprint differs.
type Mismatch struct{ What string }

func (e *Mismatch) Error() string { return e.What }

// stampFile describes a file, content and all.
func stampFile(path string) (Stamp, error) {
	s, err := statStamp(path)
	if err != nil || s.Served {
		return s, err
	}
	s.Digest, err = digestFile(path)
	return s, err
}

// again describes a file of which s is an earlier stamp, or none. Its content is
// read only if it may have changed: a change of the number of links changes the
// ctime, but not the mtime.
func (s Stamp) again(path string, digest func(path string) (string, error)) (Stamp, error) {
	now, err := statStamp(path)
	if err != nil || now.Served {
		return now, err
	}
	s.Ctime, now.Digest = now.Ctime, s.Digest
	if now == s {
		return now, nil
	}
	now.Digest, err = digest(path)
	return now, err
}

func statStamp(path string) (Stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Stamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if served(path) {
		return Stamp{Path: path, Size: st.Size, Mtime: st.Mtim.Nano(), Served: true}, nil
	}
	return Stamp{Path: path, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
		Inode: st.Ino, Device: st.Dev}, nil
}

func digestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := blake3.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// check compares a file with its stamp. A difference is a *Mismatch.
func (s Stamp) check() error {
	now, err := statStamp(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Mismatch{s.Path + " is missing"}
	}
	if err != nil {
		return err
	}
	if now.Size != s.Size {
		return &Mismatch{fmt.Sprintf("%s has %d bytes instead of %d", s.Path, now.Size, s.Size)}
	}
	now.Digest = s.Digest
	if now == s {
		return nil
	}
	if s.Served {
		return &Mismatch{s.Path + " is not the file of the tree any more"}
	}
	digest, err := digestFile(s.Path)
	if err != nil {
		return err
	}
	if digest != s.Digest {
		return &Mismatch{s.Path + " has changed"}
	}
	return nil
}

// newFingerprint describes this machine, and the files and data of a template.
func newFingerprint(spec Spec, files []string) (Fingerprint, error) {
	fp, err := hostFingerprint(spec)
	if err != nil {
		return fp, err
	}
	var all []string
	if spec.Image == nil {
		all = append(all, files...)
		// A script is mapped by nobody.
		if program, err := lookPath(spec.Argv[0], spec.Env); err == nil {
			all = append(all, program)
		}
	}
	for _, path := range spec.Data {
		found, err := regularFiles(path)
		if err != nil {
			return fp, err
		}
		all = append(all, found...)
	}
	sort.Strings(all)
	for i, path := range all {
		if i > 0 && path == all[i-1] {
			continue
		}
		s, err := stampFile(path)
		if err != nil {
			return fp, err
		}
		fp.Files = append(fp.Files, s)
	}
	return fp, nil
}

func hostFingerprint(spec Spec) (Fingerprint, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Fingerprint{}, err
	}
	cpu, err := cpuDigest()
	if err != nil {
		return Fingerprint{}, err
	}
	fp := Fingerprint{Kernel: unix.ByteSliceToString(u.Release[:]), CPU: cpu, Recipe: spec.Recipe}
	if spec.Image != nil {
		fp.Image = spec.Image.Digest
	}
	return fp, nil
}

// cpuDigest covers what programs choose code by: vendor, model and flags.
func cpuDigest() (string, error) {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	first, _, _ := bytes.Cut(b, []byte("\n\n"))
	h := blake3.New()
	for _, line := range strings.Split(string(first), "\n") {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "vendor_id", "cpu family", "model", "flags":
			fmt.Fprintf(h, "%s=%s\n", strings.TrimSpace(key), strings.TrimSpace(value))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// regularFiles lists path, or all files below it, links followed.
func regularFiles(path string) ([]string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return []string{path}, nil
	}
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	var files []string
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() {
				return nil // dangling, or a directory elsewhere
			}
		} else if !d.Type().IsRegular() {
			return nil
		}
		files = append(files, p)
		return nil
	})
	return files, err
}

func (fp Fingerprint) compareHost(now Fingerprint) error {
	switch {
	case now.Kernel != fp.Kernel:
		return &Mismatch{fmt.Sprintf("the kernel is %s instead of %s", now.Kernel, fp.Kernel)}
	case now.CPU != fp.CPU:
		return &Mismatch{"the CPU has other features"}
	case now.Image != fp.Image:
		return &Mismatch{fmt.Sprintf("the image is %s instead of %s", short(now.Image), short(fp.Image))}
	case now.Recipe != fp.Recipe:
		return &Mismatch{"the recipe has changed"}
	}
	return nil
}

// short is a digest as it is shown to people.
func short(digest string) string {
	if digest == "" {
		return "none"
	}
	return digest[:min(len(digest), 12)]
}

// check compares a snapshot's fingerprint with the present. Differences are a
// *Mismatch that names the first.
func (fp Fingerprint) check(spec Spec) error {
	now, err := hostFingerprint(spec)
	if err != nil {
		return err
	}
	if err := fp.compareHost(now); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, s := range fp.Files {
		if err := s.check(); err != nil {
			return err
		}
		known[s.Path] = true
	}
	for _, path := range spec.Data {
		files, err := regularFiles(path)
		if err != nil {
			return err
		}
		for _, f := range files {
			if !known[f] {
				return &Mismatch{f + " is new"}
			}
		}
	}
	return nil
}
