package search

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"premix/internal/kit/regex"
)

// Groups of queries, each searched for in the whole database by a process with one thread.
// Their outputs are joined in order, as they arrive.

// inseparable returns why a search cannot be done by groups of queries, or "".
func (r *Request) inseparable(q *queries) string {
	o := r.Options
	switch {
	case undivided(r.Program) != "":
		return undivided(r.Program)
	case o.entire != "":
		return o.entire
	case !q.fasta || q.letters == 0:
		return "the queries are not FASTA sequences"
	case tool(r.Program) == "blastn":
		return "blastn searches for the first query in another way than for others"
	case q.unnamed:
		return "a query has no id"
	case o.values["parse_deflines"] != "" || slices.Contains(o.find, "-parse_deflines"):
		return "-parse_deflines gives queries other ids"
	case r.links() && (q.odd || os.Getenv("BATCH_SIZE") != ""):
		return "it is not clear which queries BLAST+ would search for at once"
	case layoutOf(o.format, o.columns, false) == nil:
		return fmt.Sprintf("-outfmt %d is printed for all queries at once", o.format)
	}
	return ""
}

// The size of groups: about so many that all cores have several; at least enough to make
// the start of a process negligible; and few enough that their output fits into memory.
const (
	groupsOfCore  = 4
	fewestInGroup = 8
	mostInGroup   = 500
)

// segmented searches by groups of queries.
func (r *Request) segmented(ctx context.Context, dir string, q *queries) error {
	l := layoutOf(r.Options.format, r.Options.columns, false)
	size := min(max(q.count/(groupsOfCore*r.cores()), fewestInGroup), mostInGroup)
	batch := 1
	if r.links() {
		batch = batchLetters(r.Program)
	}
	files, err := cut(q.path, filepath.Join(dir, "group-"), size, batch)
	if err != nil {
		return err
	}
	o, err := r.Options.with("outfmt", l.outfmt)
	if err != nil {
		return err
	}
	out := &held{w: r.Stdout}
	if r.Options.Out != "" && r.Options.Out != "-" {
		f, err := os.Create(r.Options.Out)
		if err != nil {
			return r.whole(ctx, dir)
		}
		defer f.Close()
		out.w = f
	}
	stderr, err := r.segments(ctx, dir, l, o, files, out)
	if err != nil && !out.gone && ctx.Err() == nil {
		return r.after(ctx, dir, err)
	}
	if e := out.release(); err == nil {
		err = e
	}
	if len(stderr) > 0 && r.Stderr != nil {
		if _, e := r.Stderr.Write(stderr); err == nil {
			err = e
		}
	}
	return err
}

// segments searches for the groups in files, and prints the results in order. It returns
// the messages that BLAST+ would have printed to standard error.
func (r *Request) segments(ctx context.Context, dir string, l *layout, o *Options, files []segmentFile, out io.Writer) (stderr []byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		printed, stderr bytes.Buffer
		err             error
		done            chan struct{}
	}
	answers := make([]*answer, len(files))
	for i := range answers {
		answers[i] = &answer{done: make(chan struct{})}
	}
	running := make(chan struct{}, r.cores())
	ahead := make(chan struct{}, 2*r.cores()) // bounds the outputs in memory
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	wait.Go(func() {
		for i, file := range files {
			a := answers[i]
			select {
			case ahead <- struct{}{}:
			case <-ctx.Done():
				a.err = ctx.Err()
				close(a.done)
				continue
			}
			running <- struct{}{}
			wait.Go(func() {
				defer func() { <-running; close(a.done) }()
				own := filepath.Join(dir, "search-"+strconv.Itoa(i))
				if a.err = os.Mkdir(own, 0o700); a.err != nil {
					return
				}
				a.err = r.segment(ctx, own, o, file.path, &a.printed, &a.stderr)
			})
		}
	})
	before := 0
	for i, a := range answers {
		<-a.done
		if a.err != nil {
			return stderr, a.err
		}
		p, err := l.apart(l, a.printed.Bytes())
		if err != nil {
			return stderr, err
		}
		if len(p.blocks) != files[i].count {
			return stderr, fmt.Errorf("results of %d queries instead of %d", len(p.blocks), files[i].count)
		}
		text, err := l.put(p, p.blocks, position{before, i+1 == len(files)})
		if err != nil {
			return stderr, err
		}
		if _, err := out.Write(text); err != nil {
			return stderr, err
		}
		stderr = append(stderr, warnings(a.stderr.Bytes(), before)...)
		before += len(p.blocks)
		answers[i] = nil
		<-ahead
	}
	return stderr, nil
}

// segment searches for one group.
func (r *Request) segment(ctx context.Context, dir string, o *Options, path string, out, stderr io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if o, err = o.with("num_threads", "1"); err != nil {
		return err
	}
	if o, err = o.without("query", "out"); err != nil {
		return err
	}
	one := *r
	one.Options, one.Stdin, one.Stdout, one.Stderr = o, f, out, stderr
	return one.whole(ctx, dir)
}

var warnedQuery = regex.Lazy(`(?m)^(Warning: \[[a-z]+\] Query_)([0-9]+)`)

// warnings returns the warnings of a later group. It drops warnings about options, which
// the first group has printed.
func warnings(stderr []byte, before int) []byte {
	if before == 0 {
		return stderr
	}
	var out []byte
	for line := range bytes.Lines(stderr) {
		if !warnsOfQuery(line) {
			continue
		}
		out = append(out, warnedQuery().ReplaceAllFunc(line, func(m []byte) []byte {
			parts := warnedQuery().FindSubmatch(m)
			n, err := strconv.Atoi(string(parts[2]))
			if err != nil {
				return m // too long for the number of a query
			}
			return strconv.AppendInt(bytes.Clone(parts[1]), int64(n+before), 10)
		})...)
	}
	return out
}

// batchLetters returns the number of letters of queries for which a program searches at
// once, at least: it reads queries until it has that many (GetQueryBatchSize of the
// toolkit).
func batchLetters(program string) int {
	switch program {
	case "blastp":
		return 10_000
	case "tblastn":
		return 20_000
	}
	return 10_002 // blastx and tblastx
}

// segmentFile is a file with a group of queries.
type segmentFile struct {
	path  string
	count int
}

// cut splits the queries of a file into files of at least size each. It splits only where a
// batch of BLAST+ ends.
func cut(path, prefix string, size, batch int) (files []segmentFile, err error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var f *os.File
	var w *bufio.Writer
	finish := func() error {
		if f == nil {
			return nil
		}
		err := errors.Join(w.Flush(), f.Close())
		f = nil
		return err
	}
	defer func() { err = errors.Join(err, finish()) }()
	r := bufio.NewReaderSize(in, 256<<10)
	letters, start := 0, true
	for {
		line, err := r.ReadSlice('\n')
		if start && len(line) > 0 && line[0] == '>' {
			if letters >= batch {
				letters = 0
			}
			if f == nil || letters == 0 && files[len(files)-1].count >= size {
				if err := finish(); err != nil {
					return nil, err
				}
				if f, err = os.Create(prefix + strconv.Itoa(len(files))); err != nil {
					return nil, err
				}
				w = bufio.NewWriterSize(f, 256<<10)
				files = append(files, segmentFile{path: f.Name()})
			}
			files[len(files)-1].count++
		} else if !start || len(line) > 0 && line[0] != '>' {
			letters += len(bytes.TrimSpace(line))
		}
		if f != nil {
			w.Write(line) // errors are returned by Flush
		}
		start = len(line) > 0 && line[len(line)-1] == '\n'
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
