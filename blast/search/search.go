package search

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"premix/blast/archive"
	"premix/blast/database"
)

// Mode is how a search is done.
type Mode int

const (
	Auto      Mode = iota // whichever is faster, see the package comment
	Fragments             // fragments side by side, merged
	Whole                 // BLAST+ on the whole database, with threads
	Queries               // groups of queries side by side, each on the whole database
)

// Settings say how a search may use the machine.
type Settings struct {
	Mode      Mode
	Cores     int // 0: all
	Processes int // at once on fragments; 0: as many as cores

	// Apart tells that neither the working directory nor the configuration of the user
	// who started premix counts: for services.
	Apart bool
}

// Request is one search.
type Request struct {
	Program  string // one of [Programs]
	Database *database.Database
	Options  *Options
	Settings

	Stdin          io.Reader // queries, where Options names no file
	Stdout, Stderr io.Writer
	Note           func(string) // told why the whole database is searched; may be nil
	Explain        func(string) // told which way is taken, and why; may be nil

	// Elsewhere has [Piece] called for each of the pieces, on other machines, and returns
	// when all have succeeded; nil: this machine searches. Shared is a directory that they
	// see.
	Elsewhere func(context.Context, Pieces) error
	Shared    string

	batch int // letters of queries searched for at once; 0: as BLAST+ chooses
}

// Programs are the programs that search.
func Programs() []string {
	return []string{"blastn", "blastp", "blastx", "tblastn", "tblastx", "megablast"}
}

// tool is the program of BLAST+. Megablast is what its blastn does unless told otherwise.
func tool(program string) string {
	if program == "megablast" {
		return "blastn"
	}
	return program
}

// Run searches and prints what BLAST+ would have printed. The end of BLAST+ with another
// status than 0 is an [ExitError]; what it said has been written to Stderr.
func Run(ctx context.Context, r Request) error {
	if err := known(r.Program); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if r.Options.help {
		return r.whole(ctx, dir)
	}
	q, err := r.look(dir)
	if err != nil {
		return err
	}
	mode, why, note := r.way(q)
	if note && r.Note != nil {
		r.Note(why + ": the whole database is searched")
	} else if r.Explain != nil {
		r.Explain(mode.String() + ": " + why)
	}
	switch mode {
	case Fragments:
		return r.merged(ctx, dir, q)
	case Queries:
		return r.segmented(ctx, dir, q)
	}
	return r.whole(ctx, dir)
}

// String is the mode's name on the command line.
func (m Mode) String() string {
	return [...]string{Auto: "auto", Fragments: "fragments", Whole: "whole", Queries: "queries"}[m]
}

func known(program string) error {
	if slices.Contains(Programs(), program) {
		return nil
	}
	return &OptionError{fmt.Sprintf("there is no program %q", program), "it is one of " + strings.Join(Programs(), ", ")}
}

// look finds the queries. Those of standard input are kept in a file: they may be read
// several times.
func (r *Request) look(dir string) (*queries, error) {
	path := r.Options.Query
	if path == "" || path == "-" {
		path = filepath.Join(dir, "queries")
		f, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		if r.Stdin != nil {
			_, err = io.Copy(f, r.Stdin)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("keep the queries: %w", err)
		}
		if f, err = os.Open(path); err != nil {
			return nil, err
		}
		r.Stdin = f // removed with dir, closed by the end of the process
	} else {
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
			return &queries{}, nil // BLAST+ says what is wrong with it
		}
	}
	q, err := look(path)
	if err != nil {
		return &queries{path: path}, nil
	}
	return q, nil
}

// must tells why the whole database has to be searched; nothing: it has not to.
func (r *Request) must(q *queries) string {
	o := r.Options
	switch {
	case o.entire != "":
		return o.entire
	case !q.fasta || q.letters == 0:
		return "the queries are no FASTA sequences"
	case o.values["max_hsps"] != "" && (o.values["sum_stats"] != "" || tool(r.Program) != "blastn" && r.Program != "blastp"):
		return "-max_hsps leaves out the e-values by which BLAST+ sorts"
	case o.format == 11 && tool(r.Program) == "blastn" && q.letters-q.last >= r.firstBatch() && os.Getenv("BATCH_SIZE") == "":
		return "blastn writes archives of as many queries as it finds hits for"
	}
	return ""
}

// firstBatch is how many letters of queries blastn takes at first, at least: later it
// takes more where there were few hits (CBatchSizeMixer of the toolkit).
func (r *Request) firstBatch() int64 {
	return min(max(1_000_000, r.Database.Letters/3000)/200, 100_000)
}

// whole runs BLAST+ as it is.
func (r *Request) whole(ctx context.Context, dir string) error {
	name := tool(r.Program)
	path, err := exec.LookPath(name)
	if err != nil {
		return &MissingError{name}
	}
	args := slices.Clone(r.Options.Args)
	if r.Options.help {
		return r.plain(ctx, path, name, args)
	}
	if dir, err = alias(dir, r.Database, "whole", "", r.Database.Whole); err != nil {
		return err
	}
	if r.Options.DB == "" {
		args = append(args, "-db", r.Database.Name)
	}
	if near, _ := filepath.Glob(r.Database.Name + ".[np]??"); len(near) > 0 && !r.Apart {
		// BLAST+ would take what lies here.
		for i := range args {
			if i > 0 && args[i-1] == "-db" {
				args[i] = filepath.Join(dir, r.Database.Name)
			}
		}
	}
	// SAM repeats the command: there it stays as it is.
	if n := min(r.cores(), runtime.NumCPU()); n > 1 && r.Options.Threads == 0 && r.Options.format != 17 {
		if _, ok := r.Options.values["mt_mode"]; !ok {
			args = append(args, "-num_threads", strconv.Itoa(n))
		}
	}
	return r.plain(ctx, path, name, args, dir)
}

// plain runs a program of BLAST+ as if its user had.
func (r *Request) plain(ctx context.Context, path, name string, args []string, dirs ...string) error {
	p := newProgram(ctx, path, name, args)
	for _, dir := range dirs {
		set := places(dir, r.Apart)
		if r.batch > 0 {
			set["BATCH_SIZE"] = strconv.Itoa(r.batch)
		}
		p.cmd.Env = environment(set)
		if r.Apart {
			p.cmd.Dir = dir
		}
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = r.Stdin, r.Stdout, &p.stderr
	if r.Stderr != nil {
		p.cmd.Stderr = io.MultiWriter(r.Stderr, &p.stderr)
	}
	return p.end(p.cmd.Run())
}

// merged searches the fragments, and the whole database where that fails before
// anything was printed: what BLAST+ says then is what it says.
func (r *Request) merged(ctx context.Context, dir string, q *queries) error {
	out := &held{w: r.Stdout}
	if r.Options.Out != "" && r.Options.Out != "-" {
		f, err := os.Create(r.Options.Out)
		if err != nil {
			return r.whole(ctx, dir)
		}
		defer f.Close()
		out.w = f
	}
	s := r.scan(dir, q)
	err := r.print(ctx, s, out)
	if away := (*awayError)(nil); errors.As(err, &away) {
		return away.err
	}
	if err != nil && !out.gone && ctx.Err() == nil {
		return r.after(ctx, dir, err)
	}
	if e := out.release(); err == nil {
		err = e
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		s.stderr = exit.Said
	}
	if len(s.stderr) > 0 && r.Stderr != nil {
		if _, e := r.Stderr.Write(s.stderr); err == nil {
			err = e
		}
	}
	return err
}

// after searches the whole database after another way has failed before anything was
// printed.
func (r *Request) after(ctx context.Context, dir string, err error) error {
	// Where BLAST+ fails it will again, and say so as it does.
	if exit := (*ExitError)(nil); !errors.As(err, &exit) && r.Note != nil {
		r.Note(fmt.Sprintf("results cannot be put together here (%v): the whole database is searched", err))
	}
	if f, ok := r.Stdin.(io.Seeker); ok && (r.Options.Query == "" || r.Options.Query == "-") {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return r.whole(ctx, dir)
}

// scan is the search of a request.
func (r *Request) scan(dir string, q *queries) *scan {
	s := &scan{tool: tool(r.Program), db: r.Database, opt: r.Options, apart: r.Apart, queries: q, dir: dir}
	processes := r.Processes
	if processes == 0 {
		processes = r.cores()
	}
	s.plan = spread(r.Database.Fragments, processes, r.cores())
	if r.Elsewhere != nil {
		s.away, s.shared = r.Elsewhere, r.Shared
		processes = len(r.Database.Fragments)
		if r.Processes > 0 {
			processes = r.Processes
		}
		s.plan = spread(r.Database.Fragments, processes, processes*max(1, r.Options.Threads))
	}
	if s.tool == "blastn" && os.Getenv("BATCH_SIZE") == "" {
		s.batch = blastnBatch
	}
	if f := r.Options.format; f == 17 {
		s.batch = 1 << 30 // one archive: one header
	} else {
		s.single = isText(f) || f == 5 || f == 15
	}
	return s
}

// blastnBatch is how many letters of queries blastn searches for at once on fragments. By
// itself it chooses by the number of hits, which would differ from fragment to
// fragment.
const blastnBatch = 500_000

// print searches and prints.
func (r *Request) print(ctx context.Context, s *scan, out *held) error {
	if r.Options.format == 11 {
		return s.run(ctx, archive.NewWriter(out))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !isText(r.Options.format) {
		said := make(chan error, 1)
		format := 6
		if r.Options.format == 17 {
			format = 17 // says nothing of queries
		}
		go func() {
			_, err := s.voice(ctx, format)
			if err == nil && warnsOfQuery(s.stderr) && (r.Options.format == 5 || r.Options.format == 15) {
				err = errors.New("reports repeat what BLAST+ warns of in queries, and archives do not")
			}
			said <- err
		}()
		out.ready = sync.OnceValue(func() error { return <-said })
		defer out.ready()
	}
	err := r.formatted(ctx, s, describe(r.Options.format, r.Options.columns), archiveWriter, func(in io.Reader) error {
		switch f := r.Options.format; {
		case f == 7:
			return processed(out, in)
		case f == 17:
			return commandLine(out, in, strings.Join(append([]string{s.tool}, r.Options.Args...), " "))
		case isText(f):
			return r.texts(ctx, s, out, in)
		default:
			_, err := io.Copy(out, in)
			return err
		}
	})
	if err != nil {
		cancel()
		return err
	}
	return out.wait()
}

// warnsOfQuery tells whether some of the warnings are about a query: whether there are
// others than those about options.
func warnsOfQuery(said []byte) bool {
	for line := range bytes.Lines(said) {
		if !bytes.Contains(line, []byte("] Examining 5 or more matches")) && !bytes.Contains(line, []byte("] The parameter -")) {
			return true
		}
	}
	return false
}

func archiveWriter(w io.Writer) consumer { return archiveMender{archive.NewWriter(w)} }

// archiveMender writes archives for blast_formatter. Of ungapped searches BLAST+
// reports the parameters of ungapped alignments, and blast_formatter those of gapped ones
// which are not there.
type archiveMender struct{ *archive.Writer }

func (m archiveMender) End(t *archive.Tail) error { return m.Writer.End(t.GappedAsUngapped()) }

// formatted runs a search into blast_formatter, and gives what that prints to read.
//
// Of several failures that is returned of which BLAST+ has said something, else the first:
// it ends the others, which then fail in whatever way.
func (r *Request) formatted(ctx context.Context, s *scan, outfmt string, through func(io.Writer) consumer, read func(io.Reader) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	dir, err := alias(s.dir, s.db, "format", "", s.db.Whole)
	if err != nil {
		return err
	}
	args := append([]string{"-archive", "-", "-outfmt", outfmt}, s.opt.show...)
	p, err := s.prepare(ctx, dir, "blast_formatter", 0, args...)
	if err != nil {
		return err
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	searched := make(chan error, 1)
	go func() {
		err := s.run(ctx, through(in))
		if err != nil {
			fail(err) // nothing is printed of half a search
		}
		searched <- errors.Join(err, in.Close())
	}()
	readErr := read(out)
	if readErr != nil {
		fail(readErr)
	}
	io.Copy(io.Discard, out) // to its end: Wait closes it
	searchErr := <-searched
	waitErr := p.wait()
	for _, err := range []error{searchErr, waitErr} {
		if exit := (*ExitError)(nil); errors.As(err, &exit) && len(exit.Said) > 0 {
			return err
		}
	}
	return cmp.Or(context.Cause(ctx), searchErr, waitErr)
}

// texts prints one report for people.
func (r *Request) texts(ctx context.Context, s *scan, out io.Writer, in io.Reader) error {
	footers, err := s.footers(ctx)
	if err != nil {
		return err
	}
	t := &texts{in: bufio.NewReaderSize(in, 256<<10)}
	w := bufio.NewWriterSize(out, 256<<10)
	for i := 0; ; i++ {
		body, err := t.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if i >= len(footers) {
			return errors.New("more queries were printed than searched for")
		}
		if i == 0 {
			w.Write(t.prolog) // w keeps its error
		} else {
			w.Write(spacing)
		}
		before, _ := footer(body)
		w.Write(before)
		w.Write(footers[i])
	}
	w.Write(t.epilog)
	return w.Flush()
}
