package summary

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"premix/internal/transfer"
)

// Figure is a figure of the page.
type Figure struct {
	Name string // of its file
	Kind string // hour, fingerprint, totals, speed or ratio
	SVG  string
}

// drawn is the number of packets of a fingerprint that are drawn in each direction.
const drawn = 1500

// figures draws all figures.
func (r *Report) figures() ([]Figure, error) {
	var list []Figure
	colors := r.colors()
	for _, set := range r.sets() {
		list = append(list, byHour(set, colors), totals(set, colors))
	}
	list = append(list, r.bySize(colors)...)
	prints, err := r.fingerprints(colors)
	return append(list, prints...), err
}

// colors assigns a color to each protocol, the same in all figures.
func (r *Report) colors() map[string]string {
	var names []string
	for _, g := range r.Groups {
		names = append(names, g.Protocol)
	}
	slices.Sort(names)
	colors := map[string]string{}
	for i, n := range slices.Compact(names) {
		colors[n] = palette[i%len(palette)]
	}
	return colors
}

// sets returns the sets of groups with the same data, link and direction.
func (r *Report) sets() (sets [][]*Group) {
	for _, g := range r.Groups {
		if g.Copies == 0 {
			continue
		}
		if n := len(sets); n > 0 && same(sets[n-1][0], g) {
			sets[n-1] = append(sets[n-1], g)
		} else {
			sets = append(sets, []*Group{g})
		}
	}
	return sets
}

func fileName(parts ...string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' {
			return c
		}
		return '-'
	}, strings.Join(parts, "-"))
}

func what(g *Group) string { return fmt.Sprintf("%s %s over %s", g.Direction, g.Data, g.Link) }

func byHour(set []*Group, colors map[string]string) Figure {
	p := &plot{title: "Speed by hour of the day: " + what(set[0]), x: "hour, local time", y: "Mbit/s", xMax: 24}
	for h := 0; h <= 24; h += 3 {
		p.xTicks = append(p.xTicks, tick{float64(h), fmt.Sprint(h)})
	}
	for _, g := range set {
		p.yMax = max(p.yMax, mbit(slices.Max(g.speeds))*1.05)
	}
	for _, g := range set {
		p.keys = append(p.keys, key{g.Protocol, colors[g.Protocol]})
		for _, c := range g.rows {
			p.dot(c.Hour, mbit(c.Speed), 3.2, colors[g.Protocol], fmt.Sprintf("%s: %.1f Mbit/s, %s", c.Protocol, mbit(c.Speed), c.Started.Format("2006-01-02 15:04:05 MST")))
		}
	}
	g := set[0]
	return Figure{fileName("hour", g.Link, string(g.Direction), g.Data), "hour", p.svg()}
}

func totals(set []*Group, colors map[string]string) Figure {
	size := float64(set[0].Size) / 1e6
	p := &plot{title: "Bytes on the wire: " + what(set[0]), x: "protocol", y: "MB", xMax: float64(len(set)), yMax: size * 1.12}
	const upColor = "#9aa5b8"
	for i, g := range set {
		down, up := g.BytesDown/1e6, g.BytesUp/1e6
		p.yMax = max(p.yMax, (down+up)*1.08)
		p.xTicks = append(p.xTicks, tick{float64(i) + 0.5, g.Protocol})
	}
	for i, g := range set {
		down, up := g.BytesDown/1e6, g.BytesUp/1e6
		p.bar(float64(i)+0.5, 0.62, 0, down, colors[g.Protocol], fmt.Sprintf("%s: %.3f MB down", g.Protocol, down))
		p.bar(float64(i)+0.5, 0.62, down, down+up, upColor, fmt.Sprintf("%s: %.3f MB up", g.Protocol, up))
	}
	p.keys = []key{{"down", colors[set[0].Protocol]}, {"up", upColor}}
	p.rule(size, "size of the data")
	g := set[0]
	return Figure{fileName("totals", g.Link, string(g.Direction), g.Data), "totals", p.svg()}
}

// bySize draws speed and ratio of single files, for each link and direction.
func (r *Report) bySize(colors map[string]string) (list []Figure) {
	type series struct{ sizes, speeds, ratios []float64 }
	type where struct {
		link string
		way  transfer.Direction
	}
	all := map[where]map[string]*series{}
	var order []where
	for _, g := range r.Groups {
		if g.Copies == 0 || g.Files > 1 {
			continue
		}
		w := where{g.Link, g.Direction}
		if all[w] == nil {
			all[w] = map[string]*series{}
			order = append(order, w)
		}
		s := all[w][g.Protocol]
		if s == nil {
			s = &series{}
			all[w][g.Protocol] = s
		}
		s.sizes, s.speeds, s.ratios = append(s.sizes, float64(g.Size)), append(s.speeds, mbit(g.Speed)), append(s.ratios, 100*g.Ratio)
	}
	for _, w := range order {
		speed := &plot{title: fmt.Sprintf("Speed by size: %s over %s", w.way, w.link), x: "size of the file", y: "Mbit/s", logX: true, xMin: math.Inf(1)}
		ratio := &plot{title: fmt.Sprintf("Wire bytes by size: %s over %s", w.way, w.link), x: "size of the file", y: "% of the size", logX: true, yMin: 100, yMax: 101}
		var names []string
		seen := map[float64]bool{}
		for n, s := range all[w] {
			names = append(names, n)
			for i, size := range s.sizes {
				seen[size] = true
				speed.xMin, speed.xMax = min(speed.xMin, size), max(speed.xMax, size)
				speed.yMax = max(speed.yMax, s.speeds[i]*1.05)
				ratio.yMax, ratio.yMin = max(ratio.yMax, s.ratios[i]+0.5), min(ratio.yMin, s.ratios[i])
			}
		}
		ratio.yMin = max(0, ratio.yMin)
		slices.Sort(names)
		for size := range seen {
			speed.xTicks = append(speed.xTicks, tick{size, transfer.Short(int64(size))})
		}
		slices.SortFunc(speed.xTicks, func(a, b tick) int { return int(math.Copysign(1, a.at-b.at)) })
		speed.xMax *= 1.001 // one size alone is a point
		ratio.xMin, ratio.xMax, ratio.xTicks = speed.xMin, speed.xMax, speed.xTicks
		captured := false
		for _, n := range names {
			s := all[w][n]
			for p, ys := range map[*plot][]float64{speed: s.speeds, ratio: s.ratios} {
				p.keys = append(p.keys, key{n, colors[n]})
				p.line(s.sizes, ys, colors[n])
				for i := range s.sizes {
					p.dot(s.sizes[i], ys[i], 2.6, colors[n], fmt.Sprintf("%s, %s: %.4g %s", n, transfer.Short(int64(s.sizes[i])), ys[i], p.y))
				}
			}
			captured = captured || slices.Max(s.ratios) > 0
		}
		list = append(list, Figure{fileName("speed", w.link, string(w.way)), "speed", speed.svg()})
		if captured {
			list = append(list, Figure{fileName("ratio", w.link, string(w.way)), "ratio", ratio.svg()})
		}
	}
	return list
}

// fingerprints draws one copy for each protocol and direction: the last one of the largest
// single file whose packets were kept.
func (r *Report) fingerprints(colors map[string]string) (list []Figure, err error) {
	chosen := map[string]transfer.Copy{}
	for _, c := range r.copies {
		k := c.Link + " " + c.Protocol + " " + string(c.Direction)
		if before, ok := chosen[k]; c.Packets != "" && c.OK && (!ok || c.Size >= before.Size) {
			chosen[k] = c
		}
	}
	var names []string
	for k := range chosen {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		c := chosen[k]
		// The path comes from a table, and must not lead out of the directory.
		if !filepath.IsLocal(c.Packets) {
			continue
		}
		packets, err := parquet.ReadFile[transfer.Packet](filepath.Join(r.dir, c.Packets))
		if err != nil {
			return list, fmt.Errorf("packets of copy %s: %w", c.ID, err)
		}
		p := &plot{title: fmt.Sprintf("Fingerprint: %s, %s %s over %s", c.Protocol, c.Direction, c.Data(), c.Link), x: "seconds", y: "bytes (up below 0)", xMax: c.Seconds}
		count := map[bool]int{}
		for _, q := range packets {
			count[q.Down]++
			if q.Down {
				p.yMax = max(p.yMax, float64(q.Size))
			} else {
				p.yMin = min(p.yMin, -float64(q.Size))
			}
			p.xMax = max(p.xMax, q.Time)
		}
		at := map[bool]int{}
		upColor := "#7d8694"
		for _, q := range packets {
			at[q.Down]++
			if every := max(1, count[q.Down]/drawn); at[q.Down]%every != 0 {
				continue
			}
			if q.Down {
				p.dot(max(q.Time, 0), float64(q.Size), 1.1, colors[c.Protocol], "")
			} else {
				p.dot(max(q.Time, 0), -float64(q.Size), 1.1, upColor, "")
			}
		}
		p.keys = []key{{fmt.Sprintf("down: %d", count[true]), colors[c.Protocol]}, {fmt.Sprintf("up: %d", count[false]), upColor}}
		list = append(list, Figure{fileName("fingerprint", c.Link, c.Protocol, string(c.Direction)), "fingerprint", p.svg()})
	}
	return list, nil
}
