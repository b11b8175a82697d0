package kubernetes

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"premix/internal/engine/pilot"
)

// now is the time of these tests.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func aPod(phase corev1.PodPhase, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	for _, f := range change {
		f(p)
	}
	return p
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func exited(code int32, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}}}
	}
}

func waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func deleted(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(-ago)} }
}

func made(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{Time: now.Add(-ago)} }
}

func TestStatus(t *testing.T) {
	evicted := condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting")
	for _, c := range []struct {
		name string
		job  func(*batchv1.Job)
		pods []*corev1.Pod
		want pilot.Status
	}{
		{name: "no pod yet", want: pilot.Status{Phase: pilot.Pending, Word: "NoPod", Reason: "there is no pod of it yet"}},
		{name: "suspended", job: func(j *batchv1.Job) { j.Spec.Suspend = pointer(true) },
			want: pilot.Status{Phase: pilot.Pending, Word: "Suspended", Reason: "its Job is suspended"}},
		{name: "not seen by the scheduler", pods: []*corev1.Pod{aPod(corev1.PodPending, "")},
			want: pilot.Status{Phase: pilot.Pending, Word: "Pending", Reason: "the scheduler has not seen it yet"}},
		{name: "no node for it", pods: []*corev1.Pod{aPod(corev1.PodPending, "", condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."))},
			want: pilot.Status{Phase: pilot.Pending, Word: "Unschedulable", Reason: "the scheduler says: 0/3 nodes are available: 3 Insufficient cpu."}},
		{name: "no image", pods: []*corev1.Pod{aPod(corev1.PodPending, "n", waiting("ImagePullBackOff", "Back-off pulling image \"x\""))},
			want: pilot.Status{Phase: pilot.Pending, Word: "ImagePullBackOff", Node: "n", Reason: "n says: ImagePullBackOff: Back-off pulling image \"x\""}},
		{name: "being started", pods: []*corev1.Pod{aPod(corev1.PodPending, "n", waiting("ContainerCreating", ""))},
			want: pilot.Status{Phase: pilot.Pending, Word: "Pending", Node: "n", Reason: "it is being started on n"}},
		{name: "running", pods: []*corev1.Pod{aPod(corev1.PodRunning, "n")},
			want: pilot.Status{Phase: pilot.Running, Word: "Running", Node: "n"}},
		{name: "being ended", pods: []*corev1.Pod{aPod(corev1.PodRunning, "n", deleted(time.Second))},
			want: pilot.Status{Phase: pilot.Running, Word: "Terminating", Node: "n", Reason: "it is being ended"}},
		{name: "on a lost node", pods: []*corev1.Pod{aPod(corev1.PodRunning, "n", deleted(2*overdue))},
			want: pilot.Status{Phase: pilot.Ended, Word: "NodeLost", Node: "n", Reason: "its node n does not answer", Blameless: true}},
		{name: "the pod succeeded, the Job does not know", pods: []*corev1.Pod{aPod(corev1.PodSucceeded, "n")},
			want: pilot.Status{Phase: pilot.Ended, Word: "Succeeded", Node: "n"}},
		{name: "complete", job: func(j *batchv1.Job) { j.Status.CompletedIndexes = "0,2-4" },
			want: pilot.Status{Phase: pilot.Ended, Word: "Complete"}},
		{name: "failed", job: func(j *batchv1.Job) { j.Status.FailedIndexes = pointer("1-3") }, pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", exited(1, "Error", "error: a\nhint: b\n"))},
			want: pilot.Status{Phase: pilot.Ended, Word: "Failed", Node: "n", Reason: "it ended with status 1: hint: b"}},
		{name: "out of memory", pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", exited(137, "OOMKilled", ""))},
			want: pilot.Status{Phase: pilot.Ended, Word: "Failed", Node: "n", Reason: "it ran out of memory (OOMKilled)"}},
		{name: "evicted", pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", evicted, exited(143, "Error", ""))},
			want: pilot.Status{Phase: pilot.Pending, Word: "Disrupted", Reason: "EvictionByEvictionAPI: Eviction API: evicting; it is to be started again"}},
		{name: "evicted and replaced", pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", evicted, made(time.Minute)), aPod(corev1.PodRunning, "m", made(time.Second))},
			want: pilot.Status{Phase: pilot.Running, Word: "Running", Node: "m"}},
		{name: "evicted by the kubelet", pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message = "Evicted", "The node was low on resource: memory."
		})},
			want: pilot.Status{Phase: pilot.Ended, Word: "Failed", Node: "n", Reason: "Evicted: The node was low on resource: memory."}},
		{name: "no room on the node after all", job: func(j *batchv1.Job) { j.Status.FailedIndexes = pointer("2") }, pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message = "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu"
		})},
			want: pilot.Status{Phase: pilot.Ended, Word: "Failed", Node: "n", Reason: "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu", Blameless: true}},
		{name: "the newest pod counts", job: func(j *batchv1.Job) { j.Status.FailedIndexes = pointer("2") },
			pods: []*corev1.Pod{aPod(corev1.PodFailed, "n", evicted, made(time.Minute)), aPod(corev1.PodFailed, "m", made(time.Second), exited(2, "Error", ""))},
			want: pilot.Status{Phase: pilot.Ended, Word: "Failed", Node: "m", Reason: "it ended with status 2"}},
		{name: "the Job failed", job: func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "DeadlineExceeded", Message: "it was too long"}}
		}, want: pilot.Status{Phase: pilot.Ended, Word: "Failed", Reason: "DeadlineExceeded it was too long"}},
		{name: "deleted", job: func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: now} },
			want: pilot.Status{Phase: pilot.Ended, Word: "Deleted", Reason: "its Job was deleted", Blameless: true}},
		{name: "deleted, and its pod runs", job: func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: now} }, pods: []*corev1.Pod{aPod(corev1.PodRunning, "n")},
			want: pilot.Status{Phase: pilot.Running, Word: "Running", Node: "n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := &batchv1.Job{}
			if c.job != nil {
				c.job(job)
			}
			if got := statusOf(job, c.pods, 2, now); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestInRanges(t *testing.T) {
	for _, c := range []struct {
		list string
		in   []int
		out  []int
	}{
		{"", nil, []int{0, 1}},
		{"0", []int{0}, []int{1, 10}},
		{"1,3-5,7", []int{1, 3, 4, 5, 7}, []int{0, 2, 6, 8}},
	} {
		for _, i := range c.in {
			if !inRanges(c.list, i) {
				t.Errorf("%d is in %q", i, c.list)
			}
		}
		for _, i := range c.out {
			if inRanges(c.list, i) {
				t.Errorf("%d is not in %q", i, c.list)
			}
		}
	}
}
