//! Calls the endpoints of webhook rules on the leader: asks about waiting Pods, polls tasks, and stores the verdicts
//! and tasks in the rule's status, because a new leader needs them. Admission never waits for a call; it reads the
//! verdicts in the status.

mod address;
mod bounded;
mod call_permits;
mod endpoint_caller;
mod http;
mod ignored_counts;
mod ignored_events;
mod protocol_calls;
mod trust;
mod waiting_operations;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use kube::api::Api;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::call_permits::CallPermit;
use self::waiting_operations::{WaitingOperations, WaitingSnapshot};
use super::api_calls::call_api;
use super::{ControllerContext, Queues, RuleObjectName, headroom};
use crate::api::endpoint_protocol;
use crate::api::podtransitionrule::{PodTransitionRule, RuleState};
use crate::api::size_limits::{self, MAX_STATES_BYTES};
use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::request_path;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::lifecycle::Stage;
use crate::domain::rules::webhook::{CallAction, CallState, Candidate};
use crate::domain::rules::{CompiledRule, CompiledWebhook, RuleSet};
use crate::ledger::store::{RuleKey, Uid};

pub use address::{AddressPolicy, ApiServer};
pub use endpoint_caller::EndpointCaller;
use endpoint_caller::NO_PERMIT_REASON;
pub use ignored_counts::RuleLabels;
use protocol_calls::ParametersError;

/// Minimum time until the next run. Everything that is due now has been done already.
const MIN_REQUEUE_PAUSE: Duration = Duration::from_millis(20);

/// The bytes that a rule takes in `ruleStates` besides its name and its [`CallState::stored_status`].
const STATE_BYTES: usize = 40;

/// The reason of a call that failed by a panic.
const PANICKED: &str = "the call failed inside the server; see its log";

/// Pause after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(15);

/// The states of the webhook rules of one rule object, by rule ID.
pub type CallStates = BTreeMap<String, CallState>;

/// The part of the rule controller that calls endpoints.
pub struct RuleEndpoints {
    context: Arc<ControllerContext>,
    queues: Arc<Queues>,
    /// By UID of the rule object.
    call_states: Mutex<HashMap<Uid, CallStates>>,
    stop: CancellationToken,
}

/// A call to be made.
struct EndpointCall {
    key: RuleKey,
    rule: CompiledRule,
    webhook: Arc<CompiledWebhook>,
    action: CallAction,
}

impl RuleEndpoints {
    /// Creates the state of one term. The calls end at `stop`.
    pub fn new(
        context: Arc<ControllerContext>,
        queues: Arc<Queues>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(RuleEndpoints {
            context,
            queues,
            call_states: Mutex::default(),
            stop,
        })
    }

    /// Starts the calls that are due for a rule object. Returns the time until the next run, if necessary.
    pub async fn start_due_calls(
        self: &Arc<Self>,
        key: &RuleKey,
    ) -> Result<Option<Duration>, ReconcileOutcome> {
        if !self.has_call_states(key) {
            self.restore_call_states(key).await?;
        }
        let now = (self.context.now)();
        let (calls, due) = self.plan_calls(key, now).await;
        for call in calls {
            tokio::spawn(Arc::clone(self).run_call(call));
        }
        Ok(due.map(|due| {
            let pause = Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO);
            pause.max(MIN_REQUEUE_PAUSE)
        }))
    }

    /// Calls `f` with the states of a rule object's webhook rules; `None` if they are not known yet.
    pub fn with_call_states<R>(&self, uid: &Uid, f: impl FnOnce(Option<&CallStates>) -> R) -> R {
        f(self.call_states.lock().get(uid))
    }

    /// Forgets a rule object that is gone. The results of its running calls are ignored.
    pub fn forget_rule(&self, uid: &Uid) {
        self.call_states.lock().remove(uid);
        self.context.endpoint_caller.ignored.forget_rule(uid);
    }

    fn has_call_states(&self, key: &RuleKey) -> bool {
        self.call_states.lock().contains_key(&key.uid)
    }

    /// Restores the states that an earlier leader has stored. The rule object is read live, because that leader may
    /// have written a moment ago. Objects without webhook rules are not read.
    async fn restore_call_states(&self, key: &RuleKey) -> Result<(), ReconcileOutcome> {
        let has_webhooks = {
            let state = self.context.index.read_state();
            let entry = state.rule(&key.namespace, &key.name);
            entry.is_some_and(|e| webhooks_of_entry(e).next().is_some())
        };
        let read = async {
            let rules: Api<PodTransitionRule> =
                request_path::namespaced_api(&self.context.client, &key.namespace)?;
            rules.get_opt(&key.name).await
        };
        let live = match has_webhooks {
            true => call_api("read a rule", read).await?,
            false => None,
        };
        let now = (self.context.now)();
        let live = live.filter(|l| l.metadata.uid.as_deref() == Some(&*key.uid));
        let generation = live.as_ref().and_then(|l| l.metadata.generation);
        let rules = live.as_ref().map(RuleSet::compile);
        let states = live.and_then(|l| l.status).map(|s| s.rule_states);
        let states = states.unwrap_or_default();
        let restored = rules.iter().flat_map(webhook_rules).map(|(rule, webhook)| {
            let state = states.iter().find(|state| state.name == rule.id);
            let status = state.and_then(|state| state.webhook_status.as_ref());
            let call_state = CallState::from_status(status, webhook, generation.unwrap_or(0), now);
            (rule.id.clone(), call_state)
        });
        let restored = restored.collect();
        self.call_states.lock().insert(key.uid.clone(), restored);
        Ok(())
    }

    /// Calls `f` with a rule object and the states of its rules. Returns `None` if the object is gone, if another
    /// object has its name, or if the states have been forgotten.
    fn with_entry_states<R>(
        &self,
        key: &RuleKey,
        f: impl FnOnce(&IndexState, &RuleEntry, &mut CallStates) -> R,
    ) -> Option<R> {
        let state = self.context.index.read_state();
        let entry = state.rule(&key.namespace, &key.name);
        let entry = entry.filter(|entry| entry.snapshot.rules.uid == key.uid)?;
        let mut call_states = self.call_states.lock();
        let call_states = call_states.get_mut(&key.uid)?;
        Some(f(&state, entry, call_states))
    }

    async fn plan_calls(
        &self,
        key: &RuleKey,
        now: Timestamp,
    ) -> (Vec<EndpointCall>, Option<Timestamp>) {
        let rules = self.with_entry_states(key, |_, entry, call_states| {
            call_states.retain(|id, _| webhooks_of_entry(entry).any(|(rule, _)| rule.id == *id));
            let rules =
                webhooks_of_entry(entry).map(|(rule, webhook)| (rule.clone(), Arc::clone(webhook)));
            rules.collect::<Vec<_>>()
        });
        let rules = rules.unwrap_or_default();
        let share = MAX_STATES_BYTES / rules.len().max(1);
        let (mut calls, mut due) = (Vec::new(), None);
        for (rule, webhook) in &rules {
            let Some((waiting, generation)) =
                self.find_waiting_operations(key, rule, webhook, now).await
            else {
                continue;
            };
            let plan = self.with_entry_states(key, |_, entry, call_states| {
                let call_state = call_states.get_mut(&rule.id)?;
                let is_same = entry.snapshot.rules.generation == generation
                    && call_state.generation() == generation;
                // A change of the object in the meantime enqueues it again.
                is_same.then(|| {
                    call_state.set_share(
                        share.saturating_sub(size_limits::json_bytes(&rule.id) + STATE_BYTES),
                    );
                    let plan = call_state.plan_calls(
                        webhook,
                        now,
                        &waiting.subject_operations,
                        &waiting.askable,
                    );
                    (plan, call_state.take_ignored())
                })
            });
            let Some((plan, ignored)) = plan.flatten() else {
                continue;
            };
            ignored_events::report_ignored(&self.context, key, rule, &ignored);
            calls.extend(plan.actions.into_iter().map(|action| EndpointCall {
                key: key.clone(),
                rule: rule.clone(),
                webhook: Arc::clone(webhook),
                action,
            }));
            due = due.into_iter().chain(plan.due).min();
        }
        (calls, due)
    }

    /// The operations that wait for a rule, and the generation of the rule object that they were found by. Returns
    /// `None` if the cache is behind the live read, or if the rule has changed.
    async fn find_waiting_operations(
        &self,
        key: &RuleKey,
        rule: &CompiledRule,
        webhook: &CompiledWebhook,
        now: Timestamp,
    ) -> Option<(WaitingOperations, i64)> {
        let snapshot = self.with_entry_states(key, |state, entry, call_states| {
            let generation = entry.snapshot.rules.generation;
            let mut present_webhooks = webhooks_of_entry(entry);
            let is_same = |r: &CompiledRule, w: &CompiledWebhook| {
                r.id == rule.id && w.fingerprint == webhook.fingerprint
            };
            if !present_webhooks.any(|(r, w)| is_same(r, w)) {
                return None;
            }
            let call_state = call_states
                .entry(rule.id.clone())
                .or_insert_with(|| CallState::from_status(None, webhook, generation, now));
            if call_state.generation() > generation {
                return None; // the cache is behind the live read
            }
            call_state.follow_generation(webhook, generation, now);
            Some((
                WaitingSnapshot::from_entry(state, entry, rule, call_states),
                generation,
            ))
        });
        let (snapshot, generation) = snapshot.flatten()?;
        let allowed = |name: &str| {
            let state = self.context.index.read_state();
            let entry = state.rule(&key.namespace, name)?;
            headroom::allowed_disruptions(&self.context.ledgers, &state, entry)
        };
        Some((snapshot.find_askable(allowed).await, generation))
    }

    /// Makes a call. A panic while the result is applied may leave the states of the object's rules inconsistent.
    /// Therefore they are forgotten then, and read from the status again.
    async fn run_call(self: Arc<Self>, call: EndpointCall) {
        let key = call.key.clone();
        let call_run = self.stop.run_until_cancelled(self.perform_call(call));
        if AssertUnwindSafe(call_run).catch_unwind().await.is_err() {
            self.forget_rule(&key.uid);
            let name: RuleObjectName = (key.namespace, key.name);
            self.queues.rules.add_after(name, PANIC_PAUSE);
        }
    }

    async fn perform_call(&self, call: EndpointCall) {
        let permit = self
            .context
            .endpoint_caller
            .acquire_permit(&call.permit_key())
            .await;
        match &call.action {
            CallAction::Ask(operations) => self.perform_ask(&call, permit, operations).await,
            CallAction::Poll(id) => self.perform_poll(&call, permit, id).await,
        }
    }

    /// Asks about the operations that are still askable, because much may have changed while the call waited for its
    /// permit.
    async fn perform_ask(
        &self,
        call: &EndpointCall,
        permit: Option<CallPermit>,
        operations: &[Candidate],
    ) {
        let Some(permit) = permit else {
            return self.apply_call_result(call, |call_state, now| {
                call_state.cancel_call();
                call_state.postpone(operations, NO_PERMIT_REASON, now);
            });
        };
        let now = (self.context.now)();
        let waiting = self
            .find_waiting_operations(&call.key, &call.rule, &call.webhook, now)
            .await;
        let askable: BTreeSet<_> = waiting.into_iter().flat_map(|(w, _)| w.askable).collect();
        let operations = operations.iter().filter(|c| askable.contains(*c));
        let operations: Vec<_> = operations.cloned().collect();
        let protocol_calls::AskOutcome {
            failed,
            asked,
            answer,
        } = self.ask_catching_panic(call, &permit, &operations).await;
        drop(permit);
        if let Some(Err(error)) = &answer {
            self.warn_endpoint_failed(call, error);
        }
        let jitter = rand::random::<f64>();
        self.apply_call_result(call, |call_state, now| {
            for (error, operations) in &failed {
                match error {
                    ParametersError::Unread(reason) => call_state.postpone(operations, reason, now),
                    ParametersError::Parameter(reason) => {
                        call_state.record_unaskable(operations, reason, now);
                    }
                }
            }
            match answer {
                Some(answer) => {
                    if let Ok(endpoint_answer) = &answer {
                        call_state.set_warning(false, endpoint_answer.warning.as_deref());
                    }
                    let answer = answer.map(|endpoint_answer| endpoint_answer.answer);
                    call_state.record_answer(&call.webhook, &asked, answer, now, jitter);
                }
                None => call_state.cancel_call(),
            }
        });
    }

    /// Calls the endpoint. A panic counts as a failed call; otherwise the Pods would wait forever.
    async fn ask_catching_panic(
        &self,
        call: &EndpointCall,
        permit: &CallPermit,
        operations: &[Candidate],
    ) -> protocol_calls::AskOutcome {
        let outcome = protocol_calls::ask_endpoint(&self.context, call, permit, operations);
        let outcome = AssertUnwindSafe(outcome).catch_unwind().await;
        outcome.unwrap_or_else(|_| protocol_calls::AskOutcome {
            asked: operations.to_vec(),
            answer: Some(Err(PANICKED.to_owned())),
            ..protocol_calls::AskOutcome::default()
        })
    }

    /// Polls a task, unless the task ended while the call waited for its permit.
    async fn perform_poll(&self, call: &EndpointCall, permit: Option<CallPermit>, id: &str) {
        let is_due = self.with_entry_states(&call.key, |_, _, call_states| {
            let call_state = call_states.get(&call.rule.id);
            call_state
                .is_some_and(|m| m.has_fingerprint(&call.webhook.fingerprint) && m.is_polling(id))
        });
        let Some(permit) = permit.filter(|_| is_due == Some(true)) else {
            return self.apply_call_result(call, |call_state, now| {
                call_state.cancel_poll(&call.webhook, id, now)
            });
        };
        let polled = protocol_calls::poll_task(&self.context, call, &permit, id);
        let polled = AssertUnwindSafe(polled).catch_unwind().await;
        let outcome = polled.unwrap_or_else(|_| Err(PANICKED.to_owned()));
        drop(permit);
        self.apply_call_result(call, |call_state, now| {
            if let Ok(endpoint_answer) = &outcome {
                call_state.set_warning(true, endpoint_answer.warning.as_deref());
            }
            let outcome = outcome.map(|endpoint_answer| endpoint_answer.answer);
            call_state.record_poll(&call.webhook, id, outcome, now);
        });
    }

    /// Applies the result of a call, unless the rule is gone or has changed in the meantime.
    fn apply_call_result(
        &self,
        call: &EndpointCall,
        apply: impl FnOnce(&mut CallState, Timestamp),
    ) {
        let now = (self.context.now)();
        let ignored = {
            let mut call_states = self.call_states.lock();
            let call_state = call_states
                .get_mut(&call.key.uid)
                .and_then(|m| m.get_mut(&call.rule.id));
            match call_state.filter(|m| m.has_fingerprint(&call.webhook.fingerprint)) {
                Some(call_state) => {
                    apply(call_state, now);
                    call_state.take_ignored()
                }
                None => return,
            }
        };
        ignored_events::report_ignored(&self.context, &call.key, &call.rule, &ignored);
        let name: RuleObjectName = (call.key.namespace.clone(), call.key.name.clone());
        self.queues.rules.add(name);
    }

    fn warn_endpoint_failed(&self, call: &EndpointCall, error: &str) {
        let (namespace, object, rule) = (&call.key.namespace, &call.key.name, &call.rule.id);
        warn!(%namespace, %object, %rule, why = error, "a call to the endpoint of a rule failed; it will be repeated with growing pauses");
    }
}

/// The stored states of the webhook rules of an object; `stored` if their states are not known yet.
pub fn call_rule_states(call_states: Option<&CallStates>, stored: &[RuleState]) -> Vec<RuleState> {
    let Some(call_states) = call_states else {
        return stored.to_vec();
    };
    let states = call_states.iter().filter_map(|(name, call_state)| {
        Some(RuleState {
            name: name.clone(),
            webhook_status: Some(call_state.stored_status()?),
        })
    });
    states.collect()
}

/// Whether `states` contain verdicts or tasks that `stored` does not. Removed verdicts and tasks do not count, because
/// their removal is not urgent.
pub fn has_unstored_states(states: &[RuleState], stored: &[RuleState]) -> bool {
    states.iter().any(|state| {
        let stored_state = stored.iter().find(|s| s.name == state.name);
        let stored_state = stored_state.and_then(|s| s.webhook_status.as_ref());
        state.webhook_status.as_ref().is_some_and(|new| {
            stored_state.is_none_or(|stored_state| {
                let passed = new.passed.iter().any(|p| !stored_state.passed.contains(p));
                let has = |id: &str| stored_state.task_states.iter().any(|t| t.task_id == id);
                passed
                    || new.generation != stored_state.generation
                    || new.rule_hash != stored_state.rule_hash
                    || new.task_states.iter().any(|t| !has(&t.task_id))
            })
        })
    })
}

/// Why an operation waits for a webhook rule; `None` if it has passed, or if the state is not known.
pub fn endpoint_wait_reason(
    call_states: Option<&CallStates>,
    rule: &str,
    candidate: &Candidate,
) -> Option<String> {
    call_states?.get(rule)?.wait_reason(candidate)
}

fn webhooks_of_entry(
    entry: &RuleEntry,
) -> impl Iterator<Item = (&CompiledRule, &Arc<CompiledWebhook>)> {
    webhook_rules(&entry.snapshot.rules)
}

fn webhook_rules(rules: &RuleSet) -> impl Iterator<Item = (&CompiledRule, &Arc<CompiledWebhook>)> {
    [Stage::PreCheck, Stage::PostCheck]
        .into_iter()
        .flat_map(|stage| rules.webhook_rules(stage))
}

/// The ID of a call, for the logs of both sides.
fn trace_id() -> String {
    // A UUID of version 4, as Kuperator sends.
    let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
    id.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_new_verdicts_and_tasks_are_urgent() {
        let states = |webhook: Value| -> Vec<RuleState> {
            serde_json::from_value(json!([{ "name": "ask", "webhookStatus": webhook }])).unwrap()
        };
        let passed = |names: &[&str]| {
            let pods: Vec<_> = names.iter().map(|n| json!({ "name": n })).collect();
            states(json!({ "generation": 1, "passed": pods }))
        };
        assert!(has_unstored_states(&passed(&["a"]), &[]));
        assert!(has_unstored_states(&passed(&["a", "b"]), &passed(&["a"])));
        assert!(!has_unstored_states(&passed(&["a"]), &passed(&["a", "b"])));
        assert!(!has_unstored_states(&[], &passed(&["a"])));
        let task = states(json!({ "generation": 1, "taskStates": [{ "taskId": "t" }] }));
        assert!(has_unstored_states(&task, &passed(&[])));
        let with_message =
            states(json!({ "generation": 1, "taskStates": [{ "taskId": "t", "message": "m" }] }));
        assert!(!has_unstored_states(&with_message, &task));
    }

    #[test]
    fn trace_ids_are_uuids_of_version_4() {
        let id = trace_id();
        let lengths: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, trace_id());
    }
}
