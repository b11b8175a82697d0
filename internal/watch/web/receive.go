package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"premix/internal/kit/access"
	"premix/internal/watch"
	"premix/internal/watch/relay"
)

// Receive permits other machines to send data.
type Receive struct {
	From   *relay.Receiver
	Tokens *access.Tokens // of the machines; they do not permit to read
	Units  map[string]watch.Unit
}

// Limits of requests that bring data.
const (
	mostSent    = 4 << 20  // bytes of a request
	mostDecoded = 32 << 20 // bytes after decompression
	mostSamples = 200_000
	readWithin  = time.Minute
)

// receiving registers the routes of a receiver.
func (s *Server) receiving(r *Receive) {
	names := promNames(r.Units)
	for path, f := range map[string]func(w http.ResponseWriter, req *http.Request, user string, body []byte) error{
		relay.Path: func(w http.ResponseWriter, req *http.Request, user string, body []byte) error {
			applied, err := r.From.Receive(req.Context(), req.Header, user, body)
			var refused *relay.RequestError
			if errors.As(err, &refused) {
				return &problem{refused.Status, refused.Text, ""}
			}
			if err != nil {
				return &problem{http.StatusServiceUnavailable, err.Error(), ""}
			}
			w.Header().Set("Content-Type", "application/json")
			return ignore(json.NewEncoder(w).Encode(map[string]uint64{"applied": applied}))
		},
		writePath: func(w http.ResponseWriter, req *http.Request, user string, body []byte) error {
			return s.remoteWritten(w, req, names, user, body)
		},
	} {
		s.mux.Handle("POST "+path, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			user, ok := r.Tokens.User(req)
			err := error(&problem{http.StatusUnauthorized, "the token is missing or wrong", "send it as a header: Authorization: Bearer TOKEN"})
			if ok {
				var body []byte
				if body, err = readBody(w, req); err == nil {
					err = f(w, req, user, body)
				}
			}
			if err != nil {
				s.metrics.refused.Inc()
				var p *problem
				if errors.As(err, &p) && p.status == http.StatusServiceUnavailable {
					w.Header().Set("Retry-After", "10")
				}
				refuse(w, req, err)
			}
		}))
	}
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// Not every ResponseWriter has deadlines, as in tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readWithin))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostSent))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes", large.Limit), "send smaller requests"}
	}
	if err != nil {
		return nil, bad("", "the request was not read: %v", err)
	}
	return body, nil
}

// writePath is the path of Prometheus' remote write.
const writePath = "/api/v1/write"

// promName is a series of premix under its name in Prometheus.
type promName struct {
	name string
	unit watch.Unit
}

// promNames returns the series of premix by their names in Prometheus.
func promNames(units map[string]watch.Unit) map[string]promName {
	all := make(map[string]promName)
	for name, unit := range units {
		prom, _ := PrometheusName(watch.ID{Name: name})
		all[prom] = promName{name, unit}
	}
	return all
}

var decoded = sync.Pool{New: func() any { return new([]byte) }}

// remoteWritten stores the samples of a request of Prometheus' remote write, version 1.0.
func (s *Server) remoteWritten(w http.ResponseWriter, r *http.Request, names map[string]promName, user string, body []byte) error {
	if v := r.Header.Get("X-Prometheus-Remote-Write-Version"); strings.HasPrefix(v, "2.") || strings.Contains(r.Header.Get("Content-Type"), "io.prometheus.write.v2") {
		return &problem{http.StatusUnsupportedMediaType, "this receiver knows version 1.0 of remote write", "leave out protobuf_message in the configuration of Prometheus"}
	}
	n, err := snappy.DecodedLen(body)
	if err != nil || n > mostDecoded {
		return bad("", "this is not a request of remote write, or it has more than %d bytes", mostDecoded)
	}
	buffer := decoded.Get().(*[]byte)
	defer decoded.Put(buffer)
	if *buffer, err = snappy.Decode((*buffer)[:cap(*buffer)], body); err != nil {
		return bad("", "this is not a request of remote write: %v", err)
	}
	samples, err := decodeWriteRequest(*buffer, names, user)
	if err != nil {
		return err
	}
	if late := s.c.DB.Accept(samples); late > 0 {
		// The request is sent again; samples of the same time count once.
		return &problem{http.StatusServiceUnavailable, fmt.Sprintf("%d samples are of too many other times", late), ""}
	}
	if err := s.c.DB.Sync(r.Context()); err != nil {
		return &problem{http.StatusServiceUnavailable, err.Error(), ""}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// decodeWriteRequest decodes prometheus.WriteRequest. Samples that are not finite, such as
// marks of the end of a series, are left out, and so are histograms and metadata. A series
// of premix watch gets its own name; others are vendor.NAME. The machine is the label node,
// or else the host in the label instance.
func decodeWriteRequest(b []byte, names map[string]promName, user string) ([]watch.Sample, error) {
	var all []watch.Sample
	malformed := bad("", "this is not a request of remote write")
	err := fields(b, func(number protowire.Number, kind protowire.Type, v []byte, _ uint64) error {
		if number != fieldTimeseries || kind != protowire.BytesType {
			return nil
		}
		var labels []string
		var name, node, instance string
		at := len(all)
		err := fields(v, func(number protowire.Number, kind protowire.Type, v []byte, _ uint64) error {
			switch {
			case number == fieldLabels && kind == protowire.BytesType:
				var key, value string
				err := fields(v, func(number protowire.Number, kind protowire.Type, v []byte, _ uint64) error {
					switch {
					case number == fieldName && kind == protowire.BytesType:
						key = strings.ToValidUTF8(string(v), "\uFFFD")
					case number == fieldLabelValue && kind == protowire.BytesType:
						value = strings.ToValidUTF8(string(v), "\uFFFD")
					}
					return nil
				})
				if err != nil {
					return err
				}
				switch {
				case value == "" || key == "":
				case key == "__name__":
					name = value
				case key == "node":
					node = value
				default:
					if key == "instance" {
						instance = value
					}
					labels = append(labels, key, value)
				}
			case number == fieldSamples && kind == protowire.BytesType:
				var value float64
				var ms int64
				err := fields(v, func(number protowire.Number, kind protowire.Type, _ []byte, n uint64) error {
					switch {
					case number == fieldValue && kind == protowire.Fixed64Type:
						value = math.Float64frombits(n)
					case number == fieldTimestamp && kind == protowire.VarintType:
						ms = int64(n)
					}
					return nil
				})
				if err != nil {
					return err
				}
				if finite(value) {
					all = append(all, watch.Sample{Time: time.UnixMilli(ms), Value: value})
				}
				if len(all) > mostSamples {
					return &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d samples", mostSamples), "send smaller requests"}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if name == "" {
			return bad("", "a series has no name")
		}
		if node == "" {
			node = instance
			if i := strings.LastIndexByte(instance, ':'); i > 0 {
				node = instance[:i]
			}
		}
		if user != "" && node != user {
			return &problem{http.StatusBadRequest, fmt.Sprintf("the token is for %s, and not for %q", user, node), ""}
		}
		p, ok := names[name]
		if !ok {
			p = promName{string(watch.LayerVendor) + "." + name, watch.Count}
		}
		if node != "" {
			labels = append(labels, "node", node)
		}
		id := watch.NewID(p.name, unique(labels)...)
		for i := at; i < len(all); i++ {
			all[i].ID, all[i].Unit = id, p.unit
		}
		return nil
	})
	var p *problem
	if err != nil && !errors.As(err, &p) {
		return nil, malformed
	}
	return all, err
}

// unique leaves out the second of two labels with the same key.
func unique(labels []string) []string {
	seen := make(map[string]bool, len(labels)/2)
	out := labels[:0]
	for i := 0; i+1 < len(labels); i += 2 {
		if !seen[labels[i]] {
			seen[labels[i]] = true
			out = append(out, labels[i], labels[i+1])
		}
	}
	return out
}

var errWire = errors.New("malformed")

// fields calls f for each field of a message: v is the content of a field of bytes, n the
// value of another.
func fields(b []byte, f func(number protowire.Number, kind protowire.Type, v []byte, n uint64) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errWire
		}
		b = b[n:]
		var v []byte
		var value uint64
		switch kind {
		case protowire.BytesType:
			v, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			value, n = protowire.ConsumeFixed64(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return errWire
		}
		if err := f(number, kind, v, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
