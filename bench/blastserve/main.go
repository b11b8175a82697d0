package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/figures"
)

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type bench struct {
	dir, premix                      string
	letters, queries, singles, users int
	reps                             int
	texts                            []string
	address                          string
}

func benchMain() (err error) {
	b := &bench{}
	flag.StringVar(&b.dir, "work", "bench-work/blastserve", "`directory` for the database and results")
	flag.StringVar(&b.premix, "premix", "bin/premix", "the premix to measure")
	flag.IntVar(&b.letters, "letters", 400_000_000, "letters of the database")
	flag.IntVar(&b.queries, "queries", 1000, "searches through the service")
	flag.IntVar(&b.singles, "singles", 40, "of these, how many are searched for by a blastn each")
	flag.IntVar(&b.users, "users", 100, "clients at once")
	flag.IntVar(&b.reps, "reps", 3, "repetitions, in turns")
	flag.Parse()
	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return err
	}
	if b.premix, err = filepath.Abs(b.premix); err != nil {
		return err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	results, err := figures.Open(filepath.Join(b.dir, "results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer results.Close()
	fmt.Println(figures.Machine(b.dir))
	if err := b.prepare(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, b.run("blast", "db", "rm", "bench"), os.RemoveAll(filepath.Join(b.dir, "home")))
	}()
	var service, single []float64
	for range b.reps {
		s, err := b.through()
		if err != nil {
			return err
		}
		p, err := b.alone()
		if err != nil {
			return err
		}
		service, single = append(service, s), append(single, p)
	}
	v, p := figures.Median(service), figures.Median(single)
	if err := results.Add(figures.Figure{Name: fmt.Sprintf("blast/service/%d searches/%d Mb", b.queries, b.letters/1e6), Value: v, Unit: "1/s", Peer: "one blastn each", Ratio: figures.Higher(v, p)}); err != nil {
		return err
	}
	results.Table("Searches that come one by one", [][]string{
		{"", "searches/s"},
		{fmt.Sprintf("premix blast serve, %d searches, %d clients", b.queries, b.users), fmt.Sprintf("%.1f", v)},
		{fmt.Sprintf("one blastn each (%d of them)", b.singles), fmt.Sprintf("%.2f", p)},
		{"ratio", fmt.Sprintf("%.1f", v/p)},
	})
	return nil
}

func (b *bench) command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.premix, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(b.dir, "home"), "PREMIX_STORE=")
	cmd.Stderr = os.Stderr
	return cmd
}

func (b *bench) run(args ...string) error {
	if err := b.command(args...).Run(); err != nil {
		return fmt.Errorf("premix %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// prepare makes the database, warm, and the queries.
func (b *bench) prepare() error {
	r := rand.New(rand.NewPCG(11, 13))
	path := filepath.Join(b.dir, "all.fa")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	w := bufio.NewWriterSize(f, 1<<20)
	const length = 1_000_000
	seq := make([]byte, length)
	count := max(1, b.letters/length)
	for i := range count {
		for k := 0; k < length; k += 32 {
			for j, bits := 0, r.Uint64(); j < 32 && k+j < length; j, bits = j+1, bits>>2 {
				seq[k+j] = "ACGT"[bits&3]
			}
		}
		fmt.Fprintf(w, ">s%d\n%s\n", i, seq) // w keeps its error
		for len(b.texts) < b.queries*(i+1)/count {
			at := r.IntN(length - 500)
			q := bytes.Clone(seq[at : at+500])
			for range 10 {
				q[r.IntN(len(q))] = "ACGT"[r.IntN(4)]
			}
			b.texts = append(b.texts, fmt.Sprintf(">q%d\n%s\n", len(b.texts), q))
		}
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return err
	}
	if err := b.run("blast", "db", "add", path, "--name", "bench", "--type", "nucl", "--fragments", "2"); err != nil {
		return err
	}
	return b.run("blast", "warm", "bench")
}

// whole is the alias of the database in memory.
func (b *bench) whole() (string, error) {
	out, err := b.command("blast", "db", "ls", "--json").Output()
	if err != nil {
		return "", err
	}
	var list []struct {
		Dir string `json:"ram_dir"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return "", err
	}
	if len(list) != 1 || list[0].Dir == "" {
		return "", errors.New("the database is not in memory")
	}
	return filepath.Join(list[0].Dir, "alias", "whole"), nil
}

// alone is how many searches a second are done by one blastn each, with all cores.
func (b *bench) alone() (float64, error) {
	db, err := b.whole()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for _, text := range b.texts[:min(b.singles, len(b.texts))] {
		cmd := exec.Command("blastn", "-db", db, "-outfmt", "6", "-num_threads", "2")
		cmd.Stdin = strings.NewReader(text)
		if _, err := cmd.Output(); err != nil {
			return 0, err
		}
	}
	return float64(b.singles) / time.Since(began).Seconds(), nil
}

// through is how many searches a second the service answers.
func (b *bench) through() (float64, error) {
	cmd := b.command("blast", "serve", "--listen", "127.0.0.1:0", "--dir", filepath.Join(b.dir, "jobs"), "--max-user-waiting", "10000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = os.RemoveAll(filepath.Join(b.dir, "jobs"))
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, err
	}
	b.address = "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on ")) + "/api/v1/searches"
	work := make(chan string)
	errs := make(chan error, b.users)
	var all sync.WaitGroup
	began := time.Now()
	for range b.users {
		all.Go(func() {
			for text := range work {
				if err := b.search(text); err != nil {
					errs <- err
					for range work { // let the others end
					}
					return
				}
			}
		})
	}
	for _, text := range b.texts {
		work <- text
	}
	close(work)
	all.Wait()
	took := time.Since(began)
	select {
	case err := <-errs:
		return 0, err
	default:
	}
	return float64(len(b.texts)) / took.Seconds(), nil
}

// search sends one search in and fetches its result.
func (b *bench) search(text string) error {
	body, err := json.Marshal(map[string]string{"program": "blastn", "database": "bench", "format": "tabular", "query": text})
	if err != nil {
		return err
	}
	answer, err := http.Post(b.address, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	var job struct{ ID string }
	err = json.NewDecoder(answer.Body).Decode(&job)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusAccepted {
		return fmt.Errorf("status %d: %w", answer.StatusCode, err)
	}
	for {
		answer, err := http.Get(b.address + "/" + job.ID + "/result?wait=30")
		if err != nil {
			return err
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			return err
		case answer.StatusCode == http.StatusOK && len(got) > 0:
			return nil
		case answer.StatusCode != http.StatusAccepted:
			return fmt.Errorf("status %d, %d bytes", answer.StatusCode, len(got))
		}
	}
}
