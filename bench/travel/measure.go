package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// run is one repetition.
type run struct {
	seconds float64 // until the first aligned read
	whole   float64 // until the end of the sample
	fetched int64   // bytes that had come over the link by the first aligned read
}

// firstArg is the first argument of this program when it runs as a pipe of the recipe.
const firstArg = "first"

// first passes SAM on, and writes the time of the first record to path, in nanoseconds
// since the epoch.
func first(from io.Reader, path string) error {
	r := bufio.NewReaderSize(from, 1<<20)
	for seen := false; ; {
		line, err := r.ReadSlice('\n')
		if !seen && len(line) > 0 && line[0] != '@' {
			seen = true
			// Rename a complete file into place: another process waits for it.
			half := path + ".half"
			if err := os.WriteFile(half, []byte(strconv.FormatInt(time.Now().UnixNano(), 10)), 0o644); err != nil {
				return err
			}
			if err := os.Rename(half, path); err != nil {
				return err
			}
		}
		if _, err := os.Stdout.Write(line); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// scripts are the scripts of the contenders on B, run with an empty HERE and the
// environment of onNode.
var scripts = map[string]string{
	"full": `set -e
mkdir "$HERE/root" "$HERE/index"
curl -sf "$ORIGIN/root.tar.gz" | tar -C "$HERE/root" -xz &
curl -sf "$ORIGIN/index.tar" | tar -C "$HERE/index" -x
wait $!
cp "$LAB/genome/b.fq" "$HERE/root/mnt"
mount --bind "$HERE/index" "$HERE/root/srv"
chroot "$HERE/root" ` + strings.NewReplacer("INDEX", "/srv", "READS", "/mnt/b.fq").Replace(command) + ` |
	"$SELF" first "$LAB/first" >"$HERE/b.sam"
`,
	"cold": `set -e
"$PREMIX" run "$RECIPE" "$LAB/b.csv" --origin "$ORIGIN/store" --out "$HERE/out" --start cold
cp "$HERE/out/b.sam" "$HERE"
`,
	"hot": `set -e
"$PREMIX" snapshot pull $HOW snaps/map:1 --origin "$ORIGIN/store"
"$PREMIX" run "$RECIPE" "$LAB/b.csv" --origin "$ORIGIN/store" --out "$HERE/out" --start hot
cp "$HERE/out/b.sam" "$HERE"
`,
}

func (b *benchmark) measure(ctx context.Context, name string) (r run, err error) {
	kind, rest, _ := strings.Cut(name, "+")
	script, how := scripts[kind], "--profile none"
	if strings.HasPrefix(rest, "profile") {
		how = "--profile start"
	}
	if strings.HasSuffix(rest, "all") {
		how += " --eager"
	}
	here, err := b.Scratch()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(here)) }()
	marker := filepath.Join(b.Dir, "first")
	if err := os.Remove(marker); err != nil && !errors.Is(err, os.ErrNotExist) {
		return r, err
	}
	if err := workbench.DropCaches(); err != nil {
		return r, err
	}
	before, _ := b.link.Counters()
	arrived := make(chan int64, 1)
	seen, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(arrived)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-seen.Done():
				return
			case <-tick.C:
			}
			if _, err := os.Stat(marker); err == nil {
				now, _ := b.link.Counters()
				arrived <- now.Bytes
				return
			}
		}
	}()
	home, err := b.Scratch()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	begin := time.Now()
	if err := b.onNode(ctx, b.link.B, home, &r.whole, script, "HERE="+here, "HOW="+how, "ORIGIN="+b.origin.URL, "SELF="+b.self); err != nil {
		return r, err
	}
	text, err := os.ReadFile(marker)
	if err != nil {
		return r, fmt.Errorf("no read was aligned: %w", err)
	}
	at, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return r, err
	}
	r.seconds = time.Unix(0, at).Sub(begin).Seconds()
	r.fetched = <-arrived - before.Bytes
	return r, b.check(filepath.Join(here, "b.sam"))
}

// check returns an error unless at least nine tenths of the reads have a record. It does
// not check the alignments.
func (b *benchmark) check(sam string) error {
	text, err := os.ReadFile(sam)
	if err != nil {
		return err
	}
	records := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "@") {
			records++
		}
	}
	if records < reads*9/10 {
		return fmt.Errorf("%d records of %d reads", records, reads)
	}
	return nil
}

// onNode runs a script in a separate mount namespace, on a host of the link or here, with
// this premix home, and stops its node. If took is not nil, it receives the time of the
// script itself, in seconds.
func (b *benchmark) onNode(ctx context.Context, host *netrelay.Host, home string, took *float64, script string, env ...string) error {
	const outer = `mount --bind "$1" "$PREMIX_HOME" || exit
begin=$(date +%s%N)
sh -c "$2"
status=$?
echo $(($(date +%s%N) - begin)) >"$1/took"
"$PREMIX" node stop --lazy >&2
exit $status`
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", outer, "node", home, script)
	cmd.Env = append(os.Environ(), append(env, "LAB="+b.Dir, "PREMIX="+b.premix, "RECIPE="+b.recipe(),
		"PREMIX_HOME="+filepath.Join(b.Dir, "node"))...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	var err error
	if host == nil {
		err = cmd.Run()
	} else {
		err = host.Run(cmd)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, stderr.String())
	}
	text, err := os.ReadFile(filepath.Join(home, "took"))
	if err != nil || took == nil {
		return err
	}
	nanoseconds, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	*took = float64(nanoseconds) / 1e9
	return err
}
