# Installs premix on a node, whose /etc and /usr/local/bin are below $HOST. Nothing is changed
# by a second run.
set -eu
HOST=${HOST-/host} PREMIX=${PREMIX-/premix} FROM=${FROM-/config}
run() { nsenter --target 1 --mount -- "$@"; }

units=premix-node.service
[ "$SNAPSHOTTER" != true ] || units="$units premix-snapshotter.service premix-snapshotter.socket"
[ "$WATCH" != true ] || units="$units premix-watch.service"
mkdir -p "$HOST/etc/premix" "$HOST/etc/systemd/system"
cp "$FROM/node.yaml" "$HOST/etc/premix/node.yaml"
for unit in $units; do
	cp "$PREMIX/$unit" "$HOST/etc/systemd/system/$unit"
done
# A binary that runs cannot be written to, and can be replaced.
if ! cmp -s "$PREMIX/premix" "$HOST/usr/local/bin/premix"; then
	cp "$PREMIX/premix" "$HOST/usr/local/bin/.premix.new"
	mv "$HOST/usr/local/bin/.premix.new" "$HOST/usr/local/bin/premix"
fi

# patch: containerd's own configuration gets premix as a snapshotter, and CRI uses it. An
# imported file would not do: its section of CRI would replace the whole one.
# The former configuration is kept beside it.
patch() {
	config=$HOST$CONFIG
	if [ ! -e "$config" ]; then
		echo "error: $CONFIG does not exist on this node" >&2
		echo "hint: containerd config default >$CONFIG, or set snapshotter.containerdConfig" >&2
		return 1
	fi
	case $(uname -m) in
	x86_64) platform=linux/amd64 ;;
	aarch64) platform=linux/arm64 ;;
	*) platform=linux/$(uname -m) ;;
	esac
	version=$(sed -n 's/^version *= *\([0-9]*\).*/\1/p' "$config" | head -n 1)
	case $version in
	2) section='plugins."io.containerd.grpc.v1.cri".containerd' ;;
	3 | 4) section='plugins."io.containerd.cri.v1.images"' ;;
	*)
		echo "error: $CONFIG has version ${version:-1}, and premix needs 2, 3 or 4" >&2
		echo "hint: containerd config migrate, or set snapshotter.patchContainerd to false" >&2
		return 1
		;;
	esac
	# containerd 2 pulls by its transfer service, which has a list of snapshotters of its own.
	unpack=
	if [ "$version" != 2 ]; then
		unpack='[[plugins."io.containerd.transfer.v1.local".unpack_config]]'
		if grep -q '^[[:space:]]*unpack_config[[:space:]]*=' "$config"; then
			echo "error: $CONFIG has unpack_config as a list in one line" >&2
			echo "hint: add {platform = \"$platform\", snapshotter = \"premix\"} by hand, and set snapshotter.patchContainerd to false" >&2
			return 1
		fi
	fi
	awk -v section="[$section]" -v unpack="$unpack" -v platform="$platform" '
		function name(line) { gsub(/^[ \t]+|[ \t]+$/, "", line); gsub(/\047/, "\"", line); return line }
		function set() { print "  snapshotter = \"premix\""; done = 1 }
		name($0) ~ /^\[/ { within = name($0) == section; if (name($0) == "[proxy_plugins.premix]") there = 1; inlist = name($0) == unpack }
		inlist && $0 ~ /^[ \t]*snapshotter[ \t]*=.*premix/ { listed = 1 }
		within && $0 ~ /^[ \t]*snapshotter[ \t]*=/ { next }
		{ print }
		within && name($0) == section { set() }
		END {
			if (!done) { print "\n" section; set() }
			if (unpack && !listed) print "\n" unpack "\n  platform = \"" platform "\"\n  snapshotter = \"premix\""
			if (!there) print "\n[proxy_plugins.premix]\n  type = \"snapshot\"\n  address = \"/run/premix/snapshotter.sock\""
		}' "$config" >"$config.premix"
	if cmp -s "$config.premix" "$config"; then
		rm "$config.premix"
		return 0
	fi
	[ -e "$config.before-premix" ] || cp "$config" "$config.before-premix"
	: >"$restart"
	mv "$config.premix" "$config"
}
# The mark of a changed configuration stays until containerd was restarted, also where this
# script fails before and runs again.
restart=$HOST/etc/premix/restart-containerd
[ "$PATCH" != true ] || patch

run systemctl daemon-reload
# shellcheck disable=SC2086 # a list of words
run systemctl enable $units
run systemctl start premix-node.service
# The node that runs goes on with the new binary; containers do not notice.
run systemctl reload premix-node.service
if [ "$SNAPSHOTTER" = true ]; then
	run systemctl start premix-snapshotter.socket
	run systemctl restart premix-snapshotter.service
fi
[ "$WATCH" != true ] || run systemctl restart premix-watch.service
if [ -e "$restart" ]; then
	run systemctl restart containerd.service
	rm "$restart"
fi
