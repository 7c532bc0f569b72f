//! Attacks: faults.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use operating::api::keys::{self, Family};
use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::pods::is_ready;
use testbed::wait;
use tokio::time::{Instant, sleep};

use crate::bed::alone;
use crate::fixtures::{Employer, edge, names, serving, serving_by};
use crate::policies::Policy;
use crate::sets::label;

const ID: &str = "manual";

fn adapter(name: &str) -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } })
}

fn operates(pod: &Pod) -> bool {
    label(pod, &Family::Operate.key(ID)).is_some()
}

/// While the new load balancer of a move is down, the former one has all the traffic. Who is not Ready must leave it.
#[tokio::test]
async fn attack_move_down_unready_pod_stays_at_former() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-move").await;
    let (web, set) = serving(&scope, 3).await;
    let pods = names(&set).await;
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |r| r.last_error.is_some() && r.adapter == "guarded").await;
    scope.lose_readiness(&pods[0]).await;
    scope.until_pod(&pods[0], "not ready", |pod| !is_ready(pod)).await;
    let started = Instant::now();
    let mut left = None;
    while started.elapsed() < Duration::from_secs(40) {
        if !bed.http.serving(&scope.namespace).contains(&pods[0]) {
            left = Some(started.elapsed());
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    eprintln!("REPORT {:?}", web.report().await);
    bed.guarded.state().down = false;
    assert!(left.is_some(), "a Pod that is not Ready stays on traffic at the former load balancer");
}

/// The same with a Pod that is deleted, and the new one in its place.
#[tokio::test]
async fn attack_move_down_dead_pod_stays_at_former() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-dead").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |r| r.last_error.is_some() && r.adapter == "guarded").await;
    let params = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    scope.pods().delete(&pods[0], &params).await.unwrap();
    sleep(Duration::from_secs(40)).await;
    let now = names(&set).await;
    let serving = bed.http.serving(&scope.namespace);
    eprintln!("PODS {now:?} SERVING AT FORMER {serving:?} REPORT {:?}", web.report().await);
    let dead = scope.pods().get_opt(&pods[0]).await.unwrap();
    eprintln!("DEAD {:?}", dead.map(|p| json!(p.metadata)));
    bed.guarded.state().down = false;
    assert!(!serving.contains(&pods[0]), "a dead Pod stays on traffic");
}

/// A register whose answer came too late is made later still, when the Pod is in an operation.
#[tokio::test]
async fn attack_late_register_during_operation() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-late").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "operate", operates).await;
    bed.http.state().late = Some(Duration::from_secs(25));
    scope.finish(&pods[0], ID).await.unwrap();
    wait::until("the late call", async || bed.http.state().late.is_none()).await;
    let began = Instant::now();
    web.marks(&pods[0], (true, true)).await;
    eprintln!("protected after {:?}", began.elapsed());
    scope.begin(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "operate", operates).await;
    eprintln!("operates after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(24));
    wait::until("the late effect", async || bed.http.serving(&scope.namespace).contains(&pods[0])).await;
    let on = Instant::now();
    eprintln!("late effect after {:?}", began.elapsed());
    let mut off = None;
    while on.elapsed() < Duration::from_secs(60) {
        if !bed.http.serving(&scope.namespace).contains(&pods[0]) {
            off = Some(on.elapsed());
            break;
        }
        sleep(Duration::from_millis(500)).await;
    }
    eprintln!("off after {off:?}; REPORT {:?} operates {}", web.report().await, operates(&scope.get(&pods[0]).await));
    assert!(off.is_some(), "a Pod in Operate gets requests for more than 60 s");
}

/// A drain whose answer came too late is made later still, when the operation is undone.
#[tokio::test]
async fn attack_late_drain_after_undo() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-undo").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    bed.http.state().late = Some(Duration::from_secs(20));
    scope.begin(&pods[0], ID).await.unwrap();
    wait::until("the late call", async || bed.http.state().late.is_none()).await;
    let began = Instant::now();
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(&pods[0], undo).await.unwrap();
    web.marks(&pods[0], (true, true)).await;
    eprintln!("back after {:?}: {:?}", began.elapsed(), bed.http.serving(&scope.namespace));
    wait::until("the late effect", async || !bed.http.serving(&scope.namespace).contains(&pods[0])).await;
    let off = Instant::now();
    eprintln!("late effect after {:?}", began.elapsed());
    let mut back = None;
    while off.elapsed() < Duration::from_secs(60) {
        if bed.http.serving(&scope.namespace).contains(&pods[0]) {
            back = Some(off.elapsed());
            break;
        }
        sleep(Duration::from_millis(500)).await;
    }
    eprintln!(
        "back on after {back:?} REPORT {:?} available {:?}",
        web.report().await,
        label(&scope.get(&pods[0]).await, keys::SERVICE_AVAILABLE)
    );
    assert!(back.is_some(), "an available Pod gets no requests for more than 60 s");
}

async fn calls_in(double: &testbed::http_double::HttpDouble, seconds: u64) -> usize {
    let before = double.calls_by_name();
    sleep(Duration::from_secs(seconds)).await;
    let calls = double.calls_by_name().since(before);
    eprintln!("{calls:?} in {seconds} s");
    calls.all()
}

/// The load balancer accepts a member and drops it again.
#[tokio::test]
async fn attack_hot_loop_forgotten_members() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-forget").await;
    let (web, set) = serving(&scope, 1).await;
    bed.http.state().forgets = true;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "operate", operates).await;
    scope.finish(&pods[0], ID).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    let calls = calls_in(&bed.http, 40).await;
    eprintln!("REPORT {:?}", web.report().await);
    assert!(calls <= 12, "{calls} calls in 40 s");
}

/// The load balancer says that it drains, and goes on.
#[tokio::test]
async fn attack_hot_loop_ignored_drains() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-ignore").await;
    let (web, set) = serving(&scope, 1).await;
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "30" } } })).await;
    bed.http.state().ignores_drains = true;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    let calls = calls_in(&bed.http, 40).await;
    let pod = scope.get(&pods[0]).await;
    eprintln!("REPORT {:?} protected {} operates {}", web.report().await, web.protects(&pod), operates(&pod));
    assert!(calls <= 12, "{calls} calls in 40 s");
}

/// The leader is frozen for a few seconds, in which a Pod is on traffic and off again.
#[tokio::test]
async fn attack_frozen_leader_misses_traffic() {
    const DRAIN: u64 = 12;
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-frozen").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let drain = DRAIN.to_string();
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): drain } } })).await;
    scope.pod("web-0", json!({ "metadata": { "labels": { "app": "web" } } })).await;
    web.consistent(1).await;
    let leader = bed.bed.leader().await;
    scope.begin("web-0", ID).await.unwrap();
    scope.until_pod("web-0", "off", |pod| !is_ready(pod)).await;
    web.until("the drain", |report| report.draining == 1 && report.waiting[0].until.is_some()).await;
    bed.bed.signal(leader, Signal::STOP).await;
    let frozen = Instant::now();
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    let undone = scope.label("web-0", undo).await;
    if undone.is_err() { bed.bed.signal(leader, Signal::CONT).await; }
    undone.unwrap();
    scope.until_pod("web-0", "on", is_ready).await;
    let slices = scope.api::<k8s_openapi::api::discovery::v1::EndpointSlice>();
    let is_on = async || {
        let slices = slices.list(&Default::default()).await.unwrap();
        slices.items.iter().flat_map(|s| s.endpoints.iter().flatten()).any(|e| {
            e.conditions.as_ref().and_then(|c| c.ready) == Some(true)
        })
    };
    wait::until("ready in slices", is_on).await;
    eprintln!("on {:?} after the freeze", frozen.elapsed());
    scope.begin("web-0", "second").await.unwrap();
    let off = Instant::now();
    wait::until("not ready in slices", async || !is_on().await).await;
    bed.bed.signal(leader, Signal::CONT).await;
    eprintln!("frozen for {:?}", frozen.elapsed());
    eprintln!("frozen until {:?} after the second begin; leader {} now {}", off.elapsed(), leader, bed.bed.leader().await);
    scope.until_pod("web-0", "operate", |pod| label(pod, &Family::Operate.key("second")).is_some()).await;
    let took = off.elapsed();
    eprintln!("operates {took:?} after it went off; leader was {leader}, is {}", bed.bed.leader().await);
    assert!(took >= Duration::from_secs(DRAIN), "{took:?}");
}

/// The adapter annotation goes bad in the middle of a drain, and the operation is undone.
#[tokio::test]
async fn attack_bad_annotation_then_undo() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-bad").await;
    let (web, set) = serving(&scope, 2).await;
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "300" } } })).await;
    bed.http.state().connections = 3;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    wait::until("drained", async || bed.http.serving(&scope.namespace).len() == 1).await;
    web.edit(adapter("egde")).await;
    web.until("the error", |report| report.adapter.is_empty()).await;
    sleep(Duration::from_secs(2)).await;
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(&pods[0], undo).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    let pod = scope.get(&pods[0]).await;
    let available = label(&pod, keys::SERVICE_AVAILABLE).is_some();
    let serving = bed.http.serving(&scope.namespace);
    eprintln!("available {available} protected {} serving {serving:?} REPORT {:?}", web.protects(&pod), web.report().await);
    bed.http.end_faults();
    web.edit(adapter("edge")).await;
    assert!(!available || serving.contains(&pods[0]), "available, and no request reaches it");
}

/// Another writer changes a Pod that is not managed any more, while a call is under way.
#[tokio::test]
async fn attack_unmanaged_pod_changes_during_a_call() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-unmanaged").await;
    let web = Employer::new(&scope, "web", edge()).await;
    scope.pod("web-0", json!({ "metadata": { "labels": { "app": "web" } } })).await;
    web.consistent(1).await;
    web.marks("web-0", (true, true)).await;
    // The second read after a change of the leader would hide it.
    sleep(Duration::from_secs(25)).await;
    bed.http.state().slow = Some(Duration::from_secs(4));
    let unmanaged = json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } });
    scope.patch("web-0", unmanaged).await.unwrap();
    wait::until("no member", async || {
        !bed.http.state().members.keys().any(|key| key.0 == scope.namespace)
    })
    .await;
    // The answer to the removal comes in 4 s.
    scope.patch("web-0", json!({ "metadata": { "annotations": { "touched": "1" } } })).await.unwrap();
    let mut released = false;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) && !released {
        sleep(Duration::from_millis(500)).await;
        released = !web.protects(&scope.get("web-0").await);
    }
    eprintln!("released {released} after {:?} REPORT {:?}", began.elapsed(), web.report().await);
    bed.http.end_faults();
    assert!(released, "still protected after 60 s");
}

/// The name of an adapter gets another URL in the configuration.
#[tokio::test]
async fn attack_adapter_name_gets_another_url() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-url").await;
    let (web, set) = serving_by(&scope, "passing", 2).await;
    let pods = names(&set).await;
    let file = bed.config_file();
    let text = std::fs::read_to_string(&file).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for entry in config["adapters"].as_array_mut().unwrap() {
        if entry["name"] == "passing" {
            entry["settings"] = json!({ "url": bed.guarded.url(), "drainSeconds": 2 });
        }
    }
    bed.guarded.state().token = None;
    bed.write("traffic.yaml", &config.to_string());
    for index in 0..testbed::fleet::REPLICAS {
        bed.bed.terminate(index).await;
        bed.bed.restart(index).await;
    }
    wait::until("the new place", async || bed.guarded.serving(&scope.namespace) == pods).await;
    web.consistent(2).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "operate", operates).await;
    let old = bed.http.serving(&scope.namespace);
    eprintln!("OLD {old:?} REPORT {:?}", web.report().await);
    bed.write("traffic.yaml", &text);
    bed.guarded.state().token = Some("token-1".to_owned());
    for index in 0..testbed::fleet::REPLICAS {
        bed.bed.terminate(index).await;
        bed.bed.restart(index).await;
    }
    assert!(!old.contains(&pods[0]), "it is in Operate and gets requests at the former URL");
}

/// The report can't be written. The drain goes on as fast as ever.
#[tokio::test]
async fn attack_refused_report_does_not_slow_drains() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-report").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    let policy = Policy::new(&scope, ("UPDATE", "services/status"), "false", "Invalid").await;
    for round in 0..3 {
        let began = Instant::now();
        scope.begin(&pods[0], ID).await.unwrap();
        web.marks(&pods[0], (true, false)).await;
        let off = began.elapsed();
        scope.until_pod(&pods[0], "operate", operates).await;
        scope.finish(&pods[0], ID).await.unwrap();
        let began = Instant::now();
        web.marks(&pods[0], (true, true)).await;
        eprintln!("round {round}: off {off:?} on {:?}", began.elapsed());
        assert!(off < Duration::from_secs(8));
    }
    let touch = json!({ "metadata": { "annotations": { "touched": "1" } } });
    let touched = web
        .api
        .patch_status("web", &Default::default(), &kube::api::Patch::Merge(touch))
        .await;
    eprintln!("refused: {touched:?}; failures {:?} report {:?}", web.failures().await, web.report().await);
    assert!(touched.is_err());
    policy.lift().await;
    web.consistent(2).await;
}

/// An operation is begun and undone again and again. Our own server removes the finalizer each time.
#[tokio::test]
async fn attack_repeated_undo_is_blamed_on_others() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-repeat").await;
    let (web, set) = serving(&scope, 1).await;
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "300" } } })).await;
    bed.http.state().connections = 3;
    let pods = names(&set).await;
    let mut errors = Vec::new();
    let mut slowest = Duration::ZERO;
    for round in 0..8 {
        scope.begin(&pods[0], ID).await.unwrap();
        wait::until("the drain", async || bed.http.serving(&scope.namespace).is_empty()).await;
        let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
        scope.label(&pods[0], undo).await.unwrap();
        wait::until("on again", async || !bed.http.serving(&scope.namespace).is_empty()).await;
        let began = Instant::now();
        while !web.protects(&scope.get(&pods[0]).await) {
            assert!(began.elapsed() < Duration::from_secs(90));
            if let Some(error) = web.report().await.and_then(|report| report.last_error) {
                if !errors.contains(&error) { errors.push(error); }
            }
            sleep(Duration::from_millis(200)).await;
        }
        eprintln!("round {round}: protected {:?} after it served", began.elapsed());
        slowest = slowest.max(began.elapsed());
    }
    eprintln!("ERRORS {errors:?}");
    assert!(errors.is_empty() && slowest < Duration::from_secs(4), "{slowest:?} {errors:?}");
}

/// A GitOps tool replaces the Service by its manifest, which names another adapter.
#[tokio::test]
async fn attack_replaced_manifest_moves_and_forgets() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("attack-replace").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    let mut service = web.get().await;
    let metadata = &mut service.metadata;
    metadata.finalizers = None;
    metadata.annotations = Some([(keys::CONSIST_ADAPTER.to_owned(), "guarded".to_owned())].into());
    metadata.managed_fields = None;
    web.api.replace("web", &Default::default(), &service).await.unwrap();
    wait::until("the new place", async || bed.guarded.serving(&scope.namespace) == pods).await;
    web.consistent(2).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "operate", operates).await;
    let old = bed.http.serving(&scope.namespace);
    eprintln!("OLD {old:?} REPORT {:?} FAILURES {:?}", web.report().await, web.failures().await);
    bed.http.state().members.retain(|key, _| key.0 != scope.namespace);
    assert!(!old.contains(&pods[0]), "it is in Operate and gets requests at the former adapter");
}
