//! Attacks on moves.
#![allow(clippy::pedantic)]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::ListParams;
use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::pods::{is_ready, may_operate};
use testbed::{Scope, wait};
use tokio::time::sleep;

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{Employer, names, serving_by};
use crate::policies::Policy;
use crate::sets::{Set, label};

const ID: &str = "manual";

fn adapter(name: &str) -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } })
}

async fn in_use(web: &Employer<'_>) -> String {
    let service = web.get().await;
    let record = service.annotations().get(keys::CONSIST_ADAPTER_IN_USE);
    record.cloned().unwrap_or_default()
}

fn is_available(pod: &Pod) -> bool {
    label(pod, keys::SERVICE_AVAILABLE).is_some()
}

async fn undo(scope: &Scope, pod: &str) {
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(pod, undo).await.unwrap();
}

async fn down(bed: &TrafficBed, web: &Employer<'_>) {
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |report| {
        report.last_error.is_some() && report.adapter == "guarded"
    })
    .await;
}

async fn within<T>(seconds: u64, mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        if let Some(found) = probe().await {
            return Some(found);
        }
        sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Whether the address of a Pod is ready in a slice.
async fn slice_ready(scope: &Scope, pod: &str) -> bool {
    let slices = scope
        .api::<EndpointSlice>()
        .list(&ListParams::default())
        .await
        .unwrap();
    slices.items.iter().any(|slice| {
        slice.endpoints.iter().flatten().any(|e| {
            e.target_ref.as_ref().and_then(|t| t.name.as_deref()) == Some(pod)
                && e.conditions.as_ref().and_then(|c| c.ready) == Some(true)
        })
    })
}

/// T1: an operation is undone and begun again while the new adapter hangs. The former adapter is `endpoints`.
#[tokio::test]
async fn attack_undone_and_begun_again_during_a_hang_has_its_drain_time() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-undo-hang").await;
    const DRAIN: u64 = 22;
    let drain = json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): DRAIN.to_string() } } });
    let web = Employer::new(&scope, "web", drain).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let pods = names(&set).await;
    for pod in &pods {
        web.marks(pod, (true, true)).await;
    }
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    let first = Instant::now();
    sleep(Duration::from_secs(1)).await;
    bed.guarded.state().hangs = true;
    let mut part = adapter("guarded");
    part["spec"] = json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] });
    web.edit(part).await;
    wait::until("a hanging call", async || bed.guarded.state().under_way > 0).await;
    eprintln!("hang begins at {:?}", first.elapsed());
    let hang = Instant::now();
    undo(&scope, &pods[0]).await;
    scope.until_pod(&pods[0], "Ready", is_ready).await;
    wait::until("the slice", async || slice_ready(&scope, &pods[0]).await).await;
    eprintln!("on again after {:?} of the hang", hang.elapsed());
    sleep(Duration::from_millis(500)).await;
    let begun = scope.begin(&pods[0], ID).await.unwrap();
    let second = Instant::now();
    eprintln!("begun again after {:?} of the hang; protected {}", hang.elapsed(), web.protects(&begun));
    wait::until("the operation", async || may_operate(&scope.get(&pods[0]).await, ID)).await;
    let took = second.elapsed();
    bed.guarded.state().hangs = false;
    eprintln!("T1: Operate {took:?} after the second begin, {:?} after the first", first.elapsed());
    assert!(took >= Duration::from_secs(DRAIN), "{took:?} of {DRAIN} s");
}

/// T2: a restore, or an exported manifest, puts an earlier record back.
#[tokio::test]
async fn attack_earlier_record_forgets_no_load_balancer() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-restore").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let exported = web.get().await;
    web.edit(adapter("guarded")).await;
    wait::until("the move", async || in_use(&web).await == "guarded").await;
    web.consistent(2).await;
    let mut old = exported.clone();
    old.metadata.resource_version = None;
    old.metadata.managed_fields = None;
    web.api.replace("web", &kube::api::PostParams::default(), &old).await.unwrap();
    web.until("the former adapter", |r| r.adapter == "edge" && r.registered == 2).await;
    sleep(Duration::from_secs(5)).await;
    eprintln!("T2: record {} edge {:?} guarded {:?}", in_use(&web).await, bed.http.serving(&scope.namespace), bed.guarded.serving(&scope.namespace));
    scope.begin(&pods[0], ID).await.unwrap();
    let operates = within(25, async || may_operate(&scope.get(&pods[0]).await, ID).then_some(())).await;
    let left = bed.guarded.serving(&scope.namespace);
    let report = web.report().await;
    bed.guarded.state().members.retain(|key, _| key.0 != scope.namespace);
    eprintln!("T2: operates {} with guarded {left:?}, report {report:?}", operates.is_some());
    assert!(operates.is_none() || !left.contains(&pods[0]));
}

/// T3: the new load balancer restarts before its last member is mended.
#[tokio::test]
async fn attack_former_members_stay_until_a_read_shows_the_new_ones() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-old-read").await;
    let (web, set) = serving_by(&scope, "edge", 3).await;
    let pods = names(&set).await;
    bed.guarded.state().refused_pods = [pods[0].clone()].into();
    web.edit(adapter("guarded")).await;
    wait::until("the others", async || bed.guarded.serving(&scope.namespace) == pods[1..]).await;
    sleep(Duration::from_secs(28)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    {
        let mut state = bed.guarded.state();
        state.members.retain(|key, _| key.0 != scope.namespace);
        state.refused_pods.clear();
    }
    let began = Instant::now();
    let mut nowhere = None;
    while began.elapsed() < Duration::from_secs(50) {
        let (edge, guarded) = (bed.http.serving(&scope.namespace), bed.guarded.serving(&scope.namespace));
        let off: Vec<_> = pods.iter().filter(|p| !edge.contains(p) && !guarded.contains(p)).cloned().collect();
        if !off.is_empty() {
            nowhere = Some(off);
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let Some(off) = nowhere else { return };
    let since = Instant::now();
    let available = {
        let pod = scope.get(&off[0]).await;
        (is_available(&pod), web.protects(&pod))
    };
    sleep(Duration::from_secs(40)).await;
    let still = (bed.http.serving(&scope.namespace), bed.guarded.serving(&scope.namespace));
    panic!("T3: {off:?} served nowhere, available/protected {available:?}; {:?} later {still:?}, report {:?}", since.elapsed(), web.report().await);
}

/// T4: a chain of moves whose middle load balancer never answered.
#[tokio::test]
async fn attack_dead_middle_of_a_chain() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-chain").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    down(bed, &web).await;
    web.edit(adapter("endpoints")).await;
    web.until("endpoints", |r| r.adapter == "endpoints").await;
    scope.begin(&pods[0], ID).await.unwrap();
    let before = (bed.http.calls(), bed.guarded.calls());
    sleep(Duration::from_secs(30)).await;
    let calls = (bed.http.calls() - before.0, bed.guarded.calls() - before.1);
    eprintln!("T4: record {}, edge {:?}, calls in 30 s {calls:?}\n{:?}\n{:?}", in_use(&web).await, bed.http.serving(&scope.namespace), web.report().await, web.condition().await);
    let held = !may_operate(&scope.get(&pods[0]).await, ID);
    // The documented remedy.
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER_IN_USE): Value::Null } } })).await;
    wait::until("the operation", async || may_operate(&scope.get(&pods[0]).await, ID)).await;
    sleep(Duration::from_secs(3)).await;
    let left: Vec<_> = bed.http.state().members.iter().filter(|(k, _)| k.0 == scope.namespace).map(|(_, m)| (m.pod_name.clone(), m.presence)).collect();
    bed.guarded.state().down = false;
    bed.http.state().members.retain(|key, _| key.0 != scope.namespace);
    eprintln!("T4: held {held}; after the remedy edge has {left:?}");
    assert!(left.is_empty(), "{left:?}");
}

/// T5: a Pod without protection leaves the selection in a move.
#[tokio::test]
async fn attack_relabelled_pod_is_let_go_in_a_move() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-left").await;
    let part = crate::fixtures::edge();
    let web = Employer::new(&scope, "web", part).await;
    for name in ["web-0", "web-1", "web-2"] {
        scope.pod(name, json!({ "metadata": { "labels": { "app": "web" } } })).await;
    }
    web.consistent(3).await;
    scope.begin("web-0", ID).await.unwrap();
    web.marks("web-0", (true, false)).await;
    down(bed, &web).await;
    let out = json!({ "metadata": { "labels": { "app": "else" } } });
    scope.patch("web-0", out.clone()).await.unwrap();
    scope.patch("web-1", out).await.unwrap();
    scope.finish("web-0", ID).await.unwrap();
    web.marks("web-1", (false, false)).await;
    let released = within(25, async || {
        let pod = scope.get("web-0").await;
        (!web.is_expected(&pod) && is_available(&pod)).then_some(())
    })
    .await;
    let pod = scope.get("web-0").await;
    let report = web.report().await;
    eprintln!("T5: web-0 expected {} protected {} available {} labels {:?}\n{report:?}", web.is_expected(&pod), web.protects(&pod), is_available(&pod), pod.labels());
    bed.guarded.state().down = false;
    let after = within(25, async || {
        let pod = scope.get("web-0").await;
        (!web.is_expected(&pod) && is_available(&pod)).then_some(())
    })
    .await;
    eprintln!("T5: after the move {}", after.is_some());
    assert!(released.is_some());
}

/// T6: the record of the end of a move is refused. How many calls?
#[tokio::test]
async fn attack_refused_record_calls() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-record").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let key = keys::CONSIST_ADAPTER_IN_USE;
    let record = |object: &str| format!("{object}.metadata.annotations['{key}']");
    let passes = format!("size({}) >= size({})", record("object"), record("oldObject"));
    let policy = Policy::new(&scope, ("UPDATE", "services"), &passes, "Invalid").await;
    web.edit(adapter("guarded")).await;
    wait::until("the end", async || bed.http.serving(&scope.namespace).is_empty()).await;
    sleep(Duration::from_secs(5)).await;
    let before = (bed.http.calls(), bed.guarded.calls());
    sleep(Duration::from_secs(30)).await;
    let calls = (bed.http.calls() - before.0, bed.guarded.calls() - before.1);
    eprintln!("T6: calls in 30 s {calls:?} report {:?}", web.report().await);
    let before = (bed.http.calls(), bed.guarded.calls());
    for n in 0..100 {
        scope.patch(&pods[0], json!({ "metadata": { "annotations": { "n": n.to_string() } } })).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    let stormed = (bed.http.calls() - before.0, bed.guarded.calls() - before.1);
    eprintln!("T6: calls in 100 Pod events {stormed:?}");
    scope.begin(&pods[0], ID).await.unwrap();
    let operates = within(25, async || may_operate(&scope.get(&pods[0]).await, ID).then_some(())).await;
    eprintln!("T6: operation with the refused record {}; {:?}", operates.is_some(), web.report().await);
    policy.lift().await;
    assert!(calls.0 + calls.1 < 30 && stormed.0 < 30, "{calls:?} {stormed:?}");
}

/// T7: random moves, faults and operations. Nobody is on in Operate, and who is available serves somewhere.
#[tokio::test]
async fn attack_random_moves() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-random").await;
    let (web, set) = serving_by(&scope, "edge", 4).await;
    let pods = names(&set).await;
    let seed: u64 = std::env::var("ATK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let mut random = seed;
    let mut next = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    let api = scope.pods();
    let namespace = scope.namespace.clone();
    // Every sample reads the Pods before and after the load balancers.
    let sample = async || {
        let list = async || -> std::collections::BTreeMap<String, Pod> {
            let pods = api.list(&ListParams::default()).await.unwrap();
            pods.items.into_iter().map(|p| (p.name_any(), p)).collect()
        };
        let before = list().await;
        let on: Vec<(String, String)> = {
            let (edge, guarded) = (bed.http.state(), bed.guarded.state());
            let of = |name: &'static str, state: &testbed::http_double::HttpState| -> Vec<(String, String)> {
                state.members.iter().filter(|(k, m)| k.0 == namespace && m.presence == traffic_http::wire::PresenceInfo::Serving)
                    .map(|(_, m)| (m.pod_name.clone(), name.to_owned())).collect()
            };
            [of("edge", &edge), of("guarded", &guarded)].concat()
        };
        let after = list().await;
        let mut wrong = Vec::new();
        for (name, pod) in &before {
            let Some(then) = after.get(name) else { continue };
            let at: Vec<_> = on.iter().filter(|(p, _)| p == name).map(|(_, l)| l.clone()).collect();
            let key = Family::Operate.key(ID);
            let operates = |p: &Pod| label(p, &key).map(|v| v.to_owned());
            if operates(pod).is_some() && operates(pod) == operates(then) && !at.is_empty() {
                wrong.push(format!("{name} is in Operate and on at {at:?}"));
            }
            if testbed::pods::is_available(pod) && testbed::pods::is_available(then) && at.is_empty()
                && label(pod, &Family::Operating.key(ID)).is_none() && label(then, &Family::Operating.key(ID)).is_none() {
                wrong.push(format!("{name} is available and nowhere"));
            }
        }
        wrong
    };
    let mut log = Vec::new();
    let mut problems = std::collections::BTreeMap::new();
    let began = Instant::now();
    let calls_before = (bed.http.calls(), bed.guarded.calls());
    let mut step = 0;
    while began.elapsed() < Duration::from_secs(150) {
        step += 1;
        let pod = pods[next(4) as usize].clone();
        let action = match next(13) {
            0 => { web.edit(adapter("edge")).await; "to edge".to_owned() }
            1 => { web.edit(adapter("guarded")).await; "to guarded".to_owned() }
            2 => { web.edit(adapter("passing")).await; "to passing".to_owned() }
            3 => { bed.guarded.state().down ^= true; "guarded down toggled".to_owned() }
            4 => { bed.http.state().down ^= true; "edge down toggled".to_owned() }
            5 => { bed.guarded.state().lost_replies = 1; bed.http.state().lost_replies = 1; "lost replies".to_owned() }
            6 => { let mut s = bed.guarded.state(); if !s.refused_pods.remove(&pod) { s.refused_pods.insert(pod.clone()); } format!("guarded refuses {:?}", s.refused_pods) }
            7 => { let port = 8080 + next(2); web.edit(json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": port }] } })).await; format!("port {port}") }
            8 | 9 | 10 => {
                let now = scope.get(&pod).await;
                if label(&now, &Family::Operating.key(ID)).is_none() && testbed::pods::in_flight(&now).is_empty() {
                    drop(scope.begin(&pod, ID).await); format!("begin {pod}")
                } else if may_operate(&now, ID) {
                    drop(scope.finish(&pod, ID).await); format!("finish {pod}")
                } else { undo_quietly(&scope, &pod).await; format!("undo {pod}") }
            }
            11 => { bed.guarded.state().hangs = true; sleep(Duration::from_secs(3)).await; bed.guarded.state().hangs = false; "guarded hung for 3 s".to_owned() }
            _ => { bed.guarded.state().down = false; bed.http.state().down = false; bed.guarded.state().refused_pods.clear(); "all well".to_owned() }
        };
        log.push(format!("{:?} {action}", began.elapsed()));
        let until = Instant::now() + Duration::from_millis(300 + next(2500));
        while Instant::now() < until {
            for wrong in sample().await {
                problems.entry(wrong).or_insert_with(|| (began.elapsed(), 0_usize)).1 += 1;
            }
            sleep(Duration::from_millis(40)).await;
        }
    }
    let calls = (bed.http.calls() - calls_before.0, bed.guarded.calls() - calls_before.1);
    bed.http.end_faults();
    { let mut s = bed.guarded.state(); s.down = false; s.hangs = false; s.refused_pods.clear(); s.lost_replies = 0; }
    for pod in &pods {
        drop(scope.finish(pod, ID).await);
    }
    let settled = within(60, async || {
        let r = web.report().await?;
        (r.registered == 4 && r.pending + r.draining + r.failed == 0 && r.last_error.is_none()).then_some(())
    }).await;
    eprintln!("T7 seed {seed}: {step} steps, calls {calls:?}, settled {}, record {}, cut {:?} {:?}", settled.is_some(), in_use(&web).await, bed.http.state().cut, bed.guarded.state().cut);
    for (problem, (at, count)) in &problems { eprintln!("T7 {problem}: first {at:?}, {count} times"); }
    if !problems.is_empty() || settled.is_none() { for line in &log { eprintln!("   {line}"); } eprintln!("{:?}", web.report().await); }
    assert!(problems.is_empty() && settled.is_some());
}

/// T15: random moves, faults and operations. Nobody is on in Operate, and who is available serves somewhere.
#[tokio::test]
async fn attack_rough_moves() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-rough").await;
    let (web, set) = serving_by(&scope, "edge", 4).await;
    let pods = names(&set).await;
    let seed: u64 = std::env::var("ATK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let mut random = seed;
    let mut next = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    let api = scope.pods();
    let namespace = scope.namespace.clone();
    // Every sample reads the Pods before and after the load balancers.
    let sample = async || {
        let list = async || -> std::collections::BTreeMap<String, Pod> {
            let pods = api.list(&ListParams::default()).await.unwrap();
            pods.items.into_iter().map(|p| (p.name_any(), p)).collect()
        };
        let before = list().await;
        let on: Vec<(String, String)> = {
            let (edge, guarded) = (bed.http.state(), bed.guarded.state());
            let of = |name: &'static str, state: &testbed::http_double::HttpState| -> Vec<(String, String)> {
                state.members.iter().filter(|(k, m)| k.0 == namespace && m.presence == traffic_http::wire::PresenceInfo::Serving)
                    .map(|(_, m)| (m.pod_name.clone(), name.to_owned())).collect()
            };
            [of("edge", &edge), of("guarded", &guarded)].concat()
        };
        let after = list().await;
        let mut wrong = Vec::new();
        for (name, pod) in &before {
            let Some(then) = after.get(name) else { continue };
            let at: Vec<_> = on.iter().filter(|(p, _)| p == name).map(|(_, l)| l.clone()).collect();
            let key = Family::Operate.key(ID);
            let operates = |p: &Pod| label(p, &key).map(|v| v.to_owned());
            if operates(pod).is_some() && operates(pod) == operates(then) && !at.is_empty() {
                wrong.push(format!("{name} is in Operate and on at {at:?}"));
            }
            if testbed::pods::is_available(pod) && testbed::pods::is_available(then) && at.is_empty()
                && label(pod, &Family::Operating.key(ID)).is_none() && label(then, &Family::Operating.key(ID)).is_none() {
                wrong.push(format!("{name} is available and nowhere"));
            }
        }
        wrong
    };
    let mut log = Vec::new();
    let mut problems = std::collections::BTreeMap::new();
    let began = Instant::now();
    let calls_before = (bed.http.calls(), bed.guarded.calls());
    let mut step = 0;
    while began.elapsed() < Duration::from_secs(150) {
        step += 1;
        let pod = pods[next(4) as usize].clone();
        let action = match next(16) {
            13 => match seed % 2 { 0 => { let mut s = bed.http.state(); s.late = Some(Duration::from_secs(7)); drop(s); bed.guarded.state().late = Some(Duration::from_secs(7)); "late calls".to_owned() } _ => { let leader = bed.bed.leader().await; bed.bed.kill(leader).await; bed.bed.restart(leader).await; "leader killed".to_owned() } },
            14 => { scope.lose_readiness(&pod).await; format!("{pod} not Ready") }
            15 => { for pod in &pods { scope.resume_kubelet(pod).await; } "kubelets resumed".to_owned() }
            0 => { web.edit(adapter("edge")).await; "to edge".to_owned() }
            1 => { web.edit(adapter("guarded")).await; "to guarded".to_owned() }
            2 => { web.edit(adapter("passing")).await; "to passing".to_owned() }
            3 => { bed.guarded.state().down ^= true; "guarded down toggled".to_owned() }
            4 => { bed.http.state().down ^= true; "edge down toggled".to_owned() }
            5 => { bed.guarded.state().lost_replies = 1; bed.http.state().lost_replies = 1; "lost replies".to_owned() }
            6 => { let mut s = bed.guarded.state(); if !s.refused_pods.remove(&pod) { s.refused_pods.insert(pod.clone()); } format!("guarded refuses {:?}", s.refused_pods) }
            7 => { let port = 8080 + next(2); web.edit(json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": port }] } })).await; format!("port {port}") }
            8 | 9 | 10 => {
                let now = scope.get(&pod).await;
                if label(&now, &Family::Operating.key(ID)).is_none() && testbed::pods::in_flight(&now).is_empty() {
                    drop(scope.begin(&pod, ID).await); format!("begin {pod}")
                } else if may_operate(&now, ID) {
                    drop(scope.finish(&pod, ID).await); format!("finish {pod}")
                } else { undo_quietly(&scope, &pod).await; format!("undo {pod}") }
            }
            11 => { bed.guarded.state().hangs = true; sleep(Duration::from_secs(3)).await; bed.guarded.state().hangs = false; "guarded hung for 3 s".to_owned() }
            _ => { bed.guarded.state().down = false; bed.http.state().down = false; bed.guarded.state().refused_pods.clear(); "all well".to_owned() }
        };
        log.push(format!("{:?} {action}", began.elapsed()));
        let until = Instant::now() + Duration::from_millis(300 + next(2500));
        while Instant::now() < until {
            for wrong in sample().await {
                problems.entry(wrong).or_insert_with(|| (began.elapsed(), 0_usize)).1 += 1;
            }
            sleep(Duration::from_millis(40)).await;
        }
    }
    let calls = (bed.http.calls() - calls_before.0, bed.guarded.calls() - calls_before.1);
    bed.http.end_faults();
    { let mut s = bed.guarded.state(); s.down = false; s.hangs = false; s.refused_pods.clear(); s.lost_replies = 0; }
    bed.guarded.state().late = None;
    for pod in &pods {
        scope.resume_kubelet(pod).await;
        drop(scope.finish(pod, ID).await);
    }
    let settled = within(60, async || {
        let r = web.report().await?;
        (r.registered == 4 && r.pending + r.draining + r.failed == 0 && r.last_error.is_none()).then_some(())
    }).await;
    eprintln!("T15 seed {seed}: {step} steps, calls {calls:?}, settled {}, record {}, cut {:?} {:?}", settled.is_some(), in_use(&web).await, bed.http.state().cut, bed.guarded.state().cut);
    for (problem, (at, count)) in &problems { eprintln!("T15 {problem}: first {at:?}, {count} times"); }
    if !problems.is_empty() || settled.is_none() { for line in &log { eprintln!("   {line}"); } eprintln!("{:?}", web.report().await); }
    assert!(problems.keys().all(|p| !p.contains("in Operate")) && settled.is_some());
}

async fn undo_quietly(scope: &Scope, pod: &str) {
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    drop(scope.label(pod, undo).await);
}

/// What becomes of a Pod that is not Ready while the move fails, when it is Ready again and the former load balancer refuses it.
async fn comes_back(bed: &TrafficBed, scope: &Scope, web: &Employer<'_>, pods: &[String], name: &str) {
    scope.lose_readiness(&pods[0]).await;
    wait::until("the Pod to leave the former load balancer", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    sleep(Duration::from_secs(8)).await;
    let protected = web.protects(&scope.get(&pods[0]).await);
    eprintln!("{name}: protected 8 s after it left: {protected}; {:?}", web.report().await);
    bed.http.state().refused_pods = [pods[0].clone()].into();
    scope.become_ready(&pods[0]).await;
    scope.until_pod(&pods[0], "Ready", is_ready).await;
    sleep(Duration::from_secs(8)).await;
    let back = scope.get(&pods[0]).await;
    let serving = (bed.http.serving(&scope.namespace), bed.guarded.serving(&scope.namespace));
    let available = testbed::pods::is_available(&back);
    eprintln!("{name}: 8 s after Ready: available {available}, serving {serving:?}, {:?}", web.report().await);
    bed.http.state().refused_pods.clear();
    bed.guarded.state().down = false;
    scope.resume_kubelet(&pods[0]).await;
    assert!(!available || serving.0.contains(&pods[0]) || serving.1.contains(&pods[0]));
}

/// T8: the new adapter refuses the Service.
#[tokio::test]
async fn attack_comes_back_while_the_new_adapter_refuses() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-refuses").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let mut part = adapter("slb");
    part["spec"] = json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] });
    web.edit(part).await;
    web.until("the refusal", |r| r.adapter == "slb" && r.last_error.is_some()).await;
    comes_back(bed, &scope, &web, &pods, "T8").await;
}

/// T9: another leader goes on with a move to a load balancer that is down.
#[tokio::test]
async fn attack_comes_back_after_a_leader_change_in_a_failing_move() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-leader").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    down(bed, &web).await;
    bed.crash_all().await;
    comes_back(bed, &scope, &web, &pods, "T9").await;
}

/// T10: as T1, and the operation is undone near the end of the drain.
#[tokio::test]
async fn attack_late_undo_during_a_hang_has_its_drain_time() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-undo-late").await;
    const DRAIN: u64 = 30;
    let drain = json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): DRAIN.to_string() } } });
    let web = Employer::new(&scope, "web", drain).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let pods = names(&set).await;
    for pod in &pods {
        web.marks(pod, (true, true)).await;
    }
    scope.begin(&pods[0], ID).await.unwrap();
    let first = Instant::now();
    web.until("the drain", |report| report.draining == 1).await;
    sleep(Duration::from_secs(21).saturating_sub(first.elapsed())).await;
    bed.guarded.state().hangs = true;
    let mut part = adapter("guarded");
    part["spec"] = json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] });
    web.edit(part).await;
    wait::until("a hanging call", async || bed.guarded.state().under_way > 0).await;
    sleep(Duration::from_secs(4)).await;
    undo(&scope, &pods[0]).await;
    scope.until_pod(&pods[0], "Ready", is_ready).await;
    wait::until("the slice", async || slice_ready(&scope, &pods[0]).await).await;
    scope.begin(&pods[0], ID).await.unwrap();
    let second = Instant::now();
    wait::until("the operation", async || may_operate(&scope.get(&pods[0]).await, ID)).await;
    let took = second.elapsed();
    bed.guarded.state().hangs = false;
    eprintln!("T10: Operate {took:?} after the second begin, {:?} after the first", first.elapsed());
    assert!(took >= Duration::from_secs(DRAIN), "{took:?} of {DRAIN} s");
}

/// T11: no move. The leader stands still for a few seconds while an operation is undone and begun again.
#[tokio::test]
async fn attack_undo_while_the_leader_stands_still() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-still").await;
    const DRAIN: u64 = 20;
    let drain = json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): DRAIN.to_string() } } });
    let web = Employer::new(&scope, "web", drain).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let pods = names(&set).await;
    for pod in &pods {
        web.marks(pod, (true, true)).await;
    }
    scope.begin(&pods[0], ID).await.unwrap();
    let first = Instant::now();
    web.until("the drain", |report| report.draining == 1).await;
    sleep(Duration::from_secs(12).saturating_sub(first.elapsed())).await;
    let leader = bed.bed.leader().await;
    bed.bed.signal(leader, rustix::process::Signal::STOP).await;
    let stopped = Instant::now();
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    while scope.label(&pods[0], undo.clone()).await.is_err() {}
    eprintln!("T11: undone {:?} after the stop", stopped.elapsed());
    scope.until_pod(&pods[0], "Ready", is_ready).await;
    wait::until("the slice", async || slice_ready(&scope, &pods[0]).await).await;
    eprintln!("T11: on {:?} after the stop", stopped.elapsed());
    while scope.begin(&pods[0], ID).await.is_err() {}
    let second = Instant::now();
    eprintln!("T11: begun again {:?} after the stop", stopped.elapsed());
    // The slices follow the Pod meanwhile.
    wait::until("the slice", async || !slice_ready(&scope, &pods[0]).await).await;
    bed.bed.signal(leader, rustix::process::Signal::CONT).await;
    wait::until("the operation", async || may_operate(&scope.get(&pods[0]).await, ID)).await;
    let took = second.elapsed();
    eprintln!("T11: Operate {took:?} after the second begin, {:?} after the first; leader {leader}, now {}", first.elapsed(), bed.bed.leader().await);
    assert!(took >= Duration::from_secs(DRAIN), "{took:?} of {DRAIN} s");
}

/// T12: a Service is deleted in a chain of moves whose middle load balancer is dead.
#[tokio::test]
async fn attack_deleted_in_a_chain() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-del-chain").await;
    let (web, _set) = serving_by(&scope, "edge", 2).await;
    down(bed, &web).await;
    web.edit(adapter("endpoints")).await;
    web.until("endpoints", |r| r.adapter == "endpoints").await;
    web.delete().await;
    sleep(Duration::from_secs(15)).await;
    let serving = bed.http.serving(&scope.namespace);
    eprintln!("T12: edge {serving:?} 15 s after the deletion; {:?}", web.report().await);
    bed.guarded.state().down = false;
    web.gone().await;
    assert!(serving.is_empty());
}

/// T13: as T5, in detail, and with a Pod whose former members never served.
#[tokio::test]
async fn attack_unprotected_leaves_in_a_move() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-left2").await;
    let web = Employer::new(&scope, "web", crate::fixtures::edge()).await;
    for name in ["web-1", "web-2"] {
        scope.pod(name, json!({ "metadata": { "labels": { "app": "web" } } })).await;
    }
    web.consistent(2).await;
    bed.http.state().refused_pods = ["web-3".to_owned()].into();
    scope.pod("web-3", json!({ "metadata": { "labels": { "app": "web" } } })).await;
    web.until("refused", |r| r.failed == 1).await;
    scope.begin("web-1", ID).await.unwrap();
    wait::until("Operate", async || may_operate(&scope.get("web-1").await, ID)).await;
    down(bed, &web).await;
    let show = async |when: &str| {
        for name in ["web-1", "web-2", "web-3"] {
            let pod = scope.get(name).await;
            eprintln!("T13 {when}: {name} expected {} protected {} available {} ops {:?}", web.is_expected(&pod), web.protects(&pod), is_available(&pod), testbed::pods::in_flight(&pod));
        }
    };
    show("before").await;
    let out = json!({ "metadata": { "labels": { "app": "else" } } });
    scope.patch("web-1", out.clone()).await.unwrap();
    scope.patch("web-3", out).await.unwrap();
    for n in 0..4 {
        sleep(Duration::from_secs(2)).await;
        show(&format!("{n} after relabelling")).await;
    }
    scope.finish("web-1", ID).await.unwrap();
    sleep(Duration::from_secs(8)).await;
    show("finished").await;
    eprintln!("T13 {:?}", web.report().await);
    let stuck = { let pod = scope.get("web-3").await; web.is_expected(&pod) && !is_available(&pod) };
    bed.guarded.state().down = false;
    assert!(!stuck);
}

/// T14: an earlier record comes back, and a new leader can't read the present load balancer.
#[tokio::test]
async fn attack_earlier_record_and_new_leader() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-restore2").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    web.edit(adapter("guarded")).await;
    wait::until("the move", async || in_use(&web).await == "guarded").await;
    web.consistent(2).await;
    bed.guarded.state().down = true;
    bed.crash_all().await;
    web.until("the failure", |r| r.last_error.is_some()).await;
    // As the manifest has it that was exported before.
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER_IN_USE): "edge" } } })).await;
    sleep(Duration::from_secs(5)).await;
    scope.begin(&pods[0], ID).await.unwrap();
    let operates = within(25, async || may_operate(&scope.get(&pods[0]).await, ID).then_some(())).await;
    let serving = bed.guarded.serving(&scope.namespace);
    eprintln!("T14: record {} operates {} guarded {serving:?}", in_use(&web).await, operates.is_some());
    bed.guarded.state().down = false;
    assert!(operates.is_none());
}

/// Whether the Pods come back after they were all off for a moment in a move that the new load balancer refuses.
async fn all_off_for_a_moment(name: &str, replicas: i32, operation: bool, pending: bool) {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-vacuous").await;
    let (web, set) = serving_by(&scope, "edge", replicas).await;
    let pods = names(&set).await;
    match pending {
        true => drop(bed.guarded.state().pending_groups.insert("http".to_owned())),
        false => bed.guarded.state().refused_pods = pods.iter().cloned().collect(),
    }
    web.edit(adapter("guarded")).await;
    web.until("the failure", |r| r.adapter == "guarded" && r.pending >= pods.len()).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    match operation {
        true => {
            scope.begin(&pods[0], ID).await.unwrap();
            wait::until("Operate", async || may_operate(&scope.get(&pods[0]).await, ID)).await;
            sleep(Duration::from_secs(3)).await;
            scope.finish(&pods[0], ID).await.unwrap();
        }
        false => {
            for pod in &pods {
                scope.lose_readiness(pod).await;
            }
            wait::until("nobody", async || bed.http.serving(&scope.namespace).is_empty()).await;
            sleep(Duration::from_secs(5)).await;
            for pod in &pods {
                scope.become_ready(pod).await;
            }
        }
    }
    let back = within(30, async || (bed.http.serving(&scope.namespace) == pods).then_some(())).await;
    let available = testbed::pods::is_available(&scope.get(&pods[0]).await);
    eprintln!("{name}: back {} edge {:?} guarded {:?} record {} available {available} ops {:?} {:?}", back.is_some(), bed.http.serving(&scope.namespace), bed.guarded.serving(&scope.namespace), in_use(&web).await, testbed::pods::in_flight(&scope.get(&pods[0]).await), web.report().await);
    bed.guarded.state().refused_pods.clear();
    bed.guarded.state().pending_groups.clear();
    for pod in &pods {
        scope.resume_kubelet(pod).await;
    }
    assert!(back.is_some());
}

#[tokio::test]
async fn attack_vacuous_operation_on_the_only_pod_of_a_refused_move() {
    all_off_for_a_moment("T16", 1, true, false).await;
}

#[tokio::test]
async fn attack_vacuous_readiness_of_all_pods_in_a_move_that_is_not_healthy() {
    all_off_for_a_moment("T17", 2, false, true).await;
}
