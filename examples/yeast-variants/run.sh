#!/bin/bash
# The workflow as groups of tasks: run.sh WORK, a directory that prepare.sh has made.
# The calls are in WORK/out/calls.vcf. Given again after an interruption it goes on.
# With CALLER=gatk in the environment GATK's HaplotypeCaller makes them, not bcftools.
set -euo pipefail
[ $# = 1 ] || { echo "usage: run.sh WORK" >&2; exit 2; }
cd "$1"
mkdir -p out/sorted out/bam out/calls

# Alignment: bwa reads its index once, and every sample starts from there.
premix run align.yaml samples.csv --out out/aligned $([ ! -e out/aligned/.premix ] || printf %s --resume)

# What follows are tasks in groups: each begins when all of the former have succeeded.
submit() { premix task submit --out out/tasks --retries 1 "$@"; }
if [ ! -e out/tasks/.submitted ]; then
	rm -rf out/tasks
	submit samples.csv --group sort -t 'samtools sort -o out/sorted/{sample}.bam out/aligned/{sample}.bam'
	submit samples.csv --group markdup --after sort \
		-t 'samtools markdup out/sorted/{sample}.bam out/bam/{sample}.bam && samtools index out/bam/{sample}.bam'
	case ${CALLER:-bcftools} in
	bcftools)
		submit regions.txt --group call --after markdup \
			-t 'bcftools mpileup -r {} -f ref/genome.fa -Ou -o out/calls/{#}.pile out/bam/*.bam && bcftools call -mv -Ou -o out/calls/{#}.bcf out/calls/{#}.pile && rm out/calls/{#}.pile'
		;;
	gatk) # regions of a line are separated by commas, and each is an option of its own
		submit regions.txt --group call --after markdup \
			-t 'gatk HaplotypeCaller -R ref/genome.fa $(echo {} | sed "s/^/-L /; s/,/ -L /g") $(printf " -I %s" out/bam/*.bam) -O out/calls/{#}.vcf && bcftools view -Ou -o out/calls/{#}.bcf out/calls/{#}.vcf'
		;;
	*) echo "there is no CALLER=$CALLER: it is bcftools or gatk" >&2; exit 2 ;;
	esac
	echo "bcftools concat -n -Ob -o out/calls.bcf \$(seq -f out/calls/%g.bcf $(wc -l <regions.txt)) && bcftools view -Ov -o out/calls.vcf out/calls.bcf" |
		submit - --group gather --after call
	touch out/tasks/.submitted
fi
premix task run --out out/tasks
