// Eight tools over samples, as pipelines of nf-core call them: each task has a directory
// of its own, with links to its reads and to the index.
//
//   PATH="$(premix shim --all):$PATH" nextflow run main.nf --ref DIR/ref --reads DIR/reads --out OUT
params.tools = 'bwa,minimap2,bowtie2,hisat2,kallisto,salmon,kraken2,diamond'

process BWA {
    publishDir "${params.out}/bwa", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.sam'
    script:
    """
    bwa mem -t 2 -R '@RG\\tID:${id}\\tSM:${id}' ref/genome.fa $reads | samtools sort --no-PG -O sam -o ${id}.sam -
    """
}

process MINIMAP2 {
    publishDir "${params.out}/minimap2", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.sam'
    script:
    "minimap2 -t 2 -ax sr -R '@RG\\tID:${id}\\tSM:${id}' -o ${id}.sam ref/genome.mmi $reads"
}

process BOWTIE2 {
    publishDir "${params.out}/bowtie2", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.sam'
    script:
    "bowtie2 -x ref/bowtie2 --rg-id $id --rg SM:$id -1 ${reads[0]} -2 ${reads[1]} -S ${id}.sam"
}

process HISAT2 {
    publishDir "${params.out}/hisat2", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.sam'
    script:
    "hisat2 -x ref/hisat2 -1 ${reads[0]} -2 ${reads[1]} --summary-file ${id}.txt > ${id}.sam"
}

process KALLISTO {
    publishDir "${params.out}/kallisto", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.tsv'
    script:
    """
    kallisto quant --plaintext -i ref/kallisto.idx -o $id $reads
    mv $id/abundance.tsv ${id}.tsv
    """
}

// Without this option salmon does not print the same numbers twice, however it is started.
process SALMON {
    publishDir "${params.out}/salmon", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.sf'
    script:
    """
    salmon quant --noEffectiveLengthCorrection -i ref/salmon -l IU -p 1 -1 ${reads[0]} -2 ${reads[1]} -o $id
    mv $id/quant.sf ${id}.sf
    """
}

process KRAKEN2 {
    publishDir "${params.out}/kraken2", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.txt'
    script:
    "kraken2 --db ref/kraken2 --paired --report ${id}.report.txt --output ${id}.txt $reads"
}

process DIAMOND {
    publishDir "${params.out}/diamond", mode: 'copy'
    input:
    tuple val(id), path(reads)
    path 'ref/*'
    output:
    path '*.tsv'
    script:
    "diamond blastx --threads 1 -d ref/diamond -q ${reads[0]} -f 6 -o ${id}.tsv"
}

// The files of an index, as one value for all tasks.
def ref(name) { Channel.fromPath("${params.ref}/$name", type: 'any').collect() }

workflow {
    reads = Channel.fromFilePairs("${params.reads}/*_{1,2}.fq")
    tools = params.tools.tokenize(',')
    if ('bwa' in tools) BWA(reads, ref('genome.fa*'))
    if ('minimap2' in tools) MINIMAP2(reads, ref('genome.mmi'))
    if ('bowtie2' in tools) BOWTIE2(reads, ref('bowtie2*'))
    if ('hisat2' in tools) HISAT2(reads, ref('hisat2*'))
    if ('kallisto' in tools) KALLISTO(reads, ref('kallisto.idx'))
    if ('salmon' in tools) SALMON(reads, ref('salmon'))
    if ('kraken2' in tools) KRAKEN2(reads, ref('kraken2'))
    if ('diamond' in tools) DIAMOND(reads, ref('diamond.dmnd'))
}
