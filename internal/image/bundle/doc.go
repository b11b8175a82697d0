// Package bundle runs a command in an image whose root is mounted, through runc
// and without containerd.
//
// # Words
//
// A bundle is a directory with an OCI runtime configuration
// (https://github.com/opencontainers/runtime-spec) and related files. The supervisor is the
// premix binary, executed again with [SupervisorArg].
//
// # Processes
//
//	premix       makes the bundle, starts the supervisor, forwards signals, waits, cleans up
//	  supervisor      PID 1 of a PID namespace, in a separate mount namespace
//	    runc     makes the container
//	      CMD
//
// The supervisor mounts the root: an overlay of the mounted tree and, above it, a tmpfs or a
// directory on a disk, which receives the writes of the command and is removed
// afterwards. All mounts are in the supervisor's namespace, and every process is in it or
// below it. The supervisor dies with premix (PR_SET_PDEATHSIG), so that even if premix is
// killed, the kernel ends every process and mount. Only a directory and cgroups are
// left then, which the next [Run] removes: a bundle whose lock is free belongs to a
// dead premix. Lock order: DIR itself, then a bundle's lock.
//
//	DIR/ID/
//	  lock           flock(2): held by premix and by the supervisor
//	  stage.json     the request to the supervisor
//	  config.json    for runc
//	  runc/          runc's own state, which lists the cgroups
//	  rw/            the tmpfs: upper and work directories
//	  root/          the overlay
//
// # Containers for other packages
//
// Package hotstart starts processes in containers from snapshots. Its own supervisor calls
// [Make], in a bundle from [New]: the root and the configuration are the same, except
// for the PID namespace, which is the supervisor's. As after `runc create`, runc's process
// waits in the container until another process is put into it: by runc, with
// [Container.Exec], or by a caller of [Container.Enter].
//
// # Rights of a command
//
// As in docker: the same 14 capabilities for root and none for others, the same seccomp
// profile, only harmless devices, masked and read-only parts of /proc and /sys. Unlike
// in docker the network is the host's unless none is requested: scientific tools fetch
// data and talk to license servers, and do not serve others.
package bundle
