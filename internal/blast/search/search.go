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

	"premix/internal/blast/archive"
	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/exit"
)

// Mode is the way in which a search is done.
type Mode int

const (
	Auto      Mode = iota // the fastest one, see the package documentation
	Fragments             // fragments in parallel, merged
	Whole                 // BLAST+ on the whole database, with threads
	Queries               // groups of queries in parallel, each on the whole database
)

// Settings limit the use of the machine.
type Settings struct {
	Mode      Mode
	Cores     int // 0: all
	Processes int // number of processes on fragments; 0: as many as cores

	// Apart makes the search ignore the working directory and the configuration of the user
	// who started premix, as services need it.
	Apart bool
}

// Request is one search.
type Request struct {
	Program  string // one of [Programs]
	Database *database.Database
	Options  *Options
	Settings

	Stdin          io.Reader // queries, if Options does not name a file
	Stdout, Stderr io.Writer
	Note           func(string) // gets the reason for searching the whole database; may be nil
	Explain        func(string) // gets the mode and the reason for it; may be nil

	Remote part.Remote // searches the fragments; nil: this machine searches

	// Domains is the database of -rpsdb, for deltablast; nil: BLAST+ looks for it.
	Domains *database.Database

	batch int // letters of queries for which to search at once; 0: the default of BLAST+
}

// Programs returns the names of the programs.
func Programs() []string {
	return append(divisible(), "psiblast", "deltablast", "rpsblast", "rpstblastn")
}

// divisible returns the programs whose searches can be divided by fragments or queries.
func divisible() []string {
	return []string{"blastn", "blastp", "blastx", "tblastn", "tblastx", "megablast"}
}

// undivided returns why a program searches only the whole database, or "".
func undivided(program string) string {
	switch program {
	case "psiblast", "deltablast":
		return program + " makes profiles from the hits in the whole database"
	case "rpsblast", "rpstblastn":
		return program + " searches a database of profiles"
	}
	return ""
}

// findProgram finds a program of BLAST+. Debian adds a plus to the name of rpsblast, as another
// package has the old program of this name.
func findProgram(name string) (string, error) {
	if name == "rpsblast" {
		if path, err := exec.LookPath("rpsblast+"); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &MissingError{name}
	}
	return path, nil
}

// tool returns the program of BLAST+. Megablast is the default task of blastn.
func tool(program string) string {
	if program == "megablast" {
		return "blastn"
	}
	return program
}

// Run searches and prints the output that BLAST+ would print. If BLAST+ ends with a status
// other than 0, the error is a [part.ExitError]; its messages have been written to Stderr.
func Run(ctx context.Context, r Request) error {
	if err := known(r.Program); err != nil {
		return err
	}
	if r.Remote != nil && (r.Mode == Queries || r.Mode == Whole) {
		return exit.Errorf(exit.Usage, "leave --mode out; or leave --engine, --nodes and PREMIX_BLAST_NODES out", "the mode %s is for the whole database on this machine, and other machines search fragments", r.Mode)
	}
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if r.Options.help {
		return r.whole(ctx, dir)
	}
	q, err := r.examine(dir)
	if err != nil {
		return err
	}
	mode, why, note := r.chooseMode(q)
	if note && r.Note != nil {
		r.Note(why + ": the whole database is searched")
	} else if r.Explain != nil {
		r.Explain("mode " + mode.String() + ": " + why)
	}
	switch mode {
	case Fragments:
		return r.merged(ctx, dir, q)
	case Queries:
		return r.segmented(ctx, dir, q)
	}
	return r.whole(ctx, dir)
}

// String returns the mode's name on the command line.
func (m Mode) String() string {
	return [...]string{Auto: "auto", Fragments: "fragments", Whole: "whole", Queries: "queries"}[m]
}

func known(program string) error {
	if slices.Contains(Programs(), program) {
		return nil
	}
	return exit.Errorf(exit.Usage, "it is one of "+strings.Join(Programs(), ", "), "there is no program %q", program)
}

// examine examines the queries. It copies standard input to a file, because it may be read
// several times.
func (r *Request) examine(dir string) (*queries, error) {
	path := r.Options.Query
	if path == "" && r.Options.otherQuery() {
		return &queries{}, nil
	}
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
			return &queries{}, nil // BLAST+ will report what is wrong with the file
		}
	}
	q, err := examine(path)
	if err != nil {
		return &queries{path: path}, nil
	}
	return q, nil
}

// must returns why the whole database has to be searched, or "".
func (r *Request) must(q *queries) string {
	o := r.Options
	switch {
	case undivided(r.Program) != "":
		return undivided(r.Program)
	case o.entire != "":
		return o.entire
	case len(r.Database.Members) > 0:
		return "several databases are searched as one"
	case !q.fasta || q.letters == 0:
		return "the queries are not FASTA sequences"
	case o.values["max_hsps"] != "" && (o.values["sum_stats"] != "" || tool(r.Program) != "blastn" && r.Program != "blastp"):
		return "-max_hsps leaves out the e-values by which BLAST+ sorts"
	case o.format == 11 && tool(r.Program) == "blastn" && q.letters-q.last >= r.firstBatch() && os.Getenv("BATCH_SIZE") == "":
		return "blastn writes archives of as many queries as it finds hits for"
	}
	return ""
}

// firstBatch returns the number of letters of queries with which blastn begins, at least:
// later it takes more if there were few hits (CBatchSizeMixer of the toolkit).
func (r *Request) firstBatch() int64 {
	return min(max(1_000_000, r.Database.Letters/3000)/200, 100_000)
}

// whole runs BLAST+ on the whole database.
func (r *Request) whole(ctx context.Context, dir string) error {
	name := tool(r.Program)
	path, err := findProgram(name)
	if err != nil {
		return err
	}
	args := slices.Clone(r.Options.Args)
	if r.Options.help {
		return r.plain(ctx, path, name, args)
	}
	if dir, err = wholeAlias(dir, r.Database, "whole"); err != nil {
		return err
	}
	if r.Domains != nil {
		for _, m := range members(r.Domains) {
			if err := copyFile(m.Whole+ending(m), filepath.Join(dir, m.Name+ending(m))); err != nil {
				return err
			}
		}
	}
	if r.Options.DB == "" {
		args = append(args, "-db", r.Database.Name)
	}
	if !r.Apart && r.shadowed() {
		for i := range args {
			if i > 0 && args[i-1] == "-db" {
				args[i] = inDirectory(dir, r.Database.Name)
			}
		}
	}
	// SAM repeats the command, so it must not be changed. In a database of profiles with several
	// volumes, threads find other hits.
	threads := r.Options.format != 17 && r.Program != "rpsblast" && r.Program != "rpstblastn"
	if n := min(r.cores(), runtime.NumCPU()); n > 1 && r.Options.Threads == 0 && threads {
		if _, ok := r.Options.values["mt_mode"]; !ok {
			args = append(args, "-num_threads", strconv.Itoa(n))
		}
	}
	return r.plain(ctx, path, name, args, dir)
}

// shadowed reports whether the working directory has files of a database of the same name,
// which BLAST+ would prefer.
func (r *Request) shadowed() bool {
	return slices.ContainsFunc(strings.Fields(r.Database.Name), func(name string) bool {
		near, _ := filepath.Glob(name + ".[np]??") // the form of the name allows no error
		return len(near) > 0
	})
}

// inDirectory returns the paths of databases in a directory, as -db takes them.
func inDirectory(dir, names string) string {
	list := strings.Fields(names)
	for i, name := range list {
		list[i] = filepath.Join(dir, name)
		if len(list) > 1 {
			list[i] = `"` + list[i] + `"`
		}
	}
	return strings.Join(list, " ")
}

// plain runs a program of BLAST+ as the user would.
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

// merged searches the fragments. If that fails before anything was printed, it searches the
// whole database, so that the user sees the messages of BLAST+.
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
	var err error
	if s.table = r.tabular(); s.table != nil {
		err = r.tables(ctx, s, out)
	} else {
		err = r.print(ctx, s, out)
	}
	if away := (*remoteError)(nil); errors.As(err, &away) {
		return away.err
	}
	if err != nil && !out.gone && ctx.Err() == nil {
		return r.after(ctx, dir, err)
	}
	if e := out.release(); err == nil {
		err = e
	}
	if s.searchedAgain > 0 && r.Explain != nil {
		r.Explain(fmt.Sprintf("%d queries have more hits than a list of BLAST+ holds: they were searched for in the whole database", s.searchedAgain))
	}
	var exit *part.ExitError
	if errors.As(err, &exit) {
		s.stderr = exit.Stderr
	}
	if len(s.stderr) > 0 && r.Stderr != nil {
		if _, e := r.Stderr.Write(s.stderr); err == nil {
			err = e
		}
	}
	return err
}

// after searches the whole database after another mode has failed before anything was
// printed.
func (r *Request) after(ctx context.Context, dir string, err error) error {
	// If BLAST+ has failed, it will fail again, and print why.
	if exit := (*part.ExitError)(nil); !errors.As(err, &exit) && r.Note != nil {
		r.Note(fmt.Sprintf("results cannot be put together here (%v): the whole database is searched", err))
	}
	if f, ok := r.Stdin.(io.Seeker); ok && (r.Options.Query == "" || r.Options.Query == "-") {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return r.whole(ctx, dir)
}

// scan returns the scan for a request.
func (r *Request) scan(dir string, q *queries) *scan {
	s := &scan{tool: tool(r.Program), db: r.Database, opt: r.Options, apart: r.Apart, queries: q, dir: dir, cores: min(r.cores(), runtime.NumCPU())}
	processes := r.Processes
	if processes == 0 {
		processes = r.cores()
	}
	s.plan = spread(r.Database.Fragments, processes, r.cores())
	if r.Remote != nil {
		s.away = r.Remote
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
		s.batch = 1 << 30 // one archive has one header
	} else {
		s.single = isText(f) || f == 5 || f == 15
	}
	return s
}

// blastnBatch is the number of letters of queries for which blastn searches at once on
// fragments. By default it depends on the number of hits, which would differ between
// fragments.
const blastnBatch = 500_000

// print searches and prints the results.
func (r *Request) print(ctx context.Context, s *scan, out *held) error {
	if r.Options.format == 11 {
		return s.run(ctx, archive.NewWriter(out))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !isText(r.Options.format) {
		stderr := make(chan error, 1)
		format := 6
		if r.Options.format == 17 {
			format = 17 // it does not mention queries
		}
		go func() {
			_, err := s.voice(ctx, format)
			if err == nil && warnsOfQuery(s.stderr) && (r.Options.format == 5 || r.Options.format == 15) {
				err = errors.New("reports repeat what BLAST+ warns of in queries, and archives do not")
			}
			stderr <- err
		}()
		out.ready = sync.OnceValue(func() error { return <-stderr })
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

// warnsOfQuery reports whether some of the warnings are not about options, and thus about a
// query.
func warnsOfQuery(stderr []byte) bool {
	for line := range bytes.Lines(stderr) {
		if !bytes.Contains(line, []byte("] Examining 5 or more matches")) && !bytes.Contains(line, []byte("] The parameter -")) {
			return true
		}
	}
	return false
}

func archiveWriter(w io.Writer) consumer { return archiveMender{archive.NewWriter(w)} }

// archiveMender writes archives for blast_formatter. For ungapped searches BLAST+ reports
// the parameters of ungapped alignments, but blast_formatter the missing ones of gapped
// alignments.
type archiveMender struct{ *archive.Writer }

func (m archiveMender) End(t *archive.Tail) error { return m.Writer.End(t.GappedAsUngapped()) }

// formatted pipes a search into blast_formatter, and passes its output to read.
//
// Of several errors it returns the one of a program of BLAST+ that printed a message, or
// else the first one: the first error ends the other programs, which then fail for varying
// reasons.
func (r *Request) formatted(ctx context.Context, s *scan, outfmt string, through func(io.Writer) consumer, read func(io.Reader) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	dir, err := alias(s.dir, s.db, "format", "", s.db.Whole)
	if err != nil {
		return err
	}
	// Of a file, even of this pipe, blast_formatter reads blocks. From the stream of its standard
	// input it takes single bytes, which costs as much as all the rest.
	args := append([]string{"-archive", "/dev/stdin", "-outfmt", outfmt}, s.opt.show...)
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
			fail(err) // do not print the results of an incomplete search
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
		if exit := (*part.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
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
			w.Write(t.prolog) // errors are returned by Flush
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
