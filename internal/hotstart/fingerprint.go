package hotstart

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// Fingerprint is all that must be equal for a snapshot to be valid.
type Fingerprint struct {
	Kernel string `json:"kernel"`          // uname(2), release
	CPU    string `json:"cpu"`             // digest of the CPU's vendor and features
	Image  string `json:"image,omitempty"` // digest of the record of the image that the tool runs in
	Recipe string `json:"recipe"`          // digest of the frozen part of the recipe
	Umask  int    `json:"umask"`           // of the tool at its start; 0 with an image
	User   string `json:"user,omitempty"`  // user ids, groups and capabilities; empty with an image
	// Program is the file that the command's name led to, by PATH; empty with an image.
	Program string  `json:"program,omitempty"`
	Files   []Stamp `json:"files"` // all that the tool has looked at; with an image, data only
}

// Stamp is a recorded state of a file. If size, times and inode are unchanged, the
// content counts as unchanged: touch(1) cannot set back the change time. If they
// differ, the digest decides.
type Stamp struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mtime  int64  `json:"mtime"` // ns since the epoch
	Ctime  int64  `json:"ctime"` // ns since the epoch
	Inode  uint64 `json:"inode"`
	Device uint64 `json:"device"`
	Digest string `json:"digest,omitempty"` // BLAKE3-256 of the content, hexadecimal; of a directory, of the names in it
	Mode   uint32 `json:"mode,omitempty"`   // type and permissions, stat(2); for SeenStat and SeenIsDir
	Owner  uint64 `json:"owner,omitempty"`  // user id, and from bit 32 on group id; for SeenStat and SeenIsDir
	// Aspect is the part of the file that counts, where that is not its content.
	Aspect Aspect `json:"seen,omitempty"`
	// Served is true for a file in a mounted tree: see served. The stamp then has only
	// size and modification time, since the other properties depend on the mount.
	Served bool `json:"served,omitempty"`
}

// Aspect is the part of a file that a tool has looked at.
type Aspect string

// The parts of a file, besides its content.
const (
	AspectMissing Aspect = "missing" // the file does not exist
	AspectStat    Aspect = "stat"    // size, modification time, permissions and owner
	AspectIsDir   Aspect = "isdir"   // it is a directory, with permissions and owner
	AspectNames   Aspect = "names"   // the names in a directory
	AspectLink    Aspect = "link"    // the target of a symbolic link
	AspectFact    Aspect = "fact"    // a fact, which Path names (facts.go)
	// AspectAttributes are the extended attributes of a file, and AspectSystem its file system.
	AspectAttributes Aspect = "attributes"
	AspectSystem     Aspect = "system"
)

// Mismatch is the error for a fingerprint that differs.
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

// sameState reports whether a stamp and another one are equal, digests aside.
func (s Stamp) sameState(other Stamp) bool {
	s.Digest, other.Digest = "", ""
	return s == other
}

// check compares a file with its stamp. A difference is a *Mismatch.
func (s Stamp) check() error {
	if s.Aspect != "" {
		now, err := aspectStamp(s.Path, s.Aspect)
		switch {
		case err != nil:
			return err
		case now == s:
			return nil
		case s.Aspect == AspectMissing:
			return &Mismatch{s.Path + " is new"}
		case now.Aspect == AspectMissing:
			return &Mismatch{s.Path + " is missing"}
		}
		return &Mismatch{s.Path + " has changed"}
	}
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
	if now.sameState(s) {
		return nil
	}
	if s.Served {
		return &Mismatch{s.Path + " is no longer the file of the tree"}
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

// aspectStamp describes a part of a file. A file that is missing is described as
// such, whatever was asked for.
func aspectStamp(path string, aspect Aspect) (Stamp, error) {
	if aspect == AspectFact {
		return factStamp(path)
	}
	missing := Stamp{Path: path, Aspect: AspectMissing}
	var st unix.Stat_t
	stat := unix.Stat
	if aspect == AspectLink {
		stat = unix.Lstat
	}
	if err := stat(path, &st); err != nil {
		switch err {
		case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.ENAMETOOLONG:
			return missing, nil
		}
		return missing, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	s := Stamp{Path: path, Aspect: aspect}
	digest := func(text string) (Stamp, error) {
		sum := blake3.Sum256([]byte(text))
		s.Digest = hex.EncodeToString(sum[:])
		return s, nil
	}
	dir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case aspect == AspectLink && st.Mode&unix.S_IFMT == unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return s, err
		}
		return digest(target)
	case aspect == AspectAttributes:
		return digest(attributesOf(path))
	case aspect == AspectSystem:
		return digest(systemOf(path))
	case aspect == AspectNames && dir:
		entries, err := os.ReadDir(path)
		if errors.Is(err, fs.ErrPermission) {
			return s, nil
		}
		h := blake3.New()
		for _, e := range entries {
			fmt.Fprintf(h, "%q %v\n", e.Name(), e.Type())
		}
		s.Digest = hex.EncodeToString(h.Sum(nil))
		return s, err
	case dir:
		s.Aspect, s.Mode, s.Owner = AspectIsDir, st.Mode, owners(&st)
	default:
		s.Aspect, s.Size, s.Mtime, s.Mode, s.Owner = AspectStat, st.Size, st.Mtim.Nano(), st.Mode, owners(&st)
	}
	return s, nil
}

// owners returns the value of Stamp.Owner for a file.
func owners(st *unix.Stat_t) uint64 { return uint64(st.Uid) | uint64(st.Gid)<<32 }

// lookStamp describes the part of a file that a tool has looked at.
func lookStamp(l access) (Stamp, error) {
	switch l.Op {
	case tracer.AccessLink:
		return aspectStamp(l.Path, AspectLink)
	case tracer.AccessFact:
		return factStamp(l.Path)
	case tracer.AccessAttributes:
		return aspectStamp(l.Path, AspectAttributes)
	case tracer.AccessSystem:
		return aspectStamp(l.Path, AspectSystem)
	case tracer.AccessOpen:
		st, err := os.Stat(l.Path)
		if err == nil && st.Mode().IsRegular() {
			s, err := stampFile(l.Path)
			if errors.Is(err, fs.ErrPermission) {
				return aspectStamp(l.Path, AspectStat)
			}
			return s, err
		}
		return aspectStamp(l.Path, AspectNames)
	}
	return aspectStamp(l.Path, AspectStat)
}

// newFingerprint describes this machine, the files that a template has mapped or
// open, the data that the recipe declares, and all that the tool has looked at.
func newFingerprint(spec Spec, files []string, looks []access) (Fingerprint, error) {
	fp, err := hostFingerprint(spec)
	if err != nil {
		return fp, err
	}
	var all []string
	if spec.Image == nil {
		all = append(all, files...)
		// The kernel maps the interpreter of a script, and not the script.
		if program, err := lookPath(spec.Argv[0], spec.Env); err == nil {
			all = append(all, program)
			fp.Program = program
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
		if errors.Is(err, fs.ErrPermission) {
			s, err = aspectStamp(path, AspectStat) // the tool cannot read it either
		}
		if err != nil {
			return fp, err
		}
		fp.Files = append(fp.Files, s)
	}
	whole := map[string]bool{}
	for _, s := range fp.Files {
		whole[s.Path] = s.Aspect == ""
	}
	seen := map[Stamp]bool{}
	for _, l := range looks {
		if whole[l.Path] && l.Op == tracer.AccessOpen {
			continue // its content is compared
		}
		s, err := lookStamp(l)
		if err != nil {
			return fp, err
		}
		if s.Aspect == "" {
			whole[s.Path] = true
		}
		if !seen[s] {
			seen[s] = true
			fp.Files = append(fp.Files, s)
		}
	}
	return fp, nil
}

// coarse is more than the largest delay of the clock of a file system.
const coarse = 10 * time.Millisecond

// changedMeanwhile is the error for a file that changed while a tool may have read it.
// A load that begins after wait begins after the change.
type changedMeanwhile struct {
	path string
	wait time.Duration
}

func (e *changedMeanwhile) Error() string {
	return e.path + " changed while the tool was loaded"
}

// unchanged returns a *changedMeanwhile if a file changed after the tool began to load.
// The tool may then have read other content than the fingerprint describes.
func (fp Fingerprint) unchanged(since time.Time) error {
	for _, s := range fp.Files {
		if s.Aspect == AspectMissing || s.Aspect == AspectIsDir || s.Aspect == AspectFact || s.Aspect == AspectSystem || s.Served {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(s.Path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: s.Path, Err: err}
		}
		if st.Ctim.Nano() > since.Add(-coarse).UnixNano() {
			return &changedMeanwhile{s.Path, 2 * coarse}
		}
	}
	return nil
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
		return fp, nil
	}
	fp.Umask, fp.User, err = ownCredentials()
	return fp, err
}

// cpuDigest returns a digest of the properties of the CPU by which programs choose code:
// vendor, model and flags.
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

// regularFiles returns path, or all files below it. It follows symlinks.
func regularFiles(path string) ([]string, error) {
	var files []string
	above := map[[2]uint64]bool{} // directories that the present one lies in
	var walk func(path string) error
	walk = func(path string) error {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			files = append(files, path)
			return nil
		case unix.S_IFDIR:
		default:
			return nil
		}
		id := [2]uint64{st.Dev, st.Ino}
		if above[id] {
			return nil // a link leads back
		}
		above[id] = true
		defer delete(above, id)
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			err := walk(filepath.Join(path, e.Name()))
			if e.Type()&fs.ModeSymlink != 0 && errors.Is(err, fs.ErrNotExist) {
				continue // a link that leads nowhere
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return files, walk(path)
}

func (fp Fingerprint) compareHost(now Fingerprint) error {
	switch {
	case now.Kernel != fp.Kernel:
		return &Mismatch{fmt.Sprintf("the kernel is %s instead of %s", now.Kernel, fp.Kernel)}
	case now.CPU != fp.CPU:
		return &Mismatch{"the CPU has other features"}
	case now.Image != fp.Image:
		return &Mismatch{fmt.Sprintf("the image is %s instead of %s", short(now.Image), short(fp.Image))}
	case now.Umask != fp.Umask:
		return &Mismatch{fmt.Sprintf("the umask is %#o instead of %#o", now.Umask, fp.Umask)}
	case now.User != fp.User:
		return &Mismatch{"the user has other groups or capabilities"}
	case now.Recipe != fp.Recipe:
		return &Mismatch{"the recipe has changed"}
	}
	return nil
}

// short returns the short form of a digest, for messages.
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
	// A program that comes first on PATH by now has not been looked at.
	if fp.Program != "" {
		if program, err := lookPath(spec.Argv[0], spec.Env); err != nil || program != fp.Program {
			return &Mismatch{fmt.Sprintf("%s leads to %s instead of %s", spec.Argv[0], cmp.Or(program, "no program"), fp.Program)}
		}
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
