package hostlist

import (
	"errors"
	"slices"
	"testing"
)

func TestExpand(t *testing.T) {
	for list, want := range map[string][]string{
		"":                {},
		"n1":              {"n1"},
		"n1,n[3-5]":       {"n1", "n3", "n4", "n5"},
		"n1 n2":           {"n1", "n2"},
		"m[01-03,7]-ib":   {"m01-ib", "m02-ib", "m03-ib", "m7-ib"},
		"r[1-2]n[08-10]":  {"r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"},
		",n1,,n2,":        {"n1", "n2"},
		"n[0-9]":          {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"},
		"a[1],b":          {"a1", "b"},
		"x[098-101].site": {"x098.site", "x099.site", "x100.site", "x101.site"},
	} {
		if got, err := Expand(list, 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	for list, most := range map[string]int{
		"n[": 0, "n]": 0, "n[]": 0, "n[3-1]": 0, "n[a]": 0, "n[1-]": 0, "n[1,,2]": 0, "n[-1]": 0, "n]1[": 0, "n[99999999999]": 0,
		"n[1-6],m[1-6]": 10, "r[1-4]n[1-4]": 10, "n[1-11]": 0, "n[1-6,7-12]": 0,
	} {
		var wrong *Error
		if got, err := Expand(list, 10); !errors.As(err, &wrong) || wrong.Most != most {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
}

func TestRange(t *testing.T) {
	for text, want := range map[string][3]int{
		"3": {3, 3, 1}, "0-9": {0, 9, 1}, "1-9:2": {1, 9, 2}, "5-5:1": {5, 5, 1}, "2147483647": {2147483647, 2147483647, 1},
	} {
		if first, last, step, ok := Range(text); !ok || [3]int{first, last, step} != want {
			t.Errorf("%q: %d %d %d %v", text, first, last, step, ok)
		}
	}
	for _, text := range []string{"", "a", "-", "1-", "-1", "3-1", "1-5:", "1-5:0", "4:2", "1-2-3", "1:2:3", "+1", " 1", "2147483648"} {
		if first, last, step, ok := Range(text); ok {
			t.Errorf("%q: %d %d %d", text, first, last, step)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("n1,m[01-03,7]-ib")
	f.Add("r[1-2]n[08-10] x")
	f.Fuzz(func(t *testing.T, list string) {
		if names, err := Expand(list, 1000); err == nil && len(names) > 1000 {
			t.Errorf("%d names", len(names))
		}
	})
}
