package snapshotter_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestContainerd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version string
		cri     bool // pull through CRI, as Kubernetes does, and not by ctr
		soak    bool // only in soak runs
	}{
		{"system", true, false},
		{"2.4.2", false, false},
		{"2.4.2", true, true},
		{"1.7.35", true, true},
	} {
		name := c.version
		if c.cri {
			name += "-cri"
		}
		t.Run(name, func(t *testing.T) {
			if c.soak && os.Getenv("PREMIX_SOAK") == "" {
				t.Skip("long runs only: PREMIX_SOAK=1")
			}
			t.Parallel()
			m := newMachine(t)
			m.serve("--origin", m.origin.URL)
			testContainerd(t, m.newContainerd(c.version, c.cri))
		})
	}
}

// wantContent is the content of the images of these tests, as showContent prints it.
const wantContent = "above\nkept\nnew\n"

const showContent = "ls covered; cat data/*; ls data/gone 2>/dev/null; true"

func testContainerd(t *testing.T, c *containerd) {
	low := base(t)
	// One layer occurs twice, which overlayfs refuses.
	img := picture(t, low, upper(t), layer(t, file{name: "middle", content: "m"}), upper(t))
	ref := c.push(img, "lazy:1")
	c.add(ref, "lazy:1")
	if err := c.pull(ref); err != nil {
		t.Fatal(err)
	}
	if got := c.pulled(img); len(got) > 0 {
		t.Errorf("layers %q were pulled, which the store has", got)
	}
	out, err := c.container(ref, "hello", "echo", "hello")
	if err != nil || out != "hello\n" {
		t.Errorf("echo hello: %v\n%s", err, out)
	}
	out, err = c.container(ref, "content", "sh", "-c", showContent+"; echo x >/written; rm /data/kept; touch /covered/z; cat /written")
	if err != nil || out != wantContent+"x\n" {
		t.Errorf("content: %v\n%s", err, out)
	}

	// If the store knows only a part of an image's layers, the other layers are pulled.
	derived := picture(t, low, layer(t, file{name: "own", content: "own\n"}))
	derivedRef := c.push(derived, "derived:1")
	if err := c.pull(derivedRef); err != nil {
		t.Fatal(err)
	}
	if got, want := c.pulled(derived), layersOf(t, derived)[1:]; !slices.Equal(got, want) {
		t.Errorf("layers %q were pulled, want %q", got, want)
	}
	if out, err := c.container(derivedRef, "derived", "cat", "/own", "/data/kept"); err != nil || out != "own\nkept\n" {
		t.Errorf("derived: %v\n%s", err, out)
	}

	// An image that the store does not know at all is pulled.
	other := picture(t, layer(t, file{name: "other", content: "1"}), base(t), upper(t))
	otherRef := c.push(other, "other:1")
	pull := c.pull
	if c.old { // of this version, ctr fetches and unpacks everything itself
		pull = c.pullByCtr
	}
	if err := pull(otherRef); err != nil {
		t.Fatal(err)
	}
	if got := c.pulled(other); len(got) != 4 {
		t.Errorf("layers %q were pulled, want all four", got)
	}
	if out, err := c.container(otherRef, "other", "sh", "-c", showContent); err != nil || out != wantContent {
		t.Errorf("other: %v\n%s", err, out)
	}

	c.wrong()
	two := c.atOnce()
	c.restarts(ref)
	c.reboot(ref)

	for _, r := range []string{ref, derivedRef, otherRef, two} {
		c.mustCtr("images", "rm", "--sync", r)
	}
	if list, err := c.ctr("images", "ls", "-q"); err != nil || strings.Contains(list, "sha256:") {
		// CRI also gives images names that are digests.
		for name := range strings.FieldsSeq(list) {
			c.mustCtr("images", "rm", "--sync", name)
		}
	}
	c.emptied()
}

// wrong pulls an image of which the registry returns a damaged layer, and checks that it is
// refused.
func (c *containerd) wrong() {
	c.t.Helper()
	img := picture(c.t, layer(c.t, file{name: "good", content: "good"}))
	ref := c.push(img, "wrong:1")
	bad := layersOf(c.t, img)[1]
	c.registry.spoiled(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, bad) {
			return false
		}
		_, _ = w.Write(make([]byte, sizeOf(c.t, img, 1)))
		return true
	})
	defer c.registry.spoiled(nil)
	if err := c.pull(ref); err == nil {
		c.t.Error("an image with a damaged layer was pulled")
	}
	if out, err := c.container(ref, "wrong", "cat", "/good"); err == nil {
		c.t.Errorf("an image with a damaged layer runs: %s", out)
	}
}

// sizeOf returns the size of an image's layer in the registry.
func sizeOf(t *testing.T, img v1.Image, i int) int64 {
	t.Helper()
	list, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	n, err := list[i].Size()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// restarts kills the daemons one after the other while a container runs.
func (c *containerd) restarts(ref string) {
	c.t.Helper()
	long := c.id("long")
	c.mustCtr("run", "-d", "--snapshotter", "premix", ref, long, "sleep", "100000")
	alive := func(after, file, want string) {
		c.t.Helper()
		out, err := c.heard(func(try int) []string {
			return []string{"task", "exec", "--exec-id", fmt.Sprintf("after-%s-%d", after, try), long}
		}, []string{"sh", "-c", "cat " + file + " && echo w >/w-" + after})
		if err != nil || out != want {
			c.t.Fatalf("after the end of %s: %v\n%s", after, err, out)
		}
	}
	c.registry.down(true) // from now on it is not needed
	defer c.registry.down(false)
	c.snapshotter.kill()
	alive("snapshotter", "/data/new", "new\n")
	c.again("--origin", c.origin.URL)
	alive("snapshotter-again", "/unread", "read late\n")
	c.daemon.kill()
	c.up()
	alive("containerd", "/etc/passwd", "root:x:0:0::/:/bin/sh\n")
	c.run("node", "restart")
	alive("node", "/data/kept", "kept\n")
	if out, err := c.container(ref, "meanwhile", "cat", "/data/kept"); err != nil || out != "kept\n" {
		c.t.Errorf("another container: %v\n%s", err, out)
	}
	c.remove(long)
}

// reboot removes everything that a reboot removes: processes, mounts and the directory of
// the node.
func (c *containerd) reboot(ref string) {
	c.t.Helper()
	c.snapshotter.kill()
	c.run("node", "stop", "--lazy")
	if err := os.RemoveAll(c.path("home/run")); err != nil {
		c.t.Fatal(err)
	}
	if left := c.mountsBelow("root"); len(left) > 0 {
		c.t.Fatalf("mounts are left: %q", left)
	}
	c.again("--origin", c.origin.URL)
	if out, err := c.container(ref, "rebooted", "sh", "-c", showContent); err != nil || out != wantContent {
		c.t.Errorf("after a reboot: %v\n%s", err, out)
	}
}

// atOnce starts two containers at once from an image that was not used before.
func (c *containerd) atOnce() string {
	c.t.Helper()
	img := picture(c.t, base(c.t), upper(c.t))
	ref := c.push(img, "two:1")
	c.add(ref, "two:1")
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			if err := c.pull(ref); err != nil {
				c.t.Errorf("pull: %v", err)
				return
			}
			if out, err := c.container(ref, fmt.Sprintf("at-once-%d", i), "sh", "-c", showContent); err != nil || out != wantContent {
				c.t.Errorf("run: %v\n%s", err, out)
			}
		})
	}
	all.Wait()
	if got := c.pulled(img); len(got) > 0 {
		c.t.Errorf("layers %q were pulled", got)
	}
	return ref
}
