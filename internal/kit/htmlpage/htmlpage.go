package htmlpage

import (
	_ "embed"
	"html/template"
)

// Colours is the style sheet that defines the colours of all pages, as variables.
//
//go:embed colours.css
var Colours string

//go:embed base.css
var base string

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
