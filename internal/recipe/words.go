package recipe

import (
	"fmt"
	"strings"
)

// mishap is a part of a command that only a shell would understand.
type mishap struct {
	offset  int // in the text
	message string
	hint    string
}

// Hints for shell syntax in a command.
const (
	hintStdout = `premix keeps the tool's standard output: outputs: {stdout: "${sample}.out"}; if the tool itself must see the sign, quote it`
	hintStderr = `leave it out: premix keeps stderr of every task in the run directory`
	hintPipe   = "put the command that reads the tool's output into pipe, which runs in a shell for each sample"
	hintStdin  = "name the file in inputs and write its placeholder: ${NAME}"
	hintSecond = "a recipe runs one tool: put the command that reads its output into pipe, and prepare data beforehand"
	hintSubst  = "write the value itself, or set it in env; pipe does run in a shell"
)

// splitWords splits a command into words as a POSIX shell does (XCU 2.2, quoting),
// without expansions: blanks and newlines separate words, '…' and "…" quote, a
// backslash quotes the next character. A placeholder is never split, and is a
// placeholder in quotes too. In the words, "$$" means a dollar sign. All syntax that
// needs a shell is reported, and left out of the words.
func splitWords(text string) ([]string, []mishap) {
	var (
		words  []string
		found  []mishap
		word   strings.Builder
		inWord bool
	)
	report := func(offset int, hint, format string, args ...any) {
		found = append(found, mishap{offset, fmt.Sprintf(format, args...), hint})
	}
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	// dollar copies the text that begins with the dollar sign at i, and returns its
	// length.
	dollar := func(i int, literal bool) int {
		rest := text[i:]
		switch {
		case strings.HasPrefix(rest, "${"):
			n := strings.IndexByte(rest, '}') + 1
			if n == 0 {
				n = len(rest)
			}
			word.WriteString(rest[:n])
			return n
		case strings.HasPrefix(rest, "$$"):
			word.WriteString("$$")
			return 2
		case literal:
		case strings.HasPrefix(rest, "$("):
			report(i, hintSubst, "$( ) needs a shell, and command has none")
			return 2
		case len(rest) > 1 && isLetter(rest[1]):
			name := rest[:1+span(rest[1:], isNameByte)]
			report(i, fmt.Sprintf("write the value itself, or $%s where the tool must see the dollar sign", name),
				"%s would not be replaced: command has no shell", name)
			return len(name)
		}
		word.WriteString("$$")
		return 1
	}

	for i := 0; i < len(text); {
		c := text[i]
		switch c {
		case ' ', '\t', '\n', '\r':
			end()
			i++
		case '\\':
			i++
			switch {
			case i == len(text):
				report(i-1, `write \\ for a backslash`, "the command ends in a backslash")
			case text[i] == '\n':
				i++
			default:
				inWord = true
				if text[i] == '$' {
					word.WriteString("$$")
				} else {
					word.WriteByte(text[i])
				}
				i++
			}
		case '\'', '"':
			inWord = true
			start := i
			i++
			for i < len(text) && text[i] != c {
				switch {
				case text[i] == '$':
					i += dollar(i, c == '\'')
				case c == '"' && text[i] == '\\' && i+1 < len(text) && strings.IndexByte("\\\"$`\n", text[i+1]) >= 0:
					switch text[i+1] {
					case '\n':
					case '$':
						word.WriteString("$$")
					default:
						word.WriteByte(text[i+1])
					}
					i += 2
				case c == '"' && text[i] == '`':
					report(i, hintSubst, "` ` needs a shell, and command has none")
					i++
				default:
					word.WriteByte(text[i])
					i++
				}
			}
			if i >= len(text) {
				report(start, "close it, or write \\"+string(c)+" where the tool must see the sign", "a quote (%c) is never closed", c)
				i = len(text)
				break
			}
			i++
		case '$':
			inWord = true
			i += dollar(i, false)
		case '|', '&', ';', '<', '>', '`', '(', ')':
			n := span(text[i:], func(b byte) bool { return b == c || b == '&' && c == '>' || b == '|' && c == '>' })
			if c == '&' && i+1 < len(text) && text[i+1] == '>' {
				n = 1 + span(text[i+1:], func(b byte) bool { return b == '>' })
			}
			if c == '(' || c == ')' || c == '`' {
				n = 1
			}
			op := text[i : i+n]
			stderr := op[0] == '>' && word.String() == "2"
			if stderr {
				word.Reset()
				inWord = false
				op = "2" + op
			}
			end()
			report(i, operatorHint(op), "%s needs a shell, and command has none", op)
			i += n
		case '#':
			if !inWord {
				n := span(text[i:], func(b byte) bool { return b != '\n' })
				report(i, `a comment goes on a line of its own, outside of command; quote the # if the tool must see it`,
					"# does not begin a comment here")
				i += n
				continue
			}
			word.WriteByte(c)
			i++
		case '~':
			if !inWord && (i+1 == len(text) || text[i+1] == '/') {
				report(i, "name the path in data and write ${data.NAME}", "~ would not become the home directory: command has no shell")
			}
			fallthrough
		default:
			inWord = true
			word.WriteByte(c)
			i++
		}
	}
	end()
	return words, found
}

func operatorHint(op string) string {
	switch {
	case op[0] == '2':
		return hintStderr
	case strings.Contains(op, ">"):
		return hintStdout
	case op == "|":
		return hintPipe
	case op[0] == '<':
		return hintStdin
	case op[0] == '`':
		return hintSubst
	case op[0] == '(' || op[0] == ')':
		return "quote it if the tool must see it"
	default:
		return hintSecond
	}
}

// span returns the length of the longest prefix of s for whose bytes in is true.
func span(s string, in func(byte) bool) int {
	n := 0
	for n < len(s) && in(s[n]) {
		n++
	}
	return n
}

func isLetter(b byte) bool {
	return b == '_' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

func isNameByte(b byte) bool {
	return isLetter(b) || '0' <= b && b <= '9'
}
