package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/testkit/browser"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/shortdir"
)

// TestRealPages opens the pages of a real run, of real copies and of a real replay. They must fit a
// screen, a telephone and paper. The test can also make the pictures for the documentation.
func TestRealPages(t *testing.T) {
	t.Run("replay", realReplay)
	if os.Getenv("PREMIX_SOAK") == "" && os.Getenv("PREMIX_SCREENSHOTS") == "" {
		return // the others take a minute; their packages test pages of smaller runs
	}
	t.Run("report", realRun)
	t.Run("transfer", realCopies)
}

// realRun maps 30 samples with minimap2 and cold starts, stops early, and continues with hot
// starts.
func realRun(t *testing.T) {
	if _, err := exec.LookPath("minimap2"); err != nil {
		t.Skip("minimap2 is missing: scripts/setup.sh test")
	}
	b := browser.New(t)
	dir := filepath.Join(shortdir.New(t), "study") // the page shows the name
	rng := rand.New(rand.NewPCG(1, 2))
	genome := make([]byte, 12e6)
	for i := range genome {
		genome[i] = "ACGT"[rng.IntN(4)]
	}
	write := func(name string, text []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("ref/genome.fa", append([]byte(">chr1\n"), append(genome, '\n')...))
	write("minimap2.yaml", []byte(`name: minimap2
command: minimap2 -a ${data.ref}/genome.fa ${reads}
data:    {ref: ./ref}
inputs:  [reads]
outputs: {stdout: "${sample}.sam"}
threads: 1
memory:  1G
`))
	sheet := bytes.NewBufferString("sample,reads\n")
	for i := range 30 {
		var reads bytes.Buffer
		for r := range 1000 + rng.IntN(9000) {
			at := rng.IntN(len(genome) - 150)
			fmt.Fprintf(&reads, ">r%d\n%s\n", r, genome[at:at+150])
		}
		name := fmt.Sprintf("patient%02d", i+1)
		write(name+".fa", reads.Bytes())
		sheet.WriteString(name + "," + name + ".fa\n")
	}
	write("samples.csv", sheet.Bytes())
	run := func(start string) *exec.Cmd {
		cmd := exec.Command(binary, "run", "minimap2.yaml", "samples.csv", "--out", "out", "-j", "2", "--start", start)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(dir, "home"))
		return cmd
	}
	cold := run("cold")
	if err := cold.Start(); err != nil {
		t.Fatal(err)
	}
	outputs := func() int {
		list, _ := filepath.Glob(filepath.Join(dir, "out", "*.sam")) // the pattern is valid
		return len(list)
	}
	comes(func() bool { return outputs() >= 6 })
	_ = cold.Process.Signal(os.Interrupt) // Wait returns its error
	_ = cold.Wait()
	first := outputs()
	if out, err := run("hot").CombinedOutput(); err != nil || first < 6 || first > 28 {
		t.Fatalf("%d outputs before, then %v: %s", first, err, out)
	}
	b.View(1280, 900, false)
	b.Go("file://" + filepath.Join(dir, "out", "report.html"))
	b.Until(`document.querySelectorAll("tr[aria-rowindex]").length >= 10`)
	if text := b.Eval(`document.body.innerText`); !strings.Contains(text, "30 of 30 succeeded") || !strings.Contains(text, "cold (") || !strings.Contains(text, "hot (") {
		t.Errorf("the page says\n%s", text)
	}
	fitsEverywhere(t, b, "report")
	if rows := b.Eval(`document.querySelectorAll("tr[aria-rowindex]").length`); rows != "30" {
		t.Errorf("%s of 30 tasks are printed", rows)
	}
}

// realCopies copies with six programs over a link of 200 Mbit/s and 4 ms.
func realCopies(t *testing.T) {
	bed := newBed(t, netrelay.Options{Rate: 200e6, Delay: 2 * time.Millisecond})
	protocols := []string{"premix", "scp", "sftp"}
	for program, protocol := range map[string]string{"rsync": "rsync", "curl": "curl", "aria2c": "aria2"} {
		if _, err := exec.LookPath(program); err == nil {
			protocols = append(protocols, protocol)
		}
	}
	b := browser.New(t)
	link := bed.write("sizes: [512K, 2M, 8M]\nrepeat: 3\nquiet: {for: 50ms, below: 1Mbit/s}\nprotocols:\n  - {use: premix, set: {premix_peer: " + binary + "}}\n  - " + strings.Join(protocols[1:], "\n  - ") + "\n")
	for _, args := range [][]string{{"bench", link, "--out", "results"}, {"report", "results"}} {
		if status, _, stderr := bed.premix(append([]string{"transfer"}, args...)...); status != 0 {
			t.Fatalf("transfer %s: status %d: %s", args[0], status, stderr)
		}
	}
	b.View(1280, 900, false)
	b.Go("file://" + bed.path("results/report.html"))
	b.Until(`document.querySelectorAll("section").length > 4`)
	if rows := b.Eval(`document.querySelectorAll("section:first-of-type tbody tr").length`); rows != fmt.Sprint(3*len(protocols)) {
		t.Errorf("the table has %s rows for %d programs", rows, len(protocols))
	}
	fitsEverywhere(t, b, "transfer")
}

// realReplay replays two weeks of a crowded cluster with 256 cores. Users submit by day, and jobs
// request more time than they need.
func realReplay(t *testing.T) {
	b := browser.New(t)
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(3, 4))
	var trace bytes.Buffer
	fmt.Fprintf(&trace, "; MaxNodes: 16\n; MaxProcs: 256\n; UnixStartTime: 1767571200\n; TimeZoneString: UTC\n")
	at, number := 0.0, 0
	for at < 14*86400 {
		hour := math.Mod(at/3600, 24)
		rate := 0.35 + 1.4*math.Exp(-math.Pow((hour-14)/4, 2)) // submissions in a quarter of an hour
		at += rng.ExpFloat64() * 900 / rate
		number++
		cores := 1 << rng.IntN(8)
		run := min(int(math.Exp(8.3+1.2*rng.NormFloat64()))+30, 86400)
		asked := (run*(2+rng.IntN(4))/2/1800 + 1) * 1800
		user := 1 + int(rng.ExpFloat64()*4)
		fmt.Fprintf(&trace, "%d %d -1 %d %d -1 -1 %d %d -1 1 %d 1 1 1 1 -1 -1\n", number, int(at), run, cores, cores, asked, user)
	}
	if err := os.WriteFile(filepath.Join(dir, "cluster.swf"), trace.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "replay", "cluster.swf", "--policy", "fcfs,conservative,easy", "--html", "page.html")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	b.View(1280, 900, false)
	b.Go("file://" + filepath.Join(dir, "page.html"))
	b.Until(`document.querySelectorAll("svg").length === 6`)
	if text := b.Eval(`document.body.innerText`); !strings.Contains(text, "on 256 cores") {
		t.Errorf("the page says\n%s", text)
	}
	fitsEverywhere(t, b, "replay")
}

// fitsEverywhere checks that the page is not wider than its medium, and that no table or chart is
// clipped on a screen or on paper.
func fitsEverywhere(t *testing.T, b *browser.Browser, name string) {
	t.Helper()
	const clipped = `[...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText.slice(0, 60)).join("; ")`
	check := func(medium string) {
		t.Helper()
		if !b.Comes(`document.documentElement.scrollWidth <= innerWidth`) {
			t.Errorf("%s: the page is %s pixels wide", medium, b.Eval(`document.documentElement.scrollWidth`))
		}
		if got := b.Eval(clipped); medium != "400" && got != "" {
			t.Errorf("%s: clipped: %s", medium, got)
		}
		b.Shoot(name+"-"+medium, true)
	}
	for _, wide := range []int{1280, 400} {
		b.View(wide, 900, false)
		check(fmt.Sprint(wide))
	}
	b.Print()
	check("print")
	b.Sheets(name)
	for _, s := range b.Wrong {
		t.Errorf("the browser complains: %s", s)
	}
}
