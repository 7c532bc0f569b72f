//! What is known of one webhook rule from one look to the next, and what to do about it now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::call_results::{MAX_ID_BYTES, POLL_FAILED, ended_task};
use super::status_size::fit_status;
use super::{Candidate, CompiledWebhook, UNANSWERED_MESSAGE};
use crate::api::podtransitionrule::{TaskInfo, WebhookStatus};
use crate::api::size_limits::{self, MAX_STATES_BYTES};

/// Pods that come within this time of each other are asked about in one call.
const BATCH_WINDOW: Duration = Duration::from_millis(300);

/// Most operations of one rule that have an answer, or a task, and still wait; further ones are asked about when these
/// have gone. Where their names are long, or the object has many webhook rules, the bytes of the status bound them first.
const MAX_OPERATIONS: usize = 500;

/// What a task takes in the status besides its Pods and the endpoint's texts.
const TASK_OVERHEAD_BYTES: usize = MAX_ID_BYTES + 160;

/// Why an operation waits that is not asked about for want of room.
const CROWDED_MESSAGE: &str = "its endpoint is asked later: as many operations as the status of the object has room for have an answer \
                       or are being checked, and still wait";

/// How long ended tasks are kept, and how many.
const HISTORY_RETENTION: Duration = Duration::from_secs(600);
const HISTORY_LENGTH: usize = 20;

/// State of one webhook rule on the leader. What must survive it is in [`Memory::status`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallState {
    /// Generation of the rule object at the last look.
    pub(super) generation: i64,
    /// [`Webhook::fingerprint`] of the rule that the rest speaks of.
    fingerprint: String,
    pub(super) passed: BTreeSet<Candidate>,
    /// By ID.
    pub(super) tasks: BTreeMap<String, CheckTask>,
    /// Oldest first.
    pub(super) history: Vec<TaskInfo>,
    pub(super) refused: BTreeMap<Candidate, RefusedOperation>,
    /// What the call in flight is about; at most one call is.
    pub(super) asking: BTreeSet<Candidate>,
    gathering: Option<Timestamp>,
    /// Calls that failed in a row.
    pub(super) failures: u32,
    /// Why the last call failed; empty after one that was answered. What is wrong with polls each task knows.
    pub(super) failing: String,
    /// Whether operations have passed by failurePolicy Ignore since.
    pub(super) unanswered: bool,
    /// What is wrong with the rule though its endpoint answers: of calls, and of polls.
    pub(super) warning: Option<String>,
    pub(super) poll_warning: Option<String>,
    /// Operations that passed by failurePolicy Ignore, and that nobody was told of yet.
    pub(super) ignored: Vec<IgnoredFailure>,
    /// Set while the endpoint is left alone because its calls keep failing.
    pub(super) backoff: Option<EndpointBackoff>,
    /// Bytes that this may take in the status of the object.
    share: usize,
    /// Whether operations are not asked about for want of room.
    crowded: bool,
}

/// A check that takes long.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckTask {
    pub begin: Timestamp,
    /// When it last said something new.
    pub last: Timestamp,
    pub message: String,
    pub processing: BTreeSet<Candidate>,
    pub approved: BTreeSet<String>,
    /// When to poll next.
    pub next: Timestamp,
    /// Whether a poll is in flight.
    pub polling: bool,
    /// Whether the last poll failed.
    pub failed: bool,
}

/// A Pod that may not pass now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RefusedOperation {
    pub reason: String,
    /// When to ask again.
    pub again: Timestamp,
}

/// Why the endpoint is not asked for a while.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndpointBackoff {
    pub why: String,
    pub until: Timestamp,
}

/// Operations that passed by failurePolicy Ignore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredFailure {
    /// The operations.
    pub who: Vec<Candidate>,
    /// Why the endpoint has not answered.
    pub why: String,
}

/// A call to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAction {
    /// Ask about these; the outcome goes to [`Memory::answered`].
    Ask(Vec<Candidate>),
    /// Poll this task; the outcome goes to [`Memory::polled`].
    Poll(String),
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallPlan {
    /// Calls to make.
    pub actions: Vec<CallAction>,
    /// When to look again at the latest; `None`: when something changes.
    pub due: Option<Timestamp>,
}

impl CallState {
    /// The state that a status tells of, for `rule` at this generation of its object. Answers and tasks that were given under
    /// another rule, or to a server that did not bind them to operations, are void: such tasks go to the history.
    pub fn from_status(
        status: Option<&WebhookStatus>,
        rule: &CompiledWebhook,
        generation: i64,
        now: Timestamp,
    ) -> CallState {
        let mut memory = CallState {
            generation,
            fingerprint: rule.fingerprint.clone(),
            share: MAX_STATES_BYTES,
            ..CallState::default()
        };
        let Some(status) = status else {
            return memory;
        };
        memory.history.clone_from(&status.history);
        if !status.is_current_for(&rule.fingerprint, generation) {
            for task in &status.task_states {
                memory.add_to_history(TaskInfo {
                    message: "Ended: the rule has changed.".to_owned(),
                    pods: Vec::new(),
                    ..task.clone()
                });
            }
            memory.trim_history(now);
            return memory;
        }
        // What is wrong with the polls of a task its message tells.
        if !status.failing.starts_with(POLL_FAILED) {
            memory.failing.clone_from(&status.failing);
        }
        memory.unanswered = status.passed_unanswered;
        memory.warning = Some(status.warning.clone()).filter(|w| !w.is_empty());
        memory.passed.extend(status.passed.iter().cloned());
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
            memory.tasks.insert(task.task_id.clone(), restored);
        }
        memory
    }

    /// Why the last call failed, or the last poll of a task; `None` where they were answered, or before any.
    pub fn last_failure(&self) -> Option<&str> {
        let mut polls = self.tasks.values().filter(|task| task.failed);
        let poll = polls.next().map(|task| task.message.as_str());
        Some(self.failing.as_str())
            .filter(|why| !why.is_empty())
            .or(poll)
    }

    /// The operations that have passed by failurePolicy Ignore since this was called last.
    pub fn take_ignored(&mut self) -> Vec<IgnoredFailure> {
        std::mem::take(&mut self.ignored)
    }

    /// Generation of the rule object at the last look.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Whether this speaks of a rule with this fingerprint.
    pub fn has_fingerprint(&self, fingerprint: &str) -> bool {
        self.fingerprint == fingerprint
    }

    /// The object has come to this generation. What was known stays, unless the rule itself has changed.
    pub fn follow_generation(&mut self, rule: &CompiledWebhook, generation: i64, now: Timestamp) {
        if self.has_fingerprint(&rule.fingerprint) {
            self.generation = generation;
        } else {
            *self = CallState::from_status(self.stored_status().as_ref(), rule, generation, now);
        }
    }

    /// Sets how many bytes this may take in the status of the object.
    pub fn set_share(&mut self, bytes: usize) {
        self.share = bytes;
    }

    /// What to do at `now`. `staying`: all operations that wait in the rule's stage and are subject to it; what is not
    /// among them is forgotten. `askable`: those of them that the endpoint may be asked about now, the most urgent
    /// first. A call that is planned counts as made.
    pub fn plan_calls(
        &mut self,
        rule: &CompiledWebhook,
        now: Timestamp,
        staying: &BTreeSet<Candidate>,
        askable: &[Candidate],
    ) -> CallPlan {
        self.forget_departed(staying, now);
        if !self.unanswered && staying.is_empty() {
            self.failing.clear(); // nobody waits for the endpoint any more
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
        let all = fresh.len();
        fresh.truncate(self.count_fitting(&fresh));
        fresh.sort();
        self.crowded = fresh.len() < all;
        if fresh.is_empty() {
            self.gathering = None;
        } else if self.asking.is_empty() {
            let since = *self.gathering.get_or_insert(now);
            if add_pause(since, BATCH_WINDOW) <= now && !self.is_backing_off(now) {
                self.gathering = None;
                self.asking = fresh.iter().cloned().collect();
                plan.actions.push(CallAction::Ask(fresh));
            }
        }
        plan.due = self.next_call_at(rule, now, askable);
        plan
    }

    /// Those that may be asked about and are not to wait. Operations that the endpoint was never asked about take turns
    /// with those that it refused, the longest ago first: however many wait, each is asked about in the end.
    fn operations_to_ask(&self, askable: &[Candidate], now: Timestamp) -> Vec<Candidate> {
        let open = askable
            .iter()
            .filter(|c| !self.is_pending(c) && !self.passed.contains(c));
        let (mut new, mut refused) = (Vec::new(), Vec::new());
        for candidate in open {
            match self.refused.get(candidate) {
                None => new.push(candidate),
                Some(refusal) if refusal.again <= now => refused.push((refusal.again, candidate)),
                Some(_) => {}
            }
        }
        refused.sort_by_key(|(again, _)| *again);
        let refused = refused.into_iter().map(|(_, candidate)| candidate);
        let turns = (refused.enumerate().map(|(turn, c)| (2 * turn, c))).chain(
            new.into_iter()
                .enumerate()
                .map(|(turn, c)| (2 * turn + 1, c)),
        );
        let mut turns: Vec<_> = turns.collect();
        turns.sort_by_key(|(turn, _)| *turn);
        turns.into_iter().map(|(_, c)| c.clone()).collect()
    }

    fn is_backing_off(&self, now: Timestamp) -> bool {
        self.backoff.as_ref().is_some_and(|rest| rest.until > now)
    }

    /// How many of these have room in the status, whatever the endpoint answers. A quarter of it is left for texts.
    fn count_fitting(&self, fresh: &[Candidate]) -> usize {
        let processing = self.tasks.values().flat_map(|t| &t.processing);
        let known = self.passed.len() + processing.clone().count();
        let tasks = self.tasks.len() + 1; // the answer may begin another
        let taken = processing
            .chain(&self.passed)
            .map(operation_bytes)
            .sum::<usize>()
            + tasks * TASK_OVERHEAD_BYTES;
        let mut left = (self.share / 4 * 3).saturating_sub(taken);
        let fits = |candidate: &&Candidate| match left.checked_sub(operation_bytes(candidate)) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let room = fresh.iter().take(MAX_OPERATIONS.saturating_sub(known));
        room.take_while(fits).count()
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
            .filter_map(|c| self.refused.get(c).map(|r| r.again));
        let refused = refused.filter(|again| *again > now && self.asking.is_empty());
        let gathered = self.gathering.map(|since| add_pause(since, BATCH_WINDOW));
        let rest = self.backoff.as_ref().map(|rest| rest.until);
        let asks = refused.chain(gathered);
        let asks = asks.map(|at| rest.map_or(at, |rest| at.max(rest)));
        tasks.chain(asks).min()
    }

    /// Whether a call or a task about this operation is on its way.
    pub fn is_pending(&self, candidate: &Candidate) -> bool {
        self.asking.contains(candidate)
            || self
                .tasks
                .values()
                .any(|t| t.processing.contains(candidate))
    }

    /// Whether a poll of this task is planned or under way.
    pub fn is_polling(&self, id: &str) -> bool {
        self.tasks.get(id).is_some_and(|task| task.polling)
    }

    /// Whether the endpoint has let this operation pass.
    pub fn has_passed(&self, candidate: &Candidate) -> bool {
        self.passed.contains(candidate)
    }

    /// Whether the endpoint has refused this operation, also while it is asked again.
    pub fn is_refused(&self, candidate: &Candidate) -> bool {
        self.refused.contains_key(candidate)
    }

    /// Why an operation waits; `None` if it has passed.
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

    /// Why an operation waits that the endpoint has said nothing about.
    fn unasked_reason(&self, candidate: &Candidate) -> String {
        if self.asking.contains(candidate) {
            return UNANSWERED_MESSAGE.to_owned();
        }
        match &self.backoff {
            Some(rest) => format!(
                "its endpoint is asked later, since the last {} calls failed: {}",
                self.failures, rest.why
            ),
            None if self.crowded => CROWDED_MESSAGE.to_owned(),
            None => UNANSWERED_MESSAGE.to_owned(),
        }
    }

    /// As it is stored; `None` when there is nothing to store. Sorted, so that equal states are written alike, and never
    /// larger than its share.
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

    /// Forgets what does not wait any more.
    fn forget_departed(&mut self, staying: &BTreeSet<Candidate>, now: Timestamp) {
        self.passed.retain(|c| staying.contains(c));
        self.refused.retain(|c, _| staying.contains(c));
        let mut left = Vec::new();
        for (id, task) in &mut self.tasks {
            task.processing.retain(|c| staying.contains(c));
            if task.processing.is_empty() {
                left.push(id.clone());
            }
        }
        for id in left {
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

    // Only when something else is written anyway: growing old is no reason for a write.
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

/// What an operation takes in the status at most: the names of its Pod and of what is asked, in a task.
fn operation_bytes(candidate: &Candidate) -> usize {
    let name = size_limits::json_bytes(&candidate.name) + ",".len();
    size_limits::json_bytes(candidate) + ",".len() + 2 * name
}

/// A time as it is stored, in whole seconds.
pub(super) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// A time later by `pause`; the end of time when that is beyond it.
pub(super) fn add_pause(time: Timestamp, pause: Duration) -> Timestamp {
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}
