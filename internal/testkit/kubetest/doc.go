// Package kubetest runs a private Kubernetes for a test or benchmark: a real
// kube-apiserver, kube-controller-manager, kube-scheduler and etcd, which listen on
// loopback and keep their data in one directory. It installs nothing, and any number of
// them can run at once.
//
// Words:
//
//   - box: the private cluster.
//   - program: one of the processes. Each can be killed and started again.
//   - standin kubelet: a replacement for the kubelets of any number of nodes; see
//     [Kubelet]. It is not a part of Kubernetes.
//   - node: this machine with a real kubelet and a real container runtime; see [Node].
//
// scripts/setup.sh builds the programs of Kubernetes. A box needs them, see [Missing].
//
// Authorization is RBAC, as in real clusters. The box itself uses a token of
// system:masters. The rate limits of controller and scheduler are far above their
// defaults, so that a benchmark measures their work.
//
// The kernel kills the programs of a box when the process that made it ends.
package kubetest
