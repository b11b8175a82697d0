package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/cvmfsrepo"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// Sizes of the repositories.
const (
	openedFiles = 600    // of the start, as many as snakemake --help opens
	wideNames   = 50_000 // in the root directory of the other repository
)

// repository is a repository of CVMFS that the origin serves.
type repository struct {
	dir  string // below the origin's URL
	id   *cvmfsrepo.Identity
	list string // a file with the paths that are opened, one a line
}

// publish publishes a repository, anew for each run, since its whitelist expires.
func (l *lab) publish(dir string, tree cvmfsrepo.Tree, opened []string) (*repository, error) {
	scratch := filepath.Join(l.Dir, "cvmfs", dir)
	to := filepath.Join(l.Dir, "served", dir, cvmfsrepo.Name)
	if err := errors.Join(os.RemoveAll(scratch), os.RemoveAll(to), os.MkdirAll(scratch, 0o755)); err != nil {
		return nil, err
	}
	r := &repository{dir: dir, list: filepath.Join(scratch, "opened")}
	var err error
	if r.id, err = cvmfsrepo.NewIdentityIn(scratch, 0, 1); err != nil {
		return nil, err
	}
	p, err := cvmfsrepo.PublishIn(scratch, tree, cvmfsrepo.SHA1, r.id, 1)
	if err != nil {
		return nil, err
	}
	// The other client asks for these for a minute.
	for _, name := range []string{".cvmfs_last_snapshot", ".cvmfs_is_snapshotting"} {
		p.Files[name] = []byte("Mon  1 Jan 00:00:00 UTC 2024")
	}
	for name, content := range p.Files {
		path := filepath.Join(to, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			return nil, err
		}
	}
	return r, os.WriteFile(r.list, []byte(strings.Join(opened, "\n")+"\n"), 0o644)
}

// software returns a tree like an installation of Python packages, and the files that a start
// opens.
func software() (cvmfsrepo.Tree, []string) {
	random := rand.New(rand.NewPCG(1, 2))
	dir := func(nested bool) *cvmfsrepo.Node {
		return &cvmfsrepo.Node{Mode: unix.S_IFDIR | 0o755, Nested: nested}
	}
	tree := cvmfsrepo.Tree{"": dir(false), "/sw": dir(true), "/sw/python": dir(true)}
	var opened []string
	for i := range 4 * openedFiles {
		d := fmt.Sprintf("sw/python/package%02d", i%40)
		tree["/"+d] = dir(i%40%10 == 0)
		// A quarter of the files is opened: 9 MB, which shrink by half.
		content := make([]byte, 500+random.IntN(30_000))
		for k := range content {
			content[k] = byte(random.IntN(16))
		}
		path := fmt.Sprintf("%s/module%04d.pyc", d, i)
		tree["/"+path] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: content}
		if i/40%4 == 0 {
			opened = append(opened, path)
		}
	}
	return tree, opened
}

// wide returns a tree with many names in its root.
func wide() cvmfsrepo.Tree {
	tree := cvmfsrepo.Tree{"": {Mode: unix.S_IFDIR | 0o755}}
	for i := range wideNames {
		tree[fmt.Sprintf("/sample-%06d.fastq.gz", i)] = &cvmfsrepo.Node{Mode: unix.S_IFREG | 0o644, Content: []byte("reads")}
	}
	return tree
}

// client mounts repositories.
type client struct {
	name   string
	daemon func(ctx context.Context, scratch string) *exec.Cmd // starts a daemon, or nil
	// mount mounts a repository at mnt, with an empty cache in scratch, and returns the end.
	mount func(ctx context.Context, h *netrelay.Host, url string, r *repository, mnt, scratch string) (func() error, error)
}

// premixClient mounts by premix, with more options.
func (b *benchmark) premixClient(name string, m *premixMount, more ...string) client {
	daemon := func(ctx context.Context, scratch string) *exec.Cmd { return m.command(ctx, scratch, "node", "start") }
	return client{name, daemon, func(ctx context.Context, h *netrelay.Host, url string, r *repository, mnt, scratch string) (func() error, error) {
		args := append([]string{"mount", "--config", filepath.Join(scratch, "none"), "--master-key", r.id.Public, "--server", url + "/@fqrn@"}, more...)
		end := func() error {
			return workbench.Run(h, m.command(context.Background(), scratch, "node", "stop", "--lazy"))
		}
		if err := workbench.Run(h, m.command(ctx, scratch, append(args, "cvmfs://"+cvmfsrepo.Name, mnt)...)); err != nil {
			return nil, errors.Join(err, end())
		}
		return end, nil
	}}
}

// rustClient mounts by the crate cvmfs.
func rustClient(program string) client {
	return client{"cvmfs-cli", nil, func(ctx context.Context, h *netrelay.Host, url string, r *repository, mnt, scratch string) (func() error, error) {
		cmd := exec.Command(program, url+"/"+cvmfsrepo.Name, mnt, scratch)
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := workbench.Start(h, cmd); err != nil {
			return nil, err
		}
		end := func() error {
			err := unmount(mnt)
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
			return err
		}
		for started := time.Now(); ; time.Sleep(time.Millisecond) {
			var st unix.Statfs_t
			if unix.Statfs(mnt, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC {
				return end, nil
			}
			if time.Since(started) > 30*time.Second || ctx.Err() != nil {
				return nil, errors.Join(fmt.Errorf("%s does not mount: %s", program, log.String()), end())
			}
		}
	}}
}

// cvmfs measures mounts of repositories of CVMFS over the link.
func (b *benchmark) cvmfs(ctx context.Context) error {
	m := b.premix()
	if m == nil {
		return errors.New("premix does not take part")
	}
	tree, opened := software()
	start, err := b.lab.publish("cvmfs-start", tree, opened)
	if err != nil {
		return err
	}
	names, err := b.lab.publish("cvmfs-wide", wide(), nil)
	if err != nil {
		return err
	}
	l, o, err := b.newLink()
	if err != nil {
		return err
	}
	defer l.Close()
	defer o.Close()
	profile := filepath.Join(b.lab.Dir, "cvmfs", "start.json")
	if err := os.RemoveAll(profile); err != nil {
		return err
	}
	record := b.premixClient("record", m, "--record", profile)
	if _, _, err := b.mounted(ctx, record, l, o, start, "opens"); err != nil {
		return fmt.Errorf("record a profile: %w", err)
	}
	clients := []client{b.premixClient("premix", m), b.premixClient("premix+profile", m, "--profile", profile)}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	other := filepath.Join(cache, "premix/cvmfs/bin/cvmfs-cli")
	if _, err := os.Stat(other); err != nil {
		b.lab.Log("the crate cvmfs does not take part (scripts/setup.sh soak): %v", err)
	} else {
		clients = append(clients, rustClient(other))
	}
	title := fmt.Sprintf("Start that opens %d files of a CVMFS repository over %s", len(opened), b.linkText())
	if err := b.compareClients(ctx, "cvmfs/start", title, clients, l, o, start, "opens"); err != nil {
		return err
	}
	title = fmt.Sprintf("Listing of %d names of a CVMFS repository over %s", wideNames, b.linkText())
	return b.compareClients(ctx, "cvmfs/list", title, append(clients[:1:1], clients[2:]...), l, o, names, "names")
}

// compareClients measures a verb for each client, in turns.
func (b *benchmark) compareClients(ctx context.Context, name, title string, clients []client, l *netrelay.Link, o *workbench.Origin, r *repository, verb string) error {
	type result struct{ total, requests []float64 }
	got := make([]result, len(clients))
	for range b.reps {
		for i, c := range clients {
			total, requests, err := b.mounted(ctx, c, l, o, r, verb)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, c.name, err)
			}
			got[i].total = append(got[i].total, total)
			got[i].requests = append(got[i].requests, requests)
		}
	}
	rows := [][]string{{"", "mount and use", "requests"}}
	base := quantile.Median(got[0].total)
	for i, c := range clients {
		f := figures.Figure{Name: name + "/total/" + c.name, Value: quantile.Median(got[i].total), Unit: "s"}
		if i > 0 {
			f.Peer, f.Ratio = clients[0].name, figures.Lower(f.Value, base)
		}
		requests := quantile.Median(got[i].requests)
		if err := errors.Join(b.Add(f), b.Add(figures.Figure{Name: name + "/requests/" + c.name, Value: requests, Unit: "requests"})); err != nil {
			return err
		}
		rows = append(rows, []string{c.name, figures.Seconds(f.Value), fmt.Sprintf("%.0f", requests)})
	}
	b.Table(title, rows)
	return nil
}

// mounted mounts a repository and runs a verb of this program in the mount. It returns the time
// of both, and the number of requests.
func (b *benchmark) mounted(ctx context.Context, c client, l *netrelay.Link, o *workbench.Origin, r *repository, verb string) (total, requests float64, err error) {
	scratch, err := b.lab.Scratch()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	mnt := filepath.Join(scratch, "mnt")
	home := filepath.Join(scratch, "home")
	if err := errors.Join(os.Mkdir(mnt, 0o755), os.Mkdir(home, 0o755)); err != nil {
		return 0, 0, err
	}
	if c.daemon != nil { // it runs on a node before any mount
		if err := workbench.Run(l.B, c.daemon(ctx, home)); err != nil {
			return 0, 0, err
		}
	}
	asked := o.Requests.Load()
	begin := now()
	end, err := c.mount(ctx, l.B, o.URL+"/"+r.dir, r, mnt, home)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	cmd := workbench.Command(ctx, os.Args[0], verb, mnt, r.list)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := workbench.Run(l.B, cmd); err != nil {
		return 0, 0, err
	}
	total = since(begin)
	var n int
	if err := json.Unmarshal(out.Bytes(), &n); err != nil {
		return 0, 0, err
	}
	if want := map[string]int{"opens": openedFiles, "names": wideNames}[verb]; n != want {
		return 0, 0, fmt.Errorf("%d files instead of %d", n, want)
	}
	return total, float64(o.Requests.Load() - asked), nil
}

// opensMain is `opens DIR LIST`. It opens and reads the listed files in order, and looks for
// two names that do not exist beside each, as Python does. It prints their number.
func opensMain(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: opens DIR LIST")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	paths := lines(text)
	for _, path := range paths {
		path = filepath.Join(args[0], path)
		for _, missing := range []string{".so", ".py"} {
			if _, err := os.Lstat(strings.TrimSuffix(path, ".pyc") + missing); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s%s: %v", path, missing, err)
			}
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, f)
		if err = errors.Join(err, f.Close()); err != nil || n == 0 {
			return fmt.Errorf("%s: %d bytes, %w", path, n, err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(len(paths))
}

// namesMain is `names DIR LIST`. It prints the number of names in DIR.
func namesMain(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(len(names))
}
