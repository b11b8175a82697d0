package object

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func random(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	for _, content := range [][]byte{
		nil, {0}, []byte("GATTACA"), bytes.Repeat([]byte("ACGT"), 1<<18), random(1 << 20), random(MaxContent),
	} {
		d := Sum(content)
		stored := Encode(nil, content)
		if len(stored) > MaxStored {
			t.Errorf("%d bytes are stored as %d, over MaxStored", len(content), len(stored))
		}
		for _, size := range []int64{int64(len(content)), -1} {
			got, err := Decode([]byte("before"), d, size, stored)
			if err != nil || !bytes.Equal(got, append([]byte("before"), content...)) {
				t.Errorf("%d bytes, size %d: %d bytes came back, %v", len(content), size, len(got), err)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	content := []byte(strings.Repeat("the quick brown fox ", 1000))
	d, n := Sum(content), int64(len(content))
	stored := Encode(nil, content)
	flipped := bytes.Clone(stored)
	flipped[len(flipped)/2] ^= 1
	streaming, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := streaming.EncodeAll(make([]byte, 64<<20), nil)
	for name, c := range map[string]struct {
		digest Digest
		size   int64
		stored []byte
	}{
		"nothing":             {d, n, nil},
		"garbage":             {d, n, []byte("<html>captive portal</html>")},
		"a flipped bit":       {d, n, flipped},
		"a cut frame":         {d, n, stored[:len(stored)-3]},
		"other content":       {d, n, Encode(nil, bytes.Repeat([]byte("x"), len(content)))},
		"too long":            {d, n, Encode(nil, append(bytes.Clone(content), 'x'))},
		"too short":           {d, n, Encode(nil, content[1:])},
		"a bomb":              {d, n, bomb},
		"a bomb of any size":  {d, -1, bomb},
		"two frames":          {d, n, append(bytes.Clone(stored), stored...)},
		"an impossible size":  {d, MaxContent + 1, stored},
		"a name of something": {Sum(nil), -1, stored},
	} {
		got, err := Decode(nil, c.digest, c.size, c.stored)
		if !IsCorrupt(err) {
			t.Errorf("%s: error %v, want a CorruptError", name, err)
		}
		if len(got) != 0 {
			t.Errorf("%s: %d bytes came out beside the error", name, len(got))
		}
	}
}

func TestDecodeInPlace(t *testing.T) {
	content := random(1 << 16)
	stored, buf := Encode(nil, content), make([]byte, 1<<16)
	if n := testing.AllocsPerRun(20, func() {
		if _, err := Decode(buf[:0], Sum(content), int64(len(content)), stored); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations with room given", n)
	}
}

func TestParseDigest(t *testing.T) {
	d := Sum([]byte("x"))
	if got, err := ParseDigest(d.String()); err != nil || got != d {
		t.Fatalf("%v, %v", got, err)
	}
	for _, s := range []string{"", d.String()[:63], d.String() + "0", strings.ToUpper(d.String()), "../" + d.String()[3:], strings.Repeat("g", 64)} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("%q was taken for a digest", s)
		}
	}
	if want := "objects/" + d.String()[:2] + "/" + d.String(); d.Path() != want {
		t.Errorf("path %s, want %s", d.Path(), want)
	}
}
