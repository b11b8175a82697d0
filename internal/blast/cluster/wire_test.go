package cluster

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// body returns the bytes that frames send.
func body(t testing.TB, send func(*frames)) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	send(&frames{w: w, to: http.NewResponseController(w)})
	return w.Body.Bytes()
}

func TestFrames(t *testing.T) {
	text := bytes.Repeat([]byte("archive "), 300_000) // more than a frame
	whole := body(t, func(f *frames) {
		if _, err := f.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.send(frameAlive, nil), f.end(ending{Code: 3, Stderr: []byte("a warning")})); err != nil {
			t.Fatal(err)
		}
	})
	var out bytes.Buffer
	alive := 0
	e, err := receive(bytes.NewReader(whole), &out, func() { alive++ })
	if err != nil || e.Code != 3 || string(e.Stderr) != "a warning" || !bytes.Equal(out.Bytes(), text) || alive != 5 {
		t.Errorf("%+v, %v, %d bytes, %d frames", e, err, out.Len(), alive)
	}
	// A partial answer does not count as an answer.
	short := body(t, func(f *frames) {
		if _, err := f.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		if err := f.end(ending{}); err != nil {
			t.Fatal(err)
		}
	})
	for n := range len(short) {
		if _, err := receive(bytes.NewReader(short[:n]), io.Discard, func() {}); err == nil {
			t.Errorf("%d of %d bytes count as whole", n, len(short))
		}
	}
	for name, text := range map[string]string{
		"an unknown kind": "x\x00\x00\x00\x00",
		"a long frame":    "a\x7f\xff\xff\xff",
		"a full sign":     ".\x00\x00\x00\x01x",
		"no JSON":         "e\x00\x00\x00\x01x",
	} {
		if _, err := receive(strings.NewReader(text), io.Discard, func() {}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(body(f, func(f *frames) {
		_, _ = f.Write([]byte("0123456789"))
		_ = f.end(ending{Code: 1, Error: "x"})
	}))
	f.Add([]byte("e\x00\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var out bytes.Buffer
		if _, err := receive(bytes.NewReader(text), &out, func() {}); err == nil && out.Len() > len(text) {
			t.Errorf("%d bytes of %d", out.Len(), len(text))
		}
	})
}
