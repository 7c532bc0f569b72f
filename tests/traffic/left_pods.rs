//! Pods that a Service does not select any more, or never did, and members that are not its own any more.

use futures::future::join_all;
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::{Scope, wait};
use traffic_http::wire::{MemberState, PresenceInfo};

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{Employer, edge};

/// More Pods than one look reads live.
const MANY: usize = 24;

async fn pod(scope: &Scope, name: &str, app: &str) {
    let metadata = json!({ "labels": { "app": app } });
    scope.pod(name, json!({ "metadata": metadata })).await;
}

fn app(value: &str) -> Value {
    json!({ "metadata": { "labels": { "app": value } } })
}

fn members(bed: &TrafficBed, scope: &Scope) -> usize {
    let state = bed.http.state();
    let keys = state.members.keys();
    keys.filter(|key| key.0 == scope.namespace).count()
}

async fn no_members(bed: &TrafficBed, scope: &Scope) {
    wait::until("no member", async || members(bed, scope) == 0).await;
}

#[tokio::test]
async fn relabelled_pod_is_drained_and_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-left").await;
    let web = Employer::new(&scope, "web", edge()).await;
    pod(&scope, "web-0", "web").await;
    web.consistent(1).await;
    bed.http.state().connections = 3;
    let drain = json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "3600" } } });
    web.edit(drain).await;
    scope.patch("web-0", app("else")).await.unwrap();
    web.until("the drain", |report| {
        let waiting = report.waiting.first();
        waiting.is_some_and(|waiting| waiting.connections == Some(3))
    })
    .await;
    assert!(web.protects(&scope.get("web-0").await));
    bed.http.state().connections = 0;
    web.marks("web-0", (false, false)).await;
    no_members(bed, &scope).await;
    assert!(bed.http.state().cut.is_empty());
    scope.all_available("app=else", 1).await;
}

#[tokio::test]
async fn relabelled_pod_whose_member_was_removed_by_others_is_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-taken").await;
    let web = Employer::new(&scope, "web", edge()).await;
    pod(&scope, "web-0", "web").await;
    web.consistent(1).await;
    let ours = |key: &str| key != scope.namespace;
    bed.http.state().members.retain(|key, _| ours(&key.0));
    scope.patch("web-0", app("else")).await.unwrap();
    web.marks("web-0", (false, false)).await;
    web.consistent(0).await;
    assert_eq!(members(bed, &scope), 0);
}

#[tokio::test]
async fn many_pods_that_lose_management_at_once_are_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-many").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let names: Vec<_> = (0..MANY).map(|n| format!("web-{n}")).collect();
    join_all(names.iter().map(|name| pod(&scope, name, "web"))).await;
    web.consistent(MANY).await;
    let unmanaged = json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } });
    let patches = names
        .iter()
        .map(|name| scope.patch(name, unmanaged.clone()));
    for patched in join_all(patches).await {
        patched.unwrap();
    }
    for name in &names {
        web.marks(name, (false, false)).await;
    }
    no_members(bed, &scope).await;
    web.consistent(0).await;
    assert!(bed.http.state().cut.is_empty());
}

/// Somebody else, or a former selector of the Service, has registered it.
#[tokio::test]
async fn registered_pod_that_was_never_selected_is_drained_and_gets_no_mark() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-never").await;
    pod(&scope, "other", "other").await;
    let other = scope.all_available("app=other", 1).await.remove(0);
    let member = |address: &str, uid: &str, name: &str| {
        let address = address.parse().unwrap();
        let state = MemberState {
            group: "http".to_owned(),
            address,
            port: 8080,
            weight: 100,
            pod_uid: uid.to_owned(),
            pod_name: name.to_owned(),
            presence: PresenceInfo::Serving,
            drain_until: None,
            connections: None,
        };
        let (namespace, group) = (scope.namespace.clone(), state.group.clone());
        let key = (namespace, "web".to_owned(), group, address, 8080);
        bed.http.state().members.insert(key, state);
    };
    let address = other.status.as_ref().unwrap().pod_ip.clone().unwrap();
    member(&address, &other.uid().unwrap(), "other");
    // The API server says of this Pod that it is gone.
    member("10.99.0.9", "no-such-uid", "gone");
    let web = Employer::new(&scope, "web", edge()).await;
    pod(&scope, "web-0", "web").await;
    wait::until("its own member alone", async || {
        bed.http.serving(&scope.namespace) == ["web-0"] && members(bed, &scope) == 1
    })
    .await;
    web.consistent(1).await;
    let pod = scope.get("other").await;
    assert!(!web.protects(&pod) && !web.is_expected(&pod));
    // Who is gone has no requests to end; the other was drained.
    assert_eq!(bed.http.state().cut, ["gone"]);
    scope.all_available("app=other", 1).await;
}

/// The new leader finds it by the member that the load balancer names.
#[tokio::test]
async fn pod_that_lost_management_while_nobody_led_is_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-leaderless").await;
    let web = Employer::new(&scope, "web", edge()).await;
    pod(&scope, "web-0", "web").await;
    pod(&scope, "web-1", "web").await;
    web.consistent(2).await;
    bed.bed.kill_all().await;
    let unmanaged = json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } });
    scope.patch("web-0", unmanaged).await.unwrap();
    bed.crash_all().await;
    web.marks("web-0", (false, false)).await;
    web.consistent(1).await;
    assert_eq!(bed.http.serving(&scope.namespace), ["web-1"]);
}

/// As above, but the Service has no other Pod.
#[tokio::test]
async fn last_pod_that_lost_management_while_nobody_led_is_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-last").await;
    let web = Employer::new(&scope, "web", edge()).await;
    pod(&scope, "web-0", "web").await;
    web.consistent(1).await;
    bed.bed.kill_all().await;
    let unmanaged = json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } });
    scope.patch("web-0", unmanaged).await.unwrap();
    bed.crash_all().await;
    web.marks("web-0", (false, false)).await;
    no_members(bed, &scope).await;
}

/// Somebody has registered a Pod before the Service had any.
#[tokio::test]
async fn members_of_a_service_that_selects_no_pod_are_read_once() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-no-pods").await;
    let address = "10.99.0.8".parse().unwrap();
    let state = MemberState {
        group: "http".to_owned(),
        address,
        port: 8080,
        weight: 100,
        pod_uid: "no-such-uid".to_owned(),
        pod_name: "gone".to_owned(),
        presence: PresenceInfo::Serving,
        drain_until: None,
        connections: None,
    };
    let namespace = scope.namespace.clone();
    let key = (
        namespace,
        "web".to_owned(),
        "http".to_owned(),
        address,
        8080,
    );
    bed.http.state().members.insert(key, state);
    let _web = Employer::new(&scope, "web", edge()).await;
    no_members(bed, &scope).await;
}

/// The Service was replaced by its manifest without the label, so that only its Pods tell that it was managed.
#[tokio::test]
async fn pods_of_a_service_that_was_replaced_while_nobody_led_are_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-replaced").await;
    let web = Employer::new(&scope, "web", edge()).await;
    pod(&scope, "web-0", "web").await;
    pod(&scope, "web-1", "web").await;
    web.consistent(2).await;
    bed.bed.kill_all().await;
    web.edit(json!({ "metadata": {
        "labels": { (keys::CONTROL): Value::Null }, "finalizers": [],
        "annotations": { (keys::CONSIST_ADAPTER_IN_USE): Value::Null, (keys::CONSIST_STATUS): Value::Null },
    } }))
    .await;
    let foreign =
        json!({ "metadata": { "annotations": { (keys::AVAILABLE_CONDITIONS): Value::Null } } });
    scope.patch("web-1", foreign).await.unwrap();
    bed.crash_all().await;
    web.marks("web-0", (false, false)).await;
    // Without an entry in the annotation, the finalizer may be that of another program.
    assert!(web.protects(&scope.get("web-1").await));
    let bare = json!({ "metadata": { "finalizers": [] } });
    scope.patch("web-1", bare).await.unwrap();
    bed.http
        .state()
        .members
        .retain(|key, _| key.0 != scope.namespace);
}
