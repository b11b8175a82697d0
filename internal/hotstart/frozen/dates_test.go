package frozen

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"
)

// moments returns the clocks of two preparations and of a third one, and the time of a call.
func moments(t *testing.T) (a, b, c, now Moment) {
	t.Helper()
	at := func(text string) Moment {
		when, err := time.Parse(time.DateTime, text)
		if err != nil {
			t.Fatal(err)
		}
		return Moment{Realtime: when.UnixNano()}
	}
	return at("2026-11-24 20:15:35"), at("2030-04-03 04:43:41"), at("2031-02-07 11:58:12"), at("2026-12-05 08:09:07")
}

func TestDates(t *testing.T) {
	a, b, c, now := moments(t)
	for _, test := range []struct {
		name, a, b, c, now string
		short              bool
	}{
		{"ctime", "at Tue Nov 24 20:15:36 2026.", "at Wed Apr  3 04:43:42 2030.", "at Fri Feb  7 11:58:13 2031.", "at Sat Dec  5 08:09:08 2026.", false},
		{"padded day", "Nov 24 20:15:35 ..", "Apr 03 04:43:41 ..", "Feb 07 11:58:12 ..", "Dec 05 08:09:07 ..", false},
		{"day with a space", "Nov 24 20:15:35 ..", "Apr  3 04:43:41 ..", "Feb  7 11:58:12 ..", "Dec  5 08:09:07 ..", false},
		{"ISO 8601", "2026-11-24T20:15:35Z", "2030-04-03T04:43:41Z", "2031-02-07T11:58:12Z", "2026-12-05T08:09:07Z", false},
		{"two", "20:15:35 to 20:15:37", "04:43:41 to 04:43:43", "11:58:12 to 11:58:14", "08:09:07 to 08:09:09", false},
		{"remains of a longer text", "x\x004 20:15:35 2026\x00", "x\x003 04:43:41 2030\x00", "x\x007 11:58:12 2031\x00", "x\x005 08:09:07 2026\x00", false},
		{"seconds alone", "\x0035\x00", "\x0041\x00", "\x0012\x00", "\x0007\x00", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := NewDates(a, b, []string{"TZ=UTC"})
			d.Short = test.short
			left := []byte(test.b)
			dates := d.Exchange([]byte(test.a), left)
			if string(left) != test.a {
				t.Fatalf("%q is left of %q", left, test.b)
			}
			left = []byte(test.c)
			held := Hold(dates, []byte(test.a), left, passed(a.Realtime, c.Realtime))
			if string(left) != test.a {
				t.Fatalf("%q is left of %q", left, test.c)
			}
			got, err := MoveDates([]byte(test.a), held, a, now)
			if string(got) != test.now || err != nil {
				t.Errorf("%q, %v, want %q", got, err, test.now)
			}
		})
	}
}

// TestNoDates has differences that are not times, or do not match the two clocks.
func TestNoDates(t *testing.T) {
	a, b, _, _ := moments(t)
	d := NewDates(a, b, []string{"TZ=UTC"})
	for _, pair := range [][2]string{
		{"20:15:35", "04:43:42"},
		{"2026-11-24", "2030-04-02"},
		{"35", "41"},
		{"2026", "2030"},
		{"reads 24", "reads 03"},
	} {
		left := []byte(pair[1])
		if d.Exchange([]byte(pair[0]), left); string(left) == pair[0] {
			t.Errorf("all of %q and %q was found", pair[0], pair[1])
		}
	}
}

// TestDatesOfTwoForms has a text that is a time in two layouts, which lead to different texts
// later.
func TestDatesOfTwoForms(t *testing.T) {
	a, b, c, now := moments(t)
	b.Realtime += 10 * 24 * int64(time.Hour) // the day of the month has two digits, too
	d := NewDates(a, b, []string{"TZ=UTC"})
	text, left := []byte("Nov 24 20:15:35"), []byte("Apr 13 04:43:41")
	dates := d.Exchange(text, left)
	if _, err := MoveDates(text, dates, a, now); !errors.Is(err, errAmbiguous) {
		t.Errorf("%v, want %v", err, errAmbiguous)
	}
	third := []byte("Feb 07 11:58:12")
	held := Hold(dates, text, third, passed(a.Realtime, c.Realtime))
	if got, err := MoveDates(text, held, a, now); string(got) != "Dec 05 08:09:07" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	wrong := []byte("Feb 07 11:58:13")
	if held := Hold(dates, text, wrong, passed(a.Realtime, c.Realtime)); len(held) > 0 {
		t.Errorf("%+v was held by %q", held, wrong)
	}
}

func TestCalendar(t *testing.T) {
	a, b, _, now := moments(t)
	tm := func(m Moment) (all []byte) {
		for _, n := range fieldsOf(time.Unix(0, m.Realtime).UTC()) {
			all = binary.LittleEndian.AppendUint32(all, uint32(n))
		}
		return append(all, 0, 0, 0, 0)
	}
	d := NewDates(a, b, []string{"TZ=UTC"})
	x, y := tm(a), tm(b)
	clear(x[:4])
	clear(y[:4])
	if found := d.Exchange(x, y); len(found) > 0 {
		t.Errorf("a part of a struct was found: %+v", found)
	}
	d.Short = true
	for from := 0; from <= 24; from += 4 {
		x, y, want := tm(a), tm(b), tm(now)
		clear(x[:from]) // as if another value had overwritten it
		clear(y[:from])
		clear(want[:from])
		text := string(x)
		dates := d.Exchange(x, y)
		if string(y) != text {
			t.Fatalf("from %d: %x is left", from, y)
		}
		got, err := MoveDates(x, dates, a, now)
		if string(got) != string(want) || err != nil {
			t.Errorf("from %d: %x, %v, want %x", from, got, err, want)
		}
	}
}

func TestBlankDates(t *testing.T) {
	_, _, _, now := moments(t)
	from := time.Unix(0, now.Realtime)
	for text, want := range map[string]string{
		"Dec 05 08:09:08 started": "Jan 02 15:04:05 started",
		"Dec 05 08:09:30 started": "Dec 05 08:09:30 started", // not in the window
		"2026-12-05 x 20261205":   "2006-01-02 x 20060102",
		"reads 1205":              "reads 1205",
	} {
		if got := string(BlankDates([]byte(text), from, from.Add(5*time.Second), []string{"TZ=UTC"})); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
