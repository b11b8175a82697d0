package service

import "testing"

func TestTitleOf(t *testing.T) {
	for title, want := range map[string]string{
		"":                    "",
		"NT":                  "NT",
		"/srv/data/nt.fa":     "nt.fa",
		"data/nt.fa":          "nt.fa",
		"../nt.fa":            "nt.fa",
		"/srv/my data/nt.fa":  "nt.fa",
		"/srv/a.fa /srv/b.fa": "a.fa b.fa",
		"All GenBank+EMBL sequences (no EST/STS)": "All GenBank+EMBL sequences (no EST/STS)",
		"genes of /srv/data/nt.fa, 2026":          "genes of nt.fa, 2026",
	} {
		if got := titleOf(title); got != want {
			t.Errorf("%q: %q, want %q", title, got, want)
		}
	}
}

func TestWithoutDirectories(t *testing.T) {
	for text, want := range map[string]string{
		`blastn: No alias or index file found for nucleotide database [/srv/blast/nt] in search path [/tmp/x::]`: `blastn: No alias or index file found for nucleotide database [nt] in search path [x::]`,
		`open "/var/lib/premix/a b": no such file`:                                                               `open "a b": no such file`,
		"see http://example.org/a/b":                                                                             "see http://example.org/a/b",
		"1/2 of it":                                                                                              "1/2 of it",
	} {
		if got := withoutDirectories(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
