// Package recipes holds the recipes that ship with premix: bwa mem, minimap2,
// STAR, kallisto and salmon. They are files, to be copied and changed; there is
// no code here but tests, which run the real premix with the real tools.
//
// A test takes a recipe as it is, makes the index as its comment says, and runs
// two samples, A compressed and B not, cold, hot and with auto. The outputs of
// hot and auto starts must be equal, byte for byte, to those of cold ones, except for
// the lines that the recipe names under varies; the test prints those lines. Nothing else may be left: no process, mount, cgroup or work directory.
//
// image/ has STAR once more, in an image that a script makes from Debian packages.
// Its test runs it cold and hot, and hot on a node that has nothing, over a
// link.
//
// The data are the E. coli genome of Debian's package bowtie-examples and reads
// that wgsim cuts from it. With PREMIX_TESTDATA set, yeast reads are run too.
package recipes
