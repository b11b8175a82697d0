package kubetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Job with indexes runs on the real controllers and the fake kubelet. Every pod gets its
// index, a pod that fails is tried again, and the API server may be killed during the run.
func TestBox(t *testing.T) {
	if missing := Missing(); missing != "" {
		t.Skip(missing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	b, err := Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	dir := t.TempDir()
	k, err := b.StartKubelet(ctx, Nodes{Names: []string{"n1", "n2"}, Cores: 8, Memory: "16Gi"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 12
	script := `if [ $INDEX = 3 ] && mkdir ` + dir + `/failed 2>/dev/null; then echo not yet; exit 7; fi; echo x >>` + dir + `/$INDEX; [ $INDEX != 5 ] || exec sleep 1000`
	name, parallel := "test", int32(n)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Completions: &parallel, Parallelism: &parallel, CompletionMode: new(batchv1.CompletionMode),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: "c", Image: "none", Command: []string{"/bin/sh", "-c", script},
			Env:                      []corev1.EnvVar{{Name: "INDEX", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources:                corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}}},
	}}
	*job.Spec.CompletionMode = batchv1.IndexedCompletion
	if err := b.Client.Batch.Post().Namespace("default").Resource("jobs").Body(job).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	read := func() *batchv1.Job {
		t.Helper()
		j := &batchv1.Job{}
		if err := b.Client.Batch.Get().Namespace("default").Resource("jobs").Name(name).Do(ctx).Into(j); err != nil {
			t.Fatal(err)
		}
		return j
	}
	wait := func(what string, done func() bool) {
		t.Helper()
		for !done() {
			select {
			case <-ctx.Done():
				t.Fatalf("waiting for %s: the Job is %+v", what, read().Status)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	fifth := func() string { text, _ := os.ReadFile(filepath.Join(dir, "5")); return string(text) } // the file may not exist yet
	wait("all but one", func() bool { return read().Status.Succeeded == n-1 })
	wait("the last one", func() bool { return fifth() == "x\n" })
	b.Kill(APIServer)
	if err := b.Start(ctx, APIServer); err != nil {
		t.Fatal(err)
	}
	// The last pod still runs. It is deleted in an orderly way, and its Job creates another
	// one.
	running := k.Running()
	if len(running) != 1 {
		t.Fatalf("pods %v run", running)
	}
	if err := b.Client.Delete(ctx, b.Client.Core, "default", "pods", running[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("another pod", func() bool {
		now := k.Running()
		return len(now) == 1 && now[0] != running[0]
	})
	wait("its file", func() bool { return fifth() == "x\nx\n" })
	pods := &corev1.PodList{}
	if err := b.Client.List(ctx, b.Client.Core, "default", "pods", metav1.ListOptions{}, pods); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Terminated != nil && s[0].State.Terminated.ExitCode == 7 && s[0].State.Terminated.Message == "not yet\n"
	}) {
		t.Error("no pod says that it failed")
	}
	for i := range n {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
		if want := "x\n"; err != nil || i != 5 && string(text) != want {
			t.Errorf("index %d: %q, %v", i, text, err)
		}
	}
}
