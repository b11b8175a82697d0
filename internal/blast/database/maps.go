package database

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mapping returns the processes that have mapped a file below a directory, as shown by
// /proc/PID/maps (proc_pid_maps(5)). It does not see the processes of other users.
func mapping(dir string) []int {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil // it does not exist
	}
	list, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		return nil // the pattern is well formed
	}
	var pids []int
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), " "+dir+"/") {
			continue // it has ended, or belongs to another user
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
