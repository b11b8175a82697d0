package hostlist

import (
	"fmt"
	"strconv"
	"strings"
)

// Error is the error of a text that is not a list of hosts, or has too many.
type Error struct {
	List string
	Most int // 0: it is not a list; else the most names that it may have
}

func (e *Error) Error() string {
	if e.Most > 0 {
		return fmt.Sprintf("%q has more than %d hosts", e.List, e.Most)
	}
	return fmt.Sprintf("%q is not a list of hosts", e.List)
}

// Expand returns the names in a list, in its order. The error is an [*Error] for a list with
// more than most names, too. An empty list has no names.
func Expand(list string, most int) ([]string, error) {
	if strings.Count(list, "[") != strings.Count(list, "]") {
		return nil, &Error{List: list}
	}
	var all []string
	for _, part := range Split(list) {
		names := []string{""}
		for rest := part; rest != ""; {
			before, inner, ranged := strings.Cut(rest, "[")
			for i := range names {
				names[i] += before
			}
			if !ranged {
				break
			}
			text, after, closed := strings.Cut(inner, "]")
			numbers, ok := padded(text, most)
			if !closed || !ok {
				return nil, &Error{List: list}
			}
			if len(names)*len(numbers) > most {
				return nil, &Error{list, most}
			}
			next := make([]string, 0, len(names)*len(numbers))
			for _, name := range names {
				for _, n := range numbers {
					next = append(next, name+n)
				}
			}
			names, rest = next, after
		}
		if all = append(all, names...); len(all) > most {
			return nil, &Error{list, most}
		}
	}
	return all, nil
}

// Split splits a list at commas and spaces outside of brackets, and leaves out empty parts.
func Split(list string) []string {
	var all []string
	begin, depth := 0, 0
	for i, c := range list + "," {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case (c == ',' || c == ' ') && depth == 0:
			if i > begin {
				all = append(all, list[begin:i])
			}
			begin = i + 1
		}
	}
	return all
}

// Range parses a number or a range of numbers as in 3, 1-5 or 1-9:2, whose step is 2. ok is false
// for any other text, and for numbers of more than 31 bits.
func Range(text string) (first, last, step int, ok bool) {
	span, by, stepped := strings.Cut(text, ":")
	from, to, ranged := strings.Cut(span, "-")
	if !ranged {
		to = from
	}
	if !stepped {
		by = "1"
	}
	a, aerr := strconv.ParseUint(from, 10, 31)
	b, berr := strconv.ParseUint(to, 10, 31)
	c, cerr := strconv.ParseUint(by, 10, 31)
	ok = aerr == nil && berr == nil && cerr == nil && a <= b && c > 0 && (ranged || !stepped)
	return int(a), int(b), int(c), ok
}

// padded expands 01-03,7. It accepts at most most numbers.
func padded(text string, most int) (list []string, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 31)
		b, err2 := strconv.ParseUint(last, 10, 31)
		if err1 != nil || err2 != nil || b < a || int(b-a) >= most-len(list) {
			return nil, false
		}
		for n := a; n <= b; n++ {
			list = append(list, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return list, true
}
