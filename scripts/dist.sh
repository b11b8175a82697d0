#!/bin/bash
# Makes a release: static programs for two processors, packages, wheels, an OCI image, a
# Helm chart, a recipe for Bioconda, lists of all modules, digests, and a signature. The
# same commit and toolchain give the same bytes, wherever and whenever it runs.
#
#   scripts/dist.sh OUT
#
# OUT must not exist. Variables:
#
#   VERSION          of the release (default: from git: a tag, or 0.0.0 and the commit)
#   SOURCE_DATE_EPOCH   time of all files (default: of the commit)
#   PYTHON           an interpreter with hatchling (default: of scripts/setup.sh wheel)
#   RELEASE_KEY      file with the Ed25519 private key that signs, in PEM form:
#                    openssl genpkey -algorithm ed25519 -out KEY
#                    Without it the release is not signed.
#   DIST_ARCHES      processors (default: amd64 arm64)
#   DIST_SOURCE      directory of the source (default: this one)
set -euo pipefail
out=$(realpath -m "${1:?usage: scripts/dist.sh OUT}")
cd "${DIST_SOURCE:-$(dirname "$0")/..}"
GO=${GO:-go}
read -r -a arches <<<"${DIST_ARCHES:-amd64 arm64}"
tools=$(realpath -m "${DIST_TOOLS:-bin/tools}")
umask 022
export LC_ALL=C TZ=UTC CGO_ENABLED=0 GOFLAGS=-mod=readonly

die() {
	printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
	exit 1
}
say() { printf 'dist: %s\n' "$*" >&2; }

[ ! -e "$out" ] || die "$out exists already" "name a directory that does not exist, or remove it"
for program in git tar gzip xz sha256sum openssl; do
	command -v "$program" >/dev/null || die "$program is missing" "install it: apt-get install git tar gzip xz-utils coreutils openssl"
done

version=${VERSION:-}
if [ -z "$version" ]; then
	version=$(git describe --tags --exact-match 2>/dev/null || echo "0.0.0+g$(git rev-parse --short=12 HEAD)")
fi
version=${version#v}
case $version in
[0-9]*) ;;
*) die "$version is not a version" "VERSION=1.2.3 make dist" ;;
esac
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH=$epoch
date=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
key=
[ -z "${RELEASE_KEY:-}" ] || key=$(openssl pkey -in "$RELEASE_KEY" -pubout -outform DER | tail -c 32 | od -An -v -tx1 | tr -d ' \n')

# tool NAME MODULE@VERSION: builds a program once.
tool() {
	[ -x "$tools/$1-${2##*@}" ] && return 0
	say "building $1 ${2##*@}"
	mkdir -p "$tools"
	local log
	log=$(GOFLAGS='' GOBIN="$tools" "$GO" install "$2" 2>&1) || die "$1 cannot be built: ${log##*$'\n'}" "it comes through the Go module proxy: see GOPROXY"
	mv "$tools/$1" "$tools/$1-${2##*@}"
}
# Later versions of nfpm need modules that not every proxy has.
nfpm=v2.45.2 cyclonedx=v1.10.0
tool nfpm "github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm"
tool cyclonedx-gomod "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$cyclonedx"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
release=$work/release
mkdir -p "$release"

# packed FILE DIR NAME...: a tar archive of NAME in DIR, with nothing of this machine or day.
packed() {
	local to=$1 from=$2
	shift 2
	tar -C "$from" --sort=name --format=gnu --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf - "$@" | gzip -n9 >"$to"
}

# build ARCH: the programs.
build() {
	say "building premix $version for $1"
	local flags="-s -w -E premix_entry"
	GOARCH=$1 "$GO" build -trimpath -buildvcs=false -ldflags "$flags -X main.version=$version -X main.releaseKey=$key" -o "$work/$1/bin/premix" ./cmd/premix
	GOARCH=$1 "$GO" build -trimpath -buildvcs=false -ldflags "$flags" -o "$work/$1/bin/premix-shim" ./cmd/premix-shim
	GOARCH=$1 "$GO" build -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/$1/bin/premix-demo" ./cmd/premix-demo
}
for arch in "${arches[@]}"; do
	build "$arch"
done

# Manual pages and completions come from a premix that runs here.
host=$("$GO" env GOHOSTARCH)
[ -x "$work/$host/bin/premix" ] || GOARCH=$host build "$host"
"$work/$host/bin/premix" manual "$work/manual"

# units TO BIN: the systemd units, for programs in BIN.
units() {
	mkdir -p "$1"
	local unit
	for unit in dist/containerd/*.service dist/containerd/*.socket dist/watch/*.service dist/systemd/*.service; do
		sed "s|/usr/local/bin/premix|$2/premix|" "$unit" >"$1/$(basename "$unit")"
	done
}

# stage ARCH: what is below /usr in a package, and below the top of a tarball.
stage() {
	local to=$work/$1
	mkdir -p "$to/share/man/man1" "$to/share/doc/premix" "$to/share/premix"
	cp "$work"/manual/man/man1/*.1 "$to/share/man/man1/"
	gzip -n9 "$to"/share/man/man1/*.1
	install -Dm644 "$work/manual/completions/bash/premix" "$to/share/bash-completion/completions/premix"
	install -Dm644 "$work/manual/completions/zsh/_premix" "$to/share/zsh/vendor-completions/_premix"
	install -Dm644 "$work/manual/completions/fish/premix.fish" "$to/share/fish/vendor_completions.d/premix.fish"
	cp LICENSE README.md CHANGELOG.md "$to/share/doc/premix/"
	cp -r dist/containerd/config-1.toml dist/containerd/config-2.toml dist/kubernetes "$to/share/premix/"
	cp -r examples/recipes "$to/share/premix/recipes"
	rm -f "$to"/share/premix/recipes/*.go
	cp -r dist/grafana dist/prometheus dist/galaxy dist/nextflow "$to/share/premix/"
	chmod -R u=rwX,go=rX "$to"
}

for arch in "${arches[@]}"; do
	stage "$arch"
	say "packing for $arch"
	name=premix-$version-linux-$arch
	mkdir -p "$work/tar/$name"
	cp -r "$work/$arch/." "$work/tar/$name/"
	units "$work/tar/$name/share/premix/systemd" /usr/local/bin
	packed "$release/$name.tar.gz" "$work/tar" "$name"

	units "$work/units-$arch" /usr/bin
	sed "s|\${STAGE}|$work/$arch|; s|\${UNITS}|$work/units-$arch|; s|\${SYSUSERS}|$PWD/dist/packages/sysusers.conf|; s|\${POSTINSTALL}|$PWD/dist/packages/postinstall.sh|; s|\${DATE}|$date|; s|\${ARCH}|$arch|; s|\${VERSION}|$version|" \
		dist/packages/nfpm.yaml >"$work/nfpm-$arch.yaml"
	for packager in deb rpm; do
		"$tools/nfpm-$nfpm" package --config "$work/nfpm-$arch.yaml" --packager "$packager" --target "$release/" >/dev/null
	done
	# From the module list that the linker put into the program.
	"$tools/cyclonedx-gomod-$cyclonedx" bin -json -noserial -notimestamp -std -version "v$version" \
		-output "$release/premix-$version-linux-$arch.cdx.json" "$work/$arch/bin/premix" 2>"$work/log" || die "the list of modules cannot be made: $(tail -n 1 "$work/log")" "see cyclonedx-gomod bin --help"
done

# The wheels: their version is the Python package's.
python=${PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/premix/python/1/bin/python}
if "$python" -c 'import hatchling' 2>/dev/null; then
	for arch in "${arches[@]}"; do
		scripts/wheel.sh "$python" "$work/$arch/bin" "$release" "$arch"
	done
	(cd dist/snakemake-executor-plugin-premix && "$python" -m hatchling build -t wheel -d "$release" >/dev/null)
else
	die "$python has no hatchling" "scripts/setup.sh wheel, or PYTHON=INTERPRETER"
fi

# The image: premix, the files that it installs on a node, and the certificates of Mozilla's
# list, without others that this machine trusts.
say "making the image"
parts=()
for arch in "${arches[@]}"; do
	root=$work/image/$arch
	mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/premix" "$root/tmp"
	cp "$work/$arch"/bin/{premix,premix-shim} "$root/usr/bin/"
	units "$root/premix" /usr/local/bin
	if compgen -G '/usr/share/ca-certificates/mozilla/*.crt' >/dev/null; then
		cat /usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
	fi
	chmod -R u=rwX,go=rX "$root"
	chmod 1777 "$root/tmp"
	parts+=("$arch=$root")
done
GOARCH='' "$GO" run -buildvcs=false ./scripts/ociimage -o "$work/layout" -epoch "$epoch" -name "premix:${version//+/-}" "${parts[@]}"
tar -C "$work/layout" --sort=name --format=gnu --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf "$release/premix-$version-oci.tar" .

if [ -d dist/helm/premix ]; then
	mkdir -p "$work/chart"
	cp -r dist/helm/premix "$work/chart/premix"
	sed -i "s|^version:.*|version: $version|; s|^appVersion:.*|appVersion: \"$version\"|" "$work/chart/premix/Chart.yaml"
	packed "$release/premix-chart-$version.tgz" "$work/chart" premix
fi

# digest ARCH: of its tarball.
digest() { sha256sum "$release/premix-$version-linux-$1.tar.gz" 2>/dev/null | cut -d' ' -f1; }
mkdir "$release/bioconda"
sed "s|@VERSION@|$version|; s|@AMD64@|$(digest amd64)|; s|@ARM64@|$(digest arm64)|" dist/bioconda/meta.yaml >"$release/bioconda/meta.yaml"

(cd "$release" && find . -type f -printf '%P\n' | sort | xargs -d '\n' sha256sum >"$work/SHA256SUMS")
mv "$work/SHA256SUMS" "$release/"
if [ -n "$key" ]; then
	openssl pkeyutl -sign -inkey "$RELEASE_KEY" -rawin -in "$release/SHA256SUMS" -out "$release/SHA256SUMS.sig"
	openssl pkey -in "$RELEASE_KEY" -pubout >"$work/key.pub"
	"$work/$host/bin/premix" verify-release --key "$work/key.pub" "$release" >/dev/null
else
	say "not signed: RELEASE_KEY is not set"
fi
mkdir -p "$(dirname "$out")"
mv "$release" "$out"
say "made $out"
