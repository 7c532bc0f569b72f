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
mod wait_reasons;

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

use self::status::StatusUrgency;
use self::wait_reasons::WaitReasonCounts;
use super::api_calls::{call_api, call_api_again};
use super::rule_endpoints::{CallStates, RuleEndpoints};
use super::wait_queue::{Requester, Round, RoundLookup, WaitQueue};
use super::{ControllerContext, Queues, RuleObjectName, headroom};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::owner_sizes::OwnerReadError;
use crate::cluster::request_path;
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
    deadlines: claims::ClaimDeadlines,
    doubts: version_checks::VersionChecks,
    facts: status_inputs::StatusInputCache,
    storing: storage_probe::StorageProbe,
    /// Backoff of the status writes that failed.
    unwritten: WriteBackoff<RuleObjectName>,
    rate_limiter: rate_limit::StatusRateLimiter,
    webhooks: Arc<RuleEndpoints>,
    retries: retries::Retries,
}

/// What is remembered of the last run for a rule object.
struct LastReconcile {
    uid: Uid,
    generation: i64,
    written: Option<Instant>,
    /// When the Pods for which the budget has headroom were last woken, or will be woken.
    woken: Option<Instant>,
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
        turns: &Arc<WaitQueue>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(RuleController {
            webhooks: RuleEndpoints::new(Arc::clone(context), Arc::clone(queues), stop.clone()),
            context: Arc::clone(context),
            queues: Arc::clone(queues),
            wait_queue: Arc::clone(turns),
            last_reconciles: Mutex::default(),
            deadlines: claims::ClaimDeadlines::default(),
            doubts: version_checks::VersionChecks::default(),
            retries: retries::Retries::default(),
            facts: status_inputs::StatusInputCache::default(),
            storing: storage_probe::StorageProbe::default(),
            unwritten: WriteBackoff::default(),
            rate_limiter: rate_limit::StatusRateLimiter::default(),
        })
    }

    /// Does the work at the start of a term that is not part of the runs for single rule objects.
    pub async fn begin_term(&self, stop: &CancellationToken) {
        self.retries.begin_term(&self.context, stop).await;
    }

    /// Reconciles one rule object.
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
        let unread = self.read_owners(&key).await;
        let known = match self.has_waiting(&name) {
            true => self
                .wait_queue
                .latest_round(&name.0, Requester::Rule(name.1.clone())),
            false => RoundLookup::Fresh(Arc::default()),
        };
        let (round, is_known) = match known {
            RoundLookup::Fresh(round) | RoundLookup::Stale(round) => (round, true),
            RoundLookup::Pending => (Arc::default(), false), // the new round enqueues the rule object
        };
        if self
            .wake_waiting_pods(&name, &key.uid, generation, &round)
            .await
        {
            self.release_owners(&name.0);
        }
        let doubted = self.doubts.check_ledger_versions(&self.context, &key).await;
        let tried = self.storing.probe_ledger_storage(&self.context, &key).await;
        let release = claims::release_ledger_claims(&self.context, &self.deadlines, &key).await;
        let (asked, looked) = match self.webhooks.start_due_calls(&key).await {
            Ok(due) => (due, ReconcileOutcome::Done),
            Err(outcome) => (None, outcome),
        };
        let denying = !unread.is_empty();
        let woken = self
            .retries
            .wake_owners(&self.context, &name, denying)
            .await;
        let released = self.retries.wake_released(&self.context, &name.0).await;
        let place = (name.0.as_str(), name.1.as_str());
        let Some((mut facts, later)) = self
            .facts
            .gather_status_inputs(&self.context, place, &key.uid)
            .await
        else {
            return ReconcileOutcome::Retry; // another object has its name now
        };
        // No event may tell that the owner can be read again.
        let owners = (!unread.is_empty()).then_some(OWNERS_PERIOD);
        facts.unreadable = describe_unreadable_owners(&unread);
        facts.ledger_repair_message = self.doubts.ledger_repair(&key.uid);
        facts.ledger_storage = storage_probe::storage_finding(&self.context, &key);
        let head = round.first_in_line(&key.uid).cloned();
        // The status names the Pod that is first in the wait queue.
        let status = match is_known {
            true => self.reconcile_status(&name, &key.uid, &facts, head).await,
            false => ReconcileOutcome::Done,
        };
        let again = release
            .into_iter()
            .chain(doubted)
            .chain(tried)
            .chain(asked)
            .chain(woken)
            .chain(released)
            .chain(later)
            .chain(owners)
            .min();
        match (status, again) {
            (ReconcileOutcome::Done, _) if looked == ReconcileOutcome::Retry => looked,
            (ReconcileOutcome::Done, Some(pause)) => ReconcileOutcome::After(pause),
            (ReconcileOutcome::After(a), Some(b)) => ReconcileOutcome::After(a.min(b)),
            (outcome, _) => outcome,
        }
    }

    /// Refreshes the numbers of replicas of owners that no watch covers. Admission reads them itself before it decides;
    /// these reads are for the status and for the wakes. Returns the owners that can't be read or have no number of
    /// replicas.
    async fn read_owners(&self, key: &RuleKey) -> Vec<OwnerReadError> {
        let (owners, client) = (&self.context.owners, &self.context.client);
        let deadline = Instant::now() + OWNERS_TIMEOUT;
        let unread = owners.refresh_all_owners(client, key, OWNERS_PERIOD, deadline);
        let unread = unread.await;
        for error in &unread {
            debug!(namespace = %key.namespace, rule = %key.name, %error, "an owner of Pods is not known");
        }
        unread
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
            let mut seen = self.last_reconciles.lock();
            let entry = seen.entry(name.clone()).or_insert(LastReconcile {
                uid: uid.clone(),
                generation: NO_GENERATION,
                written: None,
                woken: None,
                keeps_conditions: true,
                counted: None,
            });
            if entry.uid != *uid {
                self.webhooks.forget_rule(&entry.uid);
                self.doubts.forget_rule(&entry.uid);
                self.facts.forget_rule(&entry.uid);
                self.storing.forget_rule(&entry.uid);
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
        let mut seen = self.last_reconciles.lock();
        let Some(seen) = seen.get_mut(name) else {
            return Duration::ZERO;
        };
        let at = next_wake_at(seen.woken, now);
        seen.woken = Some(at);
        at - now
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
        self.retries.add_released_owners(&self.context, namespace);
        let state = self.context.index.read_state();
        let home = state.namespace(namespace);
        for rule in home.into_iter().flat_map(|home| home.rules.keys()) {
            self.queues.rules.add((namespace.to_owned(), rule.clone()));
        }
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
        let seen = self.last_reconciles.lock().remove(&name);
        if let Some(seen) = seen {
            self.deadlines.forget_rule(&seen.uid);
            self.doubts.forget_rule(&seen.uid);
            self.webhooks.forget_rule(&seen.uid);
            self.facts.forget_rule(&seen.uid);
            self.storing.forget_rule(&seen.uid);
            self.unwritten.forget_key(&name);
            self.retries.forget_rule(&name);
            self.release_owners(&name.0);
        }
        let released = self.retries.wake_released(&self.context, &name.0).await;
        let done = released.map_or(ReconcileOutcome::Done, ReconcileOutcome::After);
        self.wake_namespace_pods(&name.0);
        let read = async { self.rule_api(&name)?.get_metadata_opt(&name.1).await };
        let going = match call_api("read a rule", read).await {
            Ok(going) => going.filter(|m| m.metadata.deletion_timestamp.is_some()),
            Err(outcome) => return outcome,
        };
        let Some(going) = going else {
            return done;
        };
        let finalizers = going.metadata.finalizers.unwrap_or_default();
        let kept: Vec<_> = finalizers
            .iter()
            .filter(|f| *f != keys::PROTECTED_FINALIZER)
            .collect();
        if kept.len() == finalizers.len() {
            return done;
        }
        let patch = json!({ "metadata": { "resourceVersion": going.metadata.resource_version, "finalizers": kept } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let release = async {
            let rules = self.rule_api(&name)?;
            rules.patch_metadata(&name.1, &params, &patch).await
        };
        match call_api("release a rule", release).await {
            Ok(_) => {
                info!(namespace = %name.0, rule = %name.1, "took the finalizer off a deleted rule");
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
        facts: &status::StatusInputs,
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
        let (counted, recount) = self.count_wait_reasons(name, uid, facts, &mut queue).await;
        queue.counted = counted;
        let outcome = self.write_status(name, uid, facts, &mut queue).await;
        match recount {
            Some(pause) if outcome == ReconcileOutcome::Done => ReconcileOutcome::After(pause),
            _ => outcome,
        }
    }

    /// Calls `look` with a rule object and the states of its endpoint calls. Returns `None` if the object is gone or
    /// another object has its name.
    fn with_rule_entry<R>(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        look: impl FnOnce(&IndexState, &RuleEntry, Option<&CallStates>) -> R,
    ) -> Option<R> {
        let state = self.context.index.read_state();
        let entry = state.rule(&name.0, &name.1);
        let entry = entry.filter(|entry| entry.snapshot.rules.uid == *uid)?;
        let look = |memories: Option<&CallStates>| look(&state, entry, memories);
        Some(self.webhooks.with_call_states(uid, look))
    }

    /// The gauges of a rule object. Also puts the Pods that hold claims into `queue`.
    fn collect_gauges(
        &self,
        state: &IndexState,
        entry: &RuleEntry,
        queue: &mut status::QueueFacts,
    ) -> Option<BudgetGauges> {
        let claims = self
            .context
            .ledgers
            .newer_snapshot(&entry.rule_key(), &entry.snapshot)
            .claims;
        queue.claimed = claims.claimed_pods().cloned().collect();
        headroom::rule_gauges(&self.context.ledgers, state, entry)
    }

    async fn write_status(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        facts: &status::StatusInputs,
        queue: &mut status::QueueFacts,
    ) -> ReconcileOutcome {
        let found = self.with_rule_entry(name, uid, |state, entry, memories| {
            let gauges = self.collect_gauges(state, entry, queue)?;
            let now = (self.context.now)();
            status::rule_status_patch(state, entry, gauges, memories, facts, queue, now)
        });
        let Some((patch, haste)) = found.flatten() else {
            return ReconcileOutcome::Done;
        };
        let asks = self
            .webhooks
            .with_call_states(uid, |memories| memories.is_some_and(|m| !m.is_empty()));
        if let Some(seen) = self.last_reconciles.lock().get_mut(name) {
            let is_busy = seen.woken.is_some_and(|at| at.elapsed() < BUSY_PERIOD);
            let period = status_period(haste, asks, is_busy);
            match seen.written.map(|at| period.saturating_sub(at.elapsed())) {
                Some(pause) if !pause.is_zero() => return ReconcileOutcome::After(pause),
                _ => seen.written = Some(Instant::now()),
            }
        }
        if let Some(pause) = self.unwritten.remaining_delay(name, Instant::now()) {
            return ReconcileOutcome::After(pause);
        }
        let patch = json!({ "status": patch });
        self.rate_limiter
            .charge_bytes(&name.0, patch.to_string().len(), Instant::now());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let store = async {
            let rules = self.rule_api(name)?;
            rules.patch_status(&name.1, &params, &patch).await
        };
        let is_known = !self.unwritten.should_log_failure(name, Instant::now());
        let stored = call_api_again("write a rule's status", is_known, store).await;
        self.retries.record_status_write(name, stored.is_ok());
        match stored {
            Ok(stored) => {
                self.unwritten.forget_key(name);
                self.report_dropped_conditions(name, &stored);
                ReconcileOutcome::Done
            }
            Err(outcome) => {
                self.unwritten.record_failure(name, Instant::now());
                outcome
            }
        }
    }

    /// Logs that the API server does not store the conditions. The status of such a rule object can't show any problem;
    /// only the log and the metrics can.
    fn report_dropped_conditions(&self, name: &RuleObjectName, stored: &PodTransitionRule) {
        let status = stored.status.as_ref();
        let kept = status.is_some_and(|status| !status.conditions.is_empty()); // `Enforced` is always written
        let mut seen = self.last_reconciles.lock();
        let Some(seen) = seen.get_mut(name) else {
            return;
        };
        if std::mem::replace(&mut seen.keeps_conditions, kept) && !kept {
            warn!(namespace = %name.0, rule = %name.1, "the API server did not store status.conditions: {FIELD_DROPPED_MESSAGE}");
        }
    }
}

/// When the Pods for which the budget has headroom are woken. `woken` is the last wake, or the next one if it is in the
/// future.
fn next_wake_at(woken: Option<Instant>, now: Instant) -> Instant {
    match woken {
        Some(at) if at > now => at, // they are woken together
        Some(at) => now.max(at + WAKE_PERIOD),
        None => now,
    }
}

/// Minimum time between two writes of a status. `asks` says whether endpoints are called, `is_busy` whether Pods were
/// woken lately.
fn status_period(haste: StatusUrgency, asks: bool, is_busy: bool) -> Duration {
    match haste {
        StatusUrgency::Verdicts => VERDICTS_PERIOD,
        StatusUrgency::Conditions => STATUS_PERIOD,
        StatusUrgency::Counts if asks => COUNTS_PERIOD,
        StatusUrgency::Counts if is_busy => BUSY_PERIOD,
        StatusUrgency::Counts => STATUS_PERIOD,
    }
}

/// The owners that can't be read, each as a clause of a sentence. Owners without a number of replicas are left out,
/// because the tally contains them.
fn describe_unreadable_owners(unread: &[OwnerReadError]) -> Vec<String> {
    let failed = unread
        .iter()
        .filter(|e| matches!(e, OwnerReadError::Failed { .. }));
    failed.map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
