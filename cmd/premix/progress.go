package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// bar shows a line on a terminal, and updates it whenever it has changed, until stop is
// called. Without a terminal, and with --json, it shows nothing.
func (a *app) bar(line func() string) (stop func()) {
	f, ok := a.stderr.(*os.File)
	if !ok || a.json || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				text := line()
				if width, _, err := term.GetSize(int(f.Fd())); err == nil && len(text) >= width {
					text = text[:max(0, width-1)]
				}
				fmt.Fprintf(f, "\r%s\x1b[K", text) // erase the rest of the previous text
			case <-done:
				fmt.Fprint(f, "\r\x1b[K")
				return
			}
		}
	}()
	return func() { close(done); <-gone }
}

// share draws how much of a whole is done.
func share(done, whole int64) string {
	const width = 20
	n := width
	if whole > 0 {
		n = int(width * min(done, whole) / whole)
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-n) + "]"
}
