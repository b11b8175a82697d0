package relay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/watch"
)

// Path is the path of the receiver's interface.
const Path = "/api/v1/receive"

// Headers of a request.
const (
	headerSender = "Premix-Sender"
	headerNode   = "Premix-Node"
	headerFirst  = "Premix-First"
)

// Limits of a request.
const (
	maxBytes  = 2 << 20
	maxFrames = 2000
)

// SendOptions are the receiver and the limits. Zero values are replaced by the defaults
// given here.
type SendOptions struct {
	URL    string // of the receiver's watch: https://monitor:8090
	Token  string
	Node   string
	Client *http.Client
	Every  time.Duration // between requests: 1 s
	Retry  time.Duration // wait after the first failure: 1 s; it doubles up to 30 s
	// Note records events about sending.
	Note func(watch.Event)
}

// SendState is the state of a sender.
type SendState struct {
	To      string    `json:"to"`
	Applied uint64    `json:"applied"` // number of the last frame that the receiver has
	Waiting uint64    `json:"waiting"` // frames in the spool
	Lost    uint64    `json:"lost"`    // frames that were dropped because the spool was full, or could not be written
	Trouble string    `json:"trouble"` // why the last request failed
	Last    time.Time `json:"last"`    // of the last success
}

// Sender sends the frames of a spool.
type Sender struct {
	s    *Spool
	o    SendOptions
	host string

	mu    sync.Mutex
	state SendState
}

// NewSender checks the options.
func NewSender(s *Spool, o SendOptions) (*Sender, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return nil, exit.Errorf(exit.Usage, "write it like http://monitor:8090", "%q is not an address of premix watch", o.URL)
	}
	o.URL = strings.TrimSuffix(o.URL, "/")
	if o.Client == nil {
		// A redirect could lead the token to another host.
		o.Client = &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	o.Every, o.Retry = cmp.Or(o.Every, time.Second), cmp.Or(o.Retry, time.Second)
	return &Sender{s: s, o: o, host: u.Host, state: SendState{To: u.Host}}, nil
}

// State returns the state.
func (r *Sender) State() SendState {
	_, next := r.s.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.state
	state.Waiting = next - 1 - min(state.Applied, next-1)
	return state
}

// Run sends frames until the context ends; then it tries once to send those that wait.
func (r *Sender) Run(ctx context.Context) {
	wait := r.o.Retry
	known := false // whether the receiver has said what it has
	for ctx.Err() == nil {
		sent, err := r.step(ctx, &known)
		r.report(err)
		switch {
		case err != nil:
			known = false
			pause(ctx, wait)
			wait = min(2*wait, 30*time.Second)
		case sent:
			wait = r.o.Retry // more may wait
		default:
			wait = r.o.Retry
			select {
			case <-ctx.Done():
			case <-r.s.more:
				pause(ctx, r.o.Every)
			}
		}
	}
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	for {
		if sent, err := r.step(last, &known); err != nil || !sent {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// step sends one request. It returns false if there was nothing to send.
func (r *Sender) step(ctx context.Context, known *bool) (sent bool, err error) {
	if !*known {
		applied, err := r.post(ctx, 0, nil)
		if err != nil {
			return false, err
		}
		old, renamed, err := r.s.check(applied)
		if err != nil {
			return false, err
		}
		if renamed {
			r.note("send_renamed", "the receiver has data that this machine does not know to have sent: it continues under a new identity")
			applied = old
		}
		*known = true
		r.took(applied)
	}
	r.mu.Lock()
	from := r.state.Applied + 1
	r.mu.Unlock()
	first, count, frames, err := r.s.read(from, maxBytes, maxFrames)
	if err != nil {
		return false, err
	}
	if count == 0 {
		if first > from { // skip a damaged part
			r.took(first - 1)
			return true, nil
		}
		return false, nil
	}
	applied, err := r.post(ctx, first, frames)
	if err != nil {
		return false, err
	}
	if applied < first+count-1 {
		return false, fmt.Errorf("%s has stored %d of %d", r.host, applied, first+count-1)
	}
	r.took(applied)
	return true, nil
}

func (r *Sender) took(applied uint64) {
	r.mu.Lock()
	r.state.Applied = applied
	r.mu.Unlock()
	r.s.forget(applied)
}

// report records the outcome of a request.
func (r *Sender) report(err error) {
	lost, why := r.s.takeLost()
	r.mu.Lock()
	fresh, again := err != nil && r.state.Trouble == "", err == nil && r.state.Trouble != ""
	r.state.Trouble = ""
	if err != nil {
		r.state.Trouble = err.Error()
	} else {
		r.state.Last = time.Now()
	}
	r.state.Lost += lost
	r.mu.Unlock()
	if fresh {
		r.note("send_failed", fmt.Sprintf("%s does not take data: %v", r.host, err))
	}
	if again {
		r.note("send_recovered", r.host+" takes data again")
	}
	switch {
	case lost > 0 && why != nil:
		r.note("send_lost", fmt.Sprintf("%d frames for %s are lost: %v", lost, r.host, why))
	case lost > 0:
		r.note("send_lost", fmt.Sprintf("%d frames for %s are lost: the oldest, because the spool is full", lost, r.host))
	}
}

func (r *Sender) note(kind, text string) {
	if r.o.Note != nil {
		r.o.Note(watch.Event{Time: time.Now(), Node: r.o.Node, Layer: watch.LayerNetwork, Kind: kind, Text: text})
	}
}

// post sends frames, and returns the number of the last frame that the receiver has.
func (r *Sender) post(ctx context.Context, first uint64, frames []byte) (applied uint64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.o.URL+Path, bytes.NewReader(frames))
	if err != nil {
		return 0, err
	}
	id, _ := r.s.state()
	req.Header.Set(headerSender, id)
	req.Header.Set(headerNode, r.o.Node)
	req.Header.Set(headerFirst, strconv.FormatUint(first, 10))
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("User-Agent", "premix-watch")
	if r.o.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.o.Token)
	}
	resp, err := r.o.Client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		var refused struct{ Error string }
		if json.Unmarshal(text, &refused) == nil && refused.Error != "" {
			return 0, fmt.Errorf("it answers %s: %s", resp.Status, refused.Error)
		}
		return 0, fmt.Errorf("it answers %s", resp.Status)
	}
	var answer struct {
		Applied *uint64 `json:"applied"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Applied == nil {
		return 0, errors.New("it is not a premix watch that receives")
	}
	return *answer.Applied, nil
}

// Tee passes data on to several sinks.
type Tee []watch.Sink

// Samples passes samples on.
func (t Tee) Samples(samples []watch.Sample) {
	for _, s := range t {
		s.Samples(samples)
	}
}

// Task passes a task on.
func (t Tee) Task(task watch.Task) {
	for _, s := range t {
		s.Task(task)
	}
}

// Event passes an event on.
func (t Tee) Event(e watch.Event) {
	for _, s := range t {
		s.Event(e)
	}
}
