// Package layer unpacks the layers of OCI images: tar archives of the files that a
// layer adds, changes or removes relative to the layers below
// (https://github.com/opencontainers/image-spec/blob/main/layer.md).
//
// # Two ways to unpack
//
// A layer is unpacked as by containerd: either into a separate directory that becomes
// one of the lower directories of an overlay mount (Overlay), or into a directory in
// which the layers below are unpacked already, which makes a flat root. The ways differ
// in how a removal is represented:
//
//	tar entry               overlay                            flat
//	dir/.wh.NAME            character device 0:0 at dir/NAME   dir/NAME is removed
//	dir/.wh..wh..opq        trusted.overlay.opaque=y on dir    what lower layers have in dir is removed
//
// # Same as containerd
//
//   - Names are relative to the root, whatever "/" or ".." they begin with, and
//     symbolic links in them are followed within the root.
//   - The entry of the root itself is not applied: the root has mode 0755 and
//     belongs to root. It gets only the entry's time.
//   - A directory without an entry gets the owner, mode, attributes and time that it
//     has in the layers below, else root, 0755 and time 0.
//   - An entry for an existing name replaces it, except that for an existing directory
//     a directory entry changes only the metadata.
//   - Times before 1970 become 0.
//
// # Different from containerd
//
// Equal layers become equal directories. So whiteouts have the time of their entries,
// and a directory keeps its time if only entries below it change: an overlay mount
// shows it like that too.
//
// Files that a layer adds beside a whiteout of the same name stay, since whiteouts
// refer to lower layers; a directory added in this way is opaque.
//
// A hard link to a file of a lower layer copies that file up, as overlayfs does.
//
// Attributes trusted.overlay.* and user.overlay.* of an archive are left out: in a
// lower directory they could redirect an overlay mount to other directories. Character
// devices 0:0 are whiteouts to overlayfs, and are treated as whiteouts.
//
// # Hostile archives
//
// All writes go to names of one part in a directory that was opened below the root,
// without symbolic links in its path (openat2(2)). No other user may write to the
// directory at the same time. Device nodes are created; the mounts in which they appear
// decide who may open them. Bytes and entries are limited, including the claimed size
// of sparse files.
//
// Owners, devices and capabilities need root.
package layer
