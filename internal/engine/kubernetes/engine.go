package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/clientcmd"

	"premix/internal/engine/pilot"
	"premix/internal/kit/exit"
	"premix/internal/testkit/kubeapi"
)

// Name is what --engine calls this engine.
const Name = "kubernetes"

// patience is how long one request may take.
const patience = 30 * time.Second

// eventInterval is how long the events of a Job without pods are not asked for again.
const eventInterval = 15 * time.Second

// Engine is the engine of one directory, for the life of a process. It is for one
// goroutine.
type Engine struct {
	o         Options
	client    *kubeapi.Client
	namespace string
	directory string             // value of labelDirectory; "": not known yet
	view      *view              // nil: not watched yet
	troubles  map[string]trouble // of Jobs without pods
}

// trouble is the controller's reason why it creates no pod.
type trouble struct {
	asked time.Time
	text  string
}

// New makes the engine. It does not connect.
func New(o Options) (*Engine, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, exit.Errorf(exit.Usage, configHint, "%w", err)
	}
	if o.Namespace != "" {
		namespace = o.Namespace
	}
	rc, err := config.ClientConfig()
	if err != nil {
		return nil, exit.Errorf(exit.Usage, configHint, "%w", err)
	}
	rc.UserAgent = "premix"
	client, err := kubeapi.New(rc)
	if err != nil {
		return nil, exit.Errorf(exit.Usage, configHint, "%w", err)
	}
	return &Engine{o: o, client: client, namespace: namespace, troubles: make(map[string]trouble)}, nil
}

const configHint = "name a kubeconfig with --engine-opt kubeconfig=FILE or $KUBECONFIG, or run premix in the cluster"

// Name returns the name of the engine for --engine.
func (e *Engine) Name() string { return Name }

// jobID returns the id of an engine job.
func jobID(namespace, name string, index int) string {
	return namespace + "/" + name + "/" + strconv.Itoa(index)
}

// parseID parses an id made by jobID.
func parseID(id string) (namespace, name string, index int, err error) {
	parts := strings.Split(id, "/")
	if len(parts) == 3 {
		if index, err = strconv.Atoi(parts[2]); err == nil {
			return parts[0], parts[1], index, nil
		}
	}
	return "", "", 0, fmt.Errorf("%q is not a job of kubernetes", id)
}

func (e *Engine) ids(w *pilot.Wave) []string {
	list := make([]string, len(w.Shares))
	for i := range list {
		list[i] = jobID(e.namespace, jobName(w), i)
	}
	return list
}

// check refuses a directory that no pod would have.
func (e *Engine) check(dir string) error {
	if e.covered(dir) {
		return nil
	}
	return &pilot.RefusedError{Engine: Name, Reason: "no volume of the pods has " + dir, Final: true,
		HintText: "name the claim and the path at which it is mounted here: --engine-opt volume=CLAIM:/PATH"}
}

// Reach asks the API server for a Job. Any answer is a success, except an internal error and
// "too many requests".
func (e *Engine) Reach(ctx context.Context, dir string) error {
	if err := e.check(dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := e.client.Batch.Get().Namespace(e.namespace).Resource("jobs").Param("limit", "1").MaxRetries(0).Do(ctx).Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err) {
		return nil
	}
	return err
}

// Submit makes the Job of a wave.
func (e *Engine) Submit(ctx context.Context, w *pilot.Wave) ([]string, error) {
	if err := e.check(w.Dir); err != nil {
		return nil, err
	}
	e.directory = directoryLabel(w.Dir)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := e.client.Batch.Post().Namespace(e.namespace).Resource("jobs").Body(e.job(w)).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) { // an existing Job with this token is the same one
		return nil, refused(err)
	}
	return e.ids(w), nil
}

// refused returns a *pilot.RefusedError where the same request would fail again.
func refused(err error) error {
	hint, final := "", true
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		// A quota may have room later.
		hint, final = "the account needs the rights that premix help kubernetes lists, and room in the quota of the namespace", false
	case apierrors.IsNotFound(err):
		hint = "make the namespace, or name another with --engine-opt namespace=NAME"
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		hint = "see --engine-opt, above all template=FILE; Kubernetes 1.29 or later is needed"
	default:
		return err
	}
	return &pilot.RefusedError{Engine: Name, Reason: err.Error(), HintText: hint, Final: final}
}

// Find returns the ids of a wave if it has its Job.
func (e *Engine) Find(ctx context.Context, w *pilot.Wave) ([]string, error) {
	job, err := e.get(ctx, e.namespace, jobName(w))
	if err != nil || job == nil {
		return nil, err
	}
	return e.ids(w), nil
}

// get gets a Job from the API server itself, nil if the Job does not exist.
func (e *Engine) get(ctx context.Context, namespace, name string) (*batchv1.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	job := &batchv1.Job{}
	err := e.client.Batch.Get().Namespace(namespace).Resource("jobs").Name(name).Do(ctx).Into(job)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return job, err
}

// Status returns the status of jobs, from the view.
func (e *Engine) Status(ctx context.Context, ids []string) (map[string]pilot.Status, error) {
	if err := e.watch(ctx, ids); err != nil {
		return nil, err
	}
	jobs := make(map[string]*known)
	list := make(map[string]pilot.Status, len(ids))
	now := time.Now()
	for _, id := range ids {
		namespace, name, index, err := parseID(id)
		if err != nil {
			return nil, err
		}
		k := jobs[namespace+"/"+name]
		if k == nil {
			if k, err = e.look(ctx, namespace, name); err != nil {
				return nil, err
			}
			jobs[namespace+"/"+name] = k
		}
		switch {
		case k.late:
		case k.job == nil:
			list[id] = pilot.Status{Phase: pilot.Gone, Word: "NotFound", Reason: "its Job was deleted", Blameless: true}
		default:
			st := statusOf(k.job, k.pods[index], index, now)
			if st.Word == "NoPod" {
				if text := e.trouble(ctx, k.job); text != "" {
					st.Reason = text
				}
			}
			list[id] = st
		}
	}
	return list, nil
}

// known is the known state of a Job.
type known struct {
	job  *batchv1.Job // nil: it does not exist
	pods map[int][]*corev1.Pod
	late bool // there is one, and the view does not have it yet
}

// look looks for a Job in the view, and if it is not there asks for it.
func (e *Engine) look(ctx context.Context, namespace, name string) (k *known, err error) {
	k = &known{}
	viewed := e.view != nil && namespace == e.namespace
	if viewed {
		if k.job, k.pods, err = e.view.job(namespace, name); err != nil || k.job != nil {
			return k, err
		}
	}
	if k.job, err = e.get(ctx, namespace, name); err != nil || k.job == nil {
		return k, err
	}
	if viewed {
		return &known{late: true}, nil
	}
	k.pods, err = e.pods(ctx, namespace, name)
	return k, err
}

// watch opens the view, if it is not open and it is known of which directory, and waits
// until it can be asked.
func (e *Engine) watch(ctx context.Context, ids []string) error {
	// An engine that continues after another one has submitted learns from the Jobs which
	// directory they belong to.
	for _, id := range ids {
		if e.directory != "" {
			break
		}
		namespace, name, _, err := parseID(id)
		if err != nil {
			return err
		}
		job, err := e.get(ctx, namespace, name)
		if err != nil {
			return err
		}
		if job != nil {
			e.directory = job.Labels[labelDirectory]
		}
	}
	if e.directory == "" {
		return nil
	}
	if e.view == nil {
		// It lives as long as the process, not as this call.
		e.view = openView(context.WithoutCancel(ctx), e.client, e.namespace, labelDirectory+"="+e.directory)
	}
	return e.view.ready(ctx)
}

// trouble returns the controller's reason why a Job has no pods, "" without one.
// It is only used in messages.
func (e *Engine) trouble(ctx context.Context, job *batchv1.Job) string {
	t := e.troubles[job.Name]
	if time.Since(t.asked) < eventInterval || time.Since(job.CreationTimestamp.Time) < eventInterval/5 {
		return t.text
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	events := &corev1.EventList{}
	err := e.client.List(ctx, e.client.Core, job.Namespace, "events", metav1.ListOptions{
		FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("involvedObject.uid", string(job.UID)), fields.OneTermEqualSelector("type", corev1.EventTypeWarning)).String()}, events)
	t = trouble{asked: time.Now()}
	if n := len(events.Items); err == nil && n > 0 {
		t.text = "the Job controller says: " + events.Items[n-1].Message
	}
	e.troubles[job.Name] = t
	return t.text
}

// Cancel deletes the Jobs that have no other engine job left, and only the pods of others.
func (e *Engine) Cancel(ctx context.Context, ids []string) error {
	type doomed struct {
		namespace, name string
		indexes         []int
	}
	var jobs []*doomed
	for _, id := range ids {
		namespace, name, index, err := parseID(id)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(jobs, func(d *doomed) bool { return d.namespace == namespace && d.name == name })
		if at < 0 {
			at = len(jobs)
			jobs = append(jobs, &doomed{namespace: namespace, name: name})
		}
		jobs[at].indexes = append(jobs[at].indexes, index)
	}
	for _, d := range jobs {
		if err := e.cancel(ctx, d.namespace, d.name, d.indexes); err != nil {
			return err
		}
	}
	return nil
}

// cancel ends some indexes of a Job.
func (e *Engine) cancel(ctx context.Context, namespace, name string, indexes []int) error {
	job, err := e.get(ctx, namespace, name)
	if err != nil || job == nil {
		return err
	}
	pods, err := e.pods(ctx, namespace, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	others := false
	for i := range int(*job.Spec.Completions) {
		others = others || !slices.Contains(indexes, i) && statusOf(job, pods[i], i, time.Now()).Phase != pilot.Ended
	}
	if !others {
		err := e.client.Delete(ctx, e.client.Batch, namespace, "jobs", name, metav1.DeleteOptions{PropagationPolicy: pointer(metav1.DeletePropagationForeground)})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	// An index whose pod is deleted fails. One that has none yet gets one, whose worker
	// finds in the ledger that it is not wanted.
	for _, i := range indexes {
		for _, p := range pods[i] {
			if terminal(p) {
				continue
			}
			err := e.client.Delete(ctx, e.client.Core, namespace, "pods", p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	return nil
}

// pods returns the pods of a Job, by index, from the API server itself.
func (e *Engine) pods(ctx context.Context, namespace, name string) (map[int][]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list := &corev1.PodList{}
	if err := e.client.List(ctx, e.client.Core, namespace, "pods", metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name}, list); err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return byIndex(pods), nil
}
