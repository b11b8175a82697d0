#!/bin/bash
# Formatting, go vet, staticcheck and, where the vulnerability database can be
# reached, govulncheck. Exits 1 when one of them has something to say. Where the database
# cannot be reached the output says so, and the list in scripts/vulnerabilities.txt takes
# its place; where CI is set in the environment, a list older than 30 days is a failure.
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
# Everything but hot starts runs on other processors too.
GOARCH=arm64 "$GO" vet ./... || failed=1

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

# Known vulnerabilities: by govulncheck where its database can be reached, and otherwise by
# the list in this directory, which in CI must not be old.
unchecked() {
	printf 'lint: vulnerabilities were not checked: %s\n' "$1"
	"$GO" run ./scripts/vulnerabilities ${CI:+-ci} go.mod scripts/vulnerabilities.txt || failed=1
}
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
	124) unchecked "govulncheck took more than 180 s" ;;
	*) unchecked "${report##*$'\n'}" ;;
	esac
else
	unchecked "govulncheck could not be fetched"
fi

[ "$failed" = 0 ] && echo "lint: clean"
exit "$failed"
