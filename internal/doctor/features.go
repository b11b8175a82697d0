package doctor

import (
	"fmt"
	"strings"
)

// Feature is a part of premix with the needs that machines meet or not.
type Feature struct {
	Name      string `json:"feature"`
	Verbs     string `json:"verbs"`
	Kernel    string `json:"kernel"`
	Privilege string `json:"privilege"`
	Else      string `json:"else"` // what happens without them
}

// Features returns the table of features.
func Features() []Feature {
	return []Feature{
		{"hot start", "run, prepare, hot, shim", "any; x86-64; /proc", "none; ptrace and seccomp permitted", "tools start cold, with the same outputs"},
		{"mounts of tasks", "run", "any", "root", "tasks share the mounts of the machine"},
		{"limits of tasks", "run, task", "cgroup v1 or v2", "a cgroup that the user may write to", "no limit on memory, CPU and processes of tasks"},
		{"containers", "run, exec", "any", "root, runc", "recipes with an image are refused"},
		{"trees by FUSE", "mount, exec, snapshotter", "any with /dev/fuse", "root, or fusermount3", "trees cannot be mounted: premix store pull copies them"},
		{"trees by FUSE, read by the kernel alone", "mount", "6.9", "root", "reads of cached data pass through premix: slower"},
		{"trees by EROFS", "mount, snapshotter", "6.12", "root", "trees are served by FUSE, as with the kernels of Debian 12 (6.1): the first reads are slower"},
		{"BLAST", "blast", "any", "none; BLAST+", "blast is refused"},
		{"databases in memory", "blast warm", "tmpfs", "none; room in /dev/shm", "databases are read from the disk: slower"},
		{"Slurm", "run, task with --engine slurm", "any", "none; sbatch on PATH", "--engine slurm is refused"},
		{"packets", "transfer bench --packets", "any", "root or CAP_NET_RAW", "copies are measured without packets"},
		{"services", "store, blast, watch, transfer", "any", "none; free ports", "--listen needs another port"},
	}
}

// Table returns the features as a table of Markdown.
func Table() string {
	var b strings.Builder
	b.WriteString("| feature | for | kernel | needs | otherwise |\n| --- | --- | --- | --- | --- |\n")
	for _, f := range Features() {
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", f.Name, f.Verbs, f.Kernel, f.Privilege, f.Else)
	}
	return b.String()
}
