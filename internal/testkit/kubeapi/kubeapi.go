package kubeapi

import (
	"context"
	"io"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Client is a connection to an API server.
type Client struct {
	Core  rest.Interface // core/v1
	Batch rest.Interface // batch/v1

	parameters runtime.ParameterCodec
}

// quiet turns off client-go's log, which is for programmers, on the standard error.
var quiet sync.Once

// New makes a client. It does not connect.
func New(config *rest.Config) (*Client, error) {
	quiet.Do(func() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	// Status, and options of all groups.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	c := &Client{parameters: runtime.NewParameterCodec(scheme)}
	for _, g := range []struct {
		version schema.GroupVersion
		path    string
		to      *rest.Interface
	}{{corev1.SchemeGroupVersion, "/api", &c.Core}, {batchv1.SchemeGroupVersion, "/apis", &c.Batch}} {
		with := rest.CopyConfig(config)
		with.GroupVersion, with.APIPath = &g.version, g.path
		with.NegotiatedSerializer = codecs.WithoutConversion()
		with.ContentType = "application/vnd.kubernetes.protobuf"
		with.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
		if *g.to, err = rest.RESTClientForConfigAndClient(with, http); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// List reads the list of the objects of a resource into into.
func (c *Client) List(ctx context.Context, group rest.Interface, namespace, resource string, o metav1.ListOptions, into runtime.Object) error {
	return group.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&o, c.parameters).Do(ctx).Into(into)
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, group rest.Interface, namespace, resource, name string, o metav1.DeleteOptions) error {
	return group.Delete().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).Body(&o).Do(ctx).Error()
}

// ListWatch returns a source for a reflector of a resource. list makes an empty list of
// its objects. namespace is "" for the objects of all namespaces, or outside of any.
// fields and labels are selectors.
func (c *Client) ListWatch(group rest.Interface, namespace, resource, fields, labels string, list func() runtime.Object) cache.ListerWatcher {
	selected := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector, o.LabelSelector = fields, labels
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := list()
			return l, c.List(ctx, group, namespace, resource, selected(o), l)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o = selected(o)
			o.Watch = true
			return group.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&o, c.parameters).Watch(ctx)
		},
	}
}
