#![allow(clippy::unwrap_used, clippy::panic)]
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::facts::{DrainOutcome, DrainPreview, EvictionPath};
use super::*;
use crate::api::keys;
use crate::domain::diagnosis::RuleObject;
use crate::domain::disruption_budget::DisruptionBudget;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

const FLAGS: DrainFlags = DrainFlags {
    ignore_daemonsets: true,
    delete_emptydir_data: true,
    force: true,
};

/// An available Pod of a ReplicaSet.
fn pod(name: &str, patch: Value) -> Arc<Pod> {
    let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true });
    let mut pod = json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "resourceVersion": "5",
            "labels": { "app": "web", (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1" },
            "ownerReferences": [owner],
        },
        "spec": { "containers": [{ "name": "main", "image": "web:1" }], "nodeName": "worker-0" },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    json_patch::merge(&mut pod, &patch);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn web(count: usize) -> Vec<Arc<Pod>> {
    (0..count)
        .map(|n| pod(&format!("web-{n}"), json!({})))
        .collect()
}

/// A rule object that the server has counted.
fn rule(name: &str, max: Value, status: Value) -> RuleObject {
    rule_with(name, max, &json!({}), status)
}

/// As [`rule`], with a patch of the spec.
fn rule_with(name: &str, max: Value, spec: &Value, status: Value) -> RuleObject {
    let mut object = json!({
        "metadata": { "namespace": "shop", "name": name, "generation": 1 },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "rules": [{ "name": "availability", "availablePolicy": { "maxUnavailableValue": max } }],
        },
        "status": { "observedGeneration": 1, "availablePods": 10 },
    });
    json_patch::merge(&mut object["spec"], spec);
    json_patch::merge(&mut object["status"], &status);
    RuleObject::compile(serde_json::from_value(object).unwrap())
}

fn budget(name: &str, allowed: u32, healthy: u32, expected: u32) -> DisruptionBudget {
    let desired = expected - 1;
    serde_json::from_value(json!({
        "metadata": { "namespace": "shop", "name": name, "generation": 1 },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 1, "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
            "disruptionsAllowed": allowed,
        },
    }))
    .unwrap()
}

fn refused(message: &str) -> EvictionAnswer {
    EvictionAnswer::Refused {
        code: 429,
        message: message.to_owned(),
    }
}

fn lifecycle() -> EvictionAnswer {
    EvictionAnswer::Lifecycle {
        message: format!(
            "Pod web-0 is being drained: {}",
            grace_delete::UNDERWAY_MESSAGE
        ),
    }
}

/// A node with these Pods. All Pods of the namespace run on the node, except for `elsewhere`.
struct Scene {
    pods: Vec<(Arc<Pod>, EvictionAnswer)>,
    elsewhere: Vec<Arc<Pod>>,
    are_pods_read: bool,
    notes: Vec<String>,
    rules: Result<Vec<RuleObject>, String>,
    budgets: Result<Vec<DisruptionBudget>, String>,
    excluded: Option<String>,
    flags: DrainFlags,
    daemon_set: DaemonSetRead,
}

impl Scene {
    /// The API server lets each of these Pods go.
    fn new(pods: Vec<Arc<Pod>>) -> Scene {
        let pods = pods.into_iter().map(|pod| (pod, EvictionAnswer::Allowed));
        Scene {
            pods: pods.collect(),
            elsewhere: Vec::new(),
            are_pods_read: true,
            notes: Vec::new(),
            rules: Ok(Vec::new()),
            budgets: Ok(Vec::new()),
            excluded: None,
            flags: FLAGS,
            daemon_set: DaemonSetRead::Found,
        }
    }

    fn under_rules(self, rules: Vec<RuleObject>) -> Scene {
        Scene {
            rules: Ok(rules),
            ..self
        }
    }

    fn under_budgets(self, budgets: Vec<DisruptionBudget>) -> Scene {
        Scene {
            budgets: Ok(budgets),
            ..self
        }
    }

    fn answered(mut self, answer: &EvictionAnswer) -> Scene {
        for (_, answered) in &mut self.pods {
            *answered = answer.clone();
        }
        self
    }

    fn preview(self) -> DrainPreview {
        let all = self.pods.iter().map(|(pod, _)| pod).chain(&self.elsewhere);
        let namespace = DrainNamespace {
            rules: self.rules,
            disruption_budgets: self.budgets,
            pods: self.are_pods_read.then(|| all.cloned().collect()),
            excluded: self.excluded,
        };
        let pods = self.pods.into_iter().map(|(pod, answer)| {
            let choice = choose(&pod, false, Some(&self.daemon_set), self.flags);
            DrainedPod {
                answer: (choice == KubectlChoice::Evicts).then_some(answer),
                pod,
                choice,
            }
        });
        preview(&ObservedNode {
            name: "worker-0".to_owned(),
            pods: pods.collect(),
            namespaces: BTreeMap::from([("shop".to_owned(), namespace)]),
            notes: self.notes,
            now: Timestamp::UNIX_EPOCH,
        })
    }
}

/// The names of the Pods of each wave.
fn waves(preview: &DrainPreview) -> Vec<Vec<&str>> {
    let waves = preview.waves.iter();
    waves
        .map(|wave| wave.pods.iter().map(|pod| pod.pod.name.as_str()).collect())
        .collect()
}

fn held(preview: &DrainPreview) -> Vec<&str> {
    let held = preview.held.iter();
    held.map(|held| held.pod.name.as_str()).collect()
}

/// Ten expected Pods, of which this many are available.
fn counted(max: u32) -> Value {
    json!({ "expectedPods": 10, "unavailableLimit": max })
}

#[test]
fn waves_are_those_of_the_tightest_rule() {
    let mut scene = Scene::new(web(3));
    scene.elsewhere = (3..10)
        .map(|n| pod(&format!("web-{n}"), json!({})))
        .collect();
    let rules = vec![
        rule("loose", json!(5), counted(5)),
        rule("tight", json!(2), counted(2)),
    ];
    let preview = scene.under_rules(rules).preview();
    assert_eq!(waves(&preview), [vec!["web-0", "web-1"], vec!["web-2"]]);
    assert_eq!(preview.outcome, DrainOutcome::Ok);
    assert!(preview.waves[0].pods.iter().all(|pod| !pod.certain));
    assert!(preview.waves[1].pods[0].certain);
    let names = preview.waves[0].pods[0].budgets.iter();
    assert_eq!(
        names.map(|b| b.name.as_str()).collect::<Vec<_>>(),
        ["loose", "tight"]
    );
    assert!(
        preview
            .assumptions
            .iter()
            .any(|text| text.contains("not determined"))
    );
}

#[test]
fn rule_that_lets_no_pod_go_holds_pods_for_good() {
    let message = "Pod web-0 is held by rule availability of PodTransitionRule web: 0 of 2 Pods are unavailable, the limit is 0";
    let scene = Scene::new(web(2)).answered(&refused(message));
    let status = json!({ "expectedPods": 2, "unavailableLimit": 0 });
    let preview = scene
        .under_rules(vec![rule("web", json!(0), status)])
        .preview();
    assert!(preview.waves.is_empty());
    assert_eq!(held(&preview), ["web-0", "web-1"]);
    let first = &preview.held[0];
    assert_eq!(first.reason, message);
    assert_eq!(first.by[0].name, "web");
    assert_eq!(
        first.remedy,
        "Raise the limit of PodTransitionRule web, which lets no Pod go"
    );
    assert_eq!(preview.outcome, DrainOutcome::Held);
}

#[test]
fn claims_in_flight_and_stuck_pods_use_the_budget() {
    let message = "Pod web-0 is held by rule availability of PodTransitionRule web: 1 of 2 Pods are unavailable, the limit is 1";
    let scene = |elsewhere: Arc<Pod>, status: Value| {
        let mut scene = Scene::new(web(1)).answered(&refused(message));
        scene.elsewhere = vec![elsewhere];
        scene
            .under_rules(vec![rule("web", json!(1), status)])
            .preview()
    };
    let status = json!({ "expectedPods": 2, "unavailableLimit": 1 });
    let down = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let stuck = scene(pod("web-9", down), status.clone());
    assert_eq!(held(&stuck), ["web-0"]);
    assert!(
        stuck.held[0].remedy.contains("Make the unavailable Pods"),
        "{stuck:?}"
    );

    let claim = json!({
        "podUID": "web-9", "podName": "web-9", "operation": "Evict", "resourceVersion": "5", "attempt": 1,
        "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z",
    });
    let mut with_claim = status.clone();
    with_claim["ledger"] = json!({ "claims": [claim], "watermark": "5", "attempts": 1 });
    let claimed = scene(pod("web-9", json!({})), with_claim);
    assert_eq!(waves(&claimed), [vec![], vec!["web-0"]], "{claimed:?}");
    assert!(
        claimed
            .assumptions
            .iter()
            .any(|text| text.starts_with("Wave 1 is empty"))
    );

    // A Pod that is missing is made by its controller.
    let missing = Scene::new(web(1)).answered(&refused(message));
    let missing = missing
        .under_rules(vec![rule("web", json!(1), status)])
        .preview();
    assert_eq!(waves(&missing), [vec![], vec!["web-0"]]);
}

#[test]
fn disruption_budget_lets_as_many_go_as_its_status_allows() {
    let preview = Scene::new(web(3))
        .under_budgets(vec![budget("pdb", 1, 3, 3)])
        .preview();
    assert_eq!(waves(&preview), [["web-0"], ["web-1"], ["web-2"]]);
    let text = "Cannot evict pod as it would violate the pod's disruption budget. \
                The disruption budget pdb needs 2 healthy pods and has 2 currently";
    let mut scene = Scene::new(web(2)).answered(&refused(text));
    let down = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    scene.elsewhere = vec![pod("web-9", down)];
    let preview = scene.under_budgets(vec![budget("pdb", 0, 2, 3)]).preview();
    assert_eq!(held(&preview), ["web-0", "web-1"]);
    assert_eq!(preview.held[0].by[0].name, "pdb");
}

#[test]
fn several_disruption_budgets_hold_a_pod_for_good() {
    let answer = EvictionAnswer::Refused {
        code: 500,
        message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            .to_owned(),
    };
    let budgets = vec![budget("a", 1, 1, 1), budget("b", 1, 1, 1)];
    let preview = Scene::new(web(1))
        .answered(&answer)
        .under_budgets(budgets)
        .preview();
    let names: Vec<_> = preview.held[0]
        .by
        .iter()
        .map(|by| by.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(preview.held[0].answer.code, 500);
}

#[test]
fn refusal_that_no_budget_explains_holds_the_pod() {
    let policy = EvictionAnswer::Refused {
        code: 403,
        message: "ValidatingAdmissionPolicy 'p' denied request: no".to_owned(),
    };
    let preview = Scene::new(web(1)).answered(&policy).preview();
    assert_eq!(held(&preview), ["web-0"]);
    assert!(preview.held[0].by.is_empty());
    let overlapping = refused(
        "Pod web-0 is held: 9 PodTransitionRules with an availability rule cover it, and at most 8 may",
    );
    let preview = Scene::new(web(1)).answered(&overlapping).preview();
    assert_eq!(held(&preview), ["web-0"]);
    let dead = EvictionAnswer::Unanswered {
        message: "failed calling webhook".to_owned(),
    };
    let preview = Scene::new(web(1)).answered(&dead).preview();
    assert!(preview.held[0].remedy.contains("operating check"));
}

#[test]
fn unreadable_rule_is_named() {
    let mut object = json!({
        "metadata": { "namespace": "shop", "name": "web", "generation": 1 },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": "many" } }] },
    });
    object["status"] = json!({ "observedGeneration": 1 });
    let broken = RuleObject::compile(serde_json::from_value(object).unwrap());
    let answer = refused(
        "Pod web-0 is held by rule a of PodTransitionRule web, which can't be evaluated: no",
    );
    let scene = Scene::new(web(1)).answered(&answer);
    let preview = scene.under_rules(vec![broken]).preview();
    assert_eq!(preview.held[0].remedy, "Correct PodTransitionRule web");
}

#[test]
fn what_could_not_be_read_is_not_ok() {
    let mut scene = Scene::new(web(1));
    scene.rules = Err("you may not list podtransitionrules".to_owned());
    let preview = scene.preview();
    assert_eq!(preview.outcome, DrainOutcome::Unknown);
    assert!(preview.waves.is_empty());
    assert!(
        preview.not_checked[0]
            .reason
            .contains("you may not list podtransitionrules")
    );
    // Rules hold managed Pods only.
    let mut scene = Scene::new(vec![pod(
        "web-0",
        json!({ "metadata": { "labels": { (keys::CONTROL): null } } }),
    )]);
    scene.rules = Err("no".to_owned());
    assert_eq!(waves(&scene.preview()), [["web-0"]]);
    let mut scene = Scene::new(web(1));
    scene.budgets = Err("no".to_owned());
    assert_eq!(scene.preview().outcome, DrainOutcome::Unknown);
    let uncounted = rule("web", json!(1), json!({ "observedGeneration": 0 }));
    let preview = Scene::new(web(1)).under_rules(vec![uncounted]).preview();
    assert!(preview.not_checked[0].reason.contains("has not counted"));
    let answer = EvictionAnswer::NotChecked {
        reason: "you may not".to_owned(),
    };
    assert_eq!(
        Scene::new(web(1)).answered(&answer).preview().outcome,
        DrainOutcome::Unknown
    );
}

#[test]
fn rules_that_are_not_enforced_hold_nothing_and_are_named() {
    let status = json!({ "expectedPods": 1, "unavailableLimit": 0 });
    let mut scene = Scene::new(web(1)).under_rules(vec![rule("web", json!(0), status.clone())]);
    scene.excluded = Some("it is excluded".to_owned());
    let preview = scene.preview();
    assert_eq!(waves(&preview), [["web-0"]]);
    assert!(
        preview.notes[0].contains("PodTransitionRule web"),
        "{preview:?}"
    );
    let mut unenforced = status;
    unenforced["conditions"] = json!([{
        "type": "Enforced", "status": "False", "reason": "NotEnforced", "message": "no label",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let preview = Scene::new(web(1))
        .under_rules(vec![rule("web", json!(0), unenforced)])
        .preview();
    assert_eq!(waves(&preview), [["web-0"]]);
    assert!(preview.notes[0].ends_with("no label"));
}

/// The server has counted another state than the preview, or exempts the Pod.
#[test]
fn yes_without_room_is_not_checked_and_frees_no_other_pod() {
    let status = json!({ "expectedPods": 3, "unavailableLimit": 0 });
    let scene = Scene::new(web(3)).under_rules(vec![rule("web", json!(0), status)]);
    let preview = scene.preview();
    assert!(preview.waves.is_empty(), "{preview:?}");
    assert_eq!(preview.not_checked.len(), 3);
    let reason = &preview.not_checked[0].reason;
    assert!(reason.contains("PodTransitionRule web"), "{reason}");
    assert_eq!(preview.outcome, DrainOutcome::Unknown);

    // Such a Pod may take the room of another budget.
    let selector = json!({ "selector": { "matchLabels": { "tight": "yes" } } });
    let status = json!({ "expectedPods": 1, "unavailableLimit": 0 });
    let tight = rule_with("tight", json!(0), &selector, status);
    let mut pods = web(1);
    pods.push(pod(
        "web-1",
        json!({ "metadata": { "labels": { "tight": "yes" } } }),
    ));
    let scene = Scene::new(pods).under_budgets(vec![budget("pdb", 1, 2, 2)]);
    let preview = scene.under_rules(vec![tight]).preview();
    assert_eq!(preview.not_checked[0].pod.name, "web-1");
    assert_eq!(waves(&preview)[0], ["web-0"]);
    assert!(!preview.waves[0].pods[0].certain);
}

#[test]
fn graceful_deletion_begins_lifecycles_within_the_budget() {
    let message = format!(
        "Pod web-0 is being drained: {}",
        grace_delete::UNDERWAY_MESSAGE
    );
    let scene = || {
        Scene::new(web(2)).answered(&EvictionAnswer::Lifecycle {
            message: message.clone(),
        })
    };
    let status = json!({ "expectedPods": 2, "unavailableLimit": 1 });
    let preview = scene()
        .under_rules(vec![rule("web", json!(1), status)])
        .preview();
    assert_eq!(waves(&preview), [["web-0"], ["web-1"]]);
    let first = &preview.waves[0].pods[0];
    assert_eq!(
        (first.how, first.answer.code),
        (EvictionPath::BeginsLifecycle, 429)
    );
    let object = json!({
        "metadata": { "namespace": "shop", "name": "check", "generation": 1 },
        "spec": {
            "selector": {},
            "rules": [{ "name": "a", "labelCheck": { "requires": { "matchLabels": { "approved": "true" } } } }],
        },
        "status": { "observedGeneration": 1 },
    });
    let check = RuleObject::compile(serde_json::from_value(object).unwrap());
    let preview = scene().under_rules(vec![check]).preview();
    assert_eq!(held(&preview), ["web-0", "web-1"]);
    assert_eq!(preview.held[0].by[0].name, "check");
}

/// The status counts fewer available Pods than there are: the server may expect more Pods by now.
#[test]
fn rule_with_older_count_than_its_pods_is_not_checked() {
    let status = json!({ "expectedPods": 5, "unavailableLimit": 1, "availablePods": 5 });
    let preview = Scene::new(web(10))
        .under_rules(vec![rule("web", json!(1), status)])
        .preview();
    assert!(preview.waves.is_empty(), "{preview:?}");
    assert_eq!(preview.not_checked.len(), 10);
}

#[test]
fn refusal_that_the_count_contradicts_is_not_checked() {
    let used_up = "Pod web-0 is held by rule availability of PodTransitionRule web: 1 of 1 Pods are unavailable, the limit is 1";
    let transient = "Pod web-0 is held by PodTransitionRule web: an earlier request for the same operation on this Pod \
                     was admitted and had no effect; its claim is released in about 9s; try again then";
    for message in [used_up, transient] {
        let status = json!({ "expectedPods": 1, "unavailableLimit": 1 });
        let preview = Scene::new(web(1))
            .answered(&refused(message))
            .under_rules(vec![rule("web", json!(1), status)])
            .preview();
        assert_eq!(preview.outcome, DrainOutcome::Unknown, "{preview:?}");
        assert!(preview.not_checked[0].reason.contains(message));
    }
}

/// Each of these rules says that no Pod may go, and gives no budget from which the Pods could take.
#[test]
fn yes_against_a_rule_without_budget_is_not_checked() {
    let ledger = json!({ "expectedPods": 2, "conditions": [{
        "type": "LedgerUsable", "status": "False", "reason": "Unreadable", "message": "the ledger can't be read",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let not_enforced = json!({ "expectedPods": 2, "observedGeneration": 0, "conditions": [{
        "type": "Enforced", "status": "False", "reason": "NotEnforced", "message": "no label",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let broken =
        json!({ "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": "many" } }] });
    let rules = [
        rule("denies", json!(1), ledger),
        rule("old", json!(1), not_enforced),
        rule_with("broken", json!(1), &broken, json!({ "expectedPods": 2 })),
    ];
    for object in rules {
        let name = object.set.name.clone();
        let preview = Scene::new(web(2)).under_rules(vec![object]).preview();
        assert!(preview.waves.is_empty(), "{preview:?}");
        assert_eq!(preview.outcome, DrainOutcome::Unknown);
        assert!(preview.not_checked[1].reason.contains(&name), "{preview:?}");
        assert!(preview.notes.is_empty(), "{preview:?}");
    }
}

/// What is not known of one rule says nothing about the refusal of another object.
#[test]
fn refusal_of_others_holds_the_pod_although_a_rule_is_not_known() {
    let uncounted = || rule("web", json!(1), json!({ "observedGeneration": 0 }));
    let closed = rule(
        "closed",
        json!(0),
        json!({ "expectedPods": 1, "unavailableLimit": 0 }),
    );
    let policy = EvictionAnswer::Refused {
        code: 403,
        message: "ValidatingAdmissionPolicy 'p' denied request: no".to_owned(),
    };
    let overlapping = refused(
        "Pod web-0 is held: 9 PodTransitionRules with an availability rule cover it, and at most 8 may",
    );
    let limit_0 = refused(
        "Pod web-0 is held by rule availability of PodTransitionRule closed: 0 of 1 Pods are unavailable, the limit is 0",
    );
    let of_unknown = refused(
        "Pod web-0 is held by rule availability of PodTransitionRule web: 1 of 1 Pods are unavailable, the limit is 1",
    );
    let preview = |answer: &EvictionAnswer, rules| {
        let scene = Scene::new(web(1)).answered(answer);
        scene.under_rules(rules).preview()
    };
    for answer in [policy, overlapping] {
        let preview = preview(&answer, vec![uncounted()]);
        assert_eq!(preview.outcome, DrainOutcome::Held, "{preview:?}");
    }
    let of_closed = preview(&limit_0, vec![uncounted(), closed]);
    assert_eq!(of_closed.held[0].by[0].name, "closed", "{of_closed:?}");
    let of_unknown = preview(&of_unknown, vec![uncounted()]);
    assert_eq!(of_unknown.outcome, DrainOutcome::Unknown, "{of_unknown:?}");
}

#[test]
fn pod_that_is_not_checked_can_free_the_budget_of_others() {
    let message = "Pod web-0 is held by rule availability of PodTransitionRule web: 1 of 2 Pods are unavailable, the limit is 1";
    let down = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let scene = |limit: u32| {
        let mut scene = Scene::new(vec![pod("web-0", json!({})), pod("web-9", down.clone())]);
        scene.pods[0].1 = refused(message);
        scene.pods[1].1 = EvictionAnswer::NotChecked {
            reason: "timeout".to_owned(),
        };
        let status = json!({ "expectedPods": 2, "unavailableLimit": limit });
        let rules = vec![rule("web", json!(limit), status)];
        scene.under_rules(rules).preview()
    };
    let open = scene(1);
    assert_eq!(open.outcome, DrainOutcome::Unknown, "{open:?}");
    let names = open.not_checked.iter().map(|pod| pod.pod.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["web-0", "web-9"]);
    // A limit of 0 never has room.
    assert_eq!(held(&scene(0)), ["web-0"]);
}

#[test]
fn pod_that_no_limit_holds_goes_although_the_count_is_not_known() {
    let down = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    let mut pods = web(2);
    pods.push(pod("web-9", down));
    let status = json!({ "expectedPods": 3, "unavailableLimit": 1, "availablePods": 1 });
    let preview = Scene::new(pods)
        .under_rules(vec![rule("web", json!(1), status)])
        .preview();
    assert_eq!(waves(&preview), [["web-9"]], "{preview:?}");
    assert_eq!(preview.not_checked.len(), 2);
    let reason = &preview.not_checked[0].reason;
    assert!(!reason.contains("server runs"), "{reason}");
}

/// The server can't keep such a Pod, and counts it as unavailable.
#[test]
fn too_large_pod_is_not_counted_as_available() {
    let large = "x".repeat(crate::domain::pod_size::MAX_POD_BYTES);
    let large = json!({ "metadata": { "annotations": { (keys::BYPASS): large } } });
    let mut scene = Scene::new(web(1));
    scene.elsewhere = vec![pod("web-8", json!({})), pod("web-9", large)];
    let status = json!({ "expectedPods": 3, "unavailableLimit": 2, "availablePods": 2 });
    let preview = scene
        .under_rules(vec![rule("web", json!(2), status)])
        .preview();
    assert_eq!(waves(&preview), [["web-0"]], "{preview:?}");
}

/// If the server honoured the annotation, it would not refuse the Pod.
#[test]
fn refusal_by_a_skipped_rule_shows_that_annotations_are_ignored() {
    let skips = json!({ "metadata": { "annotations": { (keys::SKIP_RULE_CONDITIONS): "{\"skipRules\":[\"availability\"]}" } } });
    let message = "Pod web-0 is held by rule availability of PodTransitionRule web: 1 of 3 Pods are unavailable, the limit is 1";
    let mut scene = Scene::new(vec![pod("web-0", skips.clone()), pod("web-1", skips)]);
    let down = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    scene.elsewhere = vec![pod("web-9", down)];
    let scene = scene.answered(&refused(message));
    let status = json!({ "expectedPods": 3, "unavailableLimit": 1 });
    let preview = scene
        .under_rules(vec![rule("web", json!(1), status)])
        .preview();
    assert_eq!(held(&preview), ["web-0", "web-1"], "{preview:?}");
    assert_eq!(preview.held[0].by[0].name, "web");
    let mut assumptions = preview.assumptions.iter();
    assert!(!assumptions.any(|text| text.contains(keys::SKIP_RULE_CONDITIONS)));
}

/// If the Pod goes first that nothing replaces, the other never goes.
#[test]
fn order_of_replaced_and_other_pods_decides_whether_all_go() {
    let alone = pod("web-1", json!({ "metadata": { "ownerReferences": null } }));
    let scene = |pods| {
        let limit =
            json!({ "rules": [{ "name": "a", "availablePolicy": { "minAvailableValue": 1 } }] });
        let status = json!({ "expectedPods": 2, "unavailableLimit": 1 });
        let object = rule_with("web", json!(1), &limit, status);
        Scene::new(pods).under_rules(vec![object]).preview()
    };
    let says = |preview: &DrainPreview, text: &str| {
        let mut texts = preview.assumptions.iter();
        texts.any(|assumed| assumed.contains(text))
    };
    let mixed = scene(vec![pod("web-0", json!({})), alone]);
    assert!(says(&mixed, "the exit code"), "{mixed:?}");
    assert!(says(&mixed, "how many go can depend on it"), "{mixed:?}");
    assert!(!says(&scene(web(2)), "the exit code"));
}

/// Whether such a Pod uses the budget depends on the rights of the user.
#[test]
fn pod_with_break_glass_annotation_under_a_rule_is_not_checked() {
    let annotated = json!({ "metadata": { "annotations": { (keys::BYPASS): "incident" } } });
    for limit in [0, 1] {
        let pods = (0..3).map(|n| pod(&format!("web-{n}"), annotated.clone()));
        let status = json!({ "expectedPods": 3, "unavailableLimit": limit });
        let preview = Scene::new(pods.collect())
            .under_rules(vec![rule("web", json!(limit), status)])
            .under_budgets(vec![budget("pdb", 1, 3, 3)])
            .preview();
        assert!(preview.waves.is_empty());
        assert!(
            preview.not_checked[2].reason.contains(keys::BYPASS),
            "{preview:?}"
        );
    }
    // There is room for all Pods of the node.
    let pods = (0..2).map(|n| pod(&format!("web-{n}"), annotated.clone()));
    let status = json!({ "expectedPods": 2, "unavailableLimit": 2 });
    let preview = Scene::new(pods.collect())
        .under_rules(vec![rule("web", json!(2), status)])
        .preview();
    assert_eq!(waves(&preview), [["web-0", "web-1"]], "{preview:?}");
    // No rule covers the Pod.
    let preview = Scene::new(vec![pod("web-0", annotated)]).preview();
    assert_eq!(waves(&preview), [["web-0"]]);
}

#[test]
fn rule_that_denies_everything_holds_a_lifecycle() {
    let status = json!({ "expectedPods": 1, "conditions": [{
        "type": "LedgerUsable", "status": "False", "reason": "Unreadable", "message": "the ledger can't be read",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let scene = |pods| {
        let scene = Scene::new(pods).answered(&lifecycle());
        scene
            .under_rules(vec![rule("web", json!(1), status.clone())])
            .preview()
    };
    let preview = scene(web(1));
    assert_eq!(held(&preview), ["web-0"], "{preview:?}");
    assert_eq!(preview.held[0].by[0].name, "web");
    assert!(preview.held[0].remedy.contains("the ledger can't be read"));
}

#[test]
fn what_the_user_could_not_read_is_not_ok() {
    let mut scene = Scene::new(Vec::new());
    scene.notes = vec!["whether there is such a node is not checked: no".to_owned()];
    assert_eq!(scene.preview().outcome, DrainOutcome::Unknown);
    let mut scene = Scene::new(web(1)).under_budgets(vec![budget("pdb", 1, 1, 1)]);
    scene.are_pods_read = false;
    let preview = scene.preview();
    assert!(
        preview.not_checked[0].reason.contains("could not be read"),
        "{preview:?}"
    );
    let set = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "ds", "controller": true }]);
    let mut scene = Scene::new(vec![pod(
        "web-0",
        json!({ "metadata": { "ownerReferences": set } }),
    )]);
    scene.daemon_set = DaemonSetRead::Unreadable("timeout".to_owned());
    let preview = scene.preview();
    assert_eq!(
        (preview.begins, preview.outcome),
        (false, DrainOutcome::Unknown)
    );
}

#[test]
fn pod_of_deleted_daemon_set_is_not_replaced() {
    let set = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "ds", "controller": true }]);
    let mut scene = Scene::new(vec![pod(
        "web-0",
        json!({ "metadata": { "ownerReferences": set } }),
    )]);
    scene.daemon_set = DaemonSetRead::Gone;
    assert!(!scene.preview().waves[0].pods[0].replaced);
}

/// The status does not show on how many Pods the percentages are based, if only some owners ask for a number of Pods.
#[test]
fn several_percentages_over_pods_of_unlike_owners_are_not_checked() {
    let policy = |name: &str, max: &str| json!({ "name": name, "availablePolicy": { "maxUnavailableValue": max } });
    let spec = json!({ "rules": [policy("a", "30%"), policy("b", "60%")] });
    let object = || {
        rule_with(
            "web",
            json!(1),
            &spec,
            json!({ "expectedPods": 4, "unavailableLimit": 2 }),
        )
    };
    let preview = Scene::new(web(4)).under_rules(vec![object()]).preview();
    assert_eq!(waves(&preview)[0].len(), 2);
    let with_fourth = |owners: Value| {
        let mut pods = web(3);
        pods.push(pod(
            "web-3",
            json!({ "metadata": { "ownerReferences": owners } }),
        ));
        Scene::new(pods).under_rules(vec![object()]).preview()
    };
    let of = |kind: &str| json!([{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": true }]);
    // As while a Deployment is rolled out.
    assert_eq!(waves(&with_fourth(of("ReplicaSet")))[0].len(), 2);
    for owners in [of("Job"), json!(null)] {
        let preview = with_fourth(owners);
        assert!(
            preview.not_checked[0].reason.contains("percentages"),
            "{preview:?}"
        );
    }
}

#[test]
fn assumptions_name_what_decides_and_is_not_known() {
    let says = |preview: &DrainPreview, text: &str| {
        let texts = preview.assumptions.iter();
        texts.filter(|assumed| assumed.contains(text)).count() == 1
    };
    // Two rules of one object, of which one is about some of the Pods: whether one Pod or two go depends on the order.
    let limit = |max: u32| json!({ "maxUnavailableValue": max });
    let front = json!({ "matchLabels": { "front": "yes" } });
    let spec = json!({ "rules": [
        { "name": "all", "availablePolicy": limit(2) },
        { "name": "front", "filter": { "labelSelector": front }, "availablePolicy": limit(1) },
    ] });
    let front = json!({ "metadata": { "labels": { "front": "yes" } } });
    let mut scene = Scene::new(vec![
        pod("a-front", front),
        pod("x", json!({})),
        pod("y", json!({})),
    ]);
    scene.elsewhere = web(7);
    let object = rule_with(
        "web",
        json!(1),
        &spec,
        json!({ "expectedPods": 10, "unavailableLimit": 1 }),
    );
    let preview = scene.under_rules(vec![object]).preview();
    assert_eq!(waves(&preview)[0], ["a-front", "x"]);
    assert!(
        says(&preview, "how many go can depend on it"),
        "{preview:?}"
    );
    assert!(says(&preview, "status of PodTransitionRules"));
    assert!(!says(&preview, keys::SKIP_RULE_CONDITIONS));

    let skips = json!({ "metadata": { "annotations": { (keys::SKIP_RULE_CONDITIONS): "{\"skipRules\":[\"*\"]}" } } });
    let preview = Scene::new(vec![pod("web-0", skips)]).preview();
    assert!(says(&preview, keys::SKIP_RULE_CONDITIONS), "{preview:?}");

    let message = "Pod web-0 is held by rule a of PodTransitionRule web: 1 of 2 Pods are unavailable, the limit is 1";
    let status = json!({ "expectedPods": 2, "unavailableLimit": 1 });
    let scene = Scene::new(web(1)).answered(&refused(message));
    let preview = scene
        .under_rules(vec![rule("web", json!(1), status)])
        .preview();
    assert!(
        says(&preview, "policies and webhooks of others"),
        "{preview:?}"
    );
    let preview = Scene::new(web(1)).answered(&lifecycle()).preview();
    assert!(
        says(&preview, "refuses the deletion of a Pod with a lifecycle"),
        "{preview:?}"
    );
}

#[test]
fn terminating_and_skipped_pods_are_in_no_wave() {
    let ends = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/x"] } });
    let set = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "ds", "controller": true }]);
    let pods = vec![
        pod("web-0", ends),
        pod("web-1", json!({ "metadata": { "ownerReferences": set } })),
    ];
    let preview = Scene::new(pods).preview();
    assert!(preview.waves.is_empty());
    assert_eq!(preview.terminating[0].finalizers, ["example.com/x"]);
    assert_eq!(preview.skipped[0].pod.name, "web-1");
    // The Pod may stay for ever, and kubectl waits for it.
    assert_eq!(preview.outcome, DrainOutcome::Unknown);
    let ends = |at: &str| {
        let ends = json!({ "metadata": { "deletionTimestamp": at } });
        Scene::new(vec![pod("web-0", ends)]).preview().outcome
    };
    assert_eq!(ends("1970-01-01T00:00:30Z"), DrainOutcome::Ok);
    assert_eq!(ends("1969-12-31T00:00:00Z"), DrainOutcome::Unknown);
}

#[test]
fn pod_without_controller_keeps_kubectl_from_beginning() {
    let alone = || {
        vec![pod(
            "web-0",
            json!({ "metadata": { "ownerReferences": null } }),
        )]
    };
    let mut scene = Scene::new(alone());
    scene.flags.force = false;
    let preview = scene.preview();
    assert!(!preview.begins);
    assert_eq!(preview.outcome, DrainOutcome::Held);
    assert!(preview.refused[0].remedy.contains("--force"));
    let preview = Scene::new(alone()).preview();
    assert!(preview.begins && !preview.waves[0].pods[0].replaced);
}

#[test]
fn message_names_an_object_only_by_its_whole_name() {
    let status = || json!({ "expectedPods": 1, "unavailableLimit": 1 });
    let rules = vec![
        rule("web", json!(1), status()),
        rule("web-2", json!(1), status()),
    ];
    let answer = refused("Pod web-0 is held by PodTransitionRule web-2: no");
    let preview = Scene::new(web(1))
        .answered(&answer)
        .under_rules(rules)
        .preview();
    let names: Vec<_> = preview.held[0]
        .by
        .iter()
        .map(|by| by.name.as_str())
        .collect();
    assert_eq!(names, ["web-2"]);
}
