package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"premix/internal/image"
)

// newRoot creates a root with accounts and a command.
func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range map[string]string{
		"etc/passwd":   "# accounts\nroot:x:0:0:root:/root:/bin/sh\nbio:x:1000:1001:A, B:/home/bio:/bin/sh\nhomeless:x:7:7:::\nbroken:x:one:two::/:\nshort:x:5\n",
		"etc/group":    "root:x:0:\nbio:x:1001:\nlab:x:2000:bio,other\nbeam:x:2001:other\nusers:x:100:other,bio\n",
		"usr/bin/tool": "#!",
		"opt/run":      "#!",
	} {
		path := filepath.Join(root, file)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// Most images have this link. It would lead out of the root if it were followed outside
	// of the container.
	if err := os.Symlink("/usr/bin", filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestUser(t *testing.T) {
	root := newRoot(t)
	for who, c := range map[string]struct {
		uid, gid uint32
		more     []uint32
		home     string
		fails    bool
	}{
		"":                 {0, 0, nil, "/root", false},
		"bio":              {1000, 1001, []uint32{2000, 100}, "/home/bio", false},
		"1000":             {1000, 1001, []uint32{2000, 100}, "/home/bio", false},
		"bio:beam":         {1000, 2001, nil, "/home/bio", false},
		"1000:3000":        {1000, 3000, nil, "/home/bio", false},
		"4000":             {4000, 0, nil, "/", false},
		"homeless":         {7, 7, nil, "/", false},
		"nobody-such":      {fails: true},
		"bio:nosuch":       {fails: true},
		"-1":               {fails: true},
		"4294967295":       {fails: true},
		"bio:999999999999": {fails: true},
	} {
		u, home, err := user(root, who)
		var known *image.Error
		if c.fails != errors.As(err, &known) || !c.fails && err != nil {
			t.Errorf("%q: %v", who, err)
			continue
		}
		if !c.fails && (u.UID != c.uid || u.GID != c.gid || !slices.Equal(u.AdditionalGids, c.more) || home != c.home) {
			t.Errorf("%q: %+v, home %s", who, u, home)
		}
	}
}

// TestHostileAccounts checks that a file of an image in the place of its accounts is not
// followed out of the image, is not waited for, and is not read without limit.
func TestHostileAccounts(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"a link out":  func(p string) error { return os.Symlink("../../../../../../etc/passwd", p) },
		"a directory": func(p string) error { return os.Mkdir(p, 0o755) },
		"a huge file": func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o644), os.Truncate(p, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			p := filepath.Join(root, "etc/passwd")
			if err := errors.Join(os.Remove(p), make(p)); err != nil {
				t.Fatal(err)
			}
			if u, _, err := user(root, "daemon"); err == nil {
				t.Errorf("%+v", u)
			}
		})
	}
}

func TestSpec(t *testing.T) {
	root := newRoot(t)
	im := &image.Image{Settings: v1.Config{
		Entrypoint: []string{"/opt/run"}, Cmd: []string{"usual"}, Env: []string{"A=1", "PATH=/bin:relative"}, User: "bio", WorkingDir: "work",
	}}
	r := Request{Image: im, Network: NetworkNone, Env: []string{"A=2", "HOME=/elsewhere"}, Binds: []Bind{{"/src", "/dst", true}}}
	s, err := r.spec(root, "premix-1.x")
	if err != nil {
		t.Fatal(err)
	}
	p := s.Process
	if !slices.Equal(p.Args, []string{"/opt/run", "usual"}) || p.Cwd != "/work" || !slices.Equal(p.Env, []string{"PATH=/bin:relative", "A=2", "HOME=/elsewhere"}) {
		t.Errorf("process %+v", p)
	}
	if len(p.Capabilities.Effective) != 0 || len(p.Capabilities.Bounding) != 14 || s.Linux.Seccomp == nil {
		t.Errorf("capabilities %+v", p.Capabilities)
	}
	if last := s.Mounts[len(s.Mounts)-1]; last.Destination != "/dst" || !slices.Contains(last.Options, "ro") {
		t.Errorf("mount %+v", last)
	}
	has := func(s *specs.Spec, kind specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
	if !has(s, specs.NetworkNamespace) || !has(s, specs.PIDNamespace) {
		t.Errorf("namespaces %+v", s.Linux.Namespaces)
	}
	r = Request{Image: im, Network: NetworkHost, Command: []string{"tool", "--x"}, User: "root", Workdir: "/opt"}
	if s, err = r.spec(root, "premix-1.x"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Process.Args, r.Command) || s.Process.Cwd != "/opt" || len(s.Process.Capabilities.Effective) != 14 || has(s, specs.NetworkNamespace) {
		t.Errorf("process %+v", s.Process)
	}
	for _, cmd := range [][]string{{"nosuch"}, {"/usr/bin"}, {"./tool"}, {"/etc/nosuch"}} {
		r.Command = cmd
		var known *image.Error
		if _, err := r.spec(root, "x"); !errors.As(err, &known) || known.Kind != image.Usage {
			t.Errorf("%q: %v", cmd, err)
		}
	}
	r.Command, r.Image = nil, &image.Image{}
	if _, err := r.spec(root, "x"); err == nil {
		t.Error("an image without a command ran")
	}
}

func TestEscape(t *testing.T) {
	if got := escape(`/a:b,c\d`); got != `/a\:b\,c\\d` {
		t.Errorf("got %s", got)
	}
}
