package hotstart

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// compareDirs compares the files that two starts of one sample left in their
// directories. It returns a description of the difference, or "". It ignores stderr,
// to which tools write times. If both is true, it compares only files that exist in
// both directories.
func compareDirs(a, b string, spec Spec, both bool) (string, error) {
	left, err := outputsIn(a, spec)
	if err != nil {
		return "", err
	}
	right, err := outputsIn(b, spec)
	if err != nil {
		return "", err
	}
	names := map[string]bool{}
	for n := range left {
		names[n] = true
	}
	for n := range right {
		names[n] = true
	}
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	sort.Strings(sorted)
	for _, name := range sorted {
		shown := name
		if name == StdoutName {
			shown = "stdout"
		}
		if !left[name] || !right[name] {
			if both {
				continue
			}
			return fmt.Sprintf("only one of the two wrote %s", shown), nil
		}
		ignore, skip := spec.variations(shown)
		if skip {
			continue
		}
		line, err := compareFiles(filepath.Join(a, name), filepath.Join(b, name), ignore)
		if err != nil {
			return "", err
		}
		if line > 0 {
			return fmt.Sprintf("%s differs in line %d", shown, line), nil
		}
	}
	return "", nil
}

// outputsIn returns the regular files that a start left, without inputs and stderr.
func outputsIn(dir string, spec Spec) (map[string]bool, error) {
	skip := map[string]bool{StderrName: true}
	for _, name := range spec.Inputs {
		skip[name] = true
	}
	files := map[string]bool{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && !skip[rel] {
			files[rel] = true
		}
		return nil
	})
	return files, err
}

// variations returns which lines of an output do not count, or that none do.
func (spec Spec) variations(name string) (ignore []VariableLines, skip bool) {
	for _, v := range spec.Varies {
		if ok, _ := path.Match(v.File, name); !ok {
			continue
		}
		if v.Lines == nil {
			return nil, true
		}
		ignore = append(ignore, v)
	}
	return ignore, false
}

// compareFiles returns the first line in which two files differ, from 1 on, or
// 0. Lines that match one of ignore count as equal, each to each.
func compareFiles(a, b string, ignore []VariableLines) (int, error) {
	fa, err := os.Open(a)
	if err != nil {
		return 0, err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return 0, err
	}
	defer fb.Close()
	ra, rb := bufio.NewReaderSize(fa, 1<<20), bufio.NewReaderSize(fb, 1<<20)
	for n := 1; ; n++ {
		la, ea := ra.ReadBytes('\n')
		lb, eb := rb.ReadBytes('\n')
		if ea != nil && !errors.Is(ea, io.EOF) {
			return 0, ea
		}
		if eb != nil && !errors.Is(eb, io.EOF) {
			return 0, eb
		}
		if !bytes.Equal(la, lb) && !(varies(la, ignore) && varies(lb, ignore)) {
			return n, nil
		}
		if ea != nil || eb != nil {
			if (ea == nil) != (eb == nil) {
				return n, nil
			}
			return 0, nil
		}
	}
}

func varies(line []byte, ignore []VariableLines) bool {
	text := bytes.TrimRight(line, "\r\n")
	for _, v := range ignore {
		if v.Lines.Match(text) {
			return true
		}
	}
	return false
}

// lastWords returns the end of a task's stderr, for messages: the last line, and before
// it the last line that mentions an error, if the last line does not.
func lastWords(dir string) string {
	const most = 300
	b, err := os.ReadFile(filepath.Join(dir, StderrName))
	if err != nil {
		return ""
	}
	lines := strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' || r == '\r' })
	words := ""
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		switch {
		case line == "":
		case words == "":
			words = line
			if speaksOfError(line) {
				return clip(words, most)
			}
		case speaksOfError(line):
			return clip(line+" / "+words, most)
		}
	}
	return clip(words, most)
}

func speaksOfError(line string) bool {
	line = strings.ToLower(line)
	for _, word := range []string{"error", "because", "cannot", "can't", "could not", "fail", "no such", "invalid"} {
		if strings.Contains(line, word) {
			return true
		}
	}
	return false
}

func clip(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
