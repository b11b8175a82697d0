package snapshotter_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"premix/internal/testkit/kubetest"
)

// Tasks run in pods of a real kubelet and a real containerd, which get the image through
// the snapshotter. The test replaces no component by a fake.
func TestKubelet(t *testing.T) {
	if os.Getenv("PREMIX_CONFORMANCE") == "" {
		t.Skip("a control plane and a node take minutes on a busy machine; make conformance runs it")
	}
	t.Parallel()
	if missing := kubetest.MissingNode(); missing != "" {
		t.Fatal(missing)
	}
	m := newMachine(t)
	cgroup := m.cgroup()
	m.serve("--origin", m.origin.URL)
	img := m.tools()
	ref := m.push(img, "tools:1")
	m.sandbox = m.push(idle(t), "sandbox:1")
	m.add(ref, "tools:1")
	c := m.newContainerd("2.4.2", true)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for _, dir := range []string{"box", "work"} {
		if err := os.Mkdir(m.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	box, err := kubetest.Start(ctx, m.path("box"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	if err := box.StartNode(ctx, kubetest.Node{Name: "node-a", Runtime: c.path("c"), Cgroup: cgroup}); err != nil {
		t.Fatal(err)
	}
	pods := func() []corev1.Pod {
		list := &corev1.PodList{}
		if err := box.Client.List(ctx, box.Client.Core, "default", "pods", metav1.ListOptions{}, list); err != nil {
			t.Fatal(err)
		}
		return list.Items
	}

	const tasks = 60
	var text strings.Builder
	for i := 1; i <= tasks; i++ {
		fmt.Fprintf(&text, "cat /data/kept && echo %d\n", i)
	}
	if err := os.WriteFile(m.path("pod.yaml"), []byte("spec: {hostNetwork: true, containers: [{name: any}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(ctx, m.bin, "task", "run", "--out", m.path("work/out"), "-", "--engine", "kubernetes",
		"--engine-opt", "kubeconfig="+box.Admin(), "--engine-opt", "image="+ref, "--engine-opt", "volume="+m.path("work"),
		"--engine-opt", "template="+m.path("pod.yaml"), "--engine-opt", "jobs=2", "--engine-opt", "memory=512M")
	run.Dir, run.Env, run.Stdin = m.path("work"), m.env(), strings.NewReader(text.String())
	out, err := run.CombinedOutput()
	if err != nil {
		for _, p := range pods() {
			t.Logf("pod %s: %s %s", p.Name, p.Status.Phase, stderr(p))
		}
		t.Fatalf("%v\n%s", err, out)
	}
	if want := fmt.Sprintf("%d of %d tasks succeeded", tasks, tasks); !strings.Contains(string(out), want) {
		t.Errorf("not %s:\n%s", want, out)
	}
	if got := m.run("task", "tail", m.path("work/out"), "17"); got != "kept\n17\n" {
		t.Errorf("task 17 wrote %q", got)
	}
	if got := c.pulled(img); len(got) > 0 {
		t.Errorf("layers %q were pulled, which the store has", got)
	}
	// A pod ends a short time after the last record of its worker.
	var list []corev1.Pod
	if !wait(func() bool {
		list = pods()
		return !slices.ContainsFunc(list, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodSucceeded })
	}) || len(list) == 0 {
		for _, p := range list {
			t.Errorf("pod %s on node %q: %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, stderr(p))
		}
		t.Errorf("there are %d pods", len(list))
	}

	// After its deletion, the job leaves nothing behind.
	background := metav1.DeletePropagationBackground
	if err := box.Client.Batch.Delete().Namespace("default").Resource("jobs").Body(&metav1.DeleteOptions{PropagationPolicy: &background}).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	if !wait(func() bool { return len(pods()) == 0 }) {
		t.Error("pods are left")
	}
	if !wait(func() bool { return c.mustCtr("containers", "ls", "-q") == "" }) {
		t.Error("containers are left")
	}
}

// stderr returns the messages of a pod and its containers about their end.
func stderr(p corev1.Pod) string {
	text := p.Status.Reason + " " + p.Status.Message
	for _, c := range p.Status.ContainerStatuses {
		if e := c.State.Terminated; e != nil {
			text += fmt.Sprintf(" %s: status %d, %s %s", c.Name, e.ExitCode, e.Reason, e.Message)
		}
	}
	return text
}

// cgroup creates a cgroup in every hierarchy, and removes it with everything below it at
// the end of the test.
func (m *machine) cgroup() string {
	m.t.Helper()
	name := filepath.Base(m.dir)
	roots, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		roots = []string{"/sys/fs/cgroup/cgroup.procs"} // version 2 only
	}
	for _, root := range roots {
		dir := filepath.Join(filepath.Dir(root), name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() {
			if !wait(func() bool { err = removeCgroup(dir); return err == nil }) {
				m.t.Error(err)
			}
		})
	}
	return "/" + name
}

// removeCgroup removes a cgroup and the cgroups below it.
func removeCgroup(dir string) error {
	below, err := filepath.Glob(dir + "/*/cgroup.procs")
	if err != nil {
		return err
	}
	for _, b := range below {
		err = errors.Join(err, removeCgroup(filepath.Dir(b)))
	}
	if rerr := os.Remove(dir); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

// tools returns an image with premix and a shell.
func (m *machine) tools() v1.Image {
	m.t.Helper()
	program, err := os.ReadFile(m.bin)
	if err != nil {
		m.t.Fatal(err)
	}
	return picture(m.t, base(m.t), layer(m.t, file{name: "bin/"}, file{name: "bin/premix", content: string(program)}))
}

// idle returns an image whose containers run until they are killed.
func idle(t *testing.T) v1.Image {
	t.Helper()
	img := picture(t, base(t))
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Cmd = []string{"sleep", "1000000000"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}
