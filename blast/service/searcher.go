package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"premix/blast/database"
)

// Programs searches with the programs of BLAST+ on PATH: all jobs of a scan in one
// process, over the whole database, with threads. What it prints is taken apart by jobs
// where that can be done to the byte; formats of which it cannot are printed job by job.
type Programs struct {
	Threads int // 0: all cores
}

// SearchError is what a program of BLAST+ said when it failed.
type SearchError struct {
	Program string
	Said    string
	Err     error
}

func (e *SearchError) Error() string {
	if e.Said == "" {
		return fmt.Sprintf("%s: %v", e.Program, e.Err)
	}
	return e.Program + ": " + e.Said
}

func (e *SearchError) Unwrap() error { return e.Err }

// Search implements [Searcher].
func (p *Programs) Search(ctx context.Context, s Scan, out []io.Writer) error {
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := named(dir, s.Database); err != nil {
		return err
	}
	split, outfmt := splitterOf(s)
	var joined [][]byte
	var counts, which []int
	for i, text := range s.Queries {
		if split == nil || len(s.Queries) == 1 || nameless.Match(text) {
			if err := p.run(ctx, dir, s, s.Outfmt, text, out[i]); err != nil {
				return err
			}
			continue
		}
		joined, counts, which = append(joined, text), append(counts, headers(text)), append(which, i)
	}
	if len(joined) == 0 {
		return nil
	}
	var printed bytes.Buffer
	if err := p.run(ctx, dir, s, outfmt, bytes.Join(joined, nil), &printed); err != nil {
		return err
	}
	parts, err := split(printed.Bytes(), counts)
	if err != nil {
		return fmt.Errorf("what %s printed: %w", s.Program, err)
	}
	for i, part := range parts {
		if _, err := out[which[i]].Write(part); err != nil {
			return err
		}
	}
	return nil
}

// nameless matches queries of which one has no id: BLAST+ prints its number then, in the
// midst of rows.
var nameless = regexp.MustCompile(`(?m)^>\s`)

// named makes an alias that is called like the database, since BLAST+ prints the name.
func named(dir string, d *database.Database) error {
	ending := ".nal"
	if d.Type == database.Prot {
		ending = ".pal"
	}
	return os.WriteFile(filepath.Join(dir, d.Name+ending), fmt.Appendf(nil, "TITLE %s\nDBLIST \"%s\"\n", d.Title, d.Whole), 0o600)
}

func headers(text []byte) int {
	n := bytes.Count(text, []byte("\n>"))
	if bytes.HasPrefix(text, []byte(">")) {
		n++
	}
	return n
}

func (p *Programs) run(ctx context.Context, dir string, s Scan, outfmt string, text []byte, out io.Writer) error {
	program, args := s.Program, []string{"-db", s.Database.Name, "-outfmt", outfmt}
	if program == "megablast" {
		program = "blastn" // which does that unless told otherwise
	}
	if s.HTML {
		args = append(args, "-html")
	}
	threads := p.Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	// SAM repeats the command.
	if threads > 1 && s.Outfmt != "17" {
		args = append(args, "-num_threads", strconv.Itoa(threads))
	}
	cmd := exec.CommandContext(ctx, program, append(args, s.Args...)...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, bytes.NewReader(text), out, &said
	// Neither what lies elsewhere under the same name nor a user's configuration counts.
	cmd.Env = append(os.Environ(), "BLASTDB="+dir, "NCBI="+dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound):
		return &SearchError{Program: program, Said: "it is not on PATH", Err: err}
	}
	return &SearchError{Program: program, Said: complaint(said.String()), Err: err}
}

// complaint is what is of interest of what BLAST+ says when it fails: it may print its
// usage before.
func complaint(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Error:") || strings.HasPrefix(line, "BLAST ") || strings.Contains(line, "error:") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return strings.TrimSpace(text)
	}
	return strings.Join(lines, " ")
}
