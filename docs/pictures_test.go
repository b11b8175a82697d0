package docs

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The pictures of pages show the pages of this source. If a page has changed, it needs new
// pictures.
func TestPicturesOfPages(t *testing.T) {
	const dir = "pictures/pages"
	list, err := os.ReadFile(filepath.Join(dir, "SOURCES"))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(list)) {
		digest, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		text, err := os.ReadFile(filepath.Join("..", name))
		if !ok || err != nil {
			t.Errorf("%q: %v: make screenshots", line, err)
			continue
		}
		count++
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != digest {
			t.Errorf("%s has changed since the pictures were made: make screenshots", name)
		}
	}
	if count < 15 {
		t.Errorf("only %d files were compared", count)
	}
	for _, page := range []string{"blast", "replay", "report", "transfer", "watch"} {
		head := make([]byte, 8)
		f, err := os.Open(filepath.Join(dir, page+".png"))
		if err == nil {
			_, err = f.Read(head)
			f.Close()
		}
		if err != nil || string(head) != "\x89PNG\r\n\x1a\n" {
			t.Errorf("the picture of %s is not there (%v): make screenshots", page, err)
		}
	}
}
