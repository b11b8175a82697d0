// Package kubeapi is a client of the Kubernetes API server for the few kinds of objects
// that premix uses: the core API (pods, nodes, ...) and batch (jobs).
//
// It is client-go's REST client with a scheme of these two groups. client-go's
// clientset knows all groups and registers all their types at the start. A program that
// is linked with it is 33 MB larger and takes about 10 ms longer to start. This package
// registers nothing before [New].
//
// Verbs are the verbs of client-go:
//
//	job := &batchv1.Job{}
//	err := c.Batch.Get().Namespace("default").Resource("jobs").Name("j").Do(ctx).Into(job)
//
// Errors are the errors of k8s.io/apimachinery/pkg/api/errors.
package kubeapi
