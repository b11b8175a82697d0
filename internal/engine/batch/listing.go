package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/engine/programs"
)

// listing is the jobs of this user that premix has submitted.
type listing []job

// job is a job of a listing.
type job struct {
	Number    string      `json:"number"`
	Index     int         `json:"index"` // in its array; none without one
	Name      string      `json:"name"`
	Phase     pilot.Phase `json:"phase"`
	Word      string      `json:"word"`
	Reason    string      `json:"reason,omitempty"`
	Node      string      `json:"node,omitempty"`
	Blameless bool        `json:"blameless,omitempty"`
	Stuck     bool        `json:"stuck,omitempty"`
}

// list returns a listing that was begun after the given time, and that time.
func (e *Engine) list(ctx context.Context, after time.Time) (listing, time.Time, error) {
	a, err := e.shared.Get(ctx, after, func(ctx context.Context) (listing, error) {
		args := append(append([]string{}, e.query[1:]...), programs.UserName())
		out, err := programs.Run(ctx, "", e.query[0], args...)
		var failed *programs.Error
		switch {
		case errors.As(err, &failed) && e.dialect.none != nil && e.dialect.none.MatchString(failed.Text):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %s", e.query[0], programs.Message(err))
		}
		return e.parse(out)
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	return a.Value, a.Started, a.Err()
}
