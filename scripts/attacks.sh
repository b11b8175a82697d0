#!/bin/bash
# Attacks a premix program as another user of the machine would, and prints for each attack
# whether it "holds" or is "BROKEN". Exits 1 when one is broken. Each attack once succeeded.
#
#   scripts/attacks.sh PREMIX
#
# It needs root, setpriv, python3, strace, /dev/fuse and ports of loopback. It writes only to
# a temporary directory, and ends every process that it started.
set -u
premix=$(realpath "${1:?usage: scripts/attacks.sh PREMIX}")
[ "$(id -u)" = 0 ] || { echo "error: attacks need root and a second user" >&2; exit 2; }
dir=$(mktemp -d /var/tmp/premix-attacks.XXXXXX)
chmod 755 "$dir"
export PREMIX_HOME=$dir/home
pids=()
broken=0

# end kills processes that this script started, and waits for them.
end() { for p in "$@"; do { kill -KILL "$p" && wait "$p"; } 2>/dev/null; done; }
finish() {
	end "${pids[@]}"
	mountpoint -q "$dir/tiers/mount" && umount -l "$dir/tiers/mount"
	rm -rf "$dir"
}
trap finish EXIT

stranger() { setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"; }

# verdict NAME COMMAND... runs a command that succeeds where the attack fails.
verdict() {
	local name=$1
	shift
	if "$@"; then echo "holds   $name"; else
		echo "BROKEN  $name"
		broken=1
	fi
}
is() { [ "$1" = "$2" ] || { echo "        expected $2, found $1"; return 1; }; }
not() { ! "$@"; }

# port prints a free port of loopback.
port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }

# serve DIR starts a standing server of transfers as the stranger; it sets $server and $at.
serve() {
	at=127.0.0.1:$(port)
	mkdir -p "$dir/stranger"
	chown 65534:65534 "$dir/stranger"
	rm -f "$dir"/stranger/key*
	# 4096 descriptors are the limit that many machines give to a service.
	PREMIX_HOME=$dir/stranger/home stranger bash -c 'ulimit -n 4096; exec "$@"' sh \
		"$premix" transfer serve "$1" --listen "$at" --key "$dir/stranger/key" >"$dir/serve.log" 2>&1 &
	server=$!
	pids+=("$server")
	for _ in $(seq 100); do
		[ -s "$dir/stranger/key.client" ] && python3 -c "import socket; socket.create_connection(('127.0.0.1',${at#*:})).close()" 2>/dev/null && break
		sleep 0.1
	done
	install -m 600 "$dir/stranger/key.client" "$dir/key.client"
}
get() { timeout "${limit:-60}" "$premix" transfer get "premix://$at/$1" "$2" --key "$dir/key.client" >"$dir/get.log" 2>&1; }

# 1. A copy that root fetches of another user's set-user-ID program.
mkdir -p "$dir/source/tree"
cp /bin/true "$dir/source/tool"
cp /bin/true "$dir/source/tree/tool"
seq 1000 >"$dir/source/data"
chown -R 65534:65534 "$dir/source"
chmod 6755 "$dir/source/tool" "$dir/source/tree/tool"
serve "$dir/source"
get tool "$dir/tool"
get tree "$dir/tree"
verdict "1 set-user-ID bits do not travel without owners" is "$(stat -c %a "$dir/tool" "$dir/tree/tool" 2>&1 | tr '\n' ' ')" "755 755 "

# 2. A link under the name of an unfinished copy, in a directory that both may write to.
mkdir -m 777 "$dir/open"
echo precious >"$dir/precious"
for name in data.premix-part .data.premix-part; do stranger ln -s "$dir/precious" "$dir/open/$name"; done
get data "$dir/open/data"
beside() { [ "$(cat "$dir/precious")" = precious ] && cmp -s "$dir/source/data" "$dir/open/data"; }
verdict "2 a waiting link is not followed, and stops no copy" beside

# 4. Idle connections of one client, and a legitimate copy beside them.
ulimit -n "$(ulimit -Hn)"
python3 - "${at#*:}" 5000 >"$dir/idle.log" 2>&1 <<'P' &
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(int(sys.argv[2])):
    try:
        s = socket.socket()
        s.settimeout(1)
        s.connect(("127.0.0.1", int(sys.argv[1])))
        held.append(s)
    except OSError:
        break
print("ready", len(held), flush=True)
time.sleep(60)
P
pids+=($!)
for _ in $(seq 300); do grep -q ready "$dir/idle.log" && break; sleep 0.1; done
start=$(date +%s%N)
limit=20 get data "$dir/beside"
took=$((($(date +%s%N) - start) / 1000000))
served() { cmp -s "$dir/source/data" "$dir/beside" && [ "$took" -le 2000 ] || { echo "        the copy took $took ms"; return 1; }; }
verdict "4 5,000 idle connections do not keep a copy waiting" served
end "$server" "${pids[-1]}"

# 3. A mode that is set through a mount of tiers.
mkdir -p "$dir/tiers/flash" "$dir/tiers/disk" "$dir/tiers/mount"
printf 'tiers:\n  - {name: flash, dir: %s, high: 80, low: 70}\n  - {name: disk, dir: %s}\n' "$dir/tiers/flash" "$dir/tiers/disk" >"$dir/tiers.yaml"
"$premix" files mount --tiers "$dir/tiers.yaml" "$dir/tiers/mount" >"$dir/mount.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do mountpoint -q "$dir/tiers/mount" && break; sleep 0.1; done
mountpoint -q "$dir/tiers/mount" || { cat "$dir/mount.log" >&2; exit 2; }
echo secret >"$dir/tiers/mount/file"
chmod 000 "$dir/tiers/mount/file"
verdict "3 a mode of 000 is shown as set" is "$(stat -c %a "$dir/tiers/mount/file")" 0
verdict "3 another user does not read a file of mode 000" not stranger grep -q secret "$dir/tiers/mount/file" 2>/dev/null
verdict "3 directories are synced" python3 -c 'import os, sys; os.fsync(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY))' "$dir/tiers/mount" 2>/dev/null
verdict "3 nameless files can be made" python3 -c 'import os, sys; os.open(sys.argv[1], os.O_RDWR | os.O_TMPFILE, 0o600)' "$dir/tiers/mount" 2>/dev/null
umount "$dir/tiers/mount"

# 5. Services without tokens on all addresses, and advice that hands out root's rights.
mkdir -p "$dir/blast"
timeout 5 "$premix" blast serve --listen "0.0.0.0:$(port)" --dir "$dir/blast" >"$dir/blast.log" 2>&1
status=$?
verdict "5 a service of all addresses needs tokens" [ "$status" != 124 ]
"$premix" doctor >"$dir/doctor.log" 2>&1
stranger env PREMIX_HOME="$dir/stranger/home" "$premix" doctor >>"$dir/doctor.log" 2>&1
verdict "5 doctor advises no rule of sudo" not grep -qi nopasswd "$dir/doctor.log"

# 6. Libraries with known vulnerabilities that premix reaches.
libraries() { go version -m "$premix" | awk '$2 == "google.golang.org/grpc" || $2 == "github.com/containerd/containerd/v2" {print $2, $3}'; }
later() { libraries | while read -r name version; do
	case $name in *grpc) least=v1.79.3 ;; *) least=v2.1.10 ;; esac
	[ "$(printf '%s\n%s\n' "$least" "$version" | sort -V | head -1)" = "$least" ] || { echo "        $name $version"; exit 1; }
done; }
verdict "6 grpc and containerd are of versions without the known vulnerabilities" later

# 7. An output that would replace a file of another kind.
printf 'sample,reads\nS1,S1.fq\n' >"$dir/samples.csv"
cp "$dir/samples.csv" "$dir/samples.before"
"$premix" files scan "$dir/source" -o "$dir/samples.csv" >"$dir/scan.log" 2>&1
verdict "7 a scan does not replace a sample sheet" cmp -s "$dir/samples.csv" "$dir/samples.before"

# 8. The output of a task, after its space was freed.
printf 'seq 20000\nseq 20000\n' >"$dir/tasks.txt"
"$premix" task run "$dir/tasks.txt" --out "$dir/tasks" >"$dir/task.log" 2>&1
"$premix" task prune "$dir/tasks" --output >>"$dir/task.log" 2>&1
"$premix" task tail "$dir/tasks" 1 >"$dir/tail" 2>"$dir/tail.err"
status=$?
tailed() { [ "$status" != 0 ] && [ "$(tr -d '\0' <"$dir/tail" | wc -c)" = "$(wc -c <"$dir/tail")" ]; }
verdict "8 freed output is refused, not printed as zeros" tailed

# 9. A peer that is silent in mid-copy, and a file that cannot be read.
head -c 50M /dev/urandom >"$dir/source/big"
echo secret >"$dir/source/tree/unreadable"
seq 10 >"$dir/source/tree/z"
chown -R 65534:65534 "$dir/source"
chown root "$dir/source/tree/unreadable"
chmod 000 "$dir/source/tree/unreadable"
serve "$dir/source"
get tree "$dir/rest"
status=$?
rest() { [ "$status" != 0 ] && cmp -s "$dir/rest/z" "$dir/source/tree/z"; }
verdict "9 one unreadable file does not abort a tree" rest
through=$(port)
python3 - "$through" "${at#*:}" <<'P' &
# Passes the bytes of connections on, at 1 MB/s each, until it is stopped.
import socket, sys, threading, time
def pass_on(a, b):
    while data := a.recv(50000):
        b.sendall(data)
        time.sleep(len(data) / 1e6)
    b.shutdown(socket.SHUT_WR)
door = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    near, _ = door.accept()
    far = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for ends in (near, far), (far, near):
        threading.Thread(target=pass_on, args=ends, daemon=True).start()
P
relay=$!
pids+=("$relay")
sleep 1
"$premix" transfer get "premix://127.0.0.1:$through/big" "$dir/big" --key "$dir/key.client" >"$dir/big.log" 2>&1 &
copy=$!
pids+=("$copy")
sleep 1
kill -STOP "$relay"
sleep 1
kill -0 "$copy" || { echo "error: the copy ended before its peer was stopped" >&2; exit 2; }
kill -TERM "$copy"
for _ in $(seq 50); do kill -0 "$copy" 2>/dev/null || break; sleep 0.1; done
verdict "9 SIGTERM ends a copy whose peer is silent within 5 s" not kill -0 "$copy" 2>/dev/null
end "$copy" "$server" "$relay"

# 10. A renamed file whose directory is not synced.
"$premix" store init "$dir/store" >/dev/null 2>&1
"$premix" store publish --store "$dir/store" "$dir/source/tree" t:1 >/dev/null 2>&1
strace -f -y -e trace=fsync,fdatasync,rename,renameat,renameat2 -o "$dir/trace" \
	"$premix" store pull --origin "$dir/store" --store "$dir/mirror" t:1 >"$dir/pull.log" 2>&1
# unsynced prints the directories in which a file of $PREMIX_HOME was renamed and that were not
# synced after it.
unsynced() { python3 - "$dir/trace" "$PREMIX_HOME" <<'P'
import os, re, sys
waiting, renamed = set(), 0
for line in open(sys.argv[1]):
    call = re.match(r"\d+ +(\w+)\((.*)\) += 0", line)
    if not call:
        continue
    if call[1].startswith("rename"):
        paths = re.findall(r'(?:<([^>]*)>, )?"([^"]*)"', call[2])
        where = os.path.dirname(os.path.join(*paths[-1]))
        if where.startswith(sys.argv[2]):
            renamed += 1
            waiting.add(where)
    else:
        waiting.discard(re.search("<(.*)>", call[2])[1])
print("        no rename was seen" if not renamed else "".join("        %s\n" % w for w in waiting), end="")
P
}
verdict "10 the directory of a trusted key is synced after its rename" is "$(unsynced)" ""

exit $broken
