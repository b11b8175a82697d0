package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// report is the part of BLAST's JSON (format 15) that pages show.
type report struct {
	BlastOutput2 []struct {
		Report struct {
			Program string
			Version string
			Params  map[string]any
			Results struct {
				Search found
			}
		}
	}
}

// found are the hits of a query.
type found struct {
	ID     string `json:"query_id"`
	Title  string `json:"query_title"`
	Length int64  `json:"query_len"`
	Hits   []hit
	Stat   struct {
		Sequences int64 `json:"db_num"`
		Letters   int64 `json:"db_len"`
	}
}

// hit is a subject with alignments.
type hit struct {
	Description []struct{ ID, Accession, Title string }
	Length      int64 `json:"len"`
	HSPs        []hsp `json:"hsps"`
}

// hsp is an alignment.
type hsp struct {
	Bits        float64 `json:"bit_score"`
	Score       int64
	EValue      float64 `json:"evalue"`
	Identity    int64
	QueryFrom   int64  `json:"query_from"`
	QueryTo     int64  `json:"query_to"`
	QueryStrand string `json:"query_strand"`
	QueryFrame  int    `json:"query_frame"`
	HitFrom     int64  `json:"hit_from"`
	HitTo       int64  `json:"hit_to"`
	HitStrand   string `json:"hit_strand"`
	HitFrame    int    `json:"hit_frame"`
	AlignLength int64  `json:"align_len"`
	Gaps        int64
	QSeq        string `json:"qseq"`
	HSeq        string `json:"hseq"`
	Midline     string
}

func parseReport(b []byte) (*report, error) {
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("a report of BLAST+: %w", err)
	}
	return &r, nil
}

// Name returns the name of a query.
func (f *found) Name() string {
	if f.Title != "" {
		return f.Title
	}
	return f.ID
}

// ID returns the id of a hit in its database.
func (h *hit) ID() string {
	if len(h.Description) == 0 {
		return ""
	}
	return h.Description[0].ID
}

// numbered reports whether the id is only a number, because ids were not parsed. Then the
// title begins with the id.
func (h *hit) numbered() bool { return strings.HasPrefix(h.ID(), "gnl|BL_ORD_ID|") }

// Name returns the short name of a hit.
func (h *hit) Name() string {
	switch {
	case len(h.Description) == 0:
		return ""
	case h.numbered():
		name, _, _ := strings.Cut(h.Description[0].Title, " ")
		return name
	case h.Description[0].Accession != "":
		return h.Description[0].Accession
	}
	return h.Description[0].ID
}

// Title returns the name and the description of a hit.
func (h *hit) Title() string {
	switch {
	case len(h.Description) == 0:
		return ""
	case h.numbered():
		return h.Description[0].Title
	}
	return strings.TrimSpace(h.Name() + " " + h.Description[0].Title)
}

// Best returns the alignment with the highest score.
func (h *hit) Best() *hsp {
	if len(h.HSPs) == 0 {
		return &hsp{}
	}
	best := slices.MaxFunc(h.HSPs, func(a, b hsp) int { return compareNumbers(a.Bits, b.Bits) })
	return &best
}

func compareNumbers(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// queryRange returns the first and the last letter of the query in an alignment.
func (h *hsp) queryRange() (from, to int64) {
	return min(h.QueryFrom, h.QueryTo), max(h.QueryFrom, h.QueryTo)
}

// cover returns the part of a query that the alignments of a hit cover, in percent.
func (h *hit) cover(length int64) string {
	var spans [][2]int64
	for i := range h.HSPs {
		from, to := h.HSPs[i].queryRange()
		spans = append(spans, [2]int64{from, to})
	}
	slices.SortFunc(spans, func(a, b [2]int64) int { return compareNumbers(float64(a[0]), float64(b[0])) })
	var sum, end int64
	for _, s := range spans {
		sum += max(0, s[1]-max(s[0]-1, end))
		end = max(end, s[1])
	}
	return fmt.Sprintf("%.0f %%", 100*float64(sum)/float64(max(1, length)))
}

// Same returns the share of equal letters, in percent.
func (h *hsp) Same() string {
	return fmt.Sprintf("%.1f %%", 100*float64(h.Identity)/float64(max(1, h.AlignLength)))
}

// Strands describes the strands or frames of an alignment.
func (h *hsp) Strands() string {
	switch {
	case h.HitStrand != "":
		return ", strands " + strings.ToLower(h.QueryStrand) + " and " + strings.ToLower(h.HitStrand)
	case h.QueryFrame != 0 && h.HitFrame != 0:
		return fmt.Sprintf(", frames %+d and %+d", h.QueryFrame, h.HitFrame)
	case h.QueryFrame != 0 || h.HitFrame != 0:
		return fmt.Sprintf(", frame %+d", h.QueryFrame+h.HitFrame)
	}
	return ""
}

// score formats a score or an e-value.
func score(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 1e-3:
		return fmt.Sprintf("%.0e", v)
	case v < 10:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return fmt.Sprintf("%.0f", v)
}

// Lines lays an alignment out as BLAST does.
func (h *hsp) Lines() string {
	const width = 60
	digits := 0
	for _, n := range []int64{h.QueryFrom, h.QueryTo, h.HitFrom, h.HitTo} {
		digits = max(digits, len(strconv.FormatInt(n, 10)))
	}
	var b bytes.Buffer
	q, s := h.QueryFrom, h.HitFrom
	qs, ss := step(h.QueryFrom, h.QueryTo, h.QSeq), step(h.HitFrom, h.HitTo, h.HSeq)
	line := func(name string, from int64, part string, step int64) int64 {
		n := int64(len(part) - strings.Count(part, "-"))
		to := from
		if n > 0 {
			to = from + step*n - step/max(1, abs(step)) // the sign of step
		}
		fmt.Fprintf(&b, "%s  %-*d  %s  %d\n", name, digits, from, part, to)
		return from + step*n
	}
	for at := 0; at < len(h.QSeq); at += width {
		part := func(seq string) string { return seq[min(at, len(seq)):min(at+width, len(seq))] }
		q = line("Query", q, part(h.QSeq), qs)
		fmt.Fprintf(&b, "%s%s\n", strings.Repeat(" ", 9+digits), part(h.Midline))
		s = line("Sbjct", s, part(h.HSeq), ss)
		b.WriteByte('\n')
	}
	return b.String()
}

func abs(n int64) int64 { return max(n, -n) }

// step returns by how much the place in a sequence changes with each letter of an alignment:
// letters of a translated sequence stand for three, and places on the opposite strand fall.
func step(from, to int64, seq string) int64 {
	letters := max(1, len(seq)-strings.Count(seq, "-"))
	per := int64(math.Round(float64(abs(to-from)+1) / float64(letters)))
	if from > to {
		return -per
	}
	return per
}
