package tiers

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The directory for incomplete copies must not belong to another user, who could replace copies by
// links.
func TestAttackPrivate(t *testing.T) {
	needRoot(t)
	for name, take := range map[string]func(private string) error{
		"owner": func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, 65534, 65534)) },
		"mode":  func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o777)) },
		"link":  func(p string) error { return os.Symlink("/tmp", p) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := take(filepath.Join(dir, Private)); err != nil {
				t.Fatal(err)
			}
			tree, err := openTree([]Tier{{Name: "flash", Dir: dir}})
			var bad *DirError
			if !errors.As(err, &bad) {
				t.Errorf("%v, want a DirError", err)
			}
			if err == nil {
				tree.close()
			}
		})
	}
}
