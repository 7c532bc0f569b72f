//! Wakes controllers whose deletions were denied.
//!
//! ReplicaSet, StatefulSet, DaemonSet and Job controllers retry a denied DELETE with exponential backoff of up to 1,000
//! s (the default rate limiter of client-go), and nothing tells them when a budget has headroom again. But each of them
//! reconciles an object at once when one of its Pods changes. Therefore the leader changes an annotation of one Pod
//! when the budget has headroom and the owner still has Pods to delete.
//!
//! While the API server refuses writes of a ledger, a wake has no effect and increases the backoff of the controller.
//! Therefore the leader checks by a dry run whether the ledgers can be written: before every wake but the first. It
//! checks before the first wake too if the last dry run failed, or the last write of the status, which contains the
//! ledger.
//!
//! While the budget has no headroom, the scale-down of an old ReplicaSet may be stuck, see
//! [`rollouts::StuckScaleDown`]. Then the leader sets `spec.replicas` of the ReplicaSet back to the number of its Pods.

mod owner_backoff;
pub(super) mod owner_state;
mod scale_back;
mod uncovered_owners;
mod wake;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::owner_backoff::{BackoffDecision, OwnerBackoff};
use self::owner_state::OwnerState;
use self::scale_back::ScaleBack;
use self::uncovered_owners::UncoveredOwners;
use self::wake::{OwnerWake, ledgers_covering_owner};
use super::super::api_calls::call_api_again;
use super::super::{ControllerContext, RuleObjectName, headroom};
use super::rollouts::{self, ReplicaSets};
use crate::cluster::index::{IndexState, NamespaceIndex, RuleEntry};
use crate::cluster::owner_sizes::Workload;
use crate::cluster::rule_gauges;
use crate::domain::rules::RuleSet;
use crate::domain::rules::conditions;
use crate::domain::rules::enforcement::NamespaceEnforcement;
use crate::ledger::store::{RuleKey, Uid};

/// Maximum number of wakes of an owner without an effect. A StatefulSet with a partition, for example, keeps old Pods
/// on purpose.
const MAX_WAKES: u32 = 8;
/// Maximum number of scale-backs of a ReplicaSet without an effect. The Deployment controller may change
/// `spec.replicas` again each time.
const MAX_SCALE_BACKS: u32 = 4;

/// Reason of the Event on a Deployment whose rollout is held.
const ROLLOUT_HELD: &str = "RolloutHeld";

/// An owner: namespace and UID.
type OwnerKey = (String, Uid);

/// Remembers when each owner was woken. The leader keeps these times in memory; a new leader starts again.
#[derive(Default)]
pub struct Retries {
    owners: Mutex<HashMap<OwnerKey, OwnerBackoff>>,
    scale_backs: Mutex<HashMap<OwnerKey, OwnerBackoff>>,
    uncovered: UncoveredOwners,
    /// Rule objects with an owner that can't be read. Admission denies all their disruptions.
    denying: Mutex<HashSet<RuleObjectName>>,
    /// Rule objects whose last write of the status failed, or whose last dry run of the ledger failed. The status
    /// contains the ledger. The value is true if a dry run failed, so that wakes were left out.
    unwritable: Mutex<HashMap<RuleObjectName, bool>>,
}

/// The actions that are due for one rule object.
#[derive(Default)]
struct DueActions {
    wakes: Vec<OwnerWake>,
    scale_backs: Vec<ScaleBack>,
    /// When to check the rule object again.
    requeue_after: Option<Duration>,
}

impl DueActions {
    fn requeue_in(&mut self, pause: Duration) {
        self.requeue_after = shorter_pause(self.requeue_after, pause);
    }
}

/// The shorter of two pauses.
fn shorter_pause(known: Option<Duration>, pause: Duration) -> Option<Duration> {
    known.into_iter().chain([pause]).min()
}

impl Retries {
    /// Does the work at the start of a term. Rules may have been deleted or changed while no process was leader. This
    /// function wakes the owners that no rule covers, in the namespaces that have rules or had rules lately. It ends
    /// when these owners have been woken, or at `stop`.
    pub async fn begin_term(&self, context: &ControllerContext, stop: &CancellationToken) {
        tokio::select! { () = stop.cancelled() => return, () = context.index.wait_listed() => {} }
        let labelled: Vec<String> = {
            let state = context.index.read_state();
            let labelled = state.namespaces().filter(|(_, namespace_index)| {
                let labels = namespace_index.labels.as_ref();
                labels.is_some_and(|labels| {
                    NamespaceEnforcement::from_labels(labels) > NamespaceEnforcement::Unruled
                })
            });
            labelled.map(|(name, _)| name.clone()).collect()
        };
        for namespace in &labelled {
            self.add_uncovered_owners(context, namespace);
        }
        loop {
            let mut requeue_after = None::<Duration>;
            for namespace in &labelled {
                let wake = self.wake_uncovered_owners(context, namespace);
                let pause =
                    tokio::select! { () = stop.cancelled() => return, pause = wake => pause };
                requeue_after =
                    pause.map_or(requeue_after, |pause| shorter_pause(requeue_after, pause));
            }
            let Some(pause) = requeue_after else {
                return;
            };
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// Notes the owners of the namespace that no rule covers now. [`Retries::wake_uncovered_owners`] will wake them.
    pub fn add_uncovered_owners(&self, context: &ControllerContext, namespace: &str) {
        self.uncovered.add_uncovered_owners(context, namespace);
    }

    /// Wakes the uncovered owners that are due. Returns when to call this function again, if necessary.
    pub async fn wake_uncovered_owners(
        &self,
        context: &ControllerContext,
        namespace: &str,
    ) -> Option<Duration> {
        self.uncovered.wake_due_owners(context, namespace).await
    }

    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, name: &RuleObjectName) {
        self.denying.lock().remove(name);
        self.unwritable.lock().remove(name);
    }

    /// Whether the last write of the status of a rule object failed, or the last dry run of its ledger.
    pub fn is_unwritable(&self, name: &RuleObjectName) -> bool {
        self.unwritable.lock().contains_key(name)
    }

    /// Records whether a write of the status of a rule object succeeded.
    pub fn record_status_write(&self, name: &RuleObjectName, written: bool) {
        let mut unwritable = self.unwritable.lock();
        match (written, unwritable.get(name)) {
            (false, _) => {
                unwritable.entry(name.clone()).or_insert(false);
            }
            (true, Some(false)) => {
                unwritable.remove(name);
            }
            // The ledger can most likely be written too. The wakes that follow check it.
            (true, Some(true)) => {
                drop(unwritable);
                self.restart_backoffs(&name.0);
            }
            (true, None) => {}
        }
    }

    /// Gives the owners of a namespace all their tries again, because wakes were left out. Returns the time until the
    /// first try.
    fn restart_backoffs(&self, namespace: &str) -> Option<Duration> {
        let (now, mut owners) = (Instant::now(), self.owners.lock());
        let owners = owners
            .iter_mut()
            .filter(|((owner_namespace, _), _)| owner_namespace == namespace);
        owners
            .map(|(_, backoff)| backoff.restart_backoff(now))
            .min()
    }

    /// Wakes the owners of a rule object that have Pods to delete while the budget has headroom. `denying` says whether
    /// an owner of its Pods can't be read. Returns when to call this function again, if necessary.
    pub async fn wake_owners(
        &self,
        context: &ControllerContext,
        name: &RuleObjectName,
        denying: bool,
    ) -> Option<Duration> {
        match denying {
            true => self.denying.lock().insert(name.clone()),
            false => self.denying.lock().remove(name),
        };
        let mut due = self.collect_due_actions(context, name).await;
        self.send_due_wakes(context, &mut due).await;
        for scale_back in std::mem::take(&mut due.scale_backs) {
            if scale_back.send_scale_back(context).await
                && let Some(backoff) = self.scale_backs.lock().get_mut(&scale_back.key)
            {
                due.requeue_in(backoff.record_owner_write(Instant::now()));
            }
        }
        due.requeue_after
    }

    /// Wakes the owners that are due. If a ledger that holds the Pods of an owner can't be written, the owner is not
    /// woken, because each deletion would be denied. Before the first wake, only the ledgers with
    /// [`Retries::is_unwritable`] are checked.
    async fn send_due_wakes(&self, context: &ControllerContext, due: &mut DueActions) {
        let mut writable_ledgers = HashMap::new();
        for wake in std::mem::take(&mut due.wakes) {
            let mut are_all_writable = true;
            for key in &wake.rules {
                let name = (key.namespace.clone(), key.name.clone());
                if wake.first && !self.is_unwritable(&name) {
                    continue;
                }
                let is_writable = match writable_ledgers.get(key) {
                    Some(is_writable) => *is_writable,
                    None => self.check_ledger_writable(context, key, &name, due).await,
                };
                writable_ledgers.insert(key.clone(), is_writable);
                are_all_writable &= is_writable;
            }
            if !are_all_writable {
                if let Some(backoff) = self.owners.lock().get_mut(&wake.key) {
                    backoff.reset_tries();
                }
            } else if wake.send_wake(context).await
                && let Some(backoff) = self.owners.lock().get_mut(&wake.key)
            {
                due.requeue_in(backoff.record_owner_write(Instant::now()));
            }
        }
    }

    /// Checks by a dry run whether the API server stores the ledger of a rule object.
    async fn check_ledger_writable(
        &self,
        context: &ControllerContext,
        key: &RuleKey,
        name: &RuleObjectName,
        due: &mut DueActions,
    ) -> bool {
        let Some(snapshot) = context.ledgers.latest_snapshot(key) else {
            return false; // the run for the deleted rule wakes the owners
        };
        let dry_run = context
            .ledgers
            .store()
            .dry_run_claims(key, &snapshot.claims);
        let failing = self.is_unwritable(name);
        let is_kept = call_api_again("write a ledger (dry run)", failing, dry_run).await;
        match is_kept {
            Ok(true) => {
                let left_out = self.unwritable.lock().remove(name).unwrap_or(false);
                if left_out && let Some(pause) = self.restart_backoffs(&name.0) {
                    due.requeue_in(pause);
                }
            }
            Ok(false) | Err(_) => {
                self.unwritable.lock().insert(name.clone(), true);
            }
        }
        is_kept.is_ok_and(|is_kept| is_kept)
    }

    async fn collect_due_actions(
        &self,
        context: &ControllerContext,
        name: &RuleObjectName,
    ) -> DueActions {
        let free = self.count_free_by_owner(context, name).await;
        let mut due = DueActions::default();
        let state = context.index.read_state();
        let (Some(namespace_index), Some(entry)) =
            (state.namespace(&name.0), state.rule(&name.0, &name.1))
        else {
            return due;
        };
        let now = Instant::now();
        let mut owners = self.owners.lock();
        owners.retain(|(namespace, uid), _| {
            *namespace != name.0 || namespace_index.has_workload(uid)
        });
        let replica_sets = OnceCell::new();
        for uid in entry.tally.owners() {
            let key = (name.0.clone(), uid.clone());
            let deletes_pods =
                |w: &&Workload| owner_state::has_pods_to_delete(namespace_index, uid, w);
            let Some(workload) = namespace_index.workload(uid).filter(deletes_pods) else {
                owners.remove(&key);
                continue;
            };
            let Some(free) = free.get(uid) else {
                continue; // the owner was added just now: its event enqueues the rule
            };
            let owner_state = OwnerState::from_owner(namespace_index, uid, workload, *free);
            let pod =
                owner_state::pod_to_annotate(namespace_index, uid).filter(|_| owner_state.free > 0);
            let Some(pod) = pod else {
                owners.remove(&key); // so that headroom that appears later starts a new backoff
                let replica_sets =
                    replica_sets.get_or_init(|| ReplicaSets::from_namespace(namespace_index));
                let rule = (&*state, namespace_index, entry);
                self.handle_no_headroom(context, rule, replica_sets, (uid, workload), &mut due);
                continue;
            };
            let backoff = owners.entry(key.clone());
            let backoff = backoff.or_insert_with(|| OwnerBackoff::new(owner_state, now, MAX_WAKES));
            match backoff.decide_for_state(owner_state, now) {
                BackoffDecision::Wake(pause) => {
                    let rules = ledgers_covering_owner(context, &name.0, namespace_index, uid);
                    due.wakes
                        .push(OwnerWake::new_wake(&key, pod, backoff, rules));
                    due.requeue_in(pause);
                }
                BackoffDecision::Wait(pause) => due.requeue_in(pause),
                BackoffDecision::Rest => {}
            }
        }
        due
    }

    /// How many Pods of each owner all rules allow to disrupt, for the owners of a rule object that have Pods to
    /// delete. The index is locked for short times only: a change in between enqueues the rule object again.
    async fn count_free_by_owner(
        &self,
        context: &ControllerContext,
        name: &RuleObjectName,
    ) -> HashMap<Uid, usize> {
        let (deleting_owners, rules) = {
            let state = context.index.read_state();
            let (Some(namespace_index), Some(entry)) =
                (state.namespace(&name.0), state.rule(&name.0, &name.1))
            else {
                return HashMap::new();
            };
            let deletes_pods = |uid: &&Uid| {
                let workload = namespace_index.workload(uid);
                workload.is_some_and(|workload| {
                    owner_state::has_pods_to_delete(namespace_index, uid, workload)
                })
            };
            let owners = entry.tally.owners().filter(deletes_pods);
            let owners: Vec<Uid> = owners.cloned().collect();
            let is_free =
                owners.is_empty() || is_namespace_excluded(context, &name.0, namespace_index);
            // If a rule selects a Pod of an owner, its tally contains the owner.
            let rules = namespace_index.rules.iter().filter(|(_, entry)| {
                !is_free && owners.iter().any(|uid| entry.tally.has_owner(uid))
            });
            let rules: Vec<String> = rules.map(|(rule, _)| rule.clone()).collect();
            (owners, rules)
        };
        let exhausted = self.rules_without_headroom(context, &name.0, rules).await;
        let mut free = HashMap::new();
        for uid in deleting_owners {
            let pods: Vec<_> = {
                let state = context.index.read_state();
                let namespace = state.namespace(&name.0).into_iter();
                namespace
                    .flat_map(|n| n.living_pods_of(&uid).cloned())
                    .collect()
            };
            free.insert(uid, owner_state::count_free_pods(&pods, &exhausted).await);
        }
        free
    }

    /// The rules among `rules` that allow no disruption of an available Pod. The index is locked for one rule at a
    /// time, because the time depends on the number of its claims.
    async fn rules_without_headroom(
        &self,
        context: &ControllerContext,
        namespace: &str,
        rules: Vec<String>,
    ) -> Vec<Arc<RuleSet>> {
        let mut exhausted = Vec::new();
        for rule in rules {
            let name = (namespace.to_owned(), rule);
            let denied = {
                let state = context.index.read_state();
                let entry = state.rule(namespace, &name.1);
                entry.and_then(|entry| {
                    let allowed = headroom::allowed_disruptions(&context.ledgers, &state, entry)?;
                    let denies = allowed == 0 || self.denying.lock().contains(&name);
                    denies.then(|| Arc::clone(&entry.snapshot.rules))
                })
            };
            exhausted.extend(denied);
            yield_now().await;
        }
        exhausted
    }

    /// Handles an owner that has Pods to delete while the rules allow no disruption of them.
    fn handle_no_headroom(
        &self,
        context: &ControllerContext,
        (state, namespace_index, entry): (&IndexState, &NamespaceIndex, &RuleEntry),
        replica_sets: &ReplicaSets<'_>,
        (uid, workload): (&Uid, &Workload),
        due: &mut DueActions,
    ) {
        let rules = &entry.snapshot.rules;
        let mut scale_backs = self.scale_backs.lock();
        scale_backs.retain(|(namespace, uid), _| {
            *namespace != rules.namespace || namespace_index.has_workload(uid)
        });
        let stuck = rollouts::find_stuck_scale_down(namespace_index, replica_sets, uid, workload);
        if let Some(stuck) = stuck {
            let (now, owner_state) = (Instant::now(), stuck.scale_down_state(namespace_index, uid));
            let key = (rules.namespace.clone(), uid.clone());
            let backoff = scale_backs.entry(key);
            let backoff =
                backoff.or_insert_with(|| OwnerBackoff::new(owner_state, now, MAX_SCALE_BACKS));
            let decision = backoff.decide_for_state(owner_state, now);
            match decision {
                BackoffDecision::Wake(pause) => {
                    let scale_back =
                        ScaleBack::from_stuck_scale_down(rules, (uid, workload), &stuck, backoff);
                    due.scale_backs.extend(scale_back);
                    due.requeue_in(pause);
                }
                BackoffDecision::Wait(pause) => due.requeue_in(pause),
                BackoffDecision::Rest => {}
            }
            if decision != BackoffDecision::Rest && !backoff.is_failing() {
                return;
            }
        }
        let held = held_deployment(
            context,
            (state, namespace_index, entry),
            replica_sets,
            uid,
            workload,
        );
        if let Some((deployment, message)) = held {
            context
                .events
                .record_event(&deployment, true, ROLLOUT_HELD, &message);
        }
    }
}

/// Whether the namespace is excluded from the webhooks.
fn is_namespace_excluded(
    context: &ControllerContext,
    namespace: &str,
    namespace_index: &NamespaceIndex,
) -> bool {
    let labels = namespace_index.labels.as_ref();
    conditions::exclusion_reason(namespace, labels, Some(&context.namespace)).is_some()
}

/// The Deployment whose rollout is held, and the message of the Event about it.
fn held_deployment(
    context: &ControllerContext,
    (state, namespace_index, entry): (&IndexState, &NamespaceIndex, &RuleEntry),
    replica_sets: &ReplicaSets<'_>,
    uid: &Uid,
    replica_set: &Workload,
) -> Option<(ObjectReference, String)> {
    let rules = &entry.snapshot.rules;
    let limit = rule_gauges::rule_gauges(&context.ledgers, state, entry).limit;
    let (deployment, cause) = rollouts::rollout_held_cause(
        namespace_index,
        replica_sets,
        rules,
        uid,
        replica_set,
        limit,
    )?;
    Some((
        deployment_reference(rules, replica_set, deployment)?,
        cause.describe_deployment(&deployment.name, &rules.name),
    ))
}

/// The reference of an Event to the Deployment of a ReplicaSet.
fn deployment_reference(
    rules: &RuleSet,
    replica_set: &Workload,
    deployment: &Workload,
) -> Option<ObjectReference> {
    let owner = replica_set.controller.as_ref()?;
    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        namespace: Some(rules.namespace.clone()),
        name: Some(deployment.name.clone()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}
