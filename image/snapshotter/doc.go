// Package snapshotter gives containerd the layers of images that a store has,
// mounted instead of pulled: `premix snapshotter`, a proxy plugin that speaks
// containerd's snapshots v1 API over a socket.
//
// # Words
//
// Snapshot, active, committed, view, key and parent are containerd's
// (https://github.com/containerd/containerd/blob/main/docs/snapshotters/README.md).
// A chain id names a layer together with all below it. A lazy snapshot is a
// committed one whose content is a tree of the store, mounted by the node; an
// ordinary one holds what containerd unpacked.
//
// # How a pull becomes a mount
//
// Before containerd fetches a layer it calls Prepare, with the layer's chain id in
// the label containerd.io/snapshot.ref. If an origin has the tag chains/CHAIN-ID,
// its tree is mounted, a lazy snapshot is committed, and the answer is "already
// exists": containerd then asks for the snapshot with that label and parent, and
// fetches nothing. In all other cases (no such tag, no origin answers, what it
// answers is not to be trusted) the answer is an ordinary snapshot, into which
// containerd unpacks what it fetches and verifies.
//
// The diff id of a layer is in no label, and cannot be computed from the chain id,
// except for the lowest layer, for which they are equal: there layers/DIFF-ID is
// looked up too. The label of the layer's digest, which CRI gives, is that of the
// compressed archive.
//
// Where an opening tells which layers come next, the node mounts those at the same time
// (package node, foreseen), and Prepare finds them there.
//
// Namespaces of containerd share lazy snapshots. Their names are made of the chain
// id and the id of the parent, since a parent may be lazy in one namespace and
// unpacked in another.
//
// # On disk
//
//	ROOT/lock               flock(2), held while a snapshotter runs
//	ROOT/metadata.db        containerd's own storage of what snapshots there are
//	ROOT/snapshots/ID/fs    what an ordinary snapshot holds, or an active one writes
//	ROOT/snapshots/ID/work  overlayfs' work directory, of active ones
//	ROOT/trees/NAME         mount of a tree, NAME the first digits of its digest
//
// A lazy snapshot has no directory. The label premix.tree, which nobody else can
// set, holds its tree; snapshots with equal trees share one mount. Creating and
// committing it is one transaction: killed at any moment, the snapshotter leaves at
// worst a mount or a directory that no snapshot wants, and Cleanup, or the next
// start, takes that away. The mounts are the node's. They stay when the snapshotter
// ends, and whatever is missing, after a reboot for instance, is mounted again
// before a mount that needs it is handed out.
//
// # Who waits for whom
//
// Containers read trees through the kernel and the node; this process may die at
// any time. No transaction of the database waits for the node or an origin. Lock
// order: layers.repair before layers.mu before transactions.
package snapshotter
