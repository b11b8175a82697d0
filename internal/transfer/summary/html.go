package summary

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"premix/internal/kit/htmlpage"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// section is a section of the page with figures.
type section struct {
	Title, Note string
	Figures     []template.HTML
}

func (r *Report) writeHTML(w io.Writer, figures []Figure) error {
	t, err := htmlpage.New(pageHTML, pageCSS, template.FuncMap{
		"mbit":    func(v float64) string { return fmt.Sprintf("%.1f", mbit(v)) },
		"mb":      func(v float64) string { return fmt.Sprintf("%.3f", v/1e6) },
		"sum":     func(a, b float64) float64 { return a + b },
		"percent": func(v float64) string { return fmt.Sprintf("%.2f", 100*v) },
		"seconds": func(v float64) string { return fmt.Sprintf("%.3f", v) },
		"whole":   func(v float64) string { return fmt.Sprintf("%.0f", v) },
		"p": func(v *float64) string {
			switch {
			case v == nil:
				return "-"
			case *v < 0.001:
				return "< 0.001"
			}
			return fmt.Sprintf("%.3f", *v)
		},
		"signed": func(v float64) string { return fmt.Sprintf("%+.1f", v) },
		"span": func(low, high *float64) string {
			if low == nil || high == nil {
				return "-"
			}
			return fmt.Sprintf("%+.1f to %+.1f", *low, *high)
		},
		"speeds": func(low, high *float64) string {
			if low == nil || high == nil {
				return "-"
			}
			return fmt.Sprintf("%.1f to %.1f", mbit(*low), mbit(*high))
		},
		"optional": func(v *float64) string {
			if v == nil {
				return "-"
			}
			return fmt.Sprintf("%.2f", *v)
		},
	})
	if err != nil {
		return err
	}
	titles := []struct{ kind, title, note string }{
		{"speed", "Speed by size", "Medians of usable copies."},
		{"totals", "Bytes on the wire", "Means, with all headers; the dashed line is the size of the data."},
		{"ratio", "Overhead", "Bytes on the wire, both directions, in per cent of the size."},
		{"hour", "Speed by hour", "Each dot is a copy."},
		{"fingerprint", "Fingerprints", "Each dot is a packet, down above the axis and up below; if there are many packets, only every n-th is drawn."},
	}
	var sections []section
	for _, k := range titles {
		s := section{Title: k.title, Note: k.note}
		for _, f := range figures {
			if f.Kind == k.kind {
				// The SVG comes from this package, with all texts escaped.
				s.Figures = append(s.Figures, template.HTML(f.SVG))
			}
		}
		if len(s.Figures) > 0 {
			sections = append(sections, s)
		}
	}
	var first *transferFacts
	for i := range r.copies {
		c := &r.copies[i]
		first = &transferFacts{Here: c.Host + " " + c.Here, Peer: c.Peer, Interface: c.Interface, MTU: c.MTU, Offload: c.Offload, Capture: c.Capture, Congestion: c.Congestion, CongestionPeer: c.CongestionPeer, Version: c.PremixBuild}
	}
	return t.Execute(w, struct {
		*Report
		Facts    *transferFacts
		Sections []section
	}{r, first, sections})
}

// transferFacts are the conditions recorded with the last copy.
type transferFacts struct {
	Here, Peer, Interface, Offload, Capture, Congestion, CongestionPeer, Version string
	MTU                                                                          int
}
