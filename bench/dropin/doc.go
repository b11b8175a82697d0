// Dropin measures commands of pipelines with and without premix's links before PATH.
//
// Each command runs plainly and through its link in turns (A B A B), over the same
// sample, and the outputs are compared byte by byte. The figure is the median of whole
// runs. The first figure is the cost of a link that only passes the call on, with a
// command that the catalogue calls unfit.
//
// Links learn first: the command runs until its snapshot has been prepared or refused. For
// a command that still starts plainly the figure is the cost of its link, and the table
// has the reason.
//
// With -pipelines N, whole pipelines of N samples run plainly, and then through links that know
// nothing yet, as Nextflow runs them on one machine: two tasks at a time, each with links in
// a directory of its own. So their times have the preparation of the snapshots. The first has
// as much loading as mapping, the second almost only loading, and the others nothing that a
// hot start saves. The CPU times do not have the preparations.
//
// Indexes are made once, by examples/drop-in/prepare.sh, and kept in the work directory.
// A tool that is not installed is left out.
package main
