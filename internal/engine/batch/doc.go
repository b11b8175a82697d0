// Package batch is the engine that runs tasks in jobs of LSF, PBS or SGE, packed by package
// pilot. These systems differ in their command lines only, which a table describes, see
// [dialect]; docs/batch-systems.md says which of them were tried.
//
// Words:
//
//   - dialect: the command line of one system.
//   - array: a job array, as which a wave of several jobs is submitted. Its name is
//     premix-TOKEN. A wave of one job is a plain job: PBS has no arrays of one.
//   - element: a job as the system's own programs name it, as in 12[3] or 12.3.
//   - listing: the jobs of this user that premix has submitted, shared as package programs
//     describes.
//
// A job is identified by its element and its name, as systems use numbers again. Jobs are
// only cancelled after a listing has shown both.
//
// The script of a job redirects its own output, since each system expands other characters
// in the path of an output file. It names the cores and the memory of its share, since not
// each system has variables for them.
//
// A system that does not answer is told from one that refuses as in package slurm: every
// command that fails is followed by a listing.
package batch
