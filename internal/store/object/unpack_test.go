package object

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// what returns content that compresses to about half its size.
func what(n int) []byte {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = "acgtnACGTN,.:;!?"[r.IntN(16)]
	}
	return b
}

// Content is available before the end of the stored form has arrived, in steps of any size,
// and is equal to the original.
func TestUnpack(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 300_000, 3_000_000} {
		content := what(n)
		stored := EncodeDense(nil, content)
		for _, step := range []int{1 << 20, 14_480, 777} {
			var last []byte
			early := 0
			came := make(chan struct{}, 1)
			u := Unpack(Sum(content), int64(n), func(soFar []byte) {
				if !bytes.HasPrefix(content, soFar) || len(soFar) <= len(last) {
					t.Errorf("%d bytes by %d: %d bytes behind %d, or they are wrong", n, step, len(soFar), len(last))
				}
				last = soFar
				select {
				case came <- struct{}{}:
				default:
				}
			})
			for at := 0; at < len(stored); at += step {
				u.More(stored[:min(len(stored), at+step)])
				if at < len(stored)/2 && at+step >= len(stored)/2 && n > 1_000_000 {
					<-came // half of the stored form contains more than one block
					early++
				}
			}
			got, err := u.End()
			if err != nil || !bytes.Equal(got, content) || !bytes.Equal(last, content) {
				t.Errorf("%d bytes by %d: %d bytes, %v; told of %d", n, step, len(got), err, len(last))
			}
			if n > 1_000_000 && step < 1<<20 && early == 0 {
				t.Errorf("nothing of %d bytes came early", n)
			}
		}
	}
}

// A transfer that starts again over another connection continues where the first one ended.
func TestUnpackAgain(t *testing.T) {
	content := what(1_000_000)
	stored := Encode(nil, content)
	u := Unpack(Sum(content), int64(len(content)), func([]byte) {})
	u.More(stored[:200_000])
	for at := 0; at < len(stored); at += 30_000 {
		again := bytes.Clone(stored)
		u.More(again[:min(len(stored), at+30_000)])
	}
	if got, err := u.End(); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	content := what(400_000)
	stored, d := Encode(nil, content), Sum(content)
	other := bytes.Clone(stored)
	other[len(other)/2] ^= 1
	for name, c := range map[string]struct {
		stored []byte
		d      Digest
		size   int64
	}{
		"cut short":            {stored[:len(stored)/2], d, 400_000},
		"cut by a byte":        {stored[:len(stored)-1], d, 400_000},
		"nothing":              {nil, d, 400_000},
		"a wrong byte":         {other, d, 400_000},
		"no frame":             {content, d, 400_000},
		"another object":       {Encode(nil, what(400_001)), d, 400_001},
		"a byte more":          {stored, d, 399_999},
		"a byte less":          {stored, d, 400_001},
		"two frames":           {append(bytes.Clone(stored), stored...), d, 400_000},
		"a size over all":      {stored, d, MaxContent + 1},
		"a size that is none":  {stored, d, -1},
		"something behind it":  {append(bytes.Clone(stored), 1, 2, 3, 4, 5), d, 400_000},
		"the digest of others": {stored, Digest{1}, 400_000},
	} {
		u := Unpack(c.d, c.size, func(soFar []byte) {
			if int64(len(soFar)) > c.size {
				t.Errorf("%s: told of %d bytes", name, len(soFar))
			}
		})
		u.More(c.stored)
		if got, err := u.End(); !IsCorrupt(err) || got != nil {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func BenchmarkUnpack(b *testing.B) {
	content := what(4 << 20)
	stored, d := EncodeDense(nil, content), Sum(content)
	b.Run("whole", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if _, err := Decode(nil, d, int64(len(content)), stored); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("arriving", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			u := Unpack(d, int64(len(content)), func([]byte) {})
			for at := 0; at < len(stored); at += 64 << 10 {
				u.More(stored[:min(len(stored), at+64<<10)])
			}
			if _, err := u.End(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
