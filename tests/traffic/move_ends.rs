//! Ends of moves. A former adapter removes its members when the new one serves in its place, and not before. It then leaves
//! the record, whatever the other former adapters do.

use std::time::Duration;

use testbed::pods::may_operate;
use testbed::{Scope, wait};
use tokio::time::sleep;

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{
    Employer, adapter, assert_each_serves, in_use, names, refuse_ends_of_moves, serving_by,
};

const ID: &str = "manual";

/// Begins a move to `guarded`, which refuses these Pods.
async fn move_to_one_that_refuses(bed: &TrafficBed, web: &Employer<'_>, pods: &[String]) {
    bed.guarded.state().refused_pods = pods.iter().cloned().collect();
    web.edit(adapter("guarded")).await;
    web.until("the refusal", |report| {
        report.adapter == "guarded" && report.failed == pods.len()
    })
    .await;
}

/// Takes a Pod off by an operation for a few seconds. The operation may then be finished.
async fn take_off(scope: &Scope, pod: &str) {
    scope.begin(pod, ID).await.unwrap();
    wait::until("the operation", async || {
        may_operate(&scope.get(pod).await, ID)
    })
    .await;
    sleep(Duration::from_secs(3)).await;
}

/// Waits until the move to `guarded` has ended, and all Pods serve there.
async fn end_of_move(bed: &TrafficBed, web: &Employer<'_>, pods: &[String]) {
    wait::until("the end of the move", async || {
        in_use(web).await == "guarded"
    })
    .await;
    web.consistent(pods.len()).await;
    let namespace = &web.scope.namespace;
    assert_eq!(bed.guarded.serving(namespace), pods);
    assert!(bed.http.serving(namespace).is_empty());
}

/// While the only Pod is off, no member is missing at the new load balancer, which still refuses the Pod.
#[tokio::test]
async fn move_does_not_end_while_its_only_pod_is_off() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-only-pod").await;
    let (web, set) = serving_by(&scope, "edge", 1).await;
    let pods = names(&set).await;
    move_to_one_that_refuses(bed, &web, &pods).await;
    take_off(&scope, &pods[0]).await;
    assert_eq!(in_use(&web).await, "guarded,edge");
    scope.finish(&pods[0], ID).await.unwrap();
    wait::until("the former load balancer to serve again", async || {
        bed.http.serving(&scope.namespace) == pods
    })
    .await;
    web.marks(&pods[0], (true, true)).await;
    bed.guarded.state().refused_pods.clear();
    end_of_move(bed, &web, &pods).await;
}

/// The members at the new load balancer do not get healthy. Then no Pod is Ready for a few seconds.
#[tokio::test]
async fn move_does_not_end_while_no_pod_is_ready() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-none-ready").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let pending = "http".to_owned();
    bed.guarded.state().pending_groups.insert(pending);
    web.edit(adapter("guarded")).await;
    web.until("the pending members", |report| {
        report.adapter == "guarded" && report.pending == 2
    })
    .await;
    for pod in &pods {
        scope.lose_readiness(pod).await;
    }
    wait::until("all Pods to leave the former load balancer", async || {
        bed.http.serving(&scope.namespace).is_empty()
    })
    .await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(in_use(&web).await, "guarded,edge");
    for pod in &pods {
        scope.become_ready(pod).await;
    }
    wait::until("the former load balancer to serve again", async || {
        bed.http.serving(&scope.namespace) == pods
    })
    .await;
    for pod in &pods {
        scope.resume_kubelet(pod).await;
    }
    bed.guarded.state().pending_groups.clear();
    end_of_move(bed, &web, &pods).await;
}

/// The other Pods serve at the new load balancer. While the refused Pod is off, no member is missing there.
#[tokio::test]
async fn refused_pod_that_was_off_serves_at_the_former_load_balancer() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-refused-pod").await;
    let (web, set) = serving_by(&scope, "edge", 3).await;
    let pods = names(&set).await;
    move_to_one_that_refuses(bed, &web, &pods[..1]).await;
    wait::until("the other Pods to move", async || {
        bed.guarded.serving(&scope.namespace) == pods[1..]
    })
    .await;
    take_off(&scope, &pods[0]).await;
    scope.finish(&pods[0], ID).await.unwrap();
    wait::until("the former load balancer to serve the Pod", async || {
        bed.http.serving(&scope.namespace).contains(&pods[0])
    })
    .await;
    web.marks(&pods[0], (true, true)).await;
    bed.guarded.state().refused_pods.clear();
    end_of_move(bed, &web, &pods).await;
}

/// The new load balancer loses its members before it accepts the last one. The last read is older than the loss.
#[tokio::test]
async fn former_members_stay_until_a_read_shows_the_new_ones() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-old-read").await;
    let (web, set) = serving_by(&scope, "edge", 3).await;
    let pods = names(&set).await;
    move_to_one_that_refuses(bed, &web, &pods[..1]).await;
    wait::until("the other Pods to move", async || {
        bed.guarded.serving(&scope.namespace) == pods[1..]
    })
    .await;
    sleep(Duration::from_secs(3)).await;
    {
        let mut state = bed.guarded.state();
        state.members.retain(|key, _| key.0 != scope.namespace);
        state.refused_pods.clear();
    }
    wait::until("the end of the move", async || {
        assert_each_serves(bed, &scope, &pods);
        in_use(&web).await == "guarded"
    })
    .await;
    end_of_move(bed, &web, &pods).await;
}

/// The Service moves on while the second load balancer is down, and has members that never got healthy.
#[tokio::test]
async fn first_adapter_of_a_chain_retires_although_the_second_is_down() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-chain").await;
    let (web, _set) = serving_by(&scope, "edge", 2).await;
    // The second one registers the members, and is down before they get healthy.
    bed.guarded.state().pending_groups.insert("http".to_owned());
    web.edit(adapter("guarded")).await;
    wait::until("the members", async || {
        let state = bed.guarded.state();
        let of_namespace = state.members.keys().filter(|key| key.0 == scope.namespace);
        of_namespace.count() == 2
    })
    .await;
    bed.guarded.state().down = true;
    web.edit(adapter("endpoints")).await;
    wait::until("the first adapter to leave the record", async || {
        in_use(&web).await == "endpoints,guarded"
    })
    .await;
    assert!(bed.http.serving(&scope.namespace).is_empty());
    assert!(bed.http.state().cut.is_empty());
    bed.guarded.state().pending_groups.clear();
    bed.guarded.state().down = false;
    wait::until("the second adapter to leave the record", async || {
        in_use(&web).await == "endpoints"
    })
    .await;
    web.consistent(2).await;
}

/// The end of the move can't be recorded. Events about Pods cause no reads of the former load balancer.
#[tokio::test]
async fn refused_record_causes_few_reads_of_the_former_adapter() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-refused-reads").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let policy = refuse_ends_of_moves(&scope).await;
    web.edit(adapter("guarded")).await;
    web.until("the refusal", |report| {
        let error = report.last_error.as_deref().unwrap_or_default();
        error.contains("not as long as the test says so")
    })
    .await;
    let reads = || bed.http.state().observes[&scope.namespace];
    let before = reads();
    for n in 0..100 {
        let note = serde_json::json!({ "metadata": { "annotations": { "n": n.to_string() } } });
        scope.patch(&pods[0], note).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    let reads = reads() - before;
    policy.lift().await;
    assert!(reads <= 10, "{reads} reads");
    end_of_move(bed, &web, &pods).await;
}
