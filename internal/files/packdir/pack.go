package packdir

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/node"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// Note records the state of a packed directory. It is a JSON file beside the directory.
type Note struct {
	Name  string `json:"name"`  // of the directory
	Ref   string `json:"ref"`   // NAME@DIGEST
	Tag   string `json:"tag"`   // the tag that keeps the tree in the store
	Store string `json:"store"` // directory of the store
	Tree  string `json:"tree"`  // its digest
	State string `json:"state"`
}

// States of a note.
const (
	verified = "verified" // the tree is the valid copy; files may be left beneath it
	packed   = "packed"   // the tree is the valid copy; files beneath it are at most copies
	unpacked = "unpacked" // the directory beneath the mount is the valid copy
)

// Error is returned for a directory that cannot be packed or unpacked.
type Error struct {
	Dir      string
	Reason   string
	HintText string
}

func (e *Error) Error() string { return fmt.Sprintf("%s %s", e.Dir, e.Reason) }

// ExitCode implements exit.Coded.
func (*Error) ExitCode() exit.Code { return exit.Usage }

// Hint returns the way to resolve the error.
func (e *Error) Hint() string { return e.HintText }

const notPacked = "is not packed"

func id(name string) string {
	sum := blake3.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

func notePath(dir string) string {
	return filepath.Join(filepath.Dir(dir), ".premix-packed-"+id(filepath.Base(dir))+".json")
}

// ReadNote reads the note of a directory. It returns an [Error] if the directory is not
// packed.
func ReadNote(dir string) (*Note, error) {
	f, err := os.OpenFile(notePath(dir), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{dir, notPacked, "name a directory that a rule with PACK has packed"}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The note decides which tree is copied, with its owners and modes: only root and the
	// caller may have written it.
	st, err := stat(int(f.Fd()), "")
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, &Error{dir, "has a note that another user has written, or could write to", "see " + notePath(dir) + ": only the user who packed the directory can unpack it"}
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	n := new(Note)
	if err := json.Unmarshal(text, n); err != nil {
		return nil, &Error{dir, "has a damaged note: " + err.Error(), "see " + notePath(dir)}
	}
	return n, nil
}

// write writes the note and syncs it.
func (n *Note) write(dir string) error {
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	if err := beneath.Replace(notePath(dir), 0o644, beneath.Durable, append(text, '\n')); err != nil {
		return err
	}
	return n.sweep(filepath.Dir(dir))
}

// sweep removes notes of the same directory, in any state, that killed processes have left
// under temporary names.
func (n *Note) sweep(parent string) error {
	d, err := beneath.Open(parent)
	if err != nil {
		return err
	}
	defer d.Close()
	paths, err := filepath.Glob(filepath.Join(d.Path(), beneath.Prefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if n.left(d, name) {
			if err := unix.Unlinkat(d.Fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return &fs.PathError{Op: "remove", Path: filepath.Join(parent, name), Err: err}
			}
		}
	}
	return nil
}

// left reports whether a file holds the same note in any state, and belongs to the caller.
func (n *Note) left(d *beneath.Dir, name string) bool {
	f, err := d.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := stat(int(f.Fd()), "")
	const most = 64 << 10
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Size > most {
		return false
	}
	var other Note
	if text, err := io.ReadAll(f); err != nil || json.Unmarshal(text, &other) != nil {
		return false
	}
	other.State = n.State
	return other == *n
}

// ErrChanged is returned if the path belongs to another directory now.
var ErrChanged = errors.New("it is another directory now")

// Pack packs the directory at a path, if it has the given device and inode, and returns the
// digest of its tree. as is the prefix of the tree's tag. Pack may be killed at any moment
// and called again.
func Pack(ctx context.Context, dir string, device, number int64, storeDir, as string) (string, error) {
	dir, n, err := noted(dir)
	var none *Error
	switch {
	case err == nil && n.State == packed:
		return n.Tree, mount(ctx, n, dir)
	case err == nil && n.State == unpacked:
		return "", &Error{dir, "is being unpacked", "premix files unpack " + dir}
	case err == nil:
		return n.Tree, clearOut(ctx, n, dir)
	case !errors.As(err, &none) || none.Reason != notPacked:
		return "", err
	}
	ref, err := tree.ParseRef(as + "/" + id(dir))
	if err != nil {
		return "", &Error{dir, "cannot be packed: " + err.Error(), "name trees as in AS 'packed/logs'"}
	}
	if m, err := mounted(ctx, dir); err != nil {
		return "", err
	} else if m != nil && strings.HasPrefix(m.Ref, ref.Name+"@") { // left by a killed premix
		if err := unmounted(ctx, dir); err != nil {
			return "", err
		}
	}
	// Keep the original open after it is hidden.
	hidden, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer hidden.Close()
	if st, err := stat(int(hidden.Fd()), "."); err != nil {
		return "", err
	} else if int64(st.Ino) != number || int64(st.Dev) != device {
		return "", ErrChanged
	}
	s, err := store.Open(storeDir, store.Options{Home: store.Home()})
	if err != nil {
		return "", err
	}
	key, err := s.Key("")
	if err != nil {
		return "", err
	}
	p, err := s.Publish(ctx, dir, ref, store.PublishOptions{Key: key})
	if err != nil {
		return "", err
	}
	n = &Note{Name: filepath.Base(dir), Tag: ref.String(), Store: s.Dir(), Tree: p.Tree.String(), State: verified}
	n.Ref = ref.Name + "@" + n.Tree
	if err := mount(ctx, n, dir); err != nil {
		return "", err
	}
	shown, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	var seen map[inode]unix.Stat_t
	if err == nil {
		seen, err = compare(ctx, int(hidden.Fd()), int(shown.Fd()))
		err = errors.Join(err, shown.Close())
	}
	if err == nil {
		err = n.write(dir)
	}
	if err != nil {
		// The directory is as before, even if the context has ended.
		return "", errors.Join(err, unmounted(context.WithoutCancel(ctx), dir))
	}
	if err := remove(int(hidden.Fd()), seen, ""); err != nil {
		return n.Tree, err
	}
	n.State = packed
	return n.Tree, n.write(dir)
}

// uncover opens the directory beneath the mount of a note's tree. It mounts the tree if
// necessary. Other processes notice nothing: it clones the mount that contains the
// directory, without the mounts in it (open_tree(2)). Where that is not permitted, it
// unmounts the tree for a moment.
func uncover(ctx context.Context, n *Note, dir string) (*os.File, error) {
	m, err := mounted(ctx, dir)
	if err != nil {
		return nil, err
	}
	if m != nil {
		fd, err := unix.OpenTree(unix.AT_FDCWD, filepath.Dir(dir), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err == nil {
			defer unix.Close(fd)
			return open(fd, filepath.Base(dir), unix.O_DIRECTORY)
		}
		if err := unmounted(ctx, dir); err != nil {
			return nil, err
		}
	}
	hidden, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := mount(ctx, n, dir); err != nil {
		return nil, errors.Join(err, hidden.Close())
	}
	return hidden, nil
}

// clearOut continues the removal of the files that, by the note, are in the tree.
func clearOut(ctx context.Context, n *Note, dir string) error {
	hidden, err := uncover(ctx, n, dir)
	if err != nil {
		return err
	}
	defer hidden.Close()
	shown, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer shown.Close()
	if err := removeEqual(ctx, int(hidden.Fd()), int(shown.Fd()), ""); err != nil {
		return err
	}
	n.State = packed
	return n.write(dir)
}

// removeEqual removes the content of a directory that another one has too.
func removeEqual(ctx context.Context, dir, other int, path string) error {
	list, err := names(dir)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		st, err := stat(dir, name)
		if err != nil {
			return err
		}
		flags := 0
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
			err = both(dir, other, name, unix.O_DIRECTORY, func(p, q *os.File) error {
				return removeEqual(ctx, int(p.Fd()), int(q.Fd()), path+name+"/")
			})
		} else {
			var twin unix.Stat_t
			if twin, err = stat(other, name); err == nil && (twin.Size != st.Size || twin.Mtim != st.Mtim || twin.Mode != st.Mode) {
				err = differ(path+name, "was written since its directory was packed: it lies beneath the mount")
			}
		}
		if err == nil {
			err = unix.Unlinkat(dir, name, flags)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mounted returns the node's mount on a directory, or nil.
func mounted(ctx context.Context, dir string) (*node.Mounted, error) {
	s, err := node.NewClient(node.Dir()).Status(ctx)
	if node.IsKind(err, node.KindNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.Mounts, func(m node.Mounted) bool { return m.Dir == dir && m.State == "mounted" })
	if i < 0 {
		return nil, nil
	}
	return &s.Mounts[i], nil
}

func mount(ctx context.Context, n *Note, dir string) error {
	if m, err := mounted(ctx, dir); m != nil || err != nil {
		return err
	}
	_, err := node.MountOver(ctx, node.MountRequest{Ref: n.Ref, Origins: []string{n.Store}}, dir)
	return err
}

func unmounted(ctx context.Context, dir string) error {
	_, err := node.Umount(ctx, dir, false)
	if node.IsKind(err, node.KindNotMounted) || node.IsKind(err, node.KindNotRunning) {
		return nil
	}
	return err
}

// Remount mounts the tree of a packed directory, for example after a reboot. It removes
// files that a killed premix has left beneath it.
func Remount(ctx context.Context, dir string) error {
	dir, n, err := noted(dir)
	if err != nil {
		return err
	}
	switch n.State {
	case verified:
		return clearOut(ctx, n, dir)
	case unpacked:
		return &Error{dir, "is being unpacked", "premix files unpack " + dir}
	}
	return mount(ctx, n, dir)
}

func noted(dir string) (string, *Note, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", nil, err
	}
	abs = filepath.Join(parent, filepath.Base(abs))
	n, err := ReadNote(abs)
	return abs, n, err
}

// Unpack restores a packed directory. The tree stays in the store. Unpack may be killed at
// any moment and called again.
func Unpack(ctx context.Context, dir string) error {
	dir, n, err := noted(dir)
	if err != nil {
		return err
	}
	if n.State == verified {
		if err := clearOut(ctx, n, dir); err != nil {
			return err
		}
	}
	if n.State == packed {
		if err := fill(ctx, n, dir); err != nil {
			return err
		}
		n.State = unpacked
		if err := n.write(dir); err != nil {
			return err
		}
	}
	if err := unmounted(ctx, dir); err != nil {
		return err
	}
	if err := os.Remove(notePath(dir)); err != nil {
		return err
	}
	return beneath.SyncDir(filepath.Dir(dir))
}

// fill copies the tree to the directory beneath its mount, syncs the copy, and compares it
// with the tree.
func fill(ctx context.Context, n *Note, dir string) error {
	hidden, err := uncover(ctx, n, dir)
	if err != nil {
		return err
	}
	defer hidden.Close()
	shown, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer shown.Close()
	src, dst := int(shown.Fd()), int(hidden.Fd())
	// Until the copy is complete, no other process may enter, even with it as working
	// directory: no name may change between setting the owner and the mode of an entry.
	if err := errors.Join(unix.Fchown(dst, os.Geteuid(), -1), unix.Fchmod(dst, 0o700)); err != nil {
		return err
	}
	if err := remove(dst, nil, ""); err != nil { // left by a killed premix
		return err
	}
	c := &copier{ctx: ctx, links: make(map[inode]string), top: dst}
	if err := c.directory(src, dst, ""); err != nil {
		return err
	}
	st, err := stat(src, ".")
	if err != nil {
		return err
	}
	if err := dress(src, dst, ".", &st); err != nil {
		return err
	}
	if err := unix.Syncfs(dst); err != nil {
		return err
	}
	_, err = compare(ctx, src, dst)
	return err
}
