package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Kubelet is a replacement for the kubelets of some nodes. Like a kubelet it registers
// its nodes, watches the pods that the scheduler assigns to them, runs the command of
// their one container with its environment, reports phases, exit statuses and the end of
// the output, starts the command again according to restartPolicy, and ends it
// gracefully when the pod is deleted.
//
// But there is no container. It ignores the image and runs the command on this machine,
// as this user. A volume must be mounted at its path on this machine. No limit is
// enforced. A pod costs one process and two requests, less than with a real kubelet.
type Kubelet struct {
	box    *Box
	claims map[string]string
	nodes  map[string]bool
	logs   string

	stop   context.CancelFunc
	done   sync.WaitGroup
	starts chan func() // run by one thread, see startCommand
	closed sync.Once

	mu   sync.Mutex
	pods map[types.UID]*pod // all pods so far
}

// Nodes are nodes with the same capacity.
type Nodes struct {
	Names  []string
	Cores  int
	Memory string            // as in 16Gi
	Pods   int               // at a time, for each node; 0: 110, the kubelet's default
	Labels map[string]string // besides the host name
	// Claims are the directories of volumes, by the name of the claim. The mount path of
	// a volume is this directory.
	Claims map[string]string
	// Resources are further ones of each node, such as GPUs.
	Resources map[string]int
}

// pod is a pod of this kubelet.
type pod struct {
	*corev1.Pod
	mu       sync.Mutex
	group    int    // of processes; 0: it has not started
	deleted  bool   // it must end
	reason   string // of the call of Kill, if any
	finished chan struct{}
	over     bool // its end was reported; guarded by the kubelet's mu
}

// StartKubelet registers nodes and runs their pods until the box is closed or Stop is
// called.
func (b *Box) StartKubelet(ctx context.Context, n Nodes) (*Kubelet, error) {
	if n.Pods == 0 {
		n.Pods = 110
	}
	k := &Kubelet{box: b, claims: n.Claims, nodes: make(map[string]bool), logs: filepath.Join(b.Dir, "pods"), pods: make(map[types.UID]*pod), starts: make(chan func())}
	if err := os.MkdirAll(k.logs, 0o777); err != nil {
		return nil, err
	}
	for _, name := range n.Names {
		if err := b.addNode(ctx, name, n); err != nil {
			return nil, err
		}
		k.nodes[name] = true
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	k.stop = stop
	store := &events{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), seen: func(p *corev1.Pod) { k.see(run, p) }}
	r := cache.NewReflectorWithOptions(
		b.Client.ListWatch(b.Client.Core, "", "pods", fields.OneTermNotEqualSelector("spec.nodeName", "").String(), "", func() k8sruntime.Object { return &corev1.PodList{} }),
		&corev1.Pod{}, store, cache.ReflectorOptions{Name: "standin kubelet"})
	k.done.Go(func() { r.RunWithContext(run) })
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the kubelet
		for start := range k.starts {
			start()
		}
	}()
	b.closers = append(b.closers, k.Stop)
	return k, nil
}

// events passes every pod that a reflector delivers to see.
type events struct {
	cache.Store
	seen func(*corev1.Pod)
}

func (e *events) Add(o any) error    { e.seen(o.(*corev1.Pod)); return e.Store.Add(o) }
func (e *events) Update(o any) error { e.seen(o.(*corev1.Pod)); return e.Store.Update(o) }
func (e *events) Replace(list []any, version string) error {
	for _, o := range list {
		e.seen(o.(*corev1.Pod))
	}
	return e.Store.Replace(list, version)
}

// addNode registers a node and marks it as ready.
func (b *Box) addNode(ctx context.Context, name string, n Nodes) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for k, v := range n.Labels {
		node.Labels[k] = v
	}
	if err := b.Client.Core.Post().Resource("nodes").Body(node).Do(ctx).Into(node); err != nil {
		return err
	}
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(n.Cores), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse(n.Memory),
		corev1.ResourcePods:   *resource.NewQuantity(int64(n.Pods), resource.DecimalSI),
	}
	for name, n := range n.Resources {
		node.Status.Capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	node.Status.Allocatable = node.Status.Capacity
	now := metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "StandinKubelet", LastHeartbeatTime: now, LastTransitionTime: now}}
	node.Status.NodeInfo.KubeletVersion = "standin"
	return b.Client.Core.Put().Resource("nodes").Name(name).SubResource("status").Body(node).Do(ctx).Error()
}

// see starts a new pod, and ends a deleted one.
func (k *Kubelet) see(ctx context.Context, p *corev1.Pod) {
	if !k.nodes[p.Spec.NodeName] {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	have := k.pods[p.UID]
	if have == nil {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			// It has ended. If it was deleted, only the object is left to remove.
			if p.DeletionTimestamp != nil {
				k.done.Go(func() { k.forget(ctx, p) })
			}
			return
		}
		have = &pod{Pod: p, finished: make(chan struct{})}
		k.pods[p.UID] = have
		k.done.Go(func() { k.run(ctx, have) })
	}
	if have.over {
		// The watch may be late and show an earlier state: do not start it again.
		if p.DeletionTimestamp != nil {
			k.done.Go(func() { k.forget(ctx, p) })
		}
		return
	}
	if p.DeletionTimestamp != nil {
		grace := int64(30)
		if p.DeletionGracePeriodSeconds != nil {
			grace = *p.DeletionGracePeriodSeconds
		}
		have.end(time.Duration(grace) * time.Second)
	}
}

// end asks a pod to end.
func (p *pod) end(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deleted {
		return
	}
	p.deleted = true
	if p.group == 0 {
		return // it will not start
	}
	_ = syscall.Kill(-p.group, syscall.SIGTERM) // it may have ended
	go func() {
		select {
		case <-p.finished:
		case <-time.After(grace):
			p.kill("")
		}
	}()
}

// kill kills the processes of a pod at once.
func (p *pod) kill(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if reason != "" {
		p.reason = reason
	}
	if p.group != 0 {
		_ = syscall.Kill(-p.group, syscall.SIGKILL) // it may have ended
	}
}

// Kill kills the processes of a running pod, and makes the kubelet report the reason, for
// example OOMKilled. Kill reports whether the pod was running.
func (k *Kubelet) Kill(name, reason string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.Name != name {
			continue
		}
		p.mu.Lock()
		runs := p.group != 0
		p.mu.Unlock()
		if runs {
			p.kill(reason)
			return true
		}
	}
	return false
}

// Running returns the names of the running pods.
func (k *Kubelet) Running() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []string
	for _, p := range k.pods {
		p.mu.Lock()
		if p.group != 0 {
			list = append(list, p.Name)
		}
		p.mu.Unlock()
	}
	return list
}

// Stop kills all pods and reports nothing, as in a power failure.
func (k *Kubelet) Stop() {
	k.stop()
	k.mu.Lock()
	for _, p := range k.pods {
		p.mu.Lock()
		p.deleted = true // a pod that has not started will not start
		p.mu.Unlock()
		p.kill("")
	}
	k.mu.Unlock()
	k.done.Wait()
	k.closed.Do(func() { close(k.starts) })
}

// run runs a pod to its end and reports it.
func (k *Kubelet) run(ctx context.Context, p *pod) {
	defer close(p.finished)
	started := metav1.Now()
	running := &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, ContainerStatuses: []corev1.ContainerStatus{{
		Name: p.Spec.Containers[0].Name, Image: p.Spec.Containers[0].Image, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
	}}}
	var last *corev1.ContainerStateTerminated
	for restarts := int32(0); ; restarts++ {
		running.ContainerStatuses[0].RestartCount = restarts
		cmd, err := k.startCommand(p)
		if err == nil {
			// Like a real kubelet, report the status after the start.
			k.report(ctx, p, running)
		}
		last = k.wait(p, cmd, err)
		last.StartedAt = started
		policy := p.Spec.RestartPolicy
		p.mu.Lock()
		over := p.deleted || policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && last.ExitCode == 0
		p.mu.Unlock()
		if over || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if ctx.Err() != nil {
		return // the node is lost, and reports nothing
	}
	finished := running.DeepCopy()
	finished.Phase = corev1.PodSucceeded
	if last.ExitCode != 0 {
		finished.Phase = corev1.PodFailed
	}
	finished.ContainerStatuses[0].Ready = false
	finished.ContainerStatuses[0].State = corev1.ContainerState{Terminated: last}
	k.report(ctx, p, finished)
	k.mu.Lock()
	p.over = true
	p.mu.Lock()
	deleted := p.deleted
	p.mu.Unlock()
	k.mu.Unlock()
	if deleted {
		k.forget(ctx, p.Pod)
	}
}

// startCommand starts the container's command.
func (k *Kubelet) startCommand(p *pod) (*exec.Cmd, error) {
	c := &p.Spec.Containers[0]
	if err := k.volumes(p); err != nil {
		return nil, err
	}
	env := map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/", "HOSTNAME": p.Name}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom == nil {
			continue
		}
		if e.ValueFrom.FieldRef == nil {
			return nil, fmt.Errorf("the standin kubelet knows no variable from a source other than a field")
		}
		path := e.ValueFrom.FieldRef.FieldPath
		switch {
		case path == "metadata.name":
			env[e.Name] = p.Name
		case path == "metadata.namespace":
			env[e.Name] = p.Namespace
		case path == "spec.nodeName":
			env[e.Name] = p.Spec.NodeName
		case strings.HasPrefix(path, "metadata.annotations['"):
			env[e.Name] = p.Annotations[strings.TrimSuffix(strings.TrimPrefix(path, "metadata.annotations['"), "']")]
		case strings.HasPrefix(path, "metadata.labels['"):
			env[e.Name] = p.Labels[strings.TrimSuffix(strings.TrimPrefix(path, "metadata.labels['"), "']")]
		default:
			return nil, fmt.Errorf("the standin kubelet does not know the field %s", path)
		}
	}
	// $(NAME) is replaced, as in Kubernetes.
	var pairs []string
	for name, value := range env {
		pairs = append(pairs, "$("+name+")", value)
	}
	expand := strings.NewReplacer(pairs...)
	var argv []string
	for _, a := range append(append([]string(nil), c.Command...), c.Args...) {
		argv = append(argv, expand.Replace(a))
	}
	if len(argv) == 0 {
		return nil, errors.New("the standin kubelet runs no image: the container must have a command")
	}
	log, err := os.OpenFile(k.log(p), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.WorkingDir, log, log
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deleted {
		return nil, errors.New("it was deleted before it began")
	}
	// The kernel kills it when the thread that started it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	k.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p.group = cmd.Process.Pid
	return cmd, nil
}

// wait waits for the end of the container's command. If err is not nil the command could
// not be started.
func (k *Kubelet) wait(p *pod, cmd *exec.Cmd, err error) *corev1.ContainerStateTerminated {
	if err != nil {
		return &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: err.Error(), FinishedAt: metav1.Now()}
	}
	err = cmd.Wait()
	p.mu.Lock()
	_ = syscall.Kill(-p.group, syscall.SIGKILL) // a container ends with its first process
	p.group = 0
	reason := p.reason
	p.mu.Unlock()
	t := &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()}
	if err == nil {
		return t
	}
	t.Reason, t.ExitCode = "Error", 128
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.ExitCode = int32(exit.ExitCode())
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			t.ExitCode = int32(128 + st.Signal())
		}
	}
	if reason != "" {
		t.Reason = reason
	}
	if p.Spec.Containers[0].TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		if text, err := os.ReadFile(k.log(p)); err == nil {
			t.Message = string(text[max(0, len(text)-2048):])
		}
	}
	return t
}

// log returns the path of the file with the output of a pod.
func (k *Kubelet) log(p *pod) string {
	return filepath.Join(k.logs, p.Namespace+"_"+p.Name+"_"+string(p.UID)+".log")
}

// volumes returns an error if a volume of a pod is not available.
func (k *Kubelet) volumes(p *pod) error {
	where := make(map[string]string)
	for _, v := range p.Spec.Volumes {
		switch {
		case v.HostPath != nil:
			where[v.Name] = v.HostPath.Path
		case v.PersistentVolumeClaim != nil:
			where[v.Name] = k.claims[v.PersistentVolumeClaim.ClaimName]
		}
	}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		if strings.HasPrefix(m.MountPath, "/var/run/secrets/") {
			continue
		}
		if dir := where[m.Name]; dir != m.MountPath {
			return fmt.Errorf("the standin kubelet cannot mount volume %s at %s: it is at %q", m.Name, m.MountPath, dir)
		}
	}
	return nil
}

// report sends a status to the API server, and retries until the server responds.
func (k *Kubelet) report(ctx context.Context, p *pod, status *corev1.PodStatus) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status":   map[string]any{"phase": status.Phase, "startTime": status.StartTime, "containerStatuses": status.ContainerStatuses},
	})
	if err != nil {
		panic(err) // cannot happen: it holds strings and numbers
	}
	k.insist(ctx, func() error {
		return k.box.Client.Core.Patch(types.StrategicMergePatchType).Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("status").Body(bytes.Clone(patch)).Do(ctx).Error()
	})
}

// forget removes the object of a pod that was deleted and has ended.
func (k *Kubelet) forget(ctx context.Context, p *corev1.Pod) {
	var now int64
	k.insist(ctx, func() error {
		return k.box.Client.Delete(ctx, k.box.Client.Core, p.Namespace, "pods", p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	})
}

// insist calls ask until it succeeds, or the object is missing, has changed or is invalid.
func (k *Kubelet) insist(ctx context.Context, ask func() error) {
	for {
		err := ask()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
