package web

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/units"
	"premix/internal/watch"
	"premix/internal/watch/alert"
	"premix/internal/watch/explain"
	"premix/internal/watch/relay"
	"premix/internal/watch/series"
)

// maxNames bounds the parameters name= of a request.
const maxNames = 64

// known refuses unknown parameters: a misspelt one would silently change the answer.
func known(r *http.Request, names ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, bad("quote special characters with %", "the address cannot be read: %v", err)
	}
	for k := range q {
		if !slices.Contains(names, k) {
			return nil, bad("known are: "+strings.Join(names, ", "), "unknown parameter %q", k)
		}
	}
	return q, nil
}

// moment reads a time: RFC 3339, or milliseconds since 1970.
func moment(q url.Values, name string, otherwise time.Time) (time.Time, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms >= 0 && ms < 253402300800000 {
		return time.UnixMilli(ms).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() < 1970 {
		return time.Time{}, bad("write it like 2026-11-19T00:00:00Z (a + as %2B), or as milliseconds since 1970", "%s=%s is not a time", name, text)
	}
	return t, nil
}

// window reads start and end; without them, the last hour.
func (s *Server) window(q url.Values) (start, end time.Time, err error) {
	if end, err = moment(q, "end", s.c.Now()); err != nil {
		return
	}
	if start, err = moment(q, "start", end.Add(-time.Hour)); err != nil {
		return
	}
	if !start.Before(end) {
		return start, end, bad("choose a start before the end", "start %s is not before end %s", rfc(start), rfc(end))
	}
	if end.Sub(start) > s.c.Limits.Window {
		return start, end, bad("ask for a shorter time", "the time from start to end is %.0f days, and the limit is %.0f", end.Sub(start).Hours()/24, s.c.Limits.Window.Hours()/24)
	}
	return start, end, nil
}

func rfc(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// step parses a number of seconds or a duration (5m). It returns 0 if there is none.
func step(q url.Values) (time.Duration, error) {
	text := q.Get("step")
	if text == "" {
		return 0, nil
	}
	d, err := units.ParseDuration(text)
	if f, ferr := strconv.ParseFloat(text, 64); ferr == nil && f < 1e9 {
		d, err = time.Duration(math.Round(f*1000))*time.Millisecond, nil
	}
	if err != nil || d < time.Millisecond || d%time.Millisecond != 0 {
		return 0, bad("write it as seconds (60) or with a unit (1m); the least is 0.001", "step=%s is not a step", text)
	}
	return d, nil
}

// match parses key=value pairs.
func match(q url.Values) ([]watch.Label, error) {
	var labels []watch.Label
	for _, m := range q["match"] {
		k, v, ok := strings.Cut(m, "=")
		if !ok || k == "" {
			return nil, bad("write it like match=device=sda", "match=%s is not a label and its value", m)
		}
		labels = append(labels, watch.Label{Key: k, Value: v})
	}
	return labels, nil
}

func (s *Server) getSeries(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "name", "start", "end", "step", "match")
	if err != nil {
		return err
	}
	names := slices.Compact(slices.Sorted(slices.Values(q["name"])))
	if len(names) == 0 || names[0] == "" {
		return bad("/api/v1/names lists the names; a * at the end matches every continuation", "a name is missing")
	}
	if len(names) > maxNames {
		return bad("ask for fewer", "%d names, and the limit is %d", len(names), maxNames)
	}
	start, end, err := s.window(q)
	if err != nil {
		return err
	}
	by, err := step(q)
	if err != nil {
		return err
	}
	labels, err := match(q)
	if err != nil {
		return err
	}
	if by == 0 {
		by = series.AutoStep(end.Sub(start))
	}
	ctx, done, err := s.heavy(r)
	if err != nil {
		return err
	}
	defer done()
	b := []byte(`{"start":"` + rfc(start) + `","end":"` + rfc(end) + `","step":`)
	b = appendNumber(b, by.Seconds())
	b = append(b, `,"series":[`...)
	left, comma := s.c.Limits.Points, false
	told := make(map[string]bool) // names may overlap: disk.* and disk.read_bytes
	for _, name := range names {
		if left <= 0 {
			return &series.TooManyError{Limit: s.c.Limits.Points}
		}
		results, err := s.c.DB.Query(ctx, series.Query{Name: name, Match: labels, Start: start, End: end, Step: by, MaxPoints: left})
		if err != nil {
			return err
		}
		for _, one := range results {
			id := one.ID.String()
			if told[id] {
				continue
			}
			told[id] = true
			left -= len(one.Points)
			if comma {
				b = append(b, ',')
			}
			comma = true
			if b, err = appendSeries(b, one); err != nil {
				return err
			}
		}
	}
	return writeJSON(w, r, append(b, "]}\n"...))
}

// about describes a series in answers.
type about struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	Unit   watch.Unit        `json:"unit"`
	Layer  watch.Layer       `json:"layer"`
}

func aboutOf(id watch.ID, unit watch.Unit) about {
	return about{id.Name, labelMap(id.Labels), unit, id.Layer()}
}

func labelMap(labels []watch.Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Key] = l.Value
	}
	return m
}

// appendSeries appends {"name", ..., "points": [[ms, min, mean, max], ...]}.
func appendSeries(b []byte, r series.Result) ([]byte, error) {
	head, err := json.Marshal(aboutOf(r.ID, r.Unit))
	if err != nil {
		return nil, err
	}
	b = append(b, head[:len(head)-1]...)
	b = append(b, `,"points":[`...)
	for i, p := range r.Points {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = strconv.AppendInt(b, p.Time.UnixMilli(), 10)
		for _, v := range [...]float64{p.Min, p.Mean, p.Max} {
			b = append(b, ',')
			b = appendNumber(b, v)
		}
		b = append(b, ']')
	}
	return append(b, "]}"...), nil
}

// appendNumber appends a finite number as JSON.
func appendNumber(b []byte, v float64) []byte {
	if a := math.Abs(v); a == 0 || a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	return strconv.AppendFloat(b, v, 'e', -1, 64)
}

func (s *Server) getNames(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "start", "end")
	if err != nil {
		return err
	}
	start, err := moment(q, "start", time.UnixMilli(0))
	if err != nil {
		return err
	}
	end, err := moment(q, "end", time.UnixMilli(253402300799999))
	if err != nil {
		return err
	}
	ctx, done, err := s.heavy(r)
	if err != nil {
		return err
	}
	defer done()
	infos, err := s.c.DB.NamesBetween(ctx, start, end)
	if err != nil {
		return err
	}
	type named struct {
		about
		First string `json:"first"`
		Last  string `json:"last"`
	}
	all := make([]named, 0, len(infos))
	for _, i := range infos {
		all = append(all, named{aboutOf(i.ID, i.Unit), rfc(i.First), rfc(i.Last)})
	}
	return marshalJSON(w, r, map[string]any{"series": all})
}

// tasksAsked is the highest number of tasks in an answer to a request without a limit.
const tasksAsked = 5000

// maxWords bounds the words of search=.
const maxWords = 16

func (s *Server) taskQuery(q url.Values) (t series.TaskQuery, err error) {
	if t.Start, t.End, err = s.window(q); err != nil {
		return t, err
	}
	t.User, t.Run, t.Step, t.Engine = q.Get("user"), q.Get("run"), q.Get("step"), q.Get("engine")
	states := []series.TaskState{"", series.TaskRunning, series.TaskSucceeded, series.TaskFailed}
	if t.State = series.TaskState(q.Get("state")); !slices.Contains(states, t.State) {
		return t, bad("it is running, succeeded or failed", "unknown state=%s", t.State)
	}
	if t.Words = strings.Fields(q.Get("search")); len(t.Words) > maxWords {
		return t, bad("give fewer", "search= has %d words, and the limit is %d", len(t.Words), maxWords)
	}
	switch by := q.Get("by"); by {
	case "", "length":
	case "waited":
		t.Waited = true
	default:
		return t, bad("it is length or waited", "unknown by=%s", by)
	}
	return t, nil
}

func (s *Server) getTasks(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "start", "end", "user", "run", "step", "engine", "state", "search", "by", "limit")
	if err != nil {
		return err
	}
	t, err := s.taskQuery(q)
	if err != nil {
		return err
	}
	limit := min(tasksAsked, s.c.Limits.Tasks)
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > s.c.Limits.Tasks {
			return bad("leave it out, or give a number", "limit=%s is not from 1 to %d", text, s.c.Limits.Tasks)
		}
	}
	ctx, done, err := s.heavy(r)
	if err != nil {
		return err
	}
	defer done()
	t.Limit = limit + 1 // one more, to find out whether there are more
	tasks, err := s.c.DB.Tasks(ctx, t)
	if err != nil {
		return err
	}
	truncated := len(tasks) > limit
	count := len(tasks)
	if truncated {
		t.Limit = limit
		tasks = shortest(tasks, t)
		count, t.Fields = 0, series.TaskEnd
		if err := s.c.DB.EachTask(ctx, t, func(watch.Task) { count++ }); err != nil {
			return err
		}
	}
	if tasks == nil {
		tasks = []watch.Task{}
	}
	return marshalJSON(w, r, map[string]any{"tasks": tasks, "truncated": truncated, "count": count})
}

// shortest returns the tasks without the one that the limit leaves out.
func shortest(tasks []watch.Task, q series.TaskQuery) []watch.Task {
	least := 0
	for i := range tasks {
		if q.Shorter(&tasks[i], &tasks[least]) {
			least = i
		}
	}
	return slices.Delete(tasks, least, least+1)
}

func (s *Server) getEvents(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "start", "end")
	if err != nil {
		return err
	}
	start, end, err := s.window(q)
	if err != nil {
		return err
	}
	ctx, done, err := s.heavy(r)
	if err != nil {
		return err
	}
	defer done()
	events, err := s.c.DB.Events(ctx, start, end)
	if err != nil {
		return err
	}
	if events == nil {
		events = []watch.Event{}
	}
	return marshalJSON(w, r, map[string]any{"events": events})
}

func (s *Server) getAlerts(w http.ResponseWriter, r *http.Request) error {
	if _, err := known(r); err != nil {
		return err
	}
	a := alert.Answer{Alerts: []*alert.Alert{}, Ended: []*alert.Alert{}, Waiting: map[string]int{}, Receivers: map[string]string{}}
	if s.c.Alerts != nil {
		a = s.c.Alerts()
	}
	return marshalJSON(w, r, a)
}

func (s *Server) getExplain(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "start", "end", "without")
	if err != nil {
		return err
	}
	start, end, err := s.window(q)
	if err != nil {
		return err
	}
	options, err := without(q["without"])
	if err != nil {
		return err
	}
	ctx, done, err := s.heavy(r)
	if err != nil {
		return err
	}
	defer done()
	report, err := explain.Explain(ctx, s.c.DB, explain.Window{Start: start, End: end}, options)
	var short *explain.WindowError
	if errors.As(err, &short) {
		return &problem{http.StatusBadRequest, short.Error(), short.Hint()}
	}
	if err != nil {
		return err
	}
	return marshalJSON(w, r, report)
}

// maxWithout bounds the parameters without= of a request.
const maxWithout = 64

// without parses what the caller excludes: series, which are not compared, or times as
// START/END, which the baseline leaves out.
func without(texts []string) (explain.Options, error) {
	var o explain.Options
	if len(texts) > maxWithout {
		return o, bad("leave out fewer, or a whole name with a * at its end", "%d without=, and the limit is %d", len(texts), maxWithout)
	}
	var list []selector
	for _, text := range texts {
		if from, to, ok := strings.Cut(text, "/"); ok && !strings.Contains(from, "{") {
			times := url.Values{"start": {from}, "end": {to}}
			begin, err := moment(times, "start", time.Time{})
			end, eerr := moment(times, "end", time.Time{})
			if err != nil || eerr != nil || !begin.Before(end) {
				return o, bad("write it like 2026-11-19T00:00:00Z/2026-11-19T00:10:00Z", "without=%s is not a time START/END with the start first", text)
			}
			o.Without = append(o.Without, explain.Window{Start: begin, End: end})
			continue
		}
		one, ok := parseSelector(text)
		if !ok {
			return o, bad(`write it like disk.busy, disk.* or disk.busy{device="sda"}`, "without=%s is not a series", text)
		}
		list = append(list, one)
	}
	if len(list) > 0 {
		o.Except = func(id watch.ID) bool {
			return slices.ContainsFunc(list, func(s selector) bool { return s.picks(id) })
		}
	}
	return o, nil
}

// selector selects series by name or prefix, and by labels.
type selector struct {
	name   string // without the * at its end
	many   bool   // it had the *
	labels []watch.Label
}

func (s selector) picks(id watch.ID) bool {
	if s.many && !strings.HasPrefix(id.Name, s.name) || !s.many && id.Name != s.name {
		return false
	}
	return !slices.ContainsFunc(s.labels, func(l watch.Label) bool { return id.Label(l.Key) != l.Value })
}

// parseSelector parses a name, or a series in the form of [watch.ID.String]; the labels may
// be missing.
func parseSelector(text string) (s selector, ok bool) {
	name, rest, labelled := strings.Cut(text, "{")
	s.name, s.many = strings.CutSuffix(name, "*")
	if name == "" || strings.ContainsAny(s.name, `*"=,} `) {
		return s, false
	}
	for first := true; labelled && rest != "}"; first = false {
		if !first {
			if rest, ok = strings.CutPrefix(rest, ","); !ok {
				return s, false
			}
		}
		key, value, _ := strings.Cut(rest, "=")
		quoted, err := strconv.QuotedPrefix(value)
		if key == "" || err != nil || quoted[0] != '"' {
			return s, false
		}
		l := watch.Label{Key: key}
		if l.Value, err = strconv.Unquote(quoted); err != nil {
			return s, false
		}
		s.labels, rest = append(s.labels, l), value[len(quoted):]
	}
	return s, true
}

func (s *Server) getStatus(w http.ResponseWriter, r *http.Request) error {
	if _, err := known(r); err != nil {
		return err
	}
	st := s.c.DB.Stats()
	status := struct {
		Node       string            `json:"node"`
		Version    string            `json:"version"`
		Since      *time.Time        `json:"since"`
		Series     int               `json:"series"`
		Points     int64             `json:"points"`
		Bytes      int64             `json:"bytes"`
		Refused    int64             `json:"refused"`
		Lost       int64             `json:"lost"`
		Trouble    string            `json:"trouble"`
		Collectors []CollectorStatus `json:"collectors"`
		Sending    *relay.SendState  `json:"sending"` // null: nothing is sent
		Origins    []relay.Origin    `json:"origins"` // machines that send
	}{s.c.Node, s.c.Version, nil, st.Series, st.Samples, st.Bytes, st.Refused, st.Lost, st.Trouble, []CollectorStatus{}, nil, []relay.Origin{}}
	if s.c.Sending != nil {
		state := s.c.Sending()
		status.Sending = &state
	}
	if s.c.Receive != nil {
		status.Origins = s.c.Receive.From.Origins()
	}
	if !st.Since.IsZero() {
		status.Since = &st.Since
	}
	if s.c.Status != nil {
		status.Collectors = append(status.Collectors, s.c.Status()...)
	}
	return marshalJSON(w, r, status)
}
