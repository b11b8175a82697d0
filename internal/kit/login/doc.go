// Package login finds the credentials for registries that other programs have stored.
//
// It reads, in this order, and takes the first credentials that fit:
//
//	$REGISTRY_AUTH_FILE                                    (containers-auth.json(5))
//	$DOCKER_CONFIG/config.json, else ~/.docker/config.json (docker login)
//	$XDG_RUNTIME_DIR/containers/auth.json, else /run/user/UID/containers/auth.json and,
//	for root, /run/containers/0/auth.json                  (podman login)
//	~/.config/containers/auth.json
//
// Within a file a helper that credHelpers names for the registry comes first, then auths,
// then the helper that credsStore names. A key of auths is a registry, with or without a
// scheme, or a registry and the beginning of a path; the longest one that fits is taken.
// In the keys of a pull secret of Kubernetes, "*" matches within a part of the host name.
//
// A file that does not exist is skipped; a file that cannot be read or parsed is an
// error, and so is a helper that fails, since another account might see another image.
package login
