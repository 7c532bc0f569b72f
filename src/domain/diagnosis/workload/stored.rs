//! What stored workloads say about their rollouts.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::WorkloadFacts;
use crate::api::collaset::{CollaSet, PodUpgradePolicy};
use crate::api::keys;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};
use crate::domain::diagnosis::{PodController, owner};
use crate::domain::pod::Pod;

/// Annotation in which the Deployment controller counts revisions. The newest ReplicaSet has that of the Deployment.
const DEPLOYMENT_REVISION: &str = "deployment.kubernetes.io/revision";

/// A workload in the form in which all kinds are diagnosed.
#[derive(Clone, Debug)]
pub struct StoredWorkload {
    /// The state of the workload.
    pub facts: WorkloadFacts,
    /// What its conditions report as failed.
    pub problems: Vec<String>,
    /// The label and the value that Pods of the present template have. `None` if they are not known.
    pub updated_label: Option<(&'static str, String)>,
    /// Why no Pod of an older revision is updated now. `None` if Pods of older revisions are to go.
    pub keeps_older: Option<String>,
    /// Whether only Pods with the label `update-included` are updated.
    pub updates_by_label: bool,
    /// Whether the next Pod is created only when all Pods before it are Ready.
    pub is_ordered: bool,
    /// For a CollaSet: what its condition Ready says, unless it is True.
    pub not_ready: Option<String>,
    /// Why no Pod is wanted. `None` if that is not known, or if Pods are wanted.
    pub no_pods: Option<String>,
    /// For a StatefulSet: the ordinal of its first Pod.
    pub first_ordinal: u32,
    /// UIDs of the controllers of its Pods.
    pub controller_uids: Vec<String>,
    /// The controller, as the diagnosis of a Pod needs it.
    pub controller: PodController,
}

impl StoredWorkload {
    /// Reads a CollaSet.
    pub fn from_collaset(set: CollaSet) -> StoredWorkload {
        let status = set.status.clone().unwrap_or_default();
        let strategy = ResolvedStrategy::from_spec(&set.spec);
        let partition = match strategy.scope {
            UpdateScope::Partition(0) | UpdateScope::ByLabel => None,
            UpdateScope::Partition(partition) => Some(u32::try_from(partition).unwrap_or(u32::MAX)),
        };
        let update = set.spec.update_strategy.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        let ready = ready.filter(|c| c.status != "True");
        let not_ready = ready.map(|c| match c.message.as_str() {
            "" => format!("condition Ready is {} ({})", c.status, c.reason),
            message => format!("condition Ready is {} ({}): {message}", c.status, c.reason),
        });
        let no_pods = set
            .spec
            .replicas
            .is_none()
            .then(|| "spec.replicas is not set, so it has no Pods: set it".to_owned());
        let problems = owner::collaset_problems(&set);
        let is_reported = |message: &str| problems.iter().any(|p| p.contains(message));
        let remarks = [
            owner::describe_steps(&set).map(|step| step.text),
            ready
                .filter(|c| c.message.is_empty() || !is_reported(&c.message))
                .and(not_ready.clone()),
        ];
        StoredWorkload {
            facts: WorkloadFacts {
                replicas: count(set.spec.replicas),
                existing: count(Some(status.replicas)),
                updated: Some(count(Some(status.updated_replicas))),
                ready: count(Some(status.ready_replicas)),
                available: count(Some(status.available_replicas)),
                strategy: Some(
                    update
                        .pod_upgrade_policy
                        .unwrap_or(PodUpgradePolicy::InPlaceIfPossible)
                        .to_string(),
                ),
                partition,
                paused: set.spec.paused,
                remarks: remarks.into_iter().flatten().collect(),
                ..facts("CollaSet", &set.metadata, Some(status.observed_generation))
            },
            problems,
            updated_label: owner::updated_revision(&set)
                .map(|revision| (keys::REVISION, revision.to_owned())),
            keeps_older: collaset_keep_reason(&set, partition),
            not_ready,
            no_pods,
            first_ordinal: 0,
            updates_by_label: matches!(strategy.scope, UpdateScope::ByLabel),
            is_ordered: false,
            controller_uids: uid(&set.metadata),
            controller: PodController::CollaSet(Arc::new(set)),
        }
    }

    /// Reads a Deployment and its ReplicaSets. Without the ReplicaSets, it is not known which Pods are updated.
    pub fn from_deployment(deployment: &Deployment, replica_sets: &[ReplicaSet]) -> StoredWorkload {
        let metadata = &deployment.metadata;
        let spec = deployment.spec.clone().unwrap_or_default();
        let status = deployment.status.clone().unwrap_or_default();
        let strategy = spec.strategy.and_then(|strategy| strategy.type_);
        let paused = spec.paused.unwrap_or(false);
        let conditions = status.conditions.into_iter().flatten();
        let problems = conditions.filter(|c| {
            c.type_ == "ReplicaFailure" && c.status == "True"
                || c.type_ == "Progressing" && c.status == "False"
        });
        let mut problems: Vec<_> = problems.collect();
        // A refusal is the cause of the other condition.
        problems.sort_by_key(|c| c.type_ != "ReplicaFailure");
        let problems = problems.into_iter();
        let problems = problems.map(|c| problem(c.reason, c.message));
        let owned: Vec<_> = replica_sets
            .iter()
            .filter(|set| is_controlled_by(&set.metadata, metadata))
            .collect();
        let revision = annotation(metadata, DEPLOYMENT_REVISION);
        let mut newest = owned.iter();
        let newest = newest.find(|set| {
            revision.is_some() && annotation(&set.metadata, DEPLOYMENT_REVISION) == revision
        });
        let hash = newest.and_then(|set| label(&set.metadata, keys::POD_TEMPLATE_HASH));
        let replicas = spec.replicas.or(Some(1));
        StoredWorkload {
            facts: WorkloadFacts {
                replicas: count(replicas),
                existing: count(status.replicas),
                updated: Some(count(status.updated_replicas)),
                ready: count(status.ready_replicas),
                available: count(status.available_replicas),
                strategy: Some(strategy.unwrap_or_else(|| "RollingUpdate".to_owned())),
                paused,
                ..facts("Deployment", metadata, status.observed_generation)
            },
            problems: problems.collect(),
            not_ready: None,
            no_pods: None,
            first_ordinal: 0,
            updated_label: hash.map(|hash| (keys::POD_TEMPLATE_HASH, hash.to_owned())),
            keeps_older: paused.then(paused_reason),
            updates_by_label: false,
            is_ordered: false,
            controller_uids: owned.iter().flat_map(|set| uid(&set.metadata)).collect(),
            controller: other_controller(replicas),
        }
    }

    /// Reads a StatefulSet.
    pub fn from_stateful_set(set: &StatefulSet) -> StoredWorkload {
        let metadata = &set.metadata;
        let spec = set.spec.clone().unwrap_or_default();
        let status = set.status.clone().unwrap_or_default();
        let strategy = spec.update_strategy.unwrap_or_default();
        let partition = strategy.rolling_update.and_then(|update| update.partition);
        let partition = partition.filter(|partition| *partition > 0);
        let type_ = strategy.type_.unwrap_or_else(|| "RollingUpdate".to_owned());
        let keeps_older = on_delete_reason(&type_);
        let management = spec.pod_management_policy.as_deref();
        let replicas = spec.replicas.or(Some(1));
        StoredWorkload {
            facts: WorkloadFacts {
                replicas: count(replicas),
                existing: count(Some(status.replicas)),
                updated: Some(count(status.updated_replicas)),
                ready: count(status.ready_replicas),
                available: count(status.available_replicas),
                strategy: Some(type_),
                partition: partition.map(|partition| count(Some(partition))),
                ..facts("StatefulSet", metadata, status.observed_generation)
            },
            problems: Vec::new(),
            not_ready: None,
            no_pods: None,
            first_ordinal: count(spec.ordinals.and_then(|ordinals| ordinals.start)),
            updated_label: status
                .update_revision
                .map(|revision| (keys::REVISION, revision)),
            keeps_older,
            updates_by_label: false,
            is_ordered: management.is_none_or(|policy| policy == "OrderedReady"),
            controller_uids: uid(metadata),
            controller: other_controller(replicas),
        }
    }

    /// Reads a DaemonSet.
    pub fn from_daemon_set(set: &DaemonSet) -> StoredWorkload {
        let metadata = &set.metadata;
        let strategy = set.spec.clone().unwrap_or_default().update_strategy;
        let strategy = strategy.and_then(|strategy| strategy.type_);
        let strategy = strategy.unwrap_or_else(|| "RollingUpdate".to_owned());
        let status = set.status.clone().unwrap_or_default();
        StoredWorkload {
            facts: WorkloadFacts {
                replicas: count(Some(status.desired_number_scheduled)),
                existing: count(Some(status.current_number_scheduled)),
                updated: Some(count(status.updated_number_scheduled)),
                ready: count(Some(status.number_ready)),
                available: count(status.number_available),
                strategy: Some(strategy.clone()),
                ..facts("DaemonSet", metadata, status.observed_generation)
            },
            problems: Vec::new(),
            not_ready: None,
            no_pods: (status.desired_number_scheduled == 0).then(|| {
                "it is to run on no node: see the nodeSelector, the affinity and the tolerations of its template"
                    .to_owned()
            }),
            first_ordinal: 0,
            updated_label: None,
            keeps_older: on_delete_reason(&strategy),
            updates_by_label: false,
            is_ordered: false,
            controller_uids: uid(metadata),
            controller: other_controller(Some(status.desired_number_scheduled)),
        }
    }

    /// Reads a ReplicaSet.
    pub fn from_replica_set(set: &ReplicaSet) -> StoredWorkload {
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).or(Some(1));
        let status = set.status.clone().unwrap_or_default();
        let conditions = status.conditions.into_iter().flatten();
        let problems = conditions.filter(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        StoredWorkload {
            facts: WorkloadFacts {
                replicas: count(replicas),
                existing: count(Some(status.replicas)),
                ready: count(status.ready_replicas),
                available: count(status.available_replicas),
                ..facts("ReplicaSet", &set.metadata, status.observed_generation)
            },
            problems: problems.map(|c| problem(c.reason, c.message)).collect(),
            not_ready: None,
            no_pods: None,
            first_ordinal: 0,
            updated_label: None,
            keeps_older: None,
            updates_by_label: false,
            is_ordered: false,
            controller_uids: uid(&set.metadata),
            controller: other_controller(replicas),
        }
    }

    /// Whether the Pod is not of the present template. False if that is not known.
    pub fn is_older(&self, pod: &Pod) -> bool {
        let updated = self.updated_label.as_ref();
        updated.is_some_and(|(key, value)| pod.label(key) != Some(value))
    }

    /// Why a Pod of an older revision stays as it is. `None` if it is to be updated.
    pub fn keep_reason(&self, pod: &Pod) -> Option<String> {
        if self.is_kept_by_ordinal(pod) {
            return Some("the partition keeps smaller ordinals on older revisions".to_owned());
        }
        let is_left_out = self.updates_by_label && pod.label(keys::UPDATE_INCLUDED).is_none();
        let left_out = is_left_out.then(|| {
            let key = keys::UPDATE_INCLUDED;
            format!("the set updates by label: set {key} on a Pod to include it")
        });
        self.keeps_older.clone().or(left_out)
    }

    /// Whether the partition of a StatefulSet keeps the Pod.
    fn is_kept_by_ordinal(&self, pod: &Pod) -> bool {
        let partition = self
            .facts
            .partition
            .filter(|_| self.facts.kind == "StatefulSet");
        // The partition counts from the first ordinal.
        let kept = partition.map(|partition| self.first_ordinal.saturating_add(partition));
        matches!((kept, ordinal(pod)), (Some(kept), Some(ordinal)) if ordinal < kept)
    }

    /// For a StatefulSet that updates one Pod after the other, from the greatest ordinal: the Pod with a greater ordinal
    /// that has to be Ready before this Pod is updated.
    pub fn awaited_before<'a>(&self, pod: &Pod, pods: &'a [Arc<Pod>]) -> Option<&'a Arc<Pod>> {
        if self.facts.kind != "StatefulSet" {
            return None;
        }
        let own = ordinal(pod)?;
        let greater = pods.iter().filter(|other| {
            let is_unhealthy = other.is_terminating() || !other.is_ready();
            is_unhealthy && ordinal(other).is_some_and(|other| other > own)
        });
        greater.max_by_key(|other| ordinal(other))
    }

    /// Number of Pods that the partition of a CollaSet keeps on older revisions. Which Pods these are is not known.
    pub fn kept_count(&self) -> usize {
        let partition = self
            .facts
            .partition
            .filter(|_| self.facts.kind == "CollaSet");
        partition.map_or(0, |partition| {
            usize::try_from(partition).unwrap_or(usize::MAX)
        })
    }
}

/// The ordinal of a Pod of a StatefulSet.
fn ordinal(pod: &Pod) -> Option<u32> {
    let (_, ordinal) = pod.metadata.name.rsplit_once('-')?;
    ordinal.parse().ok()
}

fn facts(kind: &'static str, metadata: &ObjectMeta, observed: Option<i64>) -> WorkloadFacts {
    let deleted_at = metadata.deletion_timestamp.as_ref();
    let deleting_since: Option<Timestamp> = deleted_at.map(|time| time.0);
    WorkloadFacts {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        observed: observed.unwrap_or(0) >= metadata.generation.unwrap_or(0),
        deleting_since,
        ..WorkloadFacts::default()
    }
}

fn count(number: Option<i32>) -> u32 {
    u32::try_from(number.unwrap_or(0)).unwrap_or(0)
}

fn uid(metadata: &ObjectMeta) -> Vec<String> {
    metadata.uid.iter().cloned().collect()
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    let value = metadata.annotations.as_ref()?.get(key)?;
    Some(value)
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    let value = metadata.labels.as_ref()?.get(key)?;
    Some(value)
}

fn is_controlled_by(metadata: &ObjectMeta, owner: &ObjectMeta) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|reference| {
        reference.controller == Some(true) && Some(&reference.uid) == owner.uid.as_ref()
    })
}

fn problem(reason: Option<String>, message: Option<String>) -> String {
    let reason = reason.unwrap_or_else(|| "unknown reason".to_owned());
    match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason,
    }
}

/// Why a CollaSet updates no Pod of an older revision now.
fn collaset_keep_reason(set: &CollaSet, partition: Option<u32>) -> Option<String> {
    if set.spec.paused {
        return Some(paused_reason());
    }
    if let Some(step) = owner::describe_steps(set).filter(|step| step.pauses) {
        return Some(step.text);
    }
    let status = set.status.as_ref()?;
    let older = count(Some(status.replicas - status.updated_replicas));
    let is_kept = partition.is_some_and(|partition| older <= partition);
    is_kept.then(|| "the partition keeps Pods on older revisions".to_owned())
}

fn paused_reason() -> String {
    "the workload is paused: set spec.paused to false to go on".to_owned()
}

fn on_delete_reason(strategy: &str) -> Option<String> {
    (strategy == "OnDelete").then(|| {
        "its update strategy is OnDelete, so a Pod is updated when somebody deletes it".to_owned()
    })
}

fn other_controller(replicas: Option<i32>) -> PodController {
    PodController::Other {
        replicas: replicas.and_then(|replicas| u32::try_from(replicas).ok()),
    }
}
