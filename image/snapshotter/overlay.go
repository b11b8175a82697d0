package snapshotter

import (
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
)

// mounts tells containerd how to mount an active snapshot or a view.
func (s *Snapshotter) mounts(kind snapshots.Kind, id string, list []lower) []mount.Mount {
	readOnly := kind == snapshots.KindView
	// overlayfs wants two directories.
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

// overlayOptions turn the index of hard links off, which would tie an upper
// directory to the very file systems that were below it first: a tree that was
// mounted again is another one.
func overlayOptions() []string {
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err != nil {
		return nil // a kernel without the index
	}
	return []string{"index=off"}
}
