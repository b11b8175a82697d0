package frozen

import (
	"bytes"
	"slices"
	"testing"
)

// TestFindDir finds the path of the working directory in an environment.
func TestFindDir(t *testing.T) {
	dirs := [2]string{"/tmp/template-a--", "/tmp/template-b--"}
	for _, c := range []struct {
		name, a, b string
		dirs       [2]string
		want       bool
	}{
		{"a variable", "A=1\x00PWD=/tmp/template-a--\x00B=2\x00", "A=1\x00PWD=/tmp/template-b--\x00B=2\x00", dirs, true},
		{"the first", "PWD=/tmp/template-a--\x00", "PWD=/tmp/template-b--\x00", dirs, true},
		{"of another name", "OLDPWD=/tmp/template-a--\x00", "OLDPWD=/tmp/template-b--\x00", dirs, false},
		{"a file in it", "PWD=/tmp/template-a--/f\x00", "PWD=/tmp/template-b--/f\x00", dirs, false},
		{"exchanged", "PWD=/tmp/template-b--\x00", "PWD=/tmp/template-a--\x00", dirs, false},
		{"of other lengths", "PWD=/a\x00 ", "PWD=/bb\x00", [2]string{"/a", "/bb"}, false},
	} {
		a, b := []byte(c.a), []byte(c.b)
		off := slices.IndexFunc(a, func(x byte) bool { return x == '/' })
		for i := range a {
			if a[i] != b[i] {
				off = i / 8 * 8
				break
			}
		}
		place, ok := findDir(c.dirs, 0x1000, a, b, off)
		if ok != c.want || ok && !bytes.Equal(a, b) {
			t.Errorf("%s: %v, %q", c.name, ok, b)
			continue
		}
		if !ok {
			continue
		}
		at := int(place.Address - 0x1000)
		text, err := place.text("/out/7")
		if err != nil || len(text) != len(dirs[0])+1 || !bytes.HasPrefix(text, []byte("/out/7\x00")) || !bytes.HasPrefix(a[at:], []byte(dirs[0])) {
			t.Errorf("%s: at %d, %q, %v", c.name, at, text, err)
		}
		if text, err := place.text(dirs[0] + "x"); err == nil {
			t.Errorf("%s: a longer path gives %q", c.name, text)
		}
	}
	env := []string{"PWD=/d", "OLDPWD=/d", "PWD=/e"}
	if got := withoutDir(env, "/d"); !slices.Equal(got, []string{"PWD=", "OLDPWD=/d", "PWD=/e"}) || env[0] != "PWD=/d" {
		t.Errorf("%q, %q", got, env)
	}
}
