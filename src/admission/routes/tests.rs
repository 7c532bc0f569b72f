#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use kube_cel::cel::{Context, Program, Value, to_value};
use serde_json::{Value as Json, json};

use super::*;
use crate::api::keys::{self, Family};

const ALL_CONDITIONS: [Condition; 17] = [
    Condition::NotTerminating,
    Condition::LifecycleChanged,
    Condition::LabelsUnchanged,
    Condition::LabelsChanged,
    Condition::LabelsOrDisruptiveFieldsChanged,
    Condition::InFlight,
    Condition::ReadinessChanged,
    Condition::NotFinished,
    Condition::Available,
    Condition::Unavailable,
    Condition::HasReadinessGate,
    Condition::NotMirror,
    Condition::NotNamespaceController,
    Condition::SpecChanged,
    Condition::Pending,
    Condition::ByGarbageCollector,
    Condition::OfCollaSet,
];

fn settings() -> ConfigurationSettings {
    ConfigurationSettings {
        client: ClientConfig::Url("https://localhost:9443/".into()),
        namespace: "elsewhere".into(),
        ca_bundle: Some(b"pem".to_vec()),
        grace_delete: false,
        collasets: true,
        cert_manager: None,
        segment: None,
    }
}

fn paths(configuration: impl serde::Serialize) -> BTreeSet<String> {
    let configuration = serde_json::to_value(configuration).unwrap();
    let webhooks = configuration["webhooks"].as_array().unwrap().clone();
    webhooks
        .iter()
        .map(|w| w["clientConfig"]["url"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn configurations_have_exactly_one_entry_per_route() {
    let (mutating, validating) = webhook_configurations(&settings());
    let (mutating, validating) = (paths(mutating), paths(validating));
    assert!(mutating.is_disjoint(&validating));
    let configured: BTreeSet<_> = mutating.union(&validating).cloned().collect();
    let served: BTreeSet<_> = Route::ALL
        .map(|r| format!("https://localhost:9443{}", r.path()))
        .into();
    assert_eq!(configured, served);
}

#[test]
fn names_are_unique_and_qualified() {
    let names: BTreeSet<_> = WEBHOOKS
        .iter()
        .chain(GRACEFUL_DELETION_WEBHOOKS)
        .map(|w| w.name)
        .collect();
    assert_eq!(
        names.len(),
        WEBHOOKS.len() + GRACEFUL_DELETION_WEBHOOKS.len()
    );
    assert!(names.iter().all(|n| n.ends_with(".apps.kusionstack.io")));
}

#[test]
fn webhooks_that_fail_closed_without_rules_touch_few_requests() {
    for w in WEBHOOKS
        .iter()
        .chain(GRACEFUL_DELETION_WEBHOOKS)
        .filter(|w| w.must_answer)
        .filter(|w| {
            ![NamespaceScope::WithRules, NamespaceScope::WithStrictRules].contains(&w.namespaces)
        })
    {
        assert!(
            w.rules.iter().all(|r| [
                "podtransitionrules",
                "collasets",
                "poddecorations",
                "operationjobs",
                "persistentvolumeclaims"
            ]
            .contains(&r.resource)),
            "{}",
            w.name
        );
        let allowed: [&[Condition]; 4] = [
            &[Condition::SpecChanged],
            &[Condition::RulesChanged],
            &[Condition::LeavesItsPods],
            &[
                Condition::NotTerminating,
                Condition::ByGarbageCollector,
                Condition::OfCollaSet,
            ],
        ];
        assert!(allowed.contains(&w.conditions), "{}", w.name);
    }
}

/// A Pod without the readiness gate is still counted, held and operated, but a Pod that cannot be created is missing.
#[test]
fn pod_creation_succeeds_while_server_is_down() {
    let (mutating, validating) = webhook_configurations(&settings());
    let configured = [
        serde_json::to_value(mutating).unwrap(),
        serde_json::to_value(validating).unwrap(),
    ];
    let all = configured
        .iter()
        .flat_map(|c| c["webhooks"].as_array().unwrap());
    let creates_pods = |rule: &Json| {
        let holds = |field: &str, one: &str| rule[field].as_array().unwrap().contains(&json!(one));
        holds("operations", "CREATE") && holds("resources", "pods")
    };
    let asked: Vec<_> = all
        .filter(|w| w["rules"].as_array().unwrap().iter().any(creates_pods))
        .map(|w| (&w["name"], &w["failurePolicy"]))
        .collect();
    let expected = (&json!("pod-create.apps.kusionstack.io"), &json!("Ignore"));
    assert_eq!(asked, [expected]);
}

#[test]
fn webhooks_that_write_or_call_others_have_longer_timeout() {
    for w in WEBHOOKS {
        let sends_dry_runs = [
            Route::MutateCollaSets,
            Route::ValidateCollaSets,
            Route::MutatePodDecorations,
            Route::ValidatePodDecorations,
        ];
        let asks = sends_dry_runs.contains(&w.route);
        assert_eq!(
            w.timeout_seconds,
            if w.writes || asks { 10 } else { 5 },
            "{}",
            w.name
        );
        // If a server that is down skipped a webhook that writes, a claim would be missing.
        assert!(!w.writes || w.must_answer, "{}", w.name);
    }
}

#[test]
fn every_entry_excludes_the_system_and_own_namespaces() {
    let (mutating, validating) = webhook_configurations(&settings());
    let selectors = mutating
        .webhooks
        .unwrap()
        .into_iter()
        .map(|w| w.namespace_selector);
    let selectors = selectors.chain(
        validating
            .webhooks
            .unwrap()
            .into_iter()
            .map(|w| w.namespace_selector),
    );
    for selector in selectors {
        let expressions = selector.unwrap().match_expressions.unwrap();
        let names = expressions[0].values.clone().unwrap();
        assert_eq!(
            names,
            [
                "kube-node-lease",
                "kube-public",
                "kube-system",
                "kusionstack-system",
                "elsewhere"
            ]
        );
        assert_eq!(expressions[1].key, keys::NAMESPACE_EXCLUDED);
        assert_eq!(expressions[1].operator, "DoesNotExist");
    }
}

#[test]
fn service_client_config_names_certificate_and_omits_ca_bundle() {
    let (mutating, _) = webhook_configurations(&ConfigurationSettings {
        client: ClientConfig::Service {
            name: "operating".into(),
            namespace: "n".into(),
            port: 443,
        },
        namespace: "n".into(),
        ca_bundle: None,
        grace_delete: false,
        collasets: true,
        cert_manager: Some("n/serving".into()),
        segment: None,
    });
    let object = serde_json::to_value(&mutating).unwrap();
    assert_eq!(
        object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"],
        "n/serving"
    );
    assert_eq!(
        object["webhooks"][0]["clientConfig"],
        json!({"service": {"name": "operating", "namespace": "n", "path": "/mutate/pods", "port": 443}})
    );
}

/// Evaluates a condition as the API server does: absent objects are `null`. An evaluation error fails the test.
fn holds(condition: Condition, object: &Json, old_object: &Json) -> bool {
    holds_for("someone", condition, object, old_object)
}

fn holds_for(user: &str, condition: Condition, object: &Json, old_object: &Json) -> bool {
    let expression = condition.expression();
    let program = Program::compile(&expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
    let mut context = Context::default();
    let request = json!({"userInfo": {"username": user}});
    context.add_variable_from_value("request", to_value(&request).unwrap());
    context.add_variable_from_value("object", to_value(object).unwrap());
    context.add_variable_from_value("oldObject", to_value(old_object).unwrap());
    match program.execute(&context) {
        Ok(Value::Bool(held)) => held,
        other => panic!("{expression} on {object} / {old_object}: {other:?}"),
    }
}

fn pod(part: Json) -> Json {
    let mut pod = json!({
        "metadata": {"name": "p", "labels": {"a": "b", keys::SERVICE_AVAILABLE: "1"}},
        "spec": {"containers": [{"name": "c", "image": "i:1", "resources": {}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}]},
    });
    json_patch::merge(&mut pod, &part);
    pod
}

#[test]
fn no_expression_fails_on_objects_with_nothing_in_them() {
    let sparse = [
        json!({"metadata": {}}),
        json!({"metadata": {}, "spec": {}, "status": {}}),
        pod(json!({})),
        json!({
            "metadata": {
                "labels": {}, "annotations": {"other": "", keys::MIRROR: ""}, "finalizers": [],
                "ownerReferences": [{}],
            },
            "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
            "status": {"conditions": [{"type": "Ready"}]},
        }),
    ];
    for condition in ALL_CONDITIONS {
        for object in &sparse {
            for old in &sparse {
                holds(condition, object, old);
            }
        }
    }
    holds(Condition::SpecChanged, &sparse[1], &Json::Null);
    for condition in [
        Condition::NotTerminating,
        Condition::NotFinished,
        Condition::Available,
        Condition::Unavailable,
        Condition::HasReadinessGate,
        Condition::NotMirror,
        Condition::Pending,
    ] {
        holds(condition, &Json::Null, &sparse[0]);
    }
}

#[test]
fn unrelated_pod_updates_are_not_sent() {
    let old = pod(json!({}));
    for object in [
        old.clone(),
        pod(json!({"metadata": {"annotations": {"note": "x"}, "resourceVersion": "7"}})),
        pod(
            json!({"status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": "now"}]}}),
        ),
        pod(json!({"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}})),
    ] {
        assert!(
            !holds(Condition::LifecycleChanged, &object, &old),
            "{object}"
        );
        assert!(
            !holds(Condition::LabelsOrDisruptiveFieldsChanged, &object, &old),
            "{object}"
        );
        assert!(
            !holds(Condition::ReadinessChanged, &object, &old),
            "{object}"
        );
    }
}

#[test]
fn lifecycle_relevant_updates_are_sent() {
    let old = pod(json!({}));
    for object in [
        pod(json!({"metadata": {"labels": {"a": "c"}}})),
        pod(json!({"metadata": {"labels": null}})),
        pod(json!({"metadata": {"finalizers": ["x/y"]}})),
        pod(json!({"metadata": {"annotations": {keys::AVAILABLE_CONDITIONS: "{}"}}})),
    ] {
        assert!(
            holds(Condition::LifecycleChanged, &object, &old),
            "{object}"
        );
        assert!(
            holds(Condition::LifecycleChanged, &old, &object),
            "{object}"
        );
    }
}

#[test]
fn status_update_with_label_change_reaches_one_lifecycle_webhook() {
    let grant = json!({"metadata": {"labels": {Family::PreChecked.key("x"): "1"}}});
    let closed =
        json!({"status": {"conditions": [{"type": keys::SERVICE_READY, "status": "False"}]}});
    let (old, mut granted) = (pod(json!({})), pod(grant));
    json_patch::merge(&mut granted, &closed); // by the webhook that is called first
    let mut unlabelled = old.clone();
    json_patch::merge(&mut unlabelled, &closed);
    for (new, unchanged) in [(granted, false), (unlabelled, true)] {
        assert_eq!(holds(Condition::LifecycleChanged, &new, &old), !unchanged);
        assert!(holds(Condition::ReadinessChanged, &new, &old));
        assert_eq!(holds(Condition::LabelsUnchanged, &new, &old), unchanged);
    }
    let is_of_status = |w: &&Webhook| w.rules.iter().any(|r| r.resource == "pods/status");
    let of_lifecycle = WEBHOOKS.iter().filter(|w| w.route == Route::MutatePods);
    for webhook in of_lifecycle.filter(is_of_status) {
        let asks = |condition| webhook.conditions.contains(&condition);
        let one = asks(Condition::LifecycleChanged) != asks(Condition::LabelsUnchanged);
        assert!(one, "{}", webhook.name);
    }
}

#[test]
fn image_change_is_sent_during_operation_or_before_restart() {
    let with = |image: &str, metadata: Json| {
        let spec = json!({"containers": [{"name": "app", "image": image}]});
        pod(json!({"metadata": metadata, "spec": spec}))
    };
    let operate = json!({"labels": {Family::Operate.key("x"): "1"}});
    let awaits = json!({"annotations": {keys::AWAITS_RESTART: "{}"}});
    for (metadata, sent) in [(json!({}), false), (operate, true), (awaits.clone(), true)] {
        let [old, new] = ["a:1", "a:2"].map(|image| with(image, metadata.clone()));
        let is_sent = holds(Condition::LifecycleChanged, &new, &old);
        assert_eq!(is_sent, sent, "{metadata}");
        assert!(!holds(Condition::LifecycleChanged, &old, &old));
    }
    let [without, with] = [json!({}), awaits].map(|metadata| with("a:1", metadata));
    assert!(holds(Condition::LifecycleChanged, &without, &with));
    assert!(holds(Condition::LifecycleChanged, &with, &without));
}

#[test]
fn changed_deadline_or_owner_is_sent() {
    let old = pod(json!({}));
    let owned = |uid: &str| {
        pod(
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid}]}}),
        )
    };
    let due = |seconds: i64| pod(json!({"spec": {"activeDeadlineSeconds": seconds}}));
    for (old, object) in [
        (&old, due(5)),
        (&due(5), due(1)),
        (&old, owned("a")),
        (&owned("a"), owned("b")),
        (&owned("a"), old.clone()),
    ] {
        let condition = Condition::LabelsOrDisruptiveFieldsChanged;
        assert!(holds(condition, &object, old), "{object}");
        assert!(!holds(condition, &object, &object), "{object}");
        assert!(!holds(Condition::LabelsChanged, &object, old), "{object}");
    }
}

#[test]
fn in_place_changes_are_sent() {
    let old = pod(json!({}));
    for object in [
        pod(json!({"spec": {"containers": [{"name": "c", "image": "i:2", "resources": {}}]}})),
        pod(
            json!({"spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}}]}}),
        ),
        pod(json!({"spec": {"initContainers": [{"name": "s", "image": "s:2"}]}})),
        pod(json!({"spec": {"resources": {"limits": {"cpu": "1"}}}})),
    ] {
        assert!(
            holds(Condition::LabelsOrDisruptiveFieldsChanged, &object, &old),
            "{object}"
        );
        assert!(!holds(Condition::LabelsChanged, &object, &old), "{object}");
    }
}

#[test]
fn readiness_change_of_pod_in_operation_is_sent() {
    let idle = pod(json!({}));
    assert!(!holds(Condition::InFlight, &idle, &idle));
    for family in [keys::Family::Preparing, keys::Family::Completing] {
        assert!(holds(
            Condition::InFlight,
            &pod(json!({"metadata": {"labels": {family.key("x"): "1"}}})),
            &idle
        ));
    }
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let not_available = json!({"metadata": {"labels": {keys::SERVICE_AVAILABLE: null}}});
    let pod_of = |parts: &[&Json]| {
        let mut object = pod(json!({}));
        parts
            .iter()
            .for_each(|part| json_patch::merge(&mut object, part));
        object
    };
    for (parts, sent) in [
        ([&ready, &not_available], true),
        ([&not_ready, &not_available], false),
        ([&ready, &ready], false),
    ] {
        let object = pod_of(&parts);
        assert_eq!(holds(Condition::InFlight, &object, &idle), sent, "{object}");
    }
    for conditions in [
        json!([]),
        json!([{"type": "Ready", "status": "False"}]),
        json!([{"type": "Ready", "status": "True"}, {"type": keys::SERVICE_READY, "status": "True"}]),
    ] {
        assert!(holds(
            Condition::ReadinessChanged,
            &pod(json!({"status": {"conditions": conditions}})),
            &idle
        ));
    }
}

#[test]
fn deletes_that_no_budget_holds_are_not_sent() {
    let sent = |old: Json| {
        let delete = WEBHOOKS
            .iter()
            .find(|w| w.name == "pod-delete.apps.kusionstack.io")
            .unwrap();
        delete
            .conditions
            .iter()
            .all(|c| holds(*c, &Json::Null, &old))
    };
    assert!(sent(pod(json!({}))));
    assert!(sent(pod(
        json!({"metadata": {"annotations": {"note": "x"}}})
    )));
    assert!(!sent(pod(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    )));
    assert!(!sent(pod(json!({"status": {"phase": "Succeeded"}}))));
    assert!(!sent(pod(json!({"status": {"phase": "Failed"}}))));
    assert!(!sent(pod_not_serving()));
    assert!(
        sent(ready_unlabelled_pod()),
        "the leader is about to label it"
    );
    assert!(!sent(mirror(json!([owner("v1", "Node", true)]))));
}

/// A Pod that is Ready and does not have the label yet.
fn ready_unlabelled_pod() -> Json {
    pod(json!({"metadata": {"labels": {keys::SERVICE_AVAILABLE: null}}}))
}

/// A Pod that neither has the label nor is Ready.
fn pod_not_serving() -> Json {
    let mut down = ready_unlabelled_pod();
    down["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    down
}

fn owner(version: &str, kind: &str, controller: bool) -> Json {
    json!({"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": controller})
}

/// A Pod with the annotation of a mirror Pod, and these owners.
fn mirror(owners: Json) -> Json {
    pod(json!({"metadata": {"annotations": {keys::MIRROR: "hash"}, "ownerReferences": owners}}))
}

#[test]
fn deletion_of_forged_mirror_pod_is_sent() {
    let replica_set = owner("apps/v1", "ReplicaSet", true);
    let node = owner("v1", "Node", true);
    let bare_node = json!({"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "u"});
    for (owners, is_mirror) in [
        (json!([node]), true),
        (json!([bare_node, node]), true),
        (json!(null), false), // the field is absent
        (json!([]), false),
        (json!([{}]), false),
        (json!([bare_node]), false),
        (json!([owner("v1", "Node", false)]), false),
        (json!([owner("example.com/v1", "Node", true)]), false),
        (json!([replica_set]), false),
        (json!([bare_node, replica_set]), false),
    ] {
        let old = mirror(owners);
        assert_eq!(
            sends_deletion("pod-delete.apps.kusionstack.io", &old),
            !is_mirror,
            "{old}"
        );
        let read: crate::domain::pod::Pod = serde_json::from_value(old.clone()).unwrap();
        assert_eq!(read.is_mirror(), is_mirror, "{old}");
    }
    let plain = pod(json!({"metadata": {"ownerReferences": [node]}}));
    assert!(sends_deletion("pod-delete.apps.kusionstack.io", &plain));
}

/// Whether the webhook with this name is called for the deletion of a Pod.
fn sends_deletion(name: &str, old: &Json) -> bool {
    let entry = WEBHOOKS
        .iter()
        .chain(GRACEFUL_DELETION_WEBHOOKS)
        .find(|w| w.name == name);
    let mut conditions = entry.unwrap().conditions.iter();
    conditions.all(|c| holds(*c, &Json::Null, old))
}

#[test]
fn deletion_is_sent_once_if_rule_holds_unavailable() {
    let available = pod(json!({}));
    let unavailable = pod_not_serving();
    let bare = json!({"metadata": {}, "spec": {}, "status": {}});
    for (old, is_available) in [(&available, true), (&unavailable, false), (&bare, false)] {
        assert_eq!(
            sends_deletion("pod-delete.apps.kusionstack.io", old),
            is_available
        );
        let rest = sends_deletion("pod-delete-unavailable.apps.kusionstack.io", old);
        assert_eq!(rest, !is_available);
    }
    let finished = pod(json!({"metadata": {"labels": null}, "status": {"phase": "Failed"}}));
    assert!(!sends_deletion(
        "pod-delete-unavailable.apps.kusionstack.io",
        &finished
    ));
}

#[test]
fn graceful_deletion_gate_adds_webhooks_that_fail_open() {
    let count = |settings: &ConfigurationSettings| {
        let (mutating, validating) = webhook_configurations(settings);
        mutating.webhooks.unwrap().len() + validating.webhooks.unwrap().len()
    };
    assert_eq!(count(&settings()), WEBHOOKS.len());
    let gated = ConfigurationSettings {
        grace_delete: true,
        ..settings()
    };
    assert_eq!(
        count(&gated),
        WEBHOOKS.len() + GRACEFUL_DELETION_WEBHOOKS.len()
    );
    assert!(
        GRACEFUL_DELETION_WEBHOOKS
            .iter()
            .all(|w| !w.must_answer && w.writes)
    );
}

#[test]
fn without_collasets_only_their_entries_are_left_out() {
    let off = ConfigurationSettings {
        collasets: false,
        ..settings()
    };
    let (mutating, validating) = webhook_configurations(&off);
    let paths = &paths(mutating) | &paths(validating);
    for route in Route::ALL {
        let url = format!("https://localhost:9443{}", route.path());
        assert_eq!(paths.contains(&url), !route.is_for_collasets(), "{url}");
    }
}

#[test]
fn graceful_deletion_is_sent_only_for_readiness_gate_pods() {
    let gates = |types: &[&str]| {
        let gates: Vec<_> = types.iter().map(|t| json!({"conditionType": t})).collect();
        pod(json!({"spec": {"readinessGates": gates}}))
    };
    let unruled = "pod-delete-grace-unruled.apps.kusionstack.io";
    assert!(sends_deletion(
        unruled,
        &gates(&["other", keys::SERVICE_READY])
    ));
    assert!(!sends_deletion(unruled, &gates(&["other"])));
    assert!(!sends_deletion(unruled, &pod(json!({}))));
    // In a namespace with rules, the deletion of a Pod that serves is sent to the webhook that claims.
    let mut going = gates(&[keys::SERVICE_READY]);
    let ruled = "pod-delete-grace.apps.kusionstack.io";
    assert!(!sends_deletion(ruled, &going));
    going["metadata"]["labels"] = json!({});
    assert!(!sends_deletion(ruled, &going));
    going["status"]["conditions"] = json!([]);
    assert!(sends_deletion(ruled, &going));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(!sends_deletion(ruled, &going) && !sends_deletion(unruled, &going));
}

#[test]
fn rule_is_sent_on_create_and_spec_change() {
    let rule = json!({"metadata": {"finalizers": ["a"]}, "spec": {"selector": {}}});
    let metadata_only = json!({"metadata": {}, "spec": {"selector": {}}});
    let changed = json!({"metadata": {}, "spec": {"selector": {"matchLabels": {"a": "b"}}}});
    assert!(holds(Condition::SpecChanged, &rule, &Json::Null));
    assert!(!holds(Condition::SpecChanged, &metadata_only, &rule));
    assert!(holds(Condition::SpecChanged, &changed, &rule));
}

#[test]
fn namespace_controller_is_never_held() {
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    let pod = pod(json!({}));
    let condition = Condition::NotNamespaceController;
    assert!(!holds_for(controller, condition, &Json::Null, &pod));
    assert!(holds_for("someone", condition, &Json::Null, &pod));
}

#[test]
fn only_deletions_of_pending_pvcs_are_sent() {
    let claim = |phase: &str| json!({"metadata": {}, "status": {"phase": phase}});
    assert!(holds(Condition::Pending, &Json::Null, &claim("Pending")));
    assert!(!holds(Condition::Pending, &Json::Null, &claim("Bound")));
    assert!(!holds(
        Condition::Pending,
        &Json::Null,
        &json!({"metadata": {}})
    ));
}

#[test]
fn scaling_and_status_are_never_sent() {
    for w in WEBHOOKS
        .iter()
        .filter(|w| w.rules.iter().any(|r| r.group == keys::GROUP))
    {
        assert!(
            w.rules.iter().all(|r| !r.resource.contains('/')),
            "{}",
            w.name
        );
        let is_sent = |o: &&str| ["CREATE", "UPDATE"].contains(o);
        let sent = w.rules.iter().all(|r| r.operations.iter().all(is_sent));
        assert!(sent, "{}", w.name);
    }
}

#[test]
fn only_orphaning_collaset_deletions_are_sent() {
    let set = |change: Json| json!({ "metadata": change });
    let at = "2026-01-01T00:00:00Z";
    let note = json!({ keys::LEAVES_ITS_PODS: "1" });
    for (stored, expected) in [
        (
            json!({ "deletionTimestamp": at, "finalizers": ["a", "orphan"] }),
            true,
        ),
        (
            json!({ "deletionTimestamp": at, "annotations": note }),
            true,
        ),
        (
            json!({ "deletionTimestamp": at, "finalizers": ["a"], "annotations": { "b": "c" } }),
            false,
        ),
        (json!({ "deletionTimestamp": at }), false),
        (
            json!({ "finalizers": ["orphan"], "annotations": note }),
            false,
        ),
    ] {
        let met = holds(
            Condition::LeavesItsPods,
            &set(json!({})),
            &set(stored.clone()),
        );
        assert_eq!(met, expected, "{stored}");
    }
}

#[test]
fn only_pvc_deletions_by_garbage_collector_are_sent() {
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let user = Condition::ByGarbageCollector;
    for (name, asked) in [
        (collector, true),
        ("system:kube-controller-manager", true),
        ("alice", false),
    ] {
        assert_eq!(holds_for(name, user, &Json::Null, &json!({})), asked);
    }
    let owned = |owners: Json| json!({"metadata": {"ownerReferences": owners}});
    let set = json!({"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet"});
    let stateful = json!({"apiVersion": "apps/v1", "kind": "StatefulSet"});
    let asked = |owners| holds(Condition::OfCollaSet, &Json::Null, &owned(owners));
    assert!(asked(json!([stateful, set])));
    assert!(!asked(json!([stateful])) && !asked(json!([])));
}
