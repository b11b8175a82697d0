// Package access decides who may reach a service of premix. All services have one rule.
//
// A service listens on a loopback address or on a Unix socket, or its requests bear a
// token, or its owner gave --open. [Listen] refuses everything else with an
// [*ExposedError] before a port is open.
//
// A Unix socket has mode 0600, and a directory that [Listen] makes for it has mode 0700:
// its owner and root can connect. Every local user can connect to a loopback address.
//
// [Listener.Protect] stands before the handler of a service:
//
//   - A request through a loopback address or a Unix socket must be sent to localhost, to
//     a loopback address or to a name that the owner gave with --host. A page of another
//     site whose name was bound to 127.0.0.1 (DNS rebinding) has that name in its requests.
//     On other addresses names are compared where --host was given.
//   - A browser may not change anything on behalf of a page of another origin.
//   - All answers have headers that keep browsers from guessing types, from showing pages
//     in frames of others and from giving content to pages of others.
//
// Tokens are read from a file that only its owner can read. They are compared by their
// SHA-256 digests in constant time.
package access
