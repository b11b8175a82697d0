package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := drawAll("docs/pictures"); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// drawAll draws the picture of each text in a directory.
func drawAll(dir string) error {
	texts, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return err
	}
	for _, name := range texts {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		svg, err := draw(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(strings.TrimSuffix(name, ".txt")+".svg", []byte(svg), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// Sizes in the units of a picture, which are pixels on a screen of the picture's width.
const (
	width  = 400
	margin = 8
	line   = 16  // from one line of text to the next
	letter = 6.9 // a wide letter of the font, 12 pixels high
)

// style has the colours. A picture has its own background, so that its text is readable
// on every page.
const style = `<style>
text{font:12px sans-serif;fill:#1b1f24}
.title{font-weight:bold}
.head{font-size:11px;fill:#57606a}
.back{fill:#ffffff}
.box{fill:#eaf2fb;stroke:#5b7fa6}
.lane{stroke:#9aa7b4;stroke-dasharray:3 3}
.arrow{stroke:#0b5cad;stroke-width:1.5}
.tip{fill:#0b5cad}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.head{fill:#a9b4c0}
.back{fill:#14191f}
.box{fill:#1d2d40;stroke:#6f9ccc}
.lane{stroke:#5c6773}
.arrow{stroke:#7ab7ff}
.tip{fill:#7ab7ff}
}
</style>
`

// picture is a drawing in progress.
type picture struct {
	body strings.Builder
	y    int // the upper edge of the next element
}

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.body, format+"\n", args...) }

// text draws lines of text. anchor is "start" or "middle".
func (p *picture) text(x, y int, anchor, class string, lines ...string) {
	for i, l := range lines {
		p.printf(`<text x="%d" y="%d" text-anchor="%s" class="%s">%s</text>`, x, y+12+i*line, anchor, class, html.EscapeString(l))
	}
}

// draw returns the SVG of a picture's text.
func draw(text string) (string, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	p := &picture{y: margin}
	p.text(margin, p.y, "start", "title", lines[0])
	p.y += line + margin
	var lanes []string
	for _, l := range lines[1:] {
		if strings.TrimSpace(l) == "" {
			continue
		}
		head, rest, ok := strings.Cut(l, ":")
		if !ok {
			return "", fmt.Errorf("no colon in %q", l)
		}
		rest = strings.TrimSpace(rest)
		var err error
		switch {
		case head == "lanes":
			lanes = fields(rest, "|")
			err = p.boxes(lanes)
		case lanes != nil:
			err = p.step(lanes, fields(head, ">"), rest)
		default:
			if head != "" {
				p.text(margin, p.y, "start", "head", head)
				p.y += line + 2
			}
			err = p.boxes(fields(rest, "|"))
		}
		if err != nil {
			return "", err
		}
	}
	height := p.y + margin
	top := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n<title>%s</title>\n",
		width, height, width, height, html.EscapeString(lines[0]))
	back := fmt.Sprintf(`<rect class="back" width="%d" height="%d"/>`+"\n", width, height)
	lifelines := ""
	for i := range lanes {
		x := middle(i, len(lanes))
		lifelines += fmt.Sprintf(`<line class="lane" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x, 2*margin+line, x, height-margin)
	}
	return top + style + back + lifelines + p.body.String() + "</svg>\n", nil
}

// boxes draws a row of boxes of equal widths.
func (p *picture) boxes(names []string) error {
	const gap = 6
	w := (width - 2*margin - (len(names)-1)*gap) / len(names)
	var texts [][]string
	most := 0
	for _, name := range names {
		lines, err := wrap(name, w-6)
		if err != nil {
			return err
		}
		texts = append(texts, lines)
		most = max(most, len(lines))
	}
	h := most*line + 8
	for i, lines := range texts {
		x := margin + i*(w+gap)
		p.printf(`<rect class="box" x="%d" y="%d" width="%d" height="%d" rx="4"/>`, x, p.y, w, h)
		p.text(x+w/2, p.y+4+(most-len(lines))*line/2, "middle", "", lines...)
	}
	p.y += h + margin
	return nil
}

// step draws a step: its text, and below it an arrow between two lanes or a dot on one.
func (p *picture) step(lanes, between []string, text string) error {
	var x []int
	for _, name := range between {
		i := slices.Index(lanes, name)
		if i < 0 {
			return fmt.Errorf("no lane has the name %q", name)
		}
		x = append(x, middle(i, len(lanes)))
	}
	if len(x) == 0 || len(x) > 2 || len(x) == 2 && x[0] == x[1] {
		return fmt.Errorf("a step has one lane, or an arrow between two: %q", strings.Join(between, " > "))
	}
	lines, err := wrap(text, width-2*margin)
	if err != nil {
		return err
	}
	// The background hides the lanes behind the text.
	p.printf(`<rect class="back" x="%d" y="%d" width="%d" height="%d"/>`, margin, p.y, width-2*margin, len(lines)*line)
	p.text(margin, p.y, "start", "", lines...)
	p.y += len(lines)*line + 7
	if len(x) == 1 {
		p.printf(`<circle class="tip" cx="%d" cy="%d" r="4"/>`, x[0], p.y)
	} else {
		back := 6
		if x[1] < x[0] {
			back = -6
		}
		p.printf(`<line class="arrow" x1="%d" y1="%d" x2="%d" y2="%d"/>`, x[0], p.y, x[1]-back, p.y)
		p.printf(`<path class="tip" d="M%d %dl%d -4v8z"/>`, x[1], p.y, -2*back)
	}
	p.y += 11
	return nil
}

// middle returns the x of the middle of lane i of n.
func middle(i, n int) int { return margin + (2*i+1)*(width-2*margin)/(2*n) }

// fields cuts a text at a separator, and removes spaces around the fields.
func fields(s, sep string) []string {
	all := strings.Split(s, sep)
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// wrap breaks a text into lines that fit into a width.
func wrap(text string, within int) ([]string, error) {
	most := int(float64(within) / letter)
	var lines []string
	for word := range strings.FieldsSeq(text) {
		if len(word) > most {
			return nil, fmt.Errorf("%q does not fit into %d letters", word, most)
		}
		if n := len(lines); n > 0 && len(lines[n-1])+1+len(word) <= most {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	if len(lines) == 0 {
		return nil, errors.New("an element has no text")
	}
	return lines, nil
}
