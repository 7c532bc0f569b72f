//! Parses namespaces and owners of Pods from JSON, and computes how many Pods an owner asks for by its spec and status.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use super::Workload;
use crate::api::keys;
use crate::api::selector::Selector;
use crate::cluster::kind::WatchedKind;
use crate::domain::pod::Owner;
use crate::domain::pod_size::{MAX_LABEL_BYTES, fitting_labels};
use crate::ledger::store::Uid;

/// The default of `spec.managedBy` of a Job: the Job controller creates its Pods.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// The fields of a Namespace or an owner that a budget needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WorkloadObject {
    pub metadata: WorkloadMeta,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadMeta {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    #[serde(deserialize_with = "number")]
    pub resource_version: u64,
    generation: i64,
    pub labels: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    owner_references: Option<Vec<Owner>>,
    annotations: Option<Annotations>,
}

/// The only annotation that is kept, because the others may be large.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    /// The annotation [`keys::DEPLOYMENT_REVISION`].
    #[serde(rename = "deployment.kubernetes.io/revision")]
    revision: Option<String>,
}

fn number<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let text = Option::<String>::deserialize(d)?.unwrap_or_default();
    Ok(text.parse().unwrap_or(0))
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    replicas: Option<i64>,
    template: Option<Template>,
    /// A `LabelSelector` for most kinds, and a map for a ReplicationController.
    selector: serde_json::Value,
    /// Set for a Job.
    parallelism: Option<i64>,
    /// Set for a Job.
    completions: Option<i64>,
    /// Set for a Job.
    suspend: Option<bool>,
    /// Set for a Job.
    #[serde(rename = "managedBy")]
    managed_by: Option<String>,
    /// Set for a Deployment.
    strategy: Option<Strategy>,
    /// Set for a Deployment.
    paused: Option<bool>,
    /// Set for a StatefulSet or a DaemonSet.
    #[serde(rename = "updateStrategy")]
    update_strategy: Option<Strategy>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Strategy {
    #[serde(rename = "type")]
    type_: Option<String>,
    #[serde(rename = "rollingUpdate")]
    rolling_update: Option<RollingUpdate>,
}

impl Strategy {
    fn keeps_old(&self) -> bool {
        let partition = self.rolling_update.as_ref().and_then(|r| r.partition);
        self.type_.as_deref() == Some("OnDelete") || partition.is_some_and(|n| n > 0)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RollingUpdate {
    /// Set for a StatefulSet.
    partition: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: Option<WorkloadMeta>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: Option<i64>,
    /// Set for a DaemonSet.
    desired_number_scheduled: Option<i64>,
    /// Set for a DaemonSet.
    updated_number_scheduled: Option<i64>,
    /// Set for a Deployment, a ReplicaSet or a ReplicationController.
    replicas: Option<i64>,
    /// Set for a Deployment.
    updated_replicas: Option<i64>,
    /// Set for a StatefulSet.
    current_revision: Option<String>,
    /// Set for a StatefulSet.
    update_revision: Option<String>,
    /// Set for a Job.
    succeeded: Option<i64>,
    /// Set for a Job with indexed completions.
    failed_indexes: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// Parses an owner from JSON: namespace, UID, and the content that the index keeps. `None` if the deletion of the owner
/// has begun, or if the JSON cannot be read.
pub fn parse_workload(
    kind: WatchedKind,
    object: serde_json::Value,
) -> Option<(String, Uid, Workload)> {
    let object = serde_json::from_value(object).ok()?;
    let ((namespace, uid), workload) = workload_from_object(kind, object);
    Some((namespace, uid, workload?))
}

/// Namespace and UID of an owner, and its content. The content is `None` if the deletion of the owner has begun: from
/// then on its Pods count for themselves.
pub(in crate::cluster) fn workload_from_object(
    kind: WatchedKind,
    object: WorkloadObject,
) -> ((String, Uid), Option<Workload>) {
    let WorkloadObject {
        metadata,
        spec,
        status,
    } = object;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let (replicas, rolling) = match kind {
        WatchedKind::DaemonSet => daemon_set_size(&metadata, &status),
        WatchedKind::Job => (job_size(&spec, &status), false),
        WatchedKind::Deployment => (
            Some(to_count(spec.replicas)),
            status.replicas.unwrap_or(0) > status.updated_replicas.unwrap_or(0),
        ),
        WatchedKind::StatefulSet => (
            Some(to_count(spec.replicas)),
            status.update_revision.is_some() && status.update_revision != status.current_revision,
        ),
        // The API server writes the default into ReplicaSets and similar kinds. A CollaSet without replicas counts as
        // 0.
        WatchedKind::ReplicaSet | WatchedKind::ReplicationController | WatchedKind::CollaSet => {
            (Some(to_count(spec.replicas)), false)
        }
        // Objects of the other kinds own no Pods.
        _ => (None, false),
    };
    let recreates = kind == WatchedKind::Deployment
        && spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate");
    let revision = match kind {
        WatchedKind::ReplicaSet => parse_revision(metadata.annotations.as_ref()),
        _ => 0,
    };
    let controller = match kind {
        WatchedKind::ReplicaSet => metadata
            .owner_references
            .and_then(|all| all.into_iter().find(|o| o.controller))
            .filter(has_replica_sets)
            .map(Arc::new),
        _ => None,
    };
    let labels = template_labels(kind, spec.template).map(fitting_labels);
    let (template_labels, template_labels_dropped) = labels.unzip();
    let workload = Workload {
        kind,
        name: metadata.name,
        version: metadata.resource_version,
        replicas,
        controller,
        selector: (kind == WatchedKind::Deployment)
            .then(|| compile_selector(spec.selector))
            .flatten(),
        template_labels,
        template_labels_dropped: template_labels_dropped.unwrap_or(false),
        rolling,
        keeps_old: spec
            .update_strategy
            .as_ref()
            .is_some_and(Strategy::keeps_old),
        recreates,
        paused: kind == WatchedKind::Deployment && spec.paused.unwrap_or(false),
        created: metadata
            .creation_timestamp
            .filter(|_| kind == WatchedKind::Job)
            .and_then(|text| text.parse().ok()),
        pods_seen: match kind {
            WatchedKind::ReplicaSet | WatchedKind::ReplicationController => {
                to_count(status.replicas)
            }
            _ => 0,
        },
        revision,
    };
    let key = (metadata.namespace, Uid::from(metadata.uid));
    (
        key,
        metadata.deletion_timestamp.is_none().then_some(workload),
    )
}

/// Whether an object of the owner's kind may have ReplicaSets: a Deployment, or a kind that is not watched. Controllers
/// of other kinds do not manage ReplicaSets. A reference to such an object would count its number for Pods that it does
/// not know.
fn has_replica_sets(owner: &Owner) -> bool {
    WatchedKind::from_owner(owner).is_none_or(|kind| kind == WatchedKind::Deployment)
}

fn parse_revision(annotations: Option<&Annotations>) -> u64 {
    let text = annotations.and_then(|a| a.revision.as_deref());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn to_count(n: Option<i64>) -> u32 {
    u32::try_from(n.unwrap_or(0).max(0)).unwrap_or(u32::MAX)
}

/// The compiled selector of a Deployment. A selector with more bytes than are kept counts as matching everything. Then
/// only the name of a ReplicaSet tells which Deployment created it, so a large selector cannot separate a Deployment
/// from its ReplicaSets.
fn compile_selector(selector: serde_json::Value) -> Option<Selector> {
    if selector.to_string().len() > MAX_LABEL_BYTES {
        return Some(Selector::default());
    }
    Selector::compile(&serde_json::from_value(selector).ok()?).ok()
}

fn template_labels(
    kind: WatchedKind,
    template: Option<Template>,
) -> Option<BTreeMap<String, String>> {
    let metadata = template.and_then(|t| t.metadata);
    let mut labels = metadata.and_then(|m| m.labels).unwrap_or_default();
    if kind == WatchedKind::CollaSet {
        // The controller of CollaSets adds the label itself (contract 6.3).
        labels.insert(keys::CONTROL.into(), keys::CONTROL_VALUE.into());
    }
    let managed = labels.get(keys::CONTROL);
    managed
        .is_some_and(|v| v == keys::CONTROL_VALUE)
        .then_some(labels)
}

/// The size and the rollout of a DaemonSet. Its status says how many nodes should run its Pod. A number for an earlier
/// spec still counts. If the living Pods counted instead, each deletion after a change of the DaemonSet would reduce
/// the expected number.
fn daemon_set_size(metadata: &WorkloadMeta, status: &Status) -> (Option<u32>, bool) {
    let observed = status.observed_generation.unwrap_or(0);
    let desired = to_count(status.desired_number_scheduled);
    let rolling =
        observed >= metadata.generation && to_count(status.updated_number_scheduled) < desired;
    ((observed > 0).then_some(desired), rolling)
}

/// How many Pods of a Job run at a time: at most `parallelism`, and no more than the missing completions. A Job that is
/// about to end wants no Pods: its controller deletes them first and then sets Complete or Failed. Failed indexes are
/// never started again.
///
/// `None` if the Job controller neither creates nor deletes Pods: the Job has ended, another controller manages it, or
/// it has no `completions` and one Pod has succeeded. In the last case, the other Pods run to their end and are not
/// replaced.
fn job_size(spec: &Spec, status: &Status) -> Option<u32> {
    let is_true = |types: [&str; 2]| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|c| types.contains(&c.type_.as_str()) && c.status == "True")
    };
    let elsewhere = |manager: &String| manager != JOB_CONTROLLER;
    if is_true(["Complete", "Failed"]) || spec.managed_by.as_ref().is_some_and(elsewhere) {
        return None;
    }
    if is_true(["SuccessCriteriaMet", "FailureTarget"]) || spec.suspend == Some(true) {
        return Some(0);
    }
    let parallelism = to_count(Some(spec.parallelism.unwrap_or(1)));
    let succeeded = to_count(status.succeeded);
    let failed = status.failed_indexes.as_deref().map_or(0, count_indexes);
    match spec.completions {
        Some(completions) => {
            let ended = succeeded.saturating_add(failed);
            let missing = to_count(Some(completions)).saturating_sub(ended);
            Some(parallelism.min(missing))
        }
        None => (succeeded == 0).then_some(parallelism),
    }
}

/// The number of indexes in a text such as `1,3-5`, the format of a Job's `status.failedIndexes`.
fn count_indexes(text: &str) -> u32 {
    let parts = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    parts.fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn replicas(kind: WatchedKind, mut object: Value) -> Option<u32> {
        object["metadata"]["name"] = json!("a");
        parse_workload(kind, object).unwrap().2.replicas
    }

    #[test]
    fn null_fields_of_workload_are_read_as_absent() {
        for spec in [
            json!(null),
            json!({ "replicas": null, "template": null }),
            json!({ "template": { "metadata": null } }),
            json!({ "template": { "metadata": { "labels": null } } }),
        ] {
            let object = json!({ "metadata": { "name": "a" }, "spec": spec });
            serde_json::from_value::<WorkloadObject>(object).unwrap();
        }
    }

    #[test]
    fn large_template_labels_and_selectors_are_bounded() {
        let deployment = |labels: usize| {
            let own = [(keys::CONTROL.to_owned(), json!(keys::CONTROL_VALUE))];
            let others =
                (0..labels).map(|n| (format!("example.com/{n:05}"), json!("x".repeat(63))));
            let labels: serde_json::Map<_, _> = own.into_iter().chain(others).collect();
            let spec = json!({ "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels } } });
            let object = json!({ "metadata": { "name": "a" }, "spec": spec });
            parse_workload(WatchedKind::Deployment, object).unwrap().2
        };
        let usual = deployment(20);
        assert!(!usual.template_labels_dropped);
        let labels = usual.template_labels.unwrap();
        assert_eq!(labels.len(), 21);
        let selector = usual.selector.unwrap();
        assert!(selector.matches(&labels) && !selector.matches(&BTreeMap::new()));

        let large = deployment(8_000);
        assert!(large.template_labels_dropped);
        let labels = large.template_labels.unwrap();
        assert!(labels.len() < 200, "{}", labels.len());
        assert!(labels.contains_key(keys::CONTROL));
        assert_eq!(large.selector, Some(Selector::default()));
    }

    #[test]
    fn daemon_set_counts_by_its_last_status() {
        let set = |observed: Value| json!({ "metadata": { "generation": 3 }, "status": { "observedGeneration": observed, "desiredNumberScheduled": 5 } });
        assert_eq!(replicas(WatchedKind::DaemonSet, set(json!(3))), Some(5));
        // A change that the DaemonSet controller has not observed yet does not make the living Pods count.
        assert_eq!(replicas(WatchedKind::DaemonSet, set(json!(2))), Some(5));
        assert_eq!(replicas(WatchedKind::DaemonSet, set(json!(0))), None);
        assert_eq!(replicas(WatchedKind::DaemonSet, set(json!(null))), None);
    }

    #[test]
    fn job_runs_what_is_missing_up_to_its_parallelism() {
        let condition = |type_: &str, status: &str| json!({ "conditions": [{ "type": type_, "status": status }] });
        let ten = json!({ "parallelism": 4, "completions": 10 });
        for (spec, status, wanted) in [
            (json!({}), json!({}), Some(1)),
            (json!({ "parallelism": 4 }), json!({}), Some(4)),
            (json!({ "parallelism": 4 }), json!({ "succeeded": 1 }), None),
            (ten.clone(), json!({ "succeeded": 3 }), Some(4)),
            (ten.clone(), json!({ "succeeded": 8 }), Some(2)),
            (
                ten.clone(),
                json!({ "succeeded": 1, "failedIndexes": "0,2-8" }),
                Some(1),
            ),
            (
                json!({ "parallelism": 4, "suspend": true }),
                json!({}),
                Some(0),
            ),
            (ten.clone(), condition("FailureTarget", "True"), Some(0)),
            (
                ten.clone(),
                condition("SuccessCriteriaMet", "True"),
                Some(0),
            ),
            (ten.clone(), condition("Complete", "True"), None),
            (ten.clone(), condition("Failed", "True"), None),
            (ten.clone(), condition("Failed", "False"), Some(4)),
            (
                json!({ "managedBy": "other.example/jobs" }),
                json!({}),
                None,
            ),
            (json!({ "managedBy": JOB_CONTROLLER }), json!({}), Some(1)),
        ] {
            let object = json!({ "metadata": {}, "spec": spec, "status": status });
            assert_eq!(
                replicas(WatchedKind::Job, object.clone()),
                wanted,
                "{object}"
            );
        }
    }

    #[test]
    fn replica_set_keeps_its_own_number_and_its_controller() {
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true }]);
        let object = json!({
            "metadata": { "name": "web-1", "uid": "r", "resourceVersion": "7", "ownerReferences": owner },
            "spec": { "replicas": 3 },
        });
        let (_, _, set) = parse_workload(WatchedKind::ReplicaSet, object).unwrap();
        assert_eq!((set.replicas, set.version), (Some(3), 7));
        assert_eq!(set.controller.unwrap().uid, "d");
    }

    #[test]
    fn replica_set_tells_its_revision() {
        for (kind, annotations, revision) in [
            (
                WatchedKind::ReplicaSet,
                json!({ (keys::DEPLOYMENT_REVISION): "12", "other": "1" }),
                12,
            ),
            (
                WatchedKind::ReplicaSet,
                json!({ (keys::DEPLOYMENT_REVISION): "x" }),
                0,
            ),
            (WatchedKind::ReplicaSet, json!(null), 0),
            (
                WatchedKind::Deployment,
                json!({ (keys::DEPLOYMENT_REVISION): "12" }),
                0,
            ),
        ] {
            let object = json!({ "metadata": { "name": "a", "annotations": annotations } });
            assert_eq!(parse_workload(kind, object).unwrap().2.revision, revision);
        }
    }

    #[test]
    fn seen_pods_are_kept_of_owners_that_scale_in() {
        for (kind, observed) in [
            (WatchedKind::ReplicaSet, 4),
            (WatchedKind::ReplicationController, 4),
            (WatchedKind::Deployment, 0),
            (WatchedKind::StatefulSet, 0),
        ] {
            let object = json!({ "metadata": { "name": "a" }, "status": { "replicas": 4 } });
            assert_eq!(parse_workload(kind, object).unwrap().2.pods_seen, observed);
        }
    }

    #[test]
    fn replica_set_belongs_to_no_owner_that_makes_none() {
        for (version, kind, kept) in [
            ("apps/v1", "StatefulSet", false),
            ("batch/v1", "Job", false),
            ("apps/v1", "Deployment", true),
            ("argoproj.io/v1alpha1", "Rollout", true),
        ] {
            let owner = json!([{ "apiVersion": version, "kind": kind, "name": "web", "uid": "d", "controller": true }]);
            let object =
                json!({ "metadata": { "name": "web-1", "uid": "r", "ownerReferences": owner } });
            let set = parse_workload(WatchedKind::ReplicaSet, object).unwrap().2;
            assert_eq!(set.controller.is_some(), kept, "{kind}");
        }
    }

    #[test]
    fn strategy_of_a_deployment_is_kept() {
        for (strategy, recreates) in [
            (json!({ "type": "Recreate" }), true),
            (json!({ "type": "RollingUpdate" }), false),
            (json!(null), false),
        ] {
            let object = json!({ "metadata": { "name": "a" }, "spec": { "replicas": 3, "strategy": strategy } });
            let deployment = parse_workload(WatchedKind::Deployment, object).unwrap().2;
            assert_eq!(deployment.recreates, recreates);
        }
    }

    #[test]
    fn running_rollouts_are_reported() {
        let rolling = |kind, status: Value| {
            let object =
                json!({ "metadata": { "name": "a" }, "spec": { "replicas": 3 }, "status": status });
            parse_workload(kind, object).unwrap().2.rolling
        };
        let set = |new: &str| json!({ "currentRevision": "a", "updateRevision": new });
        assert!(rolling(WatchedKind::StatefulSet, set("b")));
        assert!(!rolling(WatchedKind::StatefulSet, set("a")));
        let daemons = |updated: i64| json!({ "observedGeneration": 0, "desiredNumberScheduled": 3, "updatedNumberScheduled": updated });
        assert!(rolling(WatchedKind::DaemonSet, daemons(2)));
        assert!(!rolling(WatchedKind::DaemonSet, daemons(3)));
        assert!(rolling(
            WatchedKind::Deployment,
            json!({ "replicas": 4, "updatedReplicas": 1 })
        ));
        assert!(!rolling(
            WatchedKind::Deployment,
            json!({ "replicas": 3, "updatedReplicas": 3 })
        ));
    }
}
