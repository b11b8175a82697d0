package spawn

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Without clone3 children start in another way with the same result.
func TestForkExec(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"tool": "#!/bin/sh\necho tool $1; pwd\n", "sub/bare": "echo bare\n", "bare": "#!/bin/sh\necho other\n", "plain": ""} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o777)
		if name == "plain" {
			mode = 0o644
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	env := newEnviron([]string{"PATH=" + dir + "/none:" + dir + "/sub:" + dir + ":/usr/bin:/bin", "A=1", "A=2"})
	join := filepath.Join(dir, "cgroup.procs") // an ordinary file records the processes that joined
	for _, c := range []struct {
		name, shell, dir string
		more             []string
		join             bool
		out              string
		status           int
		errno            syscall.Errno
		at               step
	}{
		{name: "tool", dir: "/", out: "tool arg\n/\n"},
		{name: "bare", shell: "bare", out: "bare\n"},
		{name: "none", shell: "echo $A$B", more: []string{"B=3"}, out: "23\n"},
		{shell: "exit 7", status: 7},
		{name: "none", errno: unix.ENOENT, at: stepExecute},
		{name: dir + "/plain", errno: unix.EACCES, at: stepExecute},
		{name: "tool", dir: dir + "/none", errno: unix.ENOENT, at: stepDirectory},
		{name: "tool", dir: "/", join: true, out: "tool arg\n/\n"},
		{shell: "echo joined", join: true, out: "joined\n"},
	} {
		out, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		ch := &child{shell: c.shell, env: env, more: c.more, dir: c.dir, stdout: int(out.Fd()), stderr: int(out.Fd())}
		if c.name != "" {
			ch.argv = []string{c.name, "arg"}
			ch.paths = env.pathsOf(c.name, nil)
		}
		var procs *os.File
		if c.join {
			if procs, err = os.Create(join); err != nil {
				t.Fatal(err)
			}
			ch.joins = []int{int(procs.Fd())}
		}
		pid, at, errno := forkExec(ch)
		if errno != c.errno || errno != 0 && at != c.at {
			t.Errorf("%+v: %v, cannot %v", c, errno, at)
		}
		if errno == 0 {
			var ws syscall.WaitStatus
			for {
				if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
					break
				}
			}
			text, err := os.ReadFile(out.Name())
			if err != nil || ws.ExitStatus() != c.status || string(text) != c.out {
				t.Errorf("%+v: status %d, output %q, %v", c, ws.ExitStatus(), text, err)
			}
		}
		if c.join {
			if text, err := os.ReadFile(join); err != nil || !bytes.Equal(text, []byte("0\n")) {
				t.Errorf("%+v: joined with %q, %v", c, text, err)
			}
			procs.Close()
		}
		out.Close()
	}
}

func TestPathOfAnEnvironment(t *testing.T) {
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{nil, defaultPath},
		{[]string{"PATH="}, ""},
		{[]string{"PATH=/a::/b"}, "/a::/b"},
		{[]string{"PATH=/a", "PATH=/b"}, "/b"},
	} {
		if got := strings.Join(newEnviron(c.entries).path, ":"); got != c.want {
			t.Errorf("%q: %q, want %q", c.entries, got, c.want)
		}
	}
	if e := newEnviron([]string{"A=1", "PWD=/x", "B=2"}, "PWD"); strings.Join(e.entries, " ") != "A=1 B=2" || len(e.pointers) != 2 {
		t.Errorf("%+v", e)
	}
}
