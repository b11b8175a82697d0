// Store measures the cost of reading a tree of the store, side by side with other ways
// to have the same files: native, pulled as a whole, and mounted before their content
// has arrived.
//
// Words used here:
//
//   - A contender is one way to have a tree on a node. The peers of premix are:
//     native (the directory itself, on ext4), overlayfs over it, erofs (the kernel's
//     EROFS on a local image of mkfs.erofs(1), where that is installed), pull (a layer
//     downloaded and unpacked), stargz (the FUSE file system of containerd's
//     stargz-snapshotter, see the directory stargz) and nydus (nydusd with its
//     FUSE file system).
//   - Warm is the second time of two: everything is in the page cache, or in the
//     contender's own cache. Cold is the first time: the page cache and the
//     contender's own cache are empty, so that everything comes from the origin.
//     For native, overlayfs and erofs it comes from the disk.
//   - The origin is one web server for all, on loopback or at the far end of a
//     link (package netrelay). Bytes are counted on the link, with all headers,
//     towards the client; requests are counted by the server.
//   - A start is a command in a root file system, with all caches dropped: mounting
//     (or pulling) and the command together. Daemons already run. A profile lists the
//     files that a start reads, in advance: recorded by premix for premix, recorded by
//     fanotify(7) for the peers (as stargz-snapshotter's own tool does), and used when
//     their images are made.
//
// Parts:
//
//	warm    stat, open, readdir, reading of 20,000 small files, sequential,
//	        random and mapped reads of 1 GiB
//	cold    the same, with the origin on loopback
//	link    cold reads of the same over a link, against a plain download
//	start   python3 with numpy, samtools, R over a link
//	size    three successive versions of one image, as each contender keeps them
//	names   a mount of a million names, and a walk through all of them; -other gives
//	        another premix, such as a build without a check, to measure beside it
//	cvmfs   mounts of CVMFS repositories over the link: a start that opens 600 files,
//	        with and without a profile, and a listing of 50,000 names
//	neighbours
//	        -nodes nodes, processes of their own at the near end of the link, that mount
//	        one tree at the same time and read all of it, as neighbours and apart
//
// Contenders alternate (A B A B; in the part warm after each round of one operation), so
// that other load on the machine affects all of them alike, and a figure is a median.
// Figures are printed as tables and written as JSON Lines to results.jsonl in the work
// directory, see package figures. Data and peers are made once and kept there: the trees by
// mmdebstrap(1) from the mirrors that apt is configured with.
//
// # Peers
//
// stargz-snapshotter is built from its module (version in stargz/go.mod).
//
// nydus takes part where nydusd and nydus-image are found on PATH or in the directory given by
// -nydus. Debian has no package of it; scripts/setup.sh nydus builds both programs from the crate
// nydus-rs, in version 2.2.0.
//
// CVMFS takes part in its own part only, by the client of the Rust crate cvmfs, where
// scripts/setup.sh has built it: Debian has no package of CVMFS, and its source needs a
// dozen libraries that its project downloads during the build.
package main
