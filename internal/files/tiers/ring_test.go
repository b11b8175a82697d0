package tiers

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// overRings is set if this binary was started to run the tests over io_uring.
const overRings = "PREMIX_TEST_OVER_RINGS"

// permitRings lets the kernel offer FUSE over io_uring while a test runs.
func permitRings(t *testing.T) {
	t.Helper()
	needRoot(t)
	const file = "/sys/module/fuse/parameters/enable_uring"
	was, err := os.ReadFile(file)
	if err != nil {
		t.Skip("the kernel has no FUSE over io_uring: ", err)
	}
	must(t, os.WriteFile(file, []byte("Y"), 0))
	t.Cleanup(func() { must(t, os.WriteFile(file, was, 0)) })
}

// TestOverRings runs the other tests over io_uring.
func TestOverRings(t *testing.T) {
	permitRings(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.timeout=10m", "-test.v", "-test.skip=^(TestOverRings|TestOrdinaryUser|TestLoad)$",
		"-test.short="+strconv.FormatBool(testing.Short()))
	cmd.Env = append(os.Environ(), overRings+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestPosix")) {
		t.Errorf("%v\n%s", err, out)
	}
}
