package main

// makeData is the script that makes genomes, proteins and samples from the test data at
// $TESTDATA.
const makeData = `
gzip -dc $TESTDATA/yeast/genome.R64.fa.gz > genome.fa
for f in $TESTDATA/bact14/*.fa.gz; do gzip -dc $f; done > large.fa
awk '/^>/{next} {s = s $0; while (length(s) >= 1500) {print ">t" ++n; print substr(s, 1, 1500); s = substr(s, 1501)}}' genome.fa > transcripts.fa
cat $TESTDATA/blast/*.faa > proteins.fa
reads() { gzip -dc $TESTDATA/yeast/SRR5204809_chip_PE_100k_R$1.fastq.gz | awk -v a=$2 -v b=$3 'NR > 4*a && NR <= 4*b'; }
for mate in 1 2; do reads $mate 0 2000 > a_$mate.fq; reads $mate 5000 7500 > b_$mate.fq; done
records() { awk -v a=$2 -v b=$3 '/^>/{n++} n > a && n <= b' $1; }
records proteins.fa 100 115 > a.faa; records proteins.fa 900 920 > b.faa
records transcripts.fa 100 115 > a.fna; records transcripts.fa 900 920 > b.fna
bwa index -p i genome.fa
for s in a b; do bwa mem i ${s}_1.fq ${s}_2.fq | samtools sort -o $s.bam -; done
rm i.*
seq 1 200 > a.txt; seq 500 900 > b.txt
echo '{"a": 1, "b": 2, "c": 5}' > a.json; echo '{"x": 7, "y": 8}' > b.json
`
