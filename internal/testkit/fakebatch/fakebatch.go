package fakebatch

import (
	_ "embed"
	"os"
	"path/filepath"
)

//go:embed fake.py
var fake []byte

// programs are the names of the programs of each system.
var programs = map[string][]string{
	"lsf": {"bsub", "bjobs", "bkill"},
	"pbs": {"qsub", "qstat", "qdel"},
	"sge": {"qsub", "qstat", "qdel"},
}

// Install makes the programs of a system in dir/SYSTEM, which it returns for PATH, and their
// state directory, for the variable FAKE_BATCH.
func Install(dir, system string) (bin, state string, err error) {
	bin, state = filepath.Join(dir, system), filepath.Join(dir, system+"-state")
	for _, d := range []string{bin, state} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", "", err
		}
	}
	for _, name := range programs[system] {
		if err := os.WriteFile(filepath.Join(bin, name), fake, 0o755); err != nil {
			return "", "", err
		}
	}
	return bin, state, nil
}
