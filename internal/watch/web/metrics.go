package web

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"premix/internal/watch"
)

// newest is the age up to which Prometheus gets a value. Prometheus itself considers a
// series gone after the same time (--query.lookback-delta).
const newest = 5 * time.Minute

// metrics are the metrics of /metrics: the newest value of each series, with premix_ before
// its name and _ for each character that Prometheus does not permit, and some metrics of
// the server itself.
type metrics struct {
	handler http.Handler
	refused prometheus.Counter
	took    *prometheus.HistogramVec
}

func newMetrics(s *Server) *metrics {
	r := prometheus.NewRegistry()
	m := &metrics{
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "premix_watch_refused_requests_total", Help: "Requests that were refused."}),
		took:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "premix_watch_request_seconds", Help: "Duration of requests.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"route"}),
	}
	stat := func(name, help string, kind prometheus.ValueType, of func() float64) {
		if kind == prometheus.CounterValue {
			r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, of))
			return
		}
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, of))
	}
	stat("premix_watch_points", "Samples stored.", prometheus.GaugeValue, func() float64 { return float64(s.c.DB.Stats().Samples) })
	stat("premix_watch_bytes", "Bytes of the stored data on disk.", prometheus.GaugeValue, func() float64 { return float64(s.c.DB.Stats().Bytes) })
	stat("premix_watch_refused_samples_total", "Samples that were refused.", prometheus.CounterValue, func() float64 { return float64(s.c.DB.Stats().Refused) })
	stat("premix_watch_lost_samples_total", "Samples that were accepted and then lost.", prometheus.CounterValue, func() float64 { return float64(s.c.DB.Stats().Lost) })
	if s.c.Alerts != nil {
		stat("premix_watch_alerts_firing", "Alerts that fire.", prometheus.GaugeValue, func() float64 { return float64(s.c.Alerts().Firing) })
		stat("premix_watch_alert_messages_waiting", "Messages about alerts that have not been sent.", prometheus.GaugeValue, func() float64 {
			n := 0
			for _, waiting := range s.c.Alerts().Waiting {
				n += waiting
			}
			return float64(n)
		})
	}
	r.MustRegister(m.refused, m.took, &newestValues{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request) error {
	s.metrics.handler.ServeHTTP(w, r)
	return nil
}

// newestValues is a collector whose series are not known in advance.
type newestValues struct{ s *Server }

func (n *newestValues) Describe(chan<- *prometheus.Desc) {}

func (n *newestValues) Collect(to chan<- prometheus.Metric) {
	for _, one := range n.s.c.DB.Latest(n.s.c.Now().Add(-newest)) {
		name, labels := PrometheusName(one.ID)
		values := make([]string, len(labels))
		keys := make([]string, len(labels))
		for i, l := range labels {
			keys[i], values[i] = l.Key, l.Value
		}
		help := "Series " + one.ID.Name + " of premix watch, in " + string(one.Unit) + "."
		metric, err := prometheus.NewConstMetric(prometheus.NewDesc(name, help, keys, nil), prometheus.GaugeValue, one.Value, values...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(prometheus.NewDesc(name, help, nil, nil), err)
		}
		to <- metric
	}
}

// PrometheusName returns the name and labels of a series in Prometheus:
// premix_disk_read_bytes for disk.read_bytes, with characters that Prometheus does not
// permit replaced by _.
func PrometheusName(id watch.ID) (string, []watch.Label) {
	labels := make([]watch.Label, len(id.Labels))
	for i, l := range id.Labels {
		key := allowed(l.Key)
		if strings.HasPrefix(key, "__") || key == "" || key[0] >= '0' && key[0] <= '9' {
			key = "label_" + strings.TrimLeft(key, "_")
		}
		labels[i] = watch.Label{Key: key, Value: strings.ToValidUTF8(l.Value, "�")}
	}
	return "premix_" + allowed(id.Name), labels
}

func allowed(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' {
			return c
		}
		return '_'
	}, s)
}
