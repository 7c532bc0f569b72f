//! Attacks on the guarantee and by a tenant. Each test says what should be; a failure is a finding.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::PostParams;
use operating::api::keys::{self, Family};
use operating::domain::traffic::names::EmployerName;
use serde_json::{Value, json};
use testbed::pods::is_ready;
use testbed::{Bed, wait};

use crate::bed::alone;
use crate::fixtures::{Employer, edge, managed_by, names};
use crate::sets::{Set, label};

const ID: &str = "manual";

fn available(pod: &Pod) -> bool {
    label(pod, keys::SERVICE_AVAILABLE).is_some() && is_ready(pod)
}

fn operates(pod: &Pod) -> bool {
    label(pod, &Family::Operate.key(ID)).is_some()
}

fn slow_edge() -> Value {
    let mut part = edge();
    part["metadata"]["annotations"][keys::CONSIST_DRAIN_SECONDS] = json!("300");
    part
}

/// The owner misspells the adapter while an operation drains, and undoes the operation that hangs.
#[tokio::test]
async fn undone_while_the_adapter_is_misspelt() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("atk-undo-typo").await;
    let web = Employer::new(&scope, "web", slow_edge()).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    bed.http.state().connections = 3;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "egde" } } }))
        .await;
    web.until("the error", |report| report.adapter.is_empty()).await;
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(&pods[0], undo).await.unwrap();
    scope.until_pod(&pods[0], "the Pod to be Ready", is_ready).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let back = scope.get(&pods[0]).await;
    let serving = bed.http.serving(&scope.namespace);
    println!("ATTACK typo: serving {serving:?}, available {}", available(&back));
    let first = available(&back) && !serving.contains(&pods[0]);
    // The budget of 1 now lets the other Pod go.
    let begun = scope.begin(&pods[1], ID).await.unwrap();
    let off = label(&begun, &Family::Preparing.key(ID)).is_some();
    println!("ATTACK typo: the other Pod is in Preparing: {off}");
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "edge" } } }))
        .await;
    let mut fewest = 2;
    for _ in 0..100 {
        fewest = fewest.min(bed.http.serving(&scope.namespace).len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("ATTACK typo: fewest serving after the correction: {fewest}");
    bed.http.end_faults();
    assert!(!first, "a Pod counts as available whose member is off; fewest {fewest}");
}

/// The adapter changes while a Pod drains.
#[tokio::test]
async fn moved_from_endpoints_during_a_drain() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("atk-move").await;
    let mut part = managed_by("endpoints");
    part["metadata"]["annotations"][keys::CONSIST_DRAIN_SECONDS] = json!("120");
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    let begun = Instant::now();
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "edge" } } }))
        .await;
    scope.until_pod(&pods[0], "Operate", operates).await;
    let took = begun.elapsed();
    println!("ATTACK move: Operate after {took:?}");
    assert!(took > Duration::from_secs(60), "the drain time of 120 s ended after {took:?}");
    let _ = bed;
}

/// An operation is undone while no server answers the webhooks.
#[tokio::test]
async fn undone_while_no_server_runs() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("atk-undo-down").await;
    let web = Employer::new(&scope, "web", slow_edge()).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    bed.http.state().connections = 3;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    bed.bed.kill_all().await;
    bed.http.state().pending_groups.insert("http".to_owned());
    let undo = json!({
        (Family::Operating.key(ID)): null, (Family::OperationType.key(ID)): null,
        (Family::UndoOperationType.key(ID)): ID,
    });
    let undone = scope.label(&pods[0], undo).await;
    println!("ATTACK down: undone without a server: {:?}", undone.as_ref().map(|p| p.labels().clone()));
    let end = scope.finish(&pods[0], ID).await;
    println!("ATTACK down: finish without a server: {:?}", end.as_ref().map(|p| p.labels().clone()));
    for index in 0..testbed::fleet::REPLICAS {
        bed.bed.restart(index).await;
    }
    if undone.is_err() && end.is_err() {
        bed.http.end_faults();
        return; // held
    }
    scope.until_pod(&pods[0], "the Pod to be Ready", is_ready).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let back = scope.get(&pods[0]).await;
    let text = format!("{:?} {:?} {:?}", back.labels(), back.finalizers(), bed.http.state().members.iter().filter(|(k, _)| k.0 == scope.namespace).map(|(_, m)| (m.pod_name.clone(), m.presence)).collect::<Vec<_>>());
    println!("ATTACK down: serving {:?} {text}", bed.http.serving(&scope.namespace));
    let wrong = available(&back);
    bed.http.end_faults();
    assert!(!wrong, "available while its member is pending: {text}");
}

/// A second operation begins and is undone while the first one works; the leader can't read the load balancer.
#[tokio::test]
async fn second_operation_leaves_the_protection() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("atk-second").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "Operate", operates).await;
    bed.http.state().down = true;
    let leader = bed.bed.leader().await;
    bed.bed.kill(leader).await;
    bed.bed.restart(leader).await;
    web.until("the failure", |report| report.last_error.is_some()).await;
    let second = scope.begin(&pods[0], "second").await.unwrap();
    println!("ATTACK second: protected {} {:?}", web.protects(&second), second.labels());
    let undo = json!({ (Family::UndoOperationType.key("second")): "second" });
    let undone = scope.label(&pods[0], undo).await.unwrap();
    println!("ATTACK second: after undo protected {} {:?}", web.protects(&undone), undone.labels());
    scope.finish(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "the Pod to be Ready", is_ready).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let back = scope.get(&pods[0]).await;
    let serving = bed.http.serving(&scope.namespace);
    println!("ATTACK second: serving {serving:?} available {} {:?}", available(&back), back.finalizers());
    let wrong = available(&back) && !serving.contains(&pods[0]);
    bed.http.end_faults();
    assert!(!wrong, "available, and no member of it serves: {serving:?}");
}

/// The health checks of the load balancer fail for two Pods of three. The budget is one.
#[tokio::test]
async fn unhealthy_members_use_no_budget() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("atk-health").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    web.consistent(3).await;
    let pods = names(&set).await;
    for member in bed.http.state().members.iter_mut().filter(|(k, _)| k.0 == scope.namespace) {
        if member.1.pod_name != pods[2] {
            member.1.presence = traffic_http::wire::PresenceInfo::Pending;
        }
    }
    // A new leader reads. It knows that two members get no requests.
    let leader = bed.bed.leader().await;
    bed.bed.kill(leader).await;
    bed.bed.restart(leader).await;
    web.until("two pending members", |report| (report.registered, report.pending) == (1, 2)).await;
    scope.begin(&pods[2], ID).await.unwrap();
    let pod = scope.until_pod(&pods[2], "the begin", |pod| operates(pod) || label(pod, &Family::PreCheck.key(ID)).is_some() && label(pod, &Family::Preparing.key(ID)).is_none()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let report = web.report().await;
    let serving = bed.http.serving(&scope.namespace);
    println!("ATTACK health: operates {} serving {serving:?} report {report:?}", operates(&pod));
    assert!(!serving.is_empty(), "the last Pod that served was taken off");
}

/// A slice that another program has written names the Pod without its UID.
#[tokio::test]
async fn slice_that_names_a_pod_without_uid() {
    let scope = Bed::shared().await.scope("atk-slice").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let pod = set.pod(0).await;
    let address = pod.status.clone().unwrap().pod_ip.unwrap();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": { "name": "web-extra", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": [address], "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": pod.name_any(), "namespace": scope.namespace },
        }],
        "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
    }))
    .unwrap();
    scope.api::<EndpointSlice>().create(&PostParams::default(), &slice).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    scope.begin(&pod.name_any(), ID).await.unwrap();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let pod = scope.get(&pod.name_any()).await;
    println!("ATTACK slice: operates {}", operates(&pod));
    assert!(!operates(&pod), "a slice still says that the address is ready");
}

/// A tenant writes long names of Services that do not exist into the annotation of a Pod, again and again.
#[tokio::test]
async fn forged_names_leave_no_memory() {
    let bed = crate::bed::shared().await;
    let scope = bed.bed.scope("atk-memory").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let pod = set.pod(0).await.name_any();
    let leader = bed.bed.leader().await;
    let resident = async || testbed::usage::resident_kib(bed.bed.process(leader).await.as_raw_nonzero().get() as u32).unwrap();
    let mut figures = vec![resident().await];
    let (rounds, filler) = (300, "n".repeat(50_000));
    for round in 0..rounds {
        let key = |n: usize| EmployerName::new("Service", &scope.namespace, &format!("{filler}{round}-{n}"));
        let forged = (0..1).map(|n| (key(n).key(), json!(key(n).finalizer())));
        let mut entries: serde_json::Map<String, Value> = forged.collect();
        entries.insert(web.name.key(), json!(web.name.finalizer()));
        let text = json!({ "expectedFinalizers": entries }).to_string();
        scope.patch(&pod, json!({ "metadata": { "annotations": { (keys::AVAILABLE_CONDITIONS): text } } })).await.unwrap();
        let gone = wait::found(async || {
            let pod = scope.get(&pod).await;
            let text = pod.annotations().get(keys::AVAILABLE_CONDITIONS).cloned();
            (text.unwrap_or_default().len() < 1_000).then_some(())
        });
        let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
        if gone.is_err() {
            println!("ATTACK memory: round {round} is not cleaned");
        }
        if round % 50 == 49 {
            figures.push(resident().await);
            println!("ATTACK memory: {figures:?} KiB after {} rounds", round + 1);
        }
    }
    assert!(figures[figures.len() - 1] < figures[1] + 6_000, "{figures:?}");
}

/// Control characters of a tenant in Events.
#[tokio::test]
async fn control_text_in_events() {
    let scope = Bed::shared().await.scope("atk-text").await;
    let evil = "Evil\u{1b}[31mred\nroot: \u{202e}txt";
    let text = json!({ "expectedFinalizers": { (format!("{evil}/{}/x", scope.namespace)): "prot/x" } }).to_string();
    let pod = scope.pod("bare", json!({ "metadata": { "annotations": { (keys::AVAILABLE_CONDITIONS): text } } })).await;
    let events = async || {
        let list = scope.api::<k8s_openapi::api::core::v1::Event>().list(&Default::default()).await.unwrap();
        list.items.into_iter().filter_map(|event| event.message).filter(|m| m.contains("Evil")).collect::<Vec<_>>()
    };
    let found = tokio::time::timeout(Duration::from_secs(60), wait::found(async || { let e = events().await; (!e.is_empty()).then_some(e) })).await;
    println!("ATTACK text: {found:?} {}", pod.name_any());
    if let Ok(Some(found)) = found {
        assert!(!found.iter().any(|m| m.contains('\u{1b}') || m.contains('\n')), "{found:?}");
    }
}

async fn slb_web<'a>(bed: &crate::bed::TrafficBed, scope: &'a testbed::Scope, lb: &str) -> (Employer<'a>, Set<'a>, Vec<String>) {
    bed.slb.state().add_listener(lb, testbed::slb_double::Listener::tcp(80, None));
    let part = json!({
        "metadata": { "labels": { "service.k8s.alibaba/loadbalancer-id": lb } },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    });
    let web = Employer::new(scope, "web", part).await;
    let set = Set::unsettled(scope, "web", 2, json!({})).await;
    let all = crate::fixtures::addresses(&set, 2).await;
    let registered: Vec<_> = all.iter().map(|(_, a)| a.clone()).collect();
    bed.slb.cloud_controller().set(lb, &registered, 8080);
    web.consistent(2).await;
    set.settled().await;
    (web, set, all.into_iter().map(|(n, _)| n).collect())
}

/// The owner changes the port of the Service while a Pod waits. The cloud controller is late.
#[tokio::test]
async fn slb_port_changes_while_a_pod_waits() {
    let bed = crate::bed::shared().await;
    let scope = bed.bed.scope("atk-slb-port").await;
    let (web, _set, pods) = slb_web(bed, &scope, "lb-0").await;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the wait", |report| report.draining == 1).await;
    web.edit(json!({ "spec": { "ports": [{ "name": "http", "port": 81, "targetPort": 8080 }] } })).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let pod = scope.get(&pods[0]).await;
    let backends = bed.slb.backends("lb-0").len();
    println!("ATTACK slb port: operates {} backends {backends}", operates(&pod));
    assert!(!operates(&pod), "the load balancer still has it: {backends} servers");
}

/// The label names another load balancer while a Pod waits.
#[tokio::test]
async fn slb_label_changes_while_a_pod_waits() {
    let bed = crate::bed::shared().await;
    let scope = bed.bed.scope("atk-slb-label").await;
    bed.slb.state().add_load_balancer("lb-8");
    bed.slb.state().add_load_balancer("lb-9");
    bed.slb.state().add_listener("lb-9", testbed::slb_double::Listener::tcp(80, None));
    let (web, _set, pods) = slb_web(bed, &scope, "lb-8").await;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the wait", |report| report.draining == 1).await;
    web.edit(json!({ "metadata": { "labels": { "service.k8s.alibaba/loadbalancer-id": "lb-9" } } })).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let pod = scope.get(&pods[0]).await;
    let backends = bed.slb.backends("lb-8").len();
    println!("ATTACK slb label: operates {} backends {backends}", operates(&pod));
    assert!(!operates(&pod), "the former load balancer still has it: {backends} servers");
}
