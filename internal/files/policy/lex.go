package policy

import (
	"strings"
)

type kind int

const (
	kindEnd    kind = iota
	kindWord        // a keyword, column or unit: text in lower case
	kindName        // "quoted": as written
	kindString      // 'quoted'
	kindNumber      // digits, perhaps with a point, or 0o, 0x
	kindSign        // an operator or a mark
)

type token struct {
	kind kind
	text string
	at   int // offset in the text
}

// shown returns the token as messages show it.
func (t token) shown() string {
	switch t.kind {
	case kindEnd:
		return "the end"
	case kindString:
		return "'" + t.text + "'"
	case kindName:
		return `"` + t.text + `"`
	case kindWord:
		return strings.ToUpper(t.text)
	}
	return t.text
}

// signs are the operators and marks, longer ones first.
var signs = []string{"<=", ">=", "<>", "!=", "||", "(", ")", ",", ";", "=", "<", ">", "+", "-", "*", "/", "%", "&"}

// lex splits a text into tokens, the last of which is kindEnd. Comments are -- to the end
// of the line, and /* */.
func lex(text string) ([]token, *mistake) {
	var list []token
	for i := 0; ; {
		i = blank(text, i)
		if i == len(text) {
			return append(list, token{kind: kindEnd, at: i}), nil
		}
		begin, c := i, text[i]
		switch {
		case strings.HasPrefix(text[i:], "/*"):
			return nil, wrong(i, "*/ ends a comment", "a comment does not end")
		case letter(c):
			for i < len(text) && (letter(text[i]) || digit(text[i])) {
				i++
			}
			list = append(list, token{kindWord, strings.ToLower(text[begin:i]), begin})
		case digit(c):
			for i < len(text) && (digit(text[i]) || text[i] == '_') {
				i++
			}
			switch {
			case i-begin == 1 && c == '0' && i+1 < len(text) && (text[i] == 'o' || text[i] == 'x') && hex(text[i+1]):
				for i++; i < len(text) && hex(text[i]); {
					i++
				}
			case i+1 < len(text) && text[i] == '.' && digit(text[i+1]):
				for i++; i < len(text) && digit(text[i]); {
					i++
				}
			}
			list = append(list, token{kindNumber, strings.ReplaceAll(text[begin:i], "_", ""), begin})
		case c == '\'' || c == '"':
			value, end := quoted(text, i)
			if end < 0 {
				return nil, wrong(i, "write "+string(c)+" at its end; one within it is written twice", "a quoted text does not end")
			}
			k := kindString
			if c == '"' {
				k = kindName
			}
			list = append(list, token{k, value, begin})
			i = end
		default:
			sign := ""
			for _, s := range signs {
				if strings.HasPrefix(text[i:], s) {
					sign = s
					break
				}
			}
			if sign == "" {
				return nil, wrong(i, "premix help files-policy describes the rules; texts in them are in single quotes", "%q has no meaning here", text[i:i+1])
			}
			list = append(list, token{kindSign, sign, begin})
			i += len(sign)
		}
	}
}

// blank skips blanks and comments.
func blank(text string, i int) int {
	for i < len(text) {
		switch {
		case strings.IndexByte(" \t\r\n", text[i]) >= 0:
			i++
		case strings.HasPrefix(text[i:], "--"):
			if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
				i += n
			} else {
				i = len(text)
			}
		case strings.HasPrefix(text[i:], "/*") && strings.Contains(text[i+2:], "*/"):
			i += 4 + strings.Index(text[i+2:], "*/")
		default:
			return i
		}
	}
	return i
}

// quoted returns the text in quotes at i, and the offset after it, or -1 if the quotes do
// not end.
func quoted(text string, i int) (string, int) {
	q := text[i]
	var b strings.Builder
	for i++; i < len(text); i++ {
		if text[i] != q {
			b.WriteByte(text[i])
			continue
		}
		if i+1 == len(text) || text[i+1] != q {
			return b.String(), i + 1
		}
		b.WriteByte(q)
		i++
	}
	return "", -1
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }
func hex(c byte) bool    { return digit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
