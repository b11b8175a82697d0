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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"premix/internal/blast/database"
	"premix/internal/kit/access"
	"premix/internal/kit/beneath"
	"premix/internal/record"
)

// Limits are the limits of a service. Each is at least 1.
type Limits struct {
	Body        int64 // bytes of a request
	Queries     int64 // of a job
	Letters     int64 // of a job
	Waiting     int   // waiting jobs
	UserWaiting int   // the same of one user
	Backlog     int64 // waiting letters
	UserBacklog int64 // the same of one user
	Scan        int64 // letters up to which a scan is filled
	Kept        int   // stored jobs; the oldest results are dropped first
	Bytes       int64 // of the files of results; the oldest are dropped first
	UserBytes   int64 // the same of one user, and of one result
}

// DefaultLimits returns limits for a machine of moderate size.
func DefaultLimits() Limits {
	return Limits{Body: 16 << 20, Queries: 10_000, Letters: 10_000_000, Waiting: 10_000, UserWaiting: 1000, Backlog: 100_000_000, UserBacklog: 20_000_000, Scan: 1_000_000, Kept: 100_000, Bytes: 10 << 30, UserBytes: 2 << 30}
}

// Options configure a service.
type Options struct {
	Dir      string // for the jobs
	Home     string // of the databases
	Version  string // of premix
	Searcher Searcher
	Delay    time.Duration // time that a job waits for others
	Keep     time.Duration // time for which a result is kept
	Scans    int           // concurrent scans; if there are several, the last one is for small jobs
	Timeout  time.Duration // of a scan
	Limits   Limits
	Tokens   *access.Tokens // nil: requests need none, and users are addresses
	Proxies  access.Proxies // whose clients' addresses are taken from their requests
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

// Searcher runs scans.
type Searcher interface {
	// Search writes to out, for each job, the output that it would have got alone.
	Search(ctx context.Context, s Scan, out []io.Writer) error
}

// Service is a service for searches. [Service.Handler] returns its HTTP handler.
type Service struct {
	o       Options
	kinds   *database.Kinds
	metrics *metrics
	lock    *os.File

	journalMu sync.RWMutex
	journal   *record.Writer
	lines     atomic.Int64 // of the journal
	alive     int64        // the same for stored jobs, at its last rewrite; guarded by journalMu

	mu       sync.Mutex
	jobs     map[string]*job
	files    map[string]map[*job]bool // jobs that refer to each file of results
	size     map[string]int64         // bytes of these files
	stored   int64                    // of all
	trouble  trouble                  // of the disk
	queue    *queue
	scan     int64 // number of the last one
	slots    []slot
	last     lasted
	finished bool

	fasta chan struct{} // has an element for each download of sequences

	wake chan struct{}
	work sync.WaitGroup
}

// New opens the directory of a service. Call Run after it.
func New(o Options) (*Service, error) {
	s := &Service{o: o, kinds: database.NewKinds(o.Home), jobs: map[string]*job{}, files: map[string]map[*job]bool{}, size: map[string]int64{}, queue: newQueue(), slots: make([]slot, max(1, o.Scans)), wake: make(chan struct{}, 1), fasta: make(chan struct{}, fastaAtOnce)}
	s.metrics = newMetrics(s)
	if err := s.restore(); err != nil {
		if s.lock != nil {
			s.lock.Close()
		}
		return nil, err
	}
	return s, nil
}

// Run searches until ctx ends, and returns when running scans have been aborted. Their jobs
// are searched again at the next start.
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
	s.finished = true
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

// Submit accepts a job. When it returns, the job is on the disk.
func (s *Service) Submit(user, program, db, text string, options map[string]string, form string) (*job, error) {
	s.mu.Lock()
	busy := s.refuse(user, 0)
	s.mu.Unlock()
	if busy != nil {
		return nil, busy // before doing any work for it
	}
	args, err := arguments(options)
	if err != nil {
		return nil, err
	}
	normal, count, letters, err := queries(text, program, s.o.Limits)
	if err != nil {
		return nil, err
	}
	// The order of databases does not matter, so that equal sets can share a scan.
	names := strings.Fields(db)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil, refused(400, "database", "no database is named")
	}
	if len(names) > mostDatabases {
		return nil, refused(400, "database", "a search has at most %d databases", mostDatabases)
	}
	for _, name := range names {
		kind, err := s.kinds.Of(name)
		if err != nil {
			return nil, noDatabase(err, name)
		}
		if (kind == database.Prot) != overAminoAcids(program) {
			return nil, refused(400, "database", "%s does not search databases of type %s, as %s is", program, kind, name)
		}
	}
	db = strings.Join(names, " ")
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
	// The job takes its place in the queue before it is on the disk, and can be found after
	// that.
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

// mostDatabases is the largest number of databases of one search.
const mostDatabases = 50

// refuse returns why a job of a user cannot be accepted now. The caller holds mu.
func (s *Service) refuse(user string, letters int64) error {
	l, q := s.o.Limits, s.queue
	mine := q.users[user]
	if mine == nil {
		mine = &line{}
	}
	after := min(60, 1+q.jobs/100)
	switch {
	case s.finished:
		return &Refusal{Status: 503, Reason: "ending", Message: "the service is ending", After: 5}
	case s.trouble.err != nil:
		return &Refusal{Status: 503, Reason: "disk", Message: "results cannot be written to disk now", After: int(mostPause / time.Second)}
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

// enqueue adds a result to the queue. The caller holds mu.
func (s *Service) enqueue(j *job, form string, queued time.Time) *item {
	r := &result{state: waiting, queued: queued, done: make(chan struct{})}
	j.results[form] = r
	i := newItem(j, form, r)
	s.queue.add(i)
	return i
}

func (s *Service) open(db string) (*database.Database, error) {
	d, err := database.OpenAll(s.o.Home, db)
	return d, noDatabase(err, db)
}

// noDatabase converts an error of package database for users.
func noDatabase(err error, db string) error {
	var known *database.Error
	if errors.As(err, &known) && (known.Kind == database.NotThere || known.Kind == database.Use) {
		return refused(404, "database", "there is no database %q", db)
	}
	return err
}

// result returns a job of a user (without tokens, of any user) and its result in a format.
// If the format differs from the requested one, the first call adds the result to the
// queue.
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
		return j, first, nil // its queries are not in a file yet
	}
	if err := s.refuse(user, j.Letters); err != nil {
		return nil, nil, err
	}
	i := s.enqueue(j, form, time.Now())
	s.nudge()
	return j, i.result, nil
}

// job finds a job that a user may see. The caller holds mu.
func (s *Service) job(user, id string) (*job, error) {
	j := s.jobs[id]
	if j == nil || !s.owns(j, user) && !j.shared {
		return nil, refused(404, "unknown", "there is no search %q, or it has expired", id)
	}
	return j, nil
}

// owns reports whether a job is a user's. Without tokens, the id of a job is the only secret.
func (s *Service) owns(j *job, user string) bool { return s.o.Tokens == nil || j.User == user }

// own finds a job that a user may change. The caller holds mu.
func (s *Service) own(user, id string) (*job, error) {
	j, err := s.job(user, id)
	if err == nil && !s.owns(j, user) {
		return nil, refused(403, "owner", "the search belongs to another user")
	}
	return j, err
}

// share lets all users who have the id of a job see it, or only its owner.
func (s *Service) share(user, id string, shared bool) error {
	s.journalMu.RLock()
	defer s.journalMu.RUnlock()
	s.mu.Lock()
	_, err := s.own(user, id)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	e := event{What: "private", ID: id, Time: time.Now().UTC()}
	if shared {
		e.What = "shared"
	}
	if err := s.write(e); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[id]; j != nil {
		j.shared = shared
	}
	return nil
}

// delete removes a job. A running scan continues for its other jobs.
func (s *Service) delete(user, id string) error {
	s.journalMu.RLock()
	defer s.journalMu.RUnlock()
	s.mu.Lock()
	j, err := s.own(user, id)
	if err == nil {
		s.forget(j)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.write(event{What: "gone", ID: id, Time: time.Now().UTC()})
}

// slot is a slot for a scan.
type slot struct {
	busy    bool
	since   time.Time
	letters int64
}

// besides is the time that a scan of small jobs runs before another one starts in parallel.
// Two scans read the database twice, and share the cores: a single scan for all jobs that
// have come in the meantime is faster.
const besides = 2 * time.Second

// company returns how long small jobs wait for a running scan; 0: they do not. The caller
// holds mu.
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

// lasted is the key and the duration of the last scan.
type lasted struct {
	key  string
	took time.Duration
}

// longer returns how long a job waits for others while they keep coming: a quarter of the
// last scan's duration, if that had the same key. Users whose scan has ended come back one
// by one, and it is worth having all of them in the next one. If the last scan had another
// key, it returns four delays, in which a burst of a thousand jobs can arrive. The caller
// holds mu.
func (s *Service) longer(key string) time.Duration {
	if key != s.last.key {
		return min(4*s.o.Delay, besides/2)
	}
	return min(s.last.took/4, besides/2)
}

// dispatch starts scans while there are free slots. It returns the time after which to call
// it again; 0: at the next event.
func (s *Service) dispatch(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(s.trouble.until); left > 0 {
		return left
	}
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

// run makes the results of some items with the same key.
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
		return // the next start searches for them again
	}
	s.metrics.scans.Observe(time.Since(began).Seconds())
	s.metrics.grouped.Observe(float64(len(items)))
	if err := s.store(number, items, texts, outs, errs); err != nil {
		s.again(items, err)
	}
}

// queryOf returns a job that a user may see, and its queries.
func (s *Service) queryOf(user, id string) (*job, []byte, error) {
	s.mu.Lock()
	j, err := s.job(user, id)
	s.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	text, err := s.text(j)
	return j, text, err
}

// text returns the queries of a job.
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
		return nil, fmt.Errorf("%q is not a file of results", p.File)
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

// search searches for the items with the given indexes. If that fails, it searches for each
// half of them.
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

// once runs one search.
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
		items[i].opened = openedIDs(d)
		scan.Queries = append(scan.Queries, texts[i])
		out = append(out, outs[i])
	}
	err = s.o.Searcher.Search(ctx, scan, out)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// openedIDs returns the ids of the databases that are searched.
func openedIDs(d *database.Database) string {
	if d.Members == nil {
		return d.ID
	}
	var ids []string
	for _, m := range d.Members {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

// store stores the output of a scan, and informs waiting requests.
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
			errs[i] = s.tooLarge(int64(len(texts[i]) + outs[i].Len()))
		}
		if errs[i] == nil {
			places[i] = put(outs[i].Bytes())
		}
	}
	n := int64(all.Len())
	s.mu.Lock()
	s.makeRoom(n)
	s.mu.Unlock()
	for {
		err := beneath.Replace(s.path("results", file), 0o600, beneath.Durable, all.Bytes())
		if err == nil {
			break
		}
		s.mu.Lock()
		freed := s.free(n)
		s.mu.Unlock()
		if !freed {
			return err
		}
	}
	s.mu.Lock()
	s.size[file], s.trouble = n, trouble{}
	s.stored += n
	s.mu.Unlock()
	s.conclude(items, stored, places, errs)
	return nil
}

// conclude records the end of items, in the journal and for waiting requests.
func (s *Service) conclude(items []*item, stored, places []place, errs []error) {
	s.journalMu.RLock()
	defer s.journalMu.RUnlock()
	now := time.Now().UTC()
	var lines []byte
	for i, it := range items {
		e := event{What: "ready", ID: it.job.ID, Format: it.format, Time: now, Stored: &stored[i], Opened: it.opened}
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
		// Waiting requests still get the result; after a restart it is computed again.
		s.o.Log.Error("the journal could not be written", "error", err)
	}
	s.lines.Add(int64(len(items)))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, it := range items {
		j, r := it.job, it.result
		r.state, r.opened = ready, it.opened
		if errs[i] != nil {
			s.o.Log.Warn("a search failed", "id", j.ID, "error", errs[i])
			r.state, r.err = failed, withoutDirectories(errs[i].Error())
			s.metrics.failed.Inc()
		}
		if s.jobs[j.ID] == j { // it was not deleted in between
			if errs[i] == nil {
				r.place = places[i]
				s.uses(r.place.File, j)
			}
			if j.stored.File == "" {
				j.stored = stored[i]
				s.uses(j.stored.File, j)
			}
			if j.finished.IsZero() {
				j.finished = now
			}
			j.text = nil
			s.remove("queries", j.ID)
		}
		close(r.done)
	}
	if s.files[stored[0].File] == nil {
		s.drop(stored[0].File) // all jobs were deleted
	}
	s.shrinkUsers()
}

// tidy removes expired jobs and those above the limit, and rewrites the journal when most
// of it is old.
func (s *Service) tidy() {
	now := time.Now()
	s.mu.Lock()
	if s.queue.jobs == 0 && !slices.ContainsFunc(s.slots, func(l slot) bool { return l.busy }) {
		s.trouble = trouble{} // no result waits for the disk: the next search tries it
	}
	var over []*job
	for _, j := range s.jobs {
		if s.expired(j, now) {
			over = append(over, j)
		}
	}
	if many := len(s.jobs) - len(over) - s.o.Limits.Kept; many > 0 {
		finished := slices.DeleteFunc(s.oldest(), func(j *job) bool { return s.expired(j, now) })
		over = append(over, finished[:min(many, len(finished))]...)
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

// marshalLine returns an event as a line of the journal.
func marshalLine(e event) ([]byte, error) {
	line, err := json.Marshal(e)
	return append(line, '\n'), err
}
