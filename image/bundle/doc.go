// Package bundle runs a command in an image whose root is mounted, through runc
// and without containerd.
//
// # Words
//
// A bundle is a directory with an OCI runtime configuration
// (https://github.com/opencontainers/runtime-spec) and what belongs to it. The
// stage is the premix binary, executed again with [StageArg].
//
// # Who does what
//
//	premix       makes the bundle, starts the stage, hands signals on, waits, clears away
//	  stage      PID 1 of a PID namespace, in a mount namespace of its own
//	    runc     makes the container
//	      CMD
//
// The stage mounts the root: an overlay of the mounted tree below and a tmpfs, or a
// directory on a disk, above, which takes what the command writes and is gone
// afterwards. All mounts are in the stage's namespace, and every process is in it or
// below it. The stage dies with premix (PR_SET_PDEATHSIG), so that even when premix
// is killed the kernel ends every process and mount. What is left then is a
// directory and cgroups, which the next [Run] clears away: a bundle whose lock can
// be had is one of a dead premix. Lock order: DIR itself, then a bundle's lock.
//
//	DIR/ID/
//	  lock           flock(2): held by premix and by the stage
//	  stage.json     what the stage is to do
//	  config.json    for runc
//	  runc/          runc's own state, which tells the cgroups
//	  rw/            the tmpfs: upper and work directories
//	  root/          the overlay
//
// # A container for others
//
// Package hotstart has processes in containers that are started from snapshots. Its
// own stage calls [Make], in a bundle that [New] has made: the
// same root and the same configuration, but for the PID namespace, which is the
// stage's. runc's process waits in there, as after `runc create`, until somebody has
// put a process beside it: runc, by [Container.Exec], or whoever uses
// [Container.Enter].
//
// # What a command may
//
// As in docker: the same 14 capabilities for root and none for others, the same
// seccomp profile, no devices but the harmless ones, masked and read-only parts of
// /proc and /sys. Unlike docker the network is the host's unless it is to have none:
// scientific tools fetch data and talk to license servers, and nothing here serves
// others.
package bundle
