package outputs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"page":    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"premix\">\n",
		"table":   "PAR1" + strings.Repeat("x", 20) + "premix.files.format" + "\x13\x00\x00\x00PAR1",
		"trace":   "; Version: 2.2\n; Computer: x\n; Conversion: premix\n",
		"profile": "{\"format\":\"premix profile 2\"",
		"text":    "<svg></svg>\n" + Mark,
		"sheet":   "sample,reads\na,a.fastq # premix profile 2\n",
		"foreign": "<!doctype html>\n<html><p>premix</p></html>",
		"parquet": "PAR1premix.files.format" + strings.Repeat("x", 20) + "\x14\x00\x00\x00PAR1", // in the data, not in the metadata
		"swf":     "; Version: 2.2\n; Conversion: another\n",
		"figure":  "<svg></svg>\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name := range files {
		for _, kind := range []Kind{Page, Table, Trace, Profile, Text} {
			err := Check(filepath.Join(dir, name), kind)
			if own := name == string(kind); own != (err == nil) && !(name == "sheet" && kind == Profile) {
				t.Errorf("%s as a %s: %v", name, kind, err)
			}
			if taken := new(TakenError); err != nil && !errors.As(err, &taken) {
				t.Errorf("%s as a %s: %v", name, kind, err)
			}
		}
	}
	if err := Check(filepath.Join(dir, "sheet"), Profile); err == nil {
		t.Error("a sheet with a comment passes as a profile")
	}
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644))
	must(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	must(os.Symlink("sheet", filepath.Join(dir, "link")))
	for _, name := range []string{"empty", "pipe", "none", "none/in/it"} {
		must(Check(filepath.Join(dir, name), Page))
	}
	must(Check("-", Page))
	must(Check("/dev/stdout", Page))
	for _, name := range []string{"link"} {
		if Check(filepath.Join(dir, name), Page) == nil {
			t.Errorf("%s may be replaced", name)
		}
	}
}
