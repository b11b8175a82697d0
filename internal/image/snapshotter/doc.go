// Package snapshotter gives containerd the layers of images in a store, mounted instead
// of pulled: `premix snapshotter`, a proxy plugin that implements containerd's
// snapshots v1 API on a socket.
//
// # Words
//
// Snapshot, active, committed, view, key and parent are containerd's
// (https://github.com/containerd/containerd/blob/main/docs/snapshotters/README.md).
// A chain id names a layer together with all layers below it. A lazy snapshot is a
// committed snapshot whose content is a tree of the store, mounted by the node; an
// ordinary snapshot has content that containerd unpacked.
//
// # How a pull becomes a mount
//
// Before containerd fetches a layer it calls Prepare, with the layer's chain id in the
// label containerd.io/snapshot.ref. If an origin has the tag chains/CHAIN-ID, its tree
// is mounted, a lazy snapshot is committed, and the answer is "already exists":
// containerd then asks for the snapshot with that label and parent, and fetches
// nothing. In all other cases (the tag does not exist, no origin answers, or the answer
// is not trusted) the answer is an ordinary snapshot, into which containerd unpacks the
// layer that it fetches and verifies.
//
// The diff id of a layer is not in a label, and cannot be computed from the chain id. CRI also
// sets a label with the layer's digest, but that is the digest of the compressed
// archive.
//
// If a bootstrap lists the layers that come next, the node mounts them at the same time
// (package node, premounts), and Prepare finds them mounted.
//
// Namespaces of containerd share lazy snapshots. Their names are derived from the chain
// id and the id of the parent, since a parent may be lazy in one namespace and unpacked
// in another.
//
// # Layers from registries
//
// A layer that no store has comes from the registry of its image, if labels name the image.
// Its manifest and its configuration, which have the digests of the layers, are in
// containerd's content store by then. While the origins are asked for the first layer, the
// snapshotter connects and logs in to the registry, and requests nothing: so a layer that no
// store has is late by the question to the store alone, and an image of the store does not count
// as a pull at its registry.
//
// # On disk
//
//	ROOT/lock               flock(2), held while a snapshotter runs
//	ROOT/metadata.db        containerd's own database of snapshots
//	ROOT/snapshots/ID/fs    content of an ordinary snapshot, or writes of an active one
//	ROOT/snapshots/ID/work  overlayfs' work directory, of active ones
//	ROOT/trees/NAME         mount of a tree, NAME the first digits of its digest
//
// A lazy snapshot has no directory. The label premix.tree, which clients cannot set,
// names its tree; snapshots with equal trees share one mount. Creating and committing
// it is one transaction: if the snapshotter is killed at any moment, at worst a mount
// or a directory without a snapshot is left, which Cleanup, or the next start, removes.
// The mounts belong to the node. They stay when the snapshotter ends. Missing ones, for
// instance after a reboot, are mounted again before they are returned as part of
// another mount.
//
// # Deadlocks
//
// Containers read trees through the kernel and the node; the snapshotter may die at any
// time. No transaction of the database waits for the node or an origin. Prepare reads content
// from containerd, which needs no snapshot for that. Lock order:
// layers.repair before layers.mu before transactions.
package snapshotter
