package summary

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"premix/internal/record"
	"premix/internal/testkit/browser"
	"premix/internal/transfer"
)

// measured returns the report on a directory with copies of known speeds. They take 1 s and
// longer, depending on protocol and round.
func measured(t *testing.T) *Report {
	t.Helper()
	dir := t.TempDir()
	table, err := transfer.Create(dir, record.Header{Premix: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	for round := 1; round <= 9; round++ {
		for i, protocol := range []string{"aria2c-x8", "premix", "rsync", "scp"} {
			seconds := 1 + float64(i) + float64(round-5)/100
			c := transfer.Copy{ID: fmt.Sprintf("%03d-%d", round, i), Link: "campus", Protocol: protocol, Direction: transfer.Get, Size: 125e6, Files: 1, Host: "here", Here: "10.0.0.2", Peer: "10.0.0.1", Interface: "eth0", MTU: 1500, Capture: "packet", Congestion: "cubic", CongestionPeer: "bbr", PremixBuild: "v1",
				CPU: 0.4, CPUPeer: 0.3, BytesUp: 2e6,
				Round: round, Started: began.Add(time.Duration(round*4+i) * 20 * time.Minute), Hour: 8 + float64(round*4+i)/3,
				Seconds: seconds, Speed: 125e6 / seconds, Steady: 130e6 / seconds, First: 0.05, Flowing: 0.2, Ratio: 1.04, OK: round != 5 || i != 3, BytesDown: 130e6}
			if !c.OK {
				c.Cause, c.Error = transfer.CauseExit, "the connection was reset"
			}
			if err := table.Commit(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// In a browser, the page shows the figures of the copies, and nothing is wider than a
// screen, a telephone or a sheet of paper.
func TestPage(t *testing.T) {
	r := measured(t)
	path, err := r.Write()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "transfers.csv")); err != nil || len(text) == 0 {
		t.Errorf("the table has %d bytes, %v", len(text), err)
	}
	b := browser.New(t)
	b.View(1280, 900, false)
	b.Go("file://" + path)
	b.Until(`document.querySelectorAll("section").length > 2`)
	// The median of 9 copies of 1 s is 1,000 Mbit/s, and the fastest protocol is marked.
	for expression, want := range map[string]string{
		`document.querySelectorAll("section:first-of-type tbody tr").length`:                                           "4",
		`[...document.querySelectorAll("tr.best")].map((e) => e.children[3].innerText).join()`:                         "aria2c-x8",
		`document.querySelector("tr.best").children[10].innerText`:                                                     "1000.0",
		`[...document.querySelectorAll("section:first-of-type tbody tr")].map((e) => e.children[17].innerText).join()`: "0,0,0,1",
	} {
		if got := b.Eval(expression); got != want {
			t.Errorf("%s is %s, want %s", expression, got, want)
		}
	}
	fits := func(where string) {
		t.Helper()
		if !b.Comes(`document.documentElement.scrollWidth <= innerWidth`) {
			t.Errorf("%s: the page is %s pixels wide", where, b.Eval(`document.documentElement.scrollWidth`))
		}
	}
	for _, wide := range []int{1280, 400} {
		b.View(wide, 900, false)
		fits(fmt.Sprint(wide))
		b.Shoot(fmt.Sprintf("transfer-%d", wide), true)
	}
	b.Print()
	fits("paper")
	b.Shoot("transfer-print", true)
	b.Sheets("transfer")
	for _, s := range b.Wrong {
		t.Errorf("the browser complains: %s", s)
	}
}
