// The workflow for Nextflow: nextflow run main.nf --work WORK, a directory that
// prepare.sh has made. ALIGN is premix; the other processes run wherever the executor
// of the configuration has them run.
params.work = 'work'

process ALIGN {
    input:
    path 'align.yaml'
    path 'ref'
    path 'samples.csv'

    output:
    path 'out/*.bam'

    script:
    """
    premix run align.yaml samples.csv --out out -j ${task.cpus}
    """
}

process SORT {
    tag "$bam"

    input:
    path bam

    output:
    tuple val(bam.name), path('sorted')

    script:
    """
    samtools sort -O bam -o sorted $bam
    """
}

process MARKDUP {
    tag "$name"

    input:
    tuple val(name), path('sorted')

    output:
    tuple path(name), path("${name}.bai")

    script:
    """
    samtools markdup sorted $name
    samtools index $name
    """
}

process CALL {
    tag "$number"

    input:
    tuple val(number), val(region)
    path 'ref'
    path bams

    output:
    path "${number}.bcf"

    script:
    """
    bcftools mpileup -r $region -f ref/genome.fa -Ou -o pile *.bam
    bcftools call -mv -Ou -o ${number}.bcf pile
    rm pile
    """
}

process GATHER {
    publishDir "${params.work}/nextflow", mode: 'copy'

    input:
    path calls

    output:
    path 'calls.vcf'

    script:
    """
    bcftools concat -n -Ob -o calls.bcf \$(seq -f %g.bcf ${calls.size()})
    bcftools view -Ov -o calls.vcf calls.bcf
    """
}

workflow {
    work = file(params.work)
    ref = work / 'ref'
    ALIGN(work / 'align.yaml', ref, work / 'samples.csv')
    bams = MARKDUP(SORT(ALIGN.out.flatten()))
    number = 0
    regions = Channel.fromList((work / 'regions.txt').readLines().collect { [++number, it] })
    CALL(regions, ref, bams.flatten().collect(sort: { it.name }))
    GATHER(CALL.out.collect())
}
