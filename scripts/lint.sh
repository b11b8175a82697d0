#!/bin/bash
# Formatting, go vet, staticcheck and, where the vulnerability database can be
# reached, govulncheck. Exits 1 when one of them has something to say.
#
# The analysers are fetched through the Go module proxy. Where that cannot be
# done they are left out, and the output says so.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}
failed=0

unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	printf 'error: not formatted:\n%s\nhint: make fmt\n' "$unformatted"
	failed=1
fi

"$GO" vet ./... || failed=1

# analyser NAME MODULE@VERSION: builds it into bin/tools unless that version is
# there already.
analyser() {
	local stamp
	stamp="bin/tools/$1-${2##*@}-$("$GO" env GOVERSION)"
	[ -x "bin/tools/$1" ] && [ -e "$stamp" ] && return 0
	mkdir -p bin/tools
	local log
	if log=$(GOBIN="$PWD/bin/tools" GOFLAGS="" "$GO" install "$2" 2>&1); then
		rm -f "bin/tools/$1"-v* && touch "$stamp"
	else
		printf '%s\n' "lint: $1 left out, it could not be fetched:" "${log##*$'\n'}"
		return 1
	fi
}

if analyser staticcheck "$STATICCHECK"; then
	bin/tools/staticcheck ./... || failed=1
fi

if analyser govulncheck "$GOVULNCHECK"; then
	# Exit status 3 is govulncheck's own for "vulnerabilities found"; 1 is an
	# error such as an unreachable database.
	status=0
	report=$(timeout 180 bin/tools/govulncheck ./... 2>&1) || status=$?
	case $status in
	0) ;;
	3)
		printf '%s\n' "$report"
		failed=1
		;;
	*) printf '%s\n' "lint: govulncheck left out, its database could not be read:" "${report##*$'\n'}" ;;
	esac
fi

[ "$failed" = 0 ] && echo "lint: clean"
exit "$failed"
