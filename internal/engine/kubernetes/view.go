package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"premix/internal/testkit/kubeapi"
)

// view is the state of the Jobs and pods of a directory on the API server.
type view struct {
	jobs cache.Store // by namespace/name
	pods cache.Indexer

	mu      sync.Mutex
	silent  map[string]error // by resource: why the last request failed
	lacking int              // resources that were not listed yet
	listed  chan struct{}    // closed when none is
}

// byJob is the index of pods by the Job that they belong to.
const byJob = "job"

// openView begins to watch, until ctx is cancelled.
func openView(ctx context.Context, c *kubeapi.Client, namespace, labels string) *view {
	v := &view{
		jobs: cache.NewStore(cache.MetaNamespaceKeyFunc),
		pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byJob: func(o any) ([]string, error) {
			return []string{o.(*corev1.Pod).Labels[batchv1.JobNameLabel]}, nil
		}}),
		silent: make(map[string]error), lacking: 2, listed: make(chan struct{}),
	}
	v.follow(ctx, c, c.Batch, namespace, "jobs", labels, &batchv1.Job{}, func() runtime.Object { return &batchv1.JobList{} }, v.jobs)
	v.follow(ctx, c, c.Core, namespace, "pods", labels, &corev1.Pod{}, func() runtime.Object { return &corev1.PodList{} }, v.pods)
	return v
}

// follow keeps a store up to date.
func (v *view) follow(ctx context.Context, c *kubeapi.Client, group rest.Interface, namespace, resource, labels string, of runtime.Object, list func() runtime.Object, to cache.Store) {
	source := &noting{ListerWatcherWithContext: cache.ToListerWatcherWithContext(c.ListWatch(group, namespace, resource, "", labels, list)), note: func(err error) { v.note(resource, err) }}
	first := &firstReplace{Store: to, done: func() { v.synced() }}
	r := cache.NewReflectorWithOptions(source, of, first, cache.ReflectorOptions{Name: resource})
	go r.RunWithContext(ctx)
}

// note notes how a request has ended.
func (v *view) note(resource string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil || errors.Is(err, context.Canceled) {
		delete(v.silent, resource)
		return
	}
	v.silent[resource] = err
}

func (v *view) synced() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lacking--; v.lacking == 0 {
		close(v.listed)
	}
}

// ready waits until the view has content. It returns an error if it has none in time, or if
// it cannot be kept up to date at the moment.
func (v *view) ready(ctx context.Context) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	var late bool
	select {
	case <-v.listed:
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		late = true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for resource, err := range v.silent {
		return fmt.Errorf("watching %s: %w", resource, err)
	}
	if late {
		return errors.New("the API server does not answer")
	}
	return nil
}

// job returns a Job, nil if the view does not have it, and its pods by index.
func (v *view) job(namespace, name string) (*batchv1.Job, map[int][]*corev1.Pod, error) {
	o, ok, err := v.jobs.GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, nil, err
	}
	list, err := v.pods.ByIndex(byJob, name)
	if err != nil {
		return nil, nil, err
	}
	var pods []*corev1.Pod
	for _, p := range list {
		pods = append(pods, p.(*corev1.Pod))
	}
	return o.(*batchv1.Job), byIndex(pods), nil
}

// byIndex sorts the pods of a Job by their index.
func byIndex(pods []*corev1.Pod) map[int][]*corev1.Pod {
	m := make(map[int][]*corev1.Pod)
	for _, p := range pods {
		if i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation]); err == nil {
			m[i] = append(m[i], p)
		}
	}
	return m
}

// noting passes the result of each request to note.
type noting struct {
	cache.ListerWatcherWithContext
	note func(error)
}

func (n *noting) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	l, err := n.ListerWatcherWithContext.ListWithContext(ctx, o)
	n.note(err)
	return l, err
}

func (n *noting) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := n.ListerWatcherWithContext.WatchWithContext(ctx, o)
	n.note(err)
	return w, err
}

// List and Watch implement cache.ListerWatcher, for callers without a context. No caller
// uses them any more.
func (n *noting) List(o metav1.ListOptions) (runtime.Object, error) {
	return n.ListWithContext(context.Background(), o)
}

func (n *noting) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return n.WatchWithContext(context.Background(), o)
}

// firstReplace calls done when a store has been filled for the first time.
type firstReplace struct {
	cache.Store
	once sync.Once
	done func()
}

func (f *firstReplace) Replace(list []any, version string) error {
	err := f.Store.Replace(list, version)
	f.once.Do(f.done)
	return err
}
