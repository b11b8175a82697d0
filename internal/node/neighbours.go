package node

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/access"
	"premix/internal/store/neighbour"
	"premix/internal/store/object"
	"premix/internal/store/origin"
)

// openNeighbours begins to ask neighbours and to answer them, if the configuration says so. The
// node works without them, too: an error is in the log.
func (d *daemon) openNeighbours() {
	c := &d.config
	if !c.withNeighbours() {
		return
	}
	token, err := access.ReadToken(c.NeighboursToken)
	for range 20 { // the worker before may still listen
		if err != nil {
			break
		}
		d.neighbours, err = neighbour.Open(neighbour.Options{Token: token, Listen: c.NeighboursListen, List: c.Neighbours, Rate: c.NeighboursRate, Log: d.log})
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		d.log.Error("neighbours are not asked, and not answered", "error", err)
		return
	}
	// The origins of the configuration are shared before they are mounted.
	if len(c.Origins) > 0 {
		if _, err := d.source(MountRequest{}); err != nil {
			d.log.Error("the configured origins are not shared with neighbours", "error", err)
		}
	}
}

func (c *Config) withNeighbours() bool { return c.Neighbours != "" || c.NeighboursListen != "" }

// neighboursError converts an error of the configuration of neighbours.
func neighboursError(err error) error {
	if err == nil {
		return nil
	}
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		return usage(hint.Hint(), "neighbours: %v", err)
	}
	return usage("set neighbours_listen to an address of this machine, and neighbours_token_file to a readable file", "neighbours: %v", err)
}

// checkNeighbours validates the configuration of neighbours.
func (c *Config) checkNeighbours() error {
	switch {
	case !c.withNeighbours():
		return nil
	case c.NeighboursToken == "":
		return usage("write one token into a file that only this user may read, the same on all nodes, and name it with neighbours_token_file", "neighbours need a token")
	case c.NeighboursRate < 0:
		return usage("write it as in 500M", "neighbours_rate is negative")
	}
	if err := neighbour.CheckList(c.Neighbours); err != nil {
		return neighboursError(err)
	}
	if _, err := access.ReadToken(c.NeighboursToken); err != nil {
		return neighboursError(err)
	}
	if c.NeighboursListen == "" {
		return nil
	}
	return neighboursError(access.Check(access.Options{Address: c.NeighboursListen, Secret: true}))
}

// share returns the share of the origins of a mount, or nil if neighbours must not have their
// objects: those of directories, which only this machine can read, and those for which there are
// credentials.
func (d *daemon) share(urls []string, credentials string) *neighbour.Share {
	if d.neighbours == nil || credentials != "" {
		return nil
	}
	for _, u := range urls {
		scheme, _, found := strings.Cut(u, "://")
		if !found || scheme == "file" {
			return nil
		}
	}
	return d.neighbours.Share(urls)
}

// shared returns the source of the objects that neighbours get.
func (d *daemon) shared(g *origin.Group) neighbour.Source {
	return neighbour.Source{
		Origin: func(ctx context.Context, o object.Digest) ([]byte, error) {
			stored, err := g.Far(ctx, o)
			if errors.Is(err, origin.ErrNotFound) {
				err = errors.Join(err, neighbour.ErrNone)
			}
			return stored, err
		},
		Cached: d.cache.Chunk,
	}
}
