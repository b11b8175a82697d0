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

func TestRates(t *testing.T) {
	rates, err := CompileRates([]string{`VmPeak:.*`, `Speed, M/h \|.*`, `^\w{3} \d\d \d+ `})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a, b  string
		equal bool
	}{
		{"Reads | 5\nSpeed, M/h |\t12.5\nMapped | 4\n", "Reads | 5\nSpeed, M/h |\tinf\nMapped | 4\n", true},
		{"Reads | 5\nSpeed, M/h |\t12.5\n", "Reads | 6\nSpeed, M/h |\t12.5\n", false},
		{"VmPeak:\t 278 kB; VmSize:\t 9 kB\n1\n", "VmPeak:\t 80 kB; VmSize:\t 79 kB\n1\n", true},
		{"VmPeak:\t 278 kB\n1\n", "VmPeak:\t 278 kB\n2\n", false},
		{"x\nNov 25 10 7\n", "x\nNov 26 9 7\n", true},
		{"x\nNov 25 10 7\n", "x\nNov 25 10 8\n", false},
		{"VmPeak: 1\n", "VmPeak: 1\nVmPeak: 1\n", false},
	} {
		if equal := string(rates.Blank([]byte(c.a))) == string(rates.Blank([]byte(c.b))); equal != c.equal {
			t.Errorf("%q and %q are equal: %v", c.a, c.b, equal)
		}
	}
	if _, err := CompileRates([]string{"("}); err == nil {
		t.Error("a wrong expression is accepted")
	}
}
