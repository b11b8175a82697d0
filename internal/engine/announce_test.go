package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestAnnounce(t *testing.T) {
	home := t.TempDir()
	t.Setenv("PREMIX_HOME", home)
	Announce("/a/run") // no watcher runs
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 0 {
		t.Fatalf("%v %v", entries, err)
	}
	place := AnnouncementDir()
	if err := os.MkdirAll(place, 0o755); err != nil {
		t.Fatal(err)
	}
	Announce("/a/run")
	Announce("/a/run") // the second announcement changes nothing
	Announce("/another")
	entries, err := os.ReadDir(place)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v %v", entries, err)
	}
	text := ""
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(place, e.Name()))
		if err != nil || !strings.HasSuffix(e.Name(), "-"+strconv.Itoa(os.Getpid())) {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		text += string(b)
	}
	if !strings.Contains(text, "/a/run\n") || !strings.Contains(text, "/another\n") {
		t.Errorf("announced: %q", text)
	}
}
