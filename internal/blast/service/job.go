package service

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"strings"
	"time"

	"premix/internal/blast/fasta"
	"premix/internal/kit/regex"
)

// job is one request of a user. The fields below "Fixed" never change.
type job struct {
	// Fixed.
	ID       string    `json:"id"`
	User     string    `json:"user"`
	Program  string    `json:"program"`
	Database string    `json:"database"`
	Args     []string  `json:"args"`
	Format   string    `json:"format"` // in which it was requested
	Queries  int64     `json:"queries"`
	Letters  int64     `json:"letters"`
	Created  time.Time `json:"created"`

	// Guarded by Service.mu.
	text     []byte // the queries, until they are in the file of a scan
	stored   place  // place of the queries, after that
	results  map[string]*result
	finished time.Time // of its first result; zero: it has none yet
	read     bool      // a client has read a result
	shared   bool      // any user who has the id may see it
}

// state is the state of a result. The state of a job is that of its first result.
type state string

const (
	waiting state = "waiting"
	running state = "running"
	ready   state = "ready"
	failed  state = "failed"
)

// result is the output for a job in one format.
type result struct {
	state  state
	place  place
	err    string
	queued time.Time
	opened string        // ids of the databases that were searched; "" in old journals
	done   chan struct{} // closed when it is ready or has failed
}

// place is a range of bytes in a file below the directory of results.
type place struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
}

// item is a requested result.
type item struct {
	job    *job
	format string
	result *result
	key    string // equal for the items of one scan
	held   bool   // its job is not on the disk yet; guarded by Service.mu
	opened string // ids of the databases; set by the scan
}

func newItem(j *job, format string, r *result) *item {
	return &item{job: j, format: format, result: r, key: strings.Join(append([]string{j.Program, j.Database, format}, j.Args...), "\x00")}
}

// first returns the result in the format that the user asked for when submitting the job.
func (j *job) first() *result { return j.results[j.Format] }

// newID returns an id that cannot be guessed: whoever has it may see the job.
func newID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	return base32.StdEncoding.EncodeToString(b[:])
}

// accession matches a word that stands for a sequence in a public database: letters of
// sequences have no digits.
var accession = regex.Lazy(`^[A-Za-z0-9_.|:-]*[0-9][A-Za-z0-9_.|:-]*$`)

// onlyAccessions reports whether a text has accessions in place of sequences.
func onlyAccessions(text string) bool {
	words := strings.Fields(text)
	for _, w := range words {
		if !accession().MatchString(w) {
			return false
		}
	}
	return len(words) > 0
}

// unnamed is the header for a sequence without one.
const unnamed = ">query\n"

// queries checks the queries of a user, and normalizes them so that they can be joined with
// others.
func queries(text string, program string, l Limits) (normal []byte, count, letters int64, err error) {
	alphabet, ok := programs[program]
	if !ok {
		return nil, 0, 0, refused(400, "program", "there is no program %q", program)
	}
	normal = bytes.ReplaceAll([]byte(strings.TrimSpace(text)), []byte("\r\n"), []byte("\n"))
	if len(normal) == 0 {
		return nil, 0, 0, refused(400, "query", "there is no query")
	}
	if len(normal) < longText && onlyAccessions(text) {
		return nil, 0, 0, refused(400, "query", "accessions as queries are not to be had here, only NCBI has them: send the sequences themselves, as FASTA")
	}
	if normal[0] != '>' && normal[0] != ';' {
		normal = append([]byte(unnamed), normal...)
	}
	normal = append(normal, '\n')
	sum, err := fasta.Check(bytes.NewReader(normal), "query", fasta.Options{
		Alphabet: alphabet, Duplicates: true, MaxSequences: l.Queries, MaxLetters: l.Letters,
	}, nil)
	var limit *fasta.LimitError
	var problems fasta.Problems
	switch {
	case errors.As(err, &limit):
		return nil, 0, 0, refused(413, "size", "%v in one search", limit)
	case errors.As(err, &problems):
		p := problems[0]
		line := p.Line
		if bytes.HasPrefix(normal, []byte(unnamed)) && !strings.HasPrefix(text, ">") {
			line = max(1, line-1)
		}
		return nil, 0, 0, refused(400, "query", "line %d: %s", line, p.Message)
	case err != nil:
		return nil, 0, 0, err
	}
	return normal, sum.Sequences, sum.Letters, nil
}
