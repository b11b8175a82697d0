package database_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/blast/database"
	"premix/internal/blast/fasta"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// home makes a directory of databases, and a directory in memory that is removed after the test.
func home(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"makeblastdb", "blastn"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: scripts/setup.sh test", program)
		}
	}
	ram, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Skipf("there is no tmpfs to write to: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(ram) })
	t.Setenv("PREMIX_BLAST_RAM", filepath.Join(ram, "blast"))
	return filepath.Join(t.TempDir(), "blast")
}

// sequences writes n sequences of varying lengths, and returns the file and the number of letters.
func sequences(t *testing.T, alphabet string, n int) (path string, letters int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(n)))
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, ">seq%d number %d\n", i, i)
		length := 200 + r.IntN(1800)
		letters += int64(length)
		for at := 0; at < length; at++ {
			b.WriteByte(alphabet[r.IntN(len(alphabet))])
			if at == 100 {
				b.WriteString(strings.Repeat("A", 60)) // low complexity, which maskers mask
				letters += 60
			}
			if at%70 == 69 {
				b.WriteByte('\n')
			}
		}
		b.WriteByte('\n')
	}
	path = filepath.Join(t.TempDir(), "all.fa")
	write(t, path, b.Bytes())
	when := time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
	return path, letters
}

const (
	bases  = "ACGT"
	aminos = "ACDEFGHIKLMNPQRSTVWY"
)

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// tool runs a program of BLAST+ and returns its output.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	return string(out)
}

func add(t *testing.T, home string, o database.AddOptions) (*database.Record, *database.Description) {
	t.Helper()
	r, d, err := database.Add(t.Context(), home, o)
	if err != nil {
		t.Fatal(err)
	}
	return r, d
}

func open(t *testing.T, home, name string) *database.Database {
	t.Helper()
	d, err := database.Open(home, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// The whole database is equal to the result of makeblastdb on the whole input, and searches of each
// fragment use the statistics of the whole.
func TestAddEqualsOneDatabase(t *testing.T) {
	for _, c := range []struct {
		kind     database.Type
		version  int
		parse    bool
		program  string
		alphabet string
	}{
		{database.Nucl, 4, true, "blastn", bases},
		{database.Nucl, 5, false, "blastn", bases},
		{database.Nucl, 5, true, "blastn", bases},
		{database.Prot, 5, false, "blastp", aminos},
	} {
		t.Run(fmt.Sprintf("%s v%d parsed %v", c.kind, c.version, c.parse), func(t *testing.T) {
			home := home(t)
			path, letters := sequences(t, c.alphabet, 60)
			_, desc := add(t, home, database.AddOptions{Name: "x", Source: path, Type: c.kind, Fragments: 4, Version: c.version, ParseIDs: c.parse})
			d := open(t, home, "x")
			if d.Sequences != 60 || d.Letters != letters || len(d.Fragments) != 4 || d.Title != path || d.Type != c.kind || d.ParsedIDs != c.parse || d.Version != c.version {
				t.Fatalf("%+v", d)
			}
			for i, f := range d.Fragments {
				if share := float64(f.Letters) / float64(letters); share < 0.2 || share > 0.3 {
					t.Errorf("fragment %d has %.2f of the letters", i, share)
				}
			}
			plain := filepath.Join(t.TempDir(), "plain")
			args := []string{"-in", path, "-dbtype", string(c.kind), "-out", plain, "-blastdb_version", fmt.Sprint(c.version), "-logfile", "/dev/null"}
			if c.parse {
				args = append(args, "-parse_seqids")
			}
			tool(t, "makeblastdb", args...)
			query := filepath.Join(t.TempDir(), "q.fa")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.Index(text, []byte(">seq50 "))
			end := at + bytes.Index(text[at:], []byte(">seq51 "))
			write(t, query, text[at:end])
			search := func(db, format string) string {
				return strings.ReplaceAll(tool(t, c.program, "-db", db, "-query", query, "-outfmt", format), db, "DB")
			}
			// Long names are broken into lines.
			archive := func(db string) string {
				text := strings.Join(strings.Fields(tool(t, c.program, "-db", db, "-query", query, "-outfmt", "11")), "")
				return strings.ReplaceAll(text, db, "DB")
			}
			if got, want := archive(d.Whole), archive(plain); got != want {
				t.Errorf("the archive of the whole is\n%.2000s\ninstead of\n%.2000s", got, want)
			}
			if got, want := tool(t, "blastdbcmd", "-db", d.Whole, "-dbtype", string(c.kind), "-entry", "all", "-outfmt", "%o %a %l %t"), tool(t, "blastdbcmd", "-db", plain, "-dbtype", string(c.kind), "-entry", "all", "-outfmt", "%o %a %l %t"); got != want {
				t.Errorf("entries are\n%s\ninstead of\n%s", got, want)
			}
			// The statistics of the whole database are at the end of each fragment's result.
			tail := func(s string) string {
				_, s, _ = strings.Cut(s, "Effective search space used")
				return s
			}
			want := tail(search(plain, "0"))
			for i, f := range d.Fragments {
				space, _, _ := strings.Cut(tail(search(f.Path, "0")), "\n")
				if wish, _, _ := strings.Cut(want, "\n"); space != wish || space == "" {
					t.Errorf("the search space of fragment %d is %q instead of %q", i, space, wish)
				}
			}
			if want := "Posted date:  Feb 3, 2024  4:05 AM"; !strings.Contains(search(d.Whole, "0"), want) {
				t.Errorf("%s is missing", want)
			}
			if v, err := database.Verify(t.Context(), home, "x"); err != nil || len(v.Damage) > 0 || v.Bytes != desc.Bytes() {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

// Equal input gives an equal tree, which the store keeps once.
func TestReproducible(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 20)
	s, err := store.Init(filepath.Join(t.TempDir(), "store"), store.Options{Home: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.Key("")
	if err != nil {
		t.Fatal(err)
	}
	var trees []string
	for i, name := range []string{"x", "x"} {
		add(t, home, database.AddOptions{Name: name, Source: path, Type: database.Nucl, Fragments: 2, ParseIDs: true})
		p, err := database.Publish(t.Context(), home, name, s, tree.Ref{Name: "db/" + name, Tag: "latest"}, store.PublishOptions{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, p.Tree.String())
		if i == 1 && p.Objects != 0 {
			t.Errorf("%d new objects", p.Objects)
		}
		if st, err := database.StatusOf(home, name); err != nil || st.Record.Tree != p.Tree.String() || st.Record.Ref != "db/x:latest" {
			t.Errorf("%+v, %v", st.Record, err)
		}
		if err := database.Remove(home, name); err != nil {
			t.Fatal(err)
		}
	}
	if trees[0] != trees[1] {
		t.Errorf("trees %s and %s", trees[0], trees[1])
	}
}

func TestTaxonomyAndMasks(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 12)
	taxids := filepath.Join(t.TempDir(), "map")
	var b strings.Builder
	for i := range 12 {
		fmt.Fprintf(&b, "seq%d %d\n", i, 562+i%2)
	}
	write(t, taxids, []byte(b.String()))
	add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 3, ParseIDs: true, TaxIDMap: taxids, Masks: []string{"dust"}})
	d := open(t, home, "x")
	if got := strings.Fields(tool(t, "blastdbcmd", "-db", d.Whole, "-entry", "all", "-outfmt", "%T")); strings.Join(got, " ") != strings.TrimSpace(strings.Repeat("562 563 ", 6)) {
		t.Errorf("taxonomy ids %v", got)
	}
	for _, f := range d.Fragments {
		if info := tool(t, "blastdbcmd", "-db", f.Path, "-info"); !strings.Contains(info, "dust") {
			t.Errorf("no mask in %s", info)
		}
		tool(t, "blastn", "-db", f.Path, "-query", path, "-taxids", "562", "-db_soft_mask", "dust", "-outfmt", "6")
	}
}

func TestExisting(t *testing.T) {
	home := home(t)
	path, letters := sequences(t, bases, 40)
	for _, version := range []int{4, 5} {
		dir := t.TempDir()
		tool(t, "makeblastdb", "-in", path, "-dbtype", "nucl", "-out", filepath.Join(dir, "old"), "-title", "The old one", "-parse_seqids", "-blastdb_version", fmt.Sprint(version), "-max_file_sz", "3000", "-logfile", "/dev/null")
		name := fmt.Sprintf("v%d", version)
		if _, desc := add(t, home, database.AddOptions{Name: name, Source: filepath.Join(dir, "old"), Fragments: 2}); desc.Version != version || desc.Title != "The old one" || !desc.ParsedIDs {
			t.Errorf("%+v", desc)
		}
		d := open(t, home, name)
		if d.Sequences != 40 || d.Letters != letters || len(d.Fragments) != 2 {
			t.Errorf("%+v", d)
		}
		all := func(db string) string {
			return tool(t, "blastdbcmd", "-db", db, "-entry", "all", "-outfmt", "%a %s")
		}
		if all(d.Whole) != all(filepath.Join(dir, "old")) || all(d.Fragments[0].Path)+all(d.Fragments[1].Path) != all(d.Whole) {
			t.Error("the entries are others")
		}
		if n := strings.Count(all(d.Fragments[0].Path), "\n"); int64(n) != d.Fragments[0].Sequences {
			t.Errorf("%d of %d entries", n, d.Fragments[0].Sequences)
		}
		// Without a new formatting a database cannot have more fragments than volumes.
		_, _, err := database.Add(t.Context(), home, database.AddOptions{Name: name + "b", Source: filepath.Join(dir, "old"), Fragments: 39})
		wantKind(t, err, database.Use)
		add(t, home, database.AddOptions{Name: name + "b", Source: filepath.Join(dir, "old"), Fragments: 39, Recut: true})
		if b := open(t, home, name+"b"); all(b.Whole) != all(d.Whole) || b.Title != "The old one" || len(b.Fragments) != 39 {
			t.Errorf("formatted afresh: %+v", b)
		}
	}
}

// A published database is used in place.
func TestAdopt(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 10)
	r, _ := add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 2})
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(r.Data)); err != nil {
		t.Fatal(err)
	}
	other, desc := add(t, home, database.AddOptions{Name: "y", Source: copied})
	if other.Data != copied || len(desc.Fragments) != 2 {
		t.Errorf("%+v", other)
	}
	if err := database.Remove(home, "y"); err != nil {
		t.Fatal(err)
	}
	if _, err := database.ReadDescription(copied); err != nil {
		t.Errorf("rm has removed what was not its own: %v", err)
	}
}

func wantKind(t *testing.T, err error, kind database.Kind) *database.Error {
	t.Helper()
	var e *database.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("%v is not of kind %d", err, kind)
	}
	return e
}

func TestAddRefuses(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 3)
	add(t, home, database.AddOptions{Name: "there", Source: path, Type: database.Nucl, Fragments: 1})
	for _, c := range []struct {
		o    database.AddOptions
		want string
	}{
		{database.AddOptions{Name: "there", Source: path, Type: database.Nucl}, "already"},
		{database.AddOptions{Name: "../x", Source: path, Type: database.Nucl}, "cannot be the name"},
		{database.AddOptions{Name: "x", Source: path}, "type of the sequences is not given"},
		{database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 4}, "too few"},
		{database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 1, FragmentSize: 1}, "by number and by size"},
		{database.AddOptions{Name: "x", Source: path + ".not", Type: database.Nucl}, "neither a file"},
		{database.AddOptions{Name: "x", Source: t.TempDir(), Type: database.Nucl}, "without a database.json"},
		{database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Masks: []string{"seg"}}, "no mask"},
	} {
		_, _, err := database.Add(t.Context(), home, c.o)
		if e := wantKind(t, err, database.Use); !strings.Contains(e.Message, c.want) || e.HintText == "" {
			t.Errorf("%v does not contain %q, or has no hint", e, c.want)
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.fa")
	write(t, bad, []byte(">a\nACGT\n>a\nAC-T\n"))
	_, _, err := database.Add(t.Context(), home, database.AddOptions{Name: "x", Source: bad, Type: database.Nucl})
	var p fasta.Problems
	if !errors.As(err, &p) || len(p) != 2 {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, _, err := database.Add(ctx, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl}); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	entries, err := os.ReadDir(home)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if _, err := database.Open(home, "x"); err == nil {
		t.Error("a database that was refused is there")
	} else {
		wantKind(t, err, database.NotThere)
	}
}

// A search maps only the copy in memory, according to /proc/PID/maps.
func TestSearchesMapMemory(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 400)
	add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 2})
	if _, err := database.Warm(t.Context(), home, "x", 0); err != nil {
		t.Fatal(err)
	}
	d := open(t, home, "x")
	// The search opens its database and waits for queries.
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.CommandContext(t.Context(), "blastn", "-db", d.Whole, "-outfmt", "6")
	cmd.Stdin = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The queries fill more than one batch, and the pipe stays open, so the process searches and
	// does not end.
	finished := make(chan error, 1)
	go func() { // ends at the latest when the pipe is closed
		for range 8 {
			if _, err := w.Write(text); err != nil {
				finished <- err
				return
			}
		}
		finished <- nil
	}()
	defer func() {
		w.Close()
		<-finished
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	ram, disk := os.Getenv("PREMIX_BLAST_RAM")+"/", filepath.Join(home, "x")+"/"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(maps), disk) {
			t.Fatalf("it has mapped the copy on disk:\n%s", maps)
		}
		if strings.Contains(string(maps), ram) && strings.Contains(string(maps), ".nsq") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it has not mapped the database in memory")
		}
	}
}

func TestWarm(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 200)
	_, desc := add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 3})
	cold := open(t, home, "x")
	search := func(db string) string {
		return strings.ReplaceAll(tool(t, "blastn", "-db", db, "-query", path, "-outfmt", "6"), db, "DB")
	}
	want := search(cold.Whole)

	e := wantKind(t, second(database.Warm(t.Context(), home, "x", 1000)), database.NoRoom)
	if !strings.Contains(e.Message, "1000 B may be used") || !strings.Contains(e.Message, "it takes") {
		t.Errorf("the numbers are missing: %v", e)
	}
	r, err := database.Warm(t.Context(), home, "x", 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Bytes != desc.Bytes() || r.InMemory != r.Bytes {
		t.Errorf("%+v, %d bytes", r, desc.Bytes())
	}
	warm := open(t, home, "x")
	// Warm reports the processes that map the local copy, because their mappings keep it in the
	// page cache.
	f, err := os.Open(filepath.Join(home, "x", "data", desc.Files[len(desc.Files)-1].Name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := database.Warm(t.Context(), home, "x", 0); err != nil || r.DiskCached == 0 || !slices.Equal(r.DiskMapped, []int{os.Getpid()}) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	if !warm.Resident || !strings.HasPrefix(warm.Whole, os.Getenv("PREMIX_BLAST_RAM")) || search(warm.Whole) != want {
		t.Errorf("%+v", warm)
	}
	if v, err := database.Verify(t.Context(), home, "x"); err != nil || v.Bytes != 2*desc.Bytes() || len(v.Damage) > 0 {
		t.Errorf("%+v, %v", v, err)
	}

	// After a reboot memory is empty, and the local copy is used until memory is filled again.
	warm.Close()
	if err := os.RemoveAll(os.Getenv("PREMIX_BLAST_RAM")); err != nil {
		t.Fatal(err)
	}
	if d := open(t, home, "x"); d.Resident || search(d.Whole) != want {
		t.Errorf("%+v", d)
	}
	list, err := database.WarmAll(t.Context(), home, 0)
	if err != nil || len(list) != 1 || list[0].Err != nil || list[0].Resident.InMemory != desc.Bytes() {
		t.Fatalf("%+v, %v", list, err)
	}

	// An evict waits for running searches. New searches do not wait for it.
	warm = open(t, home, "x")
	done := make(chan error)
	go func() {
		_, err := database.Evict(home, "x")
		done <- err
	}()
	for d := open(t, home, "x"); d.Resident; d = open(t, home, "x") {
		d.Close()
	}
	select {
	case err := <-done:
		t.Fatalf("evicted under a search: %v", err)
	default:
	}
	if search(warm.Whole) != want {
		t.Error("a search has lost its database")
	}
	warm.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s, err := database.StatusOf(home, "x"); err != nil || s.Record.Warm || s.Resident.Dir != "" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := os.Stat(os.Getenv("PREMIX_BLAST_RAM")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("memory holds something: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestVerifyFindsDamage(t *testing.T) {
	home := home(t)
	path, _ := sequences(t, bases, 10)
	r, desc := add(t, home, database.AddOptions{Name: "x", Source: path, Type: database.Nucl, Fragments: 1})
	var file string
	for _, f := range desc.Files {
		if strings.HasSuffix(f.Name, ".nsq") {
			file = filepath.Join(r.Data, f.Name)
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	write(t, file, content)
	if v, err := database.Verify(t.Context(), home, "x"); err != nil || len(v.Damage) != 1 || !strings.Contains(v.Damage[0], "other contents") {
		t.Errorf("%+v, %v", v, err)
	}
}
