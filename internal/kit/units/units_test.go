package units

import (
	"math"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "512 B": 512, "1k": 1 << 10, "1K": 1 << 10, "1 KiB": 1 << 10, "1KB": 1000, "1kb": 1000,
		"16G": 16 << 30, "16GiB": 16 << 30, "16GB": 16e9, "16 GB": 16e9, "500 GB": 500e9, "1.5T": 3 << 39, "0.5K": 512,
		"1.0001K": 1024, "2P": 2 << 50, "7E": 7 << 60, "9EB": 9e18, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseSize(s); got != want || err != nil {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "G", "-1G", "1.G", ".5G", "1e3", "1 X", "1GG", "1Gi", "1 G B", "8E", "9223372036854775808", "0x10", "1,5G", " 1G", "1G "} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", s, got)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1025: "1.0 KiB", 1536: "1.5 KiB", 99 << 10: "99 KiB", 100 << 10: "100 KiB", 999 << 10: "999 KiB",
		1000 << 10: "1.0 MiB", 2 << 30: "2 GiB", 200 << 30: "200 GiB", 1 << 50: "1 PiB", math.MaxInt64: "8 EiB", -1536: "-1.5 KiB", -5: "-5 B",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
}

// A printed size can be parsed, and differs from the original only in its last digit.
func TestSizeIsRead(t *testing.T) {
	for n := int64(1); n > 0 && n < math.MaxInt64/3; n = n*3 + 1 {
		back, err := ParseSize(Size(n))
		if err != nil || math.Abs(float64(back-n)) > 0.05*float64(n) {
			t.Errorf("%d is printed as %s, which is read as %d, %v", n, Size(n), back, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "2h": 2 * time.Hour, "1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "7d0s": 7 * 24 * time.Hour,
	} {
		if got, err := ParseDuration(s); got != want || err != nil {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0", "0s", "-1s", "90", "d", "1d-1h", "1h1d", "106752d", "99999999999999999999d", "1 h"} {
		if got, err := ParseDuration(s); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", s, got)
		}
	}
}

func TestParseMemory(t *testing.T) {
	for s, want := range map[string]int64{"1K": 1 << 10, "1.5G": 3 << 29, "2TiB": 2 << 40, "16 GB": 16e9} {
		if got, err := ParseMemory(s); got != want || err != nil {
			t.Errorf("ParseMemory(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"1", "0G", "", "9999999999T", "-1G", "many"} {
		if got, err := ParseMemory(s); err == nil {
			t.Errorf("ParseMemory(%q) = %d, want an error", s, got)
		}
	}
}

func TestParseDelay(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": 0, "0s": 0, "0d": 0, "1d0": 24 * time.Hour, "1d12h": 36 * time.Hour} {
		if got, err := ParseDelay(s); got != want || err != nil {
			t.Errorf("ParseDelay(%q) = %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "1", "-1s", "1d-1h", "106752d"} {
		if got, err := ParseDelay(s); err == nil {
			t.Errorf("ParseDelay(%q) = %v, want an error", s, got)
		}
	}
}

func TestPrint(t *testing.T) {
	for got, want := range map[string]string{
		Seconds(0): "0.0 ms", Seconds(0.00346): "3.5 ms", Seconds(0.0999): "100 ms", Seconds(1): "1.00 s", Seconds(12.34): "12.3 s",
		Seconds(150): "2 min", Seconds(7200): "2.0 h", Seconds(-2): "-2.00 s",
		Rate(125): "1 kbit/s", Rate(117.7e6): "942 Mbit/s", Rate(1.25e9): "10 Gbit/s",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
