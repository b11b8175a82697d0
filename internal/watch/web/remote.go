package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"premix/internal/kit/exit"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// RemoteOptions are the receiver of samples and the limits. Zero values are replaced by the
// defaults given here.
type RemoteOptions struct {
	URL    string
	Token  string // sent as Bearer; "" for none
	Client *http.Client
	Batch  int           // highest number of samples in a request: 2,000
	Queue  int           // highest number of samples that wait: 500,000; then the oldest are dropped
	Delay  time.Duration // time for which a request is collected: 5 s
	// Retry is the wait after the first failure: 1 s. It doubles with each further failure,
	// up to a minute.
	Retry time.Duration
}

// RemoteStats are numbers of samples, and the last error.
type RemoteStats struct {
	Sent     int64
	Dropped  int64 // the queue was full, because the receiver did not accept any
	Refused  int64 // the receiver said that it will never accept them
	Missed   int64 // updates that came too fast for the queue
	Waiting  int
	Trouble  string // why the last request failed; "" if it succeeded
	LastSent time.Time
}

// RemoteWrite sends samples to a receiver of Prometheus' remote-write protocol, version 1.0
// (https://prometheus.io/docs/specs/prw/remote_write_spec/), under the names of
// [PrometheusName]. It repeats a request until the receiver has accepted it or says that it
// never will. Until then further samples wait in a bounded queue.
type RemoteWrite struct {
	db  *series.DB
	opt RemoteOptions

	updates <-chan series.Update
	cancel  func() // closes updates

	mu    sync.Mutex
	queue []watch.Sample
	stats RemoteStats
	more  chan struct{} // signals that the queue is not empty
}

// NewRemoteWrite checks the options and subscribes to new samples. Call Run soon: only a
// few updates are buffered until then.
func NewRemoteWrite(db *series.DB, opt RemoteOptions) (*RemoteWrite, error) {
	u, err := url.Parse(opt.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, exit.Errorf(exit.Usage, "write it like http://prometheus:9090/api/v1/write", "%q is not an address to send samples to", opt.URL)
	}
	if opt.Client == nil {
		opt.Client = &http.Client{Timeout: 30 * time.Second}
	}
	opt.Batch, opt.Queue = cmp.Or(opt.Batch, 2000), cmp.Or(opt.Queue, 500_000)
	opt.Delay, opt.Retry = cmp.Or(opt.Delay, 5*time.Second), cmp.Or(opt.Retry, time.Second)
	r := &RemoteWrite{db: db, opt: opt, more: make(chan struct{}, 1)}
	r.updates, r.cancel = db.Subscribe()
	return r, nil
}

// Run sends new samples until the context ends; then it tries once to send the samples in
// the queue. Call it once.
func (r *RemoteWrite) Run(ctx context.Context) {
	var gather sync.WaitGroup
	gather.Go(func() {
		for u := range r.updates {
			r.push(u)
		}
	})
	r.send(ctx)
	r.cancel()
	gather.Wait()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	for batch := r.take(); len(batch) > 0 && last.Err() == nil; batch = r.take() {
		if _, _, err := r.post(last, batch); err != nil {
			break
		}
		r.sent(batch)
	}
}

// push appends samples to the queue.
func (r *RemoteWrite) push(u series.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Missed += int64(u.Lost)
	for _, s := range u.Samples {
		if finite(s.Value) {
			r.queue = append(r.queue, s)
		}
	}
	if n := len(r.queue) - r.opt.Queue; n > 0 {
		r.stats.Dropped += int64(n)
		r.queue = slices.Clone(r.queue[n:])
	}
	if len(r.queue) > 0 {
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// take removes a batch from the queue.
func (r *RemoteWrite) take() []watch.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.queue), r.opt.Batch)
	batch := slices.Clone(r.queue[:n])
	r.queue = r.queue[n:]
	if len(r.queue) == 0 {
		r.queue = nil // release the memory of sent samples
	}
	return batch
}

// full reports whether the queue holds a whole batch.
func (r *RemoteWrite) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) >= r.opt.Batch
}

func (r *RemoteWrite) sent(batch []watch.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Sent += int64(len(batch))
	r.stats.Trouble, r.stats.LastSent = "", time.Now()
}

// send sends batches until the context ends.
func (r *RemoteWrite) send(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-r.more:
		}
		for started := time.Now(); !r.full() && time.Since(started) < r.opt.Delay && ctx.Err() == nil; {
			pause(ctx, min(r.opt.Delay, 100*time.Millisecond))
		}
		for batch := r.take(); len(batch) > 0; {
			if !r.deliver(ctx, batch) {
				// Samples that were not accepted go back to the front, for the last try.
				r.mu.Lock()
				r.queue = slices.Concat(batch, r.queue)
				r.mu.Unlock()
				return
			}
			if batch = nil; r.full() {
				batch = r.take()
			}
		}
		r.mu.Lock()
		if len(r.queue) > 0 {
			select {
			case r.more <- struct{}{}:
			default:
			}
		}
		r.mu.Unlock()
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

// deliver repeats a request until it is accepted or finally refused. It returns false if
// the context ends before that.
func (r *RemoteWrite) deliver(ctx context.Context, batch []watch.Sample) bool {
	wait, told := r.opt.Retry, false
	for {
		again, after, err := r.post(ctx, batch)
		if err == nil {
			r.sent(batch)
			if told {
				r.note("remote_write_recovered", r.opt.host()+" accepts samples again")
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		r.mu.Lock()
		fresh := r.stats.Trouble == ""
		r.stats.Trouble = err.Error()
		if !again {
			r.stats.Refused += int64(len(batch))
		}
		r.mu.Unlock()
		if fresh {
			r.note("remote_write_failed", err.Error())
			told = true
		}
		if !again {
			return true
		}
		pause(ctx, max(wait, after))
		wait = min(2*wait, time.Minute)
	}
}

func (r *RemoteWrite) note(kind, text string) {
	r.db.Event(watch.Event{Time: time.Now(), Layer: watch.LayerNetwork, Kind: kind, Text: text})
}

// host returns the address without the parts that may be secret.
func (o RemoteOptions) host() string {
	u, err := url.Parse(o.URL)
	if err != nil {
		return "the receiver"
	}
	return u.Host
}

// post sends a batch once. again reports whether it should be tried again, after a time.
func (r *RemoteWrite) post(ctx context.Context, batch []watch.Sample) (again bool, after time.Duration, err error) {
	body := snappy.Encode(nil, encodeWriteRequest(batch))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.opt.URL, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	req.Header.Set("Content-Encoding", "snappy")
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	req.Header.Set("User-Agent", "premix-watch")
	if r.opt.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.opt.Token)
	}
	resp, err := r.opt.Client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the address, which may contain a password
		}
		return true, 0, fmt.Errorf("%s: %w", r.opt.host(), err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 512))
	if err != nil && resp.StatusCode/100 == 2 {
		text = nil // the batch was accepted; only the receiver's comment on it is lost
	}
	io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // read to the end, so that the connection can be reused
	if resp.StatusCode/100 == 2 {
		return false, 0, nil
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		after = time.Duration(min(s, 300)) * time.Second
	}
	again = resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode/100 == 5
	return again, after, fmt.Errorf("%s answers %s: %s", r.opt.host(), resp.Status, strings.TrimSpace(string(text)))
}

// Field numbers of prometheus.WriteRequest, TimeSeries, Label and Sample.
const (
	fieldTimeseries = 1
	fieldLabels     = 1
	fieldSamples    = 2
	fieldName       = 1
	fieldLabelValue = 2
	fieldValue      = 1
	fieldTimestamp  = 2
)

// encodeWriteRequest encodes samples as prometheus.WriteRequest: each series once, with its
// labels sorted by key and its samples by time.
func encodeWriteRequest(batch []watch.Sample) []byte {
	by := make(map[string][]watch.Sample)
	var order []string
	for _, s := range batch {
		k := s.ID.String()
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], s)
	}
	var out, one, inner []byte
	for _, k := range order {
		samples := by[k]
		slices.SortStableFunc(samples, func(a, b watch.Sample) int { return a.Time.Compare(b.Time) })
		name, labels := PrometheusName(samples[0].ID)
		labels = append(labels, watch.Label{Key: "__name__", Value: name})
		slices.SortFunc(labels, func(a, b watch.Label) int { return strings.Compare(a.Key, b.Key) })
		labels = slices.CompactFunc(labels, func(a, b watch.Label) bool { return a.Key == b.Key })
		one = one[:0]
		for _, l := range labels {
			if l.Value == "" {
				continue // the specification treats it as a missing label
			}
			inner = protowire.AppendString(protowire.AppendTag(inner[:0], fieldName, protowire.BytesType), l.Key)
			inner = protowire.AppendString(protowire.AppendTag(inner, fieldLabelValue, protowire.BytesType), l.Value)
			one = protowire.AppendBytes(protowire.AppendTag(one, fieldLabels, protowire.BytesType), inner)
		}
		for _, s := range samples {
			inner = protowire.AppendFixed64(protowire.AppendTag(inner[:0], fieldValue, protowire.Fixed64Type), math.Float64bits(s.Value))
			inner = protowire.AppendVarint(protowire.AppendTag(inner, fieldTimestamp, protowire.VarintType), uint64(s.Time.UnixMilli()))
			one = protowire.AppendBytes(protowire.AppendTag(one, fieldSamples, protowire.BytesType), inner)
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, fieldTimeseries, protowire.BytesType), one)
	}
	return out
}
