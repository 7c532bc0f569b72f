//! The state of one webhook rule on the leader between two runs, and the calls that are due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::status_size::fit_status;
use super::{Candidate, CompiledWebhook, UNANSWERED_MESSAGE};
use crate::api::podtransitionrule::{TaskInfo, WebhookStatus};
use crate::api::size_limits::{self, MAX_STATES_BYTES};

/// Pods that begin to wait within this time share one call.
const BATCH_WINDOW: Duration = Duration::from_millis(300);

/// Largest number of operations of one rule that have passed or belong to a task, and still wait. The endpoint is asked
/// about further operations when some of these have ended. With long names or many webhook rules, the size of the
/// status limits them earlier.
const MAX_TRACKED_OPERATIONS: usize = 500;

/// Longest ID of a task that is stored in the status, in bytes as stored.
pub(super) const MAX_ID_BYTES: usize = 512;

/// Bytes of a task in the status, without its Pods and the endpoint's texts.
const TASK_OVERHEAD_BYTES: usize = MAX_ID_BYTES + 160;

/// Why an operation waits that the endpoint is not asked about, because the status is full.
const STATUS_FULL_MESSAGE: &str = "its endpoint is asked later, because the status of the object has no room: the \
    operations in it still wait, with an answer or for one";

/// Prefix of the message of a task whose last poll failed.
pub(super) const POLL_FAILED: &str = "Polling failed: ";

/// Time and number of ended tasks that are kept.
const HISTORY_RETENTION: Duration = Duration::from_secs(600);
const HISTORY_LENGTH: usize = 20;

/// Largest number of names in an entry of the history.
const MAX_HISTORY_NAMES: usize = 20;

/// State of one webhook rule on the leader. [`CallState::stored_status`] is the part that must survive a change of the
/// leader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallState {
    /// Generation of the rule object when this state was last updated.
    pub(super) generation: i64,
    /// [`CompiledWebhook::fingerprint`] of the rule that this state belongs to.
    fingerprint: String,
    pub(super) passed: BTreeSet<Candidate>,
    /// Tasks by ID.
    pub(super) tasks: BTreeMap<String, CheckTask>,
    /// Ended tasks, the oldest first.
    pub(super) history: Vec<TaskInfo>,
    pub(super) refused: BTreeMap<Candidate, RefusedOperation>,
    /// The operations in the present call. There is at most one call at a time.
    pub(super) asking: BTreeSet<Candidate>,
    gathering_since: Option<Timestamp>,
    /// Number of failed calls in a row.
    pub(super) failures: u32,
    /// Why the last call failed. Empty if it was answered. Failed polls are recorded in their tasks.
    pub(super) last_failure_reason: String,
    /// Whether operations have passed by `failurePolicy: Ignore` since the endpoint began to fail.
    pub(super) unanswered: bool,
    /// The warning about the certificates of an endpoint that answers: of calls, and of polls.
    pub(super) warning: Option<String>,
    pub(super) poll_warning: Option<String>,
    /// Operations that passed by `failurePolicy: Ignore` and are not reported yet.
    pub(super) ignored: Vec<IgnoredPass>,
    /// Set while the endpoint is not called because its calls keep failing.
    pub(super) backoff: Option<EndpointBackoff>,
    /// Bytes that this state may take in the status of the object.
    share: usize,
    /// Whether the endpoint is not asked about some operations because the status is full.
    is_status_full: bool,
}

/// A task: a check of the endpoint that takes long.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckTask {
    pub begin: Timestamp,
    /// When the task changed last.
    pub last: Timestamp,
    pub message: String,
    pub processing: BTreeSet<Candidate>,
    pub approved: BTreeSet<String>,
    /// When the next poll is due.
    pub next: Timestamp,
    /// Whether a poll is in progress.
    pub polling: bool,
    /// Whether the last poll failed.
    pub failed: bool,
}

/// An operation that the endpoint has refused for now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RefusedOperation {
    pub reason: String,
    /// When the endpoint is asked again.
    pub ask_again_at: Timestamp,
}

/// Why the endpoint is not called for a while.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndpointBackoff {
    pub reason: String,
    pub until: Timestamp,
}

/// Operations that passed by `failurePolicy: Ignore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredPass {
    /// The operations.
    pub operations: Vec<Candidate>,
    /// Why the endpoint did not answer.
    pub reason: String,
}

/// A call to an endpoint that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAction {
    /// Ask about these operations, and give the result to [`CallState::record_answer`].
    Ask(Vec<Candidate>),
    /// Poll this task, and give the result to [`CallState::record_poll`].
    Poll(String),
}

/// The calls that are due now, and the time of the next plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallPlan {
    /// Calls that are due now.
    pub actions: Vec<CallAction>,
    /// The latest time of the next plan. `None` if only a change makes a new plan necessary.
    pub due: Option<Timestamp>,
}

impl CallState {
    /// Restores the state from a status, for `rule` at this generation of its object. Answers and tasks are void if
    /// they were given under another rule, or to a server that did not bind them to operations. Void tasks go to the
    /// history.
    pub fn from_status(
        status: Option<&WebhookStatus>,
        rule: &CompiledWebhook,
        generation: i64,
        now: Timestamp,
    ) -> CallState {
        let mut state = CallState {
            generation,
            fingerprint: rule.fingerprint.clone(),
            share: MAX_STATES_BYTES,
            ..CallState::default()
        };
        let Some(status) = status else {
            return state;
        };
        state.history.clone_from(&status.history);
        if !status.is_current_for(&rule.fingerprint, generation) {
            for task in &status.task_states {
                state.add_to_history(TaskInfo {
                    message: "Ended: the rule has changed.".to_owned(),
                    pods: Vec::new(),
                    ..task.clone()
                });
            }
            state.trim_history(now);
            return state;
        }
        // A failed poll is in the message of its task.
        if !status.failing.starts_with(POLL_FAILED) {
            state.last_failure_reason.clone_from(&status.failing);
        }
        state.unanswered = status.passed_unanswered;
        state.warning = Some(status.warning.clone()).filter(|w| !w.is_empty());
        state.passed.extend(status.passed.iter().cloned());
        for task in status.task_states.iter().filter(|t| !t.pods.is_empty()) {
            let begin = task.begin_time.as_ref().map_or(now, |t| t.0);
            let restored = CheckTask {
                begin,
                last: task.last_time.as_ref().map_or(begin, |t| t.0),
                message: task.message.clone(),
                processing: task.pods.iter().cloned().collect(),
                approved: task.approved.iter().cloned().collect(),
                next: now,
                polling: false,
                failed: task.message.starts_with(POLL_FAILED),
            };
            state.tasks.insert(task.task_id.clone(), restored);
        }
        state
    }

    /// Why the last call failed, or the last poll of a task. `None` if they were answered, or before the first call.
    pub fn last_failure(&self) -> Option<&str> {
        let mut polls = self.tasks.values().filter(|task| task.failed);
        let poll = polls.next().map(|task| task.message.as_str());
        Some(self.last_failure_reason.as_str())
            .filter(|reason| !reason.is_empty())
            .or(poll)
    }

    /// Takes the operations that have passed by `failurePolicy: Ignore` since the last call of this function.
    pub fn take_ignored(&mut self) -> Vec<IgnoredPass> {
        std::mem::take(&mut self.ignored)
    }

    /// Generation of the rule object when this state was last updated.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Whether this state belongs to a rule with this fingerprint.
    pub fn has_fingerprint(&self, fingerprint: &str) -> bool {
        self.fingerprint == fingerprint
    }

    /// Updates the generation of the object. The state stays, unless the rule itself has changed.
    pub fn follow_generation(&mut self, rule: &CompiledWebhook, generation: i64, now: Timestamp) {
        if self.has_fingerprint(&rule.fingerprint) {
            self.generation = generation;
        } else {
            *self = CallState::from_status(self.stored_status().as_ref(), rule, generation, now);
        }
    }

    /// Sets the number of bytes that this state may take in the status of the object.
    pub fn set_share(&mut self, bytes: usize) {
        self.share = bytes;
    }

    /// Plans the calls at `now`. `waiting` are all operations that wait in the rule's stage and to which the rule
    /// applies. All other operations are forgotten. `askable` are those operations of `waiting` that the endpoint may
    /// be asked about now, the most urgent first. The plan counts its calls as made.
    pub fn plan_calls(
        &mut self,
        rule: &CompiledWebhook,
        now: Timestamp,
        waiting: &BTreeSet<Candidate>,
        askable: &[Candidate],
    ) -> CallPlan {
        self.forget_departed(waiting, now);
        if !self.unanswered && waiting.is_empty() {
            self.last_failure_reason.clear(); // no operation waits for the endpoint any more
        }
        self.end_overdue_tasks(rule, now);
        let mut plan = CallPlan::default();
        for (id, task) in &mut self.tasks {
            if !task.polling && task.next <= now {
                task.polling = true;
                plan.actions.push(CallAction::Poll(id.clone()));
            }
        }
        let mut fresh = self.operations_to_ask(askable, now);
        let askable_count = fresh.len();
        fresh.truncate(self.count_fitting(&fresh));
        fresh.sort();
        self.is_status_full = fresh.len() < askable_count;
        if fresh.is_empty() {
            self.gathering_since = None;
        } else if self.asking.is_empty() {
            let since = *self.gathering_since.get_or_insert(now);
            if add_pause(since, BATCH_WINDOW) <= now && !self.is_backing_off(now) {
                self.gathering_since = None;
                self.asking = fresh.iter().cloned().collect();
                plan.actions.push(CallAction::Ask(fresh));
            }
        }
        plan.due = self.next_call_at(rule, now, askable);
        plan
    }

    /// The operations of `askable` that the endpoint should be asked about now. New operations alternate with refused
    /// ones, of which the one that has waited longest comes first. Thus the endpoint is asked about each operation,
    /// however many wait.
    fn operations_to_ask(&self, askable: &[Candidate], now: Timestamp) -> Vec<Candidate> {
        let unanswered = askable
            .iter()
            .filter(|c| !self.is_pending(c) && !self.passed.contains(c));
        let (mut new, mut refused) = (Vec::new(), Vec::new());
        for candidate in unanswered {
            match self.refused.get(candidate) {
                None => new.push(candidate),
                Some(refusal) if refusal.ask_again_at <= now => {
                    refused.push((refusal.ask_again_at, candidate))
                }
                Some(_) => {}
            }
        }
        refused.sort_by_key(|(ask_again_at, _)| *ask_again_at);
        let refused = refused.into_iter().map(|(_, candidate)| candidate);
        let ordered = (refused.enumerate().map(|(index, c)| (2 * index, c))).chain(
            new.into_iter()
                .enumerate()
                .map(|(index, c)| (2 * index + 1, c)),
        );
        let mut ordered: Vec<_> = ordered.collect();
        ordered.sort_by_key(|(index, _)| *index);
        ordered.into_iter().map(|(_, c)| c.clone()).collect()
    }

    fn is_backing_off(&self, now: Timestamp) -> bool {
        self.backoff
            .as_ref()
            .is_some_and(|backoff| backoff.until > now)
    }

    /// The number of these operations that fit into the status, whatever the endpoint answers. A quarter of the space
    /// is kept free for texts.
    fn count_fitting(&self, fresh: &[Candidate]) -> usize {
        let processing = self.tasks.values().flat_map(|t| &t.processing);
        let tracked = self.passed.len() + processing.clone().count();
        let tasks = self.tasks.len() + 1; // the answer may begin another task
        let used_bytes = processing
            .chain(&self.passed)
            .map(operation_bytes)
            .sum::<usize>()
            + tasks * TASK_OVERHEAD_BYTES;
        let mut free_bytes = (self.share / 4 * 3).saturating_sub(used_bytes);
        let fits = |candidate: &&Candidate| match free_bytes.checked_sub(operation_bytes(candidate))
        {
            Some(remaining) => {
                free_bytes = remaining;
                true
            }
            None => false,
        };
        let countable = fresh
            .iter()
            .take(MAX_TRACKED_OPERATIONS.saturating_sub(tracked));
        countable.take_while(fits).count()
    }

    fn next_call_at(
        &self,
        rule: &CompiledWebhook,
        now: Timestamp,
        askable: &[Candidate],
    ) -> Option<Timestamp> {
        let tasks = self.tasks.values().filter(|t| !t.polling);
        let tasks = tasks.map(|t| match &rule.poll {
            Some(poll) => t.next.min(add_pause(t.begin, poll.timeout)),
            None => t.next,
        });
        let refused = askable
            .iter()
            .filter_map(|c| self.refused.get(c).map(|r| r.ask_again_at));
        let refused = refused.filter(|ask_again_at| *ask_again_at > now && self.asking.is_empty());
        let gathered = self
            .gathering_since
            .map(|since| add_pause(since, BATCH_WINDOW));
        let backoff_end = self.backoff.as_ref().map(|backoff_end| backoff_end.until);
        let calls = refused.chain(gathered);
        let calls = calls.map(|time| backoff_end.map_or(time, |backoff_end| time.max(backoff_end)));
        tasks.chain(calls).min()
    }

    /// Whether a call or a task includes this operation.
    pub fn is_pending(&self, candidate: &Candidate) -> bool {
        self.asking.contains(candidate)
            || self
                .tasks
                .values()
                .any(|t| t.processing.contains(candidate))
    }

    /// Whether a poll of this task is planned or in progress.
    pub fn is_polling(&self, id: &str) -> bool {
        self.tasks.get(id).is_some_and(|task| task.polling)
    }

    /// Whether the endpoint has let this operation pass.
    pub fn has_passed(&self, candidate: &Candidate) -> bool {
        self.passed.contains(candidate)
    }

    /// Whether the endpoint has refused this operation. Stays true while the endpoint is asked again.
    pub fn is_refused(&self, candidate: &Candidate) -> bool {
        self.refused.contains_key(candidate)
    }

    /// Why an operation waits. `None` if it has passed.
    pub fn wait_reason(&self, candidate: &Candidate) -> Option<String> {
        if self.passed.contains(candidate) {
            return None;
        }
        let task = self
            .tasks
            .iter()
            .find(|(_, t)| t.processing.contains(candidate));
        if let Some((id, task)) = task {
            return Some(match task.message.as_str() {
                "" => format!("Polling task {id} initialized"),
                message => format!("Polling task {id}: {message}"),
            });
        }
        let refusal = self.refused.get(candidate).map(|r| r.reason.clone());
        Some(refusal.unwrap_or_else(|| self.unasked_reason(candidate)))
    }

    /// Why an operation waits that the endpoint has not answered about.
    fn unasked_reason(&self, candidate: &Candidate) -> String {
        if self.asking.contains(candidate) {
            return UNANSWERED_MESSAGE.to_owned();
        }
        match &self.backoff {
            Some(backoff) => format!(
                "its endpoint is asked later, since the last {} calls failed: {}",
                self.failures, backoff.reason
            ),
            None if self.is_status_full => STATUS_FULL_MESSAGE.to_owned(),
            None => UNANSWERED_MESSAGE.to_owned(),
        }
    }

    /// The state as it is stored. `None` if there is nothing to store. The lists are sorted, so that equal states give
    /// equal texts. The size never exceeds the share.
    pub fn stored_status(&self) -> Option<WebhookStatus> {
        let is_quiet = self.passed.is_empty() && self.tasks.is_empty() && self.history.is_empty();
        let warning = self.warning.iter().chain(&self.poll_warning).next();
        if is_quiet && self.last_failure().is_none() && warning.is_none() {
            return None;
        }
        let status = WebhookStatus {
            generation: self.generation,
            rule_hash: self.fingerprint.clone(),
            passed: self.passed.iter().cloned().collect(),
            task_states: self.tasks.iter().map(|(id, t)| t.task_info(id)).collect(),
            history: self.history.clone(),
            failing: self.last_failure().unwrap_or_default().to_owned(),
            passed_unanswered: self.unanswered,
            warning: warning.cloned().unwrap_or_default(),
            omitted: String::new(),
        };
        Some(fit_status(status, self.share))
    }

    /// Forgets operations that do not wait any more.
    fn forget_departed(&mut self, waiting: &BTreeSet<Candidate>, now: Timestamp) {
        self.passed.retain(|c| waiting.contains(c));
        self.refused.retain(|c, _| waiting.contains(c));
        let mut empty_tasks = Vec::new();
        for (id, task) in &mut self.tasks {
            task.processing.retain(|c| waiting.contains(c));
            if task.processing.is_empty() {
                empty_tasks.push(id.clone());
            }
        }
        for id in empty_tasks {
            self.end_task(&id, "Ended: none of its Pods waits any more.", now);
        }
    }

    /// Moves a task to the history.
    pub(super) fn end_task(&mut self, id: &str, message: &str, now: Timestamp) {
        if let Some(mut task) = self.tasks.remove(id) {
            message.clone_into(&mut task.message);
            task.last = now;
            let info = task.task_info(id);
            self.add_to_history(TaskInfo {
                pods: Vec::new(),
                ..info
            });
            self.trim_history(now);
        }
    }

    pub(super) fn add_to_history(&mut self, task: TaskInfo) {
        self.history.push(ended_task(task));
        let surplus = self.history.len().saturating_sub(HISTORY_LENGTH);
        self.history.drain(..surplus);
    }

    // Called only before a write that is necessary anyway: the age of an entry alone is no reason for a write.
    pub(super) fn trim_history(&mut self, now: Timestamp) {
        self.history.retain(|t| {
            let last = t.last_time.as_ref().or(t.begin_time.as_ref());
            last.is_none_or(|last| add_pause(last.0, HISTORY_RETENTION) > now)
        });
    }
}

impl CheckTask {
    fn task_info(&self, id: &str) -> TaskInfo {
        let names: BTreeSet<&String> = self.processing.iter().map(|c| &c.name).collect();
        TaskInfo {
            task_id: id.to_owned(),
            processing: names.into_iter().cloned().collect(),
            approved: self.approved.iter().cloned().collect(),
            pods: self.processing.iter().cloned().collect(),
            begin_time: Some(whole_seconds(self.begin)),
            last_time: Some(whole_seconds(self.last)),
            message: self.message.clone(),
        }
    }
}

/// Largest size of an operation in the status, in bytes: its entry in a task, and the name of its Pod twice.
fn operation_bytes(candidate: &Candidate) -> usize {
    let name = size_limits::json_bytes(&candidate.name) + ",".len();
    size_limits::json_bytes(candidate) + ",".len() + 2 * name
}

/// A time in whole seconds, as it is stored.
pub(super) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The time after `pause`, at most [`Timestamp::MAX`].
pub(super) fn add_pause(time: Timestamp, pause: Duration) -> Timestamp {
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// A task that has ended, shortened for the history.
fn ended_task(mut task: TaskInfo) -> TaskInfo {
    let more = task.approved.len().saturating_sub(MAX_HISTORY_NAMES);
    if more > 0 {
        task.approved.truncate(MAX_HISTORY_NAMES);
        task.message = format!("{} ({more} further Pods passed.)", task.message);
    }
    task
}
