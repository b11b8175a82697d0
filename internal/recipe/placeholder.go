package recipe

import "strings"

// segment is a part of a text with placeholders: plain text, or one placeholder.
type segment struct {
	text  string // plain text, or the placeholder as it is written
	name  string // of the placeholder: the text between the braces, trimmed
	holds bool   // it is a placeholder
	open  bool   // it is a "${" that is never closed
}

// segments splits t into segments. "$$" becomes one dollar sign. In shell text only
// "$${" becomes "${", since "$$" has a meaning in a shell.
func segments(t string, shell bool) []segment {
	var list []segment
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			list = append(list, segment{text: plain.String()})
			plain.Reset()
		}
	}
	for len(t) > 0 {
		switch {
		case shell && strings.HasPrefix(t, "$${"):
			plain.WriteString("${")
			t = t[3:]
		case !shell && strings.HasPrefix(t, "$$"):
			plain.WriteByte('$')
			t = t[2:]
		case strings.HasPrefix(t, "${"):
			flush()
			end := strings.IndexByte(t, '}')
			if end < 0 {
				return append(list, segment{text: t, holds: true, open: true})
			}
			list = append(list, segment{text: t[:end+1], name: strings.TrimSpace(t[2:end]), holds: true})
			t = t[end+1:]
		default:
			plain.WriteByte(t[0])
			t = t[1:]
		}
	}
	flush()
	return list
}

// expand replaces the placeholders in t by values. It keeps a placeholder without a
// value, which a checked recipe does not have.
func expand(t string, values map[string]string) string {
	var b strings.Builder
	for _, s := range segments(t, false) {
		if v, ok := values[s.name]; s.holds && ok {
			b.WriteString(v)
		} else {
			b.WriteString(s.text)
		}
	}
	return b.String()
}

// expandShell is expand for shell text. It quotes each value, if needed, for the
// quotes around it.
func expandShell(t string, values map[string]string) string {
	var b strings.Builder
	var state quoting
	for _, s := range segments(t, true) {
		if v, ok := values[s.name]; s.holds && ok {
			b.WriteString(state.quote(v))
			continue
		}
		state.feed(s.text)
		b.WriteString(s.text)
	}
	return b.String()
}

// quoting keeps track of open quotes in shell text.
type quoting struct {
	open    byte // ', " or 0
	escaped bool
}

func (q *quoting) feed(text string) {
	for i := range len(text) {
		c := text[i]
		switch {
		case q.escaped:
			q.escaped = false
		case c == '\\' && q.open != '\'':
			q.escaped = true
		case q.open == 0 && (c == '\'' || c == '"'):
			q.open = c
		case q.open == c:
			q.open = 0
		}
	}
}

// quote quotes v so that a shell reads it literally, as a part of one word.
func (q *quoting) quote(v string) string {
	q.escaped = false
	if shellSafe(v) {
		return v
	}
	switch q.open {
	case '\'':
		return strings.ReplaceAll(v, "'", `'\''`)
	case '"':
		return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(v)
	default:
		return "'" + strings.ReplaceAll(v, "'", `'\''`) + "'"
	}
}

// shellSafe reports whether a shell reads v literally, quoted or not.
func shellSafe(v string) bool {
	return v != "" && strings.Trim(v, nameChars+"/,:=@%+") == ""
}

const nameChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
