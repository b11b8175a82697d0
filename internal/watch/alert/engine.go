package alert

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/units"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// Source is the part of a *series.DB that an engine needs.
type Source interface {
	Latest(since time.Time) []watch.Sample
	Query(ctx context.Context, q series.Query) ([]series.Result, error)
	NamesBetween(ctx context.Context, start, end time.Time) ([]series.Info, error)
	Event(e watch.Event)
}

// State is the state of an alert.
type State string

// The states.
const (
	Pending  State = "pending"  // the condition holds, and not yet for the rule's time
	Firing   State = "firing"   //
	Resolved State = "resolved" // the condition has ended
)

// Alert is a rule and one series of which its condition holds, or held until Ended.
type Alert struct {
	ID       string            `json:"id"` // the same for the same rule and series
	Rule     string            `json:"rule"`
	Severity string            `json:"severity"`
	Series   string            `json:"series"`
	Name     string            `json:"name"` // of the series, without labels
	Labels   map[string]string `json:"labels"`
	State    State             `json:"state"`
	Since    time.Time         `json:"since"` // when the condition began to hold
	Fired    time.Time         `json:"fired"` // zero while pending
	Ended    time.Time         `json:"ended"` // zero while the condition holds
	Value    float64           `json:"value"` // the newest; for absence, the seconds since the last sample
	Text     string            `json:"text"`
}

// Limits.
const (
	mostAlerts  = 10_000          // at a time; more are counted
	mostEnded   = 100             // ended alerts that are kept for the page
	mostWaiting = 1000            // messages for one receiver
	mostInOne   = 100             // alerts in one message
	askAtMost   = 1_000_000       // points of a prediction
	askFor      = 5 * time.Second // duration of the query of a prediction
)

// Options configure an engine.
type Options struct {
	Rules *Rules
	From  Source
	Node  string // name of this machine, for events
	Dir   string // where the state is kept; it is created
	Send  func(ctx context.Context, r *Receiver, m *Message) error
	Now   func() time.Time // time.Now
	// Retry is the wait after a receiver failed: 5 s. It doubles with each further failure,
	// up to five minutes.
	Retry time.Duration
}

// Engine evaluates rules and sends messages.
type Engine struct {
	o      Options
	more   map[string]chan struct{} // by receiver: it has a message
	began  time.Time
	saving sync.Mutex

	mu      sync.Mutex // guards the rest
	state   state
	seen    map[string]*sighting // series of rules about absence
	trouble string               // why the last evaluation was incomplete
	dropped int64                // alerts beyond mostAlerts
	sending map[string]string    // by receiver: why the last message was not accepted
}

// state is the content of the file state.json.
type state struct {
	Alerts  map[string]*Alert     `json:"alerts"` // by ID
	Ended   []*Alert              `json:"ended"`  // oldest first
	Waiting map[string][]*Message `json:"waiting"`
	Number  int64                 `json:"number"` // of messages so far
}

// sighting is the last sample of a series.
type sighting struct {
	id   watch.ID
	last time.Time
}

// New returns an engine with the state that the last one left.
func New(ctx context.Context, o Options) (*Engine, error) {
	o.Now = orNow(o.Now)
	o.Retry = cmp.Or(o.Retry, 5*time.Second)
	if o.Send == nil {
		o.Send = (&Sender{}).Send
	}
	e := &Engine{o: o, began: o.Now(), seen: make(map[string]*sighting), more: make(map[string]chan struct{}), sending: make(map[string]string)}
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(e.file())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(text, &e.state); err != nil {
			// Without the state an alert that fires is sent again, which is better than
			// no alerts at all.
			e.note("alerts_forgotten", fmt.Sprintf("The state of alerts cannot be read (%v): alerts that fire are sent again.", err))
			e.state = state{}
		}
	}
	if e.state.Alerts == nil {
		e.state.Alerts = make(map[string]*Alert)
	}
	if e.state.Waiting == nil {
		e.state.Waiting = make(map[string][]*Message)
	}
	for id, a := range e.state.Alerts {
		if a.State == Pending {
			delete(e.state.Alerts, id) // whether the condition held all the time is not known
		}
	}
	for _, r := range o.Rules.Receivers {
		e.more[r.Name] = make(chan struct{}, 1)
	}
	for name := range e.state.Waiting {
		if e.more[name] == nil {
			delete(e.state.Waiting, name) // the receiver is not in the file any more
		}
	}
	return e, e.remember(ctx)
}

func orNow(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}

func (e *Engine) file() string { return filepath.Join(e.o.Dir, "state.json") }

// remember finds the series that rules about absence expect.
func (e *Engine) remember(ctx context.Context) error {
	longest := time.Duration(0)
	for _, r := range e.o.Rules.Rules {
		if r.Kind == Absence {
			longest = max(longest, r.Forget)
		}
	}
	if longest == 0 {
		return nil
	}
	now := e.o.Now()
	infos, err := e.o.From.NamesBetween(ctx, now.Add(-longest), now)
	if err != nil {
		return err
	}
	last := make([]watch.Sample, len(infos))
	for n, i := range infos {
		last[n] = watch.Sample{ID: i.ID, Time: i.Last}
	}
	e.look(last)
	return nil
}

// look notes the last samples of series that rules about absence select.
func (e *Engine) look(latest []watch.Sample) {
	var rules []*Rule
	for _, r := range e.o.Rules.Rules {
		if r.Kind == Absence {
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range latest {
		if !slices.ContainsFunc(rules, func(r *Rule) bool { return r.picks(s.ID) }) {
			continue
		}
		key := s.ID.String()
		if g := e.seen[key]; g == nil {
			e.seen[key] = &sighting{s.ID, s.Time}
		} else if s.Time.After(g.last) {
			g.last = s.Time
		}
	}
}

// Run evaluates the rules and sends messages until the context ends.
func (e *Engine) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, r := range e.o.Rules.Receivers {
		all.Go(func() { e.deliver(ctx, r) })
		e.wake(r.Name)
	}
	for ticks := time.NewTicker(e.o.Rules.Every); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			ticks.Stop()
		case <-ticks.C:
			e.Evaluate(ctx)
		}
	}
	all.Wait()
}

// holds is a condition that holds.
type holds struct {
	rule  *Rule
	id    watch.ID
	value float64
	text  string
}

// Evaluate evaluates all rules once.
func (e *Engine) Evaluate(ctx context.Context) {
	now := e.o.Now()
	var found []holds
	latest := e.o.From.Latest(now.Add(-e.o.Rules.Stale))
	e.look(latest)
	var failed error
	unknown := make(map[string]bool) // rules that could not be evaluated: their alerts stay
	stay := e.starting(now, latest)
	for _, r := range e.o.Rules.Rules {
		var err error
		switch r.Kind {
		case Threshold:
			found = append(found, threshold(r, latest)...)
		case Absence:
			found = append(found, e.absence(r, now, stay)...)
		case Prediction:
			var list []holds
			list, err = e.prediction(ctx, r, now)
			found = append(found, list...)
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			failed = errors.Join(failed, fmt.Errorf("rule %s: %w", r.Name, err))
			unknown[r.Name] = true
		}
	}
	if e.apply(now, found, func(a *Alert) bool { return unknown[a.Rule] || stay[a.ID] }, failed) {
		e.save()
	}
}

// starting returns the IDs of alerts that are not to end yet: soon after the start, series
// that are sampled seldom have no new sample.
func (e *Engine) starting(now time.Time, latest []watch.Sample) map[string]bool {
	stay := make(map[string]bool)
	if now.Sub(e.began) >= e.o.Rules.Stale {
		return stay
	}
	there := make(map[string]bool, len(latest))
	for _, s := range latest {
		there[s.ID.String()] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, a := range e.state.Alerts {
		stay[id] = !there[a.Series]
	}
	return stay
}

func threshold(r *Rule, latest []watch.Sample) []holds {
	var list []holds
	var of map[string]float64
	if r.Of != "" {
		of = make(map[string]float64)
		for _, s := range latest {
			if s.ID.Name == r.Of {
				of[labelsOf(s.ID)] = s.Value
			}
		}
	}
	for _, s := range latest {
		if !r.picks(s.ID) {
			continue
		}
		v, unit := s.Value, s.Unit
		if r.Of != "" {
			whole, ok := of[labelsOf(s.ID)]
			if !ok || whole == 0 {
				continue
			}
			v, unit = v/whole, watch.Ratio
		}
		if r.Above && v > r.Bound || !r.Above && v < r.Bound {
			name := s.ID.Name
			if r.Of != "" {
				name += " / " + r.Of
			}
			list = append(list, holds{r, s.ID, v, fmt.Sprintf("%s is %s, %s %s", name, valueText(v, unit), map[bool]string{true: "above", false: "below"}[r.Above], valueText(r.Bound, unit))})
		}
	}
	return list
}

func labelsOf(id watch.ID) string { return watch.ID{Labels: id.Labels}.String() }

// absence returns the series without a sample. No series is missed for the time in which
// premix itself did not run: it adds the IDs of alerts that this concerns to stay.
func (e *Engine) absence(r *Rule, now time.Time, stay map[string]bool) []holds {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []holds
	for _, g := range e.seen {
		missing := now.Sub(g.last)
		if missing > r.Absent && missing <= r.Forget && r.picks(g.id) {
			if now.Sub(e.began) <= r.Absent && g.last.Before(e.began) {
				stay[idOf(r.Name, g.id.String())] = true
				continue
			}
			list = append(list, holds{r, g.id, missing.Seconds(), g.id.Name + " has had no sample since " + g.last.UTC().Format(time.RFC3339)})
		}
	}
	return list
}

// prediction fits a line by least squares through the means of a sixtieth of the time each.
// Without values over at least half of the time there is no prediction.
func (e *Engine) prediction(ctx context.Context, r *Rule, now time.Time) ([]holds, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	name := string(r.Series)
	if i := strings.IndexByte(name, '*'); i >= 0 {
		name = name[:i+1]
	}
	q := series.Query{Name: name, Start: now.Add(-r.Over), End: now, Step: max((r.Over / 60).Truncate(time.Second), time.Second), MaxPoints: askAtMost}
	for _, m := range r.Match {
		if !strings.Contains(string(m.value), "*") {
			q.Match = append(q.Match, watch.Label{Key: m.key, Value: string(m.value)})
		}
	}
	results, err := e.o.From.Query(ctx, q)
	if err != nil {
		return nil, err
	}
	var list []holds
	for _, s := range results {
		if !r.picks(s.ID) || len(s.Points) == 0 {
			continue
		}
		first, last := s.Points[0], s.Points[len(s.Points)-1]
		if len(s.Points) < 10 || last.Time.Sub(first.Time) < r.Over/2 || now.Sub(last.Time) > e.o.Rules.Stale {
			continue
		}
		level, slope := line(s.Points, now)
		falls := last.Mean >= r.Bound
		then := level + slope*r.Within.Seconds()
		if falls && then > r.Bound || !falls && then < r.Bound {
			continue
		}
		left := max((r.Bound-level)/slope, 0)
		if slope == 0 {
			left = 0 // it is at the bound
		}
		list = append(list, holds{r, s.ID, last.Mean, fmt.Sprintf("%s is %s, and reaches %s in %s by the line of the last %s",
			s.ID.Name, valueText(last.Mean, s.Unit), valueText(r.Bound, s.Unit), units.Seconds(left), spanText(r.Over))})
	}
	return list, nil
}

// line returns the value at a time, and the change a second, of the line of least squares.
func line(points []series.Point, at time.Time) (level, slope float64) {
	var n, x, y, xx, xy float64
	for _, p := range points {
		t := p.Time.Sub(at).Seconds()
		n, x, y, xx, xy = n+1, x+t, y+p.Mean, xx+t*t, xy+t*p.Mean
	}
	d := n*xx - x*x
	if d == 0 {
		return y / n, 0
	}
	slope = (n*xy - x*y) / d
	return (y - slope*x) / n, slope
}

// valueText prints a value with its unit.
func valueText(v float64, unit watch.Unit) string {
	switch unit {
	case watch.Bytes:
		return units.Size(int64(v))
	case watch.BytesPerSecond:
		return units.Size(int64(v)) + "/s"
	case watch.Seconds:
		return units.Seconds(v)
	case watch.Ratio:
		return fmt.Sprintf("%.4g %%", 100*v)
	case watch.PerSecond:
		return fmt.Sprintf("%.4g/s", v)
	case watch.Cores, watch.Watts, watch.Celsius:
		return fmt.Sprintf("%.4g %s", v, unit)
	}
	return fmt.Sprintf("%.4g", v)
}

// idOf returns the ID of the alert of a rule and a series.
func idOf(rule, series string) string {
	sum := sha256.Sum256([]byte(rule + "\x00" + series))
	return hex.EncodeToString(sum[:8])
}

// apply changes the state of alerts, and queues messages. It reports whether there is
// something to save.
func (e *Engine) apply(now time.Time, found []holds, stays func(*Alert) bool, failed error) bool {
	e.mu.Lock()
	trouble := ""
	if failed != nil {
		trouble = failed.Error()
	}
	fresh := trouble != "" && e.trouble == ""
	e.trouble = trouble
	changed := false
	holding := make(map[string]bool, len(found))
	var changes []*Alert
	e.dropped = 0
	for _, h := range found {
		key := h.id.String()
		id := idOf(h.rule.Name, key)
		holding[id] = true
		a := e.state.Alerts[id]
		if a == nil {
			if len(e.state.Alerts) >= mostAlerts {
				e.dropped++
				continue
			}
			a = &Alert{ID: id, Rule: h.rule.Name, Series: key, Name: h.id.Name, Labels: make(map[string]string), State: Pending, Since: now}
			for _, l := range h.id.Labels {
				a.Labels[l.Key] = l.Value
			}
			e.state.Alerts[id] = a
			changed = true
		}
		a.Severity, a.Value, a.Text = h.rule.Severity, h.value, h.text
		if math.IsNaN(a.Value) || math.IsInf(a.Value, 0) {
			a.Value = 0 // JSON has no other numbers
		}
		if h.rule.Text != "" {
			a.Text = h.rule.Text + ": " + h.text
		}
		if a.State == Pending && now.Sub(a.Since) >= h.rule.For {
			a.State, a.Fired = Firing, now
			changes = append(changes, copyOf(a))
			changed = true
		}
	}
	for id, a := range e.state.Alerts {
		if holding[id] || stays(a) {
			continue
		}
		delete(e.state.Alerts, id)
		changed = true
		if a.State != Firing {
			continue
		}
		a.State, a.Ended = Resolved, now
		changes = append(changes, copyOf(a))
		e.state.Ended = append(e.state.Ended, a)
		if n := len(e.state.Ended) - mostEnded; n > 0 {
			e.state.Ended = slices.Delete(e.state.Ended, 0, n)
		}
	}
	slices.SortFunc(changes, func(a, b *Alert) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Series, b.Series))
	})
	lost := e.queue(now, changes)
	e.mu.Unlock()
	if fresh {
		e.note("alerts_failed", "Some rules cannot be evaluated: "+trouble+".")
	}
	for name, n := range lost {
		e.note("alerts_dropped", fmt.Sprintf("Receiver %s does not take messages: the oldest %d of more than %d were dropped.", name, n, mostWaiting))
	}
	for i, a := range changes {
		if i == mostInOne {
			e.note("alert", fmt.Sprintf("%d more alerts fired or ended.", len(changes)-i))
			break
		}
		kind, verb := "alert_fires", "fires"
		if a.State == Resolved {
			kind, verb = "alert_ended", "has ended"
		}
		e.o.From.Event(watch.Event{Time: now, Node: cmp.Or(a.Labels["node"], e.o.Node), Layer: layerOf(a.Name), Kind: kind,
			Text: fmt.Sprintf("Alert %s %s for %s: %s.", a.Rule, verb, a.Series, a.Text)})
	}
	return changed
}

func layerOf(name string) watch.Layer { return watch.ID{Name: name}.Layer() }

func copyOf(a *Alert) *Alert {
	c := *a
	return &c
}

// queue adds messages with the changes for each receiver. It returns the number of messages
// that had to be dropped. The caller holds mu.
func (e *Engine) queue(now time.Time, changes []*Alert) (lost map[string]int) {
	lost = make(map[string]int)
	for _, r := range e.o.Rules.Receivers {
		var mine []*Alert
		for _, a := range changes {
			if e.addressed(a, r) {
				mine = append(mine, a)
			}
		}
		for part := range slices.Chunk(mine, mostInOne) {
			e.state.Number++
			m := &Message{ID: fmt.Sprintf("%d-%s", e.state.Number, idOf(r.Name, now.Format(time.RFC3339Nano))), Node: e.o.Node, Time: now, Receiver: r.Name, Alerts: part}
			e.state.Waiting[r.Name] = append(e.state.Waiting[r.Name], m)
		}
		if n := len(e.state.Waiting[r.Name]) - mostWaiting; n > 0 {
			e.state.Waiting[r.Name] = slices.Delete(e.state.Waiting[r.Name], 0, n)
			lost[r.Name] = n
		}
		if len(mine) > 0 {
			e.wake(r.Name)
		}
	}
	return lost
}

// addressed reports whether a receiver gets an alert. An alert whose rule is not in the file
// any more goes to all receivers, since they may know of it.
func (e *Engine) addressed(a *Alert, to *Receiver) bool {
	for _, r := range e.o.Rules.Rules {
		if r.Name == a.Rule {
			return slices.Contains(r.To, to.Name)
		}
	}
	return true
}

func (e *Engine) wake(receiver string) {
	select {
	case e.more[receiver] <- struct{}{}:
	default:
	}
}

func (e *Engine) note(kind, text string) {
	e.o.From.Event(watch.Event{Time: e.o.Now(), Node: e.o.Node, Layer: watch.LayerNode, Kind: kind, Text: text})
}

// save writes the state. If the disk cannot be written, messages are sent all the same.
func (e *Engine) save() {
	e.saving.Lock()
	defer e.saving.Unlock()
	e.mu.Lock()
	text, err := json.Marshal(&e.state)
	e.mu.Unlock()
	if err == nil {
		err = beneath.Replace(e.file(), 0o640, beneath.Durable, text)
	}
	if err != nil {
		e.mu.Lock()
		fresh := e.trouble == ""
		e.trouble = err.Error()
		e.mu.Unlock()
		if fresh {
			e.note("alerts_failed", fmt.Sprintf("The state of alerts cannot be written: %v.", err))
		}
	}
}

// longestRetry bounds the wait between two tries to send a message.
const longestRetry = 5 * time.Minute

// deliver sends the messages of one receiver in their order.
func (e *Engine) deliver(ctx context.Context, r *Receiver) {
	wait := e.o.Retry
	for {
		e.mu.Lock()
		var m *Message
		if list := e.state.Waiting[r.Name]; len(list) > 0 {
			m = list[0]
		}
		e.mu.Unlock()
		if m == nil {
			select {
			case <-ctx.Done():
				return
			case <-e.more[r.Name]:
			}
			continue
		}
		err := e.o.Send(ctx, r, m)
		if ctx.Err() != nil && err != nil {
			return
		}
		var final *RefusedError
		refused := errors.As(err, &final)
		e.mu.Lock()
		fresh := err != nil && e.sending[r.Name] == ""
		again := err == nil && e.sending[r.Name] != ""
		delete(e.sending, r.Name)
		if err != nil {
			e.sending[r.Name] = err.Error()
		}
		if list := e.state.Waiting[r.Name]; (err == nil || refused) && len(list) > 0 && list[0] == m {
			e.state.Waiting[r.Name] = list[1:]
		}
		e.mu.Unlock()
		switch {
		case refused:
			e.note("alert_refused", fmt.Sprintf("Receiver %s refuses a message: %v.", r.Name, err))
		case fresh:
			e.note("alert_not_sent", fmt.Sprintf("Receiver %s does not take a message: %v. premix tries again.", r.Name, err))
		case again:
			e.note("alert_sent", fmt.Sprintf("Receiver %s takes messages again.", r.Name))
		}
		if err == nil || refused {
			wait = e.o.Retry
			e.save()
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		wait = min(2*wait, longestRetry)
	}
}

// Answer is the state of all alerts.
type Answer struct {
	Rules     int               `json:"rules"`
	Firing    int               `json:"firing"`
	Pending   int               `json:"pending"`
	Dropped   int64             `json:"dropped"` // alerts beyond the limit
	Alerts    []*Alert          `json:"alerts"`  // firing first, then pending; newest first
	Ended     []*Alert          `json:"ended"`   // newest first
	Waiting   map[string]int    `json:"waiting"` // messages by receiver
	Trouble   string            `json:"trouble"` // why rules are not evaluated
	Receivers map[string]string `json:"receivers"`
}

// mostAnswered is the number of alerts in an answer.
const mostAnswered = 200

// Answer returns the state of all alerts.
func (e *Engine) Answer() Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := Answer{Rules: len(e.o.Rules.Rules), Dropped: e.dropped, Alerts: []*Alert{}, Ended: []*Alert{}, Waiting: make(map[string]int), Trouble: e.trouble, Receivers: make(map[string]string)}
	for _, one := range e.state.Alerts {
		if one.State == Firing {
			a.Firing++
		} else {
			a.Pending++
		}
		a.Alerts = append(a.Alerts, copyOf(one))
	}
	slices.SortFunc(a.Alerts, func(x, y *Alert) int {
		return cmp.Or(cmp.Compare(x.State, y.State), y.Since.Compare(x.Since), cmp.Compare(x.ID, y.ID))
	})
	a.Alerts = a.Alerts[:min(len(a.Alerts), mostAnswered)]
	for i := len(e.state.Ended) - 1; i >= 0; i-- {
		a.Ended = append(a.Ended, copyOf(e.state.Ended[i]))
	}
	for _, r := range e.o.Rules.Receivers {
		a.Waiting[r.Name], a.Receivers[r.Name] = len(e.state.Waiting[r.Name]), e.sending[r.Name]
	}
	return a
}
