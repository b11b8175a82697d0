// Package access decides who may reach a service of premix. All services have one rule.
//
// A service listens on a loopback address or on a Unix socket, or its requests bear a
// token, or its owner gave --open. [Listen] refuses everything else with an
// [*ExposedError] before a port is open.
//
// A Unix socket has mode 0600, and a directory that [Listen] makes for it has mode 0700:
// its owner and root can connect. Every local user can connect to a loopback address.
//
// [Listener.Protect] wraps the handler of a service:
//
//   - The Host header of a request through a loopback address or a Unix socket must be
//     localhost, a loopback address or a name that the owner gave with --host. Requests
//     of a page whose site bound its name to 127.0.0.1 (DNS rebinding) carry that name.
//     On other addresses the header is compared where --host was given.
//   - A browser may not change anything on behalf of a page of another origin.
//   - All responses have headers that keep browsers from guessing content types and from
//     showing pages in frames of, or giving content to, other origins.
//
// Tokens are read from a file that only its owner can read. They are compared by their
// SHA-256 digests in constant time.
package access
