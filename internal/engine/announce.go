package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"premix/internal/kit/owner"
)

// Announcements inform the processes that watch a machine (`premix watch`) of the directories
// in which tasks run. An announcement is a file
//
//	PLACE/DIGEST-PID    the absolute path of the directory and a newline
//
// where DIGEST is 16 hexadecimal digits of the path's SHA-256 and PID is the process
// that runs the tasks. The watcher makes the place, removes announcements when it has
// read them, and finds the files that were written while it was not running. If the place does
// not exist, the machine is not watched, and announcing costs one system call that fails.
// Tasks are announced once per invocation, never one by one.

// systemWatch is the place for a watch over the whole machine. All users may write
// there, and a user may remove only own files (mode 1777).
const systemWatch = "/run/premix/watch/runs"

// AnnouncementDir returns the directory in which this user's watcher finds announcements.
func AnnouncementDir() string {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		if abs, err := filepath.Abs(home); err == nil {
			home = abs
		}
		return filepath.Join(home, "watch", "runs")
	}
	if os.Geteuid() == 0 {
		return systemWatch
	}
	_, dir := owner.RuntimeDir()
	return filepath.Join(dir, "watch", "runs")
}

// checkPlace refuses a place of announcements that belongs to another user than this one
// and root.
func checkPlace(place string) error {
	if _, dir := owner.RuntimeDir(); place == filepath.Join(dir, "watch", "runs") {
		return errors.Join(owner.Private(dir), owner.Private(filepath.Dir(place)), owner.Private(place))
	}
	return owner.Shared(place)
}

// Announce announces a run directory or task directory. dir is absolute. Announce ignores
// errors: tasks run as well unwatched.
func Announce(dir string) {
	places := []string{AnnouncementDir()}
	if os.Getenv("PREMIX_HOME") == "" && places[0] != systemWatch {
		places = append(places, systemWatch)
	}
	sum := sha256.Sum256([]byte(dir))
	name := fmt.Sprintf("%s-%d", hex.EncodeToString(sum[:8]), os.Getpid())
	for _, place := range places {
		if checkPlace(place) != nil {
			continue // it does not exist, or is not for this user's announcements
		}
		// O_NOFOLLOW: in a place of this user, do not follow a link that another user has put there.
		f, err := os.OpenFile(filepath.Join(place, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			continue
		}
		_, _ = f.WriteString(dir + "\n")
		_ = f.Close()
	}
}
