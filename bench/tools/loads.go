package main

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"premix/internal/testkit/workbench"
)

// loadedSize is the minimum size of a file that counts as data, in bytes.
const loadedSize = 1 << 20

var (
	callForm   = regexp.MustCompile(`^(\d+) +(\w+)\((.*)\) += (-?[0-9a-fx]+)`)
	pathForm   = regexp.MustCompile(`<(/[^>]*)>`)
	resumeForm = regexp.MustCompile(`^(\d+) +<\.\.\. \w+ resumed>(.*)$`)
)

// loads traces the tool over the first sample. It returns the bytes of its data that it
// reads or maps, in total and before the stop. If the tool has an index, only the index
// counts, otherwise every file of 1 MiB or more.
func (b *bench) loads(t tool, index, stop string) (total, before int64, err error) {
	dir, err := b.lab.Scratch()
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	inputs := map[string]string{}
	for name, file := range t.sample.files() {
		text, err := os.ReadFile(filepath.Join(b.data, file[1]))
		if err != nil {
			return 0, 0, err
		}
		if err := os.WriteFile(filepath.Join(dir, file[0]), text, 0o644); err != nil {
			return 0, 0, err
		}
		inputs[name] = file[0]
	}
	for line := range strings.Lines(t.outputs) {
		if name, to, _ := strings.Cut(strings.TrimSpace(line), ":"); strings.HasSuffix(to, `/"`) {
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				return 0, 0, err
			}
		}
	}
	argv := []string{"-f", "-y", "-o", filepath.Join(dir, ".trace"), "-e", "trace=open,openat,read,pread64,readv,mmap"}
	for _, word := range strings.Fields(t.command) {
		argv = append(argv, os.Expand(word, func(name string) string {
			if name == "index" {
				return index
			}
			if file := inputs[name]; file != "" {
				return file
			}
			return name
		}))
	}
	cmd := workbench.Command(b.ctx, "strace", argv...)
	cmd.Dir, cmd.Env = dir, []string{path, "HOME=" + dir, "LC_ALL=C.UTF-8", "TMPDIR=."}
	if err := workbench.Run(nil, cmd); err != nil {
		return 0, 0, err
	}
	c := &counter{index: index, dir: dir, inputs: map[string]bool{}, stop: stop, opens: map[string]int{}, loaded: map[string]int64{}, early: map[string]int64{}}
	if t.index == "" {
		c.index = ""
	}
	for _, file := range inputs {
		c.inputs[filepath.Join(dir, file)] = true
	}
	if err := c.read(filepath.Join(dir, ".trace")); err != nil {
		return 0, 0, err
	}
	for path, n := range c.loaded {
		st, err := os.Stat(path)
		if err != nil || st.Size() < loadedSize {
			continue
		}
		total += min(n, st.Size())
		before += min(c.early[path], st.Size())
	}
	return total, before, nil
}

// counter counts what a traced tool loads.
type counter struct {
	index, dir    string
	inputs        map[string]bool
	stop          string
	opens         map[string]int   // process -> opens of inputs
	loaded, early map[string]int64 // path -> bytes
	stopped       bool
}

func (c *counter) read(trace string) error {
	f, err := os.Open(trace)
	if err != nil {
		return err
	}
	defer f.Close()
	started := map[string]string{} // thread -> the first half of its call
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if head, ok := strings.CutSuffix(line, " <unfinished ...>"); ok {
			thread, _, _ := strings.Cut(line, " ")
			started[thread] = head
			if m := pathForm.FindStringSubmatch(head); m != nil && c.inputs[m[1]] && c.stop == "read" {
				c.stopped = true
			}
			continue
		}
		if m := resumeForm.FindStringSubmatch(line); m != nil {
			line = started[m[1]] + m[2]
		}
		if m := callForm.FindStringSubmatch(line); m != nil {
			c.call(m[1], m[2], m[3], m[4], line)
		}
	}
	return lines.Err()
}

// call counts one call.
func (c *counter) call(thread, name, args, result, line string) {
	n, err := strconv.ParseInt(result, 0, 64)
	if err != nil || n < 0 && name != "mmap" {
		return
	}
	if name == "open" || name == "openat" {
		// The path of the new descriptor follows the result.
		_, opened, _ := strings.Cut(line, ") ")
		if m := pathForm.FindStringSubmatch(opened[strings.LastIndex(opened, "="):]); m != nil && c.inputs[m[1]] && strings.Contains(args, "O_RDONLY") {
			c.opens[thread]++
			if c.stop == "open "+strconv.Itoa(c.opens[thread]) {
				// The last process that gets here is the tool; the earlier ones are its
				// wrappers.
				c.stopped, c.early = true, maps.Clone(c.loaded)
			}
		}
		return
	}
	m := pathForm.FindStringSubmatch(args)
	if m == nil {
		return
	}
	if c.inputs[m[1]] {
		c.stopped = c.stopped || c.stop == "read" && name != "mmap"
		return
	}
	if strings.HasPrefix(m[1], c.dir) || !strings.HasPrefix(m[1], c.index) {
		return
	}
	if name == "mmap" {
		words := strings.SplitN(args, ", ", 3)
		if n, err = strconv.ParseInt(words[min(1, len(words)-1)], 0, 64); err != nil {
			return
		}
	}
	c.loaded[m[1]] += n
	if !c.stopped {
		c.early[m[1]] += n
	}
}
