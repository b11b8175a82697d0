package snapshotter

import (
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
)

// mounts returns the mounts of an active snapshot or a view.
func (s *Snapshotter) mounts(kind snapshots.Kind, id string, list []lower) []mount.Mount {
	readOnly := kind == snapshots.KindView
	// overlayfs needs at least two directories.
	switch {
	case len(list) == 0:
		return bind(s.upperPath(id), readOnly)
	case len(list) == 1 && readOnly:
		return bind(list[0].path, true)
	}
	var paths []string
	for _, l := range list {
		paths = append(paths, l.path)
	}
	options := []string{"lowerdir=" + strings.Join(paths, ":")}
	if !readOnly {
		options = append(options, "upperdir="+s.upperPath(id), "workdir="+s.workPath(id))
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append(options, overlayOptions()...)}}
}

func bind(dir string, readOnly bool) []mount.Mount {
	access := "rw"
	if readOnly {
		access = "ro"
	}
	return []mount.Mount{{Type: "bind", Source: dir, Options: []string{access, "rbind"}}}
}

// overlayOptions disables the index of hard links, which would bind an upper directory
// to the file systems that were first below it: a tree that is mounted again is a
// different file system.
func overlayOptions() []string {
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err != nil {
		return nil // the kernel has no index
	}
	return []string{"index=off"}
}
