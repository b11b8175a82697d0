package kubetest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// RealKubelet is the program of a [Node].
const RealKubelet = "kubelet"

// Node is this machine as the box's only node: a real kubelet with a container runtime
// that already runs. It needs root. Pods must ask for the network of the machine
// (hostNetwork), since there is no other.
type Node struct {
	Name    string
	Runtime string // socket of the runtime's CRI
	Cgroup  string // parent of the pods' cgroups, such as /box; it must exist in every hierarchy
}

// MissingNode is like [Missing], for a box with a node.
func MissingNode() string {
	if missing := Missing(); missing != "" {
		return missing
	}
	if _, err := binary(RealKubelet); err != nil {
		return "there is no " + RealKubelet + ": scripts/setup.sh kubernetes installs it"
	}
	return ""
}

// tuned lists the settings of the kernel that a kubelet changes.
var tuned = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// aside is a script that executes a program in a mount namespace of its own, where files
// of a directory replace settings of the kernel, so that the program cannot change them,
// and where /var/lib and /var/log are empty. Its arguments: directory setting... --
// program argument...
const aside = `
mount -t tmpfs none /var/lib
mount -t tmpfs none /var/log
dir=$1
shift
while [ "$1" != -- ]; do
	mkdir -p "$dir/${1%/*}"
	cat "/proc/sys/$1" >"$dir/$1"
	mount --bind "$dir/$1" "/proc/sys/$1"
	shift
done
shift
exec "$@"
`

// StartNode starts a node, and returns when it is registered. Its pods do not end with it.
func (b *Box) StartNode(ctx context.Context, n Node) error {
	root := filepath.Join(b.Dir, "kubelet")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + n.Runtime,
		"cgroupRoot":               n.Cgroup,
		"volumePluginDir":          filepath.Join(root, "volumes"),
		"podLogsDir":               filepath.Join(root, "logs"),
		"enableServer":             false,
		"healthzPort":              0,
		"makeIPTablesUtilChains":   false,
		"resolvConf":               "",
		"failSwapOn":               false,
		// Other load on the machine must not evict pods or remove images.
		"imageGCHighThresholdPercent":   100,
		"localStorageCapacityIsolation": false,
		"evictionHard":                  map[string]string{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "config.json"), config, 0o600); err != nil {
		return err
	}
	path, err := binary(RealKubelet)
	if err != nil {
		return err
	}
	args := append([]string{"-ec", aside, "sh", filepath.Join(root, "sys")}, tuned...)
	args = append(args, "--", path, "--config="+filepath.Join(root, "config.json"), "--kubeconfig="+b.Admin(),
		"--hostname-override="+n.Name, "--root-dir="+root, "--cert-dir="+filepath.Join(root, "certs"))
	if err := b.execute(RealKubelet, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, "/bin/sh", args...); err != nil {
		return err
	}
	return b.await(ctx, RealKubelet, func() (bool, error) {
		err := b.Client.Core.Get().Resource("nodes").Name(n.Name).Do(ctx).Into(&corev1.Node{})
		return err == nil, err
	})
}
