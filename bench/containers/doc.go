// Containers measures what it takes until a container runs, side by side with other
// ways to have its image on a node.
//
// Words used here:
//
//   - A contender is one way to have an image on a node that runs containerd: full
//     (pulled and unpacked for overlayfs), stargz (stargz-snapshotter, whose own
//     format the image was converted to) and premix (premix snapshotter, with the
//     image in a store).
//   - A workload is a command in a container. Its start is measured cold, on a node
//     that has nothing: pull, first byte of output, end; then warm, a second time on
//     the same node. Some do little more than start, in some tenths of a second of which
//     the fetching of what they read is a good part; those with -work compute for
//     seconds, as real ones do for minutes. A full pull is the same whatever runs afterwards: there is one
//     for all workloads of a repetition, and containerd is started again before each
//     of them.
//   - A profile says which chunks of each layer a workload reads. It is recorded by a
//     snapshotter under containerd, in a container, and published under the usual name
//     before the workload is measured.
//
// containerd (2.4.2, see scripts/setup.sh), snapshotter and client are processes on
// one host of a link; registry and store are served by one web server on the other.
// Bytes are those of the link towards the node, with all headers, up to the end of
// the workload; requests are those that the server answered. On loopback bytes are
// not counted. The client is the same for all contenders: package main in peers,
// which does what ctr does.
//
// Images are built once from Debian's packages, from the mirrors that apt has: one of
// several layers with python, gcc, R, samtools, bwa and STAR, and a small one of one
// layer with busybox.
//
// With -traces each request is written down, with its time: a start that waits for
// several in turn shows it there, on a busy machine too.
//
// Contenders alternate (A B A B), so that whatever else the machine does meets all of
// them, and a figure is a median. Figures are printed as tables and written as JSON
// Lines to results.jsonl in the work directory, see package figures.
package main
