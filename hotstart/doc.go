// Package hotstart starts a tool just behind its initialisation.
//
// A tool that loads an index does the same work for every sample until it
// opens its input. Package hotstart stops it there once, by no other means than
// the kernel's, and lets every further sample begin from that point.
//
// Words used here:
//
//   - A Spec is what is frozen: arguments, environment and data, the same for
//     all tasks of a run. A Task is one start of it over one sample.
//   - A template is a live process held at its input.
//   - A snapshot is a template written to disk by CRIU, with its page file and
//     its fingerprint: what must be equal for it to be valid.
//   - The kinds of start are Fork (a copy of a template), Hot (a snapshot whose
//     memory is mapped from its page file), Copy (a snapshot as CRIU restores
//     it) and Cold (the tool executed afresh).
//   - A proof is the comparison, byte by byte, of what one probe sample gives
//     cold and by another kind of start. No kind but Cold is used unproved
//     where there is a sample to prove it with.
//   - An Image is what a tool may run in: its container is made by runc, for each
//     task anew (see container.go).
//   - A stage is a child process, this same binary, that stands between premix
//     and one task or template (see protocol.go).
//
// # What a tool sees
//
// Whatever the kind of start, the tool's working directory is its task's own,
// inputs and outputs are relative paths that are the same for every sample, its
// stdout and stderr are files (or a FIFO) in that directory, and its stdin is
// empty. As root each task also has PID and mount namespaces of its own, with
// its directory at FixedDir, its real inputs bind-mounted at the fixed names,
// and the directories of other tasks out of sight. Without privileges inputs
// are symbolic links, and Fork and Cold are to be had.
//
// With an Image all that the tool sees is the image's root, with an upper layer of
// its own that is thrown away, its directory at FixedDir and the data, read-only, at
// the paths that they have outside. It has the image's user, docker's capabilities
// and seccomp profile, and no new privileges. That needs root.
package hotstart
