package snapshotter_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// versions are those of containerd that every run of the tests uses; the others
// take part in long runs.
func versions() []string {
	list := []string{"system", "2.1.9"}
	if os.Getenv("PREMIX_SOAK") != "" {
		list = append(list, "1.7.35")
	}
	return list
}

func eachVersion(t *testing.T, test func(t *testing.T, c *containerd)) {
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			m := newMachine(t)
			m.serve("--origin", m.origin.URL)
			test(t, m.newContainerd(v))
		})
	}
}

// wantContent is what the images of these tests show.
const wantContent = "above\nkept\nnew\n"

const showContent = "ls covered; cat data/*; ls data/gone 2>/dev/null; true"

func TestContainerd(t *testing.T) {
	eachVersion(t, func(t *testing.T, c *containerd) {
		low := base(t)
		// One layer twice: overlayfs refuses that.
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

		// Of an image that the store knows a part of, the rest is pulled.
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

		// One that the store does not know at all is pulled.
		other := picture(t, layer(t, file{name: "other", content: "1"}), base(t), upper(t))
		otherRef := c.push(other, "other:1")
		if err := c.pull(otherRef); err != nil {
			t.Fatal(err)
		}
		if got := c.pulled(other); len(got) != 4 {
			t.Errorf("layers %q were pulled, want all four", got)
		}
		if out, err := c.container(otherRef, "other", "sh", "-c", showContent); err != nil || out != wantContent {
			t.Errorf("other: %v\n%s", err, out)
		}

		c.restarts(ref)
		c.reboot(ref)

		for _, r := range []string{ref, derivedRef, otherRef} {
			c.mustCtr("images", "rm", "--sync", r)
		}
		if list, err := c.ctr("images", "ls", "-q"); err != nil || strings.Contains(list, "sha256:") {
			// CRI names images by their digests too.
			for name := range strings.FieldsSeq(list) {
				c.mustCtr("images", "rm", "--sync", name)
			}
		}
		c.emptied()
	})
}

// restarts kills one daemon after the other under a running container.
func (c *containerd) restarts(ref string) {
	c.t.Helper()
	c.mustCtr("run", "-d", "--snapshotter", "premix", ref, "long", "sleep", "100000")
	alive := func(after, file string) {
		c.t.Helper()
		out, err := c.ctr("task", "exec", "--exec-id", "after-"+after, "long", "sh", "-c", "cat "+file+" && echo w >/w-"+after)
		if err != nil || out == "" {
			c.t.Fatalf("after the end of %s: %v\n%s", after, err, out)
		}
	}
	c.snapshotter.kill()
	alive("snapshotter", "/data/new")
	c.again("--origin", c.origin.URL)
	alive("snapshotter-again", "/unread")
	c.daemon.kill()
	c.up()
	alive("containerd", "/etc/passwd")
	c.run("node", "restart")
	alive("node", "/data/kept")
	if out, err := c.container(ref, "meanwhile", "cat", "/data/kept"); err != nil || out != "kept\n" {
		c.t.Errorf("another container: %v\n%s", err, out)
	}
	c.remove("long")
}

// reboot takes away what a reboot takes: processes, mounts, the node's directory.
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

// Two containers of an image that nobody has yet start at once.
func TestTwoAtOnce(t *testing.T) {
	eachVersion(t, func(t *testing.T, c *containerd) {
		img := picture(t, base(t), upper(t))
		ref := c.push(img, "two:1")
		c.add(ref, "two:1")
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				if err := c.pull(ref); err != nil {
					t.Errorf("pull: %v", err)
					return
				}
				if out, err := c.container(ref, fmt.Sprintf("at-once-%d", i), "sh", "-c", showContent); err != nil || out != wantContent {
					t.Errorf("run: %v\n%s", err, out)
				}
			})
		}
		all.Wait()
		if got := c.pulled(img); len(got) > 0 {
			t.Errorf("layers %q were pulled", got)
		}
	})
}
