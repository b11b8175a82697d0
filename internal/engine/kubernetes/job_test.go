package kubernetes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"premix/internal/engine/pilot"
	"premix/internal/kit/exit"
)

func TestParse(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name    string
		options map[string]string
		want    string // a part of the error; an empty string means no error
	}{
		{"least", map[string]string{"image": "i"}, ""},
		{"image of the template", map[string]string{"template": file("image", "spec: {containers: [{image: i}]}")}, ""},
		{"all", map[string]string{"image": "i", "namespace": "n", "volume": "claim:/a,/b", "pull": "Never", "premix": "/p", "service-account": "s", "priority-class": "p", "kubeconfig": "k", "context": "c"}, ""},
		{"labels", map[string]string{"image": "i", "label": "kueue.x-k8s.io/queue-name=short,a=", "annotation": "a/b=any text: =", "resource": "nvidia.com/gpu=1,ephemeral-storage=10Gi", "pull-secret": "a,b.c"}, ""},
		{"label without a value", map[string]string{"image": "i", "label": "a"}, `--engine-opt label: "a" has no value`},
		{"key of a label", map[string]string{"image": "i", "label": "a b=c"}, `--engine-opt label: "a b=c": `},
		{"value of a label", map[string]string{"image": "i", "label": "a=b c"}, `--engine-opt label: "a=b c": `},
		{"key of an annotation", map[string]string{"image": "i", "annotation": "=c"}, `--engine-opt annotation: "=c": `},
		{"quantity", map[string]string{"image": "i", "resource": "nvidia.com/gpu=many"}, `"many" is not a quantity of nvidia.com/gpu`},
		{"memory as a resource", map[string]string{"image": "i", "resource": "memory=1Gi"}, "options of their own"},
		{"pull secret", map[string]string{"image": "i", "pull-secret": "a,"}, "--engine-opt pull-secret: "},
		{"no image", nil, "needs an image"},
		{"unknown", map[string]string{"image": "i", "speed": "9"}, "kubernetes has no option speed"},
		{"namespace", map[string]string{"image": "i", "namespace": "N_1"}, "--engine-opt namespace"},
		{"pull", map[string]string{"image": "i", "pull": "often"}, "it is Always, IfNotPresent or Never"},
		{"relative volume", map[string]string{"image": "i", "volume": "claim:a"}, "--engine-opt volume: write CLAIM:/PATH"},
		{"volume without a claim", map[string]string{"image": "i", "volume": ":/a"}, "there is no claim"},
		{"template that is not there", map[string]string{"image": "i", "template": filepath.Join(dir, "none")}, "no such file"},
		{"field of a template", map[string]string{"image": "i", "template": file("field", "spec: {nodeSelektor: {}}")}, "nodeSelektor"},
		{"command of a template", map[string]string{"template": file("command", "spec: {containers: [{image: i, command: [sh]}]}")}, "has a command"},
		{"two containers", map[string]string{"template": file("two", "spec: {containers: [{image: i}, {image: j}]}")}, "has 2 containers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.options)
			var mine *exit.Error
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!errors.As(err, &mine) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// The content of a template stays, and premix adds its own fields.
func TestJob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	err := os.WriteFile(path, []byte(`
metadata: {labels: {team: genomes}}
spec:
  nodeSelector: {disk: fast}
  tolerations: [{key: batch, operator: Exists}]
  containers:
    - name: any
      env: [{name: A, value: "1"}]
      resources: {requests: {cpu: 2500m, memory: 3Gi}, limits: {nvidia.com/gpu: 1}}
      volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
`), 0o666)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Parse(map[string]string{"image": "i", "volume": "claim:/data,/ref", "template": path})
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{o: *o, namespace: "n"}
	w := &pilot.Wave{Number: 7, Token: "AB12cd34", Dir: "/data/out", Shares: []pilot.Share{{Cores: 1}, {Cores: 1}}, Target: time.Minute}
	for _, twice := range []string{"first", "second"} { // a wave must leave no trace in the template
		j := e.job(w)
		s, c := &j.Spec.Template.Spec, &j.Spec.Template.Spec.Containers[0]
		if j.Name != "premix-ab12cd34" || *j.Spec.Completions != 2 || *j.Spec.Parallelism != 2 || j.Annotations[annotationDirectory] != "/data/out" {
			t.Errorf("%s: %+v", twice, j)
		}
		if s.NodeSelector["disk"] != "fast" || len(s.Tolerations) != 1 || j.Spec.Template.Labels["team"] != "genomes" || j.Spec.Template.Labels[labelDirectory] != directoryLabel("/data/out") {
			t.Errorf("%s: %+v", twice, j.Spec.Template)
		}
		want := []string{"premix", "task", "work", "/data/out", "--engine", "kubernetes", "--wave", "7", "--index", "$(JOB_COMPLETION_INDEX)", "--jobs", "2", "--memory", "3145728K"}
		if !slices.Equal(c.Command, want) {
			t.Errorf("%s: command %q", twice, c.Command)
		}
		if len(c.Env) != 2 || len(s.Volumes) != 3 || len(c.VolumeMounts) != 3 || c.VolumeMounts[1].MountPath != "/data" || s.Volumes[2].HostPath.Path != "/ref" {
			t.Errorf("%s: %+v, %+v", twice, c, s.Volumes)
		}
	}
	for dir, want := range map[string]bool{"/data/out": true, "/data": true, "/database": false, "/ref/x": true, "/scratch/x": true, "/": false} {
		if e.covered(dir) != want {
			t.Errorf("covered %s is not %v", dir, want)
		}
	}
}

// Labels and annotations apply to the Job, resources and secrets to the pod. Options cannot replace
// the annotations and labels by which premix finds its Jobs.
func TestJobOptions(t *testing.T) {
	o, err := Parse(map[string]string{"image": "i", "label": "kueue.x-k8s.io/queue-name=short,premix/token=other", "annotation": "a=b,premix/directory=/other",
		"resource": "nvidia.com/gpu=2", "pull-secret": "one,two"})
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{o: *o, namespace: "n"}
	for _, token := range []string{"AB12cd34", "EF"} { // a wave must leave no trace in the options
		j := e.job(&pilot.Wave{Number: 7, Token: token, Dir: "/data/out", Shares: []pilot.Share{{Cores: 3}}, Target: time.Minute})
		if j.Labels["kueue.x-k8s.io/queue-name"] != "short" || j.Labels[labelToken] != strings.ToLower(token) || j.Annotations["a"] != "b" || j.Annotations[annotationDirectory] != "/data/out" {
			t.Errorf("the Job has %v, %v", j.Labels, j.Annotations)
		}
		s := &j.Spec.Template.Spec
		if j.Spec.Template.Labels["kueue.x-k8s.io/queue-name"] != "" || len(s.ImagePullSecrets) != 2 || s.ImagePullSecrets[1].Name != "two" {
			t.Errorf("the pod has %v, %v", j.Spec.Template.Labels, s.ImagePullSecrets)
		}
		r := s.Containers[0].Resources
		gpus, limit := r.Requests["nvidia.com/gpu"], r.Limits["nvidia.com/gpu"]
		if gpus.String() != "2" || limit.String() != "2" || r.Requests.Cpu().String() != "3" {
			t.Errorf("the container has %+v", r)
		}
	}
}

// A container requests the cores and the memory of its share.
func TestRequest(t *testing.T) {
	c := &corev1.Container{}
	cores, memory := request(c, &pilot.Share{Cores: 4, Memory: 8 << 30})
	if cores != 4 || memory != 8<<30 || c.Resources.Requests.Cpu().String() != "4" || c.Resources.Limits.Memory().String() != "8Gi" {
		t.Errorf("%d, %d, %+v", cores, memory, c.Resources)
	}
	c = &corev1.Container{}
	if cores, memory = request(c, &pilot.Share{}); cores != 1 || memory != 0 || c.Resources.Limits != nil {
		t.Errorf("%d, %d, %+v", cores, memory, c.Resources)
	}
}

func TestParseID(t *testing.T) {
	id := jobID("n", "premix-1", 12)
	if ns, name, index, err := parseID(id); ns != "n" || name != "premix-1" || index != 12 || err != nil {
		t.Error(ns, name, index, err)
	}
	for _, bad := range []string{"", "a/b", "a/b/c", "a/b/1/2"} {
		if _, _, _, err := parseID(bad); err == nil {
			t.Errorf("%q is an id", bad)
		}
	}
}
