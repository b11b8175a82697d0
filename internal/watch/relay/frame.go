package relay

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"premix/internal/watch"
)

const (
	frameHead = 8
	// MaxFrame bounds the bytes of a frame's payload, and maxBody the bytes of its body.
	MaxFrame = 1 << 20
	maxBody  = 4 << 20
	// maxInFrame bounds the samples of a frame; a call with more makes several.
	maxInFrame = 4000

	kindSamples = 1
	kindTask    = 2
	kindEvent   = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrFrame is returned for bytes that are not a frame.
var ErrFrame = errors.New("not a frame of a watch")

var coders = sync.OnceValues(func() (*zstd.Encoder, *zstd.Decoder) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	d, derr := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxBody), zstd.WithDecoderConcurrency(2))
	if err := errors.Join(err, derr); err != nil {
		panic(err) // the options are constants
	}
	return e, d
})

// appendFrame appends a frame.
func appendFrame(b []byte, kind byte, body []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, frameHead)...)
	b = append(b, kind)
	e, _ := coders()
	b = e.EncodeAll(body, b)
	payload := b[at+frameHead:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(payload, castagnoli))
	return b
}

// cutFrame returns the payload of the first frame and the bytes after it. Without a whole
// frame ok is false.
func cutFrame(b []byte) (payload, rest []byte, ok bool) {
	if len(b) < frameHead {
		return nil, b, false
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || n > MaxFrame || int(n) > len(b)-frameHead {
		return nil, b, false
	}
	payload = b[frameHead : frameHead+n]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, b, false
	}
	return payload, b[frameHead+n:], true
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendSamples(b []byte, samples []watch.Sample) []byte {
	before := int64(0)
	if len(samples) > 0 {
		before = samples[0].Time.UnixMilli()
	}
	b = binary.AppendVarint(b, before)
	var id []byte
	for i := range samples {
		s := &samples[i]
		id = appendText(id[:0], s.ID.Name)
		id = appendText(id, string(s.Unit))
		for _, l := range s.ID.Labels {
			id = appendText(appendText(id, l.Key), l.Value)
		}
		b = binary.AppendUvarint(b, uint64(len(id)))
		b = append(b, id...)
		now := s.Time.UnixMilli()
		b = binary.AppendVarint(b, now-before)
		before = now
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.Value))
	}
	return b
}

// series is a decoded ID.
type series struct {
	id   watch.ID
	unit watch.Unit
}

// maxSeries bounds the series that are remembered of one sender.
const maxSeries = 100_000

// decoder decodes the frames of one sender. It remembers series, since most samples are of
// known ones.
type decoder struct {
	node  string // label of all samples
	known map[string]*series
	body  []byte
}

func take(b []byte) (text, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

// seriesOf decodes an ID. The label node becomes the sender's name.
func (d *decoder) seriesOf(id []byte) (*series, error) {
	if s := d.known[string(id)]; s != nil {
		return s, nil
	}
	name, rest, ok := take(id)
	unit, rest, unitOK := take(rest)
	if !ok || !unitOK || len(name) == 0 {
		return nil, ErrFrame
	}
	labels := []string{"node", d.node}
	seen := map[string]bool{"node": true}
	for len(rest) > 0 {
		var k, v []byte
		if k, rest, ok = take(rest); !ok {
			return nil, ErrFrame
		}
		if v, rest, ok = take(rest); !ok || len(k) == 0 {
			return nil, ErrFrame
		}
		if key := string(k); !seen[key] {
			seen[key] = true
			labels = append(labels, strings.ToValidUTF8(key, "?"), strings.ToValidUTF8(string(v), "?"))
		}
	}
	s := &series{watch.NewID(strings.ToValidUTF8(string(name), "?"), labels...), watch.Unit(strings.ToValidUTF8(string(unit), "?"))}
	if d.known == nil || len(d.known) >= maxSeries {
		d.known = make(map[string]*series)
	}
	d.known[string(id)] = s
	return s, nil
}

// frame is decoded data: one of its fields is set.
type frame struct {
	samples []watch.Sample
	task    *watch.Task
	event   *watch.Event
}

// decode decodes the payload of a frame. The samples are appended to into.
func (d *decoder) decode(payload []byte, into []watch.Sample) (f frame, err error) {
	_, z := coders()
	if d.body, err = z.DecodeAll(payload[1:], d.body[:0]); err != nil || len(d.body) > maxBody {
		return f, ErrFrame
	}
	switch payload[0] {
	case kindSamples:
		b := d.body
		at, size := binary.Varint(b)
		if size <= 0 {
			return f, ErrFrame
		}
		b = b[size:]
		for len(b) > 0 {
			id, rest, ok := take(b)
			if !ok {
				return f, ErrFrame
			}
			delta, size := binary.Varint(rest)
			if size <= 0 || len(rest)-size < 8 {
				return f, ErrFrame
			}
			s, err := d.seriesOf(id)
			if err != nil {
				return f, err
			}
			at += delta
			into = append(into, watch.Sample{ID: s.id, Unit: s.unit, Time: time.UnixMilli(at), Value: math.Float64frombits(binary.LittleEndian.Uint64(rest[size:]))})
			b = rest[size+8:]
		}
		f.samples = into
		return f, nil
	case kindTask:
		f.task = &watch.Task{}
		err = json.Unmarshal(d.body, f.task)
	case kindEvent:
		f.event = &watch.Event{}
		err = json.Unmarshal(d.body, f.event)
	default:
		return f, ErrFrame
	}
	if err != nil {
		return f, ErrFrame
	}
	return f, nil
}
