package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"premix/internal/store/object"
)

// frames returns frames one after the other.
func frames(f *testing.F, list ...func(io.Writer) error) []byte {
	f.Helper()
	var b bytes.Buffer
	for _, write := range list {
		if err := write(&b); err != nil {
			f.Fatal(err)
		}
	}
	return b.Bytes()
}

func frameOf(kind byte, parts ...[]byte) func(io.Writer) error {
	return func(w io.Writer) error { return writeFrame(w, kind, parts...) }
}

func jsonFrame(f *testing.F, kind byte, v any) func(io.Writer) error {
	f.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		f.Fatal(err)
	}
	return frameOf(kind, b)
}

// FuzzFrames checks that every frame and its packed content is read or refused, and has a
// bounded length.
func FuzzFrames(f *testing.F) {
	f.Add(frames(f, frameOf(kindEntries, packEntries([]entry{{kind: entryFile, path: "a", size: 5, mode: 0o644}, {kind: entryLink, path: "b", link: "a"}}))))
	f.Add(frames(f, frameOf(kindChunks, packChunks([]chunk{{size: 5, digest: object.Sum([]byte("hello"))}}))))
	f.Add([]byte{kindData, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		var buf []byte
		for {
			_, payload, err := readFrame(in, &buf)
			if err != nil {
				return
			}
			if len(payload) > maxFrame {
				t.Fatalf("a frame of %d bytes", len(payload))
			}
			if list, err := unpackEntries(payload); err == nil {
				if again, err := unpackEntries(packEntries(list)); err != nil || len(again) != len(list) {
					t.Fatalf("%d entries, and then %d: %v", len(list), len(again), err)
				}
			}
			if list, err := unpackChunks(payload); err == nil {
				if again, err := unpackChunks(packChunks(list)); err != nil || len(again) != len(list) {
					t.Fatalf("%d chunks, and then %d: %v", len(list), len(again), err)
				}
			}
			if len(payload) < chunkHeader {
				continue
			}
			if c, err := parseChunk(payload); err == nil && (c.offset < 0 || c.size > maxHole) {
				t.Fatalf("%+v", c)
			}
		}
	})
}

// jailed creates a served directory and one beside it. It returns the place in the first
// and a check of the second.
func jailed(t *testing.T) (at place, check func()) {
	t.Helper()
	base := t.TempDir()
	for name, text := range map[string]string{"served/old": "old", "outside/secret": "the secret of others"} {
		path := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(base, "served/way")); err != nil {
		t.Fatal(err)
	}
	jail, err := os.OpenRoot(filepath.Join(base, "served"))
	if err != nil {
		t.Fatal(err)
	}
	at, err = within(jail, "copy")
	if err != nil {
		t.Fatal(err)
	}
	return at, func() {
		t.Helper()
		jail.Close()
		entries, err := os.ReadDir(filepath.Join(base, "outside"))
		if err != nil || len(entries) != 1 {
			t.Fatalf("outside: %v, %v", entries, err)
		}
		text, err := os.ReadFile(filepath.Join(base, "outside/secret"))
		if err != nil || string(text) != "the secret of others" {
			t.Fatalf("outside: %q, %v", text, err)
		}
		if list, err := os.ReadDir(base); err != nil || len(list) != 2 {
			t.Fatalf("beside what is served: %v, %v", list, err)
		}
	}
}

// FuzzReceiver checks that a receiver does not write outside of its place, whatever a
// sender sends, and that it ends when the sender does.
func FuzzReceiver(f *testing.F) {
	hello := []byte("hello")
	c := chunk{entry: 1, size: 5, digest: object.Sum(hello)}
	end := jsonFrame(f, kindEnd, totals{Entries: 2, Files: 1, Bytes: 5, Sent: 5})
	top := entry{kind: entryDir, mode: 0o755}
	good := packEntries([]entry{top, {kind: entryFile, path: "a", size: 5, mode: 0o644}})
	f.Add(frames(f, frameOf(kindEntries, good), frameOf(kindData, c.append(nil), hello), end))
	f.Add(frames(f, frameOf(kindEntries, packEntries([]entry{{kind: entryFile, size: 5, mode: 0o644}})), frameOf(kindData, (&chunk{size: 5, digest: object.Sum(hello)}).append(nil), hello), end))
	// The data belongs to an entry that was not listed. An earlier receiver waited for it
	// without end.
	f.Add(frames(f, frameOf(kindEntries, packEntries([]entry{top})), frameOf(kindData, c.append(nil), hello), end))
	f.Add(frames(f, frameOf(kindEntries, packEntries([]entry{top})), frameOf(kindChunks, packChunks([]chunk{c, c, c})), frameOf(kindChunks, packChunks([]chunk{c})), frameOf(kindChunks, packChunks([]chunk{c})), end))
	for _, path := range []string{"../outside/new", "/etc/x", "way/new", "a/../../outside/new", "a\x00b"} {
		f.Add(frames(f, frameOf(kindEntries, packEntries([]entry{top, {kind: entryFile, path: path, size: 5, mode: 0o755 | os.ModeSetuid}})), frameOf(kindData, c.append(nil), hello), end))
	}
	f.Add(frames(f, frameOf(kindEntries, packEntries([]entry{top, {kind: entryLink, path: "l", link: "../../outside", mode: 0o777}, {kind: entryFile, path: "l/new", size: 5, mode: 0o644}})), frameOf(kindChunks, packChunks([]chunk{c})), end))
	f.Fuzz(func(t *testing.T, b []byte) {
		at, check := jailed(t)
		defer check()
		ctl := newControl(bytes.NewReader(b), io.Discard)
		hung := time.AfterFunc(30*time.Second, func() { panic("the receiver does not end") })
		defer hung.Stop()
		_ = answer(context.Background(), ctl, &request{Version: Version}, at, nil, func(func(*stream)) {}) // most requests are refused
	})
}

// FuzzSender checks that a sender does not read outside of its place, whatever a receiver
// requests, and that it ends when the receiver does.
func FuzzSender(f *testing.F) {
	begin := jsonFrame(f, kindStart, start{Offer: true})
	f.Add("old", frames(f, begin, frameOf(kindWants, []byte{0, 0, 0, 0, 1})))
	f.Add("", frames(f, jsonFrame(f, kindStart, start{Content: true, Offer: true}), frameOf(kindNone), frameOf(kindWants, []byte{255, 255, 255, 255, 255})))
	f.Add("way/secret", frames(f, jsonFrame(f, kindStart, start{})))
	f.Add("../outside/secret", frames(f, jsonFrame(f, kindStart, start{}), jsonFrame(f, kindDone, totals{Entries: 1})))
	f.Fuzz(func(t *testing.T, path string, b []byte) {
		at, check := jailed(t)
		defer check()
		at, err := within(at.jail, path)
		if err != nil {
			return
		}
		var stderr bytes.Buffer
		ctl := newControl(bytes.NewReader(b), &stderr)
		_ = answer(context.Background(), ctl, &request{Version: Version, Send: true, Path: []byte(path)}, at, nil, func(func(*stream)) {})
		if bytes.Contains(stderr.Bytes(), []byte("the secret of others")) {
			t.Fatalf("the content of a file outside was sent for %q", path)
		}
	})
}

// FuzzAsked reads requests of a near end, in a word of the command or in a frame.
func FuzzAsked(f *testing.F) {
	f.Add("", frames(f, jsonFrame(f, kindRequest, request{Version: Version, Path: []byte("/x"), Have: [][]byte{nil}})))
	f.Add("eyJWZXJzaW9uIjoyfQ", []byte{})
	f.Fuzz(func(t *testing.T, word string, b []byte) {
		q, err := newControl(bytes.NewReader(b), io.Discard).asked(word)
		if err == nil {
			_, err = json.Marshal(q)
		}
		if err != nil && err.Error() == "" {
			t.Fatal("an error without words")
		}
	})
}
