package frozen

import (
	"slices"
	"testing"
)

func TestExchange(t *testing.T) {
	words := NewWords([]LateWord{
		{A: []byte("SRR5204809_1.fq"), B: []byte("kq7Zp2mXw0_4.fq")},
		{A: []byte("ab"), B: []byte("xy")},
		{A: []byte("/data/aaaa"), B: []byte("/data/bbbb"), Whole: true},
	})
	for _, c := range []struct {
		name, a, b string
		spans      []Span
		same       bool
	}{
		{"whole", "..SRR5204809_1.fq..", "..kq7Zp2mXw0_4.fq..", []Span{{At: 2, Word: 0, From: 0, Length: 15}}, true},
		{"part", "x 5204809 y", "x Zp2mXw0 y", []Span{{At: 2, Word: 0, From: 3, Length: 7}}, true},
		{"too short a part", "x5y", "xZy", nil, false},
		{"short but whole", "-ab-", "-xy-", []Span{{At: 1, Word: 1, From: 0, Length: 2}}, true},
		{"half of a short word", "-a-", "-x-", nil, false},
		{"another change beside", "ab1", "xy2", []Span{{At: 0, Word: 1, From: 0, Length: 2}}, false},
		{"upper case", "srr", "KQ7", nil, false},
		{"reversed", "9084025RRS", "0wXm2pZ7qk", nil, false},
		{"part of a whole word", "work/aaaa", "work/bbbb", nil, false},
		{"directory", "/data/aaaa/x", "/data/bbbb/x", []Span{{At: 0, Word: 2, From: 0, Length: 10}}, true},
		{"twice", "abab", "xyxy", []Span{{Word: 1, Length: 2}, {At: 2, Word: 1, Length: 2}}, true},
	} {
		spans, same := words.Same([]byte(c.a), []byte(c.b))
		if !slices.Equal(spans, c.spans) || same != c.same {
			t.Errorf("%s: got %v and %v, want %v and %v", c.name, spans, same, c.spans, c.same)
		}
	}
}
