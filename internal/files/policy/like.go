package policy

import (
	"bytes"
	"unicode/utf8"
)

// like returns a matcher for a pattern of LIKE: % matches any text and _ one character. The
// character after escape, which may be 0 for none, matches itself. fold ignores case. like
// fails if escape is at the end.
func like(pattern string, escape byte, fold bool) (func([]byte) bool, bool) {
	if fold {
		pattern = string(bytes.ToLower([]byte(pattern)))
	}
	// parts are the texts between the %, each a list of characters; -1 matches any
	// character.
	parts, plain := [][]rune{nil}, true
	for i := 0; i < len(pattern); {
		r, size := utf8.DecodeRuneInString(pattern[i:])
		if r == utf8.RuneError && size == 1 {
			r = rune(pattern[i]) + invalid
		}
		last := &parts[len(parts)-1]
		switch {
		case escape != 0 && pattern[i] == escape:
			if i += size; i == len(pattern) {
				return nil, false
			}
			r, size = utf8.DecodeRuneInString(pattern[i:])
			*last = append(*last, r)
		case r == '%':
			parts = append(parts, nil)
		case r == '_':
			plain = false
			*last = append(*last, -1)
		default:
			plain = plain && r < invalid
			*last = append(*last, r)
		}
		i += size
	}
	var match func([]byte) bool
	if plain {
		match = plainLike(parts)
	} else {
		match = func(text []byte) bool { return runesLike(parts, runes(text)) }
	}
	if fold {
		return func(text []byte) bool { return match(bytes.ToLower(text)) }, true
	}
	return match, true
}

// invalid is added to bytes that are not part of a valid character, so that they differ
// from all characters.
const invalid = utf8.MaxRune + 1

func runes(text []byte) []rune {
	list := make([]rune, 0, len(text))
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			r = rune(text[i]) + invalid
		}
		list = append(list, r)
		i += size
	}
	return list
}

// plainLike matches patterns without _, for which comparing bytes is enough.
func plainLike(parts [][]rune) func([]byte) bool {
	list := make([][]byte, len(parts))
	for i, p := range parts {
		list[i] = []byte(string(p))
	}
	first, last := list[0], list[len(list)-1]
	if len(list) == 1 {
		return func(text []byte) bool { return bytes.Equal(text, first) }
	}
	middle := list[1 : len(list)-1]
	return func(text []byte) bool {
		if len(text) < len(first)+len(last) || !bytes.HasPrefix(text, first) || !bytes.HasSuffix(text, last) {
			return false
		}
		text = text[len(first) : len(text)-len(last)]
		for _, m := range middle {
			at := bytes.Index(text, m)
			if at < 0 {
				return false
			}
			text = text[at+len(m):]
		}
		return true
	}
}

func runesLike(parts [][]rune, text []rune) bool {
	at := func(part []rune, i int) bool {
		if i < 0 || i+len(part) > len(text) {
			return false
		}
		for k, r := range part {
			if r != -1 && r != text[i+k] {
				return false
			}
		}
		return true
	}
	if !at(parts[0], 0) {
		return false
	}
	if len(parts) == 1 {
		return len(text) == len(parts[0])
	}
	i, last := len(parts[0]), parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		for !at(part, i) {
			if i++; i > len(text) {
				return false
			}
		}
		i += len(part)
	}
	return len(text)-len(last) >= i && at(last, len(text)-len(last))
}
