//! What answers and failures mean for the Pods (the tables of contract 5.5).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::memory::{Ignored, Refusal, Rest, Task, after, seconds};
use super::{Candidate, Memory, Webhook};
use crate::api::podtransitionrule::TaskInfo;
use crate::api::rulecalls::{Answer, Progress};
use crate::api::stored;

/// A Pod that was refused is asked about again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// First and longest pause after calls that failed.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// After so many failures in a row the endpoint is left alone for a while, longer each time. Who waits by then is not let
/// pass by that: the endpoint is asked about each operation.
const FAILURES: u32 = 5;
const LONGEST_REST: Duration = Duration::from_secs(15);

/// Longest text of an endpoint that is kept, in characters, and longest ID, in bytes as stored: they go into the status.
const LONGEST: usize = 512;
pub(super) const LONGEST_ID: usize = 512;

/// How the message of a task begins whose last poll failed.
pub(super) const POLL_FAILED: &str = "Polling failed: ";

/// Names that an entry of the history lists at most.
const LISTED: usize = 20;

impl Memory {
    /// The outcome of a call about `asked`; an error says why it failed. `spread` in [0, 1) spreads retries.
    pub fn answered(
        &mut self,
        rule: &Webhook,
        asked: &[Candidate],
        outcome: Result<Answer, String>,
        now: Timestamp,
        spread: f64,
    ) {
        self.asking.clear();
        let answer = match outcome {
            Ok(answer) => answer,
            Err(why) => {
                self.count_failure(&why, now, spread);
                return self.failed(rule, asked, &why, now, spread);
            }
        };
        self.failures = 0;
        self.rest = None;
        self.failing.clear();
        self.unanswered = false;
        let refuse = |memory: &mut Memory, reason: &str, who: &[Candidate]| {
            memory.refuse(who, reason, after(now, ASK_AGAIN));
        };
        if !answer.success {
            let rest = self.pass_finished(asked, &answer.finished_names);
            let reason = match answer.message.as_str() {
                "" => "the endpoint refuses and gives no reason",
                message => message,
            };
            return refuse(self, reason, &rest);
        }
        if !answer.is_long() {
            return self.pass(asked.iter().cloned());
        }
        let Some(poll) = &rule.poll else {
            let reason =
                "the endpoint asks to be polled, but the rule has no clientConfig.poll: add one";
            return refuse(self, reason, asked);
        };
        let id = match answer.task() {
            Some(id) if stored::bytes(&id) > LONGEST_ID => {
                let reason = format!("Invalid taskID: longer than {LONGEST_ID} bytes");
                return refuse(self, &reason, asked);
            }
            Some(id) if stored::text(id, LONGEST_ID) != id => {
                return refuse(self, "Invalid taskID: has control characters", asked);
            }
            Some(id) => id.to_owned(),
            None => return refuse(self, "Invalid empty taskID", asked),
        };
        let rest = self.pass_finished(asked, &answer.finished_names);
        if rest.is_empty() {
            return;
        }
        for candidate in &rest {
            self.refused.remove(candidate);
        }
        let next = after(now, poll.interval);
        let approved = names_without(asked, &rest);
        let task = self.tasks.entry(id).or_insert_with(|| Task {
            begin: now,
            last: now,
            message: short(&answer.message),
            processing: BTreeSet::new(),
            approved: BTreeSet::new(),
            next,
            polling: false,
            failed: false,
        });
        task.processing.extend(rest);
        task.approved.extend(approved);
    }

    /// The outcome of a poll. Nothing happens if the task has ended meanwhile.
    pub fn polled(
        &mut self,
        rule: &Webhook,
        id: &str,
        outcome: Result<Progress, String>,
        now: Timestamp,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.polling = false;
        task.next = after(now, interval(rule));
        let progress = match outcome {
            Ok(progress) => progress,
            Err(why) => {
                task.failed = true;
                return task.says(&format!("{POLL_FAILED}{why}"), now);
            }
        };
        task.failed = false;
        task.says(&progress.message, now);
        let processing: Vec<_> = task.processing.iter().cloned().collect();
        if progress.success && progress.finished {
            return self.approve(id, &processing, now);
        }
        let finished = named(&processing, &progress.finished_names);
        self.approve(id, &finished, now);
        if progress.stop {
            let message = match progress.message.as_str() {
                "" => "Stopped by the endpoint.".to_owned(),
                message => short(message),
            };
            self.end(id, &message, now);
        }
    }

    /// Lets some of a task pass, and ends it when none is left.
    fn approve(&mut self, id: &str, approved: &[Candidate], now: Timestamp) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        for candidate in approved {
            task.processing.remove(candidate);
            task.approved.insert(candidate.name.clone());
            task.last = now;
        }
        let (done, message) = (task.processing.is_empty(), task.message.clone());
        self.pass(approved.iter().cloned());
        if done {
            self.end(id, &message, now);
        }
    }

    /// Ends tasks that were polled for too long. Their Pods are asked about anew; where the endpoint fails and that is
    /// to be ignored, they pass.
    pub(super) fn time_out(&mut self, rule: &Webhook, now: Timestamp) {
        let Some(poll) = &rule.poll else {
            return; // a task of another generation: there is none
        };
        let late = |task: &Task| !task.polling && after(task.begin, poll.timeout) <= now;
        let late: Vec<_> = self.tasks.iter().filter(|(_, t)| late(t)).collect();
        let late: Vec<_> = late
            .into_iter()
            .map(|(id, task)| (id.clone(), task.clone()))
            .collect();
        for (id, task) in late {
            let mut message = format!("Polling Timeout. {}", task.message);
            if task.failed && !rule.fail {
                message.push_str(" Passed by failurePolicy Ignore.");
                let processing: Vec<_> = task.processing.into_iter().collect();
                self.unanswered = true;
                self.failing = short(&message);
                self.ignored.push(Ignored {
                    who: processing.clone(),
                    why: short(&message),
                });
                if let Some(task) = self.tasks.get_mut(&id) {
                    message.clone_into(&mut task.message);
                }
                self.approve(&id, &processing, now);
            } else {
                self.end(&id, message.trim_end(), now);
            }
        }
    }

    fn failed(
        &mut self,
        rule: &Webhook,
        asked: &[Candidate],
        why: &str,
        now: Timestamp,
        spread: f64,
    ) {
        self.failing = short(why);
        if rule.fail {
            let pause = pause(self.failures.saturating_sub(1), LONGEST_PAUSE, spread);
            let why = match rule.holds_though() {
                Some(though) => format!("{why}; {though}"),
                None => why.to_owned(),
            };
            return self.refuse(asked, &why, after(now, pause));
        }
        let who: BTreeSet<_> = asked.iter().map(|c| c.name.clone()).collect();
        self.remember(TaskInfo {
            approved: who.into_iter().collect(),
            begin_time: Some(seconds(now)),
            last_time: Some(seconds(now)),
            message: format!("Passed by failurePolicy Ignore: {}", short(why)),
            ..TaskInfo::default()
        });
        self.forget_old(now);
        if !asked.is_empty() {
            self.unanswered = true;
            self.ignored.push(Ignored {
                who: asked.to_vec(),
                why: short(why),
            });
        }
        self.pass(asked.iter().cloned());
    }

    fn count_failure(&mut self, why: &str, now: Timestamp, spread: f64) {
        self.failures = self.failures.saturating_add(1);
        self.rest = self.failures.checked_sub(FAILURES).map(|beyond| Rest {
            why: short(why),
            until: after(now, pause(beyond, LONGEST_REST, spread)),
        });
    }

    /// What is wrong with the certificates of the endpoint that was asked, or polled, though it is trusted.
    pub fn warned(&mut self, polled: bool, warning: Option<&str>) {
        let warning = warning.map(short);
        match polled {
            true => self.poll_warning = warning,
            false => self.warning = warning,
        }
    }

    /// Operations that can't be asked about as the rule is written: they wait, whatever the rule's failure policy. No call has
    /// failed.
    pub fn unasked(&mut self, who: &[Candidate], why: &str, now: Timestamp) {
        self.refuse(who, why, after(now, LONGEST_PAUSE));
    }

    /// Operations that can't be asked about just now: they wait, whatever the rule's failure policy.
    pub fn postpone(&mut self, who: &[Candidate], why: &str, now: Timestamp) {
        self.refuse(who, why, after(now, FIRST_PAUSE));
    }

    /// A call that was planned was not made after all.
    pub fn not_asked(&mut self) {
        self.asking.clear();
    }

    /// A poll that was planned was not made after all: as if none had been due.
    pub fn not_polled(&mut self, rule: &Webhook, id: &str, now: Timestamp) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.polling = false;
            task.next = after(now, interval(rule));
        }
    }

    /// Lets those pass that are named; returns the rest.
    fn pass_finished(&mut self, asked: &[Candidate], names: &[String]) -> Vec<Candidate> {
        let finished = named(asked, names);
        self.pass(finished.iter().cloned());
        let rest = asked.iter().filter(|c| !finished.contains(c));
        rest.cloned().collect()
    }

    fn pass(&mut self, who: impl Iterator<Item = Candidate>) {
        for candidate in who {
            self.refused.remove(&candidate);
            self.passed.insert(candidate);
        }
    }

    fn refuse(&mut self, who: &[Candidate], reason: &str, again: Timestamp) {
        let reason = short(reason);
        for candidate in who {
            let refusal = Refusal {
                reason: reason.clone(),
                again,
            };
            self.refused.insert(candidate.clone(), refusal);
        }
    }
}

impl Task {
    fn says(&mut self, message: &str, now: Timestamp) {
        let message = short(message);
        if message != self.message {
            (self.message, self.last) = (message, now);
        }
    }
}

/// Those of `asked` that are named; strangers among the names are passed over.
fn named(asked: &[Candidate], names: &[String]) -> Vec<Candidate> {
    let names: BTreeSet<&String> = names.iter().collect();
    let named = asked.iter().filter(|c| names.contains(&c.name));
    named.cloned().collect()
}

fn names_without(asked: &[Candidate], rest: &[Candidate]) -> Vec<String> {
    let passed = asked.iter().filter(|c| !rest.contains(c));
    passed.map(|c| c.name.clone()).collect()
}

/// Time between two polls.
fn interval(rule: &Webhook) -> Duration {
    rule.poll.as_ref().map_or(ASK_AGAIN, |poll| poll.interval)
}

/// A pause that has doubled so many times, up to `longest` and a quarter more. `spread` in [0, 1) spreads retries.
fn pause(doublings: u32, longest: Duration, spread: f64) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings.min(10)));
    pause
        .min(longest)
        .mul_f64(1.0 + spread.clamp(0.0, 1.0) / 4.0)
}

fn short(text: &str) -> String {
    stored::text(text, LONGEST)
}

/// A task that has ended, as the history keeps it.
pub(super) fn ended(mut task: TaskInfo) -> TaskInfo {
    let more = task.approved.len().saturating_sub(LISTED);
    if more > 0 {
        task.approved.truncate(LISTED);
        task.message = format!("{} ({more} further Pods passed.)", task.message);
    }
    task
}
