package late

import "testing"

func TestEqualButNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		equal bool
	}{
		{"12.5 s", "3 s", true},
		{"RSS: 112616 kB", "RSS:   5380 kB", true},
		{"-0.25 s", "10 s", true},
		{"at 10:11:12", "at 9:59:00", true},
		{"speed | inf", "speed | 0.90", true},
		{"speed | -nan", "speed | 1", true},
		{"info 1", "1 1", false},
		{"a 1 b", "a 1 c", false},
		{"1 read", "1 reads", false},
		{"read 1.", "read 2.", true},
		{"x", "x 1", false},
	} {
		if EqualButNumbers([]byte(c.a), []byte(c.b)) != c.equal {
			t.Errorf("EqualButNumbers(%q, %q) is %v", c.a, c.b, !c.equal)
		}
	}
}
