// Package cvmfsrepo publishes small repositories of CVMFS, for tests. It follows the
// sources of CVMFS (cvmfs/catalog_sql.cc, manifest.cc, xattr.h, crypto/signature.cc), and
// shares nothing with the reader in internal/cvmfs.
package cvmfsrepo
