// Package neighbour lets the nodes of a site give each other objects, so that many nodes
// that start one image ask its origin for each object about once.
//
// Words:
//
//   - site: the nodes that have the same token. Each reaches the others at the addresses
//     of one list.
//   - owner: the node of a list that asks the origin for an object. The digest decides, by
//     rendezvous hashing: the others ask the owner, or the second in the same order if the
//     owner does not answer, and then the origin.
//   - share: a set of origins from which a node gives objects to its neighbours.
//
// # Trust
//
// Both ends of a connection prove that they have the token ([access.Mutual]). A neighbour may
// give wrong bytes all the same: each object is verified by its digest before it is used, and
// the neighbour that gave it is left out for ten minutes.
//
// A node gives objects only of origins that it may ask without credentials, and that it has mounted or that
// are in its configuration. A request names the origins, by the digest of their URLs, and the
// node never opens others. An object in its cache is given only if it is of a tree that came from
// these origins. So a neighbour gets nothing but what the origin gives to every client in the
// network of the node.
//
// # Protocol
//
// HTTP over TLS, GET /v1/origins/SHARE/objects/DIGEST. The answer is 404 if the node does not
// have the share, and 503 if thousands of requests wait. Otherwise the body begins at once: a '.'
// each two seconds while the owner waits for the origin, or the request for its turn, and then one
// byte: 'O', behind which the stored form of the object follows; 'N' if the origin does not have
// it; 'E' if it could not be fetched. So an owner that waits differs from one that is dead: after
// fifteen seconds without a byte the second owner is asked too, and the origin when that one is
// silent for as long, or when thirty seconds are over. The first answer is used. A neighbour that
// failed the last time has two seconds.
//
// A node that is asked for an object that another owns asks that one, with the field
// Premix-Relayed in the header of its request, and the origin only if this fails too. A relayed
// request is not relayed again. So the origin is asked once, too, where some nodes find an owner too
// slow and others do not.
//
// When all nodes of a site start at once, each owner has as many requests for one object as there
// are nodes. A node therefore asks for eight objects at a time.
//
// # Health
//
// A neighbour that fails is left out for a second, and after each further failure for twice the
// time, up to a minute; one that is silent for fifteen seconds at least, unless it answers before.
// One that was too slow with an object, and has given a sign of life meanwhile, is not left out.
// Each such event is in the log with its cause, and the state is in the status of the node.
package neighbour
