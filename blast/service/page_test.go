package service_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/blast/service"
)

// browser is a Chromium without a window, spoken to by its DevTools protocol over a
// pair of pipes (--remote-debugging-pipe): messages are JSON that ends with a NUL.
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	last    int
	session string
	wrong   []string // what the page complained of
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: scripts/setup.sh test")
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20)}
	watch := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() }) // ends what is waited for below
	t.Cleanup(func() {
		watch.Stop()
		in.Close() // which ends it
		_ = cmd.Wait()
		out.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call calls a method of the protocol and waits for its answer.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.last++
	m := map[string]any{"id": b.last, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	for {
		text, err := b.out.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("the browser has gone: %v", err)
		}
		var answer struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text[:len(text)-1], &answer); err != nil {
			b.t.Fatal(err)
		}
		switch answer.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded":
			b.wrong = append(b.wrong, string(answer.Params))
		}
		if answer.ID != b.last {
			continue
		}
		if answer.Error != nil {
			b.t.Fatalf("%s: %s", method, answer.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(answer.Result, result); err != nil {
				b.t.Fatal(err)
			}
		}
		return
	}
}

// eval is the value of an expression in the page.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct{ Value any }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	return fmt.Sprint(r.Result.Value)
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); b.eval(expression) != "true"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s does not come; the page says %s", expression, b.eval("document.body.innerText"))
		}
	}
}

// view sets the size of the window and whether the system is dark.
func (b *browser) view(width int, dark bool) {
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// shoot takes a picture of the whole page where $PREMIX_SCREENSHOTS names a directory.
func (b *browser) shoot(name string) {
	dir := os.Getenv("PREMIX_SCREENSHOTS")
	if dir == "" {
		return
	}
	var r struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &r)
	picture, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// key presses a key.
func (b *browser) key(key string, code, modifiers int, text string) {
	down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
	if text != "" {
		down["text"] = text
	}
	b.call("Input.dispatchKeyEvent", down, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}, nil)
}

func TestPage(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	b := newBrowser(t)
	b.view(1100, false)
	b.call("Page.navigate", map[string]any{"url": w.URL + "/"}, nil)
	b.until(`document.querySelector("#database")?.options.length === 1`)
	b.shoot("empty")

	// A sequence is typed and sent without a mouse. It has parts of two genes, one of
	// them of the other strand.
	back := []byte(w.genes[4][:200])
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	reverse := strings.NewReplacer("A", "T", "C", "G", "G", "C", "T", "A").Replace(string(back))
	b.eval(`document.querySelector("#query").focus()`)
	b.call("Input.insertText", map[string]any{"text": ">mine from two genes\n" + w.genes[3][100:400] + reverse + "\n>nothing\nACACACACACGTGTGTGTTTACACAC\n"}, nil)
	b.key("Enter", 13, 2, "\r")
	b.until(`!document.querySelector("#results").hidden`)
	if n := b.eval(`document.querySelectorAll("#hits tbody tr").length`); n != "2" {
		t.Errorf("%s rows: %s", n, b.eval(`document.querySelector("#hits").innerText`))
	}
	if n := b.eval(`document.querySelectorAll("#overview svg rect[class^=s]").length`); n != "2" {
		t.Errorf("%s bars in the overview", n)
	}
	if s := b.eval(`location.hash.length`); s != "17" {
		t.Errorf("the address does not name the search: %s", s)
	}
	// A hit is opened by the keyboard; the alignment of the other strand counts downwards.
	b.eval(`document.querySelectorAll("#hits tbody a")[1].focus()`)
	b.key("Enter", 13, 0, "\r")
	b.until(`document.querySelector("details[open] pre")?.innerText.includes("Sbjct  200")`)
	if text := b.eval(`document.querySelector("details[open]").innerText`); !strings.Contains(text, "Query  301") || !strings.Contains(text, "strands plus and minus") || !strings.Contains(text, "  500\n") {
		t.Errorf("the alignment is\n%s", text)
	}
	b.shoot("results")
	b.view(390, true)
	if over := b.eval(`document.documentElement.scrollWidth - innerWidth`); over != "0" {
		t.Errorf("the page is %s pixels wider than a telephone", over)
	}
	b.shoot("telephone")
	if dark := b.eval(`getComputedStyle(document.body).backgroundColor`); dark != "rgb(22, 24, 26)" {
		t.Errorf("in the dark the page is %s", dark)
	}
	b.eval(`(() => { const c = document.querySelector("#choose"); c.value = 1; c.onchange(); })()`)
	b.until(`document.querySelector("#summary").innerText.includes("no hit")`)

	// The address alone brings the results back.
	b.call("Page.reload", nil, nil)
	b.until(`document.querySelectorAll("#hits tbody tr").length === 2`)

	// A mistake is told with its line.
	b.eval(`document.querySelector("#query").value = ">x\nACGT-ACGT"; document.querySelector("#search").requestSubmit()`)
	b.until(`document.querySelector("#error").innerText.includes("line 2: '-' is no nucleotide")`)
	for _, s := range b.wrong {
		if !strings.Contains(s, "400 (Bad Request)") && !strings.Contains(s, `"source":"recommendation"`) {
			t.Errorf("the browser complains: %s", s)
		}
	}
}
