package node

import (
	"github.com/prometheus/client_golang/prometheus"
)

// collector computes metrics from the daemon's state when they are requested. So
// nothing is counted twice, and nothing runs between requests.
type collector struct{ d *daemon }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("premix_"+name, help, labels, nil)
}

// families holds the descriptions of the metrics.
type families struct {
	info, deaths, mounts                                 *prometheus.Desc
	total, present, fetched, hits, misses, errs, corrupt *prometheus.Desc
	copied, notKept, slowest                             *prometheus.Desc
	requests, bytes, failures, wrong, healthy            *prometheus.Desc
	nearRequests, nearBytes, nearErrors, nearWrong       *prometheus.Desc
	nearLeftOut, nearGiven                               *prometheus.Desc
	quota, used, free, evicted                           *prometheus.Desc
}

func newFamilies() families {
	t := func(name, help string) *prometheus.Desc { return describe("tree_"+name, help, "tree", "ref") }
	o := func(name, help string) *prometheus.Desc { return describe("origin_"+name, help, "origin") }
	n := func(name, help string) *prometheus.Desc { return describe("neighbour_"+name, help, "neighbour") }
	return families{
		info:    describe("node_info", "1, with the version of the worker's binary.", "version"),
		deaths:  describe("node_worker_deaths", "Workers that died lately without having been asked to end."),
		mounts:  describe("node_mounts", "Mounts by backend and state.", "backend", "state"),
		total:   t("size_bytes", "Length of the tree's image."),
		present: t("present_bytes", "Bytes of the image in the cache."),
		fetched: t("fetched_bytes_total", "Bytes of chunks that were fetched."),
		hits:    t("hits_total", "Chunks read that were in the cache."),
		misses:  t("misses_total", "Chunks read that were waited for."),
		errs:    t("read_errors_total", "Reads of the image that failed."),
		corrupt: t("corrupt_chunks_total", "Chunks that were wrong on disk, and fetched again."),
		copied:  t("copied_bytes_total", "Bytes of chunks that another tree in the cache had."),
		notKept: t("not_kept_chunks_total", "Chunks for which the cache had no room."),
		slowest: t("slowest_fetch_seconds", "The longest fetch."),

		requests: o("requests_total", "Requests to an origin."),
		bytes:    o("received_bytes_total", "Bytes received from an origin."),
		failures: o("failures_total", "Requests to an origin that failed."),
		wrong:    o("wrong_objects_total", "Objects of an origin that were not what their digest says."),
		healthy:  o("healthy", "1 where the origin is asked without reserve."),

		nearRequests: n("requests_total", "Requests to a neighbour."),
		nearBytes:    n("received_bytes_total", "Bytes of objects from a neighbour."),
		nearErrors:   n("failures_total", "Requests to a neighbour that failed."),
		nearWrong:    n("wrong_objects_total", "Objects of a neighbour that were not what their digest says."),
		nearLeftOut:  n("left_out", "1 while a neighbour is not asked after a failure."),
		nearGiven:    describe("neighbour_given_bytes_total", "Bytes of objects that neighbours got from this node."),

		quota:   describe("cache_quota_bytes", "The most that the cache may take; 0 for no bound but the free space."),
		used:    describe("cache_used_bytes", "What the cache takes on disk."),
		free:    describe("cache_partition_free_bytes", "Free on the cache's partition."),
		evicted: describe("cache_evicted_chunks_total", "Chunks evicted from the cache."),
	}
}

// registry returns a registry with the node's metrics only, without those of the Go
// runtime.
func (d *daemon) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{d})
	return r
}

// Describe sends nothing: the set of series depends on the mounts.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics.
func (c collector) Collect(out chan<- prometheus.Metric) {
	f := newFamilies()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := c.d.status()
	gauge(f.info, 1, s.Premix)
	gauge(f.deaths, float64(s.Deaths))
	type kind struct{ backend, state string }
	mounts := map[kind]int{}
	trees, origins := map[string]bool{}, map[string]Origin{}
	for _, m := range s.Mounts {
		mounts[kind{string(m.Backend), m.State}]++
		for _, o := range m.Origins {
			// Mounts count separately for the same origin: add up.
			sum := origins[o.URL]
			sum.Requests, sum.Bytes, sum.Errors, sum.Corrupt = sum.Requests+o.Requests, sum.Bytes+o.Bytes, sum.Errors+o.Errors, sum.Corrupt+o.Corrupt
			if sum.State == "" || o.State != originHealthy {
				sum.State = o.State
			}
			origins[o.URL] = sum
		}
		// The figures belong to the tree, not to the mount.
		if m.Repository || trees[m.Tree.String()] {
			continue
		}
		trees[m.Tree.String()] = true
		l := []string{m.Tree.String(), m.Ref}
		gauge(f.total, float64(m.Total), l...)
		gauge(f.present, float64(m.Present), l...)
		count(f.fetched, m.FetchedContent, l...)
		count(f.hits, m.Hits, l...)
		count(f.misses, m.Misses, l...)
		count(f.errs, m.Errors, l...)
		count(f.corrupt, m.Corrupt, l...)
		count(f.copied, m.Copied, l...)
		count(f.notKept, m.NotKept, l...)
		if len(m.Slowest) > 0 {
			gauge(f.slowest, m.Slowest[0].Seconds, l...)
		}
	}
	for k, n := range mounts {
		gauge(f.mounts, float64(n), k.backend, k.state)
	}
	for url, o := range origins {
		count(f.requests, o.Requests, url)
		count(f.bytes, o.Bytes, url)
		count(f.failures, o.Errors, url)
		count(f.wrong, o.Corrupt, url)
		healthy := 0.0
		if o.State == originHealthy {
			healthy = 1
		}
		gauge(f.healthy, healthy, url)
	}
	if s.Neighbours != nil {
		count(f.nearGiven, s.Neighbours.Given.Bytes)
		for _, n := range s.Neighbours.Asked {
			count(f.nearRequests, n.Requests, n.Address)
			count(f.nearBytes, n.Bytes, n.Address)
			count(f.nearErrors, n.Errors, n.Address)
			count(f.nearWrong, n.Corrupt, n.Address)
			out := 0.0
			if n.LeftOut {
				out = 1
			}
			gauge(f.nearLeftOut, out, n.Address)
		}
	}
	st := c.d.cache.Status()
	gauge(f.quota, float64(st.Quota))
	gauge(f.used, float64(st.Used))
	gauge(f.free, float64(st.Free))
	count(f.evicted, st.Evicted)
}
