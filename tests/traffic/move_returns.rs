//! Pods that come back while a move fails. A Pod is not available before it serves at one of the load balancers: a rule
//! could let the last serving Pod go.

use operating::api::keys;
use serde_json::json;
use testbed::pods::is_ready;
use testbed::{Scope, wait};

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{Employer, adapter, in_use, move_to_one_that_is_down, names, serving_by};
use crate::sets::label;

/// Lets a Pod leave the former load balancer `edge` and become Ready again. At first, `edge` refuses to register it.
async fn leave_and_come_back(bed: &TrafficBed, web: &Employer<'_>, pods: &[String]) {
    let Scope { namespace, .. } = web.scope;
    let pod = &pods[0];
    web.scope.lose_readiness(pod).await;
    wait::until("the Pod to leave the former load balancer", async || {
        bed.http.serving(namespace) == pods[1..]
    })
    .await;
    web.marks(pod, (true, false)).await;
    let changes = || bed.http.state().applies[namespace];
    let before = changes();
    bed.http.state().refused_pods = [pod.clone()].into();
    web.scope.become_ready(pod).await;
    web.scope.until_pod(pod, "Ready", is_ready).await;
    wait::until("the refusal", async || changes() > before).await;
    let back = web.scope.get(pod).await;
    bed.http.state().refused_pods.clear();
    assert!(label(&back, keys::SERVICE_AVAILABLE).is_none());
    web.marks(pod, (true, true)).await;
    assert_eq!(bed.http.serving(namespace), pods);
    web.scope.resume_kubelet(pod).await;
}

#[tokio::test]
async fn returning_pod_is_unavailable_while_the_new_adapter_refuses_the_service() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("return-refused").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    // The Service lacks the annotations that `slb` needs, and `slb` only reads: others may have registered the Pods.
    web.edit(adapter("slb")).await;
    web.until("the refusal", |report| {
        report.adapter == "slb" && report.last_error.is_some()
    })
    .await;
    leave_and_come_back(bed, &web, &pods).await;
    web.edit(adapter("edge")).await;
    web.until("the former adapter", |report| report.adapter == "edge")
        .await;
    web.consistent(2).await;
}

/// Another leader began the move, and the new leader can't read the members at the new load balancer.
#[tokio::test]
async fn returning_pod_is_unavailable_after_a_change_of_the_leader() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("return-leader").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    move_to_one_that_is_down(bed, &web).await;
    bed.crash_all().await;
    leave_and_come_back(bed, &web, &pods).await;
    bed.guarded.state().down = false;
    wait::until("the end of the move", async || {
        in_use(&web).await == "guarded"
    })
    .await;
    web.consistent(2).await;
    assert_eq!(bed.guarded.serving(&scope.namespace), pods);
}

/// The present adapter refuses the Service, and the former one goes on registering Pods.
#[tokio::test]
async fn new_pod_is_unavailable_until_it_serves_at_the_former_adapter() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("return-new").await;
    let (web, _set) = serving_by(&scope, "edge", 1).await;
    web.edit(adapter("slb")).await;
    web.until("the refusal", |report| {
        report.adapter == "slb" && report.last_error.is_some()
    })
    .await;
    bed.http.state().refused_pods = ["web-new".to_owned()].into();
    let changes = || bed.http.state().applies[&scope.namespace];
    let before = changes();
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    scope.pod("web-new", labels).await;
    scope.until_pod("web-new", "Ready", is_ready).await;
    wait::until("the refusal", async || changes() > before).await;
    let new = web.marks("web-new", (true, false)).await;
    assert!(label(&new, keys::SERVICE_AVAILABLE).is_none());
    bed.http.state().refused_pods.clear();
    web.marks("web-new", (true, true)).await;
    web.edit(adapter("edge")).await;
    web.consistent(2).await;
}
