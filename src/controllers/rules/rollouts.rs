//! Lists all rollouts that cannot finish under a rule object, for its condition. The leader runs this code.
//! `cluster/held_rollouts.rs` decides about a single owner.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use super::retries::owner_state::{self, OwnerState, has_pods_to_delete};
use crate::cluster::held_rollouts;
use crate::cluster::index::{NamespaceIndex, RuleEntry};
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::Workload;
use crate::domain::rules::RuleSet;
use crate::domain::rules::budget::BudgetGauges;
use crate::domain::rules::conditions::rollouts_held::{HeldRollout, RolloutHeldCause};
use crate::ledger::store::Uid;

/// Owners whose rollout is held now, or will be held. `gauges` are those of the rule object.
pub fn held_rollouts(
    namespace_index: &NamespaceIndex,
    entry: &RuleEntry,
    gauges: BudgetGauges,
) -> Vec<HeldRollout> {
    let rules = &entry.snapshot.rules;
    let (mut rollouts, replica_sets) = (BTreeMap::new(), OnceCell::new());
    for uid in entry.tally.owners() {
        let Some(workload) = namespace_index.workload(uid) else {
            continue;
        };
        let (owner, cause, held_now) = match workload.kind {
            WatchedKind::Deployment
                if held_rollouts::is_recreate_held(rules, workload, gauges.limit) =>
            {
                (workload, RolloutHeldCause::Recreates, false)
            }
            WatchedKind::ReplicaSet | WatchedKind::StatefulSet | WatchedKind::DaemonSet
                if gauges.allowed == 0 && has_pods_to_delete(namespace_index, uid, workload) =>
            {
                let replica_sets =
                    replica_sets.get_or_init(|| ReplicaSets::from_namespace(namespace_index));
                match rollout_held_cause(
                    namespace_index,
                    replica_sets,
                    rules,
                    uid,
                    workload,
                    gauges.limit,
                ) {
                    Some((owner, cause)) => (owner, cause, true),
                    None => continue,
                }
            }
            _ => continue,
        };
        let key = (owner.kind, &owner.name);
        let rollout = rollouts.entry(key).or_insert_with(|| HeldRollout {
            kind: owner.kind.name(),
            name: owner.name.clone(),
            cause,
            held_now,
        });
        if held_now && !rollout.held_now {
            (rollout.cause, rollout.held_now) = (cause, true);
        }
    }
    rollouts.into_values().collect()
}

/// The ReplicaSets of a namespace that have a controller, by the UID of the controller.
pub struct ReplicaSets<'a>(HashMap<&'a str, Vec<(&'a Uid, &'a Workload)>>);

impl<'a> ReplicaSets<'a> {
    /// Collects the ReplicaSets from all owners of the namespace. Call this function once for each run, not for each
    /// ReplicaSet.
    pub fn from_namespace(namespace_index: &'a NamespaceIndex) -> ReplicaSets<'a> {
        let mut all = HashMap::<&str, Vec<_>>::new();
        for (uid, set) in namespace_index.workloads() {
            if let Some(controller) = &set.controller {
                all.entry(&controller.uid).or_default().push((uid, set));
            }
        }
        ReplicaSets(all)
    }

    fn owned_by(&self, controller: &str) -> &[(&'a Uid, &'a Workload)] {
        self.0.get(controller).map_or(&[], Vec::as_slice)
    }
}

/// The owner whose rollout deletes the Pods of `controller`, and why the rollout is held once the budget is used up;
/// `None` if the rollout can finish. See [`held_rollouts::held_rollout`] and [`find_stuck_scale_down`].
pub fn rollout_held_cause<'a>(
    namespace_index: &'a NamespaceIndex,
    replica_sets: &ReplicaSets<'a>,
    rules: &RuleSet,
    uid: &Uid,
    controller: &'a Workload,
    limit: u32,
) -> Option<(&'a Workload, RolloutHeldCause)> {
    held_rollouts::held_rollout(namespace_index, rules, controller, limit).or_else(|| {
        let stuck = find_stuck_scale_down(namespace_index, replica_sets, uid, controller)?;
        Some((stuck.deployment, RolloutHeldCause::StuckScaleDown))
    })
}

/// The Deployment of a ReplicaSet, unless the Deployment wants no Pods.
fn owning_deployment<'a>(
    namespace_index: &'a NamespaceIndex,
    replica_set: &Workload,
) -> Option<(Uid, &'a Workload)> {
    let uid = Uid::from(replica_set.controller.as_ref()?.uid.as_str());
    let deployment = namespace_index
        .workload(&uid)
        .filter(|w| w.kind == WatchedKind::Deployment && w.replicas.is_some_and(|n| n > 0))?;
    Some((uid, deployment))
}

/// An old ReplicaSet with more ready Pods than its `spec.replicas`, while another old ReplicaSet of the Deployment has
/// failing Pods.
///
/// The Deployment controller first removes unhealthy Pods of old ReplicaSets, `spec.replicas` less
/// `status.availableReplicas` of each, the oldest ReplicaSet first. A negative difference ends the attempt with an
/// error ("got invalid request to scale down", `cleanupUnhealthyReplicas` in `pkg/controller/deployment/rolling.go`)
/// before the controller reaches the failing Pods. The failing Pods use up the surge of the Deployment. Therefore the
/// new ReplicaSet gets no Pods, and the budget never gets headroom.
#[derive(Debug)]
pub struct StuckScaleDown<'a> {
    pub deployment: &'a Workload,
    /// The other old ReplicaSet; if there are several, the first by name.
    pub failing: &'a Workload,
    /// `spec.replicas` of the ReplicaSet.
    pub spec_replicas: u32,
    /// The number of its living Pods.
    pub living: u32,
    newest: u64,
    /// The sum of `spec.replicas` of all other old ReplicaSets.
    other_replicas: usize,
}

impl StuckScaleDown<'_> {
    /// The state that must change before further scale-backs are tried. `spec.replicas` of the ReplicaSet is no part of
    /// it, because the Deployment controller may change it each time.
    pub fn scale_down_state(&self, namespace_index: &NamespaceIndex, uid: &Uid) -> OwnerState {
        let covering = owner_state::rules_counting_owner(namespace_index, uid);
        OwnerState {
            version: self.newest,
            alive: usize::try_from(self.living).unwrap_or(usize::MAX),
            free: self.other_replicas,
            rules: owner_state::rules_fingerprint(covering.map(|entry| &*entry.snapshot.rules)),
        }
    }
}

/// The [`StuckScaleDown`] of a ReplicaSet; `None` if the Deployment controller can continue.
pub fn find_stuck_scale_down<'a>(
    namespace_index: &'a NamespaceIndex,
    replica_sets: &ReplicaSets<'a>,
    uid: &Uid,
    replica_set: &Workload,
) -> Option<StuckScaleDown<'a>> {
    let (deployment_uid, deployment) = owning_deployment(namespace_index, replica_set)?;
    let spec_replicas = replica_set.replicas?;
    if deployment.recreates
        || deployment.paused
        || count_ready_pods(namespace_index, uid) <= spec_replicas
    {
        return None;
    }
    let all = || replica_sets.owned_by(&deployment_uid).iter();
    let newest = all().map(|(_, w)| w.revision).max()?;
    if replica_set.revision >= newest {
        return None;
    }
    let others = all().filter(|(other, w)| **other != *uid && w.revision < newest);
    let others: Vec<_> = others
        .filter_map(|(other, w)| Some((*other, *w, w.replicas.filter(|n| *n > 0)?)))
        .collect();
    let failing = others
        .iter()
        .filter(|(other, _, n)| count_ready_pods(namespace_index, other) < *n);
    let failing = failing
        .map(|(_, w, _)| *w)
        .min_by(|a, b| a.name.cmp(&b.name))?;
    Some(StuckScaleDown {
        deployment,
        failing,
        spec_replicas,
        living: count_as_u32(namespace_index.living_pods_of(uid)),
        newest,
        other_replicas: others
            .iter()
            .map(|(_, _, n)| usize::try_from(*n).unwrap_or(usize::MAX))
            .fold(0, usize::saturating_add),
    })
}

/// How many living Pods of a ReplicaSet are Ready.
fn count_ready_pods(namespace_index: &NamespaceIndex, uid: &str) -> u32 {
    count_as_u32(
        namespace_index
            .living_pods_of(uid)
            .filter(|pod| pod.is_ready()),
    )
}

fn count_as_u32<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;
    use crate::cluster::index::Index;
    use crate::cluster::owner_sizes;

    fn put(index: &Index, kind: WatchedKind, object: Value) {
        let (namespace, uid, workload) = owner_sizes::parse_workload(kind, object).unwrap();
        index.set_workload(&namespace, uid, Some(workload));
    }

    fn put_deployment(index: &Index, patch: Value) {
        let mut deployment = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "web", "resourceVersion": "1" },
            "spec": { "replicas": 10 },
        });
        json_patch::merge(&mut deployment, &patch);
        put(index, WatchedKind::Deployment, deployment);
    }

    /// Puts a ReplicaSet of Deployment `web` into the index, with `pods` Pods that are all Ready or all not Ready.
    fn put_set(index: &Index, name: &str, revision: u64, replicas: u32, pods: u32, ready: bool) {
        let owner = |kind: &str, name: &str| json!([{ "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true }]);
        let set = json!({
            "metadata": {
                "namespace": "n", "name": name, "uid": name, "resourceVersion": "5",
                "annotations": { (keys::DEPLOYMENT_REVISION): revision.to_string() },
                "ownerReferences": owner("Deployment", "web"),
            },
            "spec": { "replicas": replicas },
        });
        put(index, WatchedKind::ReplicaSet, set);
        for n in 0..pods {
            let pod = format!("{name}-{n}");
            let pod = json!({
                "metadata": {
                    "namespace": "n", "name": pod, "uid": pod, "resourceVersion": "1",
                    "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
                    "ownerReferences": owner("ReplicaSet", name),
                },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
            });
            index.apply_pod(serde_json::from_value(pod).unwrap());
        }
    }

    /// A rollout over failing Pods: the old ReplicaSet has one Pod more than it should, and the new one has none.
    fn index() -> Index {
        let index = Index::default();
        put_deployment(&index, json!({}));
        put_set(&index, "old", 1, 8, 9, true);
        put_set(&index, "bad", 2, 5, 5, false);
        put_set(&index, "new", 3, 0, 0, true);
        index
    }

    /// The failing ReplicaSet, and the number of living Pods.
    fn stuck(index: &Index) -> Option<(String, u32)> {
        let state = index.read_state();
        let namespace_index = state.namespace("n").unwrap();
        let uid = Uid::from("old");
        let stuck = find_stuck_scale_down(
            namespace_index,
            &ReplicaSets::from_namespace(namespace_index),
            &uid,
            namespace_index.workload("old").unwrap(),
        )?;
        Some((stuck.failing.name.clone(), stuck.living))
    }

    #[test]
    fn scale_down_with_surplus_beside_failing_pods_is_stuck() {
        assert_eq!(stuck(&index()), Some(("bad".to_owned(), 9)));
    }

    #[test]
    fn scale_down_is_not_stuck_while_deployment_continues() {
        type Change = (&'static str, fn(&Index));
        let changes: [Change; 7] = [
            ("no newer ReplicaSet", |i| put_set(i, "new", 1, 0, 0, true)),
            ("undone to the old ReplicaSet", |i| {
                put_set(i, "old", 4, 8, 9, true)
            }),
            ("no failing Pods", |i| put_set(i, "bad", 2, 5, 5, true)),
            ("no other old ReplicaSet", |i| {
                put_set(i, "bad", 2, 0, 5, false)
            }),
            ("no surplus", |i| put_set(i, "old", 1, 9, 9, true)),
            ("paused", |i| {
                put_deployment(i, json!({ "spec": { "paused": true } }))
            }),
            ("Recreate", |i| {
                put_deployment(i, json!({ "spec": { "strategy": { "type": "Recreate" } } }))
            }),
        ];
        for (name, change) in changes {
            let index = index();
            if name == "no newer ReplicaSet" {
                put_set(&index, "bad", 1, 5, 5, false);
            }
            change(&index);
            assert_eq!(stuck(&index), None, "{name}");
        }
    }

    /// Owners with a held rollout under a rule for `app: db` whose budget allows this number of further disruptions. A
    /// StatefulSet and a DaemonSet with that label roll out to a template without it.
    fn held(allowed: u32) -> Vec<(&'static str, String, RolloutHeldCause, bool)> {
        let index = Index::default();
        let rule = json!({
            "metadata": { "namespace": "n", "name": "rule", "uid": "rule", "generation": 1 },
            "spec": {
                "selector": { "matchLabels": { "app": "db" } },
                "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
            },
        });
        index.apply_rule(serde_json::from_value(rule).unwrap());
        for kind in [WatchedKind::DaemonSet, WatchedKind::StatefulSet] {
            // Both owners have the same name, and differ by kind.
            let (name, uid) = ("db", kind.name());
            let owner = json!({
                "metadata": { "namespace": "n", "name": name, "uid": uid, "resourceVersion": "1", "generation": 2 },
                "spec": { "replicas": 2, "template": { "metadata": { "labels": { "app": "other" } } } },
                "status": {
                    "observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1,
                    "currentRevision": "a", "updateRevision": "b",
                },
            });
            put(&index, kind, owner);
            let pod = json!({
                "metadata": {
                    "namespace": "n", "name": "db-1", "uid": format!("{uid}-1"), "resourceVersion": "1",
                    "labels": { (keys::CONTROL): keys::CONTROL_VALUE, "app": "db" },
                    "ownerReferences": [{ "apiVersion": "apps/v1", "kind": uid, "name": name, "uid": uid, "controller": true }],
                },
            });
            index.apply_pod(serde_json::from_value(pod).unwrap());
        }
        let gauges = BudgetGauges {
            expected: 4,
            limit: 1,
            allowed,
            ..BudgetGauges::default()
        };
        let state = index.read_state();
        let namespace_index = state.namespace("n").unwrap();
        let rollouts = held_rollouts(namespace_index, state.rule("n", "rule").unwrap(), gauges);
        let mut rollouts: Vec<_> = rollouts
            .into_iter()
            .map(|r| (r.kind, r.name, r.cause, r.held_now))
            .collect();
        rollouts.sort_by_key(|(kind, ..)| *kind);
        rollouts
    }

    #[test]
    fn rollout_of_uncovered_new_pods_is_held_without_headroom() {
        let of = |kind| (kind, "db".to_owned(), RolloutHeldCause::Leaves, true);
        assert_eq!(held(0), [of("DaemonSet"), of("StatefulSet")]);
        assert_eq!(held(1), []);
    }

    #[test]
    fn changed_spec_replicas_give_no_further_tries() {
        let index = index();
        let scale_down_state = || {
            let state = index.read_state();
            let namespace_index = state.namespace("n").unwrap();
            let uid = Uid::from("old");
            find_stuck_scale_down(
                namespace_index,
                &ReplicaSets::from_namespace(namespace_index),
                &uid,
                namespace_index.workload("old").unwrap(),
            )
            .unwrap()
            .scale_down_state(namespace_index, &uid)
        };
        let before = scale_down_state();
        put_set(&index, "old", 1, 7, 9, true);
        assert_eq!(scale_down_state(), before);
        put_set(&index, "bad", 2, 3, 5, false);
        assert_ne!(
            scale_down_state(),
            before,
            "the Deployment controller has continued"
        );
    }
}
