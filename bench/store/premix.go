package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"premix/internal/testkit/workbench"
)

// premixMount is premix itself, by its command line, with a new node for each repetition.
type premixMount struct {
	lab     *lab
	label   string
	program string
	backend string // of the mount
}

func newPremix(l *lab, program, label string) (*premixMount, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	m := &premixMount{lab: l, label: label, program: path, backend: "erofs"}
	if label == "premix-fuse" {
		m.backend = "fuse"
	}
	return m, nil
}

func (m *premixMount) name() string { return m.label }

// command returns a premix command with its own home.
func (m *premixMount) command(ctx context.Context, home string, args ...string) *exec.Cmd {
	cmd := workbench.Command(ctx, m.program, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+home)
	return cmd
}

// home returns the directory of the publisher's keys.
func (m *premixMount) home() string { return filepath.Join(m.lab.Dir, "premix-home") }

func (m *premixMount) store() string { return filepath.Join(m.lab.Dir, "served/premix") }

func (m *premixMount) prepare(ctx context.Context, t tree, profile string) error {
	if _, err := m.lab.Once("served/premix", func(path string) error {
		return workbench.Run(nil, m.command(ctx, m.home(), "store", "init", path))
	}); err != nil {
		return err
	}
	if err := m.publish(ctx, t); err != nil || profile == "" {
		return err
	}
	return m.record(ctx, t, profile)
}

// publish publishes a tree once.
func (m *premixMount) publish(ctx context.Context, t tree) error {
	_, err := m.lab.Once("premix-published-"+t.name, func(path string) error {
		if err := workbench.Run(nil, m.command(ctx, m.home(), "store", "publish", "--store", m.store(), t.dir, "bench/"+t.name)); err != nil {
			return err
		}
		return os.WriteFile(path, nil, 0o666)
	})
	return err
}

// record runs a start with --record, and publishes the recorded profile.
func (m *premixMount) record(ctx context.Context, t tree, profile string) error {
	_, err := m.lab.Once("premix-profile-"+t.name+"-"+profile, func(path string) (err error) {
		o, err := m.lab.Serve(nil)
		if err != nil {
			return err
		}
		defer o.Close()
		scratch, err := m.lab.Scratch()
		if err != nil {
			return err
		}
		defer os.RemoveAll(scratch)
		opened, err := m.open(ctx, place{tree: t, origin: o.URL, scratch: scratch})
		if err != nil {
			return err
		}
		s := opened.(*premixShown)
		defer func() { err = errors.Join(err, s.close()) }()
		half := path + ".jsonl"
		s.more = []string{"--record", half}
		dir, err := s.mount(ctx)
		if err != nil {
			return err
		}
		if _, err := startIn(ctx, nil, dir, profile); err != nil {
			return err
		}
		if err := s.umount(ctx); err != nil {
			return err
		}
		if err := workbench.Run(nil, m.command(ctx, m.home(), "store", "profile", "--store", m.store(), "--name", profile, "bench/"+t.name, half)); err != nil {
			return err
		}
		return os.Rename(half, path)
	})
	return err
}

func (m *premixMount) open(ctx context.Context, p place) (shown, error) {
	s := &premixShown{premixMount: m, place: p, dir: filepath.Join(p.scratch, "mnt"), node: filepath.Join(p.scratch, "home")}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return nil, err
	}
	return s, workbench.Run(p.client, m.command(ctx, s.node, "node", "start"))
}

type premixShown struct {
	*premixMount
	place
	dir  string
	node string   // PREMIX_HOME of the node
	more []string // options of the mount
}

func (s *premixShown) mount(ctx context.Context) (string, error) {
	profile := s.profile
	if profile == "" {
		profile = "none"
	}
	args := append([]string{"mount", "--origin", s.origin + "/premix", "--backend", s.backend, "--profile", profile}, s.more...)
	return s.dir, workbench.Run(s.client, s.command(ctx, s.node, append(args, "bench/"+s.tree.name, s.dir)...))
}

func (s *premixShown) umount(ctx context.Context) error {
	return workbench.Run(s.client, s.command(ctx, s.node, "umount", s.dir))
}

// close does not depend on ctx: the node must also end when the benchmark is interrupted.
func (s *premixShown) close() error {
	return workbench.Run(s.client, s.command(context.Background(), s.node, "node", "stop", "--lazy"))
}
