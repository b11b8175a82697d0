// Package link reads the description of a link: the peer, the data to copy, and the
// protocols.
//
// Words:
//
//   - A link file is YAML; link.schema.json describes its form, and [Load] checks
//     all of it.
//   - A protocol has a command for each direction, for single files and for trees.
//     Commands are scripts of sh(1), executed here. [Places] are variables in them,
//     set before the script begins, so that the shell quotes them. In a
//     script ${name} must be one of them; variables of the script's own are written
//     $name.
//   - A server is a script that is executed at the peer while its protocol is
//     measured, in the foreground, and is ended with all its children. It has the
//     same variables.
//   - Shipped protocols come from protocols.yaml, in the same form. A link file
//     names them, changes their settings, or describes others.
//   - A setting is a variable with a default that a link file may change, for example
//     the number of streams.
//   - An open protocol gives access to all who can reach its port, or sends the data
//     unencrypted. It can be measured; it is chosen only if that is permitted.
package link
