package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"premix/internal/demo"
)

// The demonstration shows a gain to an ordinary user who has no other program than premix, within
// the disk space that it promises.
func TestDemo(t *testing.T) {
	hot, err := canHot()
	if err != nil {
		t.Fatal(err)
	}
	if !hot {
		t.Skip("hot starts are not possible here: see premix doctor")
	}
	dir, err := os.MkdirTemp(filepath.Dir(binary), "demo-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(binary, "demo", "--out", filepath.Join(dir, "out"), "--json")
	cmd.Env = []string{"PATH=/nonexistent", "HOME=" + dir}
	cmd.Dir = dir
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var r demo.Result
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 3 || r.Samples != 12 || r.Length != 400_000_000 {
		t.Fatalf("%s", text)
	}
	for i, want := range []struct{ hot, cold int }{{0, 12}, {12, 0}, {12, 0}} {
		if row := r.Rows[i]; row.Hot != want.hot || row.Cold != want.cold || row.Equal != 12 {
			t.Errorf("%+v, want %+v", row, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "out", r.Rows[i].Page)); err != nil {
			t.Error(err)
		}
	}
	t.Logf("hot tasks take %.1f times less", r.Gain)
	if r.Bytes > 110e6 {
		t.Errorf("%d bytes stay", r.Bytes)
	}
	if _, err := os.Stat(filepath.Join(dir, "out", "home")); err == nil {
		t.Error("snapshots stay")
	}
	page, err := os.ReadFile(r.Page)
	if err != nil || strings.Count(string(page), "<tr>") != 4 || strings.Contains(string(page), "ZgotmplZ") {
		t.Errorf("%v\n%s", err, page)
	}
}

func TestDemoRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--out " + dir, "has other files"},
		{"--tool bwa", `there is no aligner "bwa"`},
	} {
		out, err := exec.Command(binary, append([]string{"demo"}, strings.Fields(c.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) || !strings.Contains(string(out), "hint: ") {
			t.Errorf("%s: %v\n%s", c.args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Error(err)
	}
}
