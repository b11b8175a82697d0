package bundle

import "testing"

func TestMapped(t *testing.T) {
	for _, c := range []struct {
		ids  string
		want bool
	}{
		{"         0          0 4294967295\n", true},
		{"         0       1000          1\n", false},
		{"0 1000 1\n1 100000 65536\n", true},
		{"0 1000 5\n", false},
		{"6 1000 10\n", false},
		{"", false},
	} {
		if got := mapped(c.ids, ttyGroup); got != c.want {
			t.Errorf("%q has group %d: %v", c.ids, ttyGroup, got)
		}
	}
}
