package snapshotter

import (
	"math"
	"testing"
)

func TestDivide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ size, part, parts int64 }{
		{0, 128 << 10, 0},
		{1, 128 << 10, 1},
		{128 << 10, 128 << 10, 1},
		{128<<10 + 1, 128 << 10, 2},
		{1 << 20, 128 << 10, 8},
		{1<<20 + 1, 128<<10 + 1, 8},
		{64 << 20, 8 << 20, 8},
		{64<<20 + 1, 8 << 20, 9},
		{1 << 40, 8 << 20, 131072},
	} {
		if part, parts, err := divide(c.size); err != nil || part != c.part || parts != c.parts {
			t.Errorf("%d bytes: %d parts of %d (%v), want %d of %d", c.size, parts, part, err, c.parts, c.part)
		}
	}
	for _, size := range []int64{-1, 1<<40 + 1, math.MaxInt64} {
		if _, parts, err := divide(size); err == nil {
			t.Errorf("%d bytes: %d parts", size, parts)
		}
	}
}
