#!/bin/bash
# Makes a work directory of the example: prepare.sh WORK GENOME.fa[.gz] SHEET.csv
#
# SHEET.csv has the columns sample,r1,r2, with absolute paths. WORK gets ref/ (genome
# and indices), samples.csv, align.yaml, and regions.txt: the genome in 64 pieces of
# equal length, one a line as samtools writes regions, several joined by commas.
set -euo pipefail
[ $# = 3 ] || { echo "usage: prepare.sh WORK GENOME SHEET" >&2; exit 2; }
work=$1 genome=$2 sheet=$3
mkdir -p "$work/ref"
case $genome in
*.gz) gzip -dc "$genome" ;;
*) cat "$genome" ;;
esac >"$work/ref/genome.fa"
bwa index "$work/ref/genome.fa" 2>"$work/bwa-index.log"
samtools faidx "$work/ref/genome.fa"
samtools dict -o "$work/ref/genome.dict" "$work/ref/genome.fa" # for GATK
awk -v pieces=64 '
	{ name[NR] = $1; size[NR] = $2; total += $2 }
	END {
		contig = 1; at = 1; done = 0
		for (piece = 1; piece <= pieces; piece++) {
			last = int(total * piece / pieces)
			list = ""
			while (done < last) {
				take = last - done
				if (take > size[contig] - at + 1) take = size[contig] - at + 1
				list = list (list == "" ? "" : ",") name[contig] ":" at "-" (at + take - 1)
				done += take; at += take
				if (at > size[contig]) { contig++; at = 1 }
			}
			print list
		}
	}' "$work/ref/genome.fa.fai" >"$work/regions.txt"
cp "$sheet" "$work/samples.csv"
cp "$(dirname "$0")/align.yaml" "$work/align.yaml"
