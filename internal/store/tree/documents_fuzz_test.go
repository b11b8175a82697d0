package tree

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"premix/internal/store/object"
)

// refusedBy fails unless err reports an invalid document or a missing signature.
func refusedBy(t *testing.T, err error) {
	t.Helper()
	if _, signature := err.(*SignatureError); !signature && !IsInvalid(err) {
		t.Fatalf("%T: %v", err, err)
	}
}

// A manifest that is accepted has consistent sizes, and is the same after it was written
// and read again.
func FuzzParseManifest(f *testing.F) {
	m := &Manifest{Format: ManifestFormat, Size: 12, Meta: 4, Bytes: 3, Inodes: 2, Pages: []Page{{object.Sum([]byte("a")), 2, 12}}}
	b, err := m.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":"` + ManifestFormat + `","size":-1,"pages":[{"chunks":9223372036854775807,"size":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			refusedBy(t, err)
			return
		}
		var sum int64
		for _, p := range m.Pages {
			if p.Chunks < 1 || p.Chunks > PageChunks || p.Size < 1 {
				t.Fatalf("%+v", p)
			}
			sum += p.Size
		}
		if sum != m.Size || m.Size > MaxImage || m.Meta > m.Size || m.Chunks() < 0 {
			t.Fatalf("%+v", m)
		}
		once, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseManifest(once)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := again.Marshal(); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q, and then %q: %v", once, twice, err)
		}
	})
}

// A page that is accepted has as many bytes as the manifest states.
func FuzzParsePage(f *testing.F) {
	b, p, err := MarshalPage([]Chunk{{object.Sum([]byte("a")), 7}, {object.Digest{}, 5 << 20}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, p.Chunks, p.Size)
	huge := bytes.Clone(b)
	binary.LittleEndian.PutUint64(huge[len(huge)-8:], math.MaxUint64)
	f.Add(huge, p.Chunks, p.Size)
	f.Fuzz(func(t *testing.T, b []byte, count int, size int64) {
		if count < 1 || count > PageChunks || size < 1 || size > MaxImage {
			return // a manifest has no such page
		}
		chunks, err := ParsePage(Page{object.Sum(b), count, size}, b)
		if err != nil {
			refusedBy(t, err)
			return
		}
		again, p, err := MarshalPage(chunks)
		if err != nil || !bytes.Equal(again, b) || p.Size != size || p.Chunks != count {
			t.Fatalf("%+v: %v", p, err)
		}
	})
}

// A profile that is accepted names chunks of its tree, and its bundles have at most as many
// parts as the profile.
func FuzzParseProfile(f *testing.F) {
	d := object.Sum([]byte("tree"))
	p := &Profile{Tree: d, Parts: []Part{{Chunk: 0}, {Chunk: 2, Runs: []object.Run{{From: 1, To: 3}}}}, Bundles: []Bundle{{Digest: object.Sum([]byte("b")), Size: 9, Parts: 2,
		Spans: []Span{{Inode: 5, Runs: []object.Run{{From: 0, To: 4}}}}}}}
	b, err := p.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, 3)
	f.Add([]byte(`{"format":"premix profile 3","tree":"`+d.String()+`","parts":["0 9223372036854775807"]}`), 1)
	f.Fuzz(func(t *testing.T, b []byte, chunks int) {
		if chunks < 0 || chunks > 1<<20 {
			return
		}
		p, err := ParseProfile(b, d, chunks)
		if err != nil {
			refusedBy(t, err)
			return
		}
		for _, n := range p.Chunks() {
			if n < 0 || n >= chunks {
				t.Fatalf("chunk %d of %d", n, chunks)
			}
		}
		parts := 0
		p.InBundles(func(_ int, b Bundle, list []Part) bool {
			parts += len(list)
			return true
		})
		if parts > len(p.Parts) {
			t.Fatalf("%d of %d parts are in bundles", parts, len(p.Parts))
		}
		// Check the profile against sizes of another tree.
		if err := p.Check(chunks, func(n int) (int64, bool, error) { return int64(n) + 1, n%3 == 0, nil }); err != nil {
			refusedBy(t, err)
		}
	})
}

// A tag record that is accepted is the record that the key has signed.
func FuzzOpenTag(f *testing.F) {
	k := NewPrivateKey([32]byte{1})
	ref := Ref{Name: "refs/x", Tag: "1"}
	want := &TagRecord{Store: "s", Name: ref.Name, Tag: ref.Tag, Serial: 7, Tree: object.Sum([]byte("t"))}
	b, err := SignTag(k, want)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"document":"e30","key":"premix-ed25519 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","signature":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := OpenTag(b, "s", ref, []PublicKey{k.Public()})
		if err != nil {
			refusedBy(t, err)
			return
		}
		if r.Serial != want.Serial || r.Tree != want.Tree || r.Name != want.Name || r.Tag != want.Tag {
			t.Fatalf("%+v was never signed", r)
		}
	})
}

// FuzzDocuments reads the other documents of a store that come from its origin.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(`{"format":"premix-store-1"}`))
	f.Add(MarshalNext([]Ref{{Name: "a", Tag: "b"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if i, err := ParseInfo(b); err != nil {
			refusedBy(t, err)
		} else if _, err := i.Marshal(); err != nil {
			t.Fatal(err)
		}
		if refs, err := ParseNext(b); err == nil && !bytes.Equal(MarshalNext(refs), b) {
			if _, err := ParseNext(MarshalNext(refs)); err != nil {
				t.Fatal(err)
			}
		}
		if ref, err := ParseRef(string(b)); err == nil {
			if again, err := ParseRef(ref.String()); err != nil || again != ref {
				t.Fatalf("%v, and then %v: %v", ref, again, err)
			}
		}
	})
}
