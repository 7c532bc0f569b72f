// Command operate is an operator of the lifecycle. It gives each managed Pod the image that the annotation
// example.com/wanted-image of the Pod names. It begins on all Pods at once: the rules decide how many of them go.
// All state is in the Pods. The process may be killed at any step, and a second process does no harm.
package main

import (
	"context"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	wantedImage   = "example.com/wanted-image"
	servingImage  = "example.com/serving-image" // The Pod serves with this image: its operation is over.
	id            = "image.example.com"         // It names the operation, and is its type, too. Each operator has its own.
	containerName = "app"
	domain        = "podopslifecycle.kusionstack.io/"
	operating     = "operating." + domain + id
	operationType = "operation-type." + domain + id
)

// gate takes the Pod off traffic. A Pod without it would stay Ready, and the operator would wait for ever.
var gate = corev1.PodReadinessGate{ConditionType: "pod.kusionstack.io/service-ready"}

type operator struct{ client.Client }

// Reconcile makes the next step of one Pod. The watch calls it again after each change of the Pod.
func (o operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := o.Get(ctx, request.NamespacedName, &pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := client.StrategicMergeFrom(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if step := advance(&pod); step != "" {
		err := o.Patch(ctx, &pod, before)
		ctrl.LoggerFrom(ctx).Info(step, "written", err == nil)
		if !apierrors.IsConflict(err) { // After a conflict, the watch brings the newer Pod.
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	return ctrl.Result{}, nil
}

// advance changes the Pod by one step and names the step. It returns "" while the operator waits.
func advance(pod *corev1.Pod) string {
	image := pod.Annotations[wantedImage]
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == containerName })
	if i < 0 || pod.DeletionTimestamp != nil { // The labels of an operation go with the Pod.
		return ""
	}
	container, isOurs := &pod.Spec.Containers[i], has(pod, operating) && pod.Labels[operationType] == id
	isDone := image == "" || container.Image == image
	switch {
	case !has(pod, operating) && !isDone && slices.Contains(pod.Spec.ReadinessGates, gate):
		pod.Labels[operating] = strconv.FormatInt(time.Now().UnixNano(), 10)
		pod.Labels[operationType] = id
		return "begin"
	case isOurs && has(pod, "operate."+domain+id) && !isDone && !slices.ContainsFunc(pod.Status.Conditions, isReady):
		container.Image = image // The work. Yours must be repeatable, too.
		return "work"
	case isOurs && isDone: // Before Operate, this cancels what nobody wants any more.
		delete(pod.Labels, operating)
		return "finish"
	case image != "" && isDone && has(pod, domain+"service-available") && pod.Annotations[servingImage] != image:
		pod.Annotations[servingImage] = image
		return "complete"
	}
	return ""
}

func has(pod *corev1.Pod, label string) bool { return metav1.HasLabel(pod.ObjectMeta, label) }

func isReady(c corev1.PodCondition) bool { return c.Type == "Ready" && c.Status == "True" }

func main() {
	ctrl.SetLogger(klog.Background())
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{
			os.Getenv("NAMESPACE"): {LabelSelector: labels.Set{"kusionstack.io/control": "true"}.AsSelector()},
		}},
	})
	utilruntime.Must(err)
	utilruntime.Must(ctrl.NewControllerManagedBy(manager).For(&corev1.Pod{}).Complete(operator{manager.GetClient()}))
	utilruntime.Must(manager.Start(ctrl.SetupSignalHandler()))
}
