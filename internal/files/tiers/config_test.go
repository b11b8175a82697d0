package tiers

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"flash", "flash/in", "disk"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "t.yaml")
	const two = "tiers:\n  - {name: flash, dir: flash, capacity: 1.5 GB}\n  - {name: disk, dir: disk, high: 90, low: 85}\n"
	for text, want := range map[string]string{
		two + "rules: [{from: flash, to: disk, older: 30d, idle: 12h, larger: 2 KiB, smaller: 1 MB}]\ninterval: 5s\n": "",
		"":                               "T: the file of tiers is empty\n  hint: write tiers: with a list of {name: ..., dir: ...} below it",
		"tiers: [{name: a, dir: flash}]": "T:1: at least two tiers are needed\n  hint: write tiers: with a list of {name: ..., dir: ...} below it",
		"tiers:\n  - {name: a, dir: flash}\n  - {name: b, dir: flash/in}\n": "T:3:5: one of " + dir + "/flash/in and " + dir + "/flash contains the other\n  hint: tiers must not contain each other",
		"tiers:\n  - {name: a, dir: flash}\n  - {name: a, dir: disk}\n":     "T:3:5: two tiers have the name a\n  hint: give each tier a name of its own",
		"tiers: 3":             "T:1:8: this is not a list\n  hint: write tiers: with a list of {name: ..., dir: ...} below it",
		"tiers: [":             "T:1: this is not YAML: did not find expected node content\n  hint: quote a text that begins with a special character, and indent with spaces",
		two + "interval: soon": "T:4:11: \"soon\" is not a length of time\n  hint: write it as in 30d, 12h or 10m",
		two + "pools: []":      "T:4: tiers and pools mean the same\n  hint: keep one of them",
		two + "rules: [{from: a, to: flash, older: 1d}]":                                                "T:4:16: unknown tier \"a\"\n  hint: use the name of a tier in the list",
		"tiers:\n  - {name: a, dir: flash, high: 180, low: 70}\n  - {name: b, dir: disk}\n":             "T:2:33: \"180\" is not a percentage\n  hint: write a number from 1 to 100",
		two + "rules:\n  - {from: disk, to: flash, idle: 1d}\n  - {from: flash, to: disk, older: 1d}\n": "T:6:5: rule 1 moves in the opposite direction: files could go back and forth",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Load(file)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want != "" {
			want = file + want[1:]
		}
		if got != want {
			t.Errorf("%s\ngives\n%s\nwant\n%s", text, got, want)
		}
		if want != "" {
			continue
		}
		r, a, b := c.Rules[0], c.Tiers[0], c.Tiers[1]
		if r != (Rule{"flash", "disk", 30 * 24 * time.Hour, 12 * time.Hour, 2048, 1e6}) || c.Interval != 5*time.Second {
			t.Errorf("%+v", c)
		}
		if a != (Tier{"flash", filepath.Join(dir, "flash"), 1.5e9, 80, 70}) || b != (Tier{"disk", filepath.Join(dir, "disk"), 0, 90, 85}) {
			t.Errorf("%+v", c.Tiers)
		}
	}
}
