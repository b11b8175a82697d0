// Package cluster keeps the fragments of BLAST databases in the memory of many nodes, and
// searches each fragment where it is.
//
// Words:
//
//   - node: a process that has fragments in memory and searches them, see [Node].
//   - head: a process that plans, or searches with the nodes, see [Head].
//   - holder: a node that has a fragment completely in memory.
//   - placement: the order of preference of the nodes for each fragment of a database, and
//     the number of replicas. Every node keeps the placements that concern it.
//
// # Who holds a fragment
//
// No node leads. The head computes a placement once, within the budgets of the nodes,
// and gives it to all of them. From then on each node decides by itself: the fragment belongs
// to the first nodes of its order that answer and have room, as many as there are replicas.
// The nodes ask each other for their status every few seconds. A node that is lost is
// skipped: the next node of the order loads the fragment, while the other replica answers. A
// node that comes back loads its fragments, and a node that held one in its place drops it
// once the preferred ones have it. A node that disagrees about who is alive holds a fragment
// too many or too few for a while; results never depend on that.
//
// # From where a fragment comes
//
// A database is a published tree. The placement has the tree's digest, from which every byte
// of the database follows. A node fetches the files of its own fragments from its origins,
// verified, into files on a tmpfs: it reads nothing else of the tree and keeps nothing on its
// disk but the placements.
//
// # Searches
//
// The head asks the nodes for their status, distributes the fragments over their holders by
// the cores that they have free, and many queries over the holders of the same fragments (see
// divide), and sends the queries with options of the program to each. A node
// accepts the options that select results and no other, so an order cannot name a file. The
// archives come back as they are found, in frames (see [frames]), with a frame each second
// even if there is nothing to report. If a node refuses, closes the connection or is silent
// for two seconds, its fragments go to other holders at once, without another question to the
// nodes. A silent node may still be first with its results. After four seconds it is lost. Fragments
// that have no holder are searched by the head itself, in its own copy of the database.
//
// # Access
//
// All connections use mutual TLS with one token that the machines share (see access.Mutual).
// A node runs no other program than those of BLAST+ and DIAMOND.
package cluster
