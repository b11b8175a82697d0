package summary

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// plot is a figure being built: axes, linear or logarithmic, and marks.
type plot struct {
	title, x, y            string
	xMin, xMax, yMin, yMax float64
	logX                   bool
	xTicks                 []tick // nil: computed
	b                      strings.Builder
	keys                   []key
}

type tick struct {
	at    float64
	label string
}

type key struct{ name, color string }

// The first colours can be distinguished by people with colour blindness, too (Okabe and
// Ito); the others are just different.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7a00", "#555555",
	"#7b3294", "#a6611a", "#1b7837", "#c51b7d", "#2166ac", "#b2182b", "#4d9221", "#5e3c99"}

// Sizes of a figure, in SVG's units.
const (
	plotWidth  = 720
	plotHeight = 340
	plotLeft   = 64
	plotRight  = 150
	plotTop    = 34
	plotBottom = 46
)

func (p *plot) px(x float64) float64 {
	lo, hi := p.xMin, p.xMax
	if p.logX {
		x, lo, hi = math.Log(x), math.Log(lo), math.Log(hi)
	}
	if hi == lo {
		hi = lo + 1
	}
	return plotLeft + (x-lo)/(hi-lo)*(plotWidth-plotLeft-plotRight)
}

func (p *plot) py(y float64) float64 {
	hi := p.yMax
	if hi == p.yMin {
		hi = p.yMin + 1
	}
	return plotHeight - plotBottom - (y-p.yMin)/(hi-p.yMin)*(plotHeight-plotTop-plotBottom)
}

func (p *plot) dot(x, y, r float64, color, title string) {
	fmt.Fprintf(&p.b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" fill-opacity=".75">`, p.px(x), p.py(y), r, color)
	if title != "" {
		fmt.Fprintf(&p.b, "<title>%s</title>", html.EscapeString(title))
	}
	p.b.WriteString("</circle>\n")
}

func (p *plot) line(xs, ys []float64, color string) {
	p.b.WriteString(`<polyline fill="none" stroke="` + color + `" stroke-width="1.6" points="`)
	for i := range xs {
		fmt.Fprintf(&p.b, "%.1f,%.1f ", p.px(xs[i]), p.py(ys[i]))
	}
	p.b.WriteString("\"/>\n")
}

func (p *plot) bar(x, width, from, to float64, color, title string) {
	left, right := p.px(x-width/2), p.px(x+width/2)
	fmt.Fprintf(&p.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s</title></rect>`+"\n",
		left, p.py(to), right-left, max(0, p.py(from)-p.py(to)), color, html.EscapeString(title))
}

// rule adds a dashed horizontal line. Its label is a key, so that it overlaps no other.
func (p *plot) rule(y float64, label string) {
	fmt.Fprintf(&p.b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="currentColor" stroke-dasharray="6 4"/>`+"\n",
		plotLeft, plotWidth-plotRight, p.py(y), p.py(y))
	p.keys = append(p.keys, key{name: label})
}

// nice returns about n round values between two values.
func nice(lo, hi float64, n int) []tick {
	if hi <= lo {
		hi = lo + 1
	}
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var list []tick
	for v := math.Ceil(lo/step) * step; v <= hi+step/1e6; v += step {
		if math.Abs(v) < step/1e6 {
			v = 0
		}
		list = append(list, tick{v, fmt.Sprintf("%.6g", v)})
	}
	return list
}

// svg returns the figure. Its lines have the colour of the surrounding text.
func (p *plot) svg() string {
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="system-ui, sans-serif" font-size="12" fill="currentColor" color="#44506a">`+"\n",
		plotWidth, plotHeight, html.EscapeString(p.title))
	fmt.Fprintf(&s, `<text x="%d" y="18" font-size="14" font-weight="600">%s</text>`+"\n", plotLeft, html.EscapeString(p.title))
	for _, t := range nice(p.yMin, p.yMax, 6) {
		fmt.Fprintf(&s, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="currentColor" stroke-opacity=".15"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, plotWidth-plotRight, p.py(t.at), p.py(t.at), plotLeft-6, p.py(t.at)+4, t.label)
	}
	ticks := p.xTicks
	if ticks == nil {
		ticks = nice(p.xMin, p.xMax, 8)
	}
	for i, t := range ticks {
		// Long names alternate between two lines.
		drop := 0
		if len(ticks) > 7 && i%2 == 1 && p.xTicks != nil {
			drop = 12
		}
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle" font-size="11">%s</text>`+"\n", p.px(t.at), plotHeight-plotBottom+15+drop, html.EscapeString(t.label))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, plotHeight-5, html.EscapeString(p.x))
	fmt.Fprintf(&s, `<text transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (plotTop+plotHeight-plotBottom)/2, html.EscapeString(p.y))
	s.WriteString(p.b.String())
	for i, k := range p.keys {
		y := plotTop + 8 + 17*i
		left := plotWidth - plotRight + 10
		if k.color == "" {
			fmt.Fprintf(&s, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="currentColor" stroke-dasharray="4 2"/>`, left, left+10, y-4, y-4)
		} else {
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="10" height="10" rx="2" fill="%s"/>`, left, y-9, k.color)
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d">%s</text>`+"\n", left+15, y, html.EscapeString(k.name))
	}
	s.WriteString("</svg>\n")
	return s.String()
}
