package browser

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

	"premix/internal/testkit/shortdir"
)

// Patience is the time for which a test waits for a page.
const Patience = 2 * time.Minute

// Browser is a Chromium without a window, with one page. Its messages are JSON that
// ends with a NUL (--remote-debugging-pipe).
type Browser struct {
	// Wrong holds the complaints of the page: exceptions, errors and warnings on the
	// console, requests that were refused or failed.
	Wrong []string
	// Asked holds the addresses of all requests.
	Asked []string

	t       *testing.T
	watch   *time.Timer // kills the browser after a long time without a call
	in      *os.File
	out     *bufio.Reader
	last    int
	session string
}

// New starts a browser that ends with the test. Without Chromium the test is skipped.
func New(t *testing.T) *Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: scripts/setup.sh test")
	}
	home, err := os.MkdirTemp(shortdir.Base(), "browser-") // it makes sockets
	if err != nil {
		t.Fatal(err)
	}
	// The browser's helper processes end a moment later, and write until then.
	t.Cleanup(func() {
		err := os.RemoveAll(home)
		for deadline := time.Now().Add(Patience); err != nil && time.Now().Before(deadline); err = os.RemoveAll(home) {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
	})
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe", "--user-data-dir="+home, "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Env = append(os.Environ(), "TZ=UTC", "TMPDIR="+home)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &Browser{t: t, in: in, out: bufio.NewReaderSize(out, 1<<20)}
	b.watch = time.AfterFunc(2*Patience, func() { _ = cmd.Process.Kill() }) // ends a call that waits
	t.Cleanup(func() {
		b.watch.Stop()
		in.Close() // ends the browser
		_ = cmd.Wait()
		out.Close()
	})
	var target struct{ TargetID string }
	b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.Call(domain+".enable", nil, nil)
	}
	return b
}

// Call calls a method of the protocol and waits for its result.
func (b *Browser) Call(method string, params, result any) {
	b.t.Helper()
	if err := b.call(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// call is Call. It returns the error of the browser.
func (b *Browser) call(method string, params, result any) error {
	b.t.Helper()
	b.watch.Reset(2 * Patience)
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
		answer := b.next()
		if answer.ID != b.last {
			continue
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(answer.Result, result); err != nil {
				b.t.Fatal(err)
			}
		}
		return nil
	}
}

// message is a message of the browser: the result of a call, or an event, which has no ID.
type message struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// next returns the next message, after it has recorded an event.
func (b *Browser) next() message {
	b.t.Helper()
	text, err := b.out.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("the browser has gone: %v", err)
	}
	var m message
	if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	b.note(m.Method, m.Params)
	return m
}

// note appends an error of the page to Wrong, and the address of a request to Asked.
func (b *Browser) note(method string, params json.RawMessage) {
	switch method {
	case "Runtime.exceptionThrown", "Log.entryAdded":
		// Recommendations are not faults of the page.
		if !strings.Contains(string(params), `"source":"recommendation"`) {
			b.Wrong = append(b.Wrong, string(params))
		}
	case "Runtime.consoleAPICalled":
		var call struct{ Type string }
		if json.Unmarshal(params, &call) == nil && (call.Type == "error" || call.Type == "warning" || call.Type == "assert") {
			b.Wrong = append(b.Wrong, string(params))
		}
	case "Network.requestWillBeSent":
		var sent struct{ Request struct{ URL string } }
		if json.Unmarshal(params, &sent) == nil {
			b.Asked = append(b.Asked, sent.Request.URL)
		}
	}
}

// Go loads an address.
func (b *Browser) Go(url string) {
	b.t.Helper()
	b.Call("Page.navigate", map[string]any{"url": url}, nil)
}

// Reload loads the page's address again, and waits until that has replaced the page.
func (b *Browser) Reload() {
	b.t.Helper()
	b.Call("Page.reload", nil, nil)
	for b.next().Method != "Page.loadEventFired" {
	}
}

// Eval returns the value of an expression in the page, as text.
func (b *Browser) Eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	err := b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if err != nil && strings.Contains(err.Error(), "navigated") {
		return "exception: " + err.Error() // another page has come meanwhile
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if r.ExceptionDetails != nil {
		return "exception: " + r.ExceptionDetails.Exception.Description
	}
	return fmt.Sprint(r.Result.Value)
}

// Comes waits until an expression is true, and reports whether it became so.
func (b *Browser) Comes(expression string) bool {
	b.t.Helper()
	for deadline := time.Now().Add(Patience); b.Eval(expression) != "true"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Until waits until an expression is true, and fails the test if it never is.
func (b *Browser) Until(expression string) {
	b.t.Helper()
	if !b.Comes(expression) {
		b.t.Fatalf("%s does not come: %s; the page says %s\n%s", expression, b.Eval(expression), b.Eval("document.body.innerText"), strings.Join(b.Wrong, "\n"))
	}
}

// View sets the size of the window in pixels, and whether the system prefers dark colours.
// A window narrower than 600 is a telephone.
func (b *Browser) View(width, height int, dark bool) {
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.Call("Emulation.setTouchEmulationEnabled", map[string]any{"enabled": width < 600}, nil)
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Print sets the size of a sheet of A4 paper, and lays the page out as for a printer.
func (b *Browser) Print() {
	b.t.Helper()
	b.View(794, 1123, false)
	b.Call("Emulation.setEmulatedMedia", map[string]any{"media": "print"}, nil)
}

// Shoot takes a picture of the window, or of the whole page, and writes it to the directory
// $PREMIX_SCREENSHOTS. It does nothing if the variable is not set.
func (b *Browser) Shoot(name string, whole bool) {
	b.t.Helper()
	dir := os.Getenv("PREMIX_SCREENSHOTS")
	if dir == "" {
		return
	}
	b.Until(`document.body?.getBoundingClientRect().width > 0`) // a new page is laid out a frame later
	b.save("Page.captureScreenshot", map[string]any{"captureBeyondViewport": whole}, filepath.Join(dir, name+".png"))
}

// Sheets prints the page on A4 paper, and writes the PDF to the directory
// $PREMIX_SCREENSHOTS. It does nothing if the variable is not set.
func (b *Browser) Sheets(name string) {
	b.t.Helper()
	dir := os.Getenv("PREMIX_SCREENSHOTS")
	if dir == "" {
		return
	}
	b.save("Page.printToPDF", map[string]any{"paperWidth": 8.27, "paperHeight": 11.69}, filepath.Join(dir, name+".pdf"))
}

// save writes the data of a result of the browser to a file.
func (b *Browser) save(method string, params map[string]any, path string) {
	b.t.Helper()
	var r struct{ Data string }
	b.Call(method, params, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Modifiers of keys.
const (
	Control = 2
	Shift   = 8
)

// codes holds the key codes of keys without a letter.
var codes = map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}

// Key presses a key: a letter, or the name of a key as in KeyboardEvent.key.
func (b *Browser) Key(key string, modifiers int) {
	b.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key, "modifiers": modifiers}
	code := codes[key]
	if len(key) == 1 {
		if code == 0 {
			code = int(strings.ToUpper(key)[0])
		}
		down["text"] = key
	}
	if key == "Enter" {
		down["text"] = "\r"
	}
	down["windowsVirtualKeyCode"] = code
	b.Call("Input.dispatchKeyEvent", down, nil)
	b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}, nil)
}

// Type enters text into the element that has the focus.
func (b *Browser) Type(text string) {
	b.t.Helper()
	b.Call("Input.insertText", map[string]any{"text": text}, nil)
}

// Drag presses the mouse's button at one place and releases it at another. With one place
// for both it is a click. Places are in pixels of the window.
func (b *Browser) Drag(x1, y1, x2, y2 float64) {
	b.t.Helper()
	event := func(kind string, x, y float64, buttons int) {
		b.Call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": map[bool]string{true: "none", false: "left"}[kind == "mouseMoved" && buttons == 0], "buttons": buttons, "clickCount": 1}, nil)
	}
	event("mouseMoved", x1, y1, 0)
	event("mousePressed", x1, y1, 1)
	if x1 != x2 || y1 != y2 {
		for i := 1; i <= 4; i++ {
			event("mouseMoved", x1+(x2-x1)*float64(i)/4, y1+(y2-y1)*float64(i)/4, 1)
		}
	}
	event("mouseReleased", x2, y2, 0)
}
