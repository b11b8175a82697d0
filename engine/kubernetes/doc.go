// Package kubernetes is the engine that runs packed tasks on a Kubernetes cluster: it is
// a pack.Engine.
//
// Words:
//
//   - Job: an object of batch/v1. There is one for each wave, with one index for each
//     engine job, so that a wave is one request however many engine jobs it has.
//   - index: the place of an engine job in its wave. The id of an engine job is
//     NAMESPACE/JOB/INDEX.
//   - pod: one attempt at an index. A pod runs one container with premix, the worker.
//   - volume: a claim or a directory of the nodes that is mounted into every pod at the
//     path that it has on the machine of the dispatcher. Task directory, data and what
//     tasks write are in volumes.
//   - view: what the API server says about the Jobs and pods of one task directory,
//     kept up to date by a watch of each kind. Nothing is asked for again and again.
//
// # Who tries again
//
// Kubernetes replaces a pod that was disrupted (evicted, preempted, drained, its node
// removed): premix had no part in that, and the worker goes on with what its share
// lacks (podFailurePolicy: Ignore on DisruptionTarget). Every other failure of a pod,
// out of memory for instance, fails the index at once (FailIndex), and the dispatcher
// decides what becomes of the share, as it knows which of its tasks are done. Indexes
// fail by themselves (backoffLimitPerIndex), never the Job as a whole.
//
// A pod is not replaced before it has surely ended (podReplacementPolicy: Failed). On a
// node that was lost nobody says so: its pod is terminating for ever, until somebody
// removes the node. Such an index is reported as ended when its pod should long have
// been: package pack lets nobody else have the share before the lock of the worker is
// free, and whoever is late finds that it was closed.
//
// # What is left
//
// A Job that has ended is removed by Kubernetes after [keep] (ttlSecondsAfterFinished),
// and its pods with it; until then kubectl shows what became of them. The end of what a
// worker printed is in the status of its pod.
//
// # Rights
//
// In its namespace: create, get, list, watch and delete Jobs; list, watch and delete
// pods; list events. Pods have no token of a service account: workers do not talk to
// the API server. dist/kubernetes has the objects that grant this.
package kubernetes
