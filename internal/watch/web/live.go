package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"premix/internal/watch"
	"premix/internal/watch/series"
)

// heartbeat is the time without news after which a comment is sent, so that proxies keep
// the connection and the server notices a client that has gone.
const heartbeat = 15 * time.Second

// getLive sends new data as server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
func (s *Server) getLive(w http.ResponseWriter, r *http.Request) error {
	q, err := known(r, "name")
	if err != nil {
		return err
	}
	select {
	case s.live <- struct{}{}:
		defer func() { <-s.live }()
	default:
		return &problem{http.StatusServiceUnavailable, fmt.Sprintf("all %d live connections are in use", cap(s.live)), "close some, or try again later"}
	}
	updates, cancel := s.c.DB.Subscribe()
	defer cancel()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	if _, err := w.Write([]byte(": premix watch\n\n")); err != nil {
		return nil
	}
	out.Flush() // a server that cannot flush sends later
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-r.Context().Done():
			return nil
		case <-beat.C:
			_, err = w.Write([]byte(": \n\n"))
		case u, more := <-updates:
			if !more {
				return nil
			}
			err = sendUpdate(w, u, q["name"])
		}
		if err != nil {
			return nil // the client has gone and cannot be answered
		}
		out.Flush()
	}
}

func sendUpdate(w http.ResponseWriter, u series.Update, names []string) error {
	send := func(event string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, b)
		return err
	}
	switch {
	case u.Task != nil:
		return send("task", u.Task)
	case u.Event != nil:
		return send("event", u.Event)
	case u.Lost > 0:
		return send("lost", map[string]int{"updates": u.Lost})
	}
	type batch struct {
		T int64    `json:"t"`
		V [][3]any `json:"v"`
	}
	var now batch
	for i, one := range u.Samples {
		if t := one.Time.UnixMilli(); i == 0 {
			now.T = t
		} else if t != now.T {
			if len(now.V) > 0 {
				if err := send("samples", now); err != nil {
					return err
				}
			}
			now = batch{T: t}
		}
		if wanted(one.ID, names) && finite(one.Value) {
			now.V = append(now.V, [3]any{one.ID.Name, labelMap(one.ID.Labels), one.Value})
		}
	}
	if len(now.V) == 0 {
		return nil
	}
	return send("samples", now)
}

// wanted reports whether a series has one of the names; without names, it has.
func wanted(id watch.ID, names []string) bool {
	for _, n := range names {
		prefix, many := strings.CutSuffix(n, "*")
		if id.Name == n || many && strings.HasPrefix(id.Name, prefix) {
			return true
		}
	}
	return len(names) == 0
}
