// Vulnerabilities checks the modules of go.mod without a network, against a list that is
// kept in the repository: scripts/vulnerabilities.txt. scripts/lint.sh runs it where
// govulncheck cannot reach its database.
//
//	vulnerabilities [-ci] GO.MOD LIST
//	vulnerabilities -update GO.MOD LIST
//
// It exits 1 where a module has a version with a known advisory. The standard library is the
// module std, with the version of the toolchain. Its advisories are warnings, since the
// toolchain belongs to the machine and not to the repository. The list is old after 30
// days: then it says so, and with -ci exits 1. With -update it writes the date of today and
// the versions of go.mod into the list; that is right only after govulncheck has passed.
//
// A list has lines of three kinds, and comments that begin with #:
//
//	checked 2026-11-23
//	module MODULE VERSION
//	advisory ID MODULE through VERSION
//
// Versions up to the last one have the advisory.
package main
