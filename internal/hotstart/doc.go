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
//   - A supervisor is a child process of premix, with the same binary, that starts and
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
// profile, no new privileges, and the PID namespace of its supervisor. This needs root.
//
// # Reasons
//
// A tool is stopped at its input by a seccomp filter that hands calls with a path to the
// supervisor. A write lease on the placeholder would need a file system with leases, could not
// see an open with O_NONBLOCK, and could not show the other files that the tool reads. A
// FIFO in place of the input ("read" and "line") is not seekable, so a tool that seeks in
// its input before it reads is served by "open" only. The filter is not part of the
// snapshot, since the process that is started is another one.
//
// A hot task runs under a guard until its end, so the supervisor is both its parent and its
// tracer. A tool that traces itself or its children cannot do so in a hot start.
//
// Some tools are installed behind a script that chooses a build for the CPU and waits for
// it. If each process of a template except the last only waits for its one child, the tool
// is loaded again without the script, with the program, arguments and environment that the
// script had chosen. The proof still compares with a start through the script.
//
// A page file is not synced before tasks start from it, since 3 GB take ten seconds and
// more. Until it is synced, a mark in the snapshot names the boot of the machine in which
// it was written. A snapshot with a mark of another boot is read whole and compared with
// its digests before it is used.
//
// The template is loaded while the probe runs cold. The cold run must not notice it. So
// the template is given up before it writes outside of its directory or makes a socket,
// when memory runs short, and when it has waited for long; it is then loaded afterwards.
package hotstart
