package node

import (
	"os"
	"slices"

	"premix/internal/store/cache"
)

// status returns the node's status. It writes recorded profiles first, so that the
// reported state is also on disk.
func (d *daemon) status() Status {
	d.saveRecordings()
	d.mu.Lock()
	s := Status{
		Version: Version, Premix: d.version, Dir: d.config.Dir, Cache: d.config.Cache,
		Supervisor: d.supervisorConn.supervisor(), Worker: os.Getpid(), Since: d.since, Deaths: d.deaths, Namespace: mountNamespace(),
	}
	var list []*mount
	for _, m := range d.mounts {
		list = append(list, m)
	}
	d.mu.Unlock()
	if n := d.neighbours; n != nil {
		s.Neighbours = &Neighbours{n.Addr(), n.Status(), n.Served()}
	}
	s.Mounts = d.describeAll(list)
	slices.SortFunc(s.Mounts, func(a, b Mounted) int { return a.Since.Compare(b.Since) })
	return s
}

// describeAll describes several mounts. The result is not nil, so that JSON has a list.
func (d *daemon) describeAll(list []*mount) []Mounted {
	all := []Mounted{}
	for _, m := range list {
		all = append(all, d.describe(m))
	}
	return all
}

// describe returns the status of a mount.
func (d *daemon) describe(m *mount) Mounted {
	d.mu.Lock()
	out := Mounted{
		ID: m.entry.ID, Ref: m.entry.Ref, Tree: m.entry.Tree, Dir: m.entry.Dir, State: m.state, Backend: m.entry.InUse, Reason: m.entry.Reason,
		Note: m.note, Total: m.entry.Size, HitRatio: 1, Profile: m.profile, Record: m.entry.Record, Eager: m.entry.Eager, Since: m.entry.Since,
	}
	if m.err != nil {
		out.Error = m.err.Error()
	}
	out.Repository = m.entry.CVMFS != nil
	last, src, b := m.cause, m.src, m.base
	d.mu.Unlock()
	if b != nil {
		if err := out.describeBase(b); err != nil {
			last = err
		}
	}
	if last != nil {
		out.LastError = last.Error()
	}
	out.Origins = src.describe()
	for _, o := range out.Origins {
		out.Fetched += o.Bytes
	}
	return out
}

// describeBase adds the state of a base, and returns the error of its last failed read.
func (m *Mounted) describeBase(b *base) error {
	if b.live != nil {
		return m.describeLive(b.live)
	}
	if b.layer != nil {
		return m.describeLayer(b.layer)
	}
	if t := b.img.opened(); t != nil {
		m.figures(t.Stats())
	}
	return b.img.lastError()
}

func (m *Mounted) figures(s cache.Stats) {
	m.Total, m.Present, m.FetchedContent, m.Copied = s.Size, s.PresentBytes, s.FetchedBytes, s.CopiedBytes
	m.Hits, m.Misses, m.Errors, m.Corrupt, m.NotKept = s.Hits, s.Misses, s.Errors, s.Corrupt, s.NotKept
	if n := m.Hits + m.Misses; n > 0 {
		m.HitRatio = float64(m.Hits) / float64(n)
	}
	for _, f := range s.Slowest {
		m.Slowest = append(m.Slowest, Fetch{f.Chunk, f.Seconds, f.At})
	}
}

func (s *source) describe() []Origin {
	list := []Origin{}
	if s == nil {
		return list
	}
	for _, o := range s.group.Stats() {
		list = append(list, Origin{
			URL: o.Origin, State: string(o.State), Requests: o.Requests, Bytes: o.Bytes, Errors: o.Errors, Corrupt: o.Corrupt,
			LastError: o.LastError, P99: o.P99.Seconds(),
		})
	}
	return list
}
