package local

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"premix/internal/engine/spawn"
	"premix/internal/hotstart"
)

func TestMain(m *testing.M) {
	// The supervisor and the spawner are this test binary, executed again.
	if len(os.Args) > 1 && os.Args[1] == hotstart.SupervisorArg {
		os.Exit(hotstart.SupervisorMain())
	}
	if len(os.Args) > 1 && os.Args[1] == spawn.Arg {
		os.Exit(spawn.Main())
	}
	code := m.Run()
	for _, h := range thisHierarchies() {
		left, err := filepath.Glob(filepath.Join(h.own, fmt.Sprintf("premix-%d.*", os.Getpid())))
		if err != nil || len(left) > 0 {
			fmt.Fprintln(os.Stderr, "cgroups are left:", left, err)
			code = 1
		}
	}
	os.Exit(code)
}
