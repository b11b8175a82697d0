package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Measures of a plot, in units of its picture.
const (
	plotWidth  = 560
	plotLabel  = 150 // for the names of the steps
	plotRight  = 22
	plotRow    = 28
	plotFoot   = 22
	maxPlotted = 30 // steps
)

// plot is a box plot a step, as a picture.
type plot struct {
	Title         string
	Width, Height int
	Ticks         []plotTick
	Rows          []plotBox
}

type plotTick struct {
	X      string
	Label  string
	Anchor string
}

// plotBox is a step's box. Numbers are text, as the picture wants them.
type plotBox struct {
	Label, Short, Told                   string
	Has                                  bool
	Text, Y, Top, End, CapTop, CapEnd    string
	Min, Q1, Median, Q3, Max, Box, Thick string
}

func num(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// plotOf draws boxes along one axis. Times span decades, and so their axis is
// logarithmic; shares begin at 0.
func plotOf(title string, steps []StepUsage, of func(*StepUsage) Box, logarithmic bool, tell func(float64) string) plot {
	p := plot{Title: title, Width: plotWidth, Height: len(steps)*plotRow + plotFoot}
	low, high := math.Inf(1), 0.0
	for i := range steps {
		b := of(&steps[i])
		for _, v := range []float64{b.Min, b.Q1, b.Median, b.Q3, b.Max} {
			if v > 0 {
				low = min(low, v)
			}
			high = max(high, v)
		}
	}
	var at func(float64) float64
	span := float64(plotWidth - plotLabel - plotRight)
	if logarithmic {
		if math.IsInf(low, 1) {
			low, high = 0.1, 1
		}
		first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
		if last <= first {
			last = first + 1
		}
		at = func(v float64) float64 {
			return plotLabel + span*(max(math.Log10(max(v, 1e-300)), first)-first)/(last-first)
		}
		every := math.Ceil((last - first) / 6)
		for e := first; e <= last; e += every {
			v := math.Pow(10, e)
			p.Ticks = append(p.Ticks, plotTick{num(at(v)), tell(v), "middle"})
		}
	} else {
		top := max(1, math.Ceil(high*4)/4)
		at = func(v float64) float64 { return plotLabel + span*v/top }
		for i := range 5 {
			v := top * float64(i) / 4
			p.Ticks = append(p.Ticks, plotTick{num(at(v)), tell(v), "middle"})
		}
	}
	for i := range steps {
		b := of(&steps[i])
		y := float64(i*plotRow + plotRow/2)
		const thick = 14
		r := plotBox{Label: steps[i].Step, Short: steps[i].Step, Has: b.Max > 0, Text: num(y + 4), Y: num(y), Top: num(y - thick/2), End: num(y + thick/2), CapTop: num(y - 4), CapEnd: num(y + 4),
			Min: num(at(b.Min)), Q1: num(at(b.Q1)), Median: num(at(b.Median)), Q3: num(at(b.Q3)), Max: num(at(b.Max)), Box: num(max(1, at(b.Q3)-at(b.Q1))), Thick: num(thick)}
		r.Told = fmt.Sprintf("least %s, quartiles %s, %s, %s, most %s", tell(b.Min), tell(b.Q1), tell(b.Median), tell(b.Q3), tell(b.Max))
		if name := []rune(r.Short); len(name) > 20 {
			r.Short = string(name[:19]) + "…"
		}
		p.Rows = append(p.Rows, r)
	}
	return p
}

// plots returns the plots of a page, for the steps with the most core time.
func (u *Usage) plots() (list []plot, more int) {
	steps := slices.Clone(u.Steps)
	if more = len(steps) - maxPlotted; more > 0 {
		slices.SortStableFunc(steps, func(a, b StepUsage) int {
			switch {
			case a.Core > b.Core:
				return -1
			case a.Core < b.Core:
				return 1
			}
			return 0
		})
		steps = steps[:maxPlotted]
	}
	return []plot{
		plotOf("CPU time of a try", steps, func(s *StepUsage) Box { return s.CPUTimes }, true, axisTime),
		plotOf("CPU efficiency of a try", steps, func(s *StepUsage) Box { return s.Efficiency }, false, percent),
		plotOf("Run time of a try", steps, func(s *StepUsage) Box { return s.Seconds }, true, axisTime),
	}, max(0, more)
}

// axisTime returns a time at an axis of powers of ten. Large values are in hours, which are
// easier to read than seconds.
func axisTime(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.9e-3:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case s < 0.9:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case s < 9e3:
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.3g h", s/3600)
}

func percent(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }
