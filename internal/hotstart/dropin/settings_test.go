package dropin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("PREMIX_HOT_QUOTA", "")
	t.Setenv("PREMIX_HOT_WORTH", "")
	if err := os.Mkdir(filepath.Join(dir, "premix"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "premix/hot.yaml")
	usual := Settings{Quota: 32 << 30, Worth: 50 * time.Millisecond}
	for text, want := range map[string]Settings{
		"":                          usual,
		"quota: 50G\n":              {50 << 30, usual.Worth},
		"quota: 1G\nworth: 200ms\n": {1 << 30, 200 * time.Millisecond},
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadSettings(); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	// Variables take precedence over the file.
	if err := os.WriteFile(file, []byte("quota: 1G\nworth: 200ms\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PREMIX_HOT_QUOTA", "2G")
	if got, err := ReadSettings(); err != nil || got.Quota != 2<<30 || got.Worth != 200*time.Millisecond {
		t.Errorf("%+v, %v", got, err)
	}
	t.Setenv("PREMIX_HOT_WORTH", "soon")
	if _, err := ReadSettings(); err == nil || !strings.Contains(err.Error(), "PREMIX_HOT_WORTH") {
		t.Errorf("%v", err)
	}
	t.Setenv("PREMIX_HOT_WORTH", "")
	for text, want := range map[string]string{
		"quota: much\n": "hot.yaml:1: ",
		"\nquoat: 1G\n": "hot.yaml:2: unknown key quoat",
		"- a\n":         "hot.yaml:1: this is not a configuration of hot starts",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSettings(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PREMIX_HOT_QUOTA", "")
	if got, err := ReadSettings(); err != nil || got != usual {
		t.Errorf("without a file: %+v, %v", got, err)
	}
}
