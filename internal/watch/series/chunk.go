package series

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"slices"
)

// blockSamples is the number of samples that are compressed together in memory.
const blockSamples = 128

// column holds the samples of one series in one window, in the order in which they came:
// blocks that never change, then an uncompressed tail.
type column struct {
	blocks [][]byte
	times  []int64 // the tail, ms since 1970
	values []float64
	count  int
	size   int     // bytes of memory, estimated
	first  int64   // least time
	last   int64   // greatest time
	newest float64 // value at that time
	late   bool    // the times are not in rising order everywhere
}

// add appends a sample and returns the bytes of memory that it took.
func (c *column) add(t int64, v float64) int {
	before := c.size
	switch {
	case c.count == 0:
		c.first, c.last, c.newest = t, t, v
	case t > c.last:
		c.last, c.newest = t, v
	default:
		c.late = true
		c.first = min(c.first, t)
	}
	if len(c.times) == blockSamples {
		b := appendBlock(nil, c.times, c.values)
		c.size += len(b) + 24 - 16*blockSamples
		c.blocks = append(c.blocks, b)
		c.times, c.values = c.times[:0], c.values[:0]
	}
	c.times, c.values = append(c.times, t), append(c.values, v)
	c.count++
	c.size += 16
	return c.size - before
}

// view returns a copy of the column as it is now. It may be read while samples are added to
// the column.
func (c *column) view() column {
	v := *c
	v.times, v.values = slices.Clone(c.times), slices.Clone(c.values)
	return v
}

// samples appends the samples in the column, sorted by time, with each time once.
func (c *column) samples(times []int64, values []float64) ([]int64, []float64) {
	from := len(times)
	times, values = slices.Grow(times, c.count), slices.Grow(values, c.count)
	for _, b := range c.blocks {
		var err error
		if times, values, err = readBlock(b, times, values); err != nil {
			panic("series: a block that this process made: " + err.Error())
		}
	}
	times, values = append(times, c.times...), append(values, c.values...)
	if c.late {
		n := sortSamples(times[from:], values[from:])
		times, values = times[:from+n], values[:from+n]
	}
	return times, values
}

// sortSamples sorts samples by time and keeps the last of several with the same time. It
// returns the number of samples left.
func sortSamples(times []int64, values []float64) int {
	if !slices.IsSorted(times) {
		order := make([]int, len(times))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case times[a] < times[b]:
				return -1
			case times[a] > times[b]:
				return 1
			}
			return 0
		})
		t, v := slices.Clone(times), slices.Clone(values)
		for to, from := range order {
			times[to], values[to] = t[from], v[from]
		}
	}
	n := 0
	for i := range times {
		if n > 0 && times[n-1] == times[i] {
			n--
		}
		times[n], values[n] = times[i], values[i]
		n++
	}
	return n
}

// appendBlock appends samples as a block:
//
//	uvarint  number of samples
//	varint   first time, then the difference to it, then differences of differences
//	values   8 bytes (little endian), then of each the exclusive or with the one before:
//	         a byte with the number of its leading zero bytes (high nibble) and of the
//	         bytes that follow (low nibble), then these; trailing zero bytes are left out
//
// The format follows Pelkonen and others, Gorilla (VLDB 2015), with bytes in place of bits.
func appendBlock(b []byte, times []int64, values []float64) []byte {
	b = binary.AppendUvarint(b, uint64(len(times)))
	var last, delta int64
	for i, t := range times {
		switch i {
		case 0:
			b = binary.AppendVarint(b, t)
		default:
			d := t - last
			b = binary.AppendVarint(b, d-delta)
			delta = d
		}
		last = t
	}
	var before uint64
	for i, v := range values {
		u := math.Float64bits(v)
		x := u ^ before
		before = u
		if i == 0 {
			b = binary.LittleEndian.AppendUint64(b, u)
			continue
		}
		if x == 0 {
			b = append(b, 0)
			continue
		}
		lead, trail := bits.LeadingZeros64(x)/8, bits.TrailingZeros64(x)/8
		n := 8 - lead - trail
		b = append(b, byte(lead<<4|n))
		x >>= 8 * trail
		for range n {
			b = append(b, byte(x))
			x >>= 8
		}
	}
	return b
}

var errBlock = errors.New("not a block of samples")

// readBlock appends the samples of a block.
func readBlock(b []byte, times []int64, values []float64) ([]int64, []float64, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count > uint64(len(b)) {
		return times, values, errBlock
	}
	b = b[n:]
	var last, delta int64
	for i := range count {
		d, n := binary.Varint(b)
		if n <= 0 {
			return times, values, errBlock
		}
		b = b[n:]
		if i == 0 {
			last = d
		} else {
			delta += d
			last += delta
		}
		times = append(times, last)
	}
	var before uint64
	for i := range count {
		if i == 0 {
			if len(b) < 8 {
				return times, values, errBlock
			}
			before, b = binary.LittleEndian.Uint64(b), b[8:]
		} else {
			if len(b) == 0 {
				return times, values, errBlock
			}
			lead, n := int(b[0]>>4), int(b[0]&15)
			b = b[1:]
			if lead+n > 8 || n > len(b) {
				return times, values, errBlock
			}
			var x uint64
			for k := n - 1; k >= 0; k-- {
				x = x<<8 | uint64(b[k])
			}
			b = b[n:]
			if n > 0 {
				before ^= x << (8 * (8 - lead - n))
			}
		}
		values = append(values, math.Float64frombits(before))
	}
	return times, values, nil
}
