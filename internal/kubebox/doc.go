// Package kubebox is a Kubernetes of its own for tests and benchmarks: a real
// kube-apiserver, kube-controller-manager, kube-scheduler and etcd, on the loopback, in
// a directory, for as long as a test runs. Nothing of it is installed, and any number of
// them run side by side.
//
// Words:
//
//   - box: one such cluster.
//   - program: one of the processes. Each can be killed and started again.
//   - standin kubelet: what takes the place of the kubelets of any number of nodes; see
//     [Kubelet]. It is no part of Kubernetes and says so by its name.
//   - node: this machine with a real kubelet, before a real container runtime; see [Node].
//
// The programs of Kubernetes are those that scripts/setup.sh builds; without them there
// is no box, see [Missing].
//
// Authorization is RBAC, as in clusters that people use. The box itself uses a token of
// system:masters. The limits on how fast controller and scheduler may talk to the API
// server are far above their defaults, so that what is measured is their work.
//
// A box dies with the process that made it: its programs are told so by the kernel.
package kubebox
