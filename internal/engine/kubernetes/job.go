package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"premix/internal/engine/pilot"
)

// Labels of Jobs and pods.
const (
	labelName      = "app.kubernetes.io/name"
	labelManaged   = "app.kubernetes.io/managed-by"
	labelDirectory = "premix/directory" // the task directory, by a digest
	labelToken     = "premix/token"     // of the wave
)

// annotationDirectory is the task directory in full.
const annotationDirectory = "premix/directory"

// keep is how long Jobs stay that have ended.
const keep = time.Hour

// grace is how long a worker may take to end in order: its tasks have
// [local.Grace], and their records are made durable.
const grace = 30 * time.Second

// container is the name of the container, so that a template may name it.
const container = "premix"

// indexVariable is the variable in which the controller of Jobs gives a pod its index.
const indexVariable = "JOB_COMPLETION_INDEX"

// directoryLabel returns a digest of a directory for a label, whose letters and length are
// limited.
func directoryLabel(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

// jobName returns the name of a wave's Job.
func jobName(w *pilot.Wave) string { return "premix-" + strings.ToLower(w.Token) }

// job makes the Job of a wave.
func (e *Engine) job(w *pilot.Wave) *batchv1.Job {
	template := corev1.PodTemplateSpec{}
	if e.o.Template != nil {
		template = *e.o.Template.DeepCopy()
	}
	own := map[string]string{labelName: "premix", labelManaged: "premix", labelDirectory: directoryLabel(w.Dir), labelToken: strings.ToLower(w.Token)}
	if template.Labels == nil {
		template.Labels = make(map[string]string)
	}
	maps.Copy(template.Labels, own)
	spec := &template.Spec
	if len(spec.Containers) == 0 {
		spec.Containers = make([]corev1.Container, 1)
	}
	spec.RestartPolicy = corev1.RestartPolicyNever // the Job decides
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = pointer(int64(grace / time.Second))
	}
	if e.o.Account != "" {
		spec.ServiceAccountName = e.o.Account
	} else if spec.AutomountServiceAccountToken == nil {
		spec.AutomountServiceAccountToken = pointer(false)
	}
	if e.o.Priority != "" {
		spec.PriorityClassName = e.o.Priority
	}
	for _, name := range e.o.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if spec.EnableServiceLinks == nil {
		// A variable for each service of the namespace would be in every task's environment.
		spec.EnableServiceLinks = pointer(false)
	}
	c := &spec.Containers[0]
	c.Name = container
	if e.o.Image != "" {
		c.Image = e.o.Image
	}
	if e.o.Pull != "" {
		c.ImagePullPolicy = corev1.PullPolicy(e.o.Pull)
	}
	cores, memory := request(c, &w.Shares[0])
	if len(e.o.Resources) > 0 {
		if c.Resources.Limits == nil {
			c.Resources.Limits = make(corev1.ResourceList)
		}
		// Kubernetes wants both to be the same for other resources than cores and memory.
		maps.Copy(c.Resources.Requests, e.o.Resources)
		maps.Copy(c.Resources.Limits, e.o.Resources)
	}
	c.Command = append([]string{e.premix()}, w.Command(e.Name(), "$("+indexVariable+")")...)
	c.Command = append(c.Command, "--jobs", strconv.Itoa(cores))
	if memory > 0 {
		c.Command = append(c.Command, "--memory", fmt.Sprintf("%dK", max(1, memory>>10))) // a unit must be given
	}
	// The controller lists it behind the variables of a template, which may refer to it.
	c.Env = append([]corev1.EnvVar{{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + batchv1.JobCompletionIndexAnnotation + "']"}}}}, c.Env...)
	c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	for i, v := range e.o.Volumes {
		name := fmt.Sprintf("premix-%d", i)
		source := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.Path, Type: pointer(corev1.HostPathDirectory)}}
		if v.Claim != "" {
			source = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Claim}}
		}
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: v.Path})
	}
	n := int32(len(w.Shares))
	labels, annotations := maps.Clone(e.o.Labels), maps.Clone(e.o.Annotations)
	if labels == nil {
		labels = make(map[string]string)
	}
	if annotations == nil {
		annotations = make(map[string]string)
	}
	maps.Copy(labels, own)
	annotations[annotationDirectory] = w.Dir
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: jobName(w), Namespace: e.namespace, Labels: labels, Annotations: annotations},
		Spec: batchv1.JobSpec{
			Completions: &n, Parallelism: &n, CompletionMode: pointer(batchv1.IndexedCompletion),
			BackoffLimitPerIndex: pointer(int32(0)), PodReplacementPolicy: pointer(batchv1.Failed),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
				{Action: batchv1.PodFailurePolicyActionFailIndex, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{0}}},
			}},
			TTLSecondsAfterFinished: pointer(int32(keep / time.Second)),
			Template:                template,
		},
	}
}

// request sets the resource requests for the shares of a wave, which all need the same. It
// keeps the requests of the template. It returns the cores and the memory that the worker may
// use; 0: all that it finds.
func request(c *corev1.Container, share *pilot.Share) (cores int, memory int64) {
	r := &c.Resources
	if r.Requests == nil {
		r.Requests = make(corev1.ResourceList)
	}
	if _, ok := r.Requests[corev1.ResourceCPU]; !ok {
		r.Requests[corev1.ResourceCPU] = *resource.NewQuantity(int64(max(1, share.Cores)), resource.DecimalSI)
	}
	_, requested := r.Requests[corev1.ResourceMemory]
	_, limited := r.Limits[corev1.ResourceMemory]
	if share.Memory > 0 && !requested && !limited {
		if r.Limits == nil {
			r.Limits = make(corev1.ResourceList)
		}
		r.Requests[corev1.ResourceMemory] = *resource.NewQuantity(share.Memory, resource.BinarySI)
		r.Limits[corev1.ResourceMemory] = r.Requests[corev1.ResourceMemory]
	}
	cpu := r.Requests[corev1.ResourceCPU]
	have := r.Requests[corev1.ResourceMemory]
	if limit, ok := r.Limits[corev1.ResourceMemory]; ok {
		have = limit
	}
	return int(max(1, cpu.MilliValue()/1000)), have.Value()
}

// premix returns the program in the image.
func (e *Engine) premix() string {
	if e.o.Premix == "" {
		return "premix"
	}
	return e.o.Premix
}

// covered reports whether a directory is in a volume of the pods.
func (e *Engine) covered(dir string) bool {
	var at []string
	for _, v := range e.o.Volumes {
		at = append(at, v.Path)
	}
	if e.o.Template != nil {
		for _, m := range e.o.Template.Spec.Containers[0].VolumeMounts {
			at = append(at, m.MountPath)
		}
	}
	return slices.ContainsFunc(at, func(p string) bool {
		rel, err := filepath.Rel(p, dir)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	})
}

func pointer[T any](v T) *T { return &v }
