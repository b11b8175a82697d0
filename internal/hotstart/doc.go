// Package hotstart starts a tool directly after its initialisation.
//
// A tool that loads an index does the same work for every sample until it opens its
// input. Package hotstart stops the tool there once, freezes it, and starts every
// further task from that point. It uses only ptrace(2), and needs no privilege.
//
// Words used here:
//
//   - A Spec is the frozen part: arguments, environment and data. It is the same
//     for all tasks of a run. A Task is one start of a Spec over one sample.
//   - A template is a live process that is held at its input.
//   - A snapshot is a template written to disk by package frozen, with its page file
//     and its fingerprint: the facts that must be equal for it to be valid.
//   - The kinds of start are Hot (from a snapshot, whose memory is mapped from its
//     page file) and Cold (the tool is executed).
//   - A proof is the comparison, byte by byte, of the outputs of one probe sample
//     after a cold and after a hot start. If a sample is known, a snapshot is
//     proved before a task starts from it.
//   - An Image is a container image that a tool may run in: runc makes a container
//     from it for each task (see container.go).
//   - A stage is a child process of premix, with the same binary, that starts and
//     watches one task or template at a time (see protocol.go).
//
// # What a tool sees
//
// In both kinds of start the tool's working directory is its task's directory. Inputs
// and outputs are relative paths that are the same for every sample. Stdout and stderr
// are files (or a FIFO) in that directory, and stdin is empty.
//
// As root with CAP_SYS_ADMIN, if the root directory is a mount point, each task has its
// own mount namespace. The task's directory is at FixedDir, its inputs are bind-mounted
// at the fixed names, and the directories of other tasks are hidden. In other cases (as
// an ordinary user, or in a plain chroot) the tool sees the real path of the directory,
// and inputs are symbolic links. Both kinds of start work in both cases. A snapshot that
// was made in one case is not used in the other. Tasks have process ids of the machine.
//
// With an Image the tool sees the image's root with its own upper layer, which is
// removed afterwards. Its directory is at FixedDir, and the data are read-only at the
// same paths as outside. It has the image's user, docker's capabilities and seccomp
// profile, no new privileges, and the PID namespace of its stage. This needs root.
package hotstart
