package service

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/search"
	"premix/internal/kit/access"
	"premix/internal/kit/units"
)

// The pages are HTML that needs no script. Their addresses are relative and have one level, so
// that a proxy may serve them below any path:
//
//	GET  /            the form; edit=ID fills it in, as do the names of its fields
//	POST /search      submits it
//	GET  /search      a search: id, query (number), from (number of the first hit)
//	GET  /query       its queries
//	GET  /result      its result: id, format
//	GET  /fasta       sequences of hits: id, query, hit (numbers)
//	GET  /searches    the searches of the user
//	POST /share       lets other users see a search, or not: id, shared (yes or no)
//	POST /delete      removes a search: id

// Bounds of pages.
const (
	hitsOfPage   = 100
	hspsOfHit    = 20
	mostShown    = 32 << 20 // bytes of a result
	mostQuery    = 20_000   // bytes of the queries
	mostListed   = 100      // searches in a cookie
	drawn        = 50       // hits in the overview
	fastaAtOnce  = 2        // downloads of sequences
	mostFASTA    = 256 << 20
	searchCookie = "searches"
)

// tasks are the tasks of programs, besides the default, with words for them.
var tasks = []struct{ Program, Task, Words string }{
	{"blastn", "megablast", "very similar"},
	{"blastn", "dc-megablast", "more distant"},
	{"blastn", "blastn", "somewhat similar"},
	{"blastn", "blastn-short", "short queries"},
	{"blastp", "blastp-fast", "faster"},
	{"blastp", "blastp-short", "short queries"},
	{"blastx", "blastx-fast", "faster"},
	{"tblastn", "tblastn-fast", "faster"},
}

// fields are the options that have a field of their own in the form.
var fields = []string{
	"task", "evalue", "max_target_seqs", "taxids", "negative_taxids",
	"word_size", "perc_identity", "qcov_hsp_perc", "matrix", "gapopen", "gapextend", "query_gencode", "db_gencode",
}

// form has the content of the fields of the page.
type form struct {
	Program, Query string
	Databases      []string
	Values         map[string]string // by option
	More           string            // further options, as for BLAST+
}

// formOf reads a form from the parameters of a request.
func formOf(v url.Values) form {
	f := form{Program: v.Get("program"), Query: v.Get("query"), Values: map[string]string{}, More: strings.TrimSpace(v.Get("options"))}
	for _, list := range v["database"] {
		f.Databases = append(f.Databases, strings.Fields(list)...)
	}
	for _, name := range fields {
		if value := strings.TrimSpace(v.Get(name)); value != "" {
			f.Values[name] = value
		}
	}
	return f
}

// options returns the options of BLAST+ of a form.
func (f *form) options() (map[string]string, error) {
	options := maps.Clone(f.Values)
	words := strings.Fields(f.More)
	for i := 0; i < len(words); i++ {
		name, dashed := strings.CutPrefix(words[i], "-")
		form, known := allowed[name]
		if !dashed || !known {
			return nil, refused(400, "option", "%q is not an option that can be given here", words[i])
		}
		if _, again := options[name]; again {
			return nil, refused(400, "option", "the option -%s is there twice", name)
		}
		var value []string
		for form != nil && i+1 < len(words) && (!strings.HasPrefix(words[i+1], "-") || number().MatchString(words[i+1])) {
			i++
			value = append(value, words[i])
		}
		options[name] = strings.Join(value, " ")
	}
	if task := options["task"]; task != "" {
		i := slices.IndexFunc(tasks, func(t struct{ Program, Task, Words string }) bool { return t.Task == task })
		if i >= 0 && tasks[i].Program != f.Program {
			return nil, refused(400, "option", "the task %s is for %s, not for %s", task, tasks[i].Program, f.Program)
		}
	}
	return options, nil
}

// formOfJob returns the form that submits a job again.
func formOfJob(j *job, text []byte) form {
	f := form{Program: j.Program, Query: string(text), Databases: strings.Fields(j.Database), Values: map[string]string{}}
	var more []string
	for i := 0; i < len(j.Args); i++ {
		name, value := strings.TrimPrefix(j.Args[i], "-"), ""
		if allowed[name] != nil && i+1 < len(j.Args) {
			i++
			value = j.Args[i]
		}
		if slices.Contains(fields, name) {
			f.Values[name] = value
		} else {
			more = append(more, strings.TrimSpace("-"+name+" "+value))
		}
	}
	f.More = strings.Join(more, " ")
	return f
}

// pages are the templates of the pages.
var pages = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"count":        count,
		"number":       score,
		"plus":         func(a, b int) int { return a + b },
		"time":         func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
		"has":          func(list []string, s string) bool { return slices.Contains(list, s) },
		"overviewRows": func(hits int) int { return 12 * min(hits, drawn) },
	}).ParseFS(content, "web/*.html"))
})

// count formats a number with a comma after thousands.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// scoreClasses are ranges of scores, in bits, as users of BLAST know them.
var scoreClasses = []struct {
	Below float64
	Words string
}{{40, "below 40"}, {50, "40 to 50"}, {80, "50 to 80"}, {200, "80 to 200"}, {1e300, "200 and more"}}

func scoreClass(bits float64) string {
	for i, c := range scoreClasses {
		if bits < c.Below {
			return "s" + strconv.Itoa(i)
		}
	}
	return "s" + strconv.Itoa(len(scoreClasses)-1)
}

// show sends a page.
func show(w http.ResponseWriter, status int, name string, data any) error {
	var b bytes.Buffer
	if err := pages().ExecuteTemplate(&b, name, data); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error means that the client has gone
	return nil
}

// formPage is the data of the page with the form.
type formPage struct {
	form
	Error    string
	Tasks    any
	Known    []databaseAnswer
	Nucl     []databaseAnswer
	Prot     []databaseAnswer
	Accepted []string // options that may be given
}

func (s *Service) showForm(w http.ResponseWriter, status int, f form, problem string) error {
	list, err := s.databases()
	if err != nil {
		return err
	}
	p := formPage{form: f, Error: problem, Tasks: tasks, Known: list, Accepted: slices.Sorted(maps.Keys(allowed))}
	for _, d := range list {
		if d.Type == database.Prot {
			p.Prot = append(p.Prot, d)
		} else {
			p.Nucl = append(p.Nucl, d)
		}
	}
	if p.Program == "" {
		p.Program = "blastn"
		if len(p.Nucl) == 0 && len(p.Prot) > 0 {
			p.Program = "blastp"
		}
	}
	if len(list) == 1 && len(p.Databases) == 0 {
		p.Databases = []string{list[0].Name}
	}
	return show(w, status, "form.html", p)
}

func (s *Service) getForm(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if id := r.FormValue("edit"); id != "" {
		j, text, err := s.queryOf(user, id)
		if err != nil {
			return err
		}
		return s.showForm(w, http.StatusOK, formOfJob(j, text), "")
	}
	f := formOf(r.URL.Query())
	if len(r.URL.Query()) == 0 {
		f.Values["evalue"], f.Values["max_target_seqs"] = "10", "100"
	}
	return s.showForm(w, http.StatusOK, f, "")
}

// postForm submits a search.
func (s *Service) postForm(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if err := s.readForm(r); err != nil {
		return err
	}
	f := formOf(r.PostForm)
	options, err := f.options()
	var j *job
	if err == nil {
		j, err = s.Submit(user, f.Program, strings.Join(f.Databases, " "), f.Query, options, "json")
	}
	var why *Refusal
	if errors.As(err, &why) {
		s.metrics.refused.WithLabelValues(why.Reason).Inc()
		text := why.Message
		if why.After > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(why.After))
			text += fmt.Sprintf(". Try again in %d s.", why.After)
		}
		return s.showForm(w, why.Status, f, text)
	}
	if err != nil {
		return err
	}
	s.remember(w, r, j.ID)
	w.Header().Set("Location", "search?id="+j.ID) // relative, for proxies
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// readForm reads the form of a request that changes something. A file takes the place of an
// empty query.
func (s *Service) readForm(r *http.Request) error {
	if access.OtherSite(r) {
		return refused(http.StatusForbidden, "site", "a page of another site sent the request")
	}
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		if err := r.ParseForm(); err != nil {
			return unreadable(err)
		}
		return nil
	}
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		return unreadable(err)
	}
	if strings.TrimSpace(r.PostForm.Get("query")) != "" || len(r.MultipartForm.File["file"]) == 0 {
		return nil
	}
	text, err := readPart(r.MultipartForm.File["file"][0])
	r.PostForm.Set("query", string(text))
	return err
}

func readPart(h *multipart.FileHeader) ([]byte, error) {
	f, err := h.Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// remember adds a search to the list in the user's browser, if users are addresses: several may
// share one. With tokens the service knows whose a search is.
func (s *Service) remember(w http.ResponseWriter, r *http.Request, id string) {
	if s.o.Tokens != nil {
		return
	}
	list := append([]string{id}, slices.DeleteFunc(remembered(r), func(other string) bool { return other == id })...)
	http.SetCookie(w, &http.Cookie{
		Name: searchCookie, Value: strings.Join(list[:min(len(list), mostListed)], "."), MaxAge: int(s.o.Keep.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil,
	})
}

func remembered(r *http.Request) []string {
	c, err := r.Cookie(searchCookie)
	if err != nil || c.Value == "" {
		return nil
	}
	list := strings.Split(c.Value, ".")
	return list[:min(len(list), mostListed)]
}

// listed are the searches on the page of a user.
type listed struct {
	Searches []searchAnswer
	Tokens   bool
}

func (s *Service) getList(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	p := listed{Tokens: s.o.Tokens != nil}
	s.mu.Lock()
	if p.Tokens {
		for _, j := range s.jobs {
			if j.User == user {
				p.Searches = append(p.Searches, s.describe(j))
			}
		}
	} else {
		for _, id := range remembered(r) {
			if j := s.jobs[id]; j != nil {
				p.Searches = append(p.Searches, s.describe(j))
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(p.Searches, func(a, b searchAnswer) int { return b.Created.Compare(a.Created) })
	return show(w, http.StatusOK, "searches.html", p)
}

// searchPage is the data of the page of a search.
type searchPage struct {
	searchAnswer
	Titles    []databaseAnswer
	Premix    string
	BLAST     string // its program and version
	Params    []param
	QueryText string
	QueryCut  bool
	Mine      bool
	Shared    bool
	Tokens    bool
	Formats   []string
	TooLarge  string // size of a result that is not shown
	Found     []choice
	Chosen    int
	Query     *found
	Hits      []shownHit
	From, To  int
	Previous  int
	Next      int
	Ticks     []tick
	Classes   any
	Drawn     int
}

// choice is a query that can be chosen.
type choice struct {
	Number int
	Name   string
	Hits   int
}

type param struct{ Name, Value string }

// shownHit is a hit on a page.
type shownHit struct {
	*hit
	Number  int // in the report, from 1
	Cover   string
	Spans   []span
	Shown   []hsp
	Left    int // alignments that are not shown
	Y       int // in the overview
	Line    span
	InDrawn bool
}

// span is a bar in the overview, in percent of its width.
type span struct {
	X, Width string
	Class    string
}

type tick struct{ X, Letters string }

func percent(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "%" }

func (s *Service) getPage(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	id := r.FormValue("id")
	j, res, err := s.result(user, id, "json")
	if err != nil {
		return err
	}
	seconds := r.FormValue("wait")
	if seconds == "" {
		seconds = "1"
	}
	if err := s.await(r, res, seconds); err != nil {
		return err
	}
	b, _, err := s.fetch(r, user, id, "json", "")
	var why *Refusal
	failed := errors.As(err, &why) && why.Reason == "failed"
	if err != nil && !failed {
		return err
	}
	p := searchPage{Premix: s.o.Version, Tokens: s.o.Tokens != nil, Formats: []string{"text", "html", "tabular", "table", "csv", "xml", "json", "sam", "archive"}, Classes: scoreClasses}
	s.mu.Lock()
	p.searchAnswer, p.Mine, p.Shared = s.describe(j), s.owns(j, user), j.shared
	s.mu.Unlock()
	if failed {
		p.State, p.Error = "failed", why.Message
	}
	text, err := s.text(j)
	if err != nil {
		return err
	}
	p.QueryText, p.QueryCut = string(text[:min(len(text), mostQuery)]), len(text) > mostQuery
	list, err := s.databases()
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(j.Database) {
		i := slices.IndexFunc(list, func(d databaseAnswer) bool { return d.Name == name })
		if i < 0 {
			p.Titles = append(p.Titles, databaseAnswer{Name: name})
			continue
		}
		p.Titles = append(p.Titles, list[i])
	}
	switch {
	case failed:
	case b == nil:
		w.Header().Set("Refresh", "1; url=search?id="+url.QueryEscape(id)+"&wait=10")
	case len(b) > mostShown:
		p.TooLarge = units.Size(int64(len(b)))
	default:
		if err := p.fill(b, atLeastOne(r.FormValue("query")), atLeastOne(r.FormValue("from"))); err != nil {
			return err
		}
	}
	if p.State == ready && b == nil {
		p.State = waiting // for the format of the page
	}
	return show(w, http.StatusOK, "search.html", p)
}

func atLeastOne(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return max(1, n)
}

// fill adds the hits of a query to a page, from a given one on.
func (p *searchPage) fill(b []byte, query, from int) error {
	r, err := parseReport(b)
	if err != nil {
		return err
	}
	list := r.BlastOutput2
	if len(list) == 0 {
		return errors.New("a report has no query")
	}
	p.BLAST = list[0].Report.Version
	for _, name := range slices.Sorted(maps.Keys(list[0].Report.Params)) {
		p.Params = append(p.Params, param{name, fmt.Sprint(list[0].Report.Params[name])})
	}
	for i := range list {
		f := &list[i].Report.Results.Search
		p.Found = append(p.Found, choice{i + 1, f.Name(), len(f.Hits)})
	}
	p.Chosen = min(query, len(list))
	q := &list[p.Chosen-1].Report.Results.Search
	p.Query = q
	if from > len(q.Hits) {
		from = 1
	}
	end := min(len(q.Hits), from-1+hitsOfPage)
	p.From, p.To = from, end
	if from > 1 {
		p.Previous = max(1, from-hitsOfPage)
	}
	if end < len(q.Hits) {
		p.Next = end + 1
	}
	length := float64(max(1, q.Length))
	for i := from - 1; i < end; i++ {
		h := &q.Hits[i]
		one := shownHit{hit: h, Number: i + 1, Cover: h.cover(q.Length), Y: 12 * (i - from + 1), InDrawn: i-from+1 < drawn}
		first, last := q.Length, int64(1)
		for k := range h.HSPs {
			a, b := h.HSPs[k].queryRange()
			first, last = min(first, a), max(last, b)
			one.Spans = append(one.Spans, span{percent(100 * float64(a-1) / length), percent(max(0.3, 100*float64(b-a+1)/length)), scoreClass(h.HSPs[k].Bits)})
		}
		one.Line = span{X: percent(100 * float64(first-1) / length), Width: percent(100 * float64(max(0, last-first+1)) / length)}
		one.Shown = h.HSPs[:min(len(h.HSPs), hspsOfHit)]
		one.Left = len(h.HSPs) - len(one.Shown)
		p.Hits = append(p.Hits, one)
	}
	p.Drawn = min(drawn, len(p.Hits))
	p.Ticks = ticks(q.Length)
	return nil
}

// ticks returns up to four places on a query for the overview, at round numbers.
func ticks(length int64) (list []tick) {
	unit := int64(1)
	for unit*10 <= length {
		unit *= 10
	}
	for _, f := range []int64{1, 2, 5} {
		if step := unit * f; length/step <= 4 || f == 5 {
			unit = step
			break
		}
	}
	for at := unit; at < length*95/100; at += unit {
		list = append(list, tick{percent(100 * float64(at) / float64(length)), strconv.FormatInt(at, 10)})
	}
	return list
}

func (s *Service) getQuery(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	j, text, err := s.queryOf(user, r.FormValue("id"))
	if err != nil {
		return err
	}
	attach(w, j.ID+"-query.fa")
	send(w, format{content: "text/plain; charset=utf-8"}, text)
	return nil
}

// attach makes the browser save an answer.
func attach(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
}

// extensions are the extensions of files of results, by format.
var extensions = map[string]string{
	"text": "txt", "html": "html", "tabular": "tsv", "table": "txt", "csv": "csv", "xml": "xml", "xml2_s": "xml", "json": "json", "sam": "sam", "archive": "asn",
}

func (s *Service) getFile(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	name, f, err := formatOf(r.FormValue("format"), "")
	if err != nil {
		return err
	}
	id := r.FormValue("id")
	b, _, err := s.fetch(r, user, id, name, "20")
	if err != nil {
		return err
	}
	if b == nil {
		w.Header().Set("Refresh", "1")
		return show(w, http.StatusOK, "message.html", map[string]any{"Title": "Waiting", "Text": "The result in this format takes a search of its own. It begins to load when it is ready."})
	}
	attach(w, id+"."+extensions[name])
	send(w, f, b)
	return nil
}

// getFASTA sends the sequences of chosen hits.
func (s *Service) getFASTA(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	id := r.FormValue("id")
	b, _, err := s.fetch(r, user, id, "json", "")
	if err != nil {
		return err
	}
	if b == nil {
		return refused(404, "unknown", "the search %q has no result yet", id)
	}
	if len(b) > mostShown {
		return refused(413, "size", "the result is too large for a choice of hits")
	}
	chosen := r.Form["hit"]
	if len(chosen) == 0 {
		return refused(400, "hit", "no hit is chosen: go back and mark some")
	}
	if len(chosen) > hitsOfPage {
		return refused(400, "hit", "at most %d hits can be chosen at once", hitsOfPage)
	}
	report, err := parseReport(b)
	if err != nil {
		return err
	}
	query, list := atLeastOne(r.FormValue("query")), report.BlastOutput2
	if query > len(list) {
		return refused(404, "hit", "there is no query %d", query)
	}
	var ids []string
	hits := list[query-1].Report.Results.Search.Hits
	for _, text := range chosen {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > len(hits) {
			return refused(404, "hit", "there is no hit %q", text)
		}
		ids = append(ids, hits[n-1].ID())
	}
	s.mu.Lock()
	j, err := s.job(user, id)
	opened := ""
	if err == nil && j.results["json"] != nil {
		opened = j.results["json"].opened
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	d, err := s.open(j.Database)
	if err != nil {
		return err
	}
	defer d.Close()
	if openedIDs(d) != opened {
		return refused(http.StatusConflict, "database", "the database has changed since this search: search again")
	}
	select {
	case s.fasta <- struct{}{}:
		defer func() { <-s.fasta }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	var out bytes.Buffer
	limited := &limitedWriter{w: &out, left: mostFASTA}
	if err := search.Sequences(r.Context(), d, ids, limited); err != nil {
		if limited.left < 0 {
			return refused(413, "size", "the sequences have more than %s: choose fewer", units.Size(mostFASTA))
		}
		return err
	}
	attach(w, id+"-hits.fa")
	send(w, format{content: "text/plain; charset=utf-8"}, out.Bytes())
	return nil
}

// limitedWriter fails after a number of bytes.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, errors.New("too many bytes")
	}
	return l.w.Write(b)
}

func (s *Service) postShare(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if err := s.readForm(r); err != nil {
		return err
	}
	id := r.PostForm.Get("id")
	if err := s.share(user, id, r.PostForm.Get("shared") == "yes"); err != nil {
		return err
	}
	w.Header().Set("Location", "search?id="+url.QueryEscape(id))
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

func (s *Service) postDelete(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if err := s.readForm(r); err != nil {
		return err
	}
	if err := s.delete(user, r.PostForm.Get("id")); err != nil {
		return err
	}
	w.Header().Set("Location", "searches")
	w.WriteHeader(http.StatusSeeOther)
	return nil
}
