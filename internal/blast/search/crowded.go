package search

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"premix/internal/blast/archive"
	"premix/internal/blast/part"
)

// crowds replaces the merged hits of crowded queries by the hits of a search of the whole
// database.
//
// BLAST+ collects preliminary hits in a list of limited length, before it computes the final
// alignments, and drops the hits that have no room in it. Which ones it drops depends on all
// others, so a search of the whole database may lose hits that searches of fragments find.
// A query is crowded if the list may have overflowed. The whole database is searched with
// the same queries in the same batches, from the first crowded query on, at the pace at
// which the results are needed.
type crowds struct {
	s       *scan
	ctx     context.Context
	batches int // of the merged archives that have begun
	queries int // of the present batch that were merged
	count   int // crowded queries

	end   context.CancelFunc // of the search of the whole; nil: not started
	whole *program
	*archive.Merger
	started int // batches of the search of the whole
	passed  int // queries of its present batch
	head    *archive.Head
}

// next begins a batch.
func (c *crowds) next() { c.batches, c.queries = c.batches+1, 0 }

// query returns the hits of the next query of the batch, given the merged ones.
func (c *crowds) query(h *archive.Head, merged [][]byte, lists archive.Lists) ([][]byte, error) {
	i := c.queries
	c.queries++
	if !c.s.crowded(lists) {
		return merged, nil
	}
	c.count++
	if c.end == nil {
		if err := c.start(); err != nil {
			return nil, err
		}
	}
	for c.started < c.batches {
		var err error
		if c.head, err = c.Next(); err != nil {
			return nil, c.failed(err)
		}
		c.started, c.passed = c.started+1, 0
	}
	if !slices.Equal(c.head.Queries, h.Queries) {
		return nil, errors.New("the whole database was searched for other queries than the fragments")
	}
	var found [][]byte
	for ; c.passed <= i; c.passed++ {
		var err error
		if found, err = c.Query(); err != nil {
			return nil, c.failed(err)
		}
	}
	return found, nil
}

// start starts the search of the whole database.
func (c *crowds) start() error {
	ctx, cancel := context.WithCancel(c.ctx)
	dir, err := alias(c.s.dir, c.s.db, "crowded", "", c.s.db.Whole)
	if err != nil {
		cancel()
		return err
	}
	p, out, err := c.s.start(ctx, dir, c.s.batch, c.s.cores, c.s.opt.hits)
	if err != nil {
		cancel()
		return err
	}
	c.end, c.whole = cancel, p
	c.Merger = archive.NewMerger([]archive.Source{{Archives: out}}, 0)
	return nil
}

// failed returns the error of a search of the whole whose output ended too early, or could
// not be read.
func (c *crowds) failed(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.end()
	if exit := (*part.ExitError)(nil); errors.As(c.whole.wait(), &exit) && len(exit.Stderr) > 0 {
		err = exit
	}
	c.whole = nil
	return fmt.Errorf("search the whole database for crowded queries: %w", err)
}

// close ends the search of the whole. It has given all that was needed.
func (c *crowds) close() {
	if c.whole != nil {
		c.end()
		c.whole.wait()
	}
}

// crowded reports whether the list of preliminary hits of a search of the whole database may
// have overflowed for a query.
//
// A full list of a fragment hides how many hits there are. Otherwise the fragments have found
// all hits. To these come preliminary hits that the final alignment removes: with
// composition-based statistics BLAST+ keeps preliminary hits of up to five times the
// e-value, and as many random ones are expected as the e-value says.
func (s *scan) crowded(l archive.Lists) bool {
	if l.Full {
		return true
	}
	more := 0.0
	if s.composition() {
		more = 5 * s.evalue()
	}
	return float64(l.Hits)+more > float64(s.room(l.Limit))
}

// room returns the length of the list of preliminary hits of a search for so many hits
// (GetPrelimHitlistSize of the toolkit).
func (s *scan) room(hits int) int {
	switch {
	case s.composition():
		return 2*hits + 50
	case s.gapped():
		return min(2*hits, hits+50)
	}
	return hits
}

// hits returns the length of the list of hits.
func (s *scan) hits() int {
	if s.opt.hits > 0 {
		return s.opt.hits
	}
	return 500 // the default of all programs
}

// longer returns the length of the lists of hits with which fragments are searched. It is more
// than the whole database's list of preliminary hits has room for. So a query whose list is
// full in a fragment is crowded in any case, and all other queries are searched for once. An
// archive of the user's has to contain the options as given.
func (s *scan) longer() int {
	if s.opt.format == 11 {
		return s.opt.hits
	}
	return s.room(s.hits()) + 1
}

// gapped reports whether alignments have gaps.
func (s *scan) gapped() bool {
	_, ungapped := s.opt.values["ungapped"]
	return s.tool != "tblastx" && !ungapped
}

// composition reports whether scores are adjusted to the composition of sequences. It is the
// default of the programs that compare proteins, except tblastx.
func (s *scan) composition() bool {
	switch s.tool {
	case "blastp", "blastx", "tblastn":
	default:
		return false
	}
	switch s.opt.values["comp_based_stats"] {
	case "0", "F", "f":
		return false
	}
	return s.gapped()
}

// evalue returns the e-value up to which hits are reported.
func (s *scan) evalue() float64 {
	if e, err := strconv.ParseFloat(s.opt.values["evalue"], 64); err == nil && e >= 0 {
		return e
	}
	return 10 // the default of all programs
}
