// Package node implements the daemon that holds a machine's mounts of trees, their
// cache and their metrics: `premix node`. There is one for each user and node
// directory; `premix mount` starts it if it is not running.
//
// Words:
//
//   - node: the supervisor and the worker together.
//   - supervisor: the process that keeps the state that must survive: the listening
//     control socket, the lock, and the /dev/fuse descriptor of every mount. It does
//     not handle trees, so that little in it can fail.
//   - worker: the process that does everything else. It may be killed at any
//     moment: the supervisor starts another and passes all state to it.
//   - link: the socket between the two.
//   - reader: a child process of the worker that makes the kernel read ahead the
//     files that profiles have fetched. It may wait for the worker, and holds no state
//     of the node.
//   - base: one image mounted below the node's directory. Several mounts of one
//     tree are bind mounts of one base.
//   - journal: state.json, the mounts that should exist.
//   - client: a premix command that sends a request to the node, over the control
//     socket.
//
// # The node's directory
//
//	lock          held (flock(2)) while a supervisor or a worker lives
//	socket        control socket
//	state.json    the journal
//	log           the node's log; begun again when it exceeds 4 MiB
//	trees/<base>/ the private directory of a base, see lazyfs
//
// It is /run/premix/node for root, $XDG_RUNTIME_DIR/premix/node for others, and
// $PREMIX_HOME/run where PREMIX_HOME is set; $PREMIX_NODE_DIR overrides all.
//
// # Deaths
//
// The worker dies: the kernel keeps pending reads, since the supervisor holds the
// descriptors, and the next worker answers them. Five deaths within ten seconds mean a
// permanent fault: the supervisor logs that and ends, the descriptors close, and reads
// of content that the kernel has not cached give EIO.
//
// The supervisor dies: the worker has duplicates of all descriptors. It continues to
// serve, starts a new supervisor and passes all of them to it.
//
// Both die: the descriptors are closed, and mounts fail closed with EIO. The next node
// (`premix node start`, or any `premix mount`) reads the journal, unmounts the dead
// mounts and mounts the same trees in the same places.
//
// # Link
//
// A SOCK_SEQPACKET socket pair (unix(7)); each packet is one JSON [message] and at most
// one descriptor. The supervisor sends config, listener, lock, then kept for each
// descriptor that an earlier worker left, then go. The worker sends keep (a descriptor
// with the state that fuse.Resume needs), drop, ready, call, restart, stop. A packet is
// delivered even if its sender is killed right after sending it, and the supervisor
// reads to the end before it starts another worker: a descriptor is safe once keep was
// sent. A worker that has lost its supervisor sends a new one the same messages that a
// worker receives, except go.
//
// The supervisor makes the mount(2) and umount2(2) calls of lazyfs, in a thread each,
// and answers with result: lazyfs explains which calls could deadlock.
//
// # Journal
//
// A mount is written to the journal before the first system call that makes it (step
// "begun"), and again when it can be used ("mounted"); it is removed from the journal
// after the last system call that removes it. So the journal names every mount that may
// exist. A mount in step "begun" is removed after a restart; the client, whose
// connection broke, repeats its request.
//
// # Control
//
// HTTP/1.1 with JSON bodies over the socket, all below /v1/. Connections are accepted
// from the same user and root, identified by SO_PEERCRED (unix(7)). api.go has the
// types of requests and answers. A failed request is answered with an [Error].
//
// Lock order: daemon.mu before base.mu; neither is held during a wait for a system
// call, an origin or the cache, except that base.work serialises the work on a base.
package node
