package hotstart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"golang.org/x/sys/unix"

	"premix/image"
	"premix/image/bundle"
)

// needContainers skips a test of what needs runc, and says so.
func needContainers(t *testing.T) {
	t.Helper()
	needRoot(t)
	if err := bundle.Possible(); err != nil {
		t.Skipf("no containers: %v", err)
	}
}

// addToRoot copies a program and what it is linked with into a root.
func addToRoot(t *testing.T, root, program, as string) {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", program, err)
	}
	files := map[string]string{as: program}
	for _, lib := range regexp.MustCompile(`/[^ \n]+`).FindAllString(string(out), -1) {
		files[lib] = lib
	}
	for to, from := range files {
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(from, to, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// newImage makes an image's root of the tool, without a store.
func newImage(t *testing.T, user string) *Image {
	t.Helper()
	root := t.TempDir()
	addToRoot(t, root, tool, "/opt/tool")
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nbio:x:1000:1001::/home/bio:/bin/sh\n",
		"etc/group":  "root:x:0:\nbio:x:1001:\nlab:x:2000:bio\n",
		"etc/mark":   "image\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"tmp", "home/bio"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(root, dir), 0o1777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil { // what "/" is, to everybody in there
		t.Fatal(err)
	}
	im := &Image{Ref: "tools/tool:1", Digest: strings.Repeat("1", 64), Root: root, Bundles: filepath.Join(t.TempDir(), "bundles"),
		Image: &image.Image{Settings: v1.Config{Env: []string{"PATH=/opt:/bin", "MARK=image"}, User: user, WorkingDir: "/home"}}}
	var err error
	if im.Account, err = bundle.AccountOf(im.Image, root); err != nil {
		t.Fatal(err)
	}
	return im
}

func imageSpec(im *Image, args ...string) Spec {
	spec := newSpec(args...)
	spec.Argv[0] = "tool"
	spec.Env = im.Env
	spec.Image = im
	return spec
}

// nothingLeft looks for what containers leave behind.
func (b *bench) nothingLeft(im *Image) {
	b.t.Helper()
	b.starter.Close()
	if left, _ := filepath.Glob(filepath.Join(im.Bundles, "*")); len(left) > 0 {
		b.t.Errorf("bundles are left: %q", left)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/premix-%d.*", os.Getpid())); len(left) > 0 {
		b.t.Errorf("cgroups are left: %q", left)
	}
}

// containerCommands are what a tool is asked in a container.
const containerCommands = "sum\nenv MARK\nenv HOME\nenv PATH\ncwd\numask\nfile /etc/mark\nstatus\nmake made\nwrite\nsum\ngrow\ndontneed\nthread\n"

func TestEveryKindInAContainer(t *testing.T) {
	needContainers(t)
	for _, user := range []string{"", "bio"} {
		t.Run("user "+user, func(t *testing.T) {
			im := newImage(t, user)
			spec := imageSpec(im, "-m", "40", "-l", "log", "input")
			want := ""
			for _, kind := range []Kind{Cold, Copy, Hot} {
				b := newBench(t, spec, kind)
				err := b.prepare("sum\n")
				if kind != Cold && user != "" && !hasCapability(unix.CAP_SYS_RESOURCE) {
					wantUnavailable(t, err, kind, "takes CAP_SYS_RESOURCE")
					continue
				}
				if err != nil {
					t.Fatalf("prepare: %v", err)
				}
				r := b.run(containerCommands)
				if !r.exit.OK() || r.proc.Kind != kind {
					t.Fatalf("%s start was %s: %s, stderr %q", kind, r.proc.Kind, r.exit, r.err)
				}
				if want == "" {
					want = r.out
					for _, line := range []string{"cwd " + FixedDir, "env MARK=image", "env PATH=/opt:/bin", "file image", "NoNewPrivs:\t1", "Seccomp:\t2"} {
						if !strings.Contains(want, line) {
							t.Errorf("a cold start has no %q:\n%s", line, want)
						}
					}
				} else if r.out != want {
					t.Errorf("%s start:\n%s\nand cold:\n%s", kind, r.out, want)
				}
				if got := read(t, filepath.Join(r.dir, "made")); got != "made\n" {
					t.Errorf("%s: the tool made %q", kind, got)
				}
				b.nothingLeft(im)
			}
		})
	}
}
