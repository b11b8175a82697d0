// Package kubeapi talks to an API server of Kubernetes about the few kinds of objects
// that premix has to do with: those of the core API (pods, nodes, ...) and of batch
// (jobs).
//
// It is client-go's REST client with a scheme of these two groups. client-go's
// clientset knows every group there is: a program that is linked with it is 33 MB
// larger, and takes about 10 ms longer to start, as all their types are registered
// then. Here nothing is registered before [New].
//
// Verbs are those of client-go:
//
//	job := &batchv1.Job{}
//	err := c.Batch.Get().Namespace("default").Resource("jobs").Name("j").Do(ctx).Into(job)
//
// Errors are those of k8s.io/apimachinery/pkg/api/errors.
package kubeapi
