package placeholder

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
)

// columns reads the line with the names of the columns, if a text has one. A part of a table
// without it is not valid.
func (s *source) columns() ([]byte, error) {
	head, err := s.r.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	lines := bytes.SplitAfterN(head, []byte("\n"), maxRows+2)
	if len(lines) > maxRows+1 || len(head) == headSize {
		lines = lines[:len(lines)-1] // it may not be whole
	}
	lines = slices.DeleteFunc(lines, func(l []byte) bool { return len(bytes.TrimSpace(l)) == 0 })
	if len(lines) < 2 || !namesColumns(lines[0], lines[1:]) {
		return nil, nil
	}
	return s.line()
}

// maxRows is the number of rows that are compared with the line that may name columns.
const maxRows = 20

// namesColumns reports whether a line has the names of the columns of the rows after it. Its
// fields are different, and none of them is a number. In at least one column, each row has a
// number, or each row has a digit and the line has none. The line has as many fields as the rows have, or one less, as R writes
// tables with names of rows.
func namesColumns(line []byte, rows [][]byte) bool {
	for _, split := range splits {
		names := split(string(bytes.TrimSpace(line)))
		if len(names) == 0 || !areNames(names) {
			continue
		}
		var table [][]string
		for _, row := range rows {
			fields := split(strings.TrimRight(string(row), "\r\n"))
			if len(fields) != len(names) && len(fields) != len(names)+1 || len(table) > 0 && len(fields) != len(table[0]) {
				table = nil
				break
			}
			table = append(table, fields)
		}
		if len(table) == 0 {
			continue
		}
		without := len(table[0]) - len(names) // columns without a name
		for i, name := range names {
			other := isNumber // no name is one
			if !hasDigit(name) {
				other = hasDigit
			}
			if !slices.ContainsFunc(table, func(fields []string) bool { return !other(fields[i+without]) }) {
				return true
			}
		}
	}
	return false
}

// splits are the ways in which the lines of tables are divided. A line without a separator is
// a table of one column.
var splits = []func(string) []string{
	func(l string) []string { return strings.Split(l, "\t") },
	func(l string) []string { return strings.Split(l, ",") },
	func(l string) []string { return strings.Split(l, ";") },
	strings.Fields,
}

// areNames reports whether fields are different from each other, and not numbers.
func areNames(fields []string) bool {
	seen := map[string]bool{}
	for _, f := range fields {
		if isNumber(f) || seen[f] {
			return false
		}
		seen[f] = true
	}
	return true
}

func isNumber(s string) bool {
	s = strings.Trim(s, "\" ")
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && hasDigit(s) // "inf" may be a name
}

func hasDigit(s string) bool { return strings.ContainsAny(s, "0123456789") }
