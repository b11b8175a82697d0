package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/kubetest"
)

// kubernetes measures premix beside one pod a task, on a separate control plane.
func (b *benchmark) kubernetes(results *figures.Results) error {
	if missing := kubetest.Missing(); missing != "" {
		fmt.Println("kubernetes is left out:", missing)
		return nil
	}
	dir, err := os.MkdirTemp(b.work, "kubernetes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	box, err := kubetest.Start(b.ctx, dir)
	if err != nil {
		return err
	}
	defer box.Close()
	nodes := kubetest.Nodes{Names: []string{"n1", "n2", "n3", "n4"}, Cores: 4, Memory: "16Gi"}
	if _, err := box.StartKubelet(b.ctx, nodes); err != nil {
		return err
	}
	contenders := []struct {
		name string
		run  func(*kubetest.Box, string) error
	}{{"premix", b.packed}, {"pods", b.podEach}}
	wall, cpu := make(map[string][]float64), make(map[string][]float64)
	for range min(b.reps, 3) {
		for _, c := range contenders {
			before, err := controlPlane(box)
			if err != nil {
				return err
			}
			started := time.Now()
			if err := c.run(box, dir); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			wall[c.name] = append(wall[c.name], time.Since(started).Seconds())
			after, err := controlPlane(box)
			if err != nil {
				return err
			}
			cpu[c.name] = append(cpu[c.name], (after - before).Seconds())
			if err := b.clear(box); err != nil {
				return err
			}
		}
	}
	name := fmt.Sprintf("kubernetes/%d", b.pods)
	rows := [][]string{{"", "time", "a second", "CPU time of the control plane"}}
	peerWall, peerCPU := quantile.Median(wall["pods"]), quantile.Median(cpu["pods"])
	for _, c := range contenders {
		w, p := quantile.Median(wall[c.name]), quantile.Median(cpu[c.name])
		f := figures.Figure{Name: name + "/" + c.name, Value: w, Unit: "s"}
		g := figures.Figure{Name: name + "/" + c.name + "/control-plane-cpu", Value: p, Unit: "s"}
		if c.name == "premix" {
			f.Peer, f.Ratio = name+"/pods", figures.Lower(w, peerWall)
			g.Peer, g.Ratio = name+"/pods/control-plane-cpu", figures.Lower(p, peerCPU)
		}
		for _, f := range []figures.Figure{f, g} {
			if err := results.Add(f); err != nil {
				return err
			}
		}
		rows = append(rows, []string{c.name, figures.Seconds(w), fmt.Sprintf("%.0f", float64(b.pods)/w), figures.Seconds(p)})
	}
	results.Table(fmt.Sprintf("%s: %d tasks `true`, Kubernetes %s, 4 nodes of a simulated kubelet; premix is %s faster, with %s less CPU time of the control plane; medians of %d",
		name, b.pods, kubetest.Version, figures.Times(figures.Lower(quantile.Median(wall["premix"]), peerWall)),
		figures.Times(figures.Lower(quantile.Median(cpu["premix"]), peerCPU)), len(wall["pods"])), rows)
	return nil
}

// controlPlane returns the CPU time of all programs of a box.
func controlPlane(box *kubetest.Box) (sum time.Duration, err error) {
	for _, p := range []string{kubetest.Etcd, kubetest.APIServer, kubetest.Controller, kubetest.Scheduler} {
		d, err := box.CPU(p)
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// packed runs the tasks through premix.
func (b *benchmark) packed(box *kubetest.Box, dir string) error {
	premix, err := filepath.Abs(b.premix)
	if err != nil {
		return err
	}
	b.runs++
	cmd := b.command(premix, "task", "run", "--quiet", "--out", filepath.Join(dir, "out-"+strconv.Itoa(b.runs)), "--engine", "kubernetes",
		"--engine-opt", "kubeconfig="+box.Admin(), "--engine-opt", "image=none", "--engine-opt", "premix="+premix,
		"--engine-opt", "volume="+dir, "--engine-opt", "jobs="+strconv.Itoa(b.cores), "-")
	if err := b.input(cmd, b.pods, func(int) string { return "true" }); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, &out)
	}
	return nil
}

// podEach runs the tasks as one Job with a pod for each. The nodes limit how many pods
// run at once.
func (b *benchmark) podEach(box *kubetest.Box, _ string) error {
	n, mode, no := int32(b.pods), batchv1.IndexedCompletion, false
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "each"}, Spec: batchv1.JobSpec{
		Completions: &n, Parallelism: &n, CompletionMode: &mode,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "each", Image: "none", Command: []string{"true"},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}}}}}},
	}}
	if err := box.Client.Batch.Post().Namespace("default").Resource("jobs").Body(job).Do(b.ctx).Error(); err != nil {
		return err
	}
	return b.wait(func() (bool, error) {
		err := box.Client.Batch.Get().Namespace("default").Resource("jobs").Name("each").Do(b.ctx).Into(job)
		for _, c := range job.Status.Conditions {
			if c.Status == corev1.ConditionTrue && c.Type == batchv1.JobComplete {
				return true, err
			}
			if c.Status == corev1.ConditionTrue && c.Type == batchv1.JobFailed {
				return false, fmt.Errorf("the Job failed: %s", c.Message)
			}
		}
		return false, err
	})
}

// clear removes all Jobs and waits until their pods are gone.
func (b *benchmark) clear(box *kubetest.Box) error {
	jobs := &batchv1.JobList{}
	if err := box.Client.List(b.ctx, box.Client.Batch, "default", "jobs", metav1.ListOptions{}, jobs); err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	for _, j := range jobs.Items {
		if err := box.Client.Delete(b.ctx, box.Client.Batch, "default", "jobs", j.Name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			return err
		}
	}
	return b.wait(func() (bool, error) {
		pods := &corev1.PodList{}
		err := box.Client.List(b.ctx, box.Client.Core, "default", "pods", metav1.ListOptions{Limit: 1}, pods)
		return len(pods.Items) == 0, err
	})
}

// wait calls done twice a second until it returns true.
func (b *benchmark) wait(done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Minute)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
