package choose

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/units"
	"premix/internal/transfer"
	"premix/internal/transfer/link"
	"premix/internal/transfer/peer"
	"premix/internal/transfer/stream"
	"premix/internal/transfer/testbed"
)

// The cost of asking the peer before a copy and comparing both ends afterwards: processes
// at both ends, and round trips. premix's own protocol needs neither, and may be estimated
// to take longer than the best by this amount, and by more beyond the measured sizes, where
// extrapolation amplifies the scatter.
const (
	question  = 0.1  // seconds
	tolerance = 0.05 // of the time of the best
	guess     = 0.25 // as a fraction of it, beyond the measured sizes
)

// errElsewhere is returned if another protocol should make a copy. No data was written.
var errElsewhere = errors.New("another protocol is faster for so much")

// surely reports whether premix's own protocol is to begin without knowing the size. When
// the size of a file is known, useOther reports whether it should give up.
func (j *Copy) surely(copies []transfer.Copy) (remote func(size int64) bool, ok bool) {
	p := j.protocol(own)
	if p == nil || j.Direction != transfer.Get || !j.ownShipped(p) {
		return nil, false
	}
	if j.Protocol == "" && j.Keep != (stream.Keep{}) {
		return func(int64) bool { return false }, true // no other protocol keeps these
	}
	if j.Protocol != "" {
		return func(int64) bool { return false }, j.Protocol == own
	}
	here := installed()
	again := question + reaching(j.Link, copies, j.Direction) // the cost of giving up
	// judge reports whether own takes at most more seconds longer than the best (near), and
	// whether it takes so long that the cost of giving up does not matter (rare).
	judge := func(t Task, more float64) (near, rare bool) {
		t.Direction, t.Open, t.Have = j.Direction, j.Open, j.Have != ""
		list := order(j.Link, copies, t, here)
		best := list[0]
		e := list[slices.IndexFunc(list, func(e Estimate) bool { return e.Protocol == own })]
		if e.Left || e.Seconds == 0 {
			return best.Protocol == own, false
		}
		share := tolerance
		if beyond(copies, t) {
			share = guess
		}
		return e.Seconds <= (1+share)*best.Seconds+more, again <= tolerance*best.Seconds
	}
	// Estimates are straight lines between measured sizes, so it suffices to check these;
	// if giving up is rare, also sizes in between.
	tasks := []Task{{Size: 1, Files: 1}, {Size: 2, Files: 2}, {Size: 1 << 32, Files: 1 << 20}, {Size: 1 << 40, Files: 2}}
	for size := int64(1 << 20); size <= 1<<40; size <<= 2 {
		tasks = append(tasks, Task{Size: size, Files: 1})
	}
	for _, c := range copies {
		if t := (Task{Size: c.Size, Files: c.Files}); !slices.Contains(tasks, t) {
			tasks = append(tasks, t)
		}
	}
	for _, t := range tasks {
		if near, rare := judge(t, question); !near && !(rare && t.Files == 1) {
			return nil, false
		}
	}
	return func(size int64) bool {
		near, _ := judge(Task{Size: size, Files: 1}, again)
		return !near
	}, true
}

// beyond reports whether the size is above all measured ones.
func beyond(copies []transfer.Copy, t Task) bool {
	return !slices.ContainsFunc(copies, func(c transfer.Copy) bool {
		return c.Usable() && c.Direction == t.Direction && (c.Files > 1) == (t.Files > 1) && c.Size >= t.Size && c.Files >= t.Files
	})
}

// direct copies by premix's own protocol, over the first connection to the peer. The other
// end examines the source, so that no question is asked before. useOther reports for the
// size of a file whether another protocol is better. If direct returns an error and done is
// false, another protocol may succeed.
func (j *Copy) direct(ctx context.Context, copies []transfer.Copy, remote func(size int64) bool) (_ *Result, done bool, err error) {
	begin := time.Now()
	if err := j.makeWay(); err != nil {
		return nil, true, err
	}
	p := j.protocol(own)
	stage, err := j.stage()
	if err != nil {
		return nil, true, err
	}
	defer stage.Close() // an incomplete copy is kept
	s, err := j.ownCopy(p)
	if err != nil {
		return nil, true, err
	}
	s.Local, s.Remote = stage.Path(), j.Remote
	if addr, err := testbed.Resolve(ctx, j.Link.Host); err == nil {
		s.Host = addr.String() // otherwise it is a name of ssh's configuration: the far end sends its address
	}
	limited, cancel := context.WithTimeout(ctx, j.Link.Timeout)
	defer cancel()
	sent, err := j.take(limited, s, remote)
	if err != nil {
		final, err := j.explain(ctx, err)
		return nil, final, err
	}
	d, err := j.keep(sent, stage)
	if err != nil {
		return nil, true, err
	}
	d.Order = Order(j.Link, copies, Task{j.Direction, d.Size, d.Files, j.Open, j.Have != ""})
	d.Seconds = time.Since(begin).Seconds()
	return d, true, nil
}

// ownShipped reports whether a protocol is premix's own, unchanged by a link file.
func (j *Copy) ownShipped(p *link.Protocol) bool {
	shipped, err := link.Shipped()
	s := shipped[own]
	return p.Name == own && err == nil && p.Get == s.Get && p.GetTree == s.GetTree && p.Put == s.Put && p.PutTree == s.PutTree
}

// ownCopy returns a copy by premix's own protocol, without source and destination.
func (j *Copy) ownCopy(p *link.Protocol) (*stream.Copy, error) {
	s := &stream.Copy{Congestion: p.Settings["congestion"], Keep: j.Keep,
		Command: append(j.Link.SSH(), j.Link.Peer(),
			testbed.Path+" exec "+p.Settings["premix_peer"]+" transfer serve --port "+p.Settings["serve_port"]+" --asked "+stream.RequestMark)}
	var err error
	if s.Streams, err = strconv.Atoi(p.Settings["streams"]); err != nil {
		return nil, fmt.Errorf("streams of %s: %w", p.Name, err)
	}
	if s.Congestion == "system" {
		s.Congestion = ""
	}
	return s, nil
}

// tryOwn makes the copy by premix's own protocol, over the existing connection.
func (r *run) tryOwn(ctx context.Context, p *link.Protocol, address string) error {
	s, err := r.ownCopy(p)
	if err != nil {
		return err
	}
	s.Host = address
	limited, cancel := context.WithTimeout(ctx, r.Link.Timeout)
	defer cancel()
	var sent *stream.Result
	if r.Direction == transfer.Get {
		s.Local, s.Remote = r.stage.Path(), r.Copy.Remote
		sent, err = r.take(limited, s, nil)
	} else {
		s.Local, s.Remote, s.Send, s.Whole = r.Local, r.Copy.Remote, true, true
		if r.Have != "" {
			s.Have = []string{r.Have}
		}
		sent, err = s.Run(limited)
	}
	if err != nil {
		_, err = r.explain(ctx, err)
		return err
	}
	r.note("%s", sent)
	r.d.Verified, r.d.Lost, r.d.More = "by "+own, sent.Lost, sent.More
	return nil
}

// take makes a copy whose destination is here, if there is space for it. useOther may be
// nil.
func (j *Copy) take(ctx context.Context, s *stream.Copy, remote func(size int64) bool) (*stream.Result, error) {
	if j.Have != "" {
		s.Have = []string{j.Have}
	}
	var size atomic.Int64 // of a file; 0 for a tree
	begins := sync.OnceFunc(func() { j.note("by %s", own) })
	s.Begin = func(n int64) error {
		if remote != nil && remote(n) {
			return errElsewhere
		}
		begins()
		size.Store(n)
		return room(s.Local, n)
	}
	if j.Progress != nil {
		stop := every(100*time.Millisecond, func() { j.Progress(onDisk(s.Local), size.Load()) })
		defer stop()
	}
	return s.Run(ctx)
}

// keep renames a complete copy to its name.
func (j *Copy) keep(sent *stream.Result, stage *beneath.Stage) (*Result, error) {
	j.note("%s", sent)
	d := done(sent)
	if info, err := os.Lstat(stage.Path()); err == nil && info.IsDir() {
		d.Files = max(2, d.Files) // as all trees are counted
	}
	// Special bits are only set together with owners.
	if err := stage.Commit(); err != nil {
		return nil, &TargetError{err.Error()}
	}
	return d, nil
}

func done(sent *stream.Result) *Result {
	return &Result{Protocol: own, Size: sent.Bytes, Files: sent.Files, Verified: "by " + own, Lost: sent.Lost, More: sent.More}
}

// stand copies to or from a standing server.
func (j *Copy) stand(ctx context.Context) (*Result, error) {
	begin := time.Now()
	s := &stream.Copy{Server: j.Server, Key: j.Key, Local: j.Local, Remote: j.Remote, Congestion: standingCongestion, Keep: j.Keep}
	var d *Result
	if j.Direction == transfer.Get {
		if err := j.makeWay(); err != nil {
			return nil, err
		}
		stage, err := j.stage()
		if err != nil {
			return nil, err
		}
		defer stage.Close() // an incomplete copy is kept
		s.Local = stage.Path()
		sent, err := j.take(ctx, s, nil)
		if err != nil {
			_, err = j.explain(ctx, err)
			return nil, err
		}
		if d, err = j.keep(sent, stage); err != nil {
			return nil, err
		}
	} else {
		var here Result
		if _, err := lookHere(ctx, j.Local, &here); err != nil {
			return nil, err
		}
		s.Send, s.Whole = true, true
		j.note("by %s", own)
		sent, err := s.Run(ctx)
		if err != nil {
			_, err = j.explain(ctx, err)
			return nil, err
		}
		j.note("%s", sent)
		d = done(sent)
		d.Files = here.Files
	}
	d.Seconds = time.Since(begin).Seconds()
	return d, nil
}

// standingCongestion is requested from a standing server, as it is from any far end by
// default.
const standingCongestion = "bbr"

// peer returns the name of the peer for messages.
func (j *Copy) peer() string {
	if j.Server != "" {
		return j.Server
	}
	return j.Link.Peer()
}

// sshFailed is the exit status of ssh for its own errors, see ssh(1).
const sshFailed = 255

// explain converts an error of package stream to one of this package. final reports that
// other protocols would fail, too.
func (j *Copy) explain(ctx context.Context, err error) (final bool, _ error) {
	var source *stream.SourceError
	var target *stream.TargetError
	var full *TargetError
	var gone *stream.PeerError
	switch {
	case ctx.Err() != nil:
		return true, context.Cause(ctx)
	case errors.As(err, &source) && j.Direction == transfer.Put:
		return true, &SourceError{source.Reason}
	case errors.As(err, &source):
		return true, &SourceError{fmt.Sprintf("%s at %s: %s", j.Remote, j.peer(), source.Reason)}
	case errors.As(err, &target):
		return true, &TargetError{target.Reason}
	case errors.As(err, &full):
		return true, full
	case errors.As(err, &gone) && !gone.Met && gone.Status == sshFailed:
		return true, &peer.UnreachableError{Peer: j.Link.Peer(), Stderr: gone.Stderr, Err: gone}
	}
	return false, err
}

// makeWay checks that the destination here is free and can be written.
func (j *Copy) makeWay() error {
	if err := os.MkdirAll(filepath.Dir(j.Local), 0o755); err != nil {
		return &TargetError{err.Error()}
	}
	if _, err := os.Lstat(j.Local); err == nil {
		return &TargetError{j.Local + " is there already"}
	}
	return nil
}

// room returns an error if there is not enough space for size bytes, part of which has
// arrived.
func room(part string, size int64) error {
	if free := freeSpace(filepath.Dir(part)) + onDisk(part); free < size+minRoom {
		return noRoom(size, free)
	}
	return nil
}

func noRoom(size, free int64) error {
	return &TargetError{fmt.Sprintf("there is no space for %s at the destination: %s are free", units.Size(size), units.Size(free))}
}

// every calls do at an interval until it is stopped.
func every(interval time.Duration, do func()) (stop func()) {
	finished, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				do()
			case <-finished:
				return
			}
		}
	}()
	return func() { close(finished); <-gone }
}
