package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are a server's counters, for Prometheus.
type Metrics struct {
	registry    *prometheus.Registry
	requests    *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	took        *prometheus.HistogramVec
	inFlight    prometheus.Gauge
	connections prometheus.Gauge
}

func newMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "premix_store_requests_total", Help: "Requests answered, by kind of request and HTTP status."}, []string{"what", "status"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "premix_store_sent_bytes_total", Help: "Bytes of bodies sent, by kind of request."}, []string{"what"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "premix_store_request_seconds", Help: "Time from a request's header to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}, []string{"what"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "premix_store_requests_in_flight", Help: "Requests that are being answered or wait to be."}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "premix_store_connections", Help: "Open connections."}),
	}
	m.registry.MustRegister(m.requests, m.bytes, m.took, m.inFlight, m.connections,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) count(what class, status int, sent int64, took time.Duration) {
	m.requests.WithLabelValues(string(what), strconv.Itoa(status)).Inc()
	m.bytes.WithLabelValues(string(what)).Add(float64(sent))
	m.took.WithLabelValues(string(what)).Observe(took.Seconds())
}

// ServeHTTP implements http.Handler. It answers in Prometheus' text format.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}
