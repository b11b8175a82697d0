package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"premix/internal/kit/exit"
	"premix/internal/testkit/kubetest"
)

// testCluster is a control plane with two nodes of a simulated kubelet, and an account with only
// the rights of dist/kubernetes.
type testCluster struct {
	*kubetest.Box
	kubelet    *kubetest.Kubelet
	kubeconfig string // of the account
}

func newCluster(t *testing.T) *testCluster {
	t.Helper()
	if missing := kubetest.Missing(); missing != "" {
		t.Skip(missing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	box, err := kubetest.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	c := &testCluster{Box: box}
	if c.kubelet, err = box.StartKubelet(ctx, kubetest.Nodes{Names: []string{"node-a", "node-b"}, Cores: 4, Memory: "16Gi"}); err != nil {
		t.Fatal(err)
	}
	c.apply(t, "rbac.yaml")
	c.kubeconfig = c.account(t, "premix")
	return c
}

// apply applies a file of dist/kubernetes.
func (c *testCluster) apply(t *testing.T, name string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../dist/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{
		"ServiceAccount":        "/api/v1/namespaces/default/serviceaccounts/",
		"PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims/",
		"Job":                   "/apis/batch/v1/namespaces/default/jobs/",
		"Role":                  "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/",
		"RoleBinding":           "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/",
	}
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		value := func(key string) string {
			for line := range strings.Lines(string(document)) {
				if v, ok := strings.CutPrefix(line, key); ok {
					return strings.TrimSpace(v)
				}
			}
			t.Fatalf("%s has no %s", name, key)
			return ""
		}
		path := paths[value("kind:")]
		if path == "" {
			t.Fatalf("where are objects of kind %s?", value("kind:"))
		}
		warnings, err := c.Apply(t.Context(), document, path+value("  name:"))
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, warnings %q", name, err, warnings)
		}
	}
}

// account returns a kubeconfig with a token of a service account.
func (c *testCluster) account(t *testing.T, name string) string {
	t.Helper()
	text, err := c.Client.Core.Post().AbsPath("/api/v1/namespaces/default/serviceaccounts/"+name+"/token").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").
		Body([]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":86400}}`)).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var stderr struct{ Status struct{ Token string } }
	if err := json.Unmarshal(text, &stderr); err != nil {
		t.Fatal(err)
	}
	path, err := c.Kubeconfig(name, stderr.Status.Token, "default")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// options returns the engine arguments for tasks of a scene.
func (c *testCluster) options(s *taskScene, more ...string) []string {
	list := []string{"--engine", "kubernetes"}
	if c.kubeconfig != "" {
		more = append(more, "kubeconfig="+c.kubeconfig)
	}
	for _, o := range append([]string{"image=none", "premix=" + binary, "volume=" + s.dir}, more...) {
		list = append(list, "--engine-opt", o)
	}
	return list
}

// template writes a pod template with the mark in the environment, so that the test finds the
// processes, and with the lines of more.
func (c *testCluster) template(t *testing.T, s *taskScene, more string) string {
	t.Helper()
	mark := strings.SplitN(s.mark, "=", 2)
	s.write(t, "pod.yaml", fmt.Sprintf("spec:\n%s  containers:\n    - name: any\n      env:\n        - {name: %s, value: %q}\n", more, mark[0], mark[1]))
	return "template=" + s.path("pod.yaml")
}

// output collects the output of a command. It may be read while the command runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// begin starts premix.
func (c *testCluster) begin(t *testing.T, s *taskScene, stdin string, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	cmd, out := s.command(stdin, args...), &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// jobs returns the Jobs of the cluster.
func (c *testCluster) jobs(t *testing.T) []batchv1.Job {
	t.Helper()
	list := &batchv1.JobList{}
	if err := c.Client.List(t.Context(), c.Client.Batch, "default", "jobs", metav1.ListOptions{}, list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (c *testCluster) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := c.Client.List(t.Context(), c.Client.Core, "default", "pods", metav1.ListOptions{}, list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// since returns a function that counts the pods that appeared after the call of since. Older pods
// may disappear at any time, because the remains of a search or of a cancelled run are removed
// after its end.
func (c *testCluster) since(t *testing.T) func() int {
	t.Helper()
	before := make(map[types.UID]bool)
	for _, p := range c.pods(t) {
		before[p.UID] = true
	}
	return func() (n int) {
		t.Helper()
		for _, p := range c.pods(t) {
			if !before[p.UID] {
				n++
			}
		}
		return n
	}
}

// running returns the names of the pods that run tasks of a scene.
func (c *testCluster) running(t *testing.T, s *taskScene) []string {
	t.Helper()
	own := make(map[string]bool)
	for _, j := range c.jobs(t) {
		own[j.Name] = s.owns(j)
	}
	names := c.kubelet.Running()
	var list []string
	for _, p := range c.pods(t) {
		if own[p.Labels[batchv1.JobNameLabel]] && slices.Contains(names, p.Name) {
			list = append(list, p.Name)
		}
	}
	return list
}

// The engine works on a real control plane with the rights of dist/kubernetes.
func TestKubernetes(t *testing.T) {
	c := newCluster(t)
	t.Run("manifests", func(t *testing.T) {
		c.apply(t, "volume.yaml")
		c.apply(t, "job.yaml")
	})
	t.Run("tasks", func(t *testing.T) { c.testTasks(t) })
	t.Run("why", func(t *testing.T) { c.testWhy(t) })
	t.Run("recipe", func(t *testing.T) { c.testRecipe(t) })
	t.Run("blast", func(t *testing.T) { c.testBlast(t) })
	t.Run("interrupted", func(t *testing.T) { c.testInterrupted(t) })
	t.Run("disrupted", func(t *testing.T) { c.testDisrupted(t) })
	t.Run("in the cluster", func(t *testing.T) { c.testInCluster(t) })
	t.Run("faults", func(t *testing.T) { c.testFaults(t) })
	t.Run("options", func(t *testing.T) { c.testJobOptions(t) })
}

// The Job has the requested labels and annotations. Its pods run one at a time on the only node
// with a GPU. The API server has all other options as requested.
func (c *testCluster) testJobOptions(t *testing.T) {
	s := newTaskScene(t)
	if _, err := c.StartKubelet(t.Context(), kubetest.Nodes{Names: []string{"node-gpu"}, Cores: 4, Memory: "16Gi", Resources: map[string]int{"nvidia.com/gpu": 1}}); err != nil {
		t.Fatal(err)
	}
	const key = "kueue.x-k8s.io/queue-name"
	args := append([]string{"run", "--out", "out", "-"}, c.options(s, c.template(t, s, ""), "jobs=2", "cores=1", "memory=1G",
		"label="+key+"=short,team=genomes", "annotation=kueue.x-k8s.io/retriable-in-group=false,note=any text: =", "resource=nvidia.com/gpu=1", "pull-secret=one,two")...)
	s.success(t, strings.Repeat("sleep 0.1\n", 8), args...)
	s.once(t, 8)
	found := 0
	for _, j := range c.jobs(t) {
		if !s.owns(j) {
			continue
		}
		found++
		if j.Labels[key] != "short" || j.Labels["team"] != "genomes" || j.Annotations["note"] != "any text: =" || j.Annotations["kueue.x-k8s.io/retriable-in-group"] != "false" {
			t.Errorf("labels %v, annotations %v", j.Labels, j.Annotations)
		}
	}
	pods := 0
	for _, p := range c.pods(t) {
		if !slices.ContainsFunc(p.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return r.Name == "two" }) {
			continue // of another test
		}
		pods++
		limit, request := p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"], p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]
		if p.Spec.NodeName != "" && p.Spec.NodeName != "node-gpu" || limit.Value() != 1 || request.Value() != 1 || len(p.Spec.ImagePullSecrets) != 2 || p.Labels[key] != "" {
			t.Errorf("pod %s on %s: %v, labels %v", p.Name, p.Spec.NodeName, p.Spec.Containers[0].Resources, p.Labels)
		}
	}
	if found == 0 || pods == 0 {
		t.Errorf("%d Jobs and %d pods", found, pods)
	}
}

// Many tasks are packed into few pods.
func (c *testCluster) testTasks(t *testing.T) {
	s := newTaskScene(t)
	const tasks = 300
	var text strings.Builder
	for i := 1; i <= tasks; i++ {
		fmt.Fprintf(&text, "echo out %d\n", i)
	}
	since := c.since(t)
	args := append([]string{"run", "--out", "out", "-"}, c.options(s, c.template(t, s, ""), "jobs=3", "cores=2", "memory=1G")...)
	s.success(t, text.String(), args...)
	s.once(t, tasks)
	if got := s.success(t, "", "tail", "out", "217"); got != "out 217\n" {
		t.Errorf("task 217 wrote %q", got)
	}
	if n := since(); n < 1 || n > 6 {
		t.Errorf("there were %d pods", n)
	}
	for _, j := range c.jobs(t) {
		if s.owns(j) && (j.Spec.TTLSecondsAfterFinished == nil || *j.Spec.CompletionMode != batchv1.IndexedCompletion) {
			t.Errorf("a Job is %+v", j.Spec)
		}
	}
	// The same command has nothing left to do.
	if got := s.success(t, text.String(), args...); !strings.Contains(got, "nothing to do") {
		t.Errorf("%s", got)
	}
}

// A recipe runs over its samples in pods, with the same outputs as elsewhere.
func (c *testCluster) testRecipe(t *testing.T) {
	const samples = 12
	s := &taskScene{newScene(t, "cat \"$1\"\n", "", samples)}
	args := append([]string{"run", "r.yaml", "s.csv", "--out", s.path("out")}, c.options(s, "jobs=2")...)
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "PREMIX_HOME="+s.path("home"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i := range samples {
		text, err := os.ReadFile(s.path(fmt.Sprintf("out/s%d.txt", i)))
		if want := fmt.Sprintf("s%d\n", i); err != nil || string(text) != want {
			t.Errorf("sample %d: %q, %v", i, text, err)
		}
	}
	if !slices.ContainsFunc(c.jobs(t), s.owns) {
		t.Error("there was no Job")
	}
}

// task why prints the messages of the scheduler, of the kubelet and of the Job controller.
func (c *testCluster) testWhy(t *testing.T) {
	s := newTaskScene(t)
	args := append([]string{"submit", "--out", "out", "-"}, c.options(s, c.template(t, s, "  nodeSelector: {disk: fast}\n"))...)
	s.success(t, "true\n", args...)
	var got string
	if !comes(func() bool {
		got = s.success(t, "", "why", "out", "1")
		return strings.Contains(got, "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector")
	}) {
		t.Error(got)
	}
	// No premix dispatches now. Another premix continues with the Job and cancels it.
	args[0] = "run"
	cmd, out := c.begin(t, s, "true\n", args...)
	if !comes(func() bool { return strings.Contains(out.String(), "continuing with 1 jobs of kubernetes") }) {
		t.Errorf("it does not go on with the Job:\n%s", out)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var finished *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &finished) || finished.ExitCode() != int(exit.Signal(syscall.SIGINT)) {
		t.Errorf("%v\n%s", err, out)
	}
	if !comes(func() bool { return !slices.ContainsFunc(c.jobs(t), s.owns) }) {
		t.Error("the Job is left")
	}
}

// owns reports whether a Job is for tasks of a scene.
func (s *taskScene) owns(j batchv1.Job) bool {
	return j.Annotations["premix/directory"] == s.path("out")
}

// Ctrl-C removes the Jobs, and the same command continues.
func (c *testCluster) testInterrupted(t *testing.T) {
	s := newTaskScene(t)
	text := strings.Repeat("touch begun; while [ ! -e go ]; do sleep 0.05; done\n", 3)
	args := append([]string{"run", "--out", "out", "-"}, c.options(s, c.template(t, s, ""))...)
	cmd, out := c.begin(t, s, text, args...)
	s.await(t, "begun")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var finished *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &finished) || finished.ExitCode() != int(exit.Signal(syscall.SIGINT)) {
		t.Errorf("%v\n%s", err, out)
	}
	if !comes(func() bool { return !slices.ContainsFunc(c.jobs(t), s.owns) }) {
		t.Error("a Job is left")
	}
	s.write(t, "go", "")
	s.success(t, text, args...)
	s.once(t, 3)
}

// Kubernetes replaces an evicted pod, and premix replaces a failed pod.
func (c *testCluster) testDisrupted(t *testing.T) {
	s := newTaskScene(t)
	const tasks = 4
	text := strings.Repeat("touch begun.$$; while [ ! -e go ]; do sleep 0.05; done\n", tasks)
	args := append([]string{"run", "--out", "out", "-"}, c.options(s, c.template(t, s, ""), "jobs=3", "cores=2")...)
	cmd, out := c.begin(t, s, text, args...)
	started := func() int {
		list, err := filepath.Glob(s.path("begun.*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if !comes(func() bool { return started() == tasks }) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%d tasks have begun\n%s", started(), out)
	}
	running := c.running(t, s)
	if len(running) != 2 {
		t.Fatalf("pods %v run", running)
	}
	eviction := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":"default"}}`, running[0])
	if err := c.Client.Core.Post().Namespace("default").Resource("pods").Name(running[0]).SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body([]byte(eviction)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	if !c.kubelet.Kill(running[1], "OOMKilled") {
		t.Fatal("the pod is gone")
	}
	if !comes(func() bool { return started() == 2*tasks }) {
		t.Errorf("%d tasks have begun", started())
	}
	s.write(t, "go", "")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), "OOMKilled") {
		t.Errorf("nothing is said of a pod that ran out of memory:\n%s", out)
	}
	s.once(t, tasks)
}

// premix in a pod has no kubeconfig: it uses the files that Kubernetes puts into pods.
func (c *testCluster) testInCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount what pods find at a fixed path takes root")
	}
	s := newTaskScene(t)
	config, err := clientcmd.LoadFromFile(c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.path("account"), 0o777); err != nil {
		t.Fatal(err)
	}
	s.write(t, "account/token", config.AuthInfos["premix"].Token)
	s.write(t, "account/namespace", "default")
	authority, err := os.ReadFile(filepath.Join(c.Dir, "certs/apiserver.crt")) // the certificate is self-signed
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "account/ca.crt", string(authority))
	const enter = `mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && ln -s "$ACCOUNT" /run/secrets/kubernetes.io/serviceaccount && exec "$@"`
	in := &testCluster{Box: c.Box, kubelet: c.kubelet}
	args := append([]string{"--mount", "sh", "-c", enter, "sh", binary, "task", "run", "--out", "out", "-"}, in.options(s, c.template(t, s, ""))...)
	cmd := exec.Command("unshare", args...)
	_, port, _ := strings.Cut(strings.TrimPrefix(c.URL, "https://"), ":")
	cmd.Env = append(os.Environ(), s.mark, "ACCOUNT="+s.path("account"), "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT="+port, "KUBECONFIG=", "HOME="+s.dir)
	cmd.Dir, cmd.Stdin = s.dir, strings.NewReader("true\ntrue\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.once(t, 2)
}

// A node is lost with its pods. First only premix notices; then the node is removed from the
// cluster.
func TestKubernetesNodeLost(t *testing.T) {
	if !soak {
		t.Skip("it takes minutes; PREMIX_SOAK=1 runs it")
	}
	c := newCluster(t)
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprintf("removed=%v", removed), func(t *testing.T) {
			s := newTaskScene(t)
			name := fmt.Sprintf("lost-%v", removed)
			lost, err := c.StartKubelet(t.Context(), kubetest.Nodes{Names: []string{name}, Cores: 4, Memory: "16Gi", Labels: map[string]string{"run": name}})
			if err != nil {
				t.Fatal(err)
			}
			const tasks = 2
			text := strings.Repeat("touch begun.$$; while [ ! -e go ]; do sleep 0.05; done\n", tasks)
			args := append([]string{"run", "--out", "out", "-"}, c.options(s, c.template(t, s, "  nodeSelector: {run: "+name+"}\n  terminationGracePeriodSeconds: 5\n"), "jobs=2")...)
			cmd, out := c.begin(t, s, text, args...)
			started := func(n int) bool {
				return comes(func() bool {
					list, _ := filepath.Glob(s.path("begun.*"))
					return len(list) >= n
				})
			}
			if !started(tasks) {
				t.Error("no task has begun")
			}
			lost.Stop()
			if _, err := c.StartKubelet(t.Context(), kubetest.Nodes{Names: []string{"other-" + name}, Cores: 4, Memory: "16Gi", Labels: map[string]string{"run": name}}); err != nil {
				t.Fatal(err)
			}
			if removed {
				err = c.Client.Delete(t.Context(), c.Client.Core, "", "nodes", name, metav1.DeleteOptions{})
			} else {
				// The node controller does the same after some minutes.
				err = c.Client.Core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).Body([]byte(`{"spec":{"unschedulable":true}}`)).Do(t.Context()).Error()
				for _, p := range c.pods(t) {
					if p.Spec.NodeName == name {
						err = errors.Join(err, c.Client.Delete(t.Context(), c.Client.Core, "default", "pods", p.Name, metav1.DeleteOptions{}))
					}
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if !started(2 * tasks) {
				t.Error("the tasks did not begin elsewhere")
			}
			s.write(t, "go", "")
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			s.once(t, tasks)
		})
	}
}

// The API server, a worker and premix itself are killed at random moments. Every task ends once.
func (c *testCluster) testFaults(t *testing.T) {
	runs, tasks := 3, 200
	if soak {
		runs = 50
	}
	random := rand.New(rand.NewPCG(5, 4))
	for run := range runs {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			s := newTaskScene(t)
			var text strings.Builder
			for i := 1; i <= tasks; i++ {
				fmt.Fprintf(&text, "sleep 0.0%d; echo %d\n", i%10, i)
			}
			args := append([]string{"run", "--out", "out", "-"}, c.options(s, c.template(t, s, ""), "jobs=3", "target=3s")...)
			pause := func() { time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) }
			cmd, out := c.begin(t, s, text.String(), args...)
			finished := make(chan error, 1)
			go func() { finished <- cmd.Wait() }()
			for _, victim := range random.Perm(3) {
				pause()
				switch victim {
				case 0:
					c.Kill(kubetest.APIServer)
					pause()
					if err := c.Start(t.Context(), kubetest.APIServer); err != nil {
						t.Fatal(err)
					}
				case 1:
					if pods := c.kubelet.Running(); len(pods) > 0 {
						c.kubelet.Kill(pods[random.IntN(len(pods))], "")
					}
				case 2:
					_ = cmd.Process.Kill() // it may have ended
					<-finished
					pause()
					cmd, out = c.begin(t, s, text.String(), args...)
					go func() { finished <- cmd.Wait() }()
				}
			}
			select {
			case err := <-finished:
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			case <-time.After(2 * patience):
				_ = cmd.Process.Signal(syscall.SIGQUIT)
				<-finished
				t.Fatalf("premix came to no end\n%s", out)
			}
			s.once(t, tasks)
		})
	}
}
