//! A load balancer that is down, throttles, refuses, or whose replies get lost. Nobody is taken off who serves, nobody
//! stays on who is gone, nothing waits without a reason, and calls are bounded.

use std::time::Duration;

use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::wait;

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{Employer, edge, names, serving};
use crate::sets::{Set, label};

#[tokio::test]
async fn operation_waits_for_load_balancer_that_is_down() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-down").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    bed.http.state().down = true;
    let before = bed.http.calls();
    scope.begin(&pods[0], "manual").await.unwrap();
    let report = web
        .until("the failure", |report| report.last_error.is_some())
        .await;
    assert!(report.next_try.is_some(), "{report:?}");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let pod = scope.get(&pods[0]).await;
    assert!(web.protects(&pod), "nothing is known of its traffic");
    assert!(label(&pod, &Family::Operate.key("manual")).is_none());
    assert_eq!(
        bed.http.serving(&scope.namespace),
        pods,
        "nobody was taken off"
    );
    // 0.5 s, 1 s, 2 s, 4 s, 8 s, 10 s: fewer than one call each second, for whatever is open.
    let calls = bed.http.calls() - before;
    assert!(calls <= 12, "{calls} calls in 20 s");
    bed.http.state().down = false;
    web.marks(&pods[0], (true, false)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods[1..]);
    scope.finish(&pods[0], "manual").await.unwrap();
    web.marks(&pods[0], (true, true)).await;
    web.consistent(2).await;
    assert!(bed.http.state().cut.is_empty());
}

#[tokio::test]
async fn throttled_and_lost_calls_are_made_up_for() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-lost").await;
    let (web, set) = serving(&scope, 3).await;
    for (throttled, lost) in [(3, 0), (0, 2), (1, 1)] {
        {
            let mut state = bed.http.state();
            (state.throttled, state.lost_replies) = (throttled, lost);
        }
        let name = names(&set).await.remove(0);
        scope.begin(&name, "manual").await.unwrap();
        web.marks(&name, (true, false)).await;
        assert!(!bed.http.serving(&scope.namespace).contains(&name));
        scope.finish(&name, "manual").await.unwrap();
        web.marks(&name, (true, true)).await;
        assert!(bed.http.serving(&scope.namespace).contains(&name));
    }
    web.consistent(3).await;
}

/// Half of the changes are refused: the other half is made, and each Pod has its own reason.
#[tokio::test]
async fn refused_members_do_not_stop_the_others() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-half").await;
    let (web, set) = serving(&scope, 4).await;
    let pods = names(&set).await;
    bed.http.state().refused_pods = pods[..2].iter().cloned().collect();
    for pod in &pods {
        scope.begin(pod, "manual").await.unwrap();
    }
    for pod in &pods[2..] {
        web.marks(pod, (true, false)).await;
    }
    let report = web.until("two failures", |report| report.failed == 2).await;
    let error = report.last_error.unwrap();
    assert!(
        error.contains("the quota of this member is used up"),
        "{error}"
    );
    for pod in &pods[..2] {
        assert!(web.protects(&scope.get(pod).await));
        assert!(
            report.waiting.iter().any(|waiting| waiting.pod == *pod),
            "{:?}",
            report.waiting
        );
    }
    bed.http.state().refused_pods.clear();
    for pod in &pods {
        web.marks(pod, (true, false)).await;
        scope.finish(pod, "manual").await.unwrap();
    }
    web.consistent(4).await;
}

/// A Pod with open connections is not cut off before the drain time, and is released when none is left.
#[tokio::test]
async fn open_connections_are_waited_for() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-drain").await;
    let (web, set) = serving(&scope, 2).await;
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "3600" } } }))
        .await;
    bed.http.state().connections = 12;
    let name = names(&set).await.remove(0);
    scope.begin(&name, "manual").await.unwrap();
    let report = web
        .until("the drain", |report| {
            report
                .waiting
                .first()
                .is_some_and(|waiting| waiting.connections == Some(12))
        })
        .await;
    let waiting = &report.waiting[0];
    assert_eq!((&waiting.pod, &*waiting.state), (&name, "Draining"));
    assert!(
        waiting.message.contains("12 connections, drained by"),
        "{}",
        waiting.message
    );
    assert!(web.protects(&scope.get(&name).await));
    bed.http.state().connections = 0;
    web.marks(&name, (true, false)).await;
    scope.finish(&name, "manual").await.unwrap();
    web.consistent(2).await;
    assert!(bed.http.state().cut.is_empty());
}

/// The Service goes only after its members have gone.
#[tokio::test]
async fn deleted_service_takes_its_members_along() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-gone").await;
    let (web, set) = serving(&scope, 2).await;
    web.delete().await;
    web.gone().await;
    let of_scope = |bed: &TrafficBed| {
        let state = bed.http.state();
        state
            .members
            .keys()
            .filter(|key| key.0 == scope.namespace)
            .count()
    };
    assert_eq!(of_scope(bed), 0);
    for name in names(&set).await {
        web.marks(&name, (false, false)).await;
    }
    scope.all_available("app=web", 2).await;
}

/// A new leader knows nothing, reads first, and takes nobody off.
#[tokio::test]
async fn another_leader_continues_and_takes_nobody_off() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-leader").await;
    let (web, set) = serving(&scope, 3).await;
    let pods = names(&set).await;
    bed.http.state().connections = 1;
    scope.begin(&pods[0], "manual").await.unwrap();
    wait::until("the drain", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    bed.crash_all().await;
    bed.http.state().connections = 0;
    web.marks(&pods[0], (true, false)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods[1..]);
    scope.finish(&pods[0], "manual").await.unwrap();
    web.consistent(3).await;
    assert!(
        bed.http.state().cut.is_empty(),
        "{:?}",
        bed.http.state().cut
    );
}

/// Members follow a Service from one adapter to another, the new one first.
#[tokio::test]
async fn service_moves_to_another_adapter() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-move").await;
    let (web, set) = serving(&scope, 2).await;
    let adapter =
        |name: &str| json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } });
    web.edit(adapter("endpoints")).await;
    let of_scope = || {
        bed.http
            .state()
            .members
            .keys()
            .filter(|key| key.0 == scope.namespace)
            .count()
    };
    wait::until("the members to leave the former adapter", async || {
        of_scope() == 0
    })
    .await;
    web.until("the new adapter", |report| report.adapter == "endpoints")
        .await;
    web.consistent(2).await;
    for name in names(&set).await {
        web.marks(&name, (true, true)).await;
    }
    scope.all_available("app=web", 2).await;
    web.edit(adapter("edge")).await;
    wait::until("the members to come back", async || of_scope() == 2).await;
    web.until("the adapter", |report| report.adapter == "edge")
        .await;
    web.consistent(2).await;
}

/// A Pod that loses its control label is released, although no cache has it any more.
#[tokio::test]
async fn pod_that_is_not_managed_any_more_is_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-unmanaged").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let metadata = json!({ "metadata": { "labels": { "app": "web" } } });
    scope.pod("web-0", metadata).await;
    web.consistent(1).await;
    web.marks("web-0", (true, true)).await;
    let unmanaged = json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } });
    scope.patch("web-0", unmanaged).await.unwrap();
    web.marks("web-0", (false, false)).await;
    wait::until("no member", async || {
        bed.http.serving(&scope.namespace).is_empty()
    })
    .await;
}

/// A wrong annotation changes nothing of what is registered.
#[tokio::test]
async fn wrong_adapter_name_takes_nobody_off() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-typo").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    let adapter =
        |name: &str| json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } });
    web.edit(adapter("egde")).await;
    let report = web
        .until("the error", |report| report.last_error.is_some())
        .await;
    assert!(report.last_error.unwrap().contains("\"egde\""));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    for pod in &pods {
        web.marks(pod, (true, true)).await;
    }
    web.edit(adapter("edge")).await;
    web.consistent(2).await;
    web.edit(adapter("egde")).await;
    web.delete().await;
    web.gone().await;
    assert_eq!(bed.http.serving(&scope.namespace), Vec::<String>::new());
}

/// A Pod that can't be a member has its reason in the report, and the condition does not say that all is well.
#[tokio::test]
async fn pod_without_the_port_is_named() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-port").await;
    let mut part = edge();
    part["spec"]["ports"][0]["targetPort"] = json!("web");
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::unsettled(&scope, "web", 1, json!({})).await;
    let report = web
        .until("the reason", |report| report.last_error.is_some())
        .await;
    assert_eq!(report.pending, 1, "{report:?}");
    let name = names(&set).await.remove(0);
    let error = report.last_error.unwrap();
    assert!(error.contains(&name) && error.contains("web"), "{error}");
    assert_eq!(web.condition().await.unwrap().0, "False");
}
