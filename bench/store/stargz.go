package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/testkit/workbench"
)

// stargz is the FUSE file system of containerd's stargz-snapshotter. Its program is built
// from the module in the directory stargz.
type stargz struct {
	lab     *lab
	program string
}

func newStargz(ctx context.Context, l *lab) (*stargz, error) {
	s := &stargz{lab: l}
	var err error
	s.program, err = l.Once("peers/stargz", func(path string) error {
		cmd := workbench.Command(ctx, "go", "build", "-trimpath", "-o", path, ".")
		cmd.Dir = "bench/store/stargz" // the Makefile runs this program at the top
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
		return workbench.Run(nil, cmd)
	})
	return s, err
}

func (*stargz) name() string { return "stargz" }

// image returns the name of a layer.
func (*stargz) image(t tree, profile string) string {
	if profile == "" {
		return t.name
	}
	return t.name + "-" + profile
}

func (s *stargz) prepare(ctx context.Context, t tree, profile string) error {
	archive, err := s.lab.tar(ctx, t)
	if err != nil {
		return err
	}
	args := []string{"convert", archive, ""}
	if profile != "" {
		files, err := s.lab.touched(ctx, t, profile)
		if err != nil {
			return err
		}
		args = append(args, files)
	}
	image := s.image(t, profile)
	path, err := s.lab.Once("served/stargz/"+image, func(path string) error {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		args[2] = filepath.Join(path, "layer")
		return workbench.Run(nil, workbench.Command(ctx, s.program, args...))
	})
	if err != nil {
		return err
	}
	// The registry finds a blob by its digest.
	b, err := os.ReadFile(filepath.Join(path, "layer.json"))
	if err != nil {
		return err
	}
	var about struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal(b, &about); err != nil {
		return err
	}
	_, err = s.lab.Once("served/bench/blobs/"+about.Digest, func(link string) error {
		return os.Symlink(filepath.Join("../../stargz", image, "layer"), link)
	})
	return err
}

func (s *stargz) open(ctx context.Context, p place) (shown, error) {
	m := &stargzMount{dir: filepath.Join(p.scratch, "mnt")}
	cache := filepath.Join(p.scratch, "cache")
	for _, dir := range []string{m.dir, cache} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	about := filepath.Join(s.lab.Dir, "served/stargz", s.image(p.tree, p.profile), "layer.json")
	cmd := workbench.Command(ctx, s.program, "mount", p.origin, about, cache, m.dir)
	cmd.Cancel = func() error { return nil } // close ends it
	var err error
	if m.daemon, err = workbench.StartDaemon(p.client, cmd); err != nil {
		return nil, err
	}
	if err := m.daemon.Says("ready"); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

type stargzMount struct {
	daemon *workbench.Daemon
	dir    string
}

func (m *stargzMount) mount(context.Context) (string, error) {
	if _, err := m.daemon.In.Write([]byte("\n")); err != nil {
		return "", err
	}
	return m.dir, m.daemon.Says("mounted")
}

func (m *stargzMount) close() error {
	if err := unmount(m.dir); err != nil {
		return err
	}
	return m.daemon.Stop()
}

// lines returns the lines of a list.
func lines(text []byte) []string { return strings.Split(strings.TrimSpace(string(text)), "\n") }
