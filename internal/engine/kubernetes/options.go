package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"premix/internal/engine/pilot"
	"premix/internal/kit/exit"
)

// Options are the place, the image and the volumes of pods.
type Options struct {
	Kubeconfig string // file; "": $KUBECONFIG, ~/.kube/config, or the cluster that premix runs in
	Context    string // of the kubeconfig; "": the current one
	Namespace  string // "": the namespace of the context, or of the pod that premix runs in
	Image      string
	Premix     string // the program in the image; "": premix, on its PATH
	Volumes    []Volume
	Account    string // service account of the pods; "": the default one, without a token
	Priority   string // priority class
	Pull       string // when images are pulled: Always, IfNotPresent, Never
	Template   *corev1.PodTemplateSpec

	Labels      map[string]string   // of the Jobs
	Annotations map[string]string   // of the Jobs
	Resources   corev1.ResourceList // further ones of a pod, such as GPUs
	PullSecrets []string            // for the registry of the image
}

// Volume is mounted into every pod.
type Volume struct {
	Claim string // a PersistentVolumeClaim; "": a directory of the nodes
	Path  string // here and in the pods
}

// Parse reads the options that pack leaves to the engine.
func Parse(rest map[string]string) (*Options, error) {
	o := &Options{Kubeconfig: rest["kubeconfig"], Context: rest["context"], Namespace: rest["namespace"], Image: rest["image"],
		Premix: rest["premix"], Account: rest["service-account"], Priority: rest["priority-class"], Pull: rest["pull"]}
	if o.Namespace != "" {
		if wrong := validation.IsDNS1123Label(o.Namespace); len(wrong) > 0 {
			return nil, mistake("namespace", wrong[0])
		}
	}
	switch corev1.PullPolicy(o.Pull) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return nil, mistake("pull", "it is Always, IfNotPresent or Never")
	}
	if list := rest["volume"]; list != "" {
		for text := range strings.SplitSeq(list, ",") {
			v, err := parseVolume(text)
			if err != nil {
				return nil, mistake("volume", err.Error())
			}
			o.Volumes = append(o.Volumes, *v)
		}
	}
	var err error
	if o.Labels, err = pairs(rest["label"], validation.IsQualifiedName, validation.IsValidLabelValue); err != nil {
		return nil, mistake("label", err.Error())
	}
	if o.Annotations, err = pairs(rest["annotation"], validation.IsQualifiedName, nil); err != nil {
		return nil, mistake("annotation", err.Error())
	}
	if o.Resources, err = parseResources(rest["resource"]); err != nil {
		return nil, mistake("resource", err.Error())
	}
	if list := rest["pull-secret"]; list != "" {
		o.PullSecrets = strings.Split(list, ",")
		for _, name := range o.PullSecrets {
			if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
				return nil, mistake("pull-secret", wrong[0])
			}
		}
	}
	if name := rest["template"]; name != "" {
		t, err := readTemplate(name)
		if err != nil {
			return nil, mistake("template", err.Error())
		}
		o.Template = t
	}
	known := []string{"kubeconfig", "context", "namespace", "image", "premix", "service-account", "priority-class", "pull", "volume", "template", "label", "annotation", "resource", "pull-secret"}
	rest = maps.Clone(rest)
	for _, k := range known {
		delete(rest, k)
	}
	if err := pilot.UnknownOption(Name, rest, known...); err != nil {
		return nil, err
	}
	if o.Image == "" && (o.Template == nil || o.Template.Spec.Containers[0].Image == "") {
		return nil, exit.Errorf(exit.Usage, "name one that has premix and the tools: --engine-opt image=REGISTRY/NAME:TAG", "kubernetes needs an image")
	}
	return o, nil
}

func mistake(option, reason string) error {
	return exit.Errorf(exit.Usage, "see the page on Kubernetes in the documentation", "--engine-opt %s: %s", option, reason)
}

// pairs reads KEY=VALUE,KEY=VALUE. The functions return the mistakes in a key or a value.
func pairs(list string, key, value func(string) []string) (map[string]string, error) {
	found := make(map[string]string)
	if list == "" {
		return found, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		k, v, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("%q has no value: write KEY=VALUE, several with commas between them", text)
		}
		wrong := key(k)
		if value != nil {
			wrong = append(wrong, value(v)...)
		}
		if len(wrong) > 0 {
			return nil, fmt.Errorf("%q: %s", text, wrong[0])
		}
		found[k] = v
	}
	return found, nil
}

// parseResources reads NAME=QUANTITY,NAME=QUANTITY. Cores and memory have options of their
// own.
func parseResources(list string) (corev1.ResourceList, error) {
	texts, err := pairs(list, validation.IsQualifiedName, nil)
	if err != nil {
		return nil, err
	}
	found := make(corev1.ResourceList)
	for name, text := range texts {
		if name == string(corev1.ResourceCPU) || name == string(corev1.ResourceMemory) {
			return nil, errors.New("cores and memory are options of their own: cores=N, memory=SIZE")
		}
		if found[corev1.ResourceName(name)], err = resource.ParseQuantity(text); err != nil {
			return nil, fmt.Errorf("%q is not a quantity of %s", text, name)
		}
	}
	return found, nil
}

// parseVolume reads CLAIM:PATH, or PATH for a directory that all nodes have.
func parseVolume(text string) (*Volume, error) {
	claim, dir, ok := strings.Cut(text, ":")
	if !ok {
		claim, dir = "", text
	}
	if !filepath.IsAbs(dir) {
		return nil, errors.New("write CLAIM:/PATH, with the path at which the volume is mounted here, or /PATH for a directory that all nodes have")
	}
	if ok && claim == "" {
		return nil, errors.New("there is no claim before the colon")
	}
	return &Volume{Claim: claim, Path: path.Clean(dir)}, nil
}

// readTemplate reads the template of pods: metadata and spec as in the template of a
// Job.
func readTemplate(name string) (*corev1.PodTemplateSpec, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	t := &corev1.PodTemplateSpec{}
	if err := yaml.UnmarshalStrict(text, t); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch len(t.Spec.Containers) {
	case 0:
		t.Spec.Containers = make([]corev1.Container, 1)
	case 1:
	default:
		return nil, fmt.Errorf("%s has %d containers: a pod ends when all have, so there may be one; make others init containers", name, len(t.Spec.Containers))
	}
	if c := &t.Spec.Containers[0]; len(c.Command)+len(c.Args) > 0 {
		return nil, fmt.Errorf("%s has a command: it is premix' own", name)
	}
	return t, nil
}
