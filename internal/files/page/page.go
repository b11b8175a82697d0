package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/files"
	"premix/internal/kit/htmlpage"
	"premix/internal/kit/units"
)

//go:embed page.html
var source string

//go:embed page.css
var style string

// bar is a row of a histogram: two fractions, each with the amount that it is a fraction
// of.
type bar struct {
	Name          string
	First, Second share
}

type share struct {
	Part float64 // of 1
	Text string
}

// chart is a histogram and its numbers.
type chart struct {
	Title, Note   string
	First, Second string // the two quantities of which the bars show fractions
	Bars          []bar
	Columns       []string
	Rows          [][]string
}

// tile is a number shown by itself.
type tile struct{ Value, Name string }

// Write writes the page of a scan's usage.
func Write(w io.Writer, u *files.Usage) error {
	t, err := htmlpage.New(source, style, template.FuncMap{"svg": draw})
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		*files.Usage
		When   string
		Tiles  []tile
		Charts []chart
	}{u, u.Started.Local().Format(time.DateTime), tiles(u), charts(u)})
}

func tiles(u *files.Usage) []tile {
	d := u.Directories
	return []tile{
		{count(u.Files.Count), "files"},
		{units.Size(u.Files.Bytes), "in files"},
		{units.Size(u.Files.Allocated), "on disk"},
		{units.Size(u.Median), "median size"},
		{percent(u.Files.Zero, u.Files.Count), "are empty"},
		{count(d.Count), "directories"},
		{percent(d.One, d.Count), "hold one entry"},
		{count(d.Large), "hold over 10,000"},
	}
}

func charts(u *files.Usage) []chart {
	list := []chart{deciles(u)}
	for _, c := range []struct {
		title, note string
		classes     []files.Class
	}{
		{"Size", "How many files are how large, and where the bytes are.", u.Sizes},
		{"Last written", "Age at the time of the scan, by time of modification.", u.Modified},
		{"Last read", "Age at the time of the scan, by time of access; file systems may keep it coarsely, or not at all.", u.Accessed},
		{"Suffixes", "The most frequent ones.", u.Suffixes},
	} {
		list = append(list, amounts(u, c.title, c.note, c.classes))
	}
	var owners []files.Class
	for _, o := range u.Owners {
		owners = append(owners, files.Class{Name: o.Name, Amount: o.Amount})
	}
	list = append(list, amounts(u, "Owners", "Those with most bytes.", owners))
	return append(list, directories(u))
}

// deciles are the files ordered by size, in ten parts of equal count.
func deciles(u *files.Usage) chart {
	c := chart{Title: "Deciles of size", First: "files", Second: "bytes",
		Note:    "All files, the smallest first, in ten parts of equal count: what share of the bytes is in each.",
		Columns: []string{"smallest", "up to", "bytes", "of all"}}
	for _, d := range u.Deciles {
		c.Bars = append(c.Bars, bar{fmt.Sprintf("%d %%, up to %s", d.Percent, units.Size(d.Size)), share{0.1, "10 % of files"}, part(d.Bytes, u.Files.Bytes, units.Size(d.Bytes))})
		c.Rows = append(c.Rows, []string{fmt.Sprintf("%d %%", d.Percent), units.Size(d.Size), units.Size(d.Bytes), percent(d.Bytes, u.Files.Bytes)})
	}
	return c
}

// amounts returns a chart of the classes that have files.
func amounts(u *files.Usage, title, note string, classes []files.Class) chart {
	c := chart{Title: title, Note: note, First: "files", Second: "bytes", Columns: []string{strings.ToLower(title), "files", "", "bytes", "", "on disk"}}
	for _, a := range classes {
		if a.Count == 0 {
			continue
		}
		if a.Name == "" {
			a.Name = "none"
		}
		c.Bars = append(c.Bars, bar{a.Name, part(a.Count, u.Files.Count, count(a.Count)+" files"), part(a.Bytes, u.Files.Bytes, units.Size(a.Bytes))})
		c.Rows = append(c.Rows, []string{a.Name, count(a.Count), percent(a.Count, u.Files.Count), units.Size(a.Bytes), percent(a.Bytes, u.Files.Bytes), units.Size(a.Allocated)})
	}
	return c
}

func directories(u *files.Usage) chart {
	c := chart{Title: "Directories by entries", First: "directories", Second: "entries", Columns: []string{"entries", "directories", "", "entries in them", ""},
		Note: "How many directories have how many entries, and where the entries are."}
	total := int64(0)
	for _, k := range u.Directories.Classes {
		total += k.Entries
	}
	for _, k := range u.Directories.Classes {
		if k.Count == 0 {
			continue
		}
		c.Bars = append(c.Bars, bar{k.Name, part(k.Count, u.Directories.Count, count(k.Count)+" directories"), part(k.Entries, total, count(k.Entries)+" entries")})
		c.Rows = append(c.Rows, []string{k.Name, count(k.Count), percent(k.Count, u.Directories.Count), count(k.Entries), percent(k.Entries, total)})
	}
	return c
}

func part(n, of int64, text string) share {
	if of == 0 {
		return share{0, text}
	}
	return share{float64(n) / float64(of), fmt.Sprintf("%s, %s", text, percent(n, of))}
}

func percent(n, of int64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}

// count groups the digits of a number by threes.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Measures of a histogram, in the units of its view box.
const (
	wide      = 480
	labels    = 160 // space for names, on the left
	numbers   = 54  // space for percents, on the right
	rowHeight = 34
	barHeight = 12
	foot      = 22
)

// scales are the possible ends of a scale, as fractions: the first that is not below the
// longest bar is chosen.
var scales = []float64{0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1}

// draw draws a histogram.
func draw(c chart) template.HTML {
	most := 0.0
	for _, b := range c.Bars {
		most = max(most, b.First.Part, b.Second.Part)
	}
	if i := slices.IndexFunc(scales, func(s float64) bool { return s >= most }); i >= 0 {
		most = scales[i]
	}
	var s strings.Builder
	height := len(c.Bars)*rowHeight + foot
	fmt.Fprintf(&s, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, wide, height, template.HTMLEscapeString(c.Title+": "+c.Note))
	for _, mark := range []float64{0, 0.25, 0.5, 0.75, 1} {
		x := labels + mark*(wide-labels-numbers)
		fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="0" y2="%d"/><text x="%.1f" y="%d" text-anchor="middle">%.3g %%</text>`,
			x, x, height-foot, x, height-6, 100*mark*most)
	}
	for i, b := range c.Bars {
		y := i * rowHeight
		name := b.Name
		if r := []rune(name); len(r) > 24 {
			name = string(r[:23]) + "…"
		}
		fmt.Fprintf(&s, `<text class="name" x="%d" y="%d" text-anchor="end">%s</text>`, labels-8, y+rowHeight/2+4, template.HTMLEscapeString(name))
		for k, v := range []share{b.First, b.Second} {
			long := v.Part / most * (wide - labels - numbers)
			top := y + 4 + k*(barHeight+1)
			fmt.Fprintf(&s, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"><title>%s: %s</title></rect>`,
				[]string{"first", "second"}[k], labels, top, max(long, 0.5), barHeight, template.HTMLEscapeString(b.Name), template.HTMLEscapeString(v.Text))
			fmt.Fprintf(&s, `<text class="value" x="%.1f" y="%d">%.1f %%</text>`, labels+long+5, top+barHeight-2, 100*v.Part)
		}
	}
	s.WriteString(`</svg>`)
	// All texts are escaped above, and the rest are numbers.
	return template.HTML(s.String())
}
