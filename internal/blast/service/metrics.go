package service

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the metrics of /metrics.
type metrics struct {
	registry *prometheus.Registry
	accepted *prometheus.CounterVec
	refused  *prometheus.CounterVec
	failed   prometheus.Counter
	evicted  prometheus.Counter
	grouped  prometheus.Histogram
	scans    prometheus.Histogram
	waited   prometheus.Histogram
	took     *prometheus.HistogramVec
}

func newMetrics(s *Service) *metrics {
	r := prometheus.NewRegistry()
	seconds := prometheus.ExponentialBuckets(0.01, 2, 16)
	m := &metrics{
		registry: r,
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "premix_blast_accepted_total", Help: "Jobs that were accepted."}, []string{"program"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "premix_blast_refused_total", Help: "Requests that were refused."}, []string{"reason"}),
		failed:   prometheus.NewCounter(prometheus.CounterOpts{Name: "premix_blast_failed_total", Help: "Results that could not be made."}),
		evicted:  prometheus.NewCounter(prometheus.CounterOpts{Name: "premix_blast_evicted_total", Help: "Jobs whose results were removed before their time, to make room."}),
		grouped:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "premix_blast_scan_jobs", Help: "Jobs in a scan.", Buckets: prometheus.ExponentialBuckets(1, 2, 12)}),
		scans:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "premix_blast_scan_seconds", Help: "Duration of a scan.", Buckets: seconds}),
		waited:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "premix_blast_wait_seconds", Help: "Time that a job waited for its scan.", Buckets: seconds}),
		took:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "premix_blast_request_seconds", Help: "Duration of a request.", Buckets: seconds}, []string{"route"}),
	}
	gauge := func(name, help string, of func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return of()
		})
	}
	r.MustRegister(m.accepted, m.refused, m.failed, m.evicted, m.grouped, m.scans, m.waited, m.took,
		gauge("premix_blast_waiting_jobs", "Jobs that wait.", func() float64 { return float64(s.queue.jobs) }),
		gauge("premix_blast_waiting_letters", "Letters of queries that wait.", func() float64 { return float64(s.queue.letters) }),
		gauge("premix_blast_jobs", "Jobs that are stored.", func() float64 { return float64(len(s.jobs)) }),
		gauge("premix_blast_result_bytes", "Bytes of the files of results.", func() float64 { return float64(s.stored) }),
		gauge("premix_blast_disk_trouble", "1 while results cannot be written.", func() float64 {
			if s.trouble.err != nil {
				return 1
			}
			return 0
		}),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
