package examples

import (
	"strings"
	"testing"
)

// GATK finds the variants that bcftools finds. Each of its JVMs takes ten seconds or more
// to start, so the test uses only some of the 64 regions.
func TestGATK(t *testing.T) {
	if !soak {
		t.Skip("each region takes a JVM: PREMIX_SOAK is not set")
	}
	s := newScene(t)
	s.ecosystem("gatk")
	genome, sheet := s.generated()
	s.must(workflow(t, "prepare.sh"), "work", genome, sheet)
	s.write("work/regions.txt", strings.Join(strings.SplitAfter(s.read("work/regions.txt"), "\n")[:4], ""))
	s.must("env", "CALLER=gatk", workflow(t, "run.sh"), "work")
	gatk := records(t, s.read("work/out/calls.vcf"))
	s.must("mv", "work/out", "work/out-gatk")
	s.must(workflow(t, "run.sh"), "work")
	bcftools := make(map[string]bool)
	for _, line := range records(t, s.read("work/out/calls.vcf")) {
		bcftools[site(line)] = true
	}
	both := 0
	for _, line := range gatk {
		if bcftools[site(line)] {
			both++
		}
	}
	t.Logf("%d sites by GATK, %d by bcftools, %d by both", len(gatk), len(bcftools), both)
	if both < len(bcftools)/2 {
		t.Error("they agree on few sites")
	}
}

// site returns the place of a record in a VCF file.
func site(line string) string {
	f := strings.SplitN(line, "\t", 3)
	return strings.Join(f[:min(2, len(f))], ":")
}
