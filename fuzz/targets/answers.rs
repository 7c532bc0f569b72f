//! Answers of the endpoints of webhook rules.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use operating::api::endpoint_protocol::{EndpointResponse, Progress, parse_response};
use operating::domain::rules::webhook::{
    CallAction, CallState, Candidate, CompiledWebhook, RuleEndpoint, TaskPolling,
};

use super::choice;

/// The first byte chooses the rule. Each further line is the answer to the next call that is due: `a` and an answer,
/// `p` and an answer to a poll, or else a failed call.
///
/// A Pod passes only if an answer says so, or if calls fail under a rule that ignores failures. The stored
/// state has a bounded size, and is the same after it was read again.
pub fn run(data: &[u8]) {
    let Some((flags, data)) = choice(data, 4) else {
        return;
    };
    let rule = webhook(flags & 1 != 0, flags & 2 != 0);
    let all = ["web-1", "web-2", "web-3"].map(candidate);
    let staying: BTreeSet<Candidate> = all.iter().cloned().collect();
    let mut memory = CallState::default();
    let mut now = Timestamp::UNIX_EPOCH;
    let mut lines = data.split(|byte| *byte == b'\n').take(20);
    for _ in 0..60 {
        now += Duration::from_secs(30);
        for action in memory.plan_calls(&rule, now, &staying, &all).actions {
            let Some(line) = lines.next() else {
                return;
            };
            let before = passed(&memory, &all);
            let approval = match action {
                CallAction::Ask(asked) => answered(&mut memory, &rule, &asked, line, now),
                CallAction::Poll(id) => polled(&mut memory, &rule, &id, line, now),
            };
            for candidate in passed(&memory, &all).difference(&before) {
                assert!(
                    approval.lets(candidate),
                    "{candidate} passed by {approval:?}"
                );
            }
            stored(&memory, &rule, &all, now);
        }
    }
}

/// The Pods that an answer approves.
#[derive(Debug)]
enum Approval {
    All,
    These(Vec<String>),
    Nothing,
}

impl Approval {
    fn lets(&self, name: &str) -> bool {
        match self {
            Approval::All => true,
            Approval::These(names) => names.iter().any(|n| n == name),
            Approval::Nothing => false,
        }
    }
}

fn answered(
    memory: &mut CallState,
    rule: &CompiledWebhook,
    asked: &[Candidate],
    line: &[u8],
    now: Timestamp,
) -> Approval {
    let answer = match line.split_first() {
        Some((b'a', body)) => parse_response::<EndpointResponse>(body),
        _ => Err("the call failed".to_owned()),
    };
    let approval = match &answer {
        Ok(answer) if answer.success && !answer.is_long() => Approval::All,
        Ok(answer) => Approval::These(answer.finished_names.clone()),
        Err(_) if !rule.fail => Approval::All,
        Err(_) => Approval::Nothing,
    };
    memory.record_answer(rule, asked, answer, now, 0.0);
    approval
}

fn polled(
    memory: &mut CallState,
    rule: &CompiledWebhook,
    id: &str,
    line: &[u8],
    now: Timestamp,
) -> Approval {
    let progress = match line.split_first() {
        Some((b'p', body)) => parse_response::<Progress>(body),
        _ => Err("the poll failed".to_owned()),
    };
    let approval = match &progress {
        Ok(progress) if progress.success && progress.finished => Approval::All,
        Ok(progress) => Approval::These(progress.finished_names.clone()),
        Err(_) => Approval::Nothing,
    };
    memory.record_poll(rule, id, progress, now);
    approval
}

fn passed(memory: &CallState, all: &[Candidate]) -> BTreeSet<String> {
    let passed = all.iter().filter(|c| memory.has_passed(c));
    passed.map(|c| c.name.clone()).collect()
}

fn stored(memory: &CallState, rule: &CompiledWebhook, all: &[Candidate], now: Timestamp) {
    let status = memory.stored_status();
    let text = serde_json::to_string(&status).unwrap_or_default();
    assert!(text.len() < 200_000, "{} bytes of status", text.len());
    let again = CallState::from_status(status.as_ref(), rule, memory.generation(), now);
    assert_eq!(passed(&again, all), passed(memory, all));
    assert_eq!(again.stored_status(), status);
}

fn candidate(name: &str) -> Candidate {
    Candidate {
        name: name.to_owned(),
        pod_uid: format!("uid-of-{name}"),
        operation: "upgrade".to_owned(),
        since: "1".to_owned(),
    }
}

fn webhook(fail: bool, polls: bool) -> CompiledWebhook {
    let endpoint = RuleEndpoint {
        url: "https://check.example.com/pods".to_owned(),
        ca: Vec::new(),
    };
    let poll = polls.then(|| TaskPolling {
        endpoint: endpoint.clone(),
        key: "task-id".to_owned(),
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(60),
    });
    CompiledWebhook {
        endpoint,
        poll,
        fail,
        parameters: Vec::new(),
        stage: None,
        fingerprint: String::new(),
        is_former_ignore: false,
    }
}
