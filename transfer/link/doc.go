// Package link reads the description of a link: which peer, what to copy, and by
// which protocols.
//
// Words:
//
//   - A link file is YAML; link.schema.json describes its form, and [Load] checks
//     all of it.
//   - A protocol has a command for each direction, for single files and for trees.
//     Commands are scripts of sh(1), executed here. [Places] are variables in them,
//     set before the script begins, so that quoting is that of the shell. In a
//     script ${name} must be one of them; variables of the script's own are written
//     $name.
//   - A server is a script that is executed at the peer while its protocol is
//     measured, in the foreground, and is ended with all its children. It has the
//     same variables.
//   - Shipped protocols are those of protocols.yaml, in the same form. A link file
//     names them, changes their settings, or describes others.
//   - A setting is a variable with a default that a link file may change, such as
//     the number of streams.
//   - An open protocol lets anybody in who reaches its port, or shows the data to
//     whoever listens. It can be measured; to choose it must be allowed.
package link
