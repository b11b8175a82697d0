package tree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/store/object"
)

func chunks(n int) []Chunk {
	var out []Chunk
	for i := range n {
		c := Chunk{object.Sum([]byte{byte(i), byte(i >> 8)}), int64(i%1000 + 1)}
		if i%5 == 4 {
			c = Chunk{Size: 1 << 40}
		}
		out = append(out, c)
	}
	return out
}

func TestPage(t *testing.T) {
	for _, n := range []int{1, 5, PageChunks} {
		want := chunks(n)
		if n == PageChunks { // holes of 1 TiB would not fit into an image
			for i := range want {
				want[i].Size = min(want[i].Size, MaxChunk)
			}
		}
		content, page, err := MarshalPage(want)
		if err != nil {
			t.Fatal(err)
		}
		if page.Chunks != n || page.PageSize() != int64(len(content)) || page.Digest != object.Sum(content) {
			t.Errorf("%d chunks: page %+v of %d bytes", n, page, len(content))
		}
		got, err := ParsePage(page, content)
		if err != nil || len(got) != n {
			t.Fatalf("%d chunks came back as %d, %v", n, len(got), err)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("chunk %d: %+v, want %+v", i, got[i], want[i])
			}
		}
		if o := Offsets(7, got); o[0] != 7 || o[n]-o[0] != page.Size {
			t.Errorf("offsets from %d to %d for %d bytes", o[0], o[n], page.Size)
		}
	}
	for name, c := range map[string][]Chunk{
		"no chunk": nil, "too many": chunks(PageChunks + 1),
		"an empty chunk": {{Digest: object.Sum(nil)}}, "a large chunk": {{Digest: object.Sum(nil), Size: MaxChunk + 1}},
	} {
		if _, _, err := MarshalPage(c); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestParsePageRefuses(t *testing.T) {
	content, page, err := MarshalPage(chunks(10))
	if err != nil {
		t.Fatal(err)
	}
	other := page
	other.Size++
	zero := bytes.Clone(content)
	copy(zero[8+32:], make([]byte, 8))
	huge := bytes.Clone(content)
	copy(huge[8+4*40+32:], bytes.Repeat([]byte{0xff}, 8))
	for name, c := range map[string]struct {
		page    Page
		content []byte
	}{
		"cut": {page, content[:len(content)-1]}, "longer": {page, append(bytes.Clone(content), 0)},
		"nothing": {page, nil}, "no magic": {page, append([]byte("premixP2"), content[8:]...)},
		"another size": {other, content}, "an empty chunk": {page, zero}, "a hole below zero": {page, huge},
	} {
		if _, err := ParsePage(c.page, c.content); !IsInvalid(err) {
			t.Errorf("%s: error %v, want an InvalidError", name, err)
		}
	}
}

func TestManifest(t *testing.T) {
	_, page, err := MarshalPage(chunks(3))
	if err != nil {
		t.Fatal(err)
	}
	m := &Manifest{Size: 2 * page.Size, Meta: 2, Bytes: 9, Inodes: 2, Pages: []Page{page, page}}
	content, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseManifest(content)
	if err != nil || got.Chunks() != 6 || got.Size != m.Size {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, edit := range map[string]func(string) string{
		"cut":           func(s string) string { return s[:len(s)-4] },
		"two":           func(s string) string { return s + s },
		"unknown field": func(s string) string { return strings.Replace(s, `"meta"`, `"mega":1,"meta"`, 1) },
		"later format":  func(s string) string { return strings.Replace(s, "tree 1", "tree 2", 1) },
		"other size":    func(s string) string { return strings.Replace(s, `"size": 12`, `"size": 13`, 1) },
		"meta too long": func(s string) string { return strings.Replace(s, `"meta": 2`, `"meta": 200`, 1) },
		"negative":      func(s string) string { return strings.Replace(s, `"bytes": 9`, `"bytes": -9`, 1) },
		"no digest":     func(s string) string { return strings.Replace(s, page.Digest.String(), strings.Repeat("0", 64), 1) },
		"many chunks":   func(s string) string { return strings.Replace(s, `"chunks": 3`, `"chunks": 9999`, 1) },
	} {
		edited := edit(string(content))
		if edited == string(content) {
			t.Fatalf("%s: nothing was changed in\n%s", name, content)
		}
		if _, err := ParseManifest([]byte(edited)); !IsInvalid(err) {
			t.Errorf("%s: error %v, want an InvalidError", name, err)
		}
	}
	if content, err := (&Manifest{}).Marshal(); err != nil {
		t.Errorf("the empty manifest: %v", err)
	} else if _, err := ParseManifest(content); err != nil {
		t.Errorf("the empty manifest: %v", err)
	}
}

func TestParseRef(t *testing.T) {
	d := object.Sum(nil)
	for s, want := range map[string]Ref{
		"refs":                           {Name: "refs", Tag: "latest"},
		"refs/bacteria:2026":             {Name: "refs/bacteria", Tag: "2026"},
		"a.b-c_d/0:V1.2-x_y":             {Name: "a.b-c_d/0", Tag: "V1.2-x_y"},
		"refs@" + d.String():             {Name: "refs", Digest: d},
		"refs/x@blake3:" + d.String():    {Name: "refs/x", Digest: d},
		"refs:" + strings.Repeat("9", 9): {Name: "refs", Tag: "999999999"},
	} {
		got, err := ParseRef(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
		if again, err := ParseRef(got.String()); err != nil || again != got {
			t.Errorf("%s does not come back from %s", s, got)
		}
	}
	for _, s := range []string{"", ":", "a:", ":a", "A", "a/", "/a", "a//b", "../a", "a/../b", "a/.", "a b", "a:b:c", "a@", "a@12", "a:" + strings.Repeat("x", 129), "a:.x", "a:x/y", "a:1.history", strings.Repeat("a", 201)} {
		if got, err := ParseRef(s); err == nil {
			t.Errorf("%q was taken for %+v", s, got)
		}
	}
}

func TestKeys(t *testing.T) {
	k := NewPrivateKey([32]byte{1, 2, 3})
	again, err := ParsePrivateKey(k.Secret() + "\n")
	if err != nil || again != k {
		t.Fatal(err)
	}
	if p, err := ParsePublicKey(k.Public().String()); err != nil || p != k.Public() {
		t.Fatal(err)
	}
	secret := k.Secret()
	for _, s := range []string{"", secret[:len(secret)-2], k.Public().String(), secret + "AA"} {
		_, err := ParsePrivateKey(s)
		if err == nil {
			t.Errorf("%q was taken for a private key", s)
		} else if len(s) > 30 && strings.Contains(err.Error(), s[25:]) {
			t.Errorf("the message quotes the key: %v", err)
		}
	}
}

func TestSignatures(t *testing.T) {
	k, other := NewPrivateKey([32]byte{1}), NewPrivateKey([32]byte{2})
	keys := []PublicKey{other.Public(), k.Public()}
	ref := Ref{Name: "refs/x", Tag: "1"}
	tag := &TagRecord{Store: "s", Name: "refs/x", Tag: "1", Tree: object.Sum(nil), Serial: 3, Time: time.Unix(1, 0).UTC()}
	signed, err := SignTag(k, tag)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := OpenTag(signed, "s", ref, keys); err != nil || *got != *tag {
		t.Fatalf("%+v, %v", got, err)
	}
	var bad *SignatureError
	if _, err := OpenTag(signed, "s", ref, keys[:1]); !errors.As(err, &bad) || bad.Key != k.Public() {
		t.Errorf("a key that is not trusted: %v", err)
	}
	if _, err := OpenTag(bytes.Replace(signed, []byte(`"serial":3`), []byte(`"serial":4`), 1), "s", ref, keys); !errors.As(err, &bad) {
		t.Errorf("a changed record: %v", err)
	}
	if _, err := OpenTag(signed, "t", ref, keys); !IsInvalid(err) {
		t.Errorf("a record of another store: %v", err)
	}
	if _, err := OpenTag(signed, "s", Ref{Name: "refs/y", Tag: "1"}, keys); !IsInvalid(err) {
		t.Errorf("a record of another name: %v", err)
	}

	// The envelope of one kind of document is not accepted as another kind.
	var e Envelope
	if err := json.Unmarshal(signed, &e); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenProfile(signed, "s", tag.Tree, "p", keys); !errors.As(err, &bad) {
		t.Errorf("a tag record as a profile record: %v", err)
	}
	profile := &ProfileRecord{Store: "s", Tree: tag.Tree, Name: "p", Profile: object.Sum([]byte("p")), Time: time.Unix(2, 0).UTC()}
	if signed, err = SignProfile(k, profile); err != nil {
		t.Fatal(err)
	}
	if got, err := OpenProfile(signed, "s", tag.Tree, "p", keys); err != nil || *got != *profile {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := OpenProfile(signed, "s", object.Sum([]byte("t")), "p", keys); !IsInvalid(err) {
		t.Errorf("a profile of another tree: %v", err)
	}
}

func TestInfo(t *testing.T) {
	i := &Info{StoreFormat, strings.Repeat("0f", 16), []PublicKey{NewPrivateKey([32]byte{}).Public()}}
	content, err := i.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseInfo(content); err != nil || got.ID != i.ID || got.Keys[0] != i.Keys[0] {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, s := range []string{"", "{}", "<html>", strings.Replace(string(content), "store 1", "store 9", 1), strings.Replace(string(content), "0f0f", "../f", 1), strings.Replace(string(content), "ed25519", "rsa", 1)} {
		if _, err := ParseInfo([]byte(s)); !IsInvalid(err) {
			t.Errorf("%.40q: %v", s, err)
		}
	}
}

func TestProfile(t *testing.T) {
	d := object.Sum(nil)
	p := &Profile{Tree: d, Parts: []Part{{Chunk: 3}, {1, []object.Run{{From: 0, To: 2}, {From: 4, To: 5}}}, {Chunk: 2}},
		Bundles: []Bundle{{Digest: object.Sum([]byte("b")), Size: 30, Parts: 2}}}
	content, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte(`"1:0-1,4"`)) {
		t.Errorf("it is written\n%s", content)
	}
	got, err := ParseProfile(content, d, 4)
	if err != nil || !reflect.DeepEqual(got, p) || !slices.Equal(got.Chunks(), []int{3, 1, 2}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := ParseProfile(content, d, 3); !IsInvalid(err) {
		t.Errorf("a chunk beyond the tree: %v", err)
	}
	if _, err := ParseProfile(content, object.Sum([]byte("t")), 4); !IsInvalid(err) {
		t.Errorf("another tree: %v", err)
	}
	if _, err := ParseProfile(bytes.Replace(content, []byte("profile 2"), []byte("profile 1"), 1), d, 4); !IsInvalid(err) {
		t.Errorf("another format: %v", err)
	}
	for name, b := range map[string]Bundle{
		"no size": {Digest: d, Parts: 1}, "no part": {Digest: d, Size: 1}, "no digest": {Size: 1, Parts: 1},
		"too long": {Digest: d, Size: MaxBundle + 1, Parts: 1}, "more parts than there are": {Digest: d, Size: 1, Parts: 2},
		"fewer than none":         {Digest: d, Size: 1, Parts: -1},
		"blocks in another order": {Digest: d, Size: 1, Parts: 1, Spans: []Span{{1, []object.Run{{From: 4, To: 5}, {From: 0, To: 1}}}}},
	} {
		content, err := (&Profile{Tree: d, Parts: []Part{{Chunk: 1}}, Bundles: []Bundle{b}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseProfile(content, d, 4); !IsInvalid(err) {
			t.Errorf("%s: error %v, want an InvalidError", name, err)
		}
	}
	for _, part := range []string{"", "-1", "x", "1:", "1:2-", "1:3-2", "1:2-2", "1:1,2", "1:5,2", "1:0-4096", "01", "1:+2", "1:2,", "99999999999", "1:-1"} {
		content := fmt.Sprintf(`{"format":"premix profile 2","tree":"%s","parts":["%s"]}`, d, part)
		if p, err := ParseProfile([]byte(content), d, 4); !IsInvalid(err) {
			t.Errorf("%q was taken for %+v: %v", part, p, err)
		}
	}
}

// A profile with spans has another format, because a premix that does not support spans
// must refuse it.
func TestSpans(t *testing.T) {
	d := object.Sum(nil)
	p := &Profile{Tree: d, Parts: []Part{{Chunk: 1}},
		Bundles: []Bundle{{Digest: d, Size: 1, Parts: 1, Spans: []Span{{0, []object.Run{{From: 0, To: 1}}}, {1 << 33, []object.Run{{From: 2, To: 4}, {From: 9, To: 10}}}}}}}
	content, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{SpansFormat, `"0:0"`, `"8589934592:2-3,9"`} {
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("it has no %s:\n%s", want, content)
		}
	}
	if got, err := ParseProfile(content, d, 2); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, span := range []string{"", "5", "-1:2", "5:", "5:3-2", "05:1", "5:1,", "x:1"} {
		content := bytes.Replace(content, []byte(`"0:0"`), []byte(`"`+span+`"`), 1)
		if p, err := ParseProfile(content, d, 2); !IsInvalid(err) {
			t.Errorf("%q was taken for %+v: %v", span, p, err)
		}
	}
}

func TestProfileFitsItsTree(t *testing.T) {
	chunk := func(i int) (int64, bool, error) {
		return []int64{10 << 10, 10<<10 + 1, 1 << 40}[i], i == 2, nil
	}
	whole := []Part{{Chunk: 0}, {Chunk: 2}, {1, []object.Run{{From: 10, To: 11}}}}
	size := int64(10<<10) + object.SliceSize(10<<10+1, whole[2].Runs)
	for name, p := range map[string]struct {
		Profile
		ok bool
	}{
		"it fits":             {Profile{Parts: whole, Bundles: []Bundle{{Digest: object.Digest{1}, Size: size, Parts: 3}}}, true},
		"a bundle is shorter": {Profile{Parts: whole, Bundles: []Bundle{{Digest: object.Digest{1}, Size: size + 1, Parts: 3}}}, false},
		"leaves beyond":       {Profile{Parts: []Part{{0, []object.Run{{From: 10, To: 11}}}}}, false},
		"no such chunk":       {Profile{Parts: []Part{{Chunk: 3}}}, false},
	} {
		if err := p.Check(3, chunk); (err == nil) != p.ok || err != nil && !IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestJoin(t *testing.T) {
	in := []object.Run{{From: 7, To: 9}, {From: 0, To: 2}, {From: 1, To: 4}, {From: 5, To: 6}, {From: 20, To: 21}}
	if got := fmt.Sprint(JoinRuns(in, 0)); got != "[{0 4} {5 6} {7 9} {20 21}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(JoinRuns(in, 1)); got != "[{0 9} {20 21}]" {
		t.Error(got)
	}
}
