#!/bin/bash
# Runs every fuzz target of the module for a while, one after the other, and prints how
# many inputs each has tried. Exits 1 when one of them found something: Go has written the
# input to testdata/fuzz of its package then, where every later test tries it again.
#
#   scripts/fuzz.sh [PACKAGE...]     ./internal/store/tree, say; default: all packages
#
# FUZZ_TIME is the time of each target (10s), FUZZ_WORKERS how many inputs are tried at
# once (2), FUZZ_ONLY a regular expression of names of targets.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}
time=${FUZZ_TIME:-10s}
workers=${FUZZ_WORKERS:-2}
failed=0
targets=0

[ $# -gt 0 ] || set -- .
while IFS=: read -r file line; do
	name=${line#func }
	name=${name%%(*}
	[[ $name =~ ${FUZZ_ONLY:-.} ]] || continue
	package=./$(dirname "$file")
	targets=$((targets + 1))
	# An input whose coverage differs from run to run would be minimized for most of the time,
	# in place of new ones being tried: 20 runs are enough.
	if said=$("$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 20x -parallel "$workers" "$package" 2>&1); then
		# The last line of progress has the number of inputs.
		printf '%-28s %-20s %s\n' "$package" "$name" "$(grep -o 'execs: [0-9]*' <<<"$said" | tail -n 1)"
	else
		printf '%-28s %-20s FAILED\n%s\n' "$package" "$name" "$said"
		failed=1
	fi
done < <(grep -rn --include='*_test.go' --exclude-dir=testdata '^func Fuzz' "$@" | sed 's|^\./||; s/:[0-9]*:/:/' | sort)

echo "fuzz: $targets targets"
[ "$targets" -gt 0 ] || exit 1
exit "$failed"
