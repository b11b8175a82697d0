#!/bin/sh
# Builds an image with STAR from Debian's packages and adds it to a store, for
# star.yaml beside this file.
#
#   sudo ./build.sh STORE [NAME:TAG]
#   sudo PACKAGES=minimap2,samtools ./build.sh STORE tools/minimap2:1
#
# Needs: root, premix, mmdebstrap. The packages come from where apt gets them.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: $0 STORE [NAME:TAG]" >&2
	exit 2
fi
store=$1
name=${2:-biodepot/star:2.7}
packages=${PACKAGES:-rna-star}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

. /etc/os-release
set --
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
	if [ -s "$list" ]; then
		set -- "$@" "$list"
	fi
done

# The essential packages and the tools: no documentation, no lists of packages.
mmdebstrap --variant=essential --include="$packages" \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	"$VERSION_CODENAME" "$work/root" "$@"
rm -rf "$work/root/var/lib/apt/lists" "$work/root/var/cache/apt"

premix image add --store "$store" "$work/root" "$name"
