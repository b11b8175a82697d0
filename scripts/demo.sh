#!/bin/bash
# The demonstration behind `make demo`: two aligners over eight samples of
# E. coli reads, started cold and hot, with the outputs compared byte for byte.
#
# The genome is the one in Debian's bowtie-examples; the reads are cut from it
# by wgsim with fixed seeds, so every machine gets the same ones. Everything
# stays in ./demo-out, and what is there already is used again.
#
# Exit status: 0 where every run succeeded and every output is equal to its
# cold one, 1 otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."

premix=$PWD/bin/premix
samples=8
pairs=2000

say() { printf '%s\n' "$*"; }
die() {
	printf '%s\n' "error: $1" >&2
	[ $# -lt 2 ] || printf '%s\n' "hint: $2" >&2
	exit 1
}

mkdir -p demo-out/ref demo-out/reads
cd demo-out
# Snapshots go with the rest of the demonstration, and are made afresh each
# time, so that a run shows what they cost.
export PREMIX_HOME=$PWD/home
rm -rf home

# The genome. Minimal images of Debian leave /usr/share/doc out when a package
# is installed, so it is taken from the package itself where it is not there.
genome() {
	local packed=/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz
	if [ ! -e "$packed" ]; then
		mkdir -p package
		(cd package && apt-get -q download bowtie-examples >/dev/null 2>&1 ||
			{ apt-get -q update >/dev/null 2>&1 && apt-get -q download bowtie-examples >/dev/null; }) ||
			die "the package bowtie-examples could not be fetched" "sudo apt-get update"
		dpkg-deb -x package/bowtie-examples_*.deb package
		packed=package$packed
	fi
	gzip -dc "$packed" >ref/genome.fa.part
	mv ref/genome.fa.part ref/genome.fa
	rm -rf package
}
[ -e ref/genome.fa ] || genome

if [ ! -e ref/genome.fa.sa ]; then
	say "indexing the genome (once)"
	bwa index ref/genome.fa >index.log 2>&1 || die "bwa index failed" "see demo-out/index.log"
fi

# Half of the samples compressed, as they come.
echo sample,r1,r2 >samples.csv
for i in $(seq "$samples"); do
	r1=reads/s${i}_1.fq r2=reads/s${i}_2.fq
	if ((i % 2)); then
		gz=.gz
	else
		gz=
	fi
	if [ ! -e "$r2$gz" ]; then
		wgsim -S "$i" -N "$pairs" -1 100 -2 100 -e 0.005 ref/genome.fa "$r1.part" "$r2.part" >/dev/null 2>&1
		for r in "$r1" "$r2"; do
			[ -z "$gz" ] || { gzip -nc "$r.part" >"$r.part.gz" && mv "$r.part.gz" "$r.part"; }
			mv "$r.part" "$r$gz"
		done
	fi
	echo "s$i,$r1$gz,$r2$gz" >>samples.csv
done

cat >bwa.yaml <<'EOF'
name: bwa-mem
command: bwa mem -t ${threads} ${data.ref}/genome.fa ${r1} ${r2}
data:    {ref: ./ref}
inputs:  [r1, r2]
outputs: {stdout: "${sample}.sam"}
threads: 1
memory:  1G
EOF
cat >minimap2.yaml <<'EOF'
name: minimap2
command: minimap2 -ax sr -t ${threads} ${data.ref}/genome.fa ${r1} ${r2}
data:    {ref: ./ref}
inputs:  [r1, r2]
outputs: {stdout: "${sample}.sam"}
threads: 1
memory:  1G
EOF

# milliseconds: since the epoch.
milliseconds() { date +%s%3N; }

# seconds MS: with two decimals.
seconds() { printf '%d.%02d' $(($1 / 1000)) $(($1 % 1000 / 10)); }

failed=0

# run RECIPE START: one run of all samples, one line of the table.
run() {
	local out=$1-$2 status=0 begun ended equal
	rm -rf "$out"
	begun=$(milliseconds)
	"$premix" run "$1.yaml" samples.csv --out "$out" --start "$2" -j 1 >"$out.log" 2>&1 || status=$?
	ended=$(milliseconds)
	if [ "$status" = 3 ]; then
		printf '%-10s %-6s not possible here: %s\n' "$1" "$2" "$(sed -n 's/^error: //p' "$out.log" | head -n 1)"
		return
	fi
	if [ "$status" != 0 ]; then
		printf '%-10s %-6s failed with exit status %s, see demo-out/%s\n' "$1" "$2" "$status" "$out.log"
		failed=1
		return
	fi
	equal=$(compare "$1-cold" "$out")
	[ "$equal" = "$samples of $samples" ] || failed=1
	"$premix" report "$out" --json | jq -r --arg recipe "$1" --arg asked "$2" --arg run "$(seconds $((ended - begun)))" --arg equal "$equal" '
		def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
		[$recipe, $asked,
		 (.tasks | group_by(.start) | map("\(length) \(.[0].start)") | join(", ")),
		 "\(.tasks | map(.latency) | median * 1000 * 10 | round / 10) ms",
		 "\(.tasks | map(.seconds) | median * 1000 | round / 1000) s",
		 $run + " s", $equal] | @tsv' |
		awk -F '\t' '{ printf "%-10s %-6s %-16s %12s %12s %10s   %s\n", $1, $2, $3, $4, $5, $6, $7 }'
}

# compare COLD OTHER: how many samples have the same output in both.
compare() {
	local i same=0
	for i in $(seq "$samples"); do
		cmp -s "$1/s$i.sam" "$2/s$i.sam" && [ -s "$2/s$i.sam" ] && same=$((same + 1))
	done
	echo "$same of $samples"
}

say "$samples samples of $pairs read pairs, E. coli 536 (4.9 Mb), one task at a time"
say
printf '%-10s %-6s %-16s %12s %12s %10s   %s\n' recipe start 'started as' 'to its input' 'each task' 'whole run' 'equal to cold'
for recipe in bwa minimap2; do
	for start in cold auto hot; do
		run "$recipe" "$start"
	done
done
say
say "to its input: from the start of a task until its tool opens the sample (median)"
say "whole run: all tasks; auto also makes and proves the snapshot, which hot uses"
say
say "reports: demo-out/bwa-auto/report.html, demo-out/minimap2-auto/report.html"
say "outputs: demo-out/bwa-auto/s1.sam and so on"
[ "$failed" = 0 ] || die "a run failed, or an output differs from its cold one"
