// Package cvmfs reads repositories of the CernVM File System (CVMFS) over HTTP. It only
// reads, and it trusts no server. A [Repository] is one revision, of which a directory is
// copied; a [Live] is a file system for internal/lazyfs/fuse that follows new revisions.
//
// Words used here:
//
//   - A repository is a tree of files with a name such as data.galaxyproject.org. Its
//     servers show it below a URL each.
//   - The manifest (.cvmfspublished) names the newest revision: the hash of its root
//     catalog. It is signed by the key of the repository's certificate.
//   - The whitelist (.cvmfswhitelist) lists the fingerprints of certificates that may
//     sign, until it expires. It is signed by a master key, which the user has.
//   - A catalog is a SQLite database with the entries of a part of the tree, and the
//     hashes of the catalogs below it.
//   - An object is a file, a chunk of a large file, a catalog or a certificate. Its name
//     is the hash of its compressed form: SHA-1, RIPEMD-160, or 160 bits of SHAKE-128.
//
// # Trust
//
// A master key verifies the whitelist, the whitelist the certificate, the certificate
// the manifest, and from there on each hash what it names. An expired whitelist, one of
// another repository, or a manifest older than one that was seen before is an [Error] of
// the kind Trust. Nothing of an object is used before its hash has been compared, and an
// object that another server or proxy may have is asked for there first.
//
// # Formats
//
// They are those of the sources of CVMFS: cvmfs/manifest.cc, whitelist.cc,
// catalog_sql.cc, xattr.cc and crypto/signature.cc of its repository. A signed document
// has text lines, the line "--", a line with the hash of the lines, and a signature of
// that hash as text: for a manifest RSA with SHA-1 (PKCS #1 v1.5), for a whitelist RSA
// without a digest algorithm.
//
// # Profiles
//
// A [Profile] has names and no hashes, so that it outlives its revision. A [Recorder] makes
// one of the reads of a Live; a Live with profiles fetches their objects ahead of readers.
//
// # Limits
//
// A manifest or whitelist has 1 MiB, a certificate 1 MiB, a catalog 16 GiB
// uncompressed, a profile 64 MiB. Catalogs of a Repository lie in temporary files while they are open,
// those of a Live in the cache.
//
// Not read: bind mount points, whitelists signed with PKCS #7, catalogs of schemas before 2.0, external
// files (whose content is not in the repository), compression other than zlib, history
// and named snapshots, the blacklist of a site, micro catalogs, and configuration
// repositories. They are refused by name where they would matter; micro catalogs, which
// only repeat others, are not used.
package cvmfs
