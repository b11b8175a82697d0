package criu

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// CRIU compares the files of a process with those of its own root, by path. For
// processes of a container it is therefore executed in there, where neither it nor
// its libraries nor the images are to be found: it takes them along as open
// descriptors, which lead to them through /proc/self/fd. Nothing needs to be
// mounted into the container for it.

// firstExtra is the descriptor of the first of a command's ExtraFiles.
const firstExtra = 3

// carry makes cmd, whose path is that of criu, one that can be executed under
// another root, with directories that are replaced by how they are called there.
// The caller calls close when cmd has ended.
func carry(cmd *exec.Cmd, dirs ...*string) (close func(), err error) {
	close = func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}
	take := func(path string) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		return fmt.Sprintf("/proc/self/fd/%d", firstExtra+len(cmd.ExtraFiles)-1), nil
	}
	loader, libraries, err := linkage(cmd.Path)
	if err != nil {
		return close, err
	}
	name := cmd.Args[0]
	program, err := take(cmd.Path)
	if err != nil {
		return close, err
	}
	cmd.Path, cmd.Args = program, []string{name}
	if loader != "" {
		if cmd.Path, err = take(loader); err != nil {
			return close, err
		}
		var path []string
		for _, dir := range libraries {
			there, err := take(dir)
			if err != nil {
				return close, err
			}
			path = append(path, there)
		}
		cmd.Args = []string{name, "--inhibit-cache", "--library-path", strings.Join(path, ":"), program}
	}
	for _, dir := range dirs {
		if *dir, err = take(*dir); err != nil {
			return close, err
		}
	}
	return close, nil
}

// linkage finds the loader of a program and the directories of its libraries; none
// where it is linked statically.
func linkage(program string) (loader string, dirs []string, err error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return "", nil, fmt.Errorf("%s: %w", program, err)
		}
		loader = string(bytes.TrimRight(b, "\x00"))
	}
	if loader == "" {
		return "", nil, nil
	}
	// As ldd does it: NAME => PATH (ADDRESS).
	out, err := exec.Command(loader, "--list", program).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", nil, fmt.Errorf("libraries of %s: %w", program, err)
	}
	for line := range strings.Lines(string(out)) {
		_, after, ok := strings.Cut(line, " => /")
		if !ok {
			continue
		}
		path, _, _ := strings.Cut(after, " (")
		if dir := filepath.Dir("/" + path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return loader, dirs, nil
}
