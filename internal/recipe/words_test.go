package recipe

import (
	"slices"
	"strings"
	"testing"
)

func TestSplitWords(t *testing.T) {
	for _, tt := range []struct {
		text  string
		words []string
		found []string // parts of the reported problems
	}{
		{"a  b\tc\n d", []string{"a", "b", "c", "d"}, nil},
		{`'a b' "c d" e\ f`, []string{"a b", "c d", "e f"}, nil},
		{`'' ""`, []string{"", ""}, nil},
		{`a'b'"c"d`, []string{"abcd"}, nil},
		{`"a\"b\\c\d" 'a\b'`, []string{`a"b\c\d`, `a\b`}, nil},
		{"a\\\nb", []string{"ab"}, nil},
		{`'|' ">" \; a\&b`, []string{"|", ">", ";", "a&b"}, nil},
		{"${a b} x${c}y '${d}' \"${e}\"", []string{"${a b}", "x${c}y", "${d}", "${e}"}, nil},
		{`\${a} '$x' $1 $$y`, []string{"$${a}", "$$x", "$$1", "$$y"}, nil},
		{"a#b", []string{"a#b"}, nil},
		{"a # b", []string{"a"}, []string{"comment"}},
		{"a | b", []string{"a", "b"}, []string{"| needs"}},
		{"a 2>&1 >>x &>y", []string{"a", "1", "x", "y"}, []string{"2>& needs", ">> needs", "&> needs"}},
		{"a;b&&c||d", []string{"a", "b", "c", "d"}, []string{"; needs", "&& needs", "|| needs"}},
		{"$(a) `b`", []string{"a", "b"}, []string{"$( )", ") needs", "` needs", "` needs"}},
		{`"$(a)" "$HOME"`, []string{"a)", ""}, []string{"$( )", "$HOME"}},
		{"~/x", []string{"~/x"}, []string{"home"}},
		{"'a", []string{"a"}, []string{"never closed"}},
		{`a\`, []string{"a"}, []string{"ends in a backslash"}},
	} {
		words, found := splitWords(tt.text)
		if !slices.Equal(words, tt.words) {
			t.Errorf("%q: got %q, want %q", tt.text, words, tt.words)
		}
		if len(found) != len(tt.found) {
			t.Errorf("%q: reported %v, want %q", tt.text, found, tt.found)
			continue
		}
		for i, want := range tt.found {
			if !strings.Contains(found[i].message, want) || found[i].hint == "" {
				t.Errorf("%q: reported %q with hint %q, want %q", tt.text, found[i].message, found[i].hint, want)
			}
		}
	}
}

// FuzzSplitWords checks that quoting and splitting returns words without problems unchanged.
func FuzzSplitWords(f *testing.F) {
	for _, s := range []string{"a b", `'a' "b\"" c\ d`, "${a} $$ $1", "a|b>c&&d;e", "$(x) `y` #z ~", "'", `\`, "\"$", "${"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words, found := splitWords(text)
		for _, m := range found {
			if m.offset < 0 || m.offset >= len(text) || m.message == "" || m.hint == "" {
				t.Fatalf("%q: %+v", text, m)
			}
		}
		if len(found) > 0 || strings.Contains(text, "${") {
			return
		}
		var again []string
		for _, w := range words {
			literal := expand(w, nil)
			again = append(again, "'"+strings.ReplaceAll(strings.ReplaceAll(literal, "$", "$$"), "'", `'\''`)+"'")
		}
		back, found := splitWords(strings.Join(again, " "))
		if len(found) > 0 || len(back) != len(words) {
			t.Fatalf("%q: %q, then %q, %v", text, words, back, found)
		}
		for i := range back {
			if expand(back[i], nil) != expand(words[i], nil) {
				t.Fatalf("%q: %q, then %q", text, words[i], back[i])
			}
		}
	})
}
