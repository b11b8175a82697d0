package late

import (
	"bytes"
	"regexp"
	"slices"

	"premix/internal/hotstart/frozen"
)

// Text is bytes with late words in them, as of one preparation.
type Text struct {
	Bytes []byte
	Spans []frozen.Span
	Dates []frozen.Date // times of the preparation
}

// With returns the text with the late words of another call.
func (t Text) With(words []string) []byte {
	b := slices.Clone(t.Bytes)
	for _, s := range t.Spans {
		copy(b[s.At:s.At+s.Length], words[s.Word][s.From:])
	}
	return b
}

// Now returns the text with the late words of another call, and with its dates moved on from
// the time at which the preparation was stopped to now.
func (t Text) Now(words []string, stopped, now frozen.Moment) ([]byte, error) {
	return frozen.MoveDates(t.With(words), t.Dates, stopped, now)
}

// EqualButNumbers reports whether two texts are equal apart from numbers, which may be times.
func EqualButNumbers(a, b []byte) bool { return bytes.Equal(blankNumbers(a), blankNumbers(b)) }

// number matches a number and the spaces before it, which may pad it, with the words that printf(3) has for those without digits. A time
// that has passed is negative by the clock of another preparation.
var number = regexp.MustCompile(`[ \t]*[-.]*[0-9]+([-.]*[0-9]+)*|[ \t]*-?\b(inf|nan)\b`)

// blankNumbers puts one character in the place of each number.
func blankNumbers(text []byte) []byte { return number.ReplaceAllLiteral(text, []byte{0}) }

// Rates are regular expressions of parts of texts with numbers that differ from execution to
// execution: times, rates and sizes of memory.
type Rates []*regexp.Regexp

// CompileRates compiles regular expressions. In these, ^ and $ match at each line.
func CompileRates(texts []string) (Rates, error) {
	var all Rates
	for _, text := range texts {
		r, err := regexp.Compile("(?m:" + text + ")")
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Blank returns text with one character in the place of each number where a rate matches.
func (all Rates) Blank(text []byte) []byte {
	for _, r := range all {
		text = r.ReplaceAllFunc(text, blankNumbers)
	}
	return text
}
