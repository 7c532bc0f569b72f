// Command cooperate is a cooperator of the lifecycle. The ConfigMap "members" stands for a load balancer: a Pod gets
// traffic while the list has its name. No Pod is operated while the list has it. Each step may be repeated, so the
// process may be killed at any step. Run one process.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// No operation on a Pod reaches Operate while the Pod has a finalizer with this prefix.
const (
	entering = "prot.podopslifecycle.kusionstack.io/entering" // The list may have the Pod.
	member   = "prot.podopslifecycle.kusionstack.io/member"   // The list has the Pod. The Pod template expects this.
)

type cooperator struct{ client.Client }

// Reconcile makes the list agree with one Pod. The watch calls it again after each change of the Pod.
func (c cooperator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	err := c.Get(ctx, request.NamespacedName, &pod)
	before := pod.DeepCopy()
	switch {
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, c.setMember(ctx, request, "null")
	case err != nil:
		return ctrl.Result{}, err
	case !serves(&pod) && controllerutil.RemoveFinalizer(&pod, member): // First, so that it does not count as available.
	case !serves(&pod):
		if err := c.setMember(ctx, request, "null"); err != nil {
			return ctrl.Result{}, err
		}
		controllerutil.RemoveFinalizer(&pod, entering)
	case !controllerutil.AddFinalizer(&pod, entering): // The Pod has it already.
		if err := c.setMember(ctx, request, strconv.Quote(pod.Status.PodIP)); err != nil {
			return ctrl.Result{}, err
		}
		controllerutil.AddFinalizer(&pod, member)
	}
	if slices.Equal(before.Finalizers, pod.Finalizers) {
		return ctrl.Result{}, nil
	}
	err = c.Patch(ctx, &pod, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return ctrl.Result{}, nil // The watch brings the newer Pod.
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// setMember writes one entry of the list and leaves the others alone. The entry null removes the Pod.
func (c cooperator) setMember(ctx context.Context, pod ctrl.Request, entry string) error {
	members := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "members"}}
	patch := fmt.Appendf(nil, `{"data":{%q:%s}}`, pod.Name, entry)
	err := c.Patch(ctx, members, client.RawPatch(types.MergePatchType, patch))
	if entry == "null" {
		return client.IgnoreNotFound(err) // Without a list, nobody has traffic.
	}
	return err
}

func serves(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func main() {
	ctrl.SetLogger(klog.Background())
	balanced := labels.Set{"kusionstack.io/control": "true", "app": "web"}.AsSelector() // Those that the list is for.
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{
			os.Getenv("NAMESPACE"): {LabelSelector: balanced},
		}},
	})
	utilruntime.Must(err)
	utilruntime.Must(ctrl.NewControllerManagedBy(manager).For(&corev1.Pod{}).Complete(cooperator{manager.GetClient()}))
	utilruntime.Must(manager.Start(ctrl.SetupSignalHandler()))
}
