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
	domain        = "podopslifecycle.kusionstack.io/"
	id            = "image" // It names the operation, and is its type, too.
	operating     = "operating." + domain + id
	operationType = "operation-type." + domain + id
	operate       = "operate." + domain + id
	available     = domain + "service-available"
)

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
	image, container := pod.Annotations[wantedImage], &pod.Spec.Containers[0]
	isDone := image == "" || container.Image == image
	switch {
	case pod.DeletionTimestamp != nil: // The labels of the operation go with the Pod.
	case !has(pod, operating) && !isDone:
		pod.Labels[operating] = strconv.FormatInt(time.Now().UnixNano(), 10)
		pod.Labels[operationType] = id
		return "begin"
	case has(pod, operate) && !isDone && !isReady(pod): // The work. Yours must be repeatable, too.
		container.Image = image
		return "work"
	case has(pod, operating) && isDone: // Before Operate, this cancels what nobody wants any more.
		delete(pod.Labels, operating)
		return "finish"
	case image != "" && isDone && has(pod, available) && pod.Annotations[servingImage] != image:
		pod.Annotations[servingImage] = image
		return "complete"
	}
	return ""
}

func has(pod *corev1.Pod, label string) bool { return metav1.HasLabel(pod.ObjectMeta, label) }

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

func main() {
	ctrl.SetLogger(klog.Background())
	managed := labels.SelectorFromSet(labels.Set{"kusionstack.io/control": "true"})
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{
			os.Getenv("NAMESPACE"): {LabelSelector: managed},
		}},
	})
	utilruntime.Must(err)
	utilruntime.Must(ctrl.NewControllerManagedBy(manager).For(&corev1.Pod{}).Complete(operator{manager.GetClient()}))
	utilruntime.Must(manager.Start(ctrl.SetupSignalHandler()))
}
