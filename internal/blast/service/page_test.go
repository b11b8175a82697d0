package service_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/service"
	"premix/internal/testkit/browser"
)

// twoGenes returns queries with parts of two genes, one of them from the opposite strand.
func (w *world) twoGenes() string {
	back := []byte(w.genes[4][:200])
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	reverse := strings.NewReplacer("A", "T", "C", "G", "G", "C", "T", "A").Replace(string(back))
	return ">mine from two genes\n" + w.genes[3][100:400] + reverse + "\n>nothing\nACACACACACGTGTGTGTTTACACAC\n"
}

func TestPage(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	b := browser.New(t)
	b.View(1100, 900, false)
	b.Go(w.URL + "/")
	b.Until(`document.querySelectorAll("input[name=database]").length === 2`)
	b.Shoot("blast-empty", true)
	// The script shows the databases that fit the program.
	b.Until(`[...document.querySelectorAll("fieldset")].filter(f => !f.hidden).map(f => f.dataset.type).join() === "nucl"`)

	// Enter and submit a sequence without a mouse.
	b.Eval(`document.querySelector("input[value=dna]").focus()`)
	b.Key(" ", 0)
	b.Eval(`document.querySelector("#query").focus()`)
	b.Type(w.twoGenes())
	b.Key("Enter", browser.Control)
	b.Until(`document.querySelector("#results") !== null`)
	if n := b.Eval(`document.querySelectorAll("#hits tbody tr").length`); n != "2" {
		t.Errorf("%s rows: %s", n, b.Eval(`document.querySelector("#hits").innerText`))
	}
	if n := b.Eval(`document.querySelectorAll("#overview svg rect[class^=s]").length`); n != "2" {
		t.Errorf("%s bars in the overview", n)
	}
	if s := b.Eval(`new URLSearchParams(location.search).get("id").length`); s != "16" {
		t.Errorf("the address does not name the search: %s", s)
	}
	// The keyboard leads to a hit. The alignment of the opposite strand counts downwards.
	b.Eval(`document.querySelectorAll("#hits tbody a")[1].focus()`)
	b.Key("Enter", 0)
	b.Until(`document.querySelector("article:target pre")?.innerText.includes("Sbjct  200")`)
	if text := b.Eval(`document.querySelector("article:target").innerText`); !strings.Contains(text, "Query  301") || !strings.Contains(text, "strands plus and minus") || !strings.Contains(text, "  500\n") {
		t.Errorf("the alignment is\n%s", text)
	}
	b.Eval(`location.hash = ""`)
	b.Shoot("blast-1100", true)
	b.Print()
	if !b.Comes(`document.documentElement.scrollWidth <= innerWidth`) {
		t.Errorf("in print the page is %s pixels wide", b.Eval(`document.documentElement.scrollWidth`))
	}
	b.Shoot("blast-print", true)
	b.Sheets("blast")
	address := b.Eval(`location.href`)
	for _, page := range []string{"/", "/searches", address[len(w.URL):], "/?program=blastp&word_size=3&database=aa"} {
		b.View(400, 900, false)
		b.Go(w.URL + page)
		b.Until(`document.querySelector("main") !== null`)
		if !b.Comes(`document.documentElement.scrollWidth <= innerWidth`) {
			t.Errorf("at 400 px, %s is %s px wide", page, b.Eval(`document.documentElement.scrollWidth`))
		}
		b.View(390, 900, true)
		// A resized window is laid out a frame later.
		const over = `document.documentElement.scrollWidth - document.documentElement.clientWidth`
		if !b.Comes(over + ` === 0`) {
			wide := b.Eval(`[...document.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth && !e.closest(".scroll, pre")).map(e => e.tagName + "#" + e.id).join(" ")`)
			t.Errorf("%s is %s pixels wider than a telephone: %s", page, b.Eval(over), wide)
		}
		const color = `getComputedStyle(document.body).backgroundColor`
		if !b.Comes(color + ` === "rgb(18, 21, 27)"`) {
			t.Errorf("in the dark the page is %s", b.Eval(color))
		}
		if unnamed := b.Eval(`[...document.querySelectorAll("input:not([type=hidden]), select, textarea")].filter(e => !e.labels.length && !e.ariaLabel).map(e => e.name).join()`); unnamed != "" {
			t.Errorf("%s: fields without a label: %s", page, unnamed)
		}
	}
	b.Go(address)
	b.Until(`document.querySelector("#overview text") !== null`)
	if !b.Comes(`document.querySelector("#overview text").getBoundingClientRect().height >= 10`) {
		t.Errorf("the numbers of the overview are %s px high", b.Eval(`document.querySelector("#overview text").getBoundingClientRect().height`))
	}
	b.Shoot("blast-390-dark", true)

	// The other query.
	b.Eval(`(() => { const c = document.querySelector("#choose"); c.value = 2; c.form.requestSubmit(); })()`)
	b.Until(`document.querySelector("#summary")?.innerText.includes("no hit")`)

	// An error is reported with its line, and the form keeps its content.
	b.Go(w.URL + "/")
	b.Until(`document.querySelector("#query") !== null`)
	b.Eval(`document.querySelector("#query").value = ">x\nACGT-ACGT"; document.querySelector("input[value=dna]").checked = true; document.querySelector("#search").requestSubmit()`)
	b.Until(`document.querySelector("#error")?.innerText.includes("line 2: '-' is not a valid nucleotide")`)
	if s := b.Eval(`document.querySelector("#query").value + document.querySelector("input[value=dna]").checked`); s != ">x\nACGT-ACGTtrue" {
		t.Errorf("the form has %q", s)
	}
	for _, s := range b.Wrong {
		if !strings.Contains(s, "400 (Bad Request)") {
			t.Errorf("the browser complains: %s", s)
		}
	}
}

// TestPageWithoutScript submits the form, reads the result, chooses hits and edits the search in
// a browser that runs no scripts.
func TestPageWithoutScript(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	b := browser.New(t)
	b.Call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.Go(w.URL + "/?program=blastn&database=dna&task=blastn&options=-soft_masking+true&query=" + url.QueryEscape(w.twoGenes()))
	b.Until(`document.querySelector("#go") !== null`)
	if s := b.Eval(`[...document.querySelectorAll("fieldset")].filter(f => !f.hidden).length`); s != "2" {
		t.Errorf("%s lists of databases are shown without the script", s)
	}
	b.Eval(`document.querySelector("#go").focus()`)
	b.Key("Enter", 0)
	b.Until(`document.querySelectorAll("#hits tbody tr").length === 4`)
	facts := b.Eval(`document.querySelector("#facts").innerText`)
	for _, want := range []string{"blastn, BLASTN 2.", "premix test", "dna (dna.fa): 40 sequences, 24,000 letters", "-soft_masking true", "-task blastn", "expect 10", "2 sequences, 526 letters"} {
		if !strings.Contains(facts, want) {
			t.Errorf("no %q in the facts:\n%s", want, facts)
		}
	}
	if sent := b.Eval(`document.querySelector("#sent").textContent`); sent != w.twoGenes() {
		t.Errorf("the query is shown as %q", sent)
	}
	b.Eval(`[...document.querySelectorAll("a.button")].find(a => a.textContent === "Edit search").focus()`)
	b.Key("Enter", 0)
	b.Until(`document.querySelector("#go") !== null`)
	if s := b.Eval(`document.querySelector("#query").value + document.querySelector("#task").value + document.querySelector("#options").value + document.querySelector("input[value=dna]").checked`); s != w.twoGenes()+"blastn-soft_masking truetrue" {
		t.Errorf("the form has %q", s)
	}
	if len(b.Wrong) > 0 {
		t.Errorf("the browser complains: %q", b.Wrong)
	}
}

// send submits the form as a browser without scripts does, and returns the answer's status and
// body, and where it leads.
func (w *world) send(path string, v url.Values, header ...string) (int, string, http.Header) {
	w.t.Helper()
	was := http.DefaultClient.CheckRedirect
	http.DefaultClient.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer func() { http.DefaultClient.CheckRedirect = was }()
	return w.ask("POST", path, v, header...)
}

// submitted submits the form and returns the id of the search, once it is ready, and the cookie.
func (w *world) submitted(v url.Values, header ...string) (id, cookie string) {
	w.t.Helper()
	status, text, h := w.send("/search", v, header...)
	id, ok := strings.CutPrefix(h.Get("Location"), "search?id=")
	if status != 303 || !ok {
		w.t.Fatalf("%d %s", status, text)
	}
	w.result(id, "format=json", header...)
	cookie, _, _ = strings.Cut(h.Get("Set-Cookie"), ";")
	return id, cookie
}

func TestForm(t *testing.T) {
	w := newWorld(t, &plain{}, nil)
	query := ">q\n" + w.genes[3][:300] + "\n"
	v := url.Values{"program": {"blastn"}, "database": {"dna"}, "query": {query}, "evalue": {"1e-5"}, "word_size": {"11"},
		"options": {"-soft_masking true -dust 20 64 1 -ungapped"}, "task": {"blastn"}}
	id, _ := w.submitted(v)
	want := w.want("blastn", "dna", query, "-dust", "20 64 1", "-evalue", "1e-5", "-soft_masking", "true", "-task", "blastn", "-ungapped", "-word_size", "11", "-outfmt", "6")
	status, got, h := w.ask("GET", "/result?format=tabular&id="+id, nil)
	if status != 200 || got != want || want == "" || h.Get("Content-Disposition") != `attachment; filename="`+id+`.tsv"` {
		t.Errorf("%d %v: got\n%s\nwant\n%s", status, h, got, want)
	}
	if _, text, _ := w.ask("GET", "/query?id="+id, nil); text != query {
		t.Errorf("the query is %q", text)
	}
	// The form of the same search has the same options.
	_, text, _ := w.ask("GET", "/?edit="+id, nil)
	for _, want := range []string{`name="evalue" value="1e-5"`, `name="word_size" value="11"`, `value="-dust 20 64 1 -soft_masking true -ungapped"`, `value="blastn" data-program="blastn" selected`, `value="dna" checked`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in the form", want)
		}
	}
	for _, c := range []struct{ name, value, want string }{
		{"options", "-num_threads 9", "&#34;-num_threads&#34; is not an option that can be given here"},
		{"options", "-evalue 3", "the option -evalue is there twice"},
		{"options", "-out /tmp/x", "is not an option"},
		{"options", "-soft_masking maybe", "is not a value of the option soft_masking"},
		{"taxids", "human", "is not a value of the option taxids"},
		{"task", "blastp-fast", "the task blastp-fast is for blastp, not for blastn"},
		{"query", "NM_000546.6", "accessions as queries are not to be had here"},
		{"query", "P04637\nQ9Y6K9", "accessions as queries are not to be had here"},
		{"query", "", "there is no query"},
		{"database", "none", "there is no database &#34;none&#34;"},
		{"database", "", "no database is named"},
		{"database", "aa", "does not search databases of type prot"},
		{"query", "<script>alert(1)</script>", "is not a valid nucleotide"},
	} {
		bad := url.Values{}
		for name, list := range v {
			bad[name] = list
		}
		bad.Set(c.name, c.value)
		status, text, _ := w.send("/search", bad)
		if status < 400 || status >= 500 || !strings.Contains(text, c.want) || strings.Contains(text, "<script>alert") {
			t.Errorf("%s=%s: %d, no %q", c.name, c.value, status, c.want)
		}
	}
	if status, _, _ := w.send("/search", v, "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("a form of another site: %d", status)
	}
	// NCBI's API has the words for accessions, too, and the search for several databases.
	if _, text, _ := w.ask("POST", "/Blast.cgi", url.Values{"CMD": {"Put"}, "PROGRAM": {"blastn"}, "DATABASE": {"dna"}, "QUERY": {"8332116"}}); !strings.Contains(text, "accessions as queries are not to be had here") {
		t.Error(text)
	}
}

// A failed search shows the message of BLAST+, and a search that waits loads itself again.
func TestPageStates(t *testing.T) {
	p := &plain{held: make(chan struct{})}
	w := newWorld(t, p, nil)
	v := url.Values{"program": {"blastp"}, "database": {"aa"}, "query": {"MKVLAAGIVGLLLA"}, "gapopen": {"99"}, "gapextend": {"99"}}
	_, _, h := w.send("/search", v)
	path := "/" + h.Get("Location")
	status, text, h := w.ask("GET", path+"&wait=0.1", nil)
	if status != 200 || !strings.HasPrefix(h.Get("Refresh"), "1; url=search?id=") || !strings.Contains(text, ">Cancel<") {
		t.Errorf("a search that waits: %d %v %s", status, h, text)
	}
	close(p.held)
	for deadline := time.Now().Add(patience); ; {
		_, text, h = w.ask("GET", path+"&wait=5", nil)
		if h.Get("Refresh") == "" || time.Now().After(deadline) {
			break
		}
	}
	if !strings.Contains(text, `role="alert"`) || !strings.Contains(text, "Gap existence and extension values") {
		t.Errorf("a failed search: %s", text)
	}
	if status, text, _ := w.ask("GET", "/search?id=NONE", nil); status != 404 || !strings.Contains(text, "<h1>BLAST</h1>") {
		t.Errorf("a search that does not exist: %d %s", status, text)
	}
}

// The order of several databases does not matter, and the result is the one of BLAST+ on all of
// them.
func TestSeveralDatabases(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	path := filepath.Join(t.TempDir(), "more.fa")
	if err := os.WriteFile(path, []byte(">extra a gene\n"+w.genes[3][:500]+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := database.Add(t.Context(), w.options.Home, database.AddOptions{Name: "more", Source: path, Type: database.Nucl, Fragments: 1}); err != nil {
		t.Fatal(err)
	}
	query := ">q\n" + w.genes[3] + "\n"
	id, _ := w.submitted(url.Values{"program": {"blastn"}, "database": {"more", "dna"}, "query": {query}})
	dir := t.TempDir()
	for _, name := range []string{"dna", "more"} {
		d, err := database.Open(w.options.Home, name)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := os.WriteFile(filepath.Join(dir, name+".nal"), []byte("TITLE "+d.Title+"\nDBLIST \""+d.Whole+"\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for format, outfmt := range map[string]string{"tabular": "6", "table": "7", "text": "0", "json": "15"} {
		cmd := exec.Command("blastn", "-db", "dna more", "-outfmt", outfmt)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(query)
		want, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := w.result(id, "format="+format); got != string(want) || !strings.Contains(got, "extra") {
			t.Errorf("%s: got\n%s\nwant\n%s", format, got, want)
		}
	}
	if _, text, _ := w.ask("GET", "/search?id="+id, nil); !strings.Contains(text, "dna (dna.fa); more (more.fa): 41 sequences, 24,500 letters") {
		t.Error(text)
	}
	// Sequences of hits come from the right database.
	status, text, _ := w.ask("GET", "/fasta?hit=1&hit=2&id="+id, nil)
	if bare := strings.ReplaceAll(text, "\n", ""); status != 200 || bare != ">gene3 a gene"+w.genes[3]+">extra a gene"+w.genes[3][:500] {
		t.Errorf("%d %s", status, text)
	}
}

func TestFASTA(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	id, _ := w.submitted(url.Values{"program": {"blastn"}, "database": {"dna"}, "query": {w.twoGenes()}})
	status, text, h := w.ask("GET", "/fasta?hit=2&id="+id, nil)
	if bare := strings.ReplaceAll(text, "\n", ""); status != 200 || bare != ">gene4 a gene"+w.genes[4] || !strings.Contains(h.Get("Content-Disposition"), "attachment") {
		t.Errorf("%d %v %s", status, h, text)
	}
	for path, want := range map[string]string{
		"/fasta?id=" + id: "no hit is chosen", "/fasta?hit=3&id=" + id: "there is no hit", "/fasta?hit=x&id=" + id: "there is no hit",
		"/fasta?hit=1&query=3&id=" + id: "there is no query 3", "/fasta?hit=1&query=2&id=" + id: "there is no hit",
		"/fasta?hit=1&id=NONE": "there is no search", "/fasta?id=" + id + strings.Repeat("&hit=1", 101): "at most 100 hits",
	} {
		if status, text, _ := w.ask("GET", path, nil); status < 400 || status >= 500 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	// A restart keeps the identity of the database, and another database of the same name is
	// noticed: its sequences have other numbers.
	w.stop()
	w.start()
	if status, again, _ := w.ask("GET", "/fasta?hit=2&id="+id, nil); status != 200 || again != text {
		t.Errorf("after a restart: %d %s", status, again)
	}
	if err := database.Remove(w.options.Home, "dna"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dna.fa")
	if err := os.WriteFile(path, []byte(">a\n"+w.genes[0]+"\n>b\n"+w.genes[1]+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := database.Add(t.Context(), w.options.Home, database.AddOptions{Name: "dna", Source: path, Type: database.Nucl, Fragments: 1}); err != nil {
		t.Fatal(err)
	}
	if status, text, _ := w.ask("GET", "/fasta?hit=1&id="+id, nil); status != 409 || !strings.Contains(text, "the database has changed since this search") {
		t.Errorf("another database: %d %s", status, text)
	}
}

// Ids that were parsed name sequences in databases with and without versions.
func TestFASTAParsed(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	path := filepath.Join(t.TempDir(), "parsed.fa")
	text := ">sp|P04637|P53_HUMAN a protein\nMEEPQSDPSVEPPLSQETFSDLWKLLPENNVLSPLPSQAMDDLMLSPDDIEQWFTEDPGP\n>NP_000537.3 the same, longer\nMEEPQSDPSVEPPLSQETFSDLWKLLPENNVLSPLPSQAMDDLMLSPDDIEQWFTEDPGPDEAPRM\n>local1\nMEEPQSDPSVEPPLSQETFSDLWKLLPENNVLSPLPSQAMDDLMLSPDDIEQWFTED\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := database.Add(t.Context(), w.options.Home, database.AddOptions{Name: "parsed", Source: path, Type: database.Prot, ParseIDs: true, Fragments: 2}); err != nil {
		t.Fatal(err)
	}
	id, _ := w.submitted(url.Values{"program": {"blastp"}, "database": {"parsed"}, "query": {"MEEPQSDPSVEPPLSQETFSDLWKLLPENNVLSPLPSQAMDDLMLSPDDIEQWFTEDPGP"}})
	status, got, _ := w.ask("GET", "/fasta?hit=1&hit=2&hit=3&id="+id, nil)
	if status != 200 || strings.Count(got, ">") != 3 {
		t.Fatalf("%d %s", status, got)
	}
	for _, record := range strings.Split(text, ">")[1:] {
		name, seq, _ := strings.Cut(record, "\n")
		name = regexp.MustCompile(`\w+\d+`).FindString(name)
		at := strings.Index(got, name)
		if at < 0 || !strings.Contains(strings.ReplaceAll(strings.SplitN(got[at:], ">", 2)[0], "\n", ""), strings.TrimSpace(seq)) {
			t.Errorf("no %s in\n%s", name, got)
		}
	}
}

// A page has up to a hundred hits.
func TestHitsOfPage(t *testing.T) {
	w := newWorld(t, &service.Programs{}, nil)
	var b strings.Builder
	for i := range 130 {
		fmt.Fprintf(&b, ">copy%d\n%s\n", i, w.genes[0][:300+i])
	}
	path := filepath.Join(t.TempDir(), "copies.fa")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := database.Add(t.Context(), w.options.Home, database.AddOptions{Name: "copies", Source: path, Type: database.Nucl, Fragments: 1}); err != nil {
		t.Fatal(err)
	}
	id, _ := w.submitted(url.Values{"program": {"blastn"}, "database": {"copies"}, "query": {w.genes[0]}, "max_target_seqs": {"500"}})
	_, text, _ := w.ask("GET", "/search?id="+id, nil)
	if strings.Count(text, "<article") != 100 || !strings.Contains(text, "of which 1 to 100 are shown") || strings.Contains(text, "Hits before") {
		t.Errorf("%d hits on the first page", strings.Count(text, "<article"))
	}
	next := regexp.MustCompile(`href="(search\?id=[^"]*from=101)"`).FindStringSubmatch(text)
	if next == nil {
		t.Fatal("no link to further hits")
	}
	_, text, _ = w.ask("GET", "/"+strings.ReplaceAll(next[1], "&amp;", "&"), nil)
	if strings.Count(text, "<article") != 30 || !strings.Contains(text, "copy0") || !strings.Contains(text, "Hits before") || strings.Contains(text, "Further hits") {
		t.Errorf("%d hits on the second page", strings.Count(text, "<article"))
	}
}

// Without tokens, the list of searches is in the browser.
func TestMySearches(t *testing.T) {
	w := newWorld(t, &plain{}, nil)
	v := url.Values{"program": {"blastn"}, "database": {"dna"}, "query": {w.genes[1][:200]}}
	first, cookie := w.submitted(v)
	second, both := w.submitted(v, "Cookie", cookie)
	_, text, _ := w.ask("GET", "/searches", nil, "Cookie", both)
	if a, b := strings.Index(text, second), strings.Index(text, first); a < 0 || b < a {
		t.Errorf("the list is\n%s", text)
	}
	if _, text, _ := w.ask("GET", "/searches", nil); strings.Contains(text, first) {
		t.Error("another browser sees the search")
	}
	if status, _, h := w.send("/delete", url.Values{"id": {first}}, "Cookie", both); status != 303 || h.Get("Location") != "searches" {
		t.Errorf("%d %v", status, h)
	}
	if _, text, _ := w.ask("GET", "/searches", nil, "Cookie", both); strings.Contains(text, first) || !strings.Contains(text, second) {
		t.Errorf("the list is\n%s", text)
	}
	if _, text, _ := w.ask("GET", "/search?id="+second, nil); !strings.Contains(text, "Whoever has <a") {
		t.Error(text)
	}
}

// With tokens, a search is its owner's until the owner shares it.
func TestSharing(t *testing.T) {
	w := newWorld(t, &plain{}, func(o *service.Options) { o.Tokens = tokens(t, "ann annannannannann1\nbob bobbobbobbobbob1\n") })
	ann, bob := []string{"Authorization", "Bearer annannannannann1"}, []string{"Authorization", "Bearer bobbobbobbobbob1"}
	id, _ := w.submitted(url.Values{"program": {"blastn"}, "database": {"dna"}, "query": {w.genes[1][:200]}}, ann...)
	see := func(path string, header ...string) int {
		status, _, _ := w.ask("GET", path, nil, header...)
		return status
	}
	paths := []string{"/search?id=" + id, "/?edit=" + id, "/query?id=" + id, "/result?format=json&id=" + id, "/fasta?hit=1&id=" + id, "/api/v1/searches/" + id}
	check := func(when string, want int) {
		t.Helper()
		for _, p := range paths {
			if got := see(p, bob...); got != want {
				t.Errorf("%s: bob gets %d for %s", when, got, p)
			}
			if got := see(p, ann...); got != 200 {
				t.Errorf("%s: ann gets %d for %s", when, got, p)
			}
			if got := see(p); got != 401 {
				t.Errorf("%s: %d without a token for %s", when, got, p)
			}
		}
	}
	check("before", 404)
	if status, _, _ := w.send("/share", url.Values{"id": {id}, "shared": {"yes"}}, bob...); status != 404 {
		t.Errorf("bob shares: %d", status)
	}
	if status, _, _ := w.send("/share", url.Values{"id": {id}, "shared": {"yes"}}, ann...); status != 303 {
		t.Errorf("ann shares: %d", status)
	}
	check("shared", 200)
	w.stop()
	for range 2 { // from the journal, and from the one that was written anew
		w.start()
		check("after a restart", 200)
		w.stop()
	}
	w.start()
	for _, path := range []string{"/delete", "/share"} {
		if status, _, _ := w.send(path, url.Values{"id": {id}, "shared": {"no"}}, bob...); status != 403 {
			t.Errorf("bob: %s: %d", path, status)
		}
	}
	if status, _, _ := w.ask("DELETE", "/api/v1/searches/"+id, nil, bob...); status != 403 {
		t.Errorf("bob deletes: %d", status)
	}
	if _, text, _ := w.ask("GET", "/searches", nil, bob...); strings.Contains(text, id) {
		t.Error("ann's search is in bob's list")
	}
	if _, text, _ := w.ask("GET", "/searches", nil, ann...); !strings.Contains(text, id) {
		t.Error("ann's search is not in her list")
	}
	if status, _, _ := w.send("/share", url.Values{"id": {id}, "shared": {"no"}}, ann...); status != 303 {
		t.Errorf("ann stops sharing: %d", status)
	}
	check("private again", 404)
}

// The taxonomy filter of the form and of the API selects as BLAST+ does in a database of makeblastdb
// with taxonomy ids. For nucleotides BLAST+ estimates the number of letters of the selected sequences,
// with another rounding in each volume, so the e-values of two fragments are not compared.
func TestTaxonomy(t *testing.T) {
	taxa := []string{"9606", "562", "9606", "10090", "562"}
	r := rand.New(rand.NewPCG(11, 12))
	gene := make([]byte, 300)
	for i := range gene {
		gene[i] = "ACGT"[r.IntN(4)]
	}
	plain := filepath.Join(t.TempDir(), "plain")
	w := newWorld(t, &service.Programs{}, func(o *service.Options) {
		var fasta, ids strings.Builder
		for i, id := range taxa {
			fmt.Fprintf(&fasta, ">seq%d\n%s\n", i, gene[10*i:])
			fmt.Fprintf(&ids, "seq%d %s\n", i, id)
		}
		path := filepath.Join(t.TempDir(), "taxa.fa")
		for name, text := range map[string]string{path: fasta.String(), path + ".ids": ids.String()} {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for name, n := range map[string]int{"taxa": 1, "cut": 2} {
			if _, _, err := database.Add(t.Context(), o.Home, database.AddOptions{Name: name, Source: path, Type: database.Nucl, Fragments: n, ParseIDs: true, TaxIDMap: path + ".ids"}); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("makeblastdb", "-in", path, "-dbtype", "nucl", "-parse_seqids", "-taxid_map", path+".ids", "-blastdb_version", "5", "-out", plain, "-logfile", "/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
	query := ">q\n" + string(gene) + "\n"
	for _, c := range []struct {
		option, ids string
		subjects    int
	}{
		{"", "", 5}, {"taxids", "9606", 2}, {"taxids", "562,10090", 3}, {"negative_taxids", "9606", 3}, {"taxids", "10090", 1},
	} {
		args := []string{"-db", plain, "-outfmt", "6"}
		form := url.Values{"program": {"blastn"}, "query": {query}}
		body := map[string]any{"program": "blastn", "format": "tabular", "query": query}
		if c.option != "" {
			args = append(args, "-"+c.option, c.ids)
			form.Set(c.option, c.ids)
			body["options"] = map[string]string{c.option: c.ids}
		}
		cmd := exec.Command("blastn", args...)
		cmd.Stdin = strings.NewReader(query)
		text, err := cmd.Output()
		if err != nil || strings.Count(string(text), "\n") != c.subjects {
			t.Fatalf("blastn %q: %v\n%s", args, err, text)
		}
		for name, compared := range map[string]func(string) string{"taxa": func(s string) string { return s }, "cut": withoutEvalues} {
			form.Set("database", name)
			body["database"] = name
			id, _ := w.submitted(form)
			status, byForm, _ := w.ask("GET", "/result?format=tabular&id="+id, nil)
			byAPI := w.result(w.submit(body), "")
			if want := compared(string(text)); status != 200 || compared(byForm) != want || compared(byAPI) != want {
				t.Errorf("%s, %s %s: %d, by the form\n%s\nby the API\n%s\nwant\n%s", name, c.option, c.ids, status, byForm, byAPI, want)
			}
		}
	}
}

// withoutEvalues removes the column evalue from the standard columns.
func withoutEvalues(rows string) string {
	var b strings.Builder
	for row := range strings.Lines(rows) {
		columns := strings.Split(row, "\t")
		fmt.Fprint(&b, strings.Join(append(columns[:10:10], columns[11:]...), "\t"))
	}
	return b.String()
}
