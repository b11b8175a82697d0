#!/bin/bash
# Does the first steps of docs/install.md in empty root directories of distributions, as a
# new user would, and prints a table of times and bytes. It needs root and mmdebstrap.
#
#   scripts/chroots.sh release RELEASE [SUITE...]   premix demo, from the tarball of a release,
#                                                   without a network
#   scripts/chroots.sh source GO [SUITE...]         make demo, and the set-up of make test with
#                                                   the tests of one package, from this repository
#                                                   and the Go toolchain in GO
#
# SUITE is a release of Debian (default: bookworm trixie), or busybox for a directory with
# one static shell. Each row is a root directory, a user (0 or 65534), and whether /proc is
# mounted; the directory is not a mount point. CHROOT_CA names a file of certificates that
# the way to the network needs.
set -euo pipefail
mode=${1:?usage: scripts/chroots.sh release RELEASE | source GO, and suites}
from=$(realpath "${2:?usage: scripts/chroots.sh release RELEASE | source GO, and suites}")
shift 2
cd "$(dirname "$0")/.."
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
work=$(mktemp -d)
chmod 755 "$work"

finish() {
	local root
	for root in "$work"/*/; do
		! mountpoint -q "${root}proc" || umount "${root}proc"
		rm -rf "$root"
	done
	rm -rf "$work"
}
trap finish EXIT

# made SUITE: makes the root directory, and prints its path.
made() {
	local root=$work/$1
	if [ "$1" = busybox ]; then
		mkdir -p "$root"/{bin,dev,etc,proc,tmp,home}
		cp /bin/busybox "$root/bin/sh"
		cp /bin/busybox "$root/bin/busybox"
		mknod -m 666 "$root/dev/null" c 1 3
	else
		mmdebstrap --quiet --variant=minbase "$1" "$root" >/dev/null
	fi
	mkdir -p "$root/home/me"
	chown 65534:65534 "$root/home/me"
	[ -z "${CHROOT_CA:-}" ] || cp "$CHROOT_CA" "$root/etc/site.pem"
	printf '%s\n' "$root"
}

# within ROOT UID PROC NETWORK COMMAND: runs a command of the shell in ROOT.
within() {
	local root=$1 uid=$2 proc=$3 network=$4 command=$5 status=0 net=() privileges=(--bounding-set=+all)
	[ "$network" = yes ] || net=(unshare --net)
	[ "$uid" = 0 ] || privileges=(--no-new-privs)
	[ "$proc" = no ] || mount -t proc proc "$root/proc"
	# Not inherited: variables of this machine.
	env -i PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/me${uid#65534} TERM=dumb ${CHROOT_CA:+SSL_CERT_FILE=/etc/site.pem PIP_CERT=/etc/site.pem} \
		"${net[@]}" setpriv "${privileges[@]}" chroot --userspec="$uid:$uid" --groups="$uid" "$root" /bin/sh -c "$command" || status=$?
	[ "$proc" = no ] || umount "$root/proc"
	return "$status"
}

# row SUITE UID PROC COMMAND BYTES STATUS SECONDS LOG: prints a row; the last words come from the log.
row() {
	local said
	said=$(grep -E '^(hot tasks|(setup: )?(error|hint):|make: \*\*\*|ok[[:space:]])' "$8" | head -n 2 | tr -s ' \t' ' ' | sed 's/;.*//; s/^setup: //' | paste -sd ';' | sed 's/;/; /' || true)
	printf '| %s | %s | %s | `%s` | %s s | %s MB | %s | %s |\n' "$1" "$([ "$2" = 0 ] && echo root || echo ordinary)" "$3" "$4" "$7" "$5" "$6" "$said"
}

# megabytes PATH...: on the disk.
megabytes() { du -sc --block-size=1 --apparent-size "$@" 2>/dev/null | awk 'END { printf "%.0f", $1 / 1e6 }'; }

# step SUITE ROOT UID PROC NETWORK COMMAND WORDS PATH...: a command, and its row with the bytes that
# PATHs have grown by.
step() {
	local suite=$1 root=$2 uid=$3 proc=$4 network=$5 command=$6 words=$7 began status=0 before
	shift 7
	before=$(megabytes "$@")
	began=$EPOCHREALTIME
	within "$root" "$uid" "$proc" "$network" "$command" >"$work/log" 2>&1 || status=$?
	row "$suite" "$uid" "$proc" "$words" "$(($(megabytes "$@") - before))" "$status" "$(awk "BEGIN { printf \"%.1f\", ${EPOCHREALTIME/,/.} - ${began/,/.} }")" "$work/log"
	[ -z "${CHROOT_LOG:-}" ] || { printf '== %s %s %s %s\n' "$suite" "$uid" "$proc" "$words"; cat "$work/log"; } >>"$CHROOT_LOG"
}

printf '| root directory | user | /proc | command | time | disk | status | says |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n'
for suite in "${suites[@]}"; do
	root=$(made "$suite")
	case $mode in
	release)
		mkdir "$root/opt" 2>/dev/null || true
		tar -xzf "$from"/premix-*-linux-amd64.tar.gz -C "$root/opt" --strip-components 1
		for proc in yes no; do
			for uid in 0 65534; do
				home=$root/home/me${uid#65534}
				mkdir -p "$home" && chown "$uid:$uid" "$home"
				step "$suite" "$root" "$uid" "$proc" no "cd && /opt/bin/premix demo --out demo$proc" 'premix demo' "$root/opt" "$home"
			done
		done
		;;
	source)
		mkdir -p "$root/usr/local" "$root/src"
		cp -r "$from" "$root/usr/local/go"
		git archive HEAD | tar -x -C "$root/src"
		chown -R 65534:65534 "$root/src"
		for uid in 0 65534; do
			mkdir -p "$root/home/me${uid#65534}"
			chown "$uid:$uid" "$root/home/me${uid#65534}"
		done
		step "$suite" "$root" 0 no yes 'apt-get -q update && apt-get -q -y --no-install-recommends install make ca-certificates' 'apt-get install make ca-certificates' "$root/usr" "$root/var"
		for proc in no yes; do # the first one builds
			for uid in 65534 0; do
				rm -rf "$root/src/demo-out" # of the other user
				step "$suite" "$root" "$uid" "$proc" yes 'cd /src && make demo' 'make demo' "$root/src" "$root/home"
			done
		done
		step "$suite" "$root" 65534 yes yes 'cd /src && make setup-test' 'make setup-test' "$root"
		step "$suite" "$root" 0 yes yes 'cd /src && make setup-test build && go test ./internal/kit/units' 'make setup-test build, and one package' "$root"
		step "$suite" "$root" 65534 yes yes 'cd /src && make setup-test build && go test ./internal/kit/units' 'make setup-test build, and one package' "$root"
		;;
	*)
		echo "error: there is no mode $mode; hint: release or source" >&2
		exit 2
		;;
	esac
	rm -rf "$root"
done
