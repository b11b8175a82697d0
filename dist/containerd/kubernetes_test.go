// Package containerd tests the files that are installed into the directories of other
// programs. It is a module of its own, because only these tests need Kubernetes' types.
package containerd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// objects decodes kubernetes.yaml, and fails if a field is unknown to the types.
func objects(t *testing.T) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, nodev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	content, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list []runtime.Object
	for r := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content))); ; {
		document := make([]byte, len(content))
		n, err := r.Read(document)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(document[:n], nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document[:n])
		}
		list = append(list, object)
	}
}

func TestKubernetes(t *testing.T) {
	var set *appsv1.DaemonSet
	var config *corev1.ConfigMap
	var class *nodev1.RuntimeClass
	kinds := map[string]int{}
	for _, o := range objects(t) {
		kinds[o.GetObjectKind().GroupVersionKind().Kind]++
		switch o := o.(type) {
		case *appsv1.DaemonSet:
			set = o
		case *corev1.ConfigMap:
			config = o
		case *nodev1.RuntimeClass:
			class = o
		}
	}
	for _, kind := range []string{"Namespace", "ConfigMap", "ServiceAccount", "DaemonSet", "RuntimeClass"} {
		if kinds[kind] != 1 {
			t.Errorf("there are %d of %s, want one", kinds[kind], kind)
		}
	}
	if t.Failed() {
		return
	}
	pod := set.Spec.Template
	for name, value := range set.Spec.Selector.MatchLabels {
		if pod.Labels[name] != value {
			t.Errorf("the selector wants %s=%s, which the pods do not have", name, value)
		}
	}
	for name, value := range class.Scheduling.NodeSelector {
		if pod.Spec.NodeSelector[name] != value {
			t.Errorf("pods of the class go to nodes with %s=%s, which need not have the snapshotter", name, value)
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("container %s mounts %s, which is no volume", c.Name, m.Name)
			}
		}
	}
	// The installer copies the units of this directory.
	units, err := filepath.Glob("premix-*.s*")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		if !strings.Contains(config.Data["install.sh"], unit) {
			t.Errorf("the installer does not install %s", unit)
		}
	}
	check := exec.Command("sh", "-n")
	check.Stdin = strings.NewReader(config.Data["install.sh"])
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("install.sh: %v\n%s", err, out)
	}
}

// TestInstall runs the installer with a directory in place of the node, and with a
// systemctl that only prints its arguments.
func TestInstall(t *testing.T) {
	var script string
	for _, o := range objects(t) {
		if c, ok := o.(*corev1.ConfigMap); ok {
			script = c.Data["install.sh"]
		}
	}
	dir := t.TempDir()
	files := map[string]string{
		"config/node.yaml":                  "origins: [x]\n",
		"premix/premix":                     "binary",
		"premix/premix-node.service":        "node",
		"premix/premix-snapshotter.service": "service",
		"premix/premix-snapshotter.socket":  "socket",
		"bin/nsenter":                       "#!/bin/sh\nshift 4\necho \"$@\" >>" + filepath.Join(dir, "calls") + "\n",
	}
	for _, d := range []string{"host/etc/premix", "host/etc/systemd/system", "host/usr/local/bin"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, root := range []string{"/config/", "/premix/", "/host/"} {
		script = strings.ReplaceAll(script, " "+root, " "+dir+root)
	}
	for range 2 { // an update runs the same script
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("install.sh: %v\n%s", err, out)
		}
	}
	for to, from := range map[string]string{
		"host/etc/premix/node.yaml":                          "config/node.yaml",
		"host/usr/local/bin/premix":                          "premix/premix",
		"host/etc/systemd/system/premix-node.service":        "premix/premix-node.service",
		"host/etc/systemd/system/premix-snapshotter.service": "premix/premix-snapshotter.service",
		"host/etc/systemd/system/premix-snapshotter.socket":  "premix/premix-snapshotter.socket",
	} {
		got, err := os.ReadFile(filepath.Join(dir, to))
		if err != nil || string(got) != files[from] {
			t.Errorf("%s is %q (%v)", to, got, err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || !strings.Contains(string(calls), "systemctl restart premix-snapshotter.service\n") {
		t.Errorf("the node was asked for %q (%v)", calls, err)
	}
}

// systemd accepts the units, except for the program, which is not installed here.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze")
	}
	dir := t.TempDir()
	units, err := filepath.Glob("premix-*.s*")
	if err != nil || len(units) != 3 {
		t.Fatalf("units are %q (%v)", units, err)
	}
	args := []string{"verify"}
	for _, unit := range units {
		content, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, unit)
		if err := os.WriteFile(path, bytes.ReplaceAll(content, []byte("/usr/local/bin/premix"), []byte("/bin/true")), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	if out, err := exec.Command("systemd-analyze", args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
}
