package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"premix/internal/blast/archive"
	"premix/internal/blast/database"
	"premix/internal/blast/part"
)

// scan is one search of all fragments for the queries of one file.
type scan struct {
	tool    string // blastn, blastp, ...
	db      *database.Database
	opt     *Options
	apart   bool // as in Settings
	queries *queries
	dir     string // for the files of the programs
	plan    plan
	batch   int     // letters of queries for which to search at once; 0: the default of BLAST+
	single  bool    // an archive for each query, not for each batch
	cores   int     // threads of a search of the whole database
	table   *layout // programs print tables; nil: archives

	// given are the alignments already found for each query, under the names that the
	// queries had then; nil: search for them.
	given [][][]byte
	ids   []string

	away part.Remote // see Request

	searchedAgain int // crowded queries, for which the whole database was searched

	stderr []byte // the messages that BLAST+ would have printed, once they are known
}

// alias writes an alias with the name of the database into a new directory, with the
// statistics of the whole, and returns the directory. BLAST+ then prints the same names
// wherever it searches.
func (s *scan) alias(kind, more string, paths ...string) (string, error) {
	// STATS_NSEQ and STATS_TOTLEN determine the search space. NSEQ and LENGTH determine the
	// average length of a sequence, on which cutoffs for the linking of HSPs depend.
	n, l := s.db.Sequences, s.db.Letters
	return alias(s.dir, s.db, kind, fmt.Sprintf("NSEQ %d\nLENGTH %d\nSTATS_NSEQ %d\nSTATS_TOTLEN %d\n%s", n, l, n, l, more), paths...)
}

func alias(dir string, db *database.Database, kind, more string, paths ...string) (string, error) {
	dir = filepath.Join(dir, kind)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, putAlias(dir, db, more, paths...)
}

// members returns the single databases of a database.
func members(db *database.Database) []*database.Database {
	if db.Members == nil {
		return []*database.Database{db}
	}
	return db.Members
}

func putAlias(dir string, db *database.Database, more string, paths ...string) error {
	text := "TITLE " + db.Title + "\nDBLIST"
	for _, p := range paths {
		text += ` "` + p + `"`
	}
	return os.WriteFile(filepath.Join(dir, db.Name+ending(db)), []byte(text+"\n"+more), 0o644)
}

// wholeAlias copies the alias of the whole database into a new directory, under the name of the
// database, or does so for each of several databases, and returns the directory. rpsblast reads
// only the first volume of an alias that leads to an alias.
func wholeAlias(dir string, db *database.Database, kind string) (string, error) {
	dir = filepath.Join(dir, kind)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for _, m := range members(db) {
		if err := copyFile(m.Whole+ending(m), filepath.Join(dir, m.Name+ending(m))); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func ending(db *database.Database) string {
	if db.Type == database.Prot {
		return ".pal"
	}
	return ".nal"
}

func (s *scan) prepare(ctx context.Context, dir, name string, batch int, args ...string) (*program, error) {
	return prepare(ctx, dir, name, batch, s.apart, args...)
}

// consumer receives merged archives.
type consumer interface {
	Begin(*archive.Head)
	Add(alignments ...[]byte)
	End(*archive.Tail) error
}

// run searches all parts at once and passes the merged archives to c.
func (s *scan) run(ctx context.Context, c consumer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running []*program
	start := func(dir string, batch, threads, hits int) (io.Reader, error) {
		p, out, err := s.start(ctx, dir, batch, threads, hits)
		if err != nil {
			return nil, err
		}
		running = append(running, p)
		return out, nil
	}
	merged := func() error {
		if s.given != nil {
			dir, err := s.alias("probe", "FIRST_OID 1\nLAST_OID 1\n", s.db.Fragments[0].Path)
			if err != nil {
				return err
			}
			batch := s.batch
			if s.single {
				batch = 1
			}
			out, err := start(dir, batch, 1, s.opt.hits)
			if err != nil {
				return err
			}
			return s.fill(archive.NewReader(out), c)
		}
		var sources []archive.Source
		if s.away != nil {
			var done func()
			var err error
			if sources, done, err = s.remote(ctx); err != nil {
				return err
			}
			defer done()
			return s.merge(ctx, sources, start, c)
		}
		for i, share := range s.plan.parts {
			var paths []string
			for _, f := range share.fragments {
				paths = append(paths, f.Path)
			}
			dir, err := s.alias("part-"+strconv.Itoa(i), "", paths...)
			if err != nil {
				return err
			}
			out, err := start(dir, s.batch, share.threads, s.longer())
			if err != nil {
				return err
			}
			sources = append(sources, archive.Source{Archives: out, First: share.fragments[0].First})
		}
		return s.merge(ctx, sources, start, c)
	}
	err := merged()
	if err != nil {
		// The error of a program that failed is better than the error of reading its
		// output. Programs that still run are ended.
		var exit *part.ExitError
		cancel()
		for _, p := range running {
			if e := p.wait(); errors.As(e, &exit) && len(exit.Stderr) > 0 {
				err = exit
			}
		}
		return err
	}
	for i, p := range running {
		if e := p.wait(); e != nil && err == nil {
			err = e
		}
		if i == 0 && s.opt.format == 11 && s.away == nil {
			s.stderr = p.stderr.Bytes()
		}
	}
	return err
}

// start starts a search for lists of up to so many hits in the database of a directory.
func (s *scan) start(ctx context.Context, dir string, batch, threads, hits int) (*program, io.Reader, error) {
	args := append(s.search(hits), "-query", s.queries.path)
	if threads > 1 {
		args = append(args, "-num_threads", strconv.Itoa(threads))
	}
	p, err := s.prepare(ctx, dir, s.tool, batch, args...)
	if err != nil {
		return nil, nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	return p, out, err
}

// search returns the arguments of a search for lists of up to so many hits, without the
// queries; 0: the default.
func (s *scan) search(hits int) []string {
	format := "11"
	if s.table != nil {
		format = s.table.outfmt
	}
	args := slices.Concat(s.opt.find, []string{"-db", s.db.Name, "-outfmt", format})
	if hits > 0 {
		args = append(args, "-max_target_seqs", strconv.Itoa(hits))
	}
	return args
}

// merge passes the merged archives of all parts to c. It starts further programs that are
// needed.
func (s *scan) merge(ctx context.Context, sources []archive.Source, start func(dir string, batch, threads, hits int) (io.Reader, error), c consumer) error {
	keep := 0
	if s.longer() != s.opt.hits {
		keep = s.hits()
	}
	m := archive.NewMerger(sources, keep)
	crowds := &crowds{s: s, ctx: ctx}
	defer func() { crowds.close(); s.searchedAgain = crowds.count }()
	if !s.single || s.queries.count == 1 {
		return batches(m, crowds, c)
	}
	dir, err := s.alias("probe", "FIRST_OID 1\nLAST_OID 1\n", s.db.Fragments[0].Path)
	if err != nil {
		return err
	}
	out, err := start(dir, 1, 1, s.opt.hits)
	if err != nil {
		return err
	}
	return singles(m, crowds, archive.NewReader(out), c)
}

// batches passes on one archive for each batch.
func batches(m *archive.Merger, crowds *crowds, c consumer) error {
	for {
		h, err := m.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		c.Begin(h)
		crowds.next()
		for range h.Queries {
			found, err := m.Query()
			if err == nil {
				found, err = crowds.query(h, found, m.Lists())
			}
			if err != nil {
				return err
			}
			c.Add(found...)
		}
		if _, err := m.Query(); !errors.Is(err, io.EOF) {
			return err
		}
		t, err := m.Tail()
		if err != nil {
			return err
		}
		if err := c.End(t); err != nil {
			return err
		}
	}
}

// singles passes on one archive for each query. An archive has the statistics of its first
// query only, so heads and tails come from a probe with one query a batch and the
// statistics of the whole database.
func singles(m *archive.Merger, crowds *crowds, probe *archive.Reader, c consumer) error {
	for {
		batch, err := m.Next()
		if errors.Is(err, io.EOF) {
			_, err := probe.Next()
			if !errors.Is(err, io.EOF) {
				return errors.New("more queries were probed than searched for")
			}
			return nil
		}
		if err != nil {
			return err
		}
		crowds.next()
		for {
			found, err := m.Query()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				found, err = crowds.query(batch, found, m.Lists())
			}
			if err != nil {
				return err
			}
			h, err := probe.Next()
			if err != nil {
				return fmt.Errorf("the statistics of a query: %w", err)
			}
			c.Begin(h)
			c.Add(found...)
			t, err := probe.Tail()
			if err != nil {
				return err
			}
			if err := c.End(t); err != nil {
				return err
			}
		}
	}
}

// fill passes on the archives of a probe, with the hits that are already known.
func (s *scan) fill(probe *archive.Reader, c consumer) error {
	n := 0
	for {
		h, err := probe.Next()
		if errors.Is(err, io.EOF) {
			if n < len(s.given) {
				return errors.New("fewer queries were probed than searched for")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("the statistics of queries: %w", err)
		}
		c.Begin(h)
		for _, id := range h.Queries {
			if n == len(s.given) {
				return errors.New("more queries were probed than searched for")
			}
			found, err := archive.Rename(s.given[n], s.ids[n], id)
			if err != nil {
				return err
			}
			c.Add(found...)
			n++
		}
		t, err := probe.Tail()
		if err != nil {
			return err
		}
		if err := c.End(t); err != nil {
			return err
		}
	}
}

// footers returns the texts that BLAST+ prints after each query in formats for people.
func (s *scan) footers(ctx context.Context) ([][]byte, error) {
	out, err := s.voice(ctx, s.opt.format, s.opt.show...)
	return splitFooters(out), err
}

// voice runs a probe to get the messages of BLAST+ to standard error, because BLAST+ prints
// fewer of them when it writes archives.
func (s *scan) voice(ctx context.Context, format int, show ...string) ([]byte, error) {
	dir, err := s.alias("voice", "FIRST_OID 1\nLAST_OID 1\n", s.db.Fragments[0].Path)
	if err != nil {
		return nil, err
	}
	args := slices.Concat(s.opt.find, []string{"-db", s.db.Name, "-query", s.queries.path, "-outfmt", strconv.Itoa(format)})
	for i, a := range show {
		if !slices.Contains(s.opt.find, a) || i > 0 && strings.HasPrefix(show[i-1], "-") {
			args = append(args, a)
		}
	}
	if s.opt.hits > 0 && !isText(format) {
		args = append(args, "-max_target_seqs", strconv.Itoa(s.opt.hits))
	}
	p, err := s.prepare(ctx, dir, s.tool, s.batch, args...)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	p.cmd.Stdout = &out
	if err := p.end(p.cmd.Run()); err != nil {
		return nil, err
	}
	s.stderr = p.stderr.Bytes()
	return out.Bytes(), nil
}
