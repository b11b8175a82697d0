// Package kubernetes is the engine that runs packed tasks on a Kubernetes cluster: it is
// a pack.Engine.
//
// Words:
//
//   - Job: an object of batch/v1. Each wave has one, with one index for each
//     engine job, so that a wave is one request however many engine jobs it has.
//   - index: the place of an engine job in its wave. The id of an engine job is
//     NAMESPACE/JOB/INDEX.
//   - pod: one execution of an index. A pod runs one container with premix, the worker.
//   - volume: a claim or a directory of the nodes that is mounted into every pod at the
//     path that it has on the machine of the dispatcher. The task directory, the data and the
//     files that tasks write are in volumes.
//   - view: the state of the Jobs and pods of one task directory on the API server. A watch
//     of each kind keeps it up to date, so that nothing is polled.
//
// # Retries
//
// Kubernetes replaces a pod that was disrupted (evicted, preempted, drained, its node
// removed): premix did not cause this, and the worker continues with the unfinished tasks of
// its share (podFailurePolicy: Ignore on DisruptionTarget). Every other failure of a pod,
// out of memory for instance, fails the index at once (FailIndex), and the dispatcher
// decides about the share, as it knows which of its tasks are done. Indexes
// fail by themselves (backoffLimitPerIndex), never the Job as a whole.
//
// A pod is not replaced before it has surely ended (podReplacementPolicy: Failed). If a node
// is lost, its end is never reported: the pod stays terminating until an operator removes the
// node. Such an index is reported as ended when the time for its pod's end has long passed:
// package pilot gives the share to no other worker before the lock of the worker is
// free, and a worker that comes late finds that it was closed.
//
// # Remaining objects
//
// A Job that has ended is removed by Kubernetes after [keep] (ttlSecondsAfterFinished),
// and its pods with it; until then kubectl shows how they ended. The last output of a worker
// is in the status of its pod.
//
// # Client
//
// client-go is used without its clientset, which registers every group of the API when the
// program starts. Its REST client with a scheme of two groups has no measurable cost at
// the start, and takes 10 MB of the binary in place of 40.
//
// # Rights
//
// In its namespace: create, get, list, watch and delete Jobs; list, watch and delete
// pods; list events. Pods have no token of a service account: workers do not talk to
// the API server. dist/kubernetes has the objects that grant this.
package kubernetes
