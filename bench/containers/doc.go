// Containers measures the time until a container runs, side by side with other ways to
// have its image on a node.
//
// Words used here:
//
//   - A contender is one way to have an image on a node that runs containerd: full
//     (pulled and unpacked for overlayfs), stargz (stargz-snapshotter, with the image
//     converted to its own format), nydus (nydus-snapshotter and nydusd with its FUSE file
//     system, with the image converted to its own format), soci (soci-snapshotter, with an index of the image),
//     soci-parallel (soci-snapshotter in its mode that fetches and unpacks layers in parallel,
//     without an index), premix (premix snapshotter, with the image in a
//     store) and premix-registry (with a store that lacks the image, so that premix
//     gets the layers from the registry).
//   - A workload is a command in a container. Its start is measured cold, on an empty
//     node: pull, first byte of output, end; then warm, a second time on the same node.
//     Some workloads do little more than start. They take some tenths of a second, and
//     fetching the data that they read is a good part of it. The workloads whose names
//     end in -work compute for seconds, as real ones do for minutes. A full pull does not
//     depend on the workload: each repetition does it once for all workloads, and
//     restarts containerd before each of them. The outputs of all contenders are equal,
//     or the benchmark fails.
//   - A profile lists the chunks of each layer that a workload reads. A snapshotter
//     under containerd records it in a container, and it is published under the usual
//     name before the workload is measured.
//
// containerd (2.4.2, see scripts/setup.sh), snapshotter and client are processes on
// one host of a link; registry and store are served by one web server on the other.
// Bytes are counted on the link towards the node, with all headers, up to the end of
// the workload; requests are counted by the server. On loopback bytes are not counted.
// The client is the same for all contenders: package main in peers, which does the same
// steps as ctr. Package main in soci has soci-snapshotter, which needs a C compiler, and
// package main in nydus has nydus-snapshotter. The programs nydusd and nydus-image come from the
// Rust crate nydus-rs, which scripts/setup.sh nydus builds if there is a cargo.
//
// Images are built once from Debian's packages, from the mirrors that apt has: one of
// several layers with python, gcc, R, samtools, bwa and STAR (science), one with the first two
// of these layers and samtools (tools), which is not measured by default, and a small one of
// one layer with busybox.
//
// With -traces each request is recorded with its time, which shows the requests that a
// start waits for in turn, on a busy machine too.
//
// Contenders alternate (A B A B), so that other load on the machine affects all of them
// alike, and a figure is a median. Figures are printed as tables and written as JSON
// Lines to results.jsonl in the work directory, see package figures.
package main
