package bundle

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"premix/internal/image"
)

// maxAccounts limits the bytes read of a root's passwd(5) and group(5).
const maxAccounts = 16 << 20

// user returns the user of a command from its name, USER, UID, USER:GROUP or numbers of
// either, by the accounts of the root. It also returns the home directory.
func user(root, who string) (u specs.User, home string, err error) {
	name, group, grouped := strings.Cut(who, ":")
	if name == "" {
		name = "0"
	}
	home = "/"
	passwd, err := accounts(root, "etc/passwd", 7)
	if err != nil {
		return u, "", err
	}
	groups, err := accounts(root, "etc/group", 4)
	if err != nil {
		return u, "", err
	}
	uid, numeric := number(name)
	found := false
	for _, f := range passwd {
		n, ok := number(f[2])
		if g, gok := number(f[3]); ok && gok && (f[0] == name || numeric && n == uid) {
			uid, u.GID, name, found = n, g, f[0], true
			if f[5] != "" {
				home = f[5]
			}
			break
		}
	}
	if !found && !numeric {
		return u, "", &image.Error{Kind: image.Usage, Reason: fmt.Sprintf("the image has no user %s", name), HintText: "name one of its /etc/passwd, or a number"}
	}
	u.UID = uid
	if grouped {
		gid, numeric := number(group)
		known := numeric
		for _, f := range groups {
			if n, ok := number(f[2]); ok && f[0] == group {
				gid, known = n, true
				break
			}
		}
		if !known {
			return u, "", &image.Error{Kind: image.Usage, Reason: fmt.Sprintf("the image has no group %s", group), HintText: "name one of its /etc/group, or a number"}
		}
		u.GID = gid
		return u, home, nil // as in docker: an explicit group is the only one
	}
	for _, f := range groups {
		if n, ok := number(f[2]); ok && found && n != u.GID && slices.Contains(strings.Split(f[3], ","), name) {
			u.AdditionalGids = append(u.AdditionalGids, n)
		}
	}
	return u, home, nil
}

// number parses an id.
func number(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}

// accounts reads the lines of a file of accounts with at least this many fields. A
// missing file has no accounts.
func accounts(root, file string, fields int) ([][]string, error) {
	f, err := openIn(root, file, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxAccounts {
		return nil, &image.Error{Kind: image.Damaged, Reason: fmt.Sprintf("the image's /%s is not a readable file of accounts", file), HintText: "build the image again"}
	}
	var list [][]string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if parts := strings.Split(strings.TrimSpace(lines.Text()), ":"); len(parts) >= fields && !strings.HasPrefix(parts[0], "#") {
			list = append(list, parts)
		}
	}
	return list, lines.Err()
}

// openIn opens a file of a root, and resolves symbolic links within the root.
func openIn(root, file string, flags uint64) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, file, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/" + file, Err: err}
	}
	return os.NewFile(uintptr(fd), file), nil
}
