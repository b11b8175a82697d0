#!/bin/bash
# Draws docs/pictures/measured/demo.svg, the picture of README.md, from a demonstration of this moment.
#
#   scripts/demo-picture.sh [RESULT.json]    a result of premix demo --json, or a new one
set -euo pipefail
cd "$(dirname "$0")/.."
result=${1:-}
if [ -z "$result" ]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	result=$work/result.json
	bin/premix demo --out "$work/demo" --json >"$result"
fi
jq -r '
	def n(d): . * pow(10; d) | round / pow(10; d) | tostring;
	. as $r
	| ([.runs[].whole] | max) as $longest
	| [.runs[] | {run, whole, task, width: ([2, .whole / $longest * 400] | max | n(1)), kind: (if .hot > 0 then "hot" else "cold" end)}] as $rows
	| "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 \(90 + 44 * ($rows | length))\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"15\">",
	  "<title>\($r.samples) samples, started cold and hot</title>",
	  "<style>text{fill:#222}.cold{fill:#4a7ab5}.hot{fill:#d4622a}.small{font-size:13px;fill:#555}@media (prefers-color-scheme:dark){text{fill:#eee}.small{fill:#aaa}}</style>",
	  "<text x=\"10\" y=\"28\" font-size=\"18\">\($r.samples) samples against a reference of \($r.reference / 1e6 | n(0)) Mb: hot tasks take \($r.gain | n(1)) times less</text>",
	  ($rows | to_entries[] | (44 * .key + 50) as $y
		| "<text x=\"10\" y=\"\($y + 19)\">\(.value.run)</text>",
		  "<rect class=\"\(.value.kind)\" x=\"90\" y=\"\($y)\" width=\"\(.value.width)\" height=\"28\" rx=\"3\"/>",
		  "<text class=\"small\" x=\"\((.value.width | tonumber) + 98)\" y=\"\($y + 19)\">\(.value.whole | n(1)) s; a task \(.value.task * 1000 | n(0)) ms</text>"),
	  "<text class=\"small\" x=\"10\" y=\"\(44 * ($rows | length) + 72)\">premix demo: whole runs, one task at a time, all outputs equal; the first hot run makes the snapshot</text>",
	  "</svg>"' "$result" >docs/pictures/measured/demo.svg
