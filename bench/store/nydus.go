package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"premix/internal/testkit/workbench"
)

// nydus is nydusd with its FUSE file system and the registry as its backend. Each mount
// first downloads its bootstrap, the metadata of an image, as nydus-snapshotter does.
type nydus struct {
	lab           *lab
	daemon, image string
}

func newNydus(l *lab, dir string) (*nydus, error) {
	n := &nydus{lab: l}
	for name, path := range map[string]*string{"nydusd": &n.daemon, "nydus-image": &n.image} {
		if dir != "" {
			name = filepath.Join(dir, name)
		}
		var err error
		if *path, err = exec.LookPath(name); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (*nydus) name() string { return "nydus" }

func (*nydus) bootstrap(t tree, profile string) string {
	if profile == "" {
		return t.name
	}
	return t.name + "-" + profile
}

func (n *nydus) prepare(ctx context.Context, t tree, profile string) error {
	var list []string
	if profile != "" {
		path, err := n.lab.touched(ctx, t, profile)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		list = lines(b)
	}
	_, err := n.lab.Once("served/nydus/"+n.bootstrap(t, profile), func(path string) error {
		return n.create(ctx, t, path, list, "")
	})
	return err
}

// create makes an image, and puts its blobs where the registry looks for them. With a
// dictionary (the bootstrap of another image) it does not store chunks of that image
// again.
func (n *nydus) create(ctx context.Context, t tree, bootstrap string, prefetch []string, dictionary string) error {
	blobs := filepath.Join(n.lab.Dir, "served/nydus/blobs")
	fresh := bootstrap + ".blobs"
	defer os.RemoveAll(fresh)
	for _, dir := range []string{blobs, fresh} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	args := []string{"create", "--type", "dir-rafs", "--blob-dir", fresh, "--bootstrap", bootstrap}
	if dictionary != "" {
		args = append(args, "--chunk-dict", "bootstrap="+dictionary)
	}
	var input strings.Builder
	if len(prefetch) > 0 {
		args = append(args, "--prefetch-policy", "fs")
		for _, path := range prefetch {
			fmt.Fprintln(&input, "/"+path)
		}
	}
	cmd := workbench.Command(ctx, n.image, append(args, t.dir)...)
	cmd.Stdin = strings.NewReader(input.String())
	if err := workbench.Run(nil, cmd); err != nil {
		return err
	}
	made, err := os.ReadDir(fresh)
	if err != nil {
		return err
	}
	for _, blob := range made {
		if err := os.Rename(filepath.Join(fresh, blob.Name()), filepath.Join(blobs, "sha256:"+blob.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (n *nydus) open(ctx context.Context, p place) (shown, error) {
	m := &nydusMount{nydus: n, place: p, dir: filepath.Join(p.scratch, "mnt"), config: filepath.Join(p.scratch, "config.json")}
	cache := filepath.Join(p.scratch, "cache")
	for _, dir := range []string{m.dir, cache} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	type object = map[string]any
	b, err := json.Marshal(object{
		"device": object{
			"backend": object{"type": "registry", "config": object{
				"scheme": "http", "host": strings.TrimPrefix(p.origin, "http://"), "repo": "nydus",
				"timeout": 60, "connect_timeout": 5, "retry_limit": 2,
			}},
			"cache": object{"type": "blobcache", "config": object{"work_dir": cache}},
		},
		// RAFS 6 cannot be verified, and the older RAFS 5 is not nydus' default: nydus
		// alone among the contenders returns bytes without verifying them.
		"mode": "direct", "digest_validate": false, "enable_xattr": true,
		// The values of nydus-snapshotter's example, except for prefetch_all: nydus
		// prefetches only the files that the image lists.
		"fs_prefetch": object{"enable": p.profile != "", "threads_count": 8, "merging_size": 1 << 20, "prefetch_all": false},
	})
	if err != nil {
		return nil, err
	}
	return m, os.WriteFile(m.config, b, 0o600)
}

type nydusMount struct {
	*nydus
	place
	dir, config string
	process     *workbench.Daemon
}

func (m *nydusMount) mount(ctx context.Context) (string, error) {
	name := m.bootstrap(m.tree, m.profile)
	bootstrap := filepath.Join(m.scratch, "bootstrap")
	if err := workbench.Run(m.client, workbench.Command(ctx, os.Args[0], "pull", m.origin+"/nydus/"+name, bootstrap)); err != nil {
		return "", err
	}
	cmd := workbench.Command(ctx, m.daemon, "fuse", "--mountpoint", m.dir, "--bootstrap", bootstrap, "--config", m.config,
		"--rlimit-nofile", "0", "--log-level", "warn", "--log-file", filepath.Join(m.scratch, "nydusd.log"))
	cmd.Cancel = func() error { return nil } // close ends it
	var err error
	if m.process, err = workbench.StartDaemon(m.client, cmd); err != nil {
		return "", err
	}
	return m.dir, workbench.Mounted(ctx, m.dir)
}

func (m *nydusMount) close() error {
	if err := unmount(m.dir); err != nil {
		return err
	}
	if m.process == nil {
		return nil
	}
	return m.process.Stop()
}
