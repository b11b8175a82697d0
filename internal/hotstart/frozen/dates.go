package frozen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Date is a part of some bytes that is a time as text, or as a struct tm (tm(3type)).
type Date struct {
	At     int // offset in the bytes
	Length int
	Forms  []DateForm // that the part has in both preparations
}

// DatePlace is a Date in the memory of a frozen process. Start moves it on by the time since
// the process was stopped, like a ClockPlace.
type DatePlace struct {
	Address uint64
	Date    // At is 0
}

// DateForm is a form in which a part of some bytes is a time.
type DateForm struct {
	Layout  string // of package time; "" for a struct tm
	From    int    // bytes of the text or struct that are left out, as where another text was written over them
	Zone    string // as in time.LoadLocation
	Seconds int64  // the time, in seconds since 1970
}

// layoutsOfTimes has the layouts of times in text. The texts of a layout have one length.
var layoutsOfTimes = []string{
	"Mon Jan _2 15:04:05 2006", "Mon Jan _2 2006", "Jan _2 15:04:05", "Jan 02 15:04:05", "Jan _2 2006", "2006-01-02 15:04:05", "2006-01-02T15:04:05",
	"2006/01/02 15:04:05", "20060102", "2006-01-02", "15:04:05", "02/01/2006", "01/02/2006", "02-Jan-2006", "Jan _2",
}

// A part of the text of a layout is recognised from longPart bytes on. From shortPart bytes on
// it may be a coincidence, which further preparations must rule out.
const (
	longPart  = 8
	shortPart = 2
)

// zones returns the time zones in which a program with an environment prints times.
func zones(env []string) []string {
	zone := time.Local.String()
	for _, kv := range env {
		if name, ok := strings.CutPrefix(kv, "TZ="); ok {
			zone = strings.TrimPrefix(name, ":")
		}
	}
	if zone == "UTC" || zone == "" {
		return []string{"UTC"}
	}
	return []string{zone, "UTC"}
}

// Season returns the distance from UTC, in seconds, of the time zone in which a program with an
// environment prints a time. It is 0 if the zone is not known.
func Season(t int64, env []string) int {
	l, err := time.LoadLocation(zones(env)[0])
	if err != nil {
		return 0
	}
	_, offset := time.Unix(0, t).In(l).Zone()
	return offset
}

// datesSpan is the number of seconds of a preparation's clock whose times are searched.
const datesSpan = 30

// Dates finds the times of two preparations in their bytes.
type Dates struct {
	// Short is true if further preparations show whether a short part of a text or of a struct
	// is a time.
	Short bool

	texts    map[[2]string][]DateForm
	calendar map[[2]fields][]DateForm
}

// NewDates returns a Dates for two preparations that began at a and b, with an environment.
func NewDates(a, b Moment, env []string) *Dates {
	d := &Dates{texts: map[[2]string][]DateForm{}, calendar: map[[2]fields][]DateForm{}}
	if a.Realtime == b.Realtime {
		return d
	}
	for _, zone := range zones(env) {
		l, err := time.LoadLocation(zone)
		if err != nil {
			continue
		}
		for i := range datesSpan {
			t := time.Unix(a.Realtime/1e9+int64(i), 0).In(l)
			u := t.Add(time.Duration(b.Realtime - a.Realtime))
			pair := [2]fields{fieldsOf(t), fieldsOf(u)}
			d.calendar[pair] = append(d.calendar[pair], DateForm{Zone: zone, Seconds: t.Unix()})
			for _, layout := range layoutsOfTimes {
				pair := [2]string{t.Format(layout), u.Format(layout)}
				d.texts[pair] = append(d.texts[pair], DateForm{Layout: layout, Zone: zone, Seconds: t.Unix()})
			}
		}
	}
	return d
}

// Exchange finds the times in a, of one preparation, that are in b, of the other, by its
// clock, and makes b equal to a there. A time that is the same in both is not found.
func (d *Dates) Exchange(a, b []byte) []Date { return d.exchange(a, b, 0, min(len(a), len(b))) }

// exchange does the same as Exchange, for the differences in [from, to).
func (d *Dates) exchange(a, b []byte, from, to int) []Date {
	var all []Date
	for i := from; i < to; i++ {
		if a[i] == b[i] {
			continue
		}
		best := d.text(a, b, i)
		if best.Length == 0 {
			best = d.numbers(a, b, i)
		}
		if best.Length > 0 {
			copy(b[best.At:best.At+best.Length], a[best.At:])
			all = append(all, best)
			i = best.At + best.Length - 1
		}
	}
	return all
}

// text returns the longest time as text around a byte, or a Date of no length.
func (d *Dates) text(a, b []byte, i int) Date {
	best := Date{}
	least := longPart
	if d.Short {
		least = shortPart
	}
	for pair, forms := range d.texts {
		x, y := pair[0], pair[1]
		if len(x) != len(y) || len(x) < best.Length {
			continue
		}
		for at := range len(x) {
			if x[at] != a[i] || y[at] != b[i] {
				continue
			}
			found := aroundText(a, b, i, x, y, at)
			if found.Length < best.Length || found.Length < min(len(x), least) {
				continue
			}
			if found.Length > best.Length {
				best = found
				best.Forms = nil
			}
			if found.At == best.At {
				for _, f := range forms {
					f.From = found.Forms[0].From
					best.Forms = append(best.Forms, f)
				}
			}
		}
	}
	return best
}

// aroundText returns the part of a text around a byte of it that is in a, where the other
// text is in b. The part has no spaces at its ends, which may belong to other text.
func aroundText(a, b []byte, i int, x, y string, at int) Date {
	lo, hi := at, at+1
	is := func(k int) bool { return a[i-at+k] == x[k] && b[i-at+k] == y[k] }
	for lo > 0 && i-at+lo > 0 && is(lo-1) {
		lo--
	}
	for hi < len(x) && i-at+hi < min(len(a), len(b)) && is(hi) {
		hi++
	}
	for lo < at && x[lo] == ' ' {
		lo++
	}
	for hi > at+1 && x[hi-1] == ' ' {
		hi--
	}
	return Date{At: i - at + lo, Length: hi - lo, Forms: []DateForm{{From: lo}}}
}

// numbers returns the longest part of a struct tm around a byte, or a Date of no length. The
// bytes must be aligned as in memory.
func (d *Dates) numbers(a, b []byte, i int) Date {
	best := Date{}
	least := len(fields{})
	if d.Short {
		least = fewestFields
	}
	at := i &^ 3
	is := func(at int, x, y int32) bool {
		return at >= 0 && at+4 <= min(len(a), len(b)) && number(a[at:]) == x && number(b[at:]) == y
	}
	for pair, forms := range d.calendar {
		x, y := pair[0], pair[1]
		for k := range x {
			lo, hi := k, k
			for lo > 0 && is(at+4*(lo-1-k), x[lo-1], y[lo-1]) {
				lo--
			}
			for hi < len(x) && is(at+4*(hi-k), x[hi], y[hi]) {
				hi++
			}
			found := Date{At: at + 4*(lo-k), Length: 4 * (hi - lo)}
			if hi == k || hi-lo < least || found.Length < best.Length {
				continue
			}
			if found.Length > best.Length {
				best = found
			}
			if found.At == best.At {
				for _, f := range forms {
					f.From = 4 * lo
					best.Forms = append(best.Forms, f)
				}
			}
		}
	}
	return best
}

// number reads a number of a struct tm.
func number(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) }

// fields has the numbers of a struct tm, without tm_isdst.
type fields [8]int32

// fewestFields is the number of neighbouring numbers of a struct tm that may be a coincidence,
// which further preparations must rule out. Otherwise all numbers are needed.
const fewestFields = 2

// fieldsOf returns the numbers of a time.
func fieldsOf(t time.Time) fields {
	return fields{int32(t.Second()), int32(t.Minute()), int32(t.Hour()), int32(t.Day()), int32(t.Month() - 1), int32(t.Year() - 1900), int32(t.Weekday()), int32(t.YearDay() - 1)}
}

// Hold keeps the forms of dates that are right in b, the bytes of a further preparation that
// was stopped some seconds later by its clock. Where a form is right, Hold makes b equal to a.
func Hold(dates []Date, a, b []byte, seconds int64) []Date {
	var held []Date
	for _, d := range dates {
		if d.At < 0 || d.At+d.Length > min(len(a), len(b)) {
			continue
		}
		had, now := a[d.At:d.At+d.Length], b[d.At:d.At+d.Length]
		d.Forms = slices.DeleteFunc(slices.Clone(d.Forms), func(f DateForm) bool {
			x, err := Date{Length: d.Length, Forms: []DateForm{f}}.bytes(seconds)
			return err != nil || !bytes.Equal(x, now)
		})
		if len(d.Forms) > 0 {
			held = append(held, d)
			copy(now, had)
		}
	}
	return held
}

// errAmbiguous is the error for a time that may be in one of several forms, which differ at
// present, for example by the day in two time zones.
var errAmbiguous = errors.New("a date in its memory has a form that is not known")

// passed returns the whole seconds from one time to another. It rounds down, so that no time
// moves beyond now.
func passed(stopped, now int64) int64 {
	const second = int64(time.Second)
	n := (now - stopped) / second
	if now < stopped && (now-stopped)%second != 0 {
		n--
	}
	return n
}

// bytes returns the bytes of a time after some seconds.
func (d Date) bytes(seconds int64) ([]byte, error) {
	var now []byte
	for _, f := range d.Forms {
		b, err := f.bytes(seconds)
		if err != nil {
			return nil, err
		}
		if len(b) >= f.From+d.Length {
			b = b[f.From : f.From+d.Length]
		}
		if now != nil && !bytes.Equal(b, now) || len(b) != d.Length {
			return nil, errAmbiguous
		}
		now = b
	}
	return now, nil
}

// bytes returns the whole text or the whole struct of a time after some seconds.
func (f DateForm) bytes(seconds int64) ([]byte, error) {
	l, err := time.LoadLocation(f.Zone)
	if err != nil {
		return nil, fmt.Errorf("a date in its memory: %w", err)
	}
	t := time.Unix(f.Seconds+seconds, 0).In(l)
	if f.Layout != "" {
		return []byte(t.Format(f.Layout)), nil
	}
	var b []byte
	for _, n := range fieldsOf(t) {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return b, nil
}

// MoveDates returns text with its dates moved on from the time at which a process was stopped
// to now.
func MoveDates(text []byte, dates []Date, stopped, now Moment) ([]byte, error) {
	text = slices.Clone(text)
	for _, d := range dates {
		b, err := d.bytes(passed(stopped.Realtime, now.Realtime))
		if err != nil {
			return nil, err
		}
		copy(text[d.At:], b)
	}
	return text, nil
}

// BlankDates returns text with the name of its layout in the place of each time that lies
// between two times, in whole seconds.
func BlankDates(text []byte, from, to time.Time, env []string) []byte {
	var pairs []string
	layouts := slices.Clone(layoutsOfTimes)
	slices.SortStableFunc(layouts, func(a, b string) int { return len(b) - len(a) })
	for _, layout := range layouts {
		for _, zone := range zones(env) {
			l, err := time.LoadLocation(zone)
			if err != nil {
				continue
			}
			for s := from.Unix(); s <= to.Unix(); s++ {
				pairs = append(pairs, time.Unix(s, 0).In(l).Format(layout), layout)
			}
		}
	}
	return []byte(strings.NewReplacer(pairs...).Replace(string(text)))
}
