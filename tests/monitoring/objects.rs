//! Objects on a real control plane, and the series that the file for kube-state-metrics makes of them.

use std::collections::{BTreeMap, BTreeSet};

use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use operating::api::operationjob::OperationJob;
use operating::api::poddecoration::PodDecoration;
use operating::api::podtransitionrule::PodTransitionRuleStatus;
use serde_json::{Value, json};
use testbed::{Bed, Scope, wait};
use tokio::sync::OnceCell;

use crate::read;
use crate::schema::FILE;
use crate::sets::Set;
use crate::state_metrics::{Configuration, Series};

const RIGHTS: &str = "manifests/monitoring/kube-state-metrics-rbac.yaml";
const ROLE: &str = "operating-kube-state-metrics";
/// Finalizer of somebody else.
const KEEPER: &str = "example.com/keep";

/// What Prometheus would scrape on the plane.
pub struct Ground {
    /// Of kube-state-metrics.
    pub series: Vec<Series>,
    /// Of the replicas of the server.
    pub scrapes: Vec<String>,
}

impl Ground {
    pub async fn shared() -> &'static Ground {
        static GROUND: OnceCell<Ground> = OnceCell::const_new();
        GROUND.get_or_init(Ground::build).await
    }

    async fn build() -> Ground {
        let bed = Bed::shared().await;
        let scope = bed.scope("monitoring").await;
        held_rule(&scope).await;
        let sets = sets(&scope).await;
        decoration(&scope).await;
        failed_job(&scope).await;
        let deleted = deleted_objects(&scope).await;
        let reader = reader(bed, &scope).await;
        let series = read_as(bed, &scope, &reader).await;
        for api in deleted {
            release(&api).await;
        }
        drop(sets);
        let scrapes = bed.scrapes().await;
        Ground { series, scrapes }
    }
}

/// Two of three Pods ask for an operation under a rule that lets one go.
async fn held_rule(scope: &Scope) {
    let pods = scope.web_under_rule(3, json!(1)).await;
    scope.begin(&pods[0], "upgrade").await.unwrap();
    let is_used_up = |s: &PodTransitionRuleStatus| s.disruptions_allowed == Some(0);
    scope
        .until_status("web", "a used up budget", is_used_up)
        .await;
    scope.begin(&pods[1], "upgrade").await.unwrap();
    let waits = |s: &PodTransitionRuleStatus| s.waiting_pods == 1 && s.unavailable_pods == 1;
    scope.until_status("web", "a Pod that waits", waits).await;
    let selector = json!({ "matchLabels": { "app": "nobody" } });
    let rule =
        [json!({ "name": "a", "labelCheck": { "requires": { "matchLabels": { "go": "1" } } } })];
    let spec = json!({ "selector": selector, "rules": rule });
    scope.try_rule("empty", spec).await.unwrap();
    let is_matched =
        |s: &PodTransitionRuleStatus| s.conditions.iter().any(|c| c.type_ == "Matched");
    scope
        .until_status("empty", "its condition", is_matched)
        .await;
}

/// A CollaSet that pauses after a step of its rollout, and a CollaSet whose image can't be pulled.
async fn sets(scope: &Scope) -> [Set<'_>; 2] {
    let part = json!({ "updateStrategy": {
        "podUpgradePolicy": "InPlaceIfPossible",
        "rollingUpdate": { "byPartition": { "partition": 1 }, "steps": [{ "partition": 3 }, { "pause": {} }] },
    } });
    let stepped = Set::new(scope, "stepped", 4, part).await;
    stepped.image("app:2").await;
    let paused = |set: &operating::api::collaset::CollaSet| {
        let status = set.status.as_ref().unwrap();
        let step = status.rollout.as_ref().map(|rollout| rollout.step);
        step == Some(2) && status.updated_available_replicas == 1 && status.available_replicas == 4
    };
    stepped
        .until("the pause after the first step", paused)
        .await;
    let part = json!({ "progressDeadlineSeconds": 2 });
    let stuck = Set::new(scope, "stuck", 1, part).await;
    stuck.image("app:non-exist").await;
    let is_stalled = |set: &operating::api::collaset::CollaSet| {
        let status = set.status.as_ref();
        status.is_some_and(|s| {
            s.conditions
                .iter()
                .any(|c| c.type_ == "Stalled" && c.status == "True")
        })
    };
    stuck.until("it to be stalled", is_stalled).await;
    [stepped, stuck]
}

fn decoration_object(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration", "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "updateStrategy": { "rollingUpdate": { "partition": 1 } },
            "template": { "containers": [{ "name": "side", "image": image }] },
        },
    })
}

/// A PodDecoration whose partition keeps one of two Pods on the former revision.
async fn decoration(scope: &Scope) {
    let api: Api<PodDecoration> = scope.api();
    scope
        .store::<PodDecoration>(decoration_object("side", "side:1"))
        .await;
    let until = async |description: &str, updated: i32| {
        wait::until(description, async || {
            let status = api.get("side").await.unwrap().status.unwrap_or_default();
            let is_ready = status
                .conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            is_ready && (status.matched_pods, status.updated_available_pods) == (2, updated)
        })
        .await;
    };
    Set::new(scope, "side", 2, json!({})).await;
    wait::until("two decorated Pods", async || {
        let status = api.get("side").await.unwrap().status.unwrap_or_default();
        status.injected_pods == 2
    })
    .await;
    let image = decoration_object("side", "side:2")["spec"].clone();
    let patch = Patch::Merge(json!({ "spec": image }));
    api.patch("side", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until("one of two Pods with the updated revision", 1).await;
}

fn job_object(name: &str) -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob", "metadata": { "name": name },
        "spec": { "action": "Replace", "partition": 1, "targets": [{ "name": "nobody" }] },
    })
}

/// A job about a Pod that does not exist.
async fn failed_job(scope: &Scope) {
    scope.store::<OperationJob>(job_object("failed")).await;
    let api: Api<OperationJob> = scope.api();
    wait::until("the job to fail", async || {
        let status = api.get("failed").await.unwrap().status.unwrap_or_default();
        status.end_time.is_some() && status.conditions.iter().any(|c| c.type_ == "Stalled")
    })
    .await;
}

/// An object of each kind in deletion, which a finalizer of somebody else keeps.
async fn deleted_objects(scope: &Scope) -> Vec<Api<DynamicObject>> {
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "gone" },
        "spec": {
            "paused": true, "selector": { "matchLabels": { "app": "gone" } },
            "template": {
                "metadata": { "labels": { "app": "gone" } },
                "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
            },
        },
    });
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule", "metadata": { "name": "gone" },
        "spec": testbed::scope::availability(json!({ "app": "gone" }), json!(1)),
    });
    let objects = [
        rule,
        set,
        decoration_object("gone", "side:1"),
        job_object("gone"),
    ];
    let mut apis = Vec::new();
    for ((kind, plural), mut object) in KINDS.into_iter().zip(objects) {
        object["metadata"]["finalizers"] = json!([KEEPER]);
        let api = dynamic(scope, kind, plural);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&Default::default(), &object).await.unwrap();
        api.delete("gone", &DeleteParams::default()).await.unwrap();
        apis.push(api);
    }
    apis
}

/// Removes our finalizer, so that the object can go.
async fn release(api: &Api<DynamicObject>) {
    let object = api.get("gone").await.unwrap();
    let mut kept = object.metadata.finalizers.unwrap();
    kept.retain(|finalizer| finalizer != KEEPER);
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": kept } }));
    let params = PatchParams::default();
    api.patch("gone", &params, &patch).await.unwrap();
}

/// The kinds of the file, each with its plural.
const KINDS: [(&str, &str); 4] = [
    ("PodTransitionRule", "podtransitionrules"),
    ("CollaSet", "collasets"),
    ("PodDecoration", "poddecorations"),
    ("OperationJob", "operationjobs"),
];

fn dynamic(scope: &Scope, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "apps.kusionstack.io".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "apps.kusionstack.io/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    Api::namespaced_with(scope.client.clone(), &scope.namespace, &resource)
}

/// A service account with the rights of kube-state-metrics, as docs/monitoring.md gives them.
async fn reader(bed: &Bed, scope: &Scope) -> String {
    let rights = crate::root().join(RIGHTS);
    let _ = bed
        .ask_kubectl(&["apply", "-f", rights.to_str().unwrap()])
        .await
        .success();
    let account = format!("{}:kube-state-metrics", scope.namespace);
    let binding = [
        "create".to_owned(),
        "clusterrolebinding".to_owned(),
        scope.namespace.clone(),
        format!("--clusterrole={ROLE}"),
        format!("--serviceaccount={account}"),
    ];
    let _ = bed
        .ask_kubectl(&binding.each_ref().map(String::as_str))
        .await
        .success();
    format!("--as=system:serviceaccount:{account}")
}

/// The series that this user can make of the objects of the namespace.
async fn read_as(bed: &Bed, scope: &Scope, reader: &str) -> Vec<Series> {
    let configuration = Configuration::parse(&read(FILE));
    let mut series = Vec::new();
    for resource in configuration.resources() {
        let plural = format!("{}s", resource.group_version_kind.kind.to_lowercase());
        let plural = format!("{plural}.{}", resource.group_version_kind.group);
        let list = ["get", &plural, "-n", &scope.namespace, "-o", "json", reader];
        let list = bed.ask_kubectl(&list).await.json();
        let watch = ["auth", "can-i", "watch", &plural, "-A", reader];
        let _ = bed.ask_kubectl(&watch).await.success();
        series.extend(
            list["items"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|o| configuration.series(o)),
        );
    }
    for (verb, kind, may) in [
        ("watch", "customresourcedefinitions", true),
        ("list", "secrets", false),
        ("patch", "podtransitionrules", false),
    ] {
        let said = bed
            .ask_kubectl(&["auth", "can-i", verb, kind, "-A", reader])
            .await;
        assert_eq!(said.succeeded(), may, "{verb} {kind}: {said:?}");
    }
    let role = ["delete", "clusterrolebinding", &scope.namespace];
    let _ = bed.ask_kubectl(&role).await.success();
    series
}

fn labels(series: &Series, wanted: &[(&str, &str)]) -> bool {
    let has = |(label, value): &(&str, &str)| series.labels.get(*label).is_some_and(|v| v == value);
    wanted.iter().all(has)
}

#[tokio::test]
async fn every_series_has_the_value_of_its_object() {
    let ground = Ground::shared().await;
    let value = |metric: &str, name: &str, more: &[(&str, &str)]| -> Option<f64> {
        let wanted = [&[("name", name)], more].concat();
        let mut found = ground
            .series
            .iter()
            .filter(|s| s.metric == metric && labels(s, &wanted));
        let first = found.next().map(|series| series.value);
        assert!(
            found.next().is_none(),
            "two series {metric} of {name} {more:?}"
        );
        first
    };
    for (metric, name, expected) in [
        ("podtransitionrule_status_expected_pods", "web", Some(3.0)),
        ("podtransitionrule_status_selected_pods", "web", Some(3.0)),
        ("podtransitionrule_status_available_pods", "web", Some(2.0)),
        (
            "podtransitionrule_status_unavailable_pods",
            "web",
            Some(1.0),
        ),
        (
            "podtransitionrule_status_unavailable_limit",
            "web",
            Some(1.0),
        ),
        (
            "podtransitionrule_status_disruptions_allowed",
            "web",
            Some(0.0),
        ),
        ("podtransitionrule_status_waiting_pods", "web", Some(1.0)),
        ("podtransitionrule_metadata_generation", "web", Some(1.0)),
        (
            "podtransitionrule_status_observed_generation",
            "web",
            Some(1.0),
        ),
        ("podtransitionrule_deletion_timestamp", "web", None),
        ("podtransitionrule_status_unavailable_limit", "empty", None),
        (
            "podtransitionrule_status_disruptions_allowed",
            "empty",
            None,
        ),
        ("podtransitionrule_status_waiting_pods", "empty", Some(0.0)),
        ("collaset_spec_replicas", "stepped", Some(4.0)),
        ("collaset_spec_paused", "stepped", Some(0.0)),
        ("collaset_spec_partition", "stepped", Some(1.0)),
        ("collaset_metadata_generation", "stepped", Some(2.0)),
        ("collaset_status_observed_generation", "stepped", Some(2.0)),
        ("collaset_status_replicas", "stepped", Some(4.0)),
        ("collaset_status_scheduled_replicas", "stepped", Some(4.0)),
        ("collaset_status_ready_replicas", "stepped", Some(4.0)),
        ("collaset_status_available_replicas", "stepped", Some(4.0)),
        ("collaset_status_updated_replicas", "stepped", Some(1.0)),
        (
            "collaset_status_updated_ready_replicas",
            "stepped",
            Some(1.0),
        ),
        (
            "collaset_status_updated_available_replicas",
            "stepped",
            Some(1.0),
        ),
        ("collaset_status_operating_replicas", "stepped", Some(0.0)),
        ("collaset_status_terminating_replicas", "stepped", Some(0.0)),
        ("collaset_status_rollout_step", "stepped", Some(2.0)),
        ("collaset_status_rollout_steps", "stepped", Some(2.0)),
        ("collaset_status_replicas", "stuck", Some(1.0)),
        ("collaset_status_available_replicas", "stuck", Some(0.0)),
        ("collaset_spec_partition", "stuck", None),
        ("collaset_status_rollout_steps", "stuck", None),
        ("collaset_spec_replicas", "gone", Some(0.0)),
        ("collaset_spec_paused", "gone", Some(1.0)),
        ("poddecoration_spec_partition", "side", Some(1.0)),
        ("poddecoration_status_matched_pods", "side", Some(2.0)),
        ("poddecoration_status_injected_pods", "side", Some(2.0)),
        ("poddecoration_status_updated_pods", "side", Some(1.0)),
        ("poddecoration_status_updated_ready_pods", "side", Some(1.0)),
        (
            "poddecoration_status_updated_available_pods",
            "side",
            Some(1.0),
        ),
        ("operationjob_spec_partition", "failed", Some(1.0)),
        ("operationjob_status_targets", "failed", Some(1.0)),
        ("operationjob_status_succeeded_targets", "failed", Some(0.0)),
        ("operationjob_status_failed_targets", "failed", Some(1.0)),
    ] {
        assert_eq!(
            value(&format!("kube_{metric}"), name, &[]),
            expected,
            "{metric} of {name}"
        );
    }
    for (kind, name, type_, status, reason, expected) in [
        (
            "podtransitionrule",
            "web",
            "Enforced",
            "True",
            "Enforced",
            1.0,
        ),
        (
            "podtransitionrule",
            "empty",
            "Matched",
            "False",
            "NoPodsMatched",
            0.0,
        ),
        ("collaset", "stepped", "Update", "False", "StepPaused", 0.0),
        (
            "collaset",
            "stuck",
            "Stalled",
            "True",
            "ProgressDeadlineExceeded",
            1.0,
        ),
        ("poddecoration", "side", "Ready", "True", "AsWanted", 1.0),
        (
            "operationjob",
            "failed",
            "Stalled",
            "True",
            "TargetsFailed",
            1.0,
        ),
    ] {
        let metric = format!("kube_{kind}_status_condition");
        let labels = [("type", type_), ("status", status), ("reason", reason)];
        let of_object = ground
            .series
            .iter()
            .filter(|s| s.metric == metric && labels_of(s, name));
        let all: Vec<_> = of_object.collect();
        assert_eq!(
            value(&metric, name, &labels),
            Some(expected),
            "{name}: {all:?}"
        );
    }
    let progress = |progress| {
        value(
            "kube_operationjob_status_progress",
            "failed",
            &[("progress", progress)],
        )
    };
    assert_eq!(
        ["Pending", "Processing", "Succeeded", "Failed"].map(progress),
        [0.0, 0.0, 0.0, 1.0].map(Some)
    );
    assert_eq!(
        value("kube_operationjob_info", "failed", &[("action", "Replace")]),
        Some(1.0)
    );
    let policy = [("pod_upgrade_policy", "InPlaceIfPossible")];
    assert_eq!(value("kube_collaset_info", "stepped", &policy), Some(1.0));
    let now = jiff::Timestamp::now().as_second() as f64;
    for (kind, _) in KINDS {
        let metric = format!("kube_{}_deletion_timestamp", kind.to_lowercase());
        let at = value(&metric, "gone", &[]).unwrap();
        assert!(at > now - 3600.0 && at <= now + 60.0, "{metric} {at}");
    }
}

fn labels_of(series: &Series, name: &str) -> bool {
    labels(series, &[("name", name)])
}

#[tokio::test]
async fn every_metric_of_the_file_has_a_series() {
    let ground = Ground::shared().await;
    let configuration = Configuration::parse(&read(FILE));
    let names = configuration.resources().iter().flat_map(|resource| {
        let metrics = resource.metrics.iter();
        metrics.map(|metric| resource.name_of(metric))
    });
    let made: BTreeSet<_> = ground
        .series
        .iter()
        .map(|series| series.metric.clone())
        .collect();
    assert_eq!(names.collect::<BTreeSet<_>>(), made);
    // Prometheus rejects a scrape in which two series have the same labels.
    let mut seen = BTreeMap::new();
    for series in &ground.series {
        let key = (&series.metric, &series.labels);
        assert!(seen.insert(key, series.value).is_none(), "{series:?}");
        for label in ["namespace", "name", "customresource_kind"] {
            assert!(series.labels.contains_key(label), "{series:?}");
        }
    }
}
