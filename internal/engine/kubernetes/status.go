package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"premix/internal/engine/pilot"
	"premix/internal/kit/hostlist"
)

// overdue is how much longer than its grace a pod may take to end before its node
// counts as lost.
const overdue = time.Minute

// statusOf returns the status of one index of a Job, by the Job and the pods of that index.
func statusOf(job *batchv1.Job, pods []*corev1.Pod, index int, now time.Time) pilot.Status {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	var last *corev1.Pod // the newest that has ended
	for _, p := range pods {
		if !terminal(p) {
			return alive(p, now)
		}
		if last == nil {
			last = p
		}
	}
	switch {
	case inRanges(job.Status.CompletedIndexes, index):
		return finished("Complete", "", last)
	case job.Status.FailedIndexes != nil && inRanges(*job.Status.FailedIndexes, index):
		return finished("Failed", failure(last), last)
	}
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed || c.Type == batchv1.JobFailureTarget) {
			return finished(string(c.Type), strings.TrimSpace(c.Reason+" "+c.Message), last)
		}
	}
	switch {
	case job.DeletionTimestamp != nil:
		st := finished("Deleted", "its Job was deleted", last)
		st.Blameless = true
		return st
	case last != nil && last.Status.Phase == corev1.PodSucceeded:
		return finished("Succeeded", "", last) // the Job will report it
	case last != nil && !disrupted(last):
		return finished("Failed", failure(last), last) // the Job will report it, too; see podFailurePolicy
	case last != nil:
		return pilot.Status{Phase: pilot.Pending, Word: "Disrupted", Reason: failure(last) + "; it is to be started again"}
	case job.Spec.Suspend != nil && *job.Spec.Suspend:
		return pilot.Status{Phase: pilot.Pending, Word: "Suspended", Reason: "its Job is suspended"}
	}
	return pilot.Status{Phase: pilot.Pending, Word: "NoPod", Reason: "there is no pod of it yet"}
}

func finished(word, reason string, p *corev1.Pod) pilot.Status {
	st := pilot.Status{Phase: pilot.Ended, Word: word, Reason: reason}
	if p != nil {
		st.Node, st.Blameless = p.Spec.NodeName, disrupted(p) || crowded(p)
	}
	return st
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// disrupted reports whether Kubernetes itself ended a pod, which it then replaces.
func disrupted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

// crowded reports whether a node had no room for a pod that the scheduler had put there
// (OutOfcpu, OutOfpods and so on): the node counts a pod that is ending for longer than the
// scheduler does.
func crowded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && strings.HasPrefix(p.Status.Reason, "OutOf") && len(p.Status.ContainerStatuses) == 0
}

// alive returns the status of a pod that has not ended.
func alive(p *corev1.Pod, now time.Time) pilot.Status {
	st := pilot.Status{Phase: pilot.Pending, Word: string(p.Status.Phase), Node: p.Spec.NodeName}
	if p.DeletionTimestamp != nil {
		// The time of deletion has the grace in it.
		if now.After(p.DeletionTimestamp.Add(overdue)) {
			st.Phase, st.Word, st.Blameless = pilot.Ended, "NodeLost", true
			st.Reason = fmt.Sprintf("its node %s does not answer", p.Spec.NodeName)
			return st
		}
		st.Word, st.Reason = "Terminating", "it is being ended"
		if p.Spec.NodeName != "" {
			st.Phase = pilot.Running
		}
		return st
	}
	if p.Status.Phase == corev1.PodRunning {
		st.Phase = pilot.Running
		return st
	}
	if p.Spec.NodeName == "" {
		st.Word, st.Reason = "Pending", "the scheduler has not seen it yet"
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				st.Word, st.Reason = c.Reason, "the scheduler says: "+c.Message
			}
		}
		for _, g := range p.Spec.SchedulingGates {
			st.Word, st.Reason = corev1.PodReasonSchedulingGated, "the scheduler waits for the gate "+g.Name
		}
		return st
	}
	st.Reason = "it is being started on " + p.Spec.NodeName
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			st.Word = w.Reason
			st.Reason = strings.TrimSuffix(fmt.Sprintf("%s says: %s: %s", p.Spec.NodeName, w.Reason, w.Message), ": ")
			break
		}
	}
	return st
}

// failure returns how a pod ended, in words.
func failure(p *corev1.Pod) string {
	if p == nil {
		return "its pod is gone"
	}
	if p.Status.Reason != "" { // Evicted, for instance
		return strings.TrimSuffix(p.Status.Reason+": "+p.Status.Message, ": ")
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		t := c.State.Terminated
		if t == nil || t.ExitCode == 0 {
			continue
		}
		text := fmt.Sprintf("it ended with status %d", t.ExitCode)
		switch {
		case t.Reason == "OOMKilled":
			text = "it ran out of memory (OOMKilled)"
		case t.Reason != "" && t.Reason != "Error":
			text += " (" + t.Reason + ")"
		}
		// The last line is the most useful.
		if lines := strings.Split(strings.TrimSpace(t.Message), "\n"); lines[len(lines)-1] != "" {
			text += ": " + lines[len(lines)-1]
		}
		return text
	}
	return "its pod failed"
}

// inRanges reports whether an index is in a list in a Job's status, as in
// 1,3-5.
func inRanges(list string, index int) bool {
	for r := range strings.SplitSeq(list, ",") {
		if a, b, _, ok := hostlist.Range(r); ok && index >= a && index <= b {
			return true
		}
	}
	return false
}
