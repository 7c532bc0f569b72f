//! Reconciles PodTransitionRules: releases claims on evidence, wakes waiting Pods when the budget has headroom, and
//! writes the status.

mod claims;
mod rate_limit;
mod reason_counts;
mod retries;
mod rollouts;
mod status;
mod status_inputs;
mod storage_probe;
mod version_checks;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::status::{StatusUrgency, StatusView, WaitReasonCounts};
use super::api_calls::{call_api, call_api_again};
use super::rule_endpoints::{CallStates, RuleEndpoints};
use super::wait_queue::{Requester, Round, RoundLookup, WaitQueue};
use super::{ControllerContext, Queues, RuleObjectName};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::owner_sizes::OwnerReadError;
use crate::cluster::request_path;
use crate::cluster::rule_gauges::rule_gauges;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::cluster::write_backoff::WriteBackoff;
use crate::domain::lifecycle::Stage;
use crate::domain::rules::budget::BudgetGauges;
use crate::domain::rules::conditions::FIELD_DROPPED_MESSAGE;
use crate::ledger::store::{RuleKey, Uid};

/// Minimum time between two writes of the status of one rule object.
const STATUS_PERIOD: Duration = Duration::from_millis(500);

/// Minimum time between two writes if only counts differ and Pods were woken during this time.
const BUSY_PERIOD: Duration = Duration::from_secs(2);

/// Minimum time between two wakes of the Pods that wait for one rule object. The Pods that are woken together share a
/// write of the ledger.
const WAKE_PERIOD: Duration = Duration::from_millis(150);

/// Minimum time between two writes if only counts differ and endpoints are called. The next verdict writes the counts
/// too.
const COUNTS_PERIOD: Duration = Duration::from_secs(5);

/// Minimum time between two writes if Pods wait for a verdict of an endpoint that is not stored yet.
const VERDICTS_PERIOD: Duration = Duration::from_millis(200);

/// A run reads owners again that no watch covers, if the last read is older than this.
const OWNERS_PERIOD: Duration = Duration::from_secs(5);
/// Maximum time that a run waits for such reads.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Stands for the generation of a rule object that was never reconciled.
const NO_GENERATION: i64 = -1;

/// The controller of PodTransitionRules.
pub struct RuleController {
    context: Arc<ControllerContext>,
    queues: Arc<Queues>,
    wait_queue: Arc<WaitQueue>,
    last_reconciles: Mutex<HashMap<RuleObjectName, LastReconcile>>,
    claim_deadlines: claims::ClaimDeadlines,
    version_checks: version_checks::VersionChecks,
    status_inputs: status_inputs::StatusInputCache,
    storage_probe: storage_probe::StorageProbe,
    /// Backoff of the status writes that failed.
    write_backoff: WriteBackoff<RuleObjectName>,
    rate_limiter: rate_limit::StatusRateLimiter,
    rule_endpoints: Arc<RuleEndpoints>,
    retries: retries::Retries,
}

/// What is remembered of the last run for a rule object.
struct LastReconcile {
    uid: Uid,
    generation: i64,
    written_at: Option<Instant>,
    /// When the Pods for which the budget has headroom were last woken, or will be woken.
    woken_at: Option<Instant>,
    /// Whether the API server stored the conditions at the last write.
    keeps_conditions: bool,
    /// The counted reasons, if more Pods wait than `details` lists, and the time until which they are valid.
    counted: Option<(Instant, Arc<WaitReasonCounts>)>,
}

impl RuleController {
    /// Creates the controller. Its calls to endpoints end at `stop`.
    pub fn new(
        context: &Arc<ControllerContext>,
        queues: &Arc<Queues>,
        wait_queue: &Arc<WaitQueue>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(RuleController {
            rule_endpoints: RuleEndpoints::new(
                Arc::clone(context),
                Arc::clone(queues),
                stop.clone(),
            ),
            context: Arc::clone(context),
            queues: Arc::clone(queues),
            wait_queue: Arc::clone(wait_queue),
            last_reconciles: Mutex::default(),
            claim_deadlines: claims::ClaimDeadlines::default(),
            version_checks: version_checks::VersionChecks::default(),
            retries: retries::Retries::default(),
            status_inputs: status_inputs::StatusInputCache::default(),
            storage_probe: storage_probe::StorageProbe::default(),
            write_backoff: WriteBackoff::default(),
            rate_limiter: rate_limit::StatusRateLimiter::default(),
        })
    }

    /// Does the work at the start of a term that is not part of the runs for single rule objects.
    pub async fn begin_term(&self, stop: &CancellationToken) {
        self.retries.begin_term(&self.context, stop).await;
    }

    pub async fn reconcile(&self, name: RuleObjectName) -> ReconcileOutcome {
        let key = {
            let state = self.context.index.read_state();
            state
                .rule(&name.0, &name.1)
                .map(|entry| (entry.rule_key(), entry.snapshot.rules.generation))
        };
        let Some((key, generation)) = key else {
            return self.clean_up_deleted_rule(name).await;
        };
        let unread_owners = self.read_owners(&key).await;
        let (round, is_known) = self.latest_round(&name);
        if self
            .wake_waiting_pods(&name, &key.uid, generation, &round)
            .await
        {
            self.release_owners(&name.0);
        }
        let versions_pause = self
            .version_checks
            .check_ledger_versions(&self.context, &key)
            .await;
        let probe_pause = self
            .storage_probe
            .probe_ledger_storage(&self.context, &key)
            .await;
        let claims_pause =
            claims::release_ledger_claims(&self.context, &self.claim_deadlines, &key).await;
        let (calls_pause, calls_outcome) = match self.rule_endpoints.start_due_calls(&key).await {
            Ok(due) => (due, ReconcileOutcome::Done),
            Err(outcome) => (None, outcome),
        };
        let denying = !unread_owners.is_empty();
        let wakes_pause = self
            .retries
            .wake_owners(&self.context, &name, denying)
            .await;
        let uncovered_pause = self
            .retries
            .wake_uncovered_owners(&self.context, &name.0)
            .await;
        let rule_name = (name.0.as_str(), name.1.as_str());
        let Some((mut inputs, inputs_pause)) = self
            .status_inputs
            .gather_status_inputs(&self.context, rule_name, &key.uid)
            .await
        else {
            return ReconcileOutcome::Retry; // another object has its name now
        };
        // No event may tell that the owner can be read again.
        let owners_pause = denying.then_some(OWNERS_PERIOD);
        inputs.unreadable = describe_unreadable_owners(&unread_owners);
        inputs.ledger_repair_message = self.version_checks.ledger_repair(&key.uid);
        inputs.ledger_storage = storage_probe::storage_finding(&self.context, &key);
        let head = round.first_in_line(&key.uid).cloned();
        // The status names the Pod that is first in the wait queue.
        let status = match is_known {
            true => self.reconcile_status(&name, &key.uid, &inputs, head).await,
            false => ReconcileOutcome::Done,
        };
        let pause = claims_pause
            .into_iter()
            .chain(versions_pause)
            .chain(probe_pause)
            .chain(calls_pause)
            .chain(wakes_pause)
            .chain(uncovered_pause)
            .chain(inputs_pause)
            .chain(owners_pause)
            .min();
        match (status, pause) {
            (ReconcileOutcome::Done, _) if calls_outcome == ReconcileOutcome::Retry => {
                calls_outcome
            }
            (ReconcileOutcome::Done, Some(pause)) => ReconcileOutcome::After(pause),
            (ReconcileOutcome::After(a), Some(b)) => ReconcileOutcome::After(a.min(b)),
            (outcome, _) => outcome,
        }
    }

    /// The latest round of the namespace, and whether a round is known. If no round is known, the rule object is
    /// enqueued after the next round.
    fn latest_round(&self, name: &RuleObjectName) -> (Arc<Round>, bool) {
        if !self.has_waiting(name) {
            return (Arc::default(), true);
        }
        let requester = Requester::Rule(name.1.clone());
        match self.wait_queue.latest_round(&name.0, requester) {
            RoundLookup::Fresh(round) | RoundLookup::Stale(round) => (round, true),
            RoundLookup::Pending => (Arc::default(), false),
        }
    }

    /// Refreshes the numbers of replicas of owners that no watch covers. Admission reads them itself before it decides;
    /// these reads are for the status and for the wakes. Returns the owners that can't be read or have no number of
    /// replicas.
    async fn read_owners(&self, key: &RuleKey) -> Vec<OwnerReadError> {
        let (owners, client) = (&self.context.owners, &self.context.client);
        let deadline = Instant::now() + OWNERS_TIMEOUT;
        let unread_owners = owners
            .refresh_all_owners(client, key, OWNERS_PERIOD, deadline)
            .await;
        for error in &unread_owners {
            debug!(namespace = %key.namespace, rule = %key.name, %error, "the number of replicas of an owner is not known");
        }
        unread_owners
    }

    /// Whether a Pod waits in PreCheck for a rule object.
    fn has_waiting(&self, name: &RuleObjectName) -> bool {
        let state = self.context.index.read_state();
        let entry = state.rule(&name.0, &name.1);
        entry.is_some_and(|entry| entry.tally.pre_check_waiting().len() > 0)
    }

    /// Wakes waiting Pods: those for which the budget has headroom, those that pass PostCheck, and, if the rules have
    /// changed, all in the namespace. Returns whether a rule object that was reconciled before has changed.
    async fn wake_waiting_pods(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        generation: i64,
        round: &Round,
    ) -> bool {
        let (changed, edited) = {
            let mut last_reconciles = self.last_reconciles.lock();
            let entry = last_reconciles
                .entry(name.clone())
                .or_insert(LastReconcile {
                    uid: uid.clone(),
                    generation: NO_GENERATION,
                    written_at: None,
                    woken_at: None,
                    keeps_conditions: true,
                    counted: None,
                });
            if entry.uid != *uid {
                self.forget_rule_object(&entry.uid);
            }
            let changed = entry.uid != *uid || entry.generation != generation;
            let edited = changed && entry.generation != NO_GENERATION;
            if changed {
                entry.counted = None;
            }
            (entry.uid, entry.generation) = (uid.clone(), generation);
            (changed, edited)
        };
        if changed {
            self.wake_namespace_pods(&name.0);
            return edited;
        }
        let (next, post_waiting) = {
            let state = self.context.index.read_state();
            let Some(entry) = state.rule(&name.0, &name.1) else {
                return false;
            };
            let next = entry
                .tally
                .pre_check_waiting()
                .filter(|uid| round.is_next(uid));
            let post_waiting = entry.tally.post_check_waiting().cloned();
            (
                next.cloned().collect::<Vec<_>>(),
                post_waiting.collect::<Vec<_>>(),
            )
        };
        if !next.is_empty() {
            let pause = self.time_until_wake(name);
            for pod in next {
                let key = (name.0.clone(), pod);
                match pause.is_zero() {
                    true => self.queues.lifecycle.add(key),
                    false => self.queues.lifecycle.add_after(key, pause),
                }
            }
        }
        for pod in self.filter_passing_post_check(&name.0, post_waiting).await {
            self.queues.lifecycle.add((name.0.clone(), pod));
        }
        false
    }

    /// The time until the next wake of Pods for which the budget has headroom.
    fn time_until_wake(&self, name: &RuleObjectName) -> Duration {
        let now = Instant::now();
        let mut last_reconciles = self.last_reconciles.lock();
        let Some(last) = last_reconciles.get_mut(name) else {
            return Duration::ZERO;
        };
        let wake_at = next_wake_at(last.woken_at, now);
        last.woken_at = Some(wake_at);
        wake_at - now
    }

    /// The Pods among `pods` that pass PostCheck. The index is locked for one Pod at a time, because each Pod is
    /// compared with all rules of the namespace.
    async fn filter_passing_post_check(&self, namespace: &str, pods: Vec<Uid>) -> Vec<Uid> {
        let mut passing = Vec::new();
        for uid in pods {
            let passes = {
                let state = self.context.index.read_state();
                let pod = state.pod(namespace, &uid);
                pod.is_some_and(|pod| state.has_passing_operation(Stage::PostCheck, pod))
            };
            passing.extend(passes.then_some(uid));
            yield_now().await;
        }
        passing
    }

    /// Handles a rule object that was edited or deleted. Owners whose Pods it held may be able to continue now. If
    /// another rule object covers such an owner, the run for that object wakes the owner.
    fn release_owners(&self, namespace: &str) {
        self.retries.add_uncovered_owners(&self.context, namespace);
        let state = self.context.index.read_state();
        let namespace_index = state.namespace(namespace).into_iter();
        for rule in namespace_index.flat_map(|n| n.rules.keys()) {
            self.queues.rules.add((namespace.to_owned(), rule.clone()));
        }
    }

    /// Forgets the state that is kept by the UID of a rule object, except the times of its claims.
    fn forget_rule_object(&self, uid: &Uid) {
        self.rule_endpoints.forget_rule(uid);
        self.version_checks.forget_rule(uid);
        self.status_inputs.forget_rule(uid);
        self.storage_probe.forget_rule(uid);
    }

    fn wake_namespace_pods(&self, namespace: &str) {
        let state = self.context.index.read_state();
        let pods = state.namespace(namespace).into_iter().flat_map(|n| &n.pods);
        for (uid, _) in pods.filter(|(_, pod)| {
            pod.metadata
                .labels
                .keys()
                .any(|k| k.contains(keys::LIFECYCLE_DOMAIN))
        }) {
            self.queues
                .lifecycle
                .add((namespace.to_owned(), uid.clone()));
        }
    }

    /// Handles a rule object that is deleted or being deleted: wakes the Pods that waited for it, and removes a
    /// finalizer of Kuperator.
    async fn clean_up_deleted_rule(&self, name: RuleObjectName) -> ReconcileOutcome {
        let last = self.last_reconciles.lock().remove(&name);
        if let Some(last) = last {
            self.claim_deadlines.forget_rule(&last.uid);
            self.forget_rule_object(&last.uid);
            self.write_backoff.forget_key(&name);
            self.retries.forget_rule(&name);
            self.release_owners(&name.0);
        }
        let pause = self
            .retries
            .wake_uncovered_owners(&self.context, &name.0)
            .await;
        let done = pause.map_or(ReconcileOutcome::Done, ReconcileOutcome::After);
        self.wake_namespace_pods(&name.0);
        let read = async { self.rule_api(&name)?.get_metadata_opt(&name.1).await };
        let terminating = match call_api("read a rule", read).await {
            Ok(live) => live.filter(|m| m.metadata.deletion_timestamp.is_some()),
            Err(outcome) => return outcome,
        };
        let Some(terminating) = terminating else {
            return done;
        };
        let finalizers = terminating.metadata.finalizers.unwrap_or_default();
        let remaining: Vec<_> = finalizers
            .iter()
            .filter(|f| *f != keys::PROTECTED_FINALIZER)
            .collect();
        if remaining.len() == finalizers.len() {
            return done;
        }
        let patch = json!({ "metadata": { "resourceVersion": terminating.metadata.resource_version, "finalizers": remaining } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let release = async {
            let rules = self.rule_api(&name)?;
            rules.patch_metadata(&name.1, &params, &patch).await
        };
        match call_api("release a rule", release).await {
            Ok(_) => {
                info!(namespace = %name.0, rule = %name.1, "removed the finalizer of a deleted rule");
                done
            }
            Err(outcome) => outcome,
        }
    }

    fn rule_api(&self, name: &RuleObjectName) -> kube::Result<Api<PodTransitionRule>> {
        request_path::namespaced_api(&self.context.client, &name.0)
    }

    async fn reconcile_status(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        inputs: &status::StatusInputs,
        head: Option<Uid>,
    ) -> ReconcileOutcome {
        // Before anything is compared, because the comparison takes time too if there is always something to write.
        if let Some(pause) = self
            .rate_limiter
            .time_until_allowed(&name.0, Instant::now())
        {
            return ReconcileOutcome::After(pause);
        }
        let mut queue = status::QueueFacts {
            head,
            ..status::QueueFacts::default()
        };
        let (counted, recount_pause) = self.count_wait_reasons(name, uid, inputs, &mut queue).await;
        queue.counted = counted;
        let outcome = self.write_status(name, uid, inputs, &mut queue).await;
        match recount_pause {
            Some(pause) if outcome == ReconcileOutcome::Done => ReconcileOutcome::After(pause),
            _ => outcome,
        }
    }

    /// Calls `f` with a rule object and the states of its endpoint calls. Returns `None` if the object is gone or
    /// another object has its name.
    fn with_rule_entry<R>(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        f: impl FnOnce(&IndexState, &RuleEntry, Option<&CallStates>) -> R,
    ) -> Option<R> {
        let state = self.context.index.read_state();
        let entry = state.rule(&name.0, &name.1);
        let entry = entry.filter(|entry| entry.snapshot.rules.uid == *uid)?;
        let with_states = |call_states: Option<&CallStates>| f(&state, entry, call_states);
        Some(self.rule_endpoints.with_call_states(uid, with_states))
    }

    /// The gauges of a rule object. Also puts the Pods that hold claims into `queue`.
    fn collect_gauges(
        &self,
        state: &IndexState,
        entry: &RuleEntry,
        queue: &mut status::QueueFacts,
    ) -> BudgetGauges {
        let claims = self
            .context
            .ledgers
            .newer_snapshot(&entry.rule_key(), &entry.snapshot)
            .claims;
        queue.claimed = claims.claimed_pods().cloned().collect();
        rule_gauges(&self.context.ledgers, state, entry)
    }

    async fn write_status(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        inputs: &status::StatusInputs,
        queue: &mut status::QueueFacts,
    ) -> ReconcileOutcome {
        let change = self.with_rule_entry(name, uid, |state, entry, call_states| {
            let gauges = self.collect_gauges(state, entry, queue);
            let now = (self.context.now)();
            let view = StatusView {
                state,
                entry,
                gauges,
                call_states,
                inputs,
                queue,
            };
            status::rule_status_patch(&view, now)
        });
        let Some((patch, urgency)) = change.flatten() else {
            return ReconcileOutcome::Done;
        };
        let calls_endpoints = self.rule_endpoints.with_call_states(uid, |call_states| {
            call_states.is_some_and(|s| !s.is_empty())
        });
        if let Some(last) = self.last_reconciles.lock().get_mut(name) {
            let is_busy = last
                .woken_at
                .is_some_and(|time| time.elapsed() < BUSY_PERIOD);
            let period = status_period(urgency, calls_endpoints, is_busy);
            let pause = last
                .written_at
                .map(|time| period.saturating_sub(time.elapsed()));
            match pause {
                Some(pause) if !pause.is_zero() => return ReconcileOutcome::After(pause),
                _ => last.written_at = Some(Instant::now()),
            }
        }
        if let Some(pause) = self.write_backoff.remaining_delay(name, Instant::now()) {
            return ReconcileOutcome::After(pause);
        }
        let patch = json!({ "status": patch });
        self.rate_limiter
            .charge_bytes(&name.0, patch.to_string().len(), Instant::now());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let write = async {
            let rules = self.rule_api(name)?;
            rules.patch_status(&name.1, &params, &patch).await
        };
        let is_failing = !self.write_backoff.should_log_failure(name, Instant::now());
        let stored = call_api_again("write a rule's status", is_failing, write).await;
        self.retries.record_status_write(name, stored.is_ok());
        match stored {
            Ok(stored) => {
                self.write_backoff.forget_key(name);
                self.report_dropped_conditions(name, &stored);
                ReconcileOutcome::Done
            }
            Err(outcome) => {
                self.write_backoff.record_failure(name, Instant::now());
                outcome
            }
        }
    }

    /// Logs that the API server does not store the conditions. The status of such a rule object can't show any problem;
    /// only the log and the metrics can.
    fn report_dropped_conditions(&self, name: &RuleObjectName, stored: &PodTransitionRule) {
        let status = stored.status.as_ref();
        let keeps_conditions = status.is_some_and(|status| !status.conditions.is_empty()); // `Enforced` is always written
        let mut last_reconciles = self.last_reconciles.lock();
        let Some(last) = last_reconciles.get_mut(name) else {
            return;
        };
        let kept_conditions = std::mem::replace(&mut last.keeps_conditions, keeps_conditions);
        if kept_conditions && !keeps_conditions {
            warn!(namespace = %name.0, rule = %name.1, "the API server did not store status.conditions: {FIELD_DROPPED_MESSAGE}");
        }
    }
}

/// When the Pods for which the budget has headroom are woken. `woken_at` is the time of the last wake, or of the next
/// wake if that time is in the future.
fn next_wake_at(woken_at: Option<Instant>, now: Instant) -> Instant {
    match woken_at {
        Some(time) if time > now => time, // all Pods are woken together
        Some(time) => now.max(time + WAKE_PERIOD),
        None => now,
    }
}

/// Minimum time between two writes of a status. `calls_endpoints` says whether endpoints are called, `is_busy` whether
/// Pods were woken lately.
fn status_period(urgency: StatusUrgency, calls_endpoints: bool, is_busy: bool) -> Duration {
    match urgency {
        StatusUrgency::Verdicts => VERDICTS_PERIOD,
        StatusUrgency::Conditions => STATUS_PERIOD,
        StatusUrgency::Counts if calls_endpoints => COUNTS_PERIOD,
        StatusUrgency::Counts if is_busy => BUSY_PERIOD,
        StatusUrgency::Counts => STATUS_PERIOD,
    }
}

/// The owners that can't be read, each as a clause of a sentence. Owners without a number of replicas are left out,
/// because the tally contains them.
fn describe_unreadable_owners(errors: &[OwnerReadError]) -> Vec<String> {
    let failed = errors
        .iter()
        .filter(|e| matches!(e, OwnerReadError::Failed { .. }));
    failed.map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
