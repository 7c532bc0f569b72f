//! Each known weakness of ResourceConsist's first implementation (W1 to W33), and each behaviour that its tests pin (B1 to
//! B8), with the tests that show what happens here. `every_case_has_a_test_that_exists` checks the names.
//!
//! | Case | What went wrong, or what is pinned | Tests, or why it is impossible |
//! |---|---|---|
//! | W1 | an adapter without the optional parts panics | `random_walks_of_each_control` |
//! | W2 | Pods in other clusters keep their finalizer | impossible: one cluster |
//! | W3 | errors of concurrent writes get lost | impossible: each write returns its own result |
//! | W4 | a deleted Service hangs while it selects Pods | `w04_observed_service_goes_although_its_pods_stay_registered`, `deleted_service_takes_its_members_along`, `deleted_service_still_finds_its_members` |
//! | W5 | a Service that loses its label keeps finalizers | `service_that_loses_its_control_label_is_released` |
//! | W6 | no selector selects every Pod | `service_without_selector_marks_no_pod` |
//! | W7 | two writers of the annotation drop each other's entry | `w07_entries_of_all_writers_survive` |
//! | W8 | employers of one name share a finalizer | `w08_protection_of_another_kind_of_the_same_name_stays`, `finalizer_of_employer_of_same_name_is_not_ours` |
//! | W9 | ten calls a second, for as long as something waits | `w09_pods_that_nobody_registers_cost_few_calls`, `operation_waits_for_load_balancer_that_is_down` |
//! | W10 | Pods of one address hide each other | `second_pod_of_an_address_is_not_protected_and_is_named`, `address_of_an_ended_pod_belongs_to_the_new_pod`, `pod_without_address_serves_with_no_member_never`, `pods_that_share_an_address_are_told_apart_by_port` |
//! | W11 | a registered address counts as traffic, whatever its health | `member_serves_once_it_is_healthy_and_leaves_with_its_row`, `every_listener_of_the_service_must_have_the_member` |
//! | W12 | a Pod that is not ready gets the finalizer | `w12_pod_that_is_not_ready_is_neither_registered_nor_protected`, `deleted_pod_gets_no_mark_but_loses_it` |
//! | W13 | a Pod that leaves during a failed change keeps the finalizer | `w13_pods_that_leave_while_changes_are_refused_are_released` |
//! | W14 | a crash between two writes loses Pods | `w14_pods_that_leave_while_nobody_leads_are_released`, `w14_leader_that_dies_between_marks_leaves_none` |
//! | W15 | a Pod made again under its name gets no entry | `pod_made_again_under_its_name_gets_marks_and_a_member_of_its_own` |
//! | W16 | cleaning up revives or drops finalizers of others | `w16_finalizers_of_others_stay_as_they_are_during_the_end` |
//! | W17 | status is written after the Service has gone | impossible: the look ends with the removal of the finalizer |
//! | W18 | partial failures are shown to nobody | `refused_members_do_not_stop_the_others`, `refused_registration_is_an_error_and_an_event_until_it_is_made` |
//! | W19 | a wrong annotation of one Pod stops all | `w19_wrong_annotation_of_one_pod_does_not_stop_the_others` |
//! | W20 | whole objects are written from stale copies | `serving_pod_gets_both_marks_in_one_write`, `w07_entries_of_all_writers_survive` |
//! | W21 | lost triggers leave Pods as they are | `pod_that_leaves_the_selection_loses_its_marks`, `pod_that_is_not_managed_any_more_is_released` |
//! | W22 | the key of an employer has no kind | `key_names_its_employer` |
//! | W23 | `null` in the annotation panics, others get an empty one | `w23_empty_annotation_of_a_new_pod_is_filled_and_none_is_made_for_others` |
//! | W24 | the webhook is configured with another path | `new_pod_expects_traffic_from_its_creation` |
//! | W25 | nothing calls the webhook | `new_pod_expects_traffic_from_its_creation` |
//! | W26 | the certificate is never renewed | `served_certificate_is_trusted_through_every_rotation`, `three_installers_at_once_take_over_what_kuperator_left` |
//! | W27 | the manifests do not fit the program | `kustomization_installs_and_removes_everything` |
//! | W28 | keys are read once, and a missing one stops all | `token_that_changes_while_a_pod_drains_is_read_again`, `temporary_key_that_expires_while_a_pod_drains_is_replaced`, `missing_or_empty_file_is_named` |
//! | W29 | a member of another form is skipped in silence | `pod_without_the_port_is_named` |
//! | W30 | a failed batch hides errors | `refused_members_do_not_stop_the_others`, `calls_have_at_most_20_servers` |
//! | W31 | no draining, weights, metrics, status | `open_connections_are_waited_for`, `changed_weight_is_set`, `metrics_and_labels_match_the_documentation` |
//! | W32 | rights are wider than needed | `server_works_with_the_rights_of_its_parts_alone` |
//! | W33 | the documents describe another interface | impossible: the only interface is the trait, and the page refers to an example that is compiled |
//! | B1 | the old form of the clean finalizer is replaced, a foreign one stays | `service_of_kuperator_is_taken_over` |
//! | B2 | objects of the load balancer follow the Service | impossible: adapters manage members, and no load balancers |
//! | B3 | a Pod that is ready serves and is protected | `operation_begins_when_traffic_is_off_and_ends_when_it_is_on` |
//! | B4 | readiness off and on | `pod_whose_gate_turns_false_is_taken_off_until_it_turns_true` |
//! | B5 | a deleted Pod: the member goes, the Pod goes | `deleted_pod_goes_after_its_member` |
//! | B6 | an error is shown and later cleared | `refused_registration_is_an_error_and_an_event_until_it_is_made` |
//! | B7 | a relabelled Pod loses entry, finalizer and member | `relabelled_pod_is_drained_and_released` |
//! | B8 | the same if the member had gone before | `relabelled_pod_whose_member_was_removed_by_others_is_released` |

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Error, ResourceExt};
use operating::api::keys;
use operating::domain::traffic::names::EmployerName;
use serde_json::{Value, json};
use testbed::scope::PAUSED;
use testbed::slb_double::Listener;
use testbed::source_files::sources_below;
use testbed::{Scope, wait};

use crate::bed::{self, TrafficBed, alone};
use crate::fixtures::{Employer, addresses, edge, names, serving};
use crate::sets::Set;

const KEY: &str = keys::AVAILABLE_CONDITIONS;

/// Where tests are.
const TESTS: [&str; 5] = ["tests", "src", "traffic", "examples", "testbed"];

#[test]
fn every_case_has_a_test_that_exists() {
    let source = include_str!("weaknesses.rs");
    let rows = source.lines().filter_map(|line| {
        let row = line.strip_prefix("//! | ")?.strip_suffix(" |")?;
        let cells: Vec<_> = row.split(" | ").collect();
        (cells[0] != "Case").then(|| (cells[0], cells[2]))
    });
    let sources: Vec<_> = TESTS.into_iter().flat_map(sources_below).collect();
    let is_test = |name: &str| {
        let head = format!("fn {name}(");
        sources.iter().any(|file| {
            let found = file
                .text
                .split(&head)
                .next()
                .filter(|before| *before != file.text);
            let last =
                found.and_then(|before| before.lines().rev().find(|line| line.contains("test")));
            last.is_some_and(|line| line.trim().starts_with("#[") && line.contains("test"))
        })
    };
    let mut cases = Vec::new();
    for (case, tests) in rows {
        cases.push(case.to_owned());
        if tests.starts_with("impossible: ") {
            continue;
        }
        for name in tests.split(", ") {
            let name = name.trim_matches('`');
            assert!(is_test(name), "{case}: no test is named {name}");
        }
    }
    let numbered = |letter: &'static str, last| (1..=last).map(move |n| format!("{letter}{n}"));
    let all: Vec<_> = numbered("W", 33).chain(numbered("B", 8)).collect();
    assert_eq!(cases, all);
}

fn labelled(app: &str) -> Value {
    json!({ "metadata": { "labels": { "app": app } } })
}

fn annotated(text: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" }, "annotations": { (KEY): text } } })
}

fn members(bed: &TrafficBed, scope: &Scope) -> usize {
    let state = bed.http.state();
    let keys = state.members.keys();
    keys.filter(|key| key.0 == scope.namespace).count()
}

/// A Service whose Pods the cloud controller of the cluster registers.
fn observed(load_balancer: &str) -> Value {
    json!({
        "metadata": { "labels": { "service.k8s.alibaba/loadbalancer-id": load_balancer } },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

#[tokio::test]
async fn w04_observed_service_goes_although_its_pods_stay_registered() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("w04").await;
    bed.slb.state().add_load_balancer("lb-4");
    let listener = Listener::tcp(80, None);
    bed.slb.state().add_listener("lb-4", listener);
    let web = Employer::new(&scope, "web", observed("lb-4")).await;
    let set = Set::unsettled(&scope, "web", 2, json!({})).await;
    let all = addresses(&set, 2).await;
    let registered: Vec<_> = all.iter().map(|(_, address)| address.clone()).collect();
    let controller = bed.slb.cloud_controller();
    controller.set("lb-4", &registered, 8080);
    web.consistent(2).await;
    set.settled().await;
    web.delete().await;
    web.gone().await;
    for (name, _) in &all {
        web.marks(name, (false, false)).await;
    }
    scope.all_available("app=web", 2).await;
    assert_eq!(web.failures().await, Vec::<String>::new());
}

/// Two Services begin at the same time as a third program writes its own entry, and the third one also overwrites the
/// annotation without looking.
#[tokio::test]
async fn w07_entries_of_all_writers_survive() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("w07").await;
    scope.pod("web-0", labelled("web")).await;
    scope.all_available("app=web", 1).await;
    let select = json!({ "spec": { "selector": { "app": "web" } } });
    let writer = async {
        for round in 0..40 {
            write_entry(&scope, round).await;
        }
    };
    let services = async {
        let web = Employer::new(&scope, "web", json!({})).await;
        let api = Employer::new(&scope, "api", select).await;
        (web, api)
    };
    let ((), (web, api)) = futures::join!(writer, services);
    web.marks("web-0", (true, true)).await;
    let pod = api.marks("web-0", (true, true)).await;
    assert_eq!(foreign_entry(&pod), Some(json!("prot/39")));
    assert!(web.is_expected(&pod) && web.protects(&pod));

    scope.patch("web-0", annotated("{}")).await.unwrap();
    web.marks("web-0", (true, true)).await;
    api.marks("web-0", (true, true)).await;
}

/// Replaces the entry of a program that reads before it writes.
async fn write_entry(scope: &Scope, round: usize) {
    loop {
        let pod = scope.get("web-0").await;
        let text = pod.annotations().get(KEY).map_or("{}", String::as_str);
        let mut value: Value = serde_json::from_str(text).unwrap();
        value["expectedFinalizers"]["Slb/other/x"] = json!(format!("prot/{round}"));
        let version = pod.resource_version();
        let patch = json!({ "metadata": {
            "resourceVersion": version, "annotations": { (KEY): value.to_string() },
        } });
        match scope.patch("web-0", patch).await {
            Err(Error::Api(status)) if status.code == 409 => {}
            written => return drop(written.unwrap()),
        }
    }
}

fn foreign_entry(pod: &Pod) -> Option<Value> {
    let value: Value = serde_json::from_str(pod.annotations().get(KEY)?).unwrap();
    value["expectedFinalizers"].get("Slb/other/x").cloned()
}

#[tokio::test]
async fn w08_protection_of_another_kind_of_the_same_name_stays() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("w08").await;
    let gateway = EmployerName::new("Gateway", &scope.namespace, "web");
    let entries = json!({ "expectedFinalizers": { (gateway.key()): gateway.finalizer() } });
    let entries = entries.to_string();
    let mut part = annotated(&entries);
    part["metadata"]["finalizers"] = json!([gateway.finalizer()]);
    scope.pod("web-0", part).await;
    scope.all_available("app=web", 1).await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let report = web
        .until("the conflict", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(
        error.contains(&format!("is marked by {}", gateway.key())),
        "{error}"
    );
    let is_whole =
        |pod: &Pod| pod.finalizers() == [gateway.finalizer()] && pod.annotations()[KEY] == entries;
    assert!(is_whole(&scope.get("web-0").await));
    web.delete().await;
    web.gone().await;
    assert!(is_whole(&scope.get("web-0").await));
}

#[tokio::test]
async fn w09_pods_that_nobody_registers_cost_few_calls() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("w09").await;
    bed.slb.state().add_load_balancer("lb-9");
    let listener = Listener::tcp(80, None);
    bed.slb.state().add_listener("lb-9", listener);
    let web = Employer::new(&scope, "web", observed("lb-9")).await;
    let named = json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "slb" } } });
    let none = Employer::new(&scope, "none", named).await;
    let set = Set::unsettled(&scope, "web", 3, json!({})).await;
    addresses(&set, 3).await;
    web.until("three pending members", |report| report.pending == 3)
        .await;
    none.until("the reason", |report| report.last_error.is_some())
        .await;
    let of_web = |call: &testbed::slb_double::Call| {
        let parameters = call.parameters.iter();
        parameters.into_iter().any(|(_, value)| value == "lb-9")
    };
    let count = || bed.slb.calls().iter().filter(|call| of_web(call)).count();
    let before = count();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let calls = count() - before;
    assert!(calls >= 1, "it is still read");
    assert!(calls <= 20, "{calls} calls in 20 s");
}

#[tokio::test]
async fn w12_pod_that_is_not_ready_is_neither_registered_nor_protected() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("w12").await;
    let web = Employer::new(&scope, "web", edge()).await;
    web.until("the first report", |_| true).await;
    let mut part = labelled("web");
    part["metadata"]["annotations"] = json!({ (PAUSED): "true" });
    scope.pod("web-0", part).await;
    let status = |ready: &str| {
        Patch::Strategic(json!({ "status": {
            "phase": "Running", "podIP": "10.99.0.12", "podIPs": [{ "ip": "10.99.0.12" }],
            "conditions": [{ "type": "Ready", "status": ready }],
        } }))
    };
    let params = PatchParams::default();
    let pods = scope.pods();
    pods.patch_status("web-0", &params, &status("False"))
        .await
        .unwrap();
    scope.pod("web-1", labelled("web")).await;
    web.consistent(1).await;
    web.marks("web-0", (true, false)).await;
    assert_eq!(bed.http.serving(&scope.namespace), ["web-1"]);
    pods.patch_status("web-0", &params, &status("True"))
        .await
        .unwrap();
    web.marks("web-0", (true, true)).await;
    web.consistent(2).await;
}

#[tokio::test]
async fn w13_pods_that_leave_while_changes_are_refused_are_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("w13").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    bed.http.state().refused_pods.insert(pods[0].clone());
    scope.begin(&pods[0], "manual").await.unwrap();
    web.until("the refusal", |report| report.failed == 1).await;
    let nobody = json!({ "spec": { "selector": { "app": "nobody" } } });
    web.edit(nobody).await;
    web.marks(&pods[1], (false, false)).await;
    assert!(web.protects(&scope.get(&pods[0]).await), "it still serves");
    bed.http.state().refused_pods.clear();
    web.marks(&pods[0], (false, false)).await;
    assert_eq!(members(bed, &scope), 0);
}

#[tokio::test]
async fn w14_pods_that_leave_while_nobody_leads_are_released() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("w14-left").await;
    let (web, set) = serving(&scope, 3).await;
    bed.bed.kill_all().await;
    let nobody = json!({ "spec": { "selector": { "app": "nobody" } } });
    web.edit(nobody).await;
    bed.crash_all().await;
    for name in names(&set).await {
        web.marks(&name, (false, false)).await;
    }
    wait::until("no member", async || members(bed, &scope) == 0).await;
    assert!(bed.http.state().cut.is_empty());
}

#[tokio::test]
async fn w14_leader_that_dies_between_marks_leaves_none() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("w14-dies").await;
    let set = Set::new(&scope, "web", 12, json!({})).await;
    let pods = names(&set).await;
    let leader = bed.bed.leader().await;
    let web = Employer::new(&scope, "web", edge()).await;
    wait::until("the first mark", async || {
        let pods = scope.list("app=web").await;
        pods.iter().any(|pod| web.protects(pod))
    })
    .await;
    bed.bed.kill(leader).await;
    let nobody = json!({ "spec": { "selector": { "app": "nobody" } } });
    web.edit(nobody).await;
    for name in &pods {
        web.marks(name, (false, false)).await;
    }
    wait::until("no member", async || members(bed, &scope) == 0).await;
    bed.bed.restart(leader).await;
    web.delete().await;
    web.gone().await;
}

#[tokio::test]
async fn w16_finalizers_of_others_stay_as_they_are_during_the_end() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("w16").await;
    let (web, set) = serving(&scope, 1).await;
    let name = names(&set).await.remove(0);
    let finalizers = |all: &[&str]| json!({ "metadata": { "finalizers": all } });
    let (kept, removed) = ("example.com/kept", "example.com/removed");
    let all = [keys::CLEAN_FINALIZER, kept, removed];
    web.edit(finalizers(&all)).await;
    bed.http.state().connections = 1;
    let drain = json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "3600" } } });
    web.edit(drain).await;
    let own = web.name.finalizer();
    scope
        .patch(&name, finalizers(&[&own, kept, removed]))
        .await
        .unwrap();
    web.delete().await;
    web.until("the drain", |report| report.draining == 1).await;
    web.edit(finalizers(&[keys::CLEAN_FINALIZER, kept])).await;
    scope.patch(&name, finalizers(&[&own, kept])).await.unwrap();
    bed.http.state().connections = 0;
    let pod = web.marks(&name, (false, false)).await;
    assert_eq!(pod.finalizers(), [kept]);
    wait::until("our finalizer to go", async || {
        web.get().await.finalizers() == [kept]
    })
    .await;
    web.edit(finalizers(&[])).await;
    web.gone().await;
    scope.patch(&name, finalizers(&[])).await.unwrap();
}

#[tokio::test]
async fn w19_wrong_annotation_of_one_pod_does_not_stop_the_others() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("w19").await;
    let web = Employer::new(&scope, "web", edge()).await;
    scope.pod("web-0", labelled("web")).await;
    scope.pod("web-1", labelled("web")).await;
    web.consistent(2).await;
    let refused = scope.patch("web-0", annotated("{")).await;
    let refused = testbed::scope::refusal(refused);
    assert!(refused.message.contains(KEY), "{refused:?}");
    // While no server answers, the API server stores it.
    bed.bed.kill_all().await;
    scope.patch("web-0", annotated("{")).await.unwrap();
    bed.crash_all().await;
    scope.begin("web-1", "manual").await.unwrap();
    let released = scope.until_pod("web-1", "traffic off", |pod| !web.protects(pod));
    assert!(web.is_expected(&released.await));
    assert_eq!(bed.http.serving(&scope.namespace), ["web-0"]);
    scope.finish("web-1", "manual").await.unwrap();
    web.marks("web-1", (true, true)).await;
    web.consistent(2).await;
    assert_eq!(scope.get("web-0").await.annotations()[KEY], "{");
    // It does not keep the Pod either.
    web.delete().await;
    web.gone().await;
    assert!(!web.protects(&scope.get("web-0").await));
}

#[tokio::test]
async fn w23_empty_annotation_of_a_new_pod_is_filled_and_none_is_made_for_others() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("w23").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    web.until("the first report", |_| true).await;
    for (name, text) in [("null", r#"{"expectedFinalizers":null}"#), ("empty", "{}")] {
        let born = scope.pod(name, annotated(text)).await;
        assert!(web.is_expected(&born), "{name}: {:?}", born.annotations());
        web.marks(name, (true, true)).await;
    }
    let other = scope.pod("other", labelled("other")).await;
    assert!(!other.annotations().contains_key(KEY));
    scope.all_available("app=other", 1).await;
    let other = scope.get("other").await;
    assert!(!other.annotations().contains_key(KEY));
}
