#!/bin/bash
# Builds CRIU from Debian's source package and installs it as
# $PREFIX/sbin/criu (PREFIX is /usr/local unless set), where no installed CRIU
# works on this kernel.
#
#   scripts/build-criu.sh                          build and install, if needed
#   scripts/build-criu.sh --force                  build and install
#   scripts/build-criu.sh --check                  only tell whether a working CRIU is there
#   scripts/build-criu.sh --distribution-suffices  only tell whether this kernel can do with an older CRIU
#
# Why a build: kernels from 6.13 on need CRIU 4.1, and Debian 12 has 3.17. The
# source comes from Debian's unstable suite, on the mirror that this machine's
# apt already uses: apt verifies the suite's signature, the signed index holds
# the digest of the .dsc, and the .dsc the digest of the source. apt's lists of
# this machine are not touched; all state is in a temporary directory.
#
# Exit status: 0 done, or nothing to do; 1 not possible, with the reason.
set -euo pipefail
umask 022

say() { printf '%s\n' "criu: $*" >&2; }
die() {
	say "error: $1"
	[ $# -lt 2 ] || say "hint: $2"
	exit 1
}

PREFIX=${PREFIX:-/usr/local}
PATH=$PREFIX/sbin:$PATH:/usr/local/sbin:/usr/sbin:/sbin
minimum=4.1            # on kernels from needs_minimum on
needs_minimum=6.13
build_packages="gcc libc6-dev make pkg-config xz-utils libprotobuf-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libnl-3-dev libcap-dev libnet1-dev uuid-dev"

# at_least A B: version A is B or later.
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

kernel_is_old() { ! at_least "$(uname -r)" "$needs_minimum"; }

# works CRIU: it is new enough for this kernel and its own check passes.
works() {
	local version
	version=$("$1" --version 2>/dev/null | awk '$1 == "Version:" { print $2 }')
	[ -n "$version" ] || return 1
	kernel_is_old || at_least "$version" "$minimum" || return 1
	# Without the privileges that a check takes, the version has to do.
	[ "$(id -u)" != 0 ] || "$1" check >/dev/null 2>&1
}

force=
case ${1:-} in
'') ;;
--force) force=yes ;;
--check)
	criu=$(command -v criu) && works "$criu" && echo "$criu" && exit 0
	exit 1
	;;
--distribution-suffices)
	kernel_is_old
	exit
	;;
*)
	sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac

if [ -z "$force" ] && criu=$(command -v criu) && works "$criu"; then
	exit 0
fi

command -v apt-get >/dev/null ||
	die "only Debian and its relatives are supported here" "install CRIU $minimum or later from https://criu.org"
mkdir -p "$PREFIX/sbin" 2>/dev/null || true
[ -w "$PREFIX/sbin" ] || die "$PREFIX/sbin cannot be written" "run as root, or set PREFIX"

work=$(mktemp -d "${TMPDIR:-/tmp}/build-criu.XXXXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$work"/{lists/partial,cache/archives/partial,source}

# Build dependencies, from the machine's own suite.
absent=()
for package in $build_packages; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || absent+=("$package")
done
if [ ${#absent[@]} -gt 0 ]; then
	[ "$(id -u)" = 0 ] || die "missing: ${absent[*]}" "sudo apt-get install -y --no-install-recommends ${absent[*]}"
	say "installing ${absent[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt_install() { apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "${absent[@]}" >"$work/log" 2>&1; }
	if ! apt_install; then
		apt-get -q update >/dev/null 2>&1 || true
		if ! apt_install; then
			tail -n 15 "$work/log" >&2
			die "the build dependencies could not be installed"
		fi
	fi
fi

# mirrors: one line a Debian mirror that apt is configured with, the most
# likely first: repository, keyring (- for apt's trusted keys). apt itself reads
# both formats of its configuration.
mirrors() {
	local codename uri origin release entry keyring
	# shellcheck source=/dev/null
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	# shellcheck disable=SC2016 # the fields are apt's
	apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(RELEASE)|$(SOURCESENTRY)' \
		'Created-By: Packages' 'Component: main' |
		while IFS='|' read -r uri origin release entry; do
			# A field that apt does not know yet stays as it was written.
			case $origin in Debian | \$*) ;; *) continue ;; esac
			case $release in *-security | *-updates | *-backports | */*) continue ;; esac
			case $uri in http://* | https://* | mirror* | file:* | tor*) ;; *) continue ;; esac
			keyring=$(sed -nE 's/^[Ss]igned-[Bb]y:[[:space:]]*(\/[^[:space:]]+).*/\1/p; s/^[^#]*\[[^]]*signed-by=([^] ]+).*/\1/p' \
				"${entry%:*}" 2>/dev/null | head -n 1)
			[ -r "$keyring" ] || keyring=/usr/share/keyrings/debian-archive-keyring.gpg
			[ -r "$keyring" ] || keyring=-
			[ "$release" = "$codename" ] && printf '0 ' || printf '1 '
			printf '%s %s\n' "$uri" "$keyring"
		done | sort -u | cut -d ' ' -f 2-
}

# The machine's hooks after an update are not for a private list.
cat >"$work/apt.conf" <<EOF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
EOF
private_apt() { apt-get -q -c "$work/apt.conf" "$@"; }

found=
while read -r uri keyring; do
	options=
	[ "$keyring" = - ] || options="[signed-by=$keyring] "
	echo "deb-src $options$uri sid main" >"$work/sources.list"
	say "fetching the source from $uri"
	if private_apt update >"$work/log" 2>&1 &&
		(cd "$work/source" &&
			private_apt source --download-only --dsc-only criu >>"$work/log" 2>&1 &&
			private_apt source --download-only --tar-only criu >>"$work/log" 2>&1); then
		found=yes
		break
	fi
	grep -E '^(E|W):' "$work/log" >&2 || true
done < <(mirrors)
[ -n "$found" ] || die "no configured Debian mirror gave the source of criu" "apt-get update, and look at /etc/apt/sources.list.d"

cd "$work/source"
tarball=$(echo criu_*.orig.tar.*)
dsc=$(echo criu_*.dsc)
if [ ! -f "$tarball" ] || [ ! -f "$dsc" ]; then
	die "the source of criu is incomplete"
fi
# The .dsc was checked by apt against the signed index.
awk -v name="$tarball" '
	/^Checksums-Sha256:/ { on = 1; next }
	/^[^ ]/              { on = 0 }
	on && $3 == name     { print $1 "  " $3 }' "$dsc" >sum
if [ "$(wc -l <sum)" != 1 ] || ! sha256sum --quiet -c sum; then
	die "$tarball is not what its .dsc says: refused"
fi

mkdir tree
tar -xf "$tarball" -C tree --strip-components=1
version=${tarball#criu_} version=${version%.orig.tar.*}
kernel_is_old || at_least "$version" "$minimum" || die "the mirror has CRIU $version; kernel $(uname -r) needs $minimum or later"

say "building CRIU $version"
if ! make -C tree -j"$(nproc)" criu >"$work/log" 2>&1; then
	tail -n 20 "$work/log" >&2
	die "CRIU $version did not build"
fi
built=tree/criu/criu
"$built" --version >/dev/null || die "the CRIU that was built does not run"
if [ "$(id -u)" = 0 ] && ! "$built" check >"$work/log" 2>&1; then
	grep Error "$work/log" >&2 || true
	die "CRIU $version was built, but its own check fails here, as above" "in a container or chroot try the host; the kernel needs CONFIG_CHECKPOINT_RESTORE"
fi

# Whoever runs criu now goes on with the old file.
install -D -m 0755 "$built" "$PREFIX/sbin/.criu.new"
mv -f "$PREFIX/sbin/.criu.new" "$PREFIX/sbin/criu"
say "installed $PREFIX/sbin/criu, version $version"
