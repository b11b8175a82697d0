#!/bin/bash
# run.sh DIR OUT: a shell loop, and GNU parallel, over DIR/reads with the indexes of DIR/ref.
#
#   PATH="$(premix shim minimap2 hisat2):$PATH" ./run.sh DIR OUT
set -euo pipefail
dir=$(readlink -f "$1")
mkdir -p "$2/minimap2" "$2/hisat2"
cd "$2"
for r1 in "$dir"/reads/*_1.fq; do
	sample=$(basename "$r1" _1.fq)
	minimap2 -t 1 -ax sr "$dir/ref/genome.mmi" "$r1" "${r1%_1.fq}_2.fq" | samtools sort --no-PG -O sam -o "minimap2/$sample.sam" -
done
for r1 in "$dir"/reads/*_1.fq; do basename "$r1" _1.fq; done |
	parallel -j 2 hisat2 -x "$dir/ref/hisat2" -1 "$dir/reads/{}_1.fq" -2 "$dir/reads/{}_2.fq" -S "hisat2/{}.sam"
