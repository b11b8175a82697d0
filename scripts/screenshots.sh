#!/bin/bash
# Makes docs/pictures/pages from the pages that the tests open in Chromium, and SOURCES, which
# has the digests of the files that these pages consist of: a test of docs compares them.
#
#   scripts/screenshots.sh            (make screenshots)
set -euo pipefail
cd "$(dirname "$0")/.."
to=docs/pictures/pages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PREMIX_SCREENSHOTS=$work "${GO:-go}" test -count=1 -p 1 -run '^(TestPage|TestPages|TestRealPages)$' \
	./cmd/premix ./internal/blast/service ./internal/watch/web >&2
mkdir -p "$to"
for pair in blast:blast-1100 replay:replay-1280 report:report-1280 transfer:transfer-1280 watch:watch-1280; do
	# Without Chromium, and where a run, a link or a replay is not possible, the tests are skipped.
	[ -e "$work/${pair#*:}.png" ] || { printf 'error: there is no picture of %s\nhint: scripts/setup.sh test\n' "${pair%%:*}" >&2; exit 1; }
	mv "$work/${pair#*:}.png" "$to/${pair%%:*}.png"
done
git ls-files internal/kit/htmlpage/*.css internal/blast/service/web internal/replay/results/page.* internal/report/page.* internal/transfer/summary/page.* internal/watch/web/web |
	grep -E '\.(css|html|js)$' | LC_ALL=C sort | xargs -d '\n' sha256sum >"$to/SOURCES"
