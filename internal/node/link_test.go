package node

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// A message arrives with its descriptor even after the sender is gone. The restart of a
// node relies on this to keep descriptors.
func TestLink(t *testing.T) {
	ours, child, err := newLink()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := openLink(child)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("content"); err != nil {
		t.Fatal(err)
	}
	want := []message{
		{Op: opKeep, Key: "k", State: []byte(`{"a":1}`), fd: f},
		{Op: opCall, ID: 7, Call: &call{Target: "/t", Type: "erofs", Flags: 3}},
		{Op: opStop},
	}
	for _, m := range want {
		if err := ours.send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := ours.send(message{Op: opKeep, State: make([]byte, maxPacket)}); err == nil {
		t.Error("a packet that is too long was sent")
	}
	if err := errors.Join(ours.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		m, err := theirs.receive()
		if err != nil || m.Op != w.Op || m.Key != w.Key || m.ID != w.ID || string(m.State) != string(w.State) || (m.fd != nil) != (w.fd != nil) {
			t.Fatalf("%+v, %v, want %+v", m, err, w)
		}
		if m.fd != nil {
			got := make([]byte, 7)
			if _, err := m.fd.ReadAt(got, 0); err != nil || string(got) != "content" {
				t.Errorf("the descriptor reads %q, %v", got, err)
			}
			m.fd.Close()
		}
		if m.Call != nil && *m.Call != *w.Call {
			t.Errorf("call %+v", m.Call)
		}
	}
	if _, err := theirs.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if err := theirs.send(message{Op: opGo}); err == nil {
		t.Error("something was sent to nobody")
	}
}

// A packet that is not a message is an error, which differs from the end of the connection.
func TestLinkRefuses(t *testing.T) {
	ours, child, err := newLink()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := openLink(child)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	if err := ours.write([]byte("{"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.receive(); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "link: ") {
		t.Errorf("%v", err)
	}
}
