// Package release verifies files of a release of premix: each against its digest in
// SHA256SUMS, and that file against its signature.
//
// A release has, in one directory:
//
//	SHA256SUMS       a line for each file, as sha256sum(1) writes it: DIGEST, two spaces, NAME
//	SHA256SUMS.sig   64 bytes: the Ed25519 signature (RFC 8032) of all bytes of SHA256SUMS
//
// The public key is a file in PEM form (RFC 8410). So openssl can verify a release too:
//
//	openssl pkeyutl -verify -pubin -inkey KEY -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig
//	sha256sum -c SHA256SUMS
package release
