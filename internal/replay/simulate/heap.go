package simulate

import "premix/internal/replay/trace"

// kind is the kind of an event. Events of one moment happen in this order.
type kind uint8

const (
	ends kind = iota
	overruns
	comesBack
	goesDown
	eligible
	startsAsRecorded
	isQueued
	wakes
)

// event is a future event.
type event struct {
	at   trace.Time
	arg  int32 // job or downtime
	try  int32 // of the job; events of an earlier try are ignored
	kind kind
	step uint8 // number of earlier overruns
}

func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	if e.kind != o.kind {
		return e.kind < o.kind
	}
	return e.arg < o.arg
}

// heap has the next event first. Each node has four children: that halves the depth, and
// they lie in two cache lines.
type heap []event

func (h *heap) push(e event) {
	*h = append(*h, e)
	s := *h
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = e
}

func (h *heap) pop() event {
	s := *h
	first, last := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return first
	}
	i := 0
	for {
		least, child := i, 4*i+1
		e := &last
		for k := child; k < min(child+4, len(s)); k++ {
			if s[k].before(e) {
				least, e = k, &s[k]
			}
		}
		if least == i {
			break
		}
		s[i] = s[least]
		i = least
	}
	s[i] = last
	return first
}
