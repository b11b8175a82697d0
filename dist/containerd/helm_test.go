package containerd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// chart is the directory of the chart for Helm, and installer its script.
const (
	chart     = "../helm/premix"
	installer = chart + "/files/install.sh"
)

// rendered returns the objects of the chart, as helm makes them.
func rendered(t *testing.T, set ...string) [][]byte {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	helm := filepath.Join(cache, "premix", "helm", "helm")
	if _, err := os.Stat(helm); err != nil {
		t.Skipf("helm is missing: scripts/setup.sh kubernetes builds it (%v)", err)
	}
	args := []string{"template", "test", chart, "--namespace", "premix", "--kube-version", apiserver}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(helm, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	var list [][]byte
	for document := range bytes.SplitSeq(out, []byte("\n---\n")) {
		if document = bytes.TrimPrefix(document, []byte("---\n")); bytes.Contains(document, []byte("\nkind:")) {
			list = append(list, document)
		}
	}
	return list
}

// Kubernetes' own types accept each object of the chart. The chart contains the script that
// TestChartInstall runs.
func TestChart(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, nodev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	script, err := os.ReadFile(installer)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, document := range rendered(t) {
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		kinds[kind.Kind]++
		if config, ok := object.(*corev1.ConfigMap); ok {
			if strings.TrimSpace(config.Data["install.sh"]) != strings.TrimSpace(string(script)) {
				t.Errorf("the script differs:\n%s", config.Data["install.sh"])
			}
			if !strings.Contains(config.Data["node.yaml"], "  - https://store.example.org\n") {
				t.Errorf("node.yaml: %s", config.Data["node.yaml"])
			}
		}
	}
	if kinds["DaemonSet"] != 1 || kinds["ConfigMap"] != 1 || kinds["RuntimeClass"] != 1 || kinds["ServiceAccount"] != 1 {
		t.Errorf("%v", kinds)
	}
	if n := len(rendered(t, "runtimeClass.enabled=false", "snapshotter.enabled=false")); n != 3 {
		t.Errorf("%d objects without a RuntimeClass", n)
	}
}

// A real API server accepts the chart.
func TestChartOnAPIServer(t *testing.T) {
	documents := rendered(t)
	apply := applier(t)
	if status, answer, _ := apply(t, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: premix}\n")); status/100 != 2 {
		t.Fatalf("status %d: %s", status, answer)
	}
	for _, document := range documents {
		if status, answer, warnings := apply(t, document); status/100 != 2 || len(warnings) > 0 {
			t.Errorf("status %d, warnings %q: %s", status, warnings, answer)
		}
	}
}

// The script changes the configuration of real containerds so that they use premix. It
// keeps the rest of the configuration, and a second run changes nothing.
func TestChartInstall(t *testing.T) {
	for name, program := range containerds(t) {
		for _, begin := range []string{"default", "short"} {
			t.Run(name+"/"+begin, func(t *testing.T) {
				config, err := exec.Command(program, "config", "default").Output()
				if err != nil {
					t.Fatal(err)
				}
				if begin == "short" {
					version := regexp.MustCompile(`(?m)^version = \d+$`).Find(config)
					config = []byte(string(version) + "\n\n[debug]\n  level = \"warn\"\n")
				}
				host := install(t, config, "")
				path := filepath.Join(host, "etc/containerd/config.toml")
				before := dump(t, program, path+".before-premix")
				after := dump(t, program, path)
				var more []string
				left := map[string]int{}
				for line := range strings.Lines(before) {
					left[strings.TrimSpace(line)]++
				}
				for line := range strings.Lines(after) {
					if line = strings.TrimSpace(line); left[line] > 0 {
						left[line]--
					} else {
						more = append(more, strings.ReplaceAll(line, "'", `"`))
					}
				}
				for line, n := range left {
					if n > 0 && line != "" && !strings.HasPrefix(line, "snapshotter = ") && !strings.HasPrefix(line, "imports = ") && line != "[proxy_plugins]" {
						t.Errorf("lost: %s", line)
					}
				}
				got := strings.Join(more, "\n")
				for _, want := range []string{`snapshotter = "premix"`, "[proxy_plugins.premix]", `address = "/run/premix/snapshotter.sock"`} {
					if !strings.Contains(got, want) {
						t.Errorf("%s is not in\n%s", want, got)
					}
				}
				// containerd 2 has another list of snapshotters for its transfer service.
				if bytes.Contains(config, []byte("version = 2")) == (strings.Count(got, `snapshotter = "premix"`) == 2) {
					t.Errorf("unpack_config is wrong:\n%s", got)
				}
				first, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				again, err := os.ReadFile(filepath.Join(install(t, first, ""), "etc/containerd/config.toml"))
				if err != nil || !bytes.Equal(first, again) {
					t.Errorf("a second run changes the configuration (%v)", err)
				}
			})
		}
	}
	install(t, []byte("oom_score = 0\n"), "has version 1, and premix needs 2, 3 or 4")
}

// containerds returns the containerds on this machine.
func containerds(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	if path, err := exec.LookPath("containerd"); err == nil {
		found["system"] = path
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	built, err := filepath.Glob(filepath.Join(cache, "premix/containerd/*/containerd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range built {
		found[filepath.Base(filepath.Dir(path))] = path
	}
	if len(found) == 0 {
		t.Skip("no containerd: scripts/setup.sh containerd")
	}
	return found
}

// dump returns the configuration that a containerd reads from a file.
func dump(t *testing.T, program, path string) string {
	t.Helper()
	out, err := exec.Command(program, "--config", path, "config", "dump").Output()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(out)
}

// install runs the script for a host with the given configuration, and returns the root of
// the host. If wrong is not empty, the script must fail with a message that contains it.
func install(t *testing.T, config []byte, wrong string) string {
	t.Helper()
	dir := t.TempDir()
	host, from, premix, bin := filepath.Join(dir, "host"), filepath.Join(dir, "from"), filepath.Join(dir, "premix"), filepath.Join(dir, "bin")
	for path, text := range map[string]string{
		host + "/etc/containerd/config.toml": string(config), host + "/usr/local/bin/other": "",
		from + "/node.yaml": "origins: []\n", premix + "/premix": "program",
		bin + "/nsenter": "#!/bin/sh\n[ -z \"$FAIL\" ] || exit 1\necho \"$@\" >>" + dir + "/calls\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []string{"premix-node.service", "premix-snapshotter.service", "premix-snapshotter.socket", "premix-watch.service"} {
		if err := os.WriteFile(filepath.Join(premix, unit), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The first run fails after it has changed the configuration, as it does if systemd is
	// busy.
	failing := exec.Command("sh", installer)
	cmd := exec.Command("sh", installer)
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOST=" + host, "FROM=" + from, "PREMIX=" + premix,
		"SNAPSHOTTER=true", "WATCH=true", "PATCH=true", "CONFIG=/etc/containerd/config.toml"}
	failing.Env = append(cmd.Env, "FAIL=1")
	if _, err := failing.CombinedOutput(); err == nil {
		t.Error("the script goes on where systemctl fails")
	}
	out, err := cmd.CombinedOutput()
	if wrong != "" {
		if err == nil || !strings.Contains(string(out), wrong) {
			t.Errorf("%v: %s, want %q", err, out, wrong)
		}
		return host
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || !strings.Contains(string(calls), "systemctl start premix-node.service") {
		t.Errorf("%v, calls:\n%s", err, calls)
	}
	changed := strings.Contains(string(calls), "systemctl restart containerd.service")
	now, err := os.ReadFile(filepath.Join(host, "etc/containerd/config.toml"))
	if err != nil || changed != !bytes.Equal(now, config) {
		t.Errorf("%v; containerd was restarted: %v", err, changed)
	}
	return host
}
