package libraries

import (
	"bytes"
	"debug/elf"
	"os"
	"slices"
	"testing"
)

// FuzzNeeds checks that readNeeds does not crash on arbitrary bytes, and that the number of
// names and their lengths stay within the limits.
func FuzzNeeds(f *testing.F) {
	for _, path := range []string{"/bin/ls", "/usr/lib/x86_64-linux-gnu/libm.so.6"} {
		if b, err := os.ReadFile(path); err == nil && len(b) < 1<<20 {
			f.Add(b)
		}
	}
	f.Add([]byte(elf.ELFMAG))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := readNeeds(bytes.NewReader(b))
		if err == nil && (len(n.names) > maxNeeded || slices.ContainsFunc(n.names, func(s string) bool { return len(s) > maxName })) {
			t.Errorf("%d names", len(n.names))
		}
	})
}

func TestNeedsOfRealFiles(t *testing.T) {
	seen := 0
	for _, path := range []string{"/bin/ls", "/bin/bash", "/usr/bin/curl", "/usr/bin/python3", "/usr/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"} {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		judge, err := elf.NewFile(bytes.NewReader(b))
		if err != nil || judge.Class != elf.ELFCLASS64 || judge.ByteOrder.String() != "LittleEndian" {
			continue
		}
		want, err := judge.ImportedLibraries()
		if err != nil || len(want) == 0 {
			continue
		}
		n, err := readNeeds(bytes.NewReader(b))
		if err != nil || !slices.Equal(n.names, want) {
			t.Errorf("%s: %v, %v, not %v", path, n, err, want)
		}
		seen++
	}
	if seen == 0 {
		t.Skip("no file that is linked dynamically is known here")
	}
}
