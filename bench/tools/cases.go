package main

// kind is the kind of a sample.
type kind string

const (
	single   kind = "single"   // r1: FASTQ
	paired   kind = "paired"   // r1, r2: FASTQ
	named    kind = "named"    // r1, r2: FASTQ, for a tool that looks at the ends of their names
	proteins kind = "proteins" // q: FASTA
	queries  kind = "queries"  // q: FASTA
	reads    kind = "reads"    // bam
	table    kind = "table"    // t: lines of text
	asJSON   kind = "json"     // j: JSON
)

// inputs returns the inputs of a recipe.
func (k kind) inputs() string {
	switch k {
	case single:
		return "[r1]"
	case paired:
		return "[r1, r2]"
	case named:
		return "{r1: {file: r1.fq}, r2: {file: r2.fq}}"
	case reads:
		return "{bam: {file: in.bam}}"
	case table:
		return "{t: {file: in.txt}}"
	case asJSON:
		return "{j: {file: in.json}}"
	}
	return "{q: {file: in.fa}}"
}

// files returns the fixed names of the inputs of a recipe, with the files of the first
// sample.
func (k kind) files() map[string][2]string {
	switch k {
	case single:
		return map[string][2]string{"r1": {"r1", "a_1.fq"}}
	case paired:
		return map[string][2]string{"r1": {"r1", "a_1.fq"}, "r2": {"r2", "a_2.fq"}}
	case named:
		return map[string][2]string{"r1": {"r1.fq", "a_1.fq"}, "r2": {"r2.fq", "a_2.fq"}}
	case reads:
		return map[string][2]string{"bam": {"in.bam", "a.bam"}}
	case table:
		return map[string][2]string{"t": {"in.txt", "a.txt"}}
	case asJSON:
		return map[string][2]string{"j": {"in.json", "a.json"}}
	case proteins:
		return map[string][2]string{"q": {"in.fa", "a.faa"}}
	}
	return map[string][2]string{"q": {"in.fa", "a.fna"}}
}

// vary is an entry of varies: file has the form of the recipe, and to is the pattern of
// the file's path below the run directory. lines is the beginning of the lines that vary;
// if it is empty, the whole file varies.
type vary struct{ file, to, lines string }

// tool is one program.
type tool struct {
	name    string
	program string // program that has to be installed
	sample  kind
	// index is a shell script that makes the tool's data in its working directory. $G is
	// the path of a genome of 12 Mb, $B of a genome of 50 Mb, $P of proteins, and $R of a
	// sample of r1.
	index   string
	command string // ${index} is the directory of the index
	outputs string // of the recipe, besides stdout
	varies  []vary
	silent  bool // it prints nothing to its standard output
}

var tools = []tool{
	{name: "bwa mem", program: "bwa", sample: paired, index: "bwa index -p i $B", command: "bwa mem ${index}/i ${r1} ${r2}"},
	{name: "bwa mem -t 4", program: "bwa", sample: paired, index: "bwa index -p i $B", command: "bwa mem -t 4 ${index}/i ${r1} ${r2}"},
	{name: "bwa aln", program: "bwa", sample: single, index: "bwa index -p i $B", command: "bwa aln ${index}/i ${r1}"},
	{name: "minimap2", program: "minimap2", sample: paired, index: "minimap2 -x sr -d i.mmi $B", command: "minimap2 -ax sr ${index}/i.mmi ${r1} ${r2}"},
	{name: "minimap2 -t 1", program: "minimap2", sample: paired, index: "minimap2 -x sr -d i.mmi $B", command: "minimap2 -t 1 -ax sr ${index}/i.mmi ${r1} ${r2}"},
	{name: "STAR", program: "STAR", sample: paired, index: "STAR --runMode genomeGenerate --genomeDir . --genomeFastaFiles $G --genomeSAindexNbases 10 --outTmpDir tmp",
		command: "STAR --genomeDir ${index} --readFilesIn ${r1} ${r2} --outFileNamePrefix ${star}/ --outSAMtype SAM", outputs: `star: "${sample}/"`,
		varies: []vary{{`stdout`, `*.stdout`, ``}, {`${star}/Log.out`, `*/Log.out`, ``}, {`${star}/Log.final.out`, `*/Log.final.out`, ``}, {`${star}/Log.progress.out`, `*/Log.progress.out`, ``}}},
	{name: "kallisto", silent: true, program: "kallisto", sample: paired, index: "kallisto index -i i $T", command: "kallisto quant -i ${index}/i -o ${k} ${r1} ${r2}", outputs: `k: "${sample}/"`,
		varies: []vary{{`${k}/run_info.json`, `*/run_info.json`, ``}}},
	{name: "salmon", silent: true, program: "salmon", sample: named, index: "salmon index -t $T -i i", command: "salmon quant -p 1 -i ${index}/i -l A -1 ${r1} -2 ${r2} -o ${k}", outputs: `k: "${sample}/"`,
		varies: []vary{{`${k}/cmd_info.json`, `*/cmd_info.json`, ``}, {`${k}/aux_info/meta_info.json`, `*/aux_info/meta_info.json`, ``}, {`${k}/logs/*`, `*/logs/*`, ``}}},
	{name: "bowtie2", program: "bowtie2", sample: paired, index: "bowtie2-build -q --threads 2 $G i", command: "bowtie2 -x ${index}/i -1 ${r1} -2 ${r2}"},
	{name: "bowtie2 -p 2", program: "bowtie2", sample: paired, index: "bowtie2-build -q --threads 2 $G i", command: "bowtie2 -p 2 --reorder -x ${index}/i -1 ${r1} -2 ${r2}"},
	{name: "bowtie", program: "bowtie", sample: single, index: "bowtie-build -q $G i", command: "bowtie -S -x ${index}/i ${r1}"},
	{name: "hisat2", program: "hisat2", sample: paired, index: "hisat2-build -q -p 2 $G i", command: "hisat2 -x ${index}/i -1 ${r1} -2 ${r2}"},
	{name: "diamond blastp", program: "diamond", sample: proteins, index: "diamond makedb --quiet --in $P -d i", command: "diamond blastp -p 1 --quiet -d ${index}/i -q ${q}"},
	{name: "hmmscan", program: "hmmscan", sample: proteins, index: hmms, command: "hmmscan --cpu 0 --tblout ${t} ${index}/i.hmm ${q}", outputs: `t: "${sample}.tbl"`,
		varies: []vary{{`${t}`, `*.tbl`, `^#`}, {`stdout`, `*.stdout`, `^# `}}},
	{name: "kraken2", program: "kraken2", sample: single, index: kraken, command: "kraken2 --db ${index}/db ${r1}"},
	{name: "centrifuge", program: "centrifuge", sample: single, index: centrifuge, command: "centrifuge -x ${index}/i -U ${r1}"},
	{name: "picard SortSam", silent: true, program: "PicardCommandLine", sample: reads, command: "PicardCommandLine SortSam I=${bam} O=out.bam SORT_ORDER=queryname QUIET=true", outputs: `out: {file: out.bam, to: "${sample}.bam"}`},
	{name: "snap-aligner", program: "snap-aligner", sample: single, index: "snap-aligner index $G .", command: "snap-aligner single ${index} -fastq ${r1} -t 1 -o -sam -", varies: []vary{{`stdout`, `*.stdout`, `^@PG`}}},
	{name: "subread-align", silent: true, program: "subread-align", sample: single, index: "subread-buildindex -B -o i $G", command: "subread-align -t 1 -T 1 --SAMoutput -i ${index}/i -r ${r1} -o out.sam", outputs: `out: {file: out.sam, to: "${sample}.sam"}`,
		varies: []vary{{`stdout`, `*.stdout`, ``}}},
	{name: "featureCounts", silent: true, program: "featureCounts", sample: reads, index: "awk 'BEGIN{for(i=1;i<60000;i++) printf \"chrI\\tx\\texon\\t%d\\t%d\\t.\\t+\\t.\\tgene_id \\\"g%d\\\";\\n\", i*3, i*3+50, i}' > a.gtf", command: "featureCounts -p -a ${index}/a.gtf -o counts ${bam}",
		outputs: `counts: {file: counts, to: "${sample}.counts"}`, varies: []vary{{`stdout`, `*.stdout`, ``}}},
	{name: "lastal", program: "lastal", sample: queries, index: "lastdb i $B", command: "lastal -P 1 ${index}/i ${q}"},
	{name: "vsearch", silent: true, program: "vsearch", sample: queries, index: "vsearch --makeudb_usearch $T --output i.udb", command: "vsearch --threads 1 --usearch_global ${q} --db ${index}/i.udb --id 0.9 --blast6out out.tsv", outputs: `out: {file: out.tsv, to: "${sample}.tsv"}`},
	{name: "mmseqs search", silent: true, program: "mmseqs", sample: proteins, index: "mmseqs createdb $P i && mmseqs createindex i tmp", command: "mmseqs easy-search --threads 1 ${q} ${index}/i out.tsv tmp", outputs: `out: {file: out.tsv, to: "${sample}.tsv"}`,
		varies: []vary{{`stdout`, `*.stdout`, ``}, {`tmp/*`, ``, ``}, {`tmp/*/*`, ``, ``}}},
	{name: "gmap", program: "gmap", sample: queries, index: "gmap_build -D . -d i $G", command: "gmap -t 0 -D ${index} -d i ${q}"},
	{name: "gsnap", program: "gsnap", sample: single, index: "gmap_build -D . -d i $G", command: "gsnap -t 0 -A sam -D ${index} -d i ${r1}"},
	{name: "blastn", program: "blastn", sample: queries, index: "makeblastdb -dbtype nucl -in $G -out i", command: "blastn -db ${index}/i -query ${q} -outfmt 6"},
	{name: "blastp", program: "blastp", sample: proteins, index: "makeblastdb -dbtype prot -in $P -out i", command: "blastp -db ${index}/i -query ${q} -outfmt 6"},
	{name: "samtools view", program: "samtools", sample: reads, command: "samtools view -h --no-PG ${bam}"},
	{name: "samtools fastq", program: "samtools", sample: reads, command: "samtools fastq ${bam}"},
	{name: "bcftools mpileup", program: "bcftools", sample: reads, index: "cp $G g.fa && samtools faidx g.fa", command: "bcftools mpileup --no-version -f ${index}/g.fa ${bam}"},
	{name: "bedtools intersect", program: "bedtools", sample: reads, index: "awk 'BEGIN{for(i=1;i<200000;i++) printf \"chrI\\t%d\\t%d\\tgene%d\\n\", i, i+50, i}' > a.bed", command: "bedtools intersect -bed -c -b ${index}/a.bed -a ${bam}"},
	{name: "seqkit", program: "seqkit", sample: queries, index: "seqkit seq -n -i $T | head -100000 > names", command: "seqkit grep -j 1 -f ${index}/names ${q}"},
	{name: "fastp", silent: true, program: "fastp", sample: paired, command: "fastp -w 1 -i ${r1} -I ${r2} -o ${o1} -O ${o2}", outputs: "o1: \"${sample}_1.fq\"\n  o2: \"${sample}_2.fq\"",
		varies: []vary{{`fastp.html`, `fastp.html`, ``}, {`fastp.json`, `fastp.json`, ``}}},
	{name: "freebayes", program: "freebayes", sample: reads, index: "cp $G g.fa && samtools faidx g.fa", command: "freebayes -f ${index}/g.fa ${bam}", varies: []vary{{`stdout`, `*.stdout`, `^##fileDate`}}},
	{name: "mash", program: "mash", sample: queries, index: "mash sketch -s 200000 -o i $B", command: "mash dist ${index}/i.msh ${q}"},
	{name: "exonerate", program: "exonerate", sample: queries, index: "cp $G g.fa", command: "exonerate --bestn 1 ${q} ${index}/g.fa", varies: []vary{{`stdout`, `*.stdout`, `^(Command line|Hostname)`}}},
	{name: "Trimmomatic", silent: true, program: "TrimmomaticSE", sample: single, command: "TrimmomaticSE -threads 1 -phred33 ${r1} out.fq MINLEN:36", outputs: `out: {file: out.fq, to: "${sample}.fq"}`},
	{name: "Python, numpy", program: "python3", sample: table, index: "python3 -c \"import numpy; numpy.save('a.npy', numpy.arange(4e6))\"; printf '%s' \"$PYTHON\" > s.py", command: "python3 ${index}/s.py ${index}/a.npy ${t}"},
	{name: "Python, json", program: "python3", sample: asJSON, index: "printf '%s' \"$PYJSON\" > s.py", command: "python3 ${index}/s.py ${j}"},
	{name: "R", program: "Rscript", sample: table, index: "Rscript -e \"saveRDS(as.numeric(1:4e6), 'a.rds')\"; printf '%s' \"$RSCRIPT\" > s.R", command: "Rscript ${index}/s.R ${index}/a.rds ${t}"},
	{name: "Perl", program: "perl", sample: table, index: "seq 1 300000 > a.txt; printf '%s' \"$PERL\" > s.pl", command: "perl ${index}/s.pl ${index}/a.txt ${t}"},
}

const (
	hmms = `awk '/^>/{n++; if(n>300) exit; close(f); f="q" n ".fa"} {print > f}' $P
for f in q*.fa; do hmmbuild --amino --cpu 0 -n ${f%.fa} ${f%.fa}.h $f >/dev/null; done
cat q*.h > i.hmm; rm q*; hmmpress i.hmm`
	kraken = `mkdir -p db/taxonomy; printf '1\t|\t1\t|\tno rank\t|\t-\t|\n2\t|\t1\t|\tspecies\t|\t-\t|\n' > db/taxonomy/nodes.dmp
printf '1\t|\troot\t|\t\t|\tscientific name\t|\n2\t|\tyeast\t|\t\t|\tscientific name\t|\n' > db/taxonomy/names.dmp
sed 's/^>\([^ ]*\).*/>\1|kraken:taxid|2/' $G > g.fa
kraken2-build --add-to-library g.fa --no-masking --db db; kraken2-build --build --db db --threads 1`
	centrifuge = `printf '1\t|\t1\t|\tno rank\t|\n2\t|\t1\t|\tspecies\t|\n' > nodes
printf '1\t|\troot\t|\t\t|\tscientific name\t|\n2\t|\tyeast\t|\t\t|\tscientific name\t|\n' > names
grep '>' $G | sed 's/^>\([^ ]*\).*/\1\t2/' > table
centrifuge-build -p 2 --conversion-table table --taxonomy-tree nodes --name-table names $G i`

	pythonScript = `import sys, numpy, re
a = numpy.load(sys.argv[1])
names = {str(i): i for i in range(100000)}
with open(sys.argv[2]) as f:
    for line in f:
        print(names.get(line.strip(), -1), a[:1000].sum(), len(line))
`
	jsonScript = `import sys, json, decimal, collections, email
words = collections.Counter(str(i % 997) for i in range(300000))
with open(sys.argv[1]) as f:
    for key, value in json.load(f).items():
        print(key, words[str(value)])
`
	rScript = `args <- commandArgs(TRUE)
a <- readRDS(args[1])
for (line in readLines(args[2])) cat(line, sum(a[1:1000]), nchar(line), "\n")
`
	perlScript = `use strict; my %h; open(my $f, '<', $ARGV[0]); while (<$f>) { chomp; $h{$_} = 1 + length; } close $f;
open(my $g, '<', $ARGV[1]) or die; while (<$g>) { chomp; print "$_ ", $h{$_} // 0, "\n"; }
`
)
