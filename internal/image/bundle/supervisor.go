package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/image"
	"premix/internal/kit/owner"
)

// Descriptors of a supervisor.
const (
	reportFD = 3 // for an error, as JSON
	lockFD   = 4
)

// Main is the main function of a supervisor, which is PID 1 of its namespace. It returns the
// exit status, which is the command's.
func Main(b string) int {
	unix.CloseOnExec(reportFD)
	unix.CloseOnExec(lockFD)
	report := os.NewFile(reportFD, "report")
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	cmd, err := prepare(b)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		var e *image.Error
		if !errors.As(err, &e) {
			e = &image.Error{Kind: image.Unavailable, Reason: err.Error(), HintText: "premix exec needs namespaces, overlayfs and cgroups: see dmesg for what the kernel refused"}
		}
		// e.Err may wrap an error without a JSON form.
		_ = json.NewEncoder(report).Encode(image.Error{Kind: e.Kind, Reason: e.Reason, HintText: e.HintText})
		return 1
	}
	report.Close()
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	if err := cmd.Wait(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			fmt.Fprintln(os.Stderr, "error:", err)
			return 1
		}
		if code := exit.ExitCode(); code >= 0 {
			return code
		}
		return 128 + int(unix.SIGKILL) // runc itself was killed
	}
	return 0
}

// prepare mounts the root and returns the command that runs the container.
func prepare(b string) (*exec.Cmd, error) {
	content, err := os.ReadFile(filepath.Join(b, "stage.json"))
	if err != nil {
		return nil, err
	}
	var o order
	if err := json.Unmarshal(content, &o); err != nil {
		return nil, err
	}
	// Mounts made here do not propagate to the host, but unmounts on the host propagate
	// to here.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount /proc: %w", err)
	}
	root := filepath.Join(b, "root")
	if _, err := o.mountRoot(b, root, nil); err != nil {
		return nil, err
	}
	s, err := o.Request.spec(root, o.ID)
	if err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(b, "config.json"), s); err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Runc, "--root", filepath.Join(b, "runc"), "run", "--bundle", b, o.ID)
	cmd.Env = owner.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}

// mountRoot mounts the command's root, and returns the directory that receives its
// writes. seed fills that directory first, if it is not nil.
func (o *order) mountRoot(b, root string, seed func(upper string) error) (upper string, err error) {
	rw := o.Scratch
	if rw == "" {
		rw = filepath.Join(b, "rw")
		if err := os.Mkdir(rw, 0o700); err != nil {
			return "", err
		}
		if err := unix.Mount("premix", rw, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
			return "", fmt.Errorf("mount a tmpfs: %w", err)
		}
	}
	upper, work := filepath.Join(rw, "upper"), filepath.Join(rw, "work")
	for _, d := range []string{upper, work, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	// The mode of the upper directory becomes the mode of "/".
	if err := os.Chmod(upper, 0o755); err != nil {
		return "", err
	}
	if seed != nil {
		if err := seed(upper); err != nil {
			return "", fmt.Errorf("fill the root's upper layer: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escape(o.Request.Root), escape(upper), escape(work))
	if limited() {
		options += ",userxattr"
	}
	if err := unix.Mount("premix", root, "overlay", unix.MS_NODEV, options); err != nil {
		e := &image.Error{Kind: image.Unavailable, Reason: fmt.Sprintf("overlayfs cannot be mounted: %v", err), HintText: "load overlayfs, if it is missing: sudo modprobe overlay", Err: err}
		if o.Scratch != "" {
			e.HintText += "; and give --scratch on a filesystem that supports an upper directory, such as ext4 or xfs"
		}
		return "", e
	}
	return upper, nil
}

// escape quotes characters that are special in options of overlayfs.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(path)
}
