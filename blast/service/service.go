package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"premix/blast/database"
	"premix/internal/access"
	"premix/internal/beneath"
	"premix/record"
)

// Limits bound what the service takes on. Each is at least 1.
type Limits struct {
	Body        int64 // bytes of a request
	Queries     int64 // of a job
	Letters     int64 // of a job
	Waiting     int   // jobs that wait
	UserWaiting int   // of one user
	Backlog     int64 // letters that wait
	UserBacklog int64 // of one user
	Scan        int64 // letters that a scan is filled up to
	Kept        int   // jobs that are known; the oldest results go first
}

// DefaultLimits are for a machine of moderate size.
func DefaultLimits() Limits {
	return Limits{Body: 16 << 20, Queries: 10_000, Letters: 10_000_000, Waiting: 10_000, UserWaiting: 1000, Backlog: 100_000_000, UserBacklog: 20_000_000, Scan: 1_000_000, Kept: 100_000}
}

// Options say how a service is.
type Options struct {
	Dir      string // where jobs are kept
	Home     string // of the databases
	Version  string // of premix
	Searcher Searcher
	Delay    time.Duration // for which a job waits for others
	Keep     time.Duration // how long a result is there
	Scans    int           // at once; the last one is for small jobs, where there are several
	Timeout  time.Duration // of a scan
	Limits   Limits
	Tokens   *access.Tokens // nil: requests need none, and users are addresses
	Log      *slog.Logger
}

// Scan is one search for several jobs.
type Scan struct {
	Program  string
	Database *database.Database
	Args     []string // options of BLAST+, without -outfmt
	Outfmt   string
	HTML     bool
	Queries  [][]byte // FASTA, of each job
}

// Searcher searches.
type Searcher interface {
	// Search writes for each job to out what it would have got alone.
	Search(ctx context.Context, s Scan, out []io.Writer) error
}

// Service answers searches. Its handler is that of [Service.Handler].
type Service struct {
	o       Options
	kinds   *database.Kinds
	metrics *metrics
	lock    *os.File

	journalMu sync.RWMutex
	journal   *record.Writer
	lines     atomic.Int64 // of the journal
	alive     int64        // of these, when it was written anew; under journalMu

	mu    sync.Mutex
	jobs  map[string]*job
	files map[string]map[*job]bool // who has something in a file of results
	queue *queue
	scan  int64 // number of the last one
	slots []slot
	last  lasted
	ended bool

	wake chan struct{}
	work sync.WaitGroup
}

// New opens a service's directory. Run must be called then.
func New(o Options) (*Service, error) {
	s := &Service{o: o, kinds: database.NewKinds(o.Home), jobs: map[string]*job{}, files: map[string]map[*job]bool{}, queue: newQueue(), slots: make([]slot, max(1, o.Scans)), wake: make(chan struct{}, 1)}
	s.metrics = newMetrics(s)
	if err := s.restore(); err != nil {
		if s.lock != nil {
			s.lock.Close()
		}
		return nil, err
	}
	return s, nil
}

// Run searches until ctx ends, and then until the scans that run have been given up. What
// they were for is searched for at the next start.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		wait := s.dispatch(ctx)
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer:
		case <-tick.C:
			s.tidy()
		}
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.work.Wait()
	s.journalMu.Lock()
	defer s.journalMu.Unlock()
	return errors.Join(s.journal.Close(), s.lock.Close())
}

func (s *Service) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Submit takes a job on. When it returns, the job is on the disk.
func (s *Service) Submit(user, program, db, text string, options map[string]string, form string) (*job, error) {
	s.mu.Lock()
	busy := s.refuse(user, 0)
	s.mu.Unlock()
	if busy != nil {
		return nil, busy // before any work is done for it
	}
	args, err := arguments(options)
	if err != nil {
		return nil, err
	}
	normal, count, letters, err := queries(text, program, s.o.Limits)
	if err != nil {
		return nil, err
	}
	kind, err := s.kinds.Of(db)
	if err != nil {
		return nil, noDatabase(err, db)
	}
	if (kind == database.Prot) != overAminoAcids(program) {
		return nil, refused(400, "database", "%s does not search databases of type %s", program, kind)
	}
	j := &job{
		ID: newID(), User: user, Program: program, Database: db, Args: args, Format: form, Queries: count, Letters: letters,
		Created: time.Now().UTC(), text: normal, results: map[string]*result{},
	}
	s.journalMu.RLock()
	defer s.journalMu.RUnlock()
	s.mu.Lock()
	if err := s.refuse(user, letters); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	// Its place is taken before it is on the disk, and it is found when it is.
	i := s.enqueue(j, form, j.Created)
	i.held = true
	s.mu.Unlock()
	err = s.accept(j)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.queue.drop(j)
		s.o.Log.Error("a job could not be written", "error", err)
		return nil, &Refusal{Status: 503, Reason: "journal", Message: "the job could not be written to disk", After: 10}
	}
	i.held, i.result.queued = false, time.Now()
	s.queue.came = i.result.queued
	s.jobs[j.ID] = j
	s.metrics.accepted.WithLabelValues(program).Inc()
	s.nudge()
	return j, nil
}

// refuse tells why a job of a user cannot be taken on now. Under mu.
func (s *Service) refuse(user string, letters int64) error {
	l, q := s.o.Limits, s.queue
	mine := q.users[user]
	if mine == nil {
		mine = &line{}
	}
	after := min(60, 1+q.jobs/100)
	switch {
	case s.ended:
		return &Refusal{Status: 503, Reason: "ending", Message: "the service is ending", After: 5}
	case len(mine.items) >= l.UserWaiting:
		return &Refusal{Status: 429, Reason: "user", Message: fmt.Sprintf("%d of your searches wait already", len(mine.items)), After: after}
	case len(mine.items) > 0 && mine.letters+letters > l.UserBacklog:
		return &Refusal{Status: 429, Reason: "user", Message: fmt.Sprintf("%d letters of yours wait already", mine.letters), After: after}
	case q.jobs >= l.Waiting:
		return &Refusal{Status: 429, Reason: "queue", Message: fmt.Sprintf("%d searches wait already", q.jobs), After: after}
	case q.jobs > 0 && q.letters+letters > l.Backlog:
		return &Refusal{Status: 429, Reason: "queue", Message: fmt.Sprintf("%d letters wait already", q.letters), After: after}
	}
	return nil
}

// enqueue puts a result into the queue. Under mu.
func (s *Service) enqueue(j *job, form string, queued time.Time) *item {
	r := &result{state: waiting, queued: queued, done: make(chan struct{})}
	j.results[form] = r
	i := newItem(j, form, r)
	s.queue.add(i)
	return i
}

func (s *Service) open(db string) (*database.Database, error) {
	d, err := database.Open(s.o.Home, db)
	return d, noDatabase(err, db)
}

// noDatabase is what a user is told of an error of package database.
func noDatabase(err error, db string) error {
	var known *database.Error
	if errors.As(err, &known) && (known.Kind == database.NotThere || known.Kind == database.Use) {
		return refused(404, "database", "there is no database %q", db)
	}
	return err
}

// Job finds a job of a user; without tokens, anybody's. The result in another format than
// that it was sent in with is put into the queue when it is first asked for.
func (s *Service) result(user, id, form string) (*job, *result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.job(user, id)
	if err != nil {
		return nil, nil, err
	}
	if form == "" {
		form = j.Format
	}
	if r := j.results[form]; r != nil {
		return j, r, nil
	}
	first := j.first()
	if first.state == failed {
		return j, first, nil
	}
	if first.state != ready {
		return j, first, nil // its queries are not in a file yet: soon
	}
	if err := s.refuse(user, j.Letters); err != nil {
		return nil, nil, err
	}
	i := s.enqueue(j, form, time.Now())
	s.nudge()
	return j, i.result, nil
}

// job finds one. Under mu.
func (s *Service) job(user, id string) (*job, error) {
	j := s.jobs[id]
	if j == nil || s.o.Tokens != nil && j.User != user {
		return nil, refused(404, "unknown", "there is no search %q, or it has expired", id)
	}
	return j, nil
}

// Delete forgets a job. A scan that runs for it goes on for the others.
func (s *Service) delete(user, id string) error {
	s.journalMu.RLock()
	defer s.journalMu.RUnlock()
	s.mu.Lock()
	j, err := s.job(user, id)
	if err == nil {
		s.forget(j)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.write(event{What: "gone", ID: id, Time: time.Now().UTC()})
}

// slot is a place for a scan.
type slot struct {
	busy    bool
	since   time.Time
	letters int64
}

// besides is how long a scan of small jobs runs before others are searched for beside it.
// Two scans read the database twice, and share the cores: one of all that have come
// meanwhile is faster.
const besides = 2 * time.Second

// company is for how long small jobs wait for a scan that runs; 0: they do not. Under mu.
func (s *Service) company(now time.Time) time.Duration {
	var wait time.Duration
	for _, other := range s.slots[:len(s.slots)-1] {
		switch {
		case !other.busy || other.letters > s.o.Limits.Scan:
			return 0
		default:
			wait = max(wait, besides-now.Sub(other.since))
		}
	}
	return wait
}

// lasted is what the last scan was for, and how long it took.
type lasted struct {
	key  string
	took time.Duration
}

// longer is for how long a job waits for others while they keep coming: for a quarter of
// what the last scan like its own took. Those whom a scan has answered come back one by
// one, and it is worth while to have them all in the next. Where the last scan was not
// like it, nobody knows what one takes: four delays are as long as a burst of a thousand
// needs to arrive. Under mu.
func (s *Service) longer(key string) time.Duration {
	if key != s.last.key {
		return min(4*s.o.Delay, besides/2)
	}
	return min(s.last.took/4, besides/2)
}

// dispatch starts scans while there are slots for them. It tells after how long
// to look again; 0: when something happens.
func (s *Service) dispatch(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wait time.Duration
	for at, taken := range s.slots {
		if taken.busy {
			continue
		}
		small := at > 0 && at == len(s.slots)-1
		if small {
			if left := s.company(time.Now()); left > 0 {
				if wait == 0 || left < wait {
					wait = left
				}
				continue
			}
		}
		items, w := s.queue.take(time.Now(), s.o.Delay, s.longer, s.o.Limits.Scan, small)
		if len(items) == 0 {
			if w > 0 && (wait == 0 || w < wait) {
				wait = w
			}
			continue
		}
		for _, i := range items {
			i.result.state = running
			s.metrics.waited.Observe(time.Since(i.result.queued).Seconds())
		}
		var letters int64
		for _, i := range items {
			letters += i.job.Letters
		}
		s.slots[at] = slot{true, time.Now(), letters}
		s.scan++
		number := s.scan
		s.work.Go(func() {
			s.run(ctx, number, items)
			s.mu.Lock()
			s.last = lasted{items[0].key, time.Since(s.slots[at].since)}
			s.slots[at] = slot{}
			s.mu.Unlock()
			s.nudge()
		})
	}
	return wait
}

// run makes the results of some items with one key.
func (s *Service) run(ctx context.Context, number int64, items []*item) {
	began := time.Now()
	texts := make([][]byte, len(items))
	outs := make([]*bytes.Buffer, len(items))
	errs := make([]error, len(items))
	var ready []int
	for i, it := range items {
		if texts[i], errs[i] = s.text(it.job); errs[i] == nil {
			ready = append(ready, i)
		}
		outs[i] = &bytes.Buffer{}
	}
	if len(ready) > 0 {
		s.search(ctx, items, texts, outs, errs, ready)
	}
	if ctx.Err() != nil {
		return // they are searched for at the next start
	}
	s.metrics.scans.Observe(time.Since(began).Seconds())
	s.metrics.grouped.Observe(float64(len(items)))
	if err := s.store(number, items, texts, outs, errs); err != nil {
		s.o.Log.Error("results could not be written", "error", err)
		for i := range items {
			errs[i] = errors.New("the result could not be written to disk")
		}
		s.conclude(items, nil, nil, errs)
	}
}

// text are the queries of a job.
func (s *Service) text(j *job) ([]byte, error) {
	s.mu.Lock()
	text, stored := j.text, j.stored
	s.mu.Unlock()
	if text != nil {
		return text, nil
	}
	return s.read(stored)
}

// read reads from a file of results.
func (s *Service) read(p place) ([]byte, error) {
	if !cleanName(p.File) {
		return nil, fmt.Errorf("%q is no file of results", p.File)
	}
	f, err := os.Open(s.path("results", p.File))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, p.Length)
	_, err = io.ReadFull(io.NewSectionReader(f, p.Offset, p.Length), b)
	return b, err
}

// search searches for those of the items whose numbers are given, and where that
// fails, for each half of them.
func (s *Service) search(ctx context.Context, items []*item, texts [][]byte, outs []*bytes.Buffer, errs []error, which []int) {
	err := s.once(ctx, items, texts, outs, which)
	if err == nil || ctx.Err() != nil {
		return
	}
	if len(which) == 1 {
		errs[which[0]] = err
		return
	}
	for _, i := range which {
		outs[i].Reset()
	}
	half := len(which) / 2
	s.search(ctx, items, texts, outs, errs, which[:half])
	s.search(ctx, items, texts, outs, errs, which[half:])
}

// once is one search.
func (s *Service) once(ctx context.Context, items []*item, texts [][]byte, outs []*bytes.Buffer, which []int) error {
	lead := items[which[0]].job
	f, err := formatNamed(items[which[0]].format)
	if err != nil {
		return err
	}
	d, err := s.open(lead.Database)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Timeout, fmt.Errorf("the search took longer than %v", s.o.Timeout))
	defer cancel()
	scan := Scan{Program: lead.Program, Database: d, Args: slices.Clone(lead.Args), Outfmt: f.outfmt, HTML: f.html}
	var out []io.Writer
	for _, i := range which {
		scan.Queries = append(scan.Queries, texts[i])
		out = append(out, outs[i])
	}
	err = s.o.Searcher.Search(ctx, scan, out)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// store writes what a scan gave, and tells whoever waits.
func (s *Service) store(number int64, items []*item, texts [][]byte, outs []*bytes.Buffer, errs []error) error {
	file := strconv.FormatInt(number, 10)
	var all bytes.Buffer
	stored, places := make([]place, len(items)), make([]place, len(items))
	put := func(b []byte) place {
		p := place{file, int64(all.Len()), int64(len(b))}
		all.Write(b)
		return p
	}
	for i := range items {
		stored[i] = put(texts[i])
		if errs[i] == nil {
			places[i] = put(outs[i].Bytes())
		}
	}
	if err := beneath.Replace(s.path("results", file), 0o600, beneath.Durable, all.Bytes()); err != nil {
		return err
	}
	s.conclude(items, stored, places, errs)
	return nil
}

// conclude notes how items ended, in the journal and for those who wait.
func (s *Service) conclude(items []*item, stored, places []place, errs []error) {
	s.journalMu.RLock()
	defer s.journalMu.RUnlock()
	now := time.Now().UTC()
	var lines []byte
	for i, it := range items {
		e := event{What: "ready", ID: it.job.ID, Format: it.format, Time: now}
		if stored != nil {
			e.Stored = &stored[i]
		}
		if errs[i] != nil {
			e.What, e.Error = "failed", withoutDirectories(errs[i].Error())
		} else {
			e.Place = &places[i]
		}
		line, err := marshalLine(e)
		if err == nil {
			lines = append(lines, line...)
		}
	}
	if _, err := s.journal.Append(lines); err != nil {
		// They are told all the same, and searched for again after a restart.
		s.o.Log.Error("the journal could not be written", "error", err)
	}
	s.lines.Add(int64(len(items)))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, it := range items {
		j, r := it.job, it.result
		r.state = ready
		if errs[i] != nil {
			s.o.Log.Warn("a search failed", "id", j.ID, "error", errs[i])
			r.state, r.err = failed, withoutDirectories(errs[i].Error())
			s.metrics.failed.Inc()
		}
		if s.jobs[j.ID] == j { // not deleted meanwhile
			if places != nil && errs[i] == nil {
				r.place = places[i]
				s.uses(r.place.File, j)
			}
			if stored != nil && j.stored.File == "" {
				j.stored = stored[i]
				s.uses(j.stored.File, j)
			}
			if j.ended.IsZero() {
				j.ended = now
			}
			if stored != nil {
				j.text = nil
				s.remove("queries", j.ID)
			}
		}
		close(r.done)
	}
	if stored != nil && s.files[stored[0].File] == nil {
		s.remove("results", stored[0].File) // all were deleted
	}
}

// tidy forgets jobs whose time is over, and those that are too many, and writes the
// journal anew when most of it is old.
func (s *Service) tidy() {
	now := time.Now()
	s.mu.Lock()
	var over []*job
	for _, j := range s.jobs {
		if s.expired(j, now) {
			over = append(over, j)
		}
	}
	if many := len(s.jobs) - len(over) - s.o.Limits.Kept; many > 0 {
		var ended []*job
		for _, j := range s.jobs {
			if !j.ended.IsZero() && !s.expired(j, now) {
				ended = append(ended, j)
			}
		}
		slices.SortFunc(ended, func(a, b *job) int { return a.ended.Compare(b.ended) })
		over = append(over, ended[:min(many, len(ended))]...)
	}
	for _, j := range over {
		s.forget(j)
	}
	s.mu.Unlock()
	if lines := s.lines.Load(); lines < 10_000 || lines < 4*int64(len(s.jobs)) && lines < 4*s.alive {
		return
	}
	s.journalMu.Lock()
	defer s.journalMu.Unlock()
	if err := s.rewrite(); err != nil {
		s.o.Log.Error("the journal could not be written anew", "error", err)
	}
}

// marshalLine is an event as a line of the journal.
func marshalLine(e event) ([]byte, error) {
	line, err := json.Marshal(e)
	return append(line, '\n'), err
}
