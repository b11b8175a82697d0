package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// contender is one way to have images on a node.
type contender struct {
	name        string
	snapshotter string // name of the snapshotter in containerd
	image       func(im image) string
	store       string // store of premix
	whole       bool   // the pull fetches the whole image
	// start starts the snapshotter; it is nil if containerd has the snapshotter built in.
	start func(ctx context.Context, n *node) error
	// stop ends what remains of start after the node's daemons have ended.
	stop func(n *node) error
}

func (b *benchmark) contenders() []contender {
	lab := b.lab
	return []contender{
		{name: "full", snapshotter: "overlayfs", whole: true, image: func(im image) string { return im.name }},
		{name: "stargz", snapshotter: "stargz", image: func(im image) string { return im.name + "-estargz" },
			start: func(ctx context.Context, n *node) error {
				cmd := workbench.Command(ctx, lab.peers(), "snapshotter", strings.TrimPrefix(n.origin.URL, "http://"), n.socket("stargz"), filepath.Join(n.dir, "stargz"))
				return n.daemon(cmd, n.socket("stargz"))
			}},
		{name: "nydus", snapshotter: "nydus", image: func(im image) string { return im.name + "-nydus" },
			start: func(ctx context.Context, n *node) error {
				cmd := workbench.Command(ctx, lab.nydus(), "snapshotter", filepath.Join(b.nydus, "nydusd"), n.socket("nydus"), filepath.Join(n.dir, "nydus"))
				return n.daemon(cmd, n.socket("nydus"))
			}},
		b.sociContender("soci", "lazy", func(im image) string { return im.name + "-soci" }),
		b.sociContender("soci-parallel", "parallel", func(im image) string { return im.name }),
		b.premixContender("premix", plainStore),
		b.premixContender("premix+profile", profiledStore),
		b.withoutStore(),
	}
}

// sociContender returns soci-snapshotter in a mode. In its mode parallel it fetches the whole
// image before the start.
func (b *benchmark) sociContender(name, mode string, image func(im image) string) contender {
	return contender{name: name, snapshotter: "soci", whole: mode == "parallel", image: image,
		start: func(ctx context.Context, n *node) error {
			cmd := workbench.Command(ctx, b.lab.soci(), "snapshotter", mode, strings.TrimPrefix(n.origin.URL, "http://"), n.socket("containerd"), n.socket("soci"), filepath.Join(n.dir, "soci"))
			return n.daemon(cmd, n.socket("soci"))
		}}
}

// premixContender returns premix with this store, and with further arguments for its
// snapshotter.
func (b *benchmark) premixContender(name, store string, args ...string) contender {
	return contender{name: name, snapshotter: "premix", image: func(im image) string { return im.name }, store: store,
		start: func(ctx context.Context, n *node) error {
			// A service of the machine would start it before any pull.
			if err := workbench.Run(n.host, b.premixCommand(ctx, n.home(), "node", "start")); err != nil {
				return err
			}
			cmd := b.premixCommand(ctx, n.home(), append([]string{"snapshotter", "--origin", n.origin.URL + "/" + store, "--address", n.socket("premix"), "--containerd", n.socket("containerd"), "--root", filepath.Join(n.dir, "premix")}, args...)...)
			return n.daemon(cmd, n.socket("premix"))
		},
		stop: func(n *node) error {
			return workbench.Run(n.host, b.premixCommand(context.Background(), n.home(), "node", "stop", "--lazy"))
		}}
}

// withoutStore returns premix for an image that no store has: its layers come from the
// registry, as for full.
func (b *benchmark) withoutStore() contender {
	c := b.premixContender("premix-registry", emptyStore)
	c.whole = true
	return c
}

func (l *lab) peers() string { return filepath.Join(l.Dir, "peers/peers") }
func (l *lab) nydus() string { return filepath.Join(l.Dir, "peers/nydus") }
func (l *lab) soci() string  { return filepath.Join(l.Dir, "peers/soci") }

// premixCommand returns a premix command with its own home.
func (b *benchmark) premixCommand(ctx context.Context, home string, args ...string) *exec.Cmd {
	cmd := workbench.Command(ctx, b.premix, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+home)
	return cmd
}

// node is a machine with containerd. It starts empty.
type node struct {
	*benchmark
	contender
	host    *netrelay.Host // nil: this machine
	origin  *workbench.Origin
	dir     string // directory of all its files
	daemons []*workbench.Daemon
}

func (n *node) socket(name string) string { return filepath.Join(n.dir, name+".sock") }
func (n *node) home() string              { return filepath.Join(n.dir, "home") }

// newNode starts the daemons of an empty node.
func (b *benchmark) newNode(ctx context.Context, c contender, host *netrelay.Host, origin *workbench.Origin) (*node, error) {
	dir, err := b.lab.Scratch()
	if err != nil {
		return nil, err
	}
	n := &node{benchmark: b, contender: c, host: host, origin: origin, dir: dir}
	if err := n.begin(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) begin(ctx context.Context) error {
	plugin := ""
	if n.start != nil {
		if err := n.start(ctx, n); err != nil {
			return err
		}
		plugin = fmt.Sprintf("[proxy_plugins.%s]\n  type = \"snapshot\"\n  address = %q\n", n.snapshotter, n.socket(n.snapshotter))
	}
	config := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
%s`, filepath.Join(n.dir, "root"), filepath.Join(n.dir, "state"), n.socket("containerd"), plugin)
	file := filepath.Join(n.dir, "config.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	cmd := workbench.Command(ctx, filepath.Join(n.containerd, "containerd"), "--config", file, "--log-level", "error")
	cmd.Env = append(os.Environ(), "PATH="+n.containerd+":"+os.Getenv("PATH"))
	return n.daemon(cmd, n.socket("containerd"))
}

// daemon starts a daemon, and waits until its socket answers.
func (n *node) daemon(cmd *exec.Cmd, socket string) error {
	cmd.Cancel = func() error { return nil } // close ends it
	d, err := workbench.StartDaemon(n.host, cmd)
	if err != nil {
		return err
	}
	n.daemons = append(n.daemons, d)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("unix", socket)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen: %w\n%s", strings.Join(cmd.Args, " "), err, cmd.Stderr)
		}
	}
}

// ref returns the reference of the image in the registry.
func (n *node) ref(im image) string {
	return strings.TrimPrefix(n.origin.URL, "http://") + "/" + n.image(im) + ":latest"
}

// pull pulls an image and returns the time in seconds.
func (n *node) pull(ctx context.Context, im image) (float64, error) {
	var took struct {
		Seconds float64 `json:"seconds"`
	}
	err := n.client(ctx, &took, "pull", n.socket("containerd"), n.snapshotter, n.ref(im))
	return took.Seconds, err
}

// ran has the times of a run, in seconds from its beginning.
type ran struct {
	First  float64 `json:"first"`  // to the first byte of output
	End    float64 `json:"end"`    // to the end of the process
	Output string  `json:"output"` // digest of its words
}

// run runs a container.
func (n *node) run(ctx context.Context, im image, args []string) (ran, error) {
	var r ran
	return r, n.client(ctx, &r, append([]string{"run", n.socket("containerd"), n.snapshotter, n.ref(im)}, args...)...)
}

func (n *node) client(ctx context.Context, result any, args ...string) error {
	limited, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := workbench.Command(limited, n.lab.peers(), args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := workbench.Run(n.host, cmd); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return json.Unmarshal(out.Bytes(), result)
}

// restart ends the daemons and starts them again. It keeps the node's data.
func (n *node) restart(ctx context.Context) error {
	if err := n.end(); err != nil {
		return err
	}
	return n.begin(ctx)
}

// end ends all daemons.
func (n *node) end() error {
	var errs []error
	for i := len(n.daemons) - 1; i >= 0; i-- {
		errs = append(errs, n.daemons[i].Stop())
	}
	n.daemons = nil
	return errors.Join(errs...)
}

// close ends all daemons and removes the node's data.
func (n *node) close() error {
	errs := []error{n.end()}
	if n.stop != nil {
		errs = append(errs, n.stop(n))
	}
	errs = append(errs, workbench.UnmountBelow(n.dir), os.RemoveAll(n.dir))
	return errors.Join(errs...)
}
