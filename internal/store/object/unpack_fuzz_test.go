package object

import (
	"bytes"
	"testing"
)

// FuzzUnpack checks that arbitrary bytes of an origin, in arbitrary pieces, are accepted
// only if the content has the digest.
func FuzzUnpack(f *testing.F) {
	content := bytes.Repeat([]byte("content "), 100)
	d := Sum(content)
	f.Add(Encode(nil, content), int64(len(content)), 10)
	f.Add(EncodeDense(nil, content), int64(len(content)), 1)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, int64(1)<<40, 3)
	f.Fuzz(func(t *testing.T, stored []byte, size int64, piece int) {
		if size < 0 || size > MaxContent {
			return
		}
		if got, err := Decode(nil, d, size, stored); err == nil && !bytes.Equal(got, content) {
			t.Fatalf("%d bytes of something else pass", len(got))
		} else if err != nil && !IsCorrupt(err) {
			t.Fatal(err)
		}
		u := Unpack(d, size, func([]byte) {})
		if piece > 0 {
			for n := piece; n < len(stored); n += max(piece, len(stored)/8) {
				u.More(stored[:n])
			}
		}
		u.More(stored)
		if got, err := u.End(); err == nil && !bytes.Equal(got, content) {
			t.Fatalf("%d bytes of something else pass in pieces", len(got))
		} else if err != nil && !IsCorrupt(err) {
			t.Fatal(err)
		}
	})
}
