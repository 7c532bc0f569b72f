//! Applies answers and failures of endpoints to the operations that wait (the tables of contract 5.5).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::call_state::{
    CheckTask, EndpointBackoff, IgnoredPass, MAX_ID_BYTES, POLL_FAILED, RefusedOperation,
    add_pause, whole_seconds,
};
use super::{CallState, Candidate, CompiledWebhook};
use crate::api::endpoint_protocol::{EndpointResponse, Progress};
use crate::api::podtransitionrule::TaskInfo;
use crate::api::size_limits;

/// Time until the endpoint is asked again about a refused Pod.
const REFUSAL_RETRY: Duration = Duration::from_secs(5);

/// First and longest pause after failed calls.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// After this number of failures in a row, the endpoint is not called for a while, and longer each time. Operations
/// that wait do not pass because of this: the endpoint is asked about each of them later.
const BACKOFF_AFTER_FAILURES: u32 = 5;
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Longest text of an endpoint that is stored in the status, in characters.
const MAX_TEXT_CHARS: usize = 512;

impl CallState {
    /// Records the result of a call about `candidates`. An error says why the call failed. `spread` in [0, 1)
    /// randomizes the retry time.
    pub fn record_answer(
        &mut self,
        rule: &CompiledWebhook,
        candidates: &[Candidate],
        outcome: Result<EndpointResponse, String>,
        now: Timestamp,
        spread: f64,
    ) {
        self.asking.clear();
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) => {
                self.count_failure(&error, now, spread);
                return self.record_failed_call(rule, candidates, &error, now, spread);
            }
        };
        self.failures = 0;
        self.backoff = None;
        self.last_failure_reason.clear();
        self.unanswered = false;
        let refuse = |state: &mut CallState, reason: &str, refused: &[Candidate]| {
            state.refuse_operations(refused, reason, add_pause(now, REFUSAL_RETRY));
        };
        if !answer.success {
            let remaining = self.pass_finished(candidates, &answer.finished_names);
            let reason = match answer.message.as_str() {
                "" => "the endpoint refuses and gives no reason",
                message => message,
            };
            return refuse(self, reason, &remaining);
        }
        if !answer.is_long() {
            return self.pass_operations(candidates.iter().cloned());
        }
        let Some(poll) = &rule.poll else {
            let reason =
                "the endpoint asks to be polled, but the rule has no clientConfig.poll: add one";
            return refuse(self, reason, candidates);
        };
        let id = match answer.task_id() {
            Some(id) if size_limits::json_bytes(&id) > MAX_ID_BYTES => {
                let reason = format!("Invalid taskID: longer than {MAX_ID_BYTES} bytes");
                return refuse(self, &reason, candidates);
            }
            Some(id) if size_limits::truncate_text(id, MAX_ID_BYTES) != id => {
                return refuse(self, "Invalid taskID: has control characters", candidates);
            }
            Some(id) => id.to_owned(),
            None => return refuse(self, "Invalid empty taskID", candidates),
        };
        let remaining = self.pass_finished(candidates, &answer.finished_names);
        if remaining.is_empty() {
            return;
        }
        for candidate in &remaining {
            self.refused.remove(candidate);
        }
        let next = add_pause(now, poll.interval);
        let approved = passed_names(candidates, &remaining);
        let task = self.tasks.entry(id).or_insert_with(|| CheckTask {
            begin: now,
            last: now,
            message: truncate_endpoint_text(&answer.message),
            processing: BTreeSet::new(),
            approved: BTreeSet::new(),
            next,
            polling: false,
            failed: false,
        });
        task.processing.extend(remaining);
        task.approved.extend(approved);
    }

    /// Records the result of a poll. No effect if the task has ended meanwhile.
    pub fn record_poll(
        &mut self,
        rule: &CompiledWebhook,
        id: &str,
        outcome: Result<Progress, String>,
        now: Timestamp,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.polling = false;
        task.next = add_pause(now, poll_interval(rule));
        let progress = match outcome {
            Ok(progress) => progress,
            Err(error) => {
                task.failed = true;
                return task.set_message(&format!("{POLL_FAILED}{error}"), now);
            }
        };
        task.failed = false;
        task.set_message(&progress.message, now);
        let processing: Vec<_> = task.processing.iter().cloned().collect();
        if progress.success && progress.finished {
            return self.approve_operations(id, &processing, now);
        }
        let finished = named_candidates(&processing, &progress.finished_names);
        self.approve_operations(id, &finished, now);
        if progress.stop {
            let message = match progress.message.as_str() {
                "" => "Stopped by the endpoint.".to_owned(),
                message => truncate_endpoint_text(message),
            };
            self.end_task(id, &message, now);
        }
    }

    /// Lets some operations of a task pass, and ends the task if none is left.
    fn approve_operations(&mut self, id: &str, approved: &[Candidate], now: Timestamp) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        for candidate in approved {
            task.processing.remove(candidate);
            task.approved.insert(candidate.name.clone());
            task.last = now;
        }
        let (is_done, message) = (task.processing.is_empty(), task.message.clone());
        self.pass_operations(approved.iter().cloned());
        if is_done {
            self.end_task(id, &message, now);
        }
    }

    /// Ends tasks that were polled for too long. The endpoint is asked about their operations again. If the last poll
    /// failed and the rule has `failurePolicy: Ignore`, the operations pass.
    pub(super) fn end_overdue_tasks(&mut self, rule: &CompiledWebhook, now: Timestamp) {
        let Some(poll) = &rule.poll else {
            return; // without `poll` there are no tasks of this generation
        };
        let overdue =
            |task: &CheckTask| !task.polling && add_pause(task.begin, poll.timeout) <= now;
        let overdue: Vec<_> = self.tasks.iter().filter(|(_, t)| overdue(t)).collect();
        let overdue: Vec<_> = overdue
            .into_iter()
            .map(|(id, task)| (id.clone(), task.clone()))
            .collect();
        for (id, task) in overdue {
            let mut message = format!("Polling Timeout. {}", task.message);
            if task.failed && !rule.fail {
                message.push_str(" Passed by failurePolicy Ignore.");
                let processing: Vec<_> = task.processing.into_iter().collect();
                self.unanswered = true;
                self.last_failure_reason = truncate_endpoint_text(&message);
                self.ignored.push(IgnoredPass {
                    operations: processing.clone(),
                    reason: truncate_endpoint_text(&message),
                });
                if let Some(task) = self.tasks.get_mut(&id) {
                    message.clone_into(&mut task.message);
                }
                self.approve_operations(&id, &processing, now);
            } else {
                self.end_task(&id, message.trim_end(), now);
            }
        }
    }

    fn record_failed_call(
        &mut self,
        rule: &CompiledWebhook,
        candidates: &[Candidate],
        error: &str,
        now: Timestamp,
        spread: f64,
    ) {
        self.last_failure_reason = truncate_endpoint_text(error);
        if rule.fail {
            let pause = retry_pause(self.failures.saturating_sub(1), MAX_RETRY_PAUSE, spread);
            let error = match rule.ignored_policy_warning() {
                Some(note) => format!("{error}; {note}"),
                None => error.to_owned(),
            };
            return self.refuse_operations(candidates, &error, add_pause(now, pause));
        }
        let names: BTreeSet<_> = candidates.iter().map(|c| c.name.clone()).collect();
        self.add_to_history(TaskInfo {
            approved: names.into_iter().collect(),
            begin_time: Some(whole_seconds(now)),
            last_time: Some(whole_seconds(now)),
            message: format!(
                "Passed by failurePolicy Ignore: {}",
                truncate_endpoint_text(error)
            ),
            ..TaskInfo::default()
        });
        self.trim_history(now);
        if !candidates.is_empty() {
            self.unanswered = true;
            self.ignored.push(IgnoredPass {
                operations: candidates.to_vec(),
                reason: truncate_endpoint_text(error),
            });
        }
        self.pass_operations(candidates.iter().cloned());
    }

    fn count_failure(&mut self, error: &str, now: Timestamp, spread: f64) {
        self.failures = self.failures.saturating_add(1);
        self.backoff = self
            .failures
            .checked_sub(BACKOFF_AFTER_FAILURES)
            .map(|doublings| EndpointBackoff {
                reason: truncate_endpoint_text(error),
                until: add_pause(now, retry_pause(doublings, MAX_BACKOFF, spread)),
            });
    }

    /// Sets the warning about the certificates of an endpoint that is trusted nevertheless. `polled` is whether the
    /// server polled the endpoint, or else called it.
    pub fn set_warning(&mut self, polled: bool, warning: Option<&str>) {
        let warning = warning.map(truncate_endpoint_text);
        match polled {
            true => self.poll_warning = warning,
            false => self.warning = warning,
        }
    }

    /// Records operations that the endpoint can't be asked about because of an error in the rule. They wait whatever
    /// the failure policy, and do not count as a failed call.
    pub fn record_unaskable(&mut self, candidates: &[Candidate], error: &str, now: Timestamp) {
        self.refuse_operations(candidates, error, add_pause(now, MAX_RETRY_PAUSE));
    }

    /// Records operations that the endpoint can't be asked about now. They wait whatever the failure policy.
    pub fn postpone(&mut self, candidates: &[Candidate], reason: &str, now: Timestamp) {
        self.refuse_operations(candidates, reason, add_pause(now, FIRST_RETRY_PAUSE));
    }

    /// Records that a planned call was not made.
    pub fn cancel_call(&mut self) {
        self.asking.clear();
    }

    /// Records that a planned poll was not made. The next one is due after the poll interval.
    pub fn cancel_poll(&mut self, rule: &CompiledWebhook, id: &str, now: Timestamp) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.polling = false;
            task.next = add_pause(now, poll_interval(rule));
        }
    }

    /// Lets the named operations pass and returns the others.
    fn pass_finished(&mut self, candidates: &[Candidate], names: &[String]) -> Vec<Candidate> {
        let finished = named_candidates(candidates, names);
        self.pass_operations(finished.iter().cloned());
        let remaining = candidates.iter().filter(|c| !finished.contains(c));
        remaining.cloned().collect()
    }

    fn pass_operations(&mut self, candidates: impl Iterator<Item = Candidate>) {
        for candidate in candidates {
            self.refused.remove(&candidate);
            self.passed.insert(candidate);
        }
    }

    fn refuse_operations(
        &mut self,
        candidates: &[Candidate],
        reason: &str,
        ask_again_at: Timestamp,
    ) {
        let reason = truncate_endpoint_text(reason);
        for candidate in candidates {
            let refusal = RefusedOperation {
                reason: reason.clone(),
                ask_again_at,
            };
            self.refused.insert(candidate.clone(), refusal);
        }
    }
}

impl CheckTask {
    fn set_message(&mut self, message: &str, now: Timestamp) {
        let message = truncate_endpoint_text(message);
        if message != self.message {
            (self.message, self.last) = (message, now);
        }
    }
}

/// The `candidates` whose Pods are named. Other names are ignored.
fn named_candidates(candidates: &[Candidate], names: &[String]) -> Vec<Candidate> {
    let names: BTreeSet<&String> = names.iter().collect();
    let matching = candidates.iter().filter(|c| names.contains(&c.name));
    matching.cloned().collect()
}

fn passed_names(candidates: &[Candidate], remaining: &[Candidate]) -> Vec<String> {
    let passed = candidates.iter().filter(|c| !remaining.contains(c));
    passed.map(|c| c.name.clone()).collect()
}

/// Time between two polls.
fn poll_interval(rule: &CompiledWebhook) -> Duration {
    rule.poll
        .as_ref()
        .map_or(REFUSAL_RETRY, |poll| poll.interval)
}

/// The pause after this number of doublings: at most `longest`, plus up to a quarter. `spread` in [0, 1) randomizes the
/// pause.
fn retry_pause(doublings: u32, longest: Duration, spread: f64) -> Duration {
    let pause = FIRST_RETRY_PAUSE.saturating_mul(2_u32.saturating_pow(doublings.min(10)));
    pause
        .min(longest)
        .mul_f64(1.0 + spread.clamp(0.0, 1.0) / 4.0)
}

fn truncate_endpoint_text(text: &str) -> String {
    size_limits::truncate_text(text, MAX_TEXT_CHARS)
}
