package service_test

import (
	"strings"
	"testing"

	"premix/internal/blast/service"
	"premix/internal/testkit/browser"
)

func TestPage(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	b := browser.New(t)
	b.View(1100, 900, false)
	b.Go(w.URL + "/")
	b.Until(`document.querySelector("#database")?.options.length === 1`)
	b.Shoot("blast-empty", true)

	// Enter and submit a sequence without a mouse. It has parts of two genes, one of them from the
	// opposite strand.
	back := []byte(w.genes[4][:200])
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	reverse := strings.NewReplacer("A", "T", "C", "G", "G", "C", "T", "A").Replace(string(back))
	b.Eval(`document.querySelector("#query").focus()`)
	b.Type(">mine from two genes\n" + w.genes[3][100:400] + reverse + "\n>nothing\nACACACACACGTGTGTGTTTACACAC\n")
	b.Key("Enter", browser.Control)
	b.Until(`!document.querySelector("#results").hidden`)
	if n := b.Eval(`document.querySelectorAll("#hits tbody tr").length`); n != "2" {
		t.Errorf("%s rows: %s", n, b.Eval(`document.querySelector("#hits").innerText`))
	}
	if n := b.Eval(`document.querySelectorAll("#overview svg rect[class^=s]").length`); n != "2" {
		t.Errorf("%s bars in the overview", n)
	}
	if s := b.Eval(`location.hash.length`); s != "17" {
		t.Errorf("the address does not name the search: %s", s)
	}
	// The keyboard opens a hit. The alignment of the opposite strand counts downwards.
	b.Eval(`document.querySelectorAll("#hits tbody a")[1].focus()`)
	b.Key("Enter", 0)
	b.Until(`document.querySelector("details[open] pre")?.innerText.includes("Sbjct  200")`)
	if text := b.Eval(`document.querySelector("details[open]").innerText`); !strings.Contains(text, "Query  301") || !strings.Contains(text, "strands plus and minus") || !strings.Contains(text, "  500\n") {
		t.Errorf("the alignment is\n%s", text)
	}
	b.Shoot("blast-1100", true)
	b.Print()
	if !b.Comes(`document.documentElement.scrollWidth <= innerWidth`) {
		t.Errorf("in print the page is %s pixels wide", b.Eval(`document.documentElement.scrollWidth`))
	}
	b.Shoot("blast-print", true)
	b.Sheets("blast")
	b.View(400, 900, false)
	// The overview is drawn for the new width with letters of the same size.
	const letters = `document.querySelector("#overview text").getBoundingClientRect().height`
	if !b.Comes(letters + ` >= 10 && document.documentElement.scrollWidth <= innerWidth`) {
		t.Errorf("at 400 px the numbers of the overview are %s px high, and the page is %s px wide", b.Eval(letters), b.Eval(`document.documentElement.scrollWidth`))
	}
	b.Shoot("blast-400", true)
	b.View(390, 900, true)
	// A resized window is laid out a frame later.
	const over = `document.documentElement.scrollWidth - document.documentElement.clientWidth`
	if !b.Comes(over + ` === 0`) {
		wide := b.Eval(`[...document.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth && !e.closest(".scroll, pre")).map(e => e.tagName + "#" + e.id).join(" ")`)
		t.Errorf("the page is %s pixels wider than a telephone: %s", b.Eval(over), wide)
	}
	b.Shoot("blast-390-dark", true)
	const color = `getComputedStyle(document.body).backgroundColor`
	if !b.Comes(color + ` === "rgb(18, 21, 27)"`) {
		t.Errorf("in the dark the page is %s", b.Eval(color))
	}
	b.Eval(`(() => { const c = document.querySelector("#choose"); c.value = 1; c.onchange(); })()`)
	b.Until(`document.querySelector("#summary").innerText.includes("no hit")`)

	// The address alone restores the results.
	b.Reload()
	b.Until(`document.querySelectorAll("#hits tbody tr").length === 2`)

	// An error is reported with its line.
	b.Eval(`document.querySelector("#query").value = ">x\nACGT-ACGT"; document.querySelector("#search").requestSubmit()`)
	b.Until(`document.querySelector("#error").innerText.includes("line 2: '-' is not a valid nucleotide")`)
	for _, s := range b.Wrong {
		if !strings.Contains(s, "400 (Bad Request)") {
			t.Errorf("the browser complains: %s", s)
		}
	}
}
