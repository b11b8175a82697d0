#!/bin/sh
# prepare.sh GENOME DIR [TOOL...]: makes DIR/ref with the indexes of bwa and minimap2, and of
# the other tools, or of all that are installed.
set -eu
genome=$(readlink -f "$1")
mkdir -p "$2/ref"
cd "$2/ref"
shift 2
tools=$*
case $genome in
*.gz) gzip -dc "$genome" >genome.fa ;;
*) cp "$genome" genome.fa ;;
esac
have() {
	case " $tools " in
	"  " | *" ${1%-build} "*) command -v "$1" >/dev/null ;;
	*) false ;;
	esac
}

bwa index genome.fa
minimap2 -x sr -d genome.mmi genome.fa
! have bowtie2-build || bowtie2-build -q genome.fa bowtie2
! have hisat2-build || hisat2-build -q genome.fa hisat2
# pieces N prints the genome without its names, cut into lines of N letters.
pieces() { grep -v '^>' genome.fa | tr -d '\n' | fold -w "$1"; }
# Pieces of the genome stand for transcripts, and their translations for proteins.
pieces 1500 | awk 'length($0) >= 1200 { printf ">t%d\n%s\n", ++n, substr($0, 1, 1200) }' >transcripts.fa
! have kallisto || kallisto index -i kallisto.idx transcripts.fa
! have salmon || salmon index -t transcripts.fa -i salmon
pieces 3000 | awk 'BEGIN {
	split("T C A G", base, " "); code = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
	for (a = 1; a <= 4; a++) for (b = 1; b <= 4; b++) for (c = 1; c <= 4; c++)
		amino[base[a] base[b] base[c]] = substr(code, ++k, 1)
}
length($0) >= 900 {
	p = ""
	for (j = 1; j < 900; j += 3) { x = amino[substr($0, j, 3)]; p = p (x == "*" || x == "" ? "X" : x) }
	printf ">p%d\n%s\n", ++n, p
}' >proteins.fa
! have diamond || diamond makedb --quiet --in proteins.fa -d diamond
if have kraken2-build; then
	mkdir -p kraken2/taxonomy
	printf '1\t|\t1\t|\tno rank\t|\t\t|\n2\t|\t1\t|\tspecies\t|\t\t|\n' >kraken2/taxonomy/nodes.dmp
	printf '1\t|\troot\t|\t\t|\tscientific name\t|\n2\t|\tit\t|\t\t|\tscientific name\t|\n' >kraken2/taxonomy/names.dmp
	sed 's/^>\([^ ]*\).*/>\1|kraken:taxid|2/' genome.fa >kraken2.fa
	kraken2-build --db kraken2 --no-masking --add-to-library kraken2.fa
	kraken2-build --db kraken2 --build
	rm -r kraken2.fa kraken2/library kraken2/taxonomy
fi
