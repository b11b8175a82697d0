#!/bin/bash
# Installs what premix's build, tests and benchmarks need; the demonstration needs Go alone.
#
#   scripts/setup.sh go              a Go toolchain that is new enough (checked, never installed)
#   scripts/setup.sh test bench the Debian packages of each
#   scripts/setup.sh nydus           a build of nydus, for bench-containers and bench-store
#   scripts/setup.sh containerd      runc, the distribution's containerd, and a build of 2.1
#   scripts/setup.sh containerd-1.7  a build of 1.7
#   scripts/setup.sh soak            the Debian packages of tests that take long, a kernel for virtual machines (420 MB), and another client of CVMFS
#   scripts/setup.sh ecosystem       Nextflow, Snakemake with its plugin for Slurm, pandas, Arrow and MultiQC (900 MB)
#   scripts/setup.sh wheel           the builder of the Python package
#   scripts/setup.sh docs            the builder of the site of the documentation
#   scripts/setup.sh gatk            GATK, of which the example's long test calls one tool (440 MB)
#   scripts/setup.sh kubernetes      etcd, and a build of the control plane and the kubelet
#   scripts/setup.sh tools           programs that bench-tools starts
#   scripts/setup.sh transfer        programs that copy, for bench-transfer and soak
#
# Several may be named. As root missing packages are installed with apt-get;
# otherwise one list of them and the command that installs them are printed,
# and the exit status is 1 where the tests or the benchmarks cannot do without them. Builds lie in ${XDG_CACHE_HOME:-~/.cache}/premix, in containerd/VERSION
# and kubernetes/VERSION; tests skip what is not there.
set -euo pipefail
cd "$(dirname "$0")/.."

# Each set as package:file, where the file shows that the package is there
# however it came. A set lists its own needs only.
test_packages=(jq:jq bwa:bwa minimap2:minimap2 samtools:samtools samtools:wgsim groff-base:groff man-db:man ncbi-blast+:makeblastdb diamond-aligner:diamond chromium:chromium python3:python3 python3-pip:pip3 python3-venv:/usr/share/doc/python3-venv rna-star:STAR kallisto:kallisto salmon:salmon fio:fio gcc:gcc libc6-dev:/usr/include/stdio.h seqkit:seqkit erofs-utils:fsck.erofs fuse3:fusermount3 squid:squid runc:runc busybox-static:/bin/busybox slurmctld:slurmctld slurmd:slurmd slurm-client:sbatch slurmdbd:slurmdbd munge:munged mariadb-server-core:mariadbd mariadb-client-core:mariadb bcftools:bcftools openssh-server:sshd openssh-client:scp openssl:openssl rsync:rsync curl:curl nginx-light:nginx aria2:aria2c tcpdump:tcpdump iproute2:ip git:git stress-ng:stress-ng prometheus:promtool python3-plyvel:/usr/lib/python3/dist-packages/plyvel)
containerd_packages=(containerd:containerd runc:runc busybox-static:/bin/busybox)
kubernetes_packages=(etcd-server:etcd)
soak_packages=(podman:podman mmdebstrap:mmdebstrap)
transfer_packages=(rclone:rclone xrootd-server:xrootd xrootd-client:xrdcp globus-gridftp-server-progs:globus-gridftp-server globus-gass-copy-progs:globus-url-copy libglobus-xio-udt-driver:/usr/share/doc/libglobus-xio-udt-driver/copyright ethtool:ethtool)
bench_packages=(jq:jq bwa:bwa minimap2:minimap2 samtools:samtools samtools:wgsim rna-star:STAR kallisto:kallisto gcc:gcc libc6-dev:/usr/include/stdio.h mmdebstrap:mmdebstrap parallel:parallel make:make fd-find:fdfind mergerfs:mergerfs zlib1g-dev:/usr/include/zlib.h libfuse3-dev:/usr/include/fuse3/fuse.h pkg-config:pkg-config fuse3:fusermount3 slurmctld:slurmctld slurmd:slurmd slurm-client:sbatch munge:munged python3-pip:/usr/lib/python3/dist-packages/pip)

tools_packages=(bowtie2:bowtie2 bowtie:bowtie hisat2:hisat2 diamond-aligner:diamond hmmer:hmmscan kraken2:kraken2 centrifuge:centrifuge picard-tools:PicardCommandLine default-jre-headless:java r-base-core:Rscript snap-aligner:snap-aligner subread:subread-align last-align:lastal vsearch:vsearch mmseqs2:mmseqs gmap:gmap ncbi-blast+:blastn bedtools:bedtools seqkit:seqkit fastp:fastp freebayes:freebayes mash:mash exonerate:exonerate trimmomatic:TrimmomaticSE python3-numpy:/usr/lib/python3/dist-packages/numpy salmon:salmon kallisto:kallisto bcftools:bcftools strace:strace)
gatk_packages=(default-jre-headless:java maven:mvn)
ecosystem_packages=(default-jre-headless:java maven:mvn python3-venv:/usr/share/doc/python3-venv)

say() { printf '%s\n' "setup: $*" >&2; }

# have FILE: an absolute path, or a program on PATH or in an sbin directory.
have() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
	esac
}

# install PACKAGE...: quietly; fails with apt-get's own words.
install() {
	# In this run level no package starts its services (invoke-rc.d(8)).
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
	say "installing $*"
	local log
	apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$@" >/dev/null 2>&1 && return 0
	# The lists may be missing or stale. A list of somebody else that cannot be
	# fetched is no reason to stop: the second attempt shows whether it matters.
	apt-get -q update >/dev/null 2>&1 || true
	log=$(apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$@" 2>&1) && return 0
	printf '%s\n' "$log" | tail -n 15 >&2
	return 1
}

# missing PACKAGE:FILE...: prints the packages whose file is not there.
missing() {
	local entry
	for entry; do
		have "${entry#*:}" || printf '%s\n' "${entry%%:*}"
	done | sort -u
}

# need PACKAGE:FILE...: installs or lists what is missing.
need() {
	local names list
	names=$(missing "$@") # <(...) would need /proc
	[ -n "$names" ] || return 0
	mapfile -t list <<<"$names"
	if ! command -v apt-get >/dev/null; then
		say "error: missing: ${list[*]}"
		say "hint: this system has no apt-get; install the programs of the same names"
		return 1
	fi
	if [ "$(id -u)" != 0 ]; then
		say "error: missing: ${list[*]}"
		say "hint: sudo apt-get install -y --no-install-recommends ${list[*]}"
		return 1
	fi
	install "${list[@]}"
}

# Go: the version that go.mod asks for, or a later one. A toolchain that may
# download another (GOTOOLCHAIN=auto) answers for itself.
check_go() {
	local want version log
	want=$(awk '$1 == "go" { print $2; exit }' go.mod)
	local go=${GO:-go} get="get Go $want or later from https://go.dev/dl, and put its bin directory on PATH: no package of Debian 12 or 13 is new enough"
	if ! command -v "$go" >/dev/null; then
		say "error: there is no Go toolchain: premix is built with Go $want or later"
		say "hint: $get"
		return 1
	fi
	if ! version=$("$go" env GOVERSION 2>/dev/null) || [ -z "$version" ]; then
		# Its own version is older, and the one of go.mod could not be fetched.
		version=$(GOTOOLCHAIN=local "$go" version 2>/dev/null | awk '{ print $3 }')
		log=$("$go" version 2>&1 || true)
		if [ -z "$version" ]; then
			say "error: $go does not run: ${log##*$'\n'}"
			say "hint: $get"
			return 1
		fi
		say "error: this is Go ${version#go}, and it could not fetch the toolchain of Go $want: ${log##*$'\n'}"
		say "hint: $get"
		return 1
	fi
	version=${version#go}
	if [ "$(printf '%s\n' "$want" "${version%%[-+ ]*}" | sort -V | head -n 1)" != "$want" ]; then
		say "error: Go $version is too old: premix is built with Go $want or later"
		say "hint: $get"
		return 1
	fi
	# The modules come over HTTPS.
	if [ ! -e /etc/ssl/certs/ca-certificates.crt ] && [ ! -e /etc/pki/tls/certs/ca-bundle.crt ] && [ ! -e /etc/ssl/cert.pem ]; then
		need ca-certificates:/etc/ssl/certs/ca-certificates.crt
	fi
}

# build_containerd MODULE VERSION: programs of a fixed version, through the Go
# module proxy, whose content Go's checksum database vouches for. A module with
# exclude directives cannot be installed by `go install`, so a copy is built.
build_containerd() {
	local module=$1 version=$2 to work source
	to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/containerd/${version#v}
	[ -x "$to/containerd" ] && [ -x "$to/ctr" ] && [ -x "$to/containerd-shim-runc-v2" ] && return 0
	say "building containerd ${version#v}, once; this takes some minutes"
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # the path of now
	trap "chmod -R u+w '$work'; rm -rf '$work'" RETURN
	source=$(cd "$work" && "${GO:-go}" mod download -json "$module@$version" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
	[ -n "$source" ] || return 1
	cp -r "$source" "$work/source"
	chmod -R u+w "$work/source"
	(cd "$work/source" && CGO_ENABLED=0 GOFLAGS=-mod=mod GOWORK=off "${GO:-go}" build -trimpath -tags no_btrfs,no_devmapper,no_zfs,no_aufs \
		-ldflags "-s -w -X $module/version.Version=${version#v}" -o "$work/bin/" ./cmd/containerd ./cmd/ctr ./cmd/containerd-shim-runc-v2) || return 1
	mkdir -p "$(dirname "$to")"
	rm -rf "$to"
	mv "$work/bin" "$to"
}

# build_kubernetes VERSION: kube-apiserver, kube-controller-manager, kube-scheduler and
# kubelet of a fixed version. Their module names the modules that are published beside it by
# directories of its repository; a module made here names the same ones by their
# versions, v0.X.Y for v1.X.Y.
build_kubernetes() {
	local version=$1 programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet) to work source program
	to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/kubernetes/${version#v}
	local complete=1
	for program in "${programs[@]}"; do
		[ -x "$to/$program" ] || complete=
	done
	[ -z "$complete" ] || return 0
	say "building Kubernetes ${version#v}, once; this takes many minutes"
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # the path of now
	trap "rm -rf '$work'" RETURN
	source=$(cd "$work" && "${GO:-go}" mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
	[ -n "$source" ] || return 1
	sed -e 's|^module .*|module premix/kubernetes|' -e "s|=> \./staging/src/\(.*\)|=> \1 v0${version#v1}|" "$source/go.mod" >"$work/go.mod"
	cp "$source/go.sum" "$work/go.sum"
	(cd "$work" && "${GO:-go}" mod edit -require "k8s.io/kubernetes@$version" &&
		CGO_ENABLED=0 GOFLAGS=-mod=mod GOWORK=off nice "${GO:-go}" build -trimpath -ldflags '-s -w' -o "$work/bin/" "${programs[@]/#/k8s.io/kubernetes/cmd/}") || return 1
	mkdir -p "$to"
	# Each by itself, so that one in use stays.
	for program in "${programs[@]}"; do
		mv -f "$work/bin/$program" "$to/"
	done
}

# build_helm VERSION: helm, which makes the objects of the chart in dist/helm for tests.
build_helm() {
	local to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/helm
	[ -e "$to/$1" ] && return 0
	say "building helm ${1#v}, once"
	CGO_ENABLED=0 GOFLAGS='' GOBIN=$to nice "${GO:-go}" install "helm.sh/helm/v3/cmd/helm@$1" || return 1
	touch "$to/$1"
}

# The workflow managers that tests run through premix slurm-shim. Later releases of
# Nextflow load plugins from a place of their own when they start.
nextflow_version=24.10.0
snakemake_version=9.27.1
snakemake_slurm_version=2.8.0

# install_nextflow: the jars of a fixed version, and a program that starts them.
install_nextflow() {
	local to work
	to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/nextflow/$nextflow_version
	[ -x "$to/nextflow" ] && return 0
	say "fetching Nextflow $nextflow_version, once"
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # the path of now
	trap "rm -rf '$work'" RETURN
	cat >"$work/pom.xml" <<-END
		<project xmlns="http://maven.apache.org/POM/4.0.0">
		<modelVersion>4.0.0</modelVersion>
		<groupId>premix</groupId><artifactId>nextflow</artifactId><version>1</version>
		<dependencies><dependency>
		<groupId>io.nextflow</groupId><artifactId>nextflow</artifactId><version>$nextflow_version</version>
		</dependency></dependencies>
		</project>
	END
	mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/made/lib" >"$work/log" 2>&1 ||
		{ tail -n 15 "$work/log" >&2; return 1; }
	cat >"$work/made/nextflow" <<-'END'
		#!/bin/sh
		# Nextflow, which looks for nothing on the network.
		here=$(dirname "$(readlink -f "$0")")
		export NXF_OFFLINE=true NXF_ANSI_LOG=false
		exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$here/lib/*" nextflow.cli.Launcher "$@"
	END
	chmod +x "$work/made/nextflow"
	mkdir -p "$(dirname "$to")"
	rm -rf "$to"
	mv "$work/made" "$to"
}

# install_gatk: the jars of a fixed version, and a program that starts them. ORC, which
# only tools on Spark clusters read, is left out: one of its jars is on no server.
gatk_version=4.5.0.0
install_gatk() {
	local to work
	to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/gatk/$gatk_version
	[ -x "$to/gatk" ] && return 0
	say "fetching GATK $gatk_version, once; this takes some minutes"
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # the path of now
	trap "rm -rf '$work'" RETURN
	cat >"$work/pom.xml" <<-END
		<project xmlns="http://maven.apache.org/POM/4.0.0">
		<modelVersion>4.0.0</modelVersion>
		<groupId>premix</groupId><artifactId>gatk</artifactId><version>1</version>
		<dependencies><dependency>
		<groupId>org.broadinstitute</groupId><artifactId>gatk</artifactId><version>$gatk_version</version>
		<exclusions><exclusion><groupId>org.apache.orc</groupId><artifactId>*</artifactId></exclusion></exclusions>
		</dependency></dependencies>
		</project>
	END
	mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/made/lib" >"$work/log" 2>&1 ||
		{ tail -n 15 "$work/log" >&2; return 1; }
	cat >"$work/made/gatk" <<-'END'
		#!/bin/sh
		# GATK, with one thread for the garbage of its JVM.
		here=$(dirname "$(readlink -f "$0")")
		exec java -XX:+UseSerialGC -cp "$here/lib/*" org.broadinstitute.hellbender.Main "$@"
	END
	chmod +x "$work/made/gatk"
	mkdir -p "$(dirname "$to")"
	rm -rf "$to"
	mv "$work/made" "$to"
}

# install_snakemake: an environment of its own, of fixed versions.
install_snakemake() {
	local to
	to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/snakemake/$snakemake_version-$snakemake_slurm_version
	[ -e "$to/.done" ] && return 0
	say "installing Snakemake $snakemake_version, once"
	rm -rf "$to"
	python3 -m venv "$to" || return 1
	"$to/bin/pip" install -q "snakemake==$snakemake_version" "snakemake-executor-plugin-slurm==$snakemake_slurm_version" || return 1
	touch "$to/.done"
}

# python_tools NAME PACKAGE==VERSION...: packages in the environment NAME, for tests: python is
# for those of dist/python, slurm-clients and toil for those that submit jobs to Slurm.
python_tools() {
	local to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/$1/1 package missing=()
	shift
	[ -x "$to/bin/pip" ] || python3 -m venv "$to" || return 1
	for package; do
		[ -e "$to/.${package}" ] || missing+=("$package")
	done
	[ ${#missing[@]} = 0 ] && return 0
	say "installing ${missing[*]}"
	"$to/bin/pip" install -q --disable-pip-version-check "${missing[@]}" || return 1
	(cd "$to" && touch "${missing[@]/#/.}")
}

# python_library NAME VERSION: a package of PyPI in a directory of its own, for a test.
python_library() {
	local to=${XDG_CACHE_HOME:-$HOME/.cache}/premix/$1/$2
	[ -e "$to" ] && return 0
	say "installing $1 $2"
	rm -rf "$to.part"
	python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$to.part" "$1==$2" || return 1
	mv "$to.part" "$to"
}

# build_cvmfs VERSION builds another client of CVMFS, with which internal/cvmfs is
# compared. Its tests skip what is not there.
build_cvmfs() {
	local dir=${XDG_CACHE_HOME:-$HOME/.cache}/premix/cvmfs log
	[ -x "$dir/bin/cvmfs-cli" ] && return 0
	command -v cargo >/dev/null || {
		say "there is no cargo to build the crate cvmfs with: a test is skipped"
		return 0
	}
	say "building cvmfs $1"
	log=$(cargo install cvmfs --version "$1" --root "$dir" --config 'profile.release.lto="off"' --config profile.release.codegen-units=16 2>&1) && return 0
	printf '%s\n' "$log" | tail -n 15 >&2
	return 1
}

# build_nydus VERSION builds nydusd and nydus-image, contenders of bench-store and
# bench-containers, with the versions of its own Cargo.lock: with the newest ones the crate xattr
# does not compile.
build_nydus() {
	local dir=${XDG_CACHE_HOME:-$HOME/.cache}/premix/nydus log
	[ -x "$dir/bin/nydusd" ] && [ -x "$dir/bin/nydus-image" ] && return 0
	command -v cargo >/dev/null || {
		say "there is no cargo to build the crate nydus-rs with: benchmarks cannot measure nydus"
		return 0
	}
	say "building nydus $1, once; this takes many minutes"
	log=$(cargo install nydus-rs --version "$1" --locked --root "$dir" --config 'profile.release.lto="off"' --config profile.release.codegen-units=16 2>&1) && return 0
	printf '%s\n' "$log" | tail -n 15 >&2
	return 1
}

# build_protocols QCP GOFAKES3 builds programs of transfers that Debian has no packages of, for
# all users, as the peer of a test is reached through sshd.
build_protocols() {
	local log
	[ -x /usr/local/bin/gofakes3 ] || {
		say "building gofakes3 $2"
		GOBIN=/usr/local/bin go install "github.com/johannesboyne/gofakes3/cmd/gofakes3@$2" || return 1
	}
	[ -x /usr/local/bin/qcp ] && return 0
	command -v cargo >/dev/null || {
		say "there is no cargo to build the crate qcp with: tests leave it out"
		return 0
	}
	say "building qcp $1"
	log=$(cargo install qcp --version "$1" --root /usr/local --config 'profile.release.lto="off"' --config profile.release.codegen-units=16 2>&1) && return 0
	printf '%s\n' "$log" | tail -n 15 >&2
	return 1
}

# fetch_guest unpacks User-Mode Linux and its modules. It is not installed.
fetch_guest() {
	local dir=${XDG_CACHE_HOME:-$HOME/.cache}/premix/guest work
	[ -x "$dir/usr/bin/linux.uml" ] && return 0
	command -v apt-get >/dev/null || {
		say "there is no apt-get to fetch User-Mode Linux with: the test in it is skipped"
		return 0
	}
	say "fetching user-mode-linux"
	work=$(mktemp -d)
	if (cd "$work" && { apt-get -q download user-mode-linux || { apt-get -q update && apt-get -q download user-mode-linux; }; }) >/dev/null 2>&1; then
		mkdir -p "$dir" && rm -rf "$dir/usr" && dpkg-deb -x "$work"/*.deb "$work/x" && mv "$work/x/usr" "$dir"/
	else
		say "User-Mode Linux cannot be fetched: the test in it is skipped"
	fi
	local status=$?
	rm -rf "$work"
	return "$status"
}

[ $# -gt 0 ] || set -- go test bench containerd
packages=()
status=0
for set in "$@"; do
	case $set in
	go) check_go || exit 1 ;;
	containerd-1.7 | wheel | docs | nydus) ;;
	kubernetes) packages+=("${kubernetes_packages[@]}") ;;
	containerd) packages+=("${containerd_packages[@]}") ;;
	test) packages+=("${test_packages[@]}") ;;
	bench) packages+=("${bench_packages[@]}") ;;
	soak) packages+=("${soak_packages[@]}") ;;
	ecosystem) packages+=("${ecosystem_packages[@]}") ;;
	gatk) packages+=("${gatk_packages[@]}") ;;
	tools) packages+=("${tools_packages[@]}") ;;
	transfer) packages+=("${transfer_packages[@]}") ;;
	*)
		say "error: unknown set $set"
		say "hint: go, test, bench, soak, ecosystem, gatk, tools, wheel, docs, containerd, containerd-1.7, kubernetes, nydus, transfer"
		exit 2
		;;
	esac
done
[ ${#packages[@]} = 0 ] || need "${packages[@]}" || exit 1 # builds need them
for set in "$@"; do
	case $set in
	test)
		fetch_guest || status=1
		python_library biopython 1.85 || status=1
		python_tools python pytest==9.2.0 mypy==2.4.1 hatchling==1.33.0 cloudpickle==3.1.2 rocrate==0.16.0 || status=1
		python_tools slurm-clients submitit==1.5.4 || status=1
		;;
	wheel) python_tools python hatchling==1.33.0 || status=1 ;;
	docs) python_tools docs mkdocs-material==9.8.1 || status=1 ;;
	soak)
		build_cvmfs 0.4.2 || status=1
		;;
	nydus) build_nydus 2.2.0 || status=1 ;;
	transfer) build_protocols 0.9.1 v1.2.0 || status=1 ;;
	containerd) build_containerd github.com/containerd/containerd/v2 v2.4.2 || status=1 ;;
	containerd-1.7) build_containerd github.com/containerd/containerd v1.7.35 || status=1 ;;
	ecosystem)
		install_nextflow || status=1
		install_snakemake || status=1
		python_tools python pandas==3.1.1 pyarrow==26.0.1 multiqc==1.35 || status=1
		python_tools slurm-clients psij-python==0.9.11 parsl==2026.10.26 dask-jobqueue==0.9.0 || status=1
		python_tools toil toil==9.6.0 || status=1 # its requirements are not those of the others
		;;
	gatk) install_gatk || status=1 ;;
	kubernetes)
		build_helm v3.22.0 || status=1
		build_kubernetes v1.33.3 || status=1
		;;
	esac
done
exit "$status"
