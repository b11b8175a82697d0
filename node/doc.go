// Package node is the daemon that holds a machine's mounts of trees, their cache
// and their metrics: `premix node`. There is one for each user and node
// directory; `premix mount` starts it when it is not there.
//
// Words:
//
//   - node: the supervisor and the worker together.
//   - supervisor: the process that keeps what must not be lost: the listening
//     control socket, the lock, and the /dev/fuse descriptor of every mount. It
//     knows nothing of trees, so that it has no reason to fail.
//   - worker: the process that does everything else. It may be killed at any
//     moment: the supervisor starts another and hands everything back.
//   - link: the socket between the two.
//   - reader: a process of the worker that has the kernel read ahead what profiles
//     have brought. It may wait for the worker, and holds nothing of the node's.
//   - base: one image mounted below the node's directory. Several mounts of one
//     tree are bind mounts of one base.
//   - journal: state.json, the mounts that ought to be there.
//   - client: a premix that asks the node for something, over the control socket.
//
// # The node's directory
//
//	lock          held (flock(2)) while a supervisor or a worker lives
//	socket        control socket
//	state.json    the journal
//	log           what the node has to say; begun afresh when it is over 4 MiB
//	trees/<base>/ the private directory of a base, see lazyfs
//
// It is /run/premix/node for root, $XDG_RUNTIME_DIR/premix/node for others, and
// $PREMIX_HOME/run where PREMIX_HOME is set; $PREMIX_NODE_DIR overrides all.
//
// # Who dies, and what then
//
// The worker dies: the kernel keeps what readers ask for, since the supervisor
// holds the descriptors; the next worker answers. Five deaths within ten seconds
// mean that it won't get better: the supervisor says so in the log and ends, the
// descriptors close, and what the kernel does not have gives EIO.
//
// The supervisor dies: the worker has descriptors of its own of everything. It
// goes on serving, starts a new supervisor and hands it all of them.
//
// Both die: the descriptors are closed, mounts fail closed with EIO. The next
// node (`premix node start`, or any `premix mount`) reads the journal, takes the
// dead mounts away and mounts the same trees in the same places.
//
// # Link
//
// A SOCK_SEQPACKET socket pair (unix(7)); each packet is one JSON [message] and
// at most one descriptor. From the supervisor: config, listener, lock, then kept
// for each descriptor that an earlier worker left, then go. From the worker: keep
// (a descriptor with the state that fuse.Resume wants), drop, ready, call,
// restart, stop. A packet that was sent is delivered even when its sender is
// killed right after, and the supervisor reads to the end before it starts
// another worker: a descriptor is safe from the moment in which keep was sent.
// A worker that has lost its supervisor sends a new one the same messages that a
// worker receives, except go.
//
// The mount(2) and umount2(2) calls of lazyfs are made by the supervisor, in a
// thread each, and answered with result: see lazyfs for what could wait for whom.
//
// # Journal
//
// A mount is written into the journal before the first system call that makes it
// (step "begun"), and again when it is usable ("mounted"); it leaves the journal
// after the last system call that removes it. Whoever reads the journal can
// therefore name every mount that may exist. A mount that is found in step
// "begun" is taken away; the client, whose connection broke, asks again.
//
// # Control
//
// HTTP/1.1 with JSON bodies over the socket, all below /v1/. A connection is
// accepted from the same user and root, judged by SO_PEERCRED (unix(7)). The
// types of requests and answers are in api.go. A refusal is an [Error].
//
// Lock order: daemon.mu before base.mu; neither is held while a system call, an
// origin or the cache is waited for, except that a base's own work is serialised
// by base.work.
package node
