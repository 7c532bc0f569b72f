//! PodTransitionRules: releases claims on evidence, wakes waiting Pods when the budget has room, keeps the status.

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
use super::{Context, Queues, RuleName, headroom};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::owner_sizes::OwnerReadError;
use crate::cluster::request_path;
use crate::cluster::workqueue::ReconcileOutcome;
use crate::cluster::write_backoff::WriteBackoff;
use crate::domain::lifecycle::Stage;
use crate::domain::rules::budget::BudgetGauges;
use crate::domain::rules::conditions::FIELD_DROPPED_MESSAGE;
use crate::ledger::store::{RuleKey, Uid};

/// The status of one object is written at most this often.
const STATUS_PERIOD: Duration = Duration::from_millis(500);

/// Counts are written at most this often while waiting Pods go on one after the other, and for so long after that.
const BUSY_PERIOD: Duration = Duration::from_secs(2);

/// Pods that wait for one object are woken at most this often: those for whom there is room by then share a write of the
/// ledger.
const WAKE_PERIOD: Duration = Duration::from_millis(150);

/// Counts are written at most this often where endpoints are asked: the next verdict takes them along.
const COUNTS_PERIOD: Duration = Duration::from_secs(5);

/// The same where Pods wait for what an endpoint has answered.
const VERDICTS_PERIOD: Duration = Duration::from_millis(200);

/// Owners that no watch tells of are read again at a look when their reading is this old.
const OWNERS_PERIOD: Duration = Duration::from_secs(5);
/// A look does not wait longer for such a read.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Stands for the generation of an object that was never looked at.
const NO_GENERATION: i64 = -1;

/// The controller.
pub struct Rules {
    context: Arc<Context>,
    queues: Arc<Queues>,
    turns: Arc<WaitQueue>,
    seen: Mutex<HashMap<RuleName, LastReconcile>>,
    deadlines: claims::ClaimDeadlines,
    doubts: version_checks::VersionChecks,
    facts: status_inputs::StatusInputCache,
    storing: storage_probe::StorageProbe,
    /// Statuses that could not be written the last time.
    unwritten: WriteBackoff<RuleName>,
    pace: rate_limit::StatusRateLimiter,
    webhooks: Arc<RuleEndpoints>,
    retries: retries::Retries,
}

/// What was there at the last look.
struct LastReconcile {
    uid: Uid,
    generation: i64,
    written: Option<Instant>,
    /// When Pods were last woken for which there was room, or are to be.
    woken: Option<Instant>,
    /// Whether the API server kept the conditions at the last write.
    keeps_conditions: bool,
    /// What the Pods wait for, if they are too many to be listed, and how long that is good enough.
    counted: Option<(Instant, Arc<WaitReasonCounts>)>,
}

impl Rules {
    /// A controller; its calls to endpoints end at `stop`.
    pub fn new(
        context: &Arc<Context>,
        queues: &Arc<Queues>,
        turns: &Arc<WaitQueue>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Rules {
            webhooks: RuleEndpoints::new(Arc::clone(context), Arc::clone(queues), stop.clone()),
            context: Arc::clone(context),
            queues: Arc::clone(queues),
            turns: Arc::clone(turns),
            seen: Mutex::default(),
            deadlines: claims::ClaimDeadlines::default(),
            doubts: version_checks::VersionChecks::default(),
            retries: retries::Retries::default(),
            facts: status_inputs::StatusInputCache::default(),
            storing: storage_probe::StorageProbe::default(),
            unwritten: WriteBackoff::default(),
            pace: rate_limit::StatusRateLimiter::default(),
        })
    }

    /// What is to be done at the start of a lead besides the looks at all objects.
    pub async fn begin_term(&self, stop: &CancellationToken) {
        self.retries.begin_term(&self.context, stop).await;
    }

    /// One look at a rule object.
    pub async fn reconcile(&self, name: RuleName) -> ReconcileOutcome {
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
                .turns
                .latest_round(&name.0, Requester::Rule(name.1.clone())),
            false => RoundLookup::Fresh(Arc::default()),
        };
        let (round, is_known) = match known {
            RoundLookup::Fresh(round) | RoundLookup::Stale(round) => (round, true),
            RoundLookup::Pending => (Arc::default(), false), // the round brings the object back here
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
        // Nothing else may tell that the owner can be read again.
        let owners = (!unread.is_empty()).then_some(OWNERS_PERIOD);
        facts.unreadable = describe_unreadable_owners(&unread);
        facts.mended = self.doubts.ledger_repair(&key.uid);
        facts.storing = storage_probe::storage_finding(&self.context, &key);
        let head = round.first_in_line(&key.uid).cloned();
        // The status names whose turn it is.
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

    /// Brings the numbers of owners up to date that no watch tells of. Admission reads them itself before it decides;
    /// here they are for the status and for who is woken. Returns the owners that can't be read, or that set no number.
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
    fn has_waiting(&self, name: &RuleName) -> bool {
        let state = self.context.index.read_state();
        let entry = state.rule(&name.0, &name.1);
        entry.is_some_and(|entry| entry.tally.pre_check_waiting().len() > 0)
    }

    /// Wakes waiting Pods: those that the budget has room for, those that pass PostCheck, and all of the namespace when
    /// the rules have changed. Returns whether an object that was seen before has changed.
    async fn wake_waiting_pods(
        &self,
        name: &RuleName,
        uid: &Uid,
        generation: i64,
        round: &Round,
    ) -> bool {
        let (changed, edited) = {
            let mut seen = self.seen.lock();
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

    /// How long Pods for which there is room are not woken yet.
    fn time_until_wake(&self, name: &RuleName) -> Duration {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        let Some(seen) = seen.get_mut(name) else {
            return Duration::ZERO;
        };
        let at = next_wake_at(seen.woken, now);
        seen.woken = Some(at);
        at - now
    }

    /// Those of these Pods that pass PostCheck. Each is looked at on its own: it is compared with all rules of the namespace.
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

    /// A rule object was edited or is gone. Owners that it held before may go on now: those that another object covers are
    /// woken by a look at that object.
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

    /// The object is gone or going: nobody waits for it any more, and a finalizer of Kuperator's is taken off.
    async fn clean_up_deleted_rule(&self, name: RuleName) -> ReconcileOutcome {
        let seen = self.seen.lock().remove(&name);
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

    fn rule_api(&self, name: &RuleName) -> kube::Result<Api<PodTransitionRule>> {
        request_path::namespaced_api(&self.context.client, &name.0)
    }

    async fn reconcile_status(
        &self,
        name: &RuleName,
        uid: &Uid,
        facts: &status::StatusInputs,
        head: Option<Uid>,
    ) -> ReconcileOutcome {
        // Before anything is compared: that takes time, too, where there is always more to write.
        if let Some(pause) = self.pace.time_until_allowed(&name.0, Instant::now()) {
            return ReconcileOutcome::After(pause);
        }
        let mut queue = status::WaitingPods {
            head,
            ..status::WaitingPods::default()
        };
        let (counted, recount) = self.count_wait_reasons(name, uid, facts, &mut queue).await;
        queue.counted = counted;
        let outcome = self.write_status(name, uid, facts, &mut queue).await;
        match recount {
            Some(pause) if outcome == ReconcileOutcome::Done => ReconcileOutcome::After(pause),
            _ => outcome,
        }
    }

    /// Looks at an object and what is known of its endpoints; `None` when another object has its name, or none.
    fn with_rule_entry<R>(
        &self,
        name: &RuleName,
        uid: &Uid,
        look: impl FnOnce(&IndexState, &RuleEntry, Option<&CallStates>) -> R,
    ) -> Option<R> {
        let state = self.context.index.read_state();
        let entry = state.rule(&name.0, &name.1);
        let entry = entry.filter(|entry| entry.snapshot.rules.uid == *uid)?;
        let look = |memories: Option<&CallStates>| look(&state, entry, memories);
        Some(self.webhooks.with_call_states(uid, look))
    }

    /// The gauges of an object. Who holds claims goes to the `queue`.
    fn collect_gauges(
        &self,
        state: &IndexState,
        entry: &RuleEntry,
        queue: &mut status::WaitingPods,
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
        name: &RuleName,
        uid: &Uid,
        facts: &status::StatusInputs,
        queue: &mut status::WaitingPods,
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
        if let Some(seen) = self.seen.lock().get_mut(name) {
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
        self.pace
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

    /// Nothing but the log and the metrics can tell what is wrong with a rule object whose conditions are dropped, too.
    fn report_dropped_conditions(&self, name: &RuleName, stored: &PodTransitionRule) {
        let status = stored.status.as_ref();
        let kept = status.is_some_and(|status| !status.conditions.is_empty()); // `Enforced` is always there
        let mut seen = self.seen.lock();
        let Some(seen) = seen.get_mut(name) else {
            return;
        };
        if std::mem::replace(&mut seen.keeps_conditions, kept) && !kept {
            warn!(namespace = %name.0, rule = %name.1, "the API server did not store status.conditions: {FIELD_DROPPED_MESSAGE}");
        }
    }
}

/// When Pods are woken for which there is room, if others were woken at `woken`, or are to be.
fn next_wake_at(woken: Option<Instant>, now: Instant) -> Instant {
    match woken {
        Some(at) if at > now => at, // they go with those
        Some(at) => now.max(at + WAKE_PERIOD),
        None => now,
    }
}

/// How long a status is not written again. `asks` says whether endpoints are asked, `is_busy` whether Pods were woken lately.
fn status_period(haste: StatusUrgency, asks: bool, is_busy: bool) -> Duration {
    match haste {
        StatusUrgency::Verdicts => VERDICTS_PERIOD,
        StatusUrgency::Conditions => STATUS_PERIOD,
        StatusUrgency::Counts if asks => COUNTS_PERIOD,
        StatusUrgency::Counts if is_busy => BUSY_PERIOD,
        StatusUrgency::Counts => STATUS_PERIOD,
    }
}

/// The owners that can't be read, each as a clause. The tally knows those that set no number.
fn describe_unreadable_owners(unread: &[OwnerReadError]) -> Vec<String> {
    let failed = unread
        .iter()
        .filter(|e| matches!(e, OwnerReadError::Failed { .. }));
    failed.map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
