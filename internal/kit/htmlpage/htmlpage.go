package htmlpage

import (
	_ "embed"
	"html/template"
	"net/http"
	"strings"
	"time"
)

// Colours is the style sheet that defines the colours of all pages, as variables.
//
//go:embed colours.css
var Colours string

//go:embed base.css
var base string

//go:embed service.css
var controls string

// Service returns the style sheet that the pages of a service begin with: the style of all
// pages and of their controls. The attribute data-theme of the page's root, light or dark,
// takes the place of the system's scheme.
func Service() string {
	screen, paper, _ := strings.Cut(Colours, "@media print")
	_, dark, _ := strings.Cut(screen, `:root:not([data-theme="light"])`)
	dark, _, _ = strings.Cut(dark, "}")
	return screen + `:root[data-theme="light"] { color-scheme: light; }
:root[data-theme="dark"]` + dark + "}\n@media print" + paper + base + controls
}

// ServeStyle serves [Service].
func ServeStyle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(Service()))
}

// New parses the template of a page. It begins with {{head TITLE}}, which opens the page and
// its body. style is added to the style of all pages.
func New(text, style string, funcs template.FuncMap) (*template.Template, error) {
	head := func(title string) template.HTML {
		// Only the title is not text of premix itself.
		return template.HTML(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="premix">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>` + template.HTMLEscapeString(title) + "</title>\n<style>\n" + Colours + base + style + "</style>\n</head>\n<body>")
	}
	return template.New("page").Funcs(template.FuncMap{"head": head}).Funcs(funcs).Parse(text)
}
