package service

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/blast/search"
)

// Programs is a Searcher that runs the programs of BLAST+ on PATH, for all jobs of a scan
// together ([search.Batched]).
type Programs struct {
	Threads int // 0: all cores

	// Remote searches the fragments of a database on other machines, with files in a
	// directory; nil: this machine searches.
	Remote func(db *database.Database, dir string) part.Remote
}

// SearchError is the message of a program of BLAST+ that failed.
type SearchError struct {
	Program string
	Stderr  string
	Err     error
}

func (e *SearchError) Error() string {
	if e.Stderr == "" {
		return e.Program + ": " + e.Err.Error()
	}
	return e.Program + ": " + e.Stderr
}

func (e *SearchError) Unwrap() error { return e.Err }

// Search implements [Searcher].
func (p *Programs) Search(ctx context.Context, s Scan, out []io.Writer) error {
	args := append([]string{"-db", s.Database.Name, "-outfmt", s.Outfmt}, s.Args...)
	if s.HTML {
		args = append(args, "-html")
	}
	options, err := search.ParseOptions(args)
	if err != nil {
		return err
	}
	var jobs []search.Job
	for i, text := range s.Queries {
		jobs = append(jobs, search.Job{Queries: text, Out: out[i]})
	}
	r := search.Request{
		Program: s.Program, Database: s.Database, Options: options,
		Settings: search.Settings{Cores: p.Threads, Apart: true},
	}
	if p.Remote != nil {
		dir, err := os.MkdirTemp("", "premix-blast-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		r.Remote = p.Remote(s.Database, dir)
	}
	err = search.Batched(ctx, r, jobs)
	var exit *part.ExitError
	var missing *search.MissingError
	switch {
	case errors.As(err, &exit):
		return &SearchError{Program: exit.Program, Stderr: complaint(string(exit.Stderr)), Err: err}
	case errors.As(err, &missing):
		return &SearchError{Program: missing.Program, Stderr: "it is not on PATH", Err: err}
	}
	return err
}

// complaint returns the relevant part of the messages of BLAST+ on a failure: it may print
// its usage before it.
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
