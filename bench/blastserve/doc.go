// Program blastserve measures searches that many users send one by one: through premix
// blast serve, and by one blastn each, on the same database in warm page cache or memory.
// The blastn runs are a sample, in turns with the service; their number is stated.
//
// The database is made of random letters by a fixed seed, so that it can be had
// anywhere; queries are pieces of it with some letters changed.
package main
