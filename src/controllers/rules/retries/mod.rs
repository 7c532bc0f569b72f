//! Wakes controllers whose deletions were denied.
//!
//! ReplicaSet, StatefulSet, DaemonSet and Job controllers retry a denied DELETE with exponential backoff of up to 1,000
//! s (the default rate limiter of client-go), and nothing tells them when a budget has headroom again. But each of them
//! reconciles an object at once when one of its Pods changes. Therefore the leader changes an annotation of one Pod
//! when the budget has headroom and the owner still has Pods to delete.
//!
//! While the API server refuses writes of a ledger, a wake has no effect and increases the backoff of the controller.
//! Therefore the leader checks by a dry run whether the ledgers can be written, from the second wake on. It checks
//! before the first wake too if the last write of the status failed, because the status contains the ledger.
//!
//! While the budget has no headroom, a Deployment may wait for its old ReplicaSet, see [`rollouts::StuckScaleDown`].
//! Then the leader sets `spec.replicas` of the ReplicaSet back to the number of its Pods.

mod owner_backoff;
pub(super) mod owner_state;
mod released;
mod scale_back;
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
use self::released::ReleasedOwners;
use self::scale_back::ScaleBack;
use self::wake::{OwnerWake, ledgers_covering_owner};
use super::super::api_calls::call_api_again;
use super::super::{ControllerContext, RuleObjectName, headroom};
use super::rollouts::{self, ReplicaSets};
use crate::cluster::index::{IndexState, NamespaceIndex, RuleEntry};
use crate::cluster::owner_sizes::Workload;
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

/// Reason of the Event on a Deployment that can't continue.
const ROLLOUT_HELD: &str = "RolloutHeld";

/// An owner: namespace and UID.
type OwnerKey = (String, Uid);

/// Remembers when each owner was woken. The leader keeps these times in memory; a new leader starts again.
#[derive(Default)]
pub struct Retries {
    owners: Mutex<HashMap<OwnerKey, OwnerBackoff>>,
    set_backs: Mutex<HashMap<OwnerKey, OwnerBackoff>>,
    released: ReleasedOwners,
    /// Rule objects with an owner that can't be read. Admission denies all their disruptions.
    denying: Mutex<HashSet<RuleObjectName>>,
    /// Rule objects whose last write of the status failed; the status contains the ledger. The value is true if the
    /// ledger could not be written and wakes were held back.
    unwritable: Mutex<HashMap<RuleObjectName, bool>>,
}

/// The actions that are due for one rule object.
#[derive(Default)]
struct DueActions {
    wake: Vec<OwnerWake>,
    set_back: Vec<ScaleBack>,
    /// When to check the rule object again.
    again: Option<Duration>,
}

impl DueActions {
    fn requeue_after(&mut self, pause: Duration) {
        self.again = shorter_pause(self.again, pause);
    }
}

/// The shorter of two pauses.
fn shorter_pause(again: Option<Duration>, pause: Duration) -> Option<Duration> {
    again.into_iter().chain([pause]).min()
}

impl Retries {
    /// Does the work at the start of a term. Rules may have been deleted or changed while no process was leader. This
    /// function wakes the owners that no rule covers, in the namespaces that have rules or had rules lately. It ends
    /// when these owners have been woken, or at `stop`.
    pub async fn begin_term(&self, context: &ControllerContext, stop: &CancellationToken) {
        tokio::select! { () = stop.cancelled() => return, () = context.index.wait_listed() => {} }
        let marked: Vec<String> = {
            let state = context.index.read_state();
            let marked = state.namespaces().filter(|(_, home)| {
                let labels = home.labels.as_ref();
                labels.is_some_and(|labels| {
                    NamespaceEnforcement::from_labels(labels) > NamespaceEnforcement::Unruled
                })
            });
            marked.map(|(name, _)| name.clone()).collect()
        };
        for namespace in &marked {
            self.add_released_owners(context, namespace);
        }
        loop {
            let mut again = None::<Duration>;
            for namespace in &marked {
                let wake = self.wake_released(context, namespace);
                let pause =
                    tokio::select! { () = stop.cancelled() => return, pause = wake => pause };
                again = pause.map_or(again, |pause| shorter_pause(again, pause));
            }
            let Some(pause) = again else {
                return;
            };
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// Handles a rule object of the namespace that was deleted or edited: the owners that no rule covers any more will
    /// be woken by [`Retries::wake_released`].
    pub fn add_released_owners(&self, context: &ControllerContext, namespace: &str) {
        self.released.add_uncovered_owners(context, namespace);
    }

    /// Wakes the released owners that are due. Returns when to call this function again, if necessary.
    pub async fn wake_released(
        &self,
        context: &ControllerContext,
        namespace: &str,
    ) -> Option<Duration> {
        self.released.wake_due_owners(context, namespace).await
    }

    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, name: &RuleObjectName) {
        self.denying.lock().remove(name);
        self.unwritable.lock().remove(name);
    }

    /// Whether the last write of the status of a rule object failed.
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

    /// Gives the owners of a namespace all their tries again, because wakes were held back. Returns the time until the
    /// first try.
    fn restart_backoffs(&self, namespace: &str) -> Option<Duration> {
        let (now, mut owners) = (Instant::now(), self.owners.lock());
        let owners = owners.iter_mut().filter(|((of, _), _)| of == namespace);
        owners.map(|(_, pace)| pace.restart_backoff(now)).min()
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
        for back in std::mem::take(&mut due.set_back) {
            if back.send_scale_back(context).await
                && let Some(pace) = self.set_backs.lock().get_mut(&back.key)
            {
                due.requeue_after(pace.record_owner_write(Instant::now()));
            }
        }
        due.again
    }

    /// Wakes the owners that are due. If a ledger that holds the Pods of an owner can't be written, the owner is not
    /// woken, because each deletion would be denied. Before the first wake, only the ledgers whose last status write
    /// failed are checked.
    async fn send_due_wakes(&self, context: &ControllerContext, due: &mut DueActions) {
        let mut asked = HashMap::new();
        for wake in std::mem::take(&mut due.wake) {
            let mut writable = true;
            for key in &wake.rules {
                let name = (key.namespace.clone(), key.name.clone());
                if wake.first && !self.is_unwritable(&name) {
                    continue;
                }
                let can = match asked.get(key) {
                    Some(can) => *can,
                    None => self.check_ledger_writable(context, key, &name, due).await,
                };
                asked.insert(key.clone(), can);
                writable &= can;
            }
            if !writable {
                if let Some(pace) = self.owners.lock().get_mut(&wake.key) {
                    pace.reset_tries();
                }
            } else if wake.send_wake(context).await
                && let Some(pace) = self.owners.lock().get_mut(&wake.key)
            {
                due.requeue_after(pace.record_owner_write(Instant::now()));
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
        let asked = context
            .ledgers
            .store()
            .dry_run_claims(key, &snapshot.claims);
        let failing = self.is_unwritable(name);
        let can = call_api_again("write a ledger (dry run)", failing, asked).await;
        match can {
            Ok(true) => {
                let held_back = self.unwritable.lock().remove(name).unwrap_or(false);
                if held_back && let Some(pause) = self.restart_backoffs(&name.0) {
                    due.requeue_after(pause);
                }
            }
            Ok(false) | Err(_) => {
                self.unwritable.lock().insert(name.clone(), true);
            }
        }
        can.is_ok_and(|kept| kept)
    }

    async fn collect_due_actions(
        &self,
        context: &ControllerContext,
        name: &RuleObjectName,
    ) -> DueActions {
        let free = self.count_free_by_owner(context, name).await;
        let mut due = DueActions::default();
        let state = context.index.read_state();
        let (Some(home), Some(entry)) = (state.namespace(&name.0), state.rule(&name.0, &name.1))
        else {
            return due;
        };
        let now = Instant::now();
        let mut owners = self.owners.lock();
        owners.retain(|(namespace, uid), _| *namespace != name.0 || home.has_workload(uid));
        let sets = OnceCell::new();
        for uid in entry.tally.owners() {
            let key = (name.0.clone(), uid.clone());
            let held = |w: &&Workload| owner_state::has_pods_to_delete(home, uid, w);
            let Some(workload) = home.workload(uid).filter(held) else {
                owners.remove(&key);
                continue;
            };
            let Some(free) = free.get(uid) else {
                continue; // the owner was added just now: its event enqueues the rule
            };
            let seen = OwnerState::from_owner(home, uid, workload, *free);
            let pod = owner_state::pod_to_annotate(home, uid).filter(|_| seen.free > 0);
            let Some(pod) = pod else {
                owners.remove(&key); // so that headroom that appears later starts a new backoff
                let sets = sets.get_or_init(|| ReplicaSets::from_namespace(home));
                let place = (&*state, home, entry);
                self.handle_no_headroom(context, place, sets, (uid, workload), &mut due);
                continue;
            };
            let pace = owners.entry(key.clone());
            let pace = pace.or_insert_with(|| OwnerBackoff::new(seen, now, MAX_WAKES));
            match pace.decide_for_state(seen, now) {
                BackoffDecision::Wake(pause) => {
                    let rules = ledgers_covering_owner(context, &name.0, home, uid);
                    due.wake.push(OwnerWake::new_wake(&key, pod, pace, rules));
                    due.requeue_after(pause);
                }
                BackoffDecision::Wait(pause) => due.requeue_after(pause),
                BackoffDecision::Rest => {}
            }
        }
        due
    }

    /// How many Pods of each owner may go by all rules, for the owners of a rule object that have Pods to delete. The
    /// index is locked for short times only: a change in between enqueues the rule object again.
    async fn count_free_by_owner(
        &self,
        context: &ControllerContext,
        name: &RuleObjectName,
    ) -> HashMap<Uid, usize> {
        let (held, rules) = {
            let state = context.index.read_state();
            let (Some(home), Some(entry)) =
                (state.namespace(&name.0), state.rule(&name.0, &name.1))
            else {
                return HashMap::new();
            };
            let deletes_more = |uid: &&Uid| {
                let workload = home.workload(uid);
                workload
                    .is_some_and(|workload| owner_state::has_pods_to_delete(home, uid, workload))
            };
            let held: Vec<Uid> = entry.tally.owners().filter(deletes_more).cloned().collect();
            let is_free = held.is_empty() || is_namespace_excluded(context, &name.0, home);
            // If a rule selects a Pod of an owner, its tally contains the owner.
            let rules = home
                .rules
                .iter()
                .filter(|(_, entry)| !is_free && held.iter().any(|uid| entry.tally.has_owner(uid)));
            let rules: Vec<String> = rules.map(|(rule, _)| rule.clone()).collect();
            (held, rules)
        };
        let closed = self.rules_without_headroom(context, &name.0, rules).await;
        let mut free = HashMap::new();
        for uid in held {
            let pods: Vec<_> = {
                let state = context.index.read_state();
                let home = state.namespace(&name.0).into_iter();
                home.flat_map(|home| home.living_pods_of(&uid).cloned())
                    .collect()
            };
            free.insert(uid, owner_state::count_free_pods(&pods, &closed).await);
        }
        free
    }

    /// The rules among `rules` that let no available Pod go. The index is locked for one rule at a time, because the
    /// time depends on the number of its claims.
    async fn rules_without_headroom(
        &self,
        context: &ControllerContext,
        namespace: &str,
        rules: Vec<String>,
    ) -> Vec<Arc<RuleSet>> {
        let mut closed = Vec::new();
        for rule in rules {
            let name = (namespace.to_owned(), rule);
            let denies = {
                let state = context.index.read_state();
                let entry = state.rule(namespace, &name.1);
                entry.and_then(|entry| {
                    let allowed = headroom::allowed_disruptions(&context.ledgers, &state, entry)?;
                    let denies = allowed == 0 || self.denying.lock().contains(&name);
                    denies.then(|| Arc::clone(&entry.snapshot.rules))
                })
            };
            closed.extend(denies);
            yield_now().await;
        }
        closed
    }

    /// Handles an owner that has Pods to delete while the rules let none of them go.
    fn handle_no_headroom(
        &self,
        context: &ControllerContext,
        (state, home, entry): (&IndexState, &NamespaceIndex, &RuleEntry),
        sets: &ReplicaSets<'_>,
        (uid, workload): (&Uid, &Workload),
        due: &mut DueActions,
    ) {
        let rules = &entry.snapshot.rules;
        let mut set_backs = self.set_backs.lock();
        set_backs
            .retain(|(namespace, uid), _| *namespace != rules.namespace || home.has_workload(uid));
        if let Some(overhang) = rollouts::find_stuck_scale_down(home, sets, uid, workload) {
            let (now, seen) = (Instant::now(), overhang.scale_down_state(home, uid));
            let key = (rules.namespace.clone(), uid.clone());
            let pace = set_backs.entry(key);
            let pace = pace.or_insert_with(|| OwnerBackoff::new(seen, now, MAX_SCALE_BACKS));
            let turn = pace.decide_for_state(seen, now);
            match turn {
                BackoffDecision::Wake(pause) => {
                    let set = (uid, workload);
                    due.set_back
                        .extend(ScaleBack::from_stuck_rollout(rules, set, &overhang, pace));
                    due.requeue_after(pause);
                }
                BackoffDecision::Wait(pause) => due.requeue_after(pause),
                BackoffDecision::Rest => {}
            }
            if turn != BackoffDecision::Rest && !pace.is_failing() {
                return;
            }
        }
        if let Some((about, message)) =
            stalled_deployment(context, (state, home, entry), sets, uid, workload)
        {
            context
                .events
                .record_event(&about, true, ROLLOUT_HELD, &message);
        }
    }
}

/// Whether the API server sends no requests of the namespace to the webhooks.
fn is_namespace_excluded(
    context: &ControllerContext,
    namespace: &str,
    home: &NamespaceIndex,
) -> bool {
    let own = Some(context.namespace.as_str());
    conditions::exclusion_reason(namespace, home.labels.as_ref(), own).is_some()
}

/// The Deployment that can't continue by itself, and the reason.
fn stalled_deployment(
    context: &ControllerContext,
    (state, home, entry): (&IndexState, &NamespaceIndex, &RuleEntry),
    sets: &ReplicaSets<'_>,
    uid: &Uid,
    replica_set: &Workload,
) -> Option<(ObjectReference, String)> {
    let rules = &entry.snapshot.rules;
    let limit = headroom::rule_gauges(&context.ledgers, state, entry)?.limit;
    let (deployment, cause) =
        rollouts::rollout_held_cause(home, sets, rules, uid, replica_set, limit)?;
    let about = deployment_reference(rules, replica_set, deployment)?;
    Some((
        about,
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
