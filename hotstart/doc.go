// Package hotstart starts a tool just behind its initialisation.
//
// A tool that loads an index does the same work for every sample until it opens its
// input. Package hotstart stops the tool there once, freezes it, and starts every
// further task from that point. It uses ptrace(2) alone, and needs no
// privilege.
//
// Words used here:
//
//   - A Spec is the frozen part: arguments, environment and data, the same for
//     all tasks of a run. A Task is one start of it over one sample.
//   - A template is a live process that is held at its input.
//   - A snapshot is a template written to disk by package frozen, with its page file
//     and its fingerprint: the facts that must be equal for it to be valid.
//   - The kinds of start are Hot (from a snapshot, whose memory is mapped from its
//     page file) and Cold (the tool is executed).
//   - A proof is the comparison, byte by byte, of the outputs of one probe sample
//     after a cold and after a hot start. Where there is a sample, a snapshot is
//     proved before a task starts from it.
//   - An Image is a container image that a tool may run in: runc makes a container of
//     it for each task (see container.go).
//   - A stage is a child process, this same binary, that stands between premix
//     and one task or template at a time (see protocol.go).
//
// # What a tool sees
//
// In both kinds of start the tool's working directory is its task's own,
// inputs and outputs are relative paths that are the same for every sample, its
// stdout and stderr are files (or a FIFO) in that directory, and its stdin is
// empty.
//
// As root with CAP_SYS_ADMIN, where the root directory is a mount point, each task has
// a mount namespace of its own, with its directory at FixedDir, its real inputs
// bind-mounted at the fixed names, and the directories of other tasks out of sight.
// Elsewhere (as an ordinary user, in a plain chroot) the directory is the real one and
// inputs are symbolic links. Both kinds of start work in both places. A snapshot that
// was made in one place is not used in the other. Tasks have process ids of the
// machine.
//
// With an Image the tool sees the image's root, with an upper layer of
// its own that is thrown away, its directory at FixedDir and the data, read-only, at
// the paths that they have outside. It has the image's user, docker's capabilities
// and seccomp profile, no new privileges, and the PID namespace of its stage. That
// needs root.
package hotstart
