#![allow(clippy::unwrap_used, clippy::panic)]
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::endpoint_protocol::{EndpointResponse, Progress};
use crate::api::podtransitionrule::{PodTransitionRule, WebhookStatus};
use crate::api::size_limits::{self, MAX_STATES_BYTES};
use crate::domain::rules::{RuleKind, RuleSet};

fn rule(webhook: Value) -> CompiledWebhook {
    let mut config = json!({ "clientConfig": { "url": "http://a" } });
    json_patch::merge(&mut config, &webhook);
    CompiledWebhook::compile(&serde_json::from_value(config).unwrap(), None, "w", true).unwrap()
}

fn ignoring() -> CompiledWebhook {
    rule(json!({ "failurePolicy": "Ignore" }))
}

fn polled_rule(policy: &str) -> CompiledWebhook {
    let poll = json!({ "url": "http://a/poll", "intervalSeconds": 5, "timeoutSeconds": 60 });
    rule(json!({ "clientConfig": { "poll": poll }, "failurePolicy": policy }))
}

fn candidate(name: &str) -> Candidate {
    Candidate {
        name: name.into(),
        pod_uid: format!("uid-{name}"),
        operation: "x".into(),
        since: "7".into(),
    }
}

fn candidates_named(names: &[&str]) -> Vec<Candidate> {
    names.iter().map(|n| candidate(n)).collect()
}

fn at_second(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn answer(value: Value) -> Result<EndpointResponse, String> {
    Ok(serde_json::from_value(value).unwrap())
}

fn progress(value: Value) -> Result<Progress, String> {
    Ok(serde_json::from_value(value).unwrap())
}

/// The state of a rule, with the Pods that wait.
struct TestRule {
    rule: CompiledWebhook,
    state: CallState,
    waiting: Vec<Candidate>,
}

impl TestRule {
    fn new(rule: CompiledWebhook, names: &[&str]) -> TestRule {
        let state = CallState::from_status(None, &rule, 1, at_second(0));
        let waiting = candidates_named(names);
        TestRule {
            rule,
            state,
            waiting,
        }
    }

    fn plan(&mut self, now: Timestamp) -> Vec<CallAction> {
        let waiting: BTreeSet<_> = self.waiting.iter().cloned().collect();
        self.state
            .plan_calls(&self.rule, now, &waiting, &self.waiting)
            .actions
    }

    /// The planned calls until the end of the time in which Pods are collected for one call.
    fn plan_after_window(&mut self, now: Timestamp) -> Vec<CallAction> {
        let first = self.plan(now);
        let then = self.plan(now + SignedDuration::from_millis(300));
        first.into_iter().chain(then).collect()
    }

    fn answered(
        &mut self,
        now: Timestamp,
        names: &[&str],
        outcome: Result<EndpointResponse, String>,
    ) {
        self.state
            .record_answer(&self.rule, &candidates_named(names), outcome, now, 0.0);
    }

    /// Asks about all Pods, and records this result.
    fn ask_and_answer(&mut self, now: Timestamp, outcome: Result<EndpointResponse, String>) {
        let waiting = self.waiting.clone();
        assert_eq!(
            self.plan_after_window(now),
            [CallAction::Ask(waiting.clone())]
        );
        self.state
            .record_answer(&self.rule, &waiting, outcome, now, 0.0);
    }

    fn reasons(&self) -> Vec<Option<String>> {
        self.waiting
            .iter()
            .map(|c| self.state.wait_reason(c))
            .collect()
    }

    fn passed(&self) -> Vec<&str> {
        let passed = self.waiting.iter().filter(|c| self.state.has_passed(c));
        passed.map(|c| c.name.as_str()).collect()
    }

    fn status(&self) -> WebhookStatus {
        self.state.stored_status().unwrap_or_default()
    }

    /// Restores the state as a new leader does.
    fn restore_as_new_leader(&mut self, generation: i64, now: Timestamp) {
        let status = self.state.stored_status();
        // The stored state must be equal to the state that is read back.
        let text = serde_json::to_string(&status).unwrap();
        let parsed: Option<WebhookStatus> = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed, status);
        self.state = CallState::from_status(parsed.as_ref(), &self.rule, generation, now);
    }
}

#[test]
fn pods_in_batch_window_are_asked_once_together() {
    let mut bench = TestRule::new(rule(json!({})), &["a"]);
    assert_eq!(bench.plan(at_second(0)), []);
    bench.waiting = candidates_named(&["b", "a"]);
    let expected = [CallAction::Ask(candidates_named(&["a", "b"]))];
    assert_eq!(bench.plan(at_second(1)), expected);
    bench.waiting = candidates_named(&["b", "a", "c"]);
    assert_eq!(
        bench.plan_after_window(at_second(2)),
        [],
        "one call at a time"
    );
    bench.answered(
        at_second(3),
        &["a", "b"],
        answer(json!({ "success": true })),
    );
    assert_eq!(bench.passed(), ["b", "a"]);
    assert_eq!(
        bench.plan_after_window(at_second(4)),
        [CallAction::Ask(candidates_named(&["c"]))]
    );
    bench.answered(at_second(5), &["c"], answer(json!({ "success": true })));
    assert_eq!(bench.plan_after_window(at_second(1_000)), []);
}

#[test]
fn refusal_passes_finished_pods_and_asks_rest_again() {
    let mut bench = TestRule::new(rule(json!({})), &["a", "b"]);
    let refusal =
        json!({ "success": false, "message": "busy", "finishedNames": ["b", "stranger", "b"] });
    bench.ask_and_answer(at_second(0), answer(refusal));
    assert_eq!(bench.passed(), ["b"]);
    assert_eq!(bench.reasons(), [Some("busy".into()), None]);
    assert_eq!(bench.plan_after_window(at_second(4)), []);
    assert_eq!(
        bench.plan_after_window(at_second(5)),
        [CallAction::Ask(candidates_named(&["a"]))]
    );
    assert_eq!(
        bench.reasons()[0],
        Some("busy".into()),
        "the same text while it is asked"
    );
    assert_eq!(
        bench.status().passed,
        candidates_named(&["b"]),
        "no stranger"
    );
}

#[test]
fn failure_follows_policy_and_is_retried_with_backoff() {
    let mut ignoring = TestRule::new(ignoring(), &["a", "b"]);
    ignoring.ask_and_answer(at_second(0), Err("connection refused".into()));
    assert_eq!(ignoring.passed(), ["a", "b"]);
    let history = ignoring.status().history;
    assert_eq!(
        (&history[0].approved[..], history[0].message.as_str()),
        (
            &["a".to_owned(), "b".to_owned()][..],
            "Passed by failurePolicy Ignore: connection refused"
        )
    );

    let mut failing = TestRule::new(rule(json!({ "failurePolicy": "Fail" })), &["a"]);
    let mut now = 0;
    for pause in [1, 2, 4, 8, 16, 30, 30] {
        failing.ask_and_answer(at_second(now), Err("connection refused".into()));
        assert_eq!(failing.reasons(), [Some("connection refused".into())]);
        assert_eq!(
            failing.plan_after_window(
                at_second(now) + SignedDuration::from_millis(pause * 1000 - 400)
            ),
            []
        );
        now += pause;
    }
    failing.ask_and_answer(at_second(now), answer(json!({ "success": false })));
    failing.ask_and_answer(at_second(now + 5), Err("connection refused".into()));
    assert_eq!(
        failing.plan_after_window(at_second(now + 6)).len(),
        1,
        "an answer ends the growing"
    );
    assert_eq!(failing.status().failing, "connection refused");
    failing.answered(
        at_second(now + 7),
        &["a"],
        answer(json!({ "success": false })),
    );
    assert_eq!(failing.state.stored_status(), None, "nothing to tell");
}

#[test]
fn inconsistent_task_answers_hold_with_reason() {
    let long = json!({ "success": true, "poll": true });
    let with = |id: &str| json!({ "success": true, "poll": true, "taskId": id });
    for (rule, answer_json, reason) in [
        (polled_rule("Ignore"), long, "Invalid empty taskID"),
        (polled_rule("Ignore"), with(" "), "Invalid empty taskID"),
        (
            polled_rule("Fail"),
            with(&"x".repeat(600)),
            "Invalid taskID: longer than 512 bytes",
        ),
        (
            polled_rule("Fail"),
            with("\u{1b}[31mt"),
            "Invalid taskID: has control characters",
        ),
        (
            rule(json!({})),
            with("t"),
            "the endpoint asks to be polled, but the rule has no clientConfig.poll: add one",
        ),
    ] {
        let mut bench = TestRule::new(rule, &["a"]);
        bench.ask_and_answer(at_second(0), answer(answer_json));
        assert_eq!(bench.reasons(), [Some(reason.to_owned())]);
        assert_eq!(bench.plan_after_window(at_second(5)).len(), 1);
    }
}

#[test]
fn task_is_polled_until_it_has_let_all_pass() {
    let mut bench = TestRule::new(polled_rule("Ignore"), &["a", "b", "c"]);
    let start = json!({ "success": true, "poll": true, "traceId": "t", "finishedNames": ["a"] });
    bench.ask_and_answer(at_second(0), answer(start));
    assert_eq!(bench.passed(), ["a"]);
    assert_eq!(
        bench.reasons()[1],
        Some("Polling task t initialized".into())
    );
    assert_eq!(bench.plan(at_second(4)), []);
    let poll = [CallAction::Poll("t".into())];
    assert_eq!(bench.plan(at_second(5)), poll);
    assert_eq!(
        bench.plan(at_second(50)),
        [],
        "one poll of a task at a time"
    );
    let half =
        json!({ "success": true, "message": "half", "finishedNames": ["b", "a", "stranger"] });
    bench
        .state
        .record_poll(&bench.rule, "t", progress(half), at_second(6));
    assert_eq!(bench.passed(), ["a", "b"]);
    assert_eq!(bench.reasons()[2], Some("Polling task t: half".into()));
    let task = &bench.status().task_states[0];
    assert_eq!(
        (&task.processing[..], &task.approved[..]),
        (&["c".to_owned()][..], &["a".to_owned(), "b".to_owned()][..])
    );
    assert_eq!(bench.plan(at_second(11)), poll);
    let finished = json!({ "success": true, "finished": true });
    bench
        .state
        .record_poll(&bench.rule, "t", progress(finished), at_second(12));
    assert_eq!(bench.passed(), ["a", "b", "c"]);
    let status = bench.status();
    assert!(status.task_states.is_empty());
    assert_eq!(status.history[0].approved, ["a", "b", "c"]);
    assert_eq!(bench.plan_after_window(at_second(100)), []);
}

#[test]
fn finished_without_success_is_no_approval() {
    let mut bench = TestRule::new(polled_rule("Ignore"), &["a"]);
    bench.ask_and_answer(
        at_second(0),
        answer(json!({ "success": true, "poll": true, "taskId": "t" })),
    );
    bench.plan(at_second(5));
    bench.state.record_poll(
        &bench.rule,
        "t",
        progress(json!({ "finished": true })),
        at_second(5),
    );
    assert_eq!(bench.passed(), [""; 0]);
    assert_eq!(bench.plan(at_second(10)), [CallAction::Poll("t".into())]);
}

#[test]
fn stopped_task_moves_to_history_and_rest_is_asked_again() {
    let mut bench = TestRule::new(polled_rule("Ignore"), &["a", "b"]);
    bench.ask_and_answer(
        at_second(0),
        answer(json!({ "success": true, "poll": true, "taskId": "t" })),
    );
    bench.plan(at_second(5));
    let stop = json!({ "success": false, "stop": true, "message": "no", "finishedNames": ["a"] });
    bench
        .state
        .record_poll(&bench.rule, "t", progress(stop), at_second(5));
    assert_eq!(bench.passed(), ["a"]);
    let history = bench.status().history;
    assert_eq!(
        (&history[0].processing[..], history[0].message.as_str()),
        (&["b".to_owned()][..], "no")
    );
    assert_eq!(
        bench.plan_after_window(at_second(6)),
        [CallAction::Ask(candidates_named(&["b"]))]
    );
}

#[test]
fn poll_that_never_ends_times_out() {
    for (policy, outcome, passes) in [
        ("Ignore", Ok(Progress::default()), false),
        ("Fail", Err("down".to_owned()), false),
        ("Ignore", Err("down".to_owned()), true),
    ] {
        let mut bench = TestRule::new(polled_rule(policy), &["a"]);
        bench.ask_and_answer(
            at_second(0),
            answer(json!({ "success": true, "poll": true, "taskId": "t" })),
        );
        for second in (5..60).step_by(5) {
            assert_eq!(
                bench.plan(at_second(second)),
                [CallAction::Poll("t".into())],
                "{policy}"
            );
            bench
                .state
                .record_poll(&bench.rule, "t", outcome.clone(), at_second(second));
            assert_eq!(bench.passed(), [""; 0]);
        }
        let actions = bench.plan_after_window(at_second(60));
        assert_eq!(bench.passed().len(), usize::from(passes), "{policy}");
        assert_eq!(actions.len(), usize::from(!passes), "asked anew");
        let message = &bench.status().history[0].message;
        assert!(message.starts_with("Polling Timeout."), "{message}");
        assert_eq!(
            message.contains("failurePolicy Ignore"),
            passes,
            "{message}"
        );
        // A late answer has no effect.
        let late_answer = progress(json!({ "success": true, "finished": true }));
        bench
            .state
            .record_poll(&bench.rule, "t", late_answer, at_second(61));
        assert_eq!(bench.passed().len(), usize::from(passes));
    }
}

#[test]
fn new_leader_goes_on_with_tasks_and_answers() {
    let mut bench = TestRule::new(polled_rule("Fail"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.ask_and_answer(at_second(0), answer(start));
    bench.restore_as_new_leader(1, at_second(3));
    assert_eq!(bench.passed(), ["a"]);
    assert_eq!(
        bench.plan_after_window(at_second(3)),
        [CallAction::Poll("t".into())]
    );
    bench.state.record_poll(
        &bench.rule,
        "t",
        progress(json!({ "success": true, "finished": true })),
        at_second(4),
    );
    assert_eq!(bench.passed(), ["a", "b"]);
    bench.restore_as_new_leader(1, at_second(5));
    assert_eq!(
        bench.plan_after_window(at_second(10)),
        [],
        "nothing that was answered is asked twice"
    );
}

#[test]
fn edit_of_rule_makes_answers_and_tasks_void() {
    let mut bench = TestRule::new(polled_rule("Fail"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.ask_and_answer(at_second(0), answer(start));
    bench.rule = rule(json!({ "clientConfig": { "url": "http://other" } }));
    bench.restore_as_new_leader(2, at_second(1));
    assert_eq!(bench.passed(), [""; 0]);
    assert_eq!(
        bench.status().history[0].message,
        "Ended: the rule has changed."
    );
    assert_eq!(
        bench.plan_after_window(at_second(1)),
        [CallAction::Ask(candidates_named(&["a", "b"]))]
    );
}

#[test]
fn unbound_tasks_of_other_server_are_void() {
    let status =
        json!({ "taskStates": [{ "taskId": "t", "processing": ["a"], "approved": ["b"] }] });
    let status: WebhookStatus = serde_json::from_value(status).unwrap();
    let state = CallState::from_status(Some(&status), &rule(json!({})), 1, at_second(0));
    assert!(!state.has_passed(&candidate("b")) && !state.is_pending(&candidate("a")));
}

#[test]
fn departed_operation_is_forgotten_and_new_one_is_asked() {
    let mut bench = TestRule::new(polled_rule("Ignore"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.ask_and_answer(at_second(0), answer(start));
    let later_operation = |name: &str| Candidate {
        since: "8".into(),
        ..candidate(name)
    };
    bench.waiting = vec![later_operation("a"), later_operation("b")];
    assert_eq!(
        bench.plan_after_window(at_second(1)),
        [CallAction::Ask(vec![
            later_operation("a"),
            later_operation("b")
        ])]
    );
    let status = bench.status();
    assert!(status.passed.is_empty() && status.task_states.is_empty());
    assert_eq!(
        status.history[0].message,
        "Ended: none of its Pods waits any more."
    );
}

#[test]
fn status_is_bounded_and_aging_causes_no_write() {
    let names: Vec<String> = (0..1_200).map(|n| format!("p{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = TestRule::new(ignoring(), &names);
    let actions = bench.plan_after_window(at_second(0));
    assert!(matches!(&actions[..], [CallAction::Ask(candidates)] if candidates.len() == 500));
    bench.answered(at_second(0), &names[..500], Err("down".into()));
    assert_eq!(
        bench.plan_after_window(at_second(1)),
        [],
        "the others come when these have gone"
    );
    bench.waiting.drain(..500);
    assert_eq!(bench.plan_after_window(at_second(2)).len(), 1);
    let before = bench.status();
    bench.plan(at_second(100_000));
    assert_eq!(bench.status(), before);
    bench.answered(at_second(100_000), &names[500..600], Err("down".into()));
    assert_eq!(
        bench.status().history.len(),
        1,
        "the old went with a write that was due anyway"
    );
}

#[test]
fn long_texts_of_an_endpoint_are_cut() {
    let mut bench = TestRule::new(rule(json!({})), &["a"]);
    bench.ask_and_answer(
        at_second(0),
        answer(json!({ "message": "é".repeat(100_000) })),
    );
    assert_eq!(bench.reasons()[0].as_ref().unwrap().chars().count(), 512);
}

#[test]
fn texts_of_an_endpoint_steer_no_terminal() {
    let mut bench = TestRule::new(rule(json!({})), &["a"]);
    let message = "not\nnow\u{1b}[2J\u{202e}!\0";
    bench.ask_and_answer(at_second(0), answer(json!({ "message": message })));
    assert_eq!(bench.reasons(), [Some("not now[2J!".to_owned())]);
}

/// Candidates with the longest possible names.
fn longest_candidate(index: usize) -> Candidate {
    Candidate {
        name: format!("{index:0>253}"),
        pod_uid: format!("{index:0>36}"),
        operation: "x".repeat(63),
        since: "1".repeat(19),
    }
}

#[test]
fn status_stays_within_its_share() {
    let text = "<".repeat(2_000);
    // The shares of one of 64 rules with the longest name, of a part, and of a single rule.
    for share in [2_500, 64 * 1024, MAX_STATES_BYTES] {
        for policy in ["Fail", "Ignore"] {
            let mut bench = TestRule::new(polled_rule(policy), &[]);
            bench.state.set_share(share);
            bench.waiting = (0..1_000).map(longest_candidate).collect();
            let mut asked_about = 0;
            for round in 0..400 {
                let now = at_second(round * 100);
                let actions = bench.plan_after_window(now);
                let candidates = actions.into_iter().find_map(|action| match action {
                    CallAction::Ask(candidates) => Some(candidates),
                    CallAction::Poll(_) => None,
                });
                let outcome = match (&candidates, round % 3) {
                    (None, _) => break,
                    (_, 0) => answer(json!({ "success": true, "message": text, "poll": true,
                        "taskId": format!("{round:0>500}") })),
                    (_, 1) => Err(text.clone()),
                    (Some(candidates), _) => answer(json!({ "success": false, "message": text,
                        "finishedNames": [candidates[0].name] })),
                };
                let candidates = candidates.unwrap();
                asked_about += candidates.len();
                bench
                    .state
                    .record_answer(&bench.rule, &candidates, outcome, now, 0.5);
                let status = bench.status();
                let size = size_limits::json_bytes(&status);
                assert!(size <= share, "{size} of {share}: {}", status.omitted);
                // Operations are never left out.
                let stored_count = status.passed.len();
                assert_eq!(stored_count, bench.passed().len(), "{}", status.omitted);
                assert!(!status.omitted.contains(" tasks,"), "{}", status.omitted);
            }
            assert!(asked_about > 0, "{share}");
        }
    }
}

#[test]
fn operations_that_do_not_fit_report_their_wait() {
    let mut bench = TestRule::new(rule(json!({})), &[]);
    bench.state.set_share(4096);
    bench.waiting = (0..100).map(longest_candidate).collect();
    let actions = bench.plan_after_window(at_second(0));
    let [CallAction::Ask(candidates)] = &actions[..] else {
        panic!("{actions:?}")
    };
    let (first, last) = (&bench.waiting[0], &bench.waiting[99]);
    assert!(
        candidates.contains(first) && !candidates.contains(last),
        "{candidates:?}"
    );
    let wait_reason = |candidate| bench.state.wait_reason(candidate).unwrap();
    assert_eq!(wait_reason(first), UNANSWERED_MESSAGE);
    assert!(
        wait_reason(last).contains("asked later"),
        "{}",
        wait_reason(last)
    );
}

#[test]
fn status_of_earlier_version_is_cut_to_its_share() {
    let pods: Vec<_> = (0..2_000).map(longest_candidate).collect();
    let task = |index: usize| {
        json!({ "taskId": index.to_string(), "message": "m".repeat(500), "approved": ["a"],
            "pods": [longest_candidate(index)] })
    };
    let tasks: Vec<_> = (0..100).map(task).collect();
    let status: WebhookStatus = serde_json::from_value(json!({
        "generation": 1, "passed": pods, "taskStates": tasks, "history": tasks,
    }))
    .unwrap();
    for share in [0, 1_000, 100_000, 200_000] {
        let mut state = CallState::from_status(Some(&status), &rule(json!({})), 1, at_second(0));
        state.set_share(share);
        let cut = state.stored_status().unwrap();
        assert!(size_limits::json_bytes(&cut) <= share.max(300), "{share}");
        assert!(
            cut.omitted
                .starts_with("left out because the status is full: "),
            "{}",
            cut.omitted
        );
        assert!(cut.omitted.contains("ended tasks"), "{}", cut.omitted);
    }
}

#[test]
fn history_names_some_of_many_pods() {
    let names: Vec<String> = (0..50).map(|i| format!("p{i:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = TestRule::new(ignoring(), &names);
    bench.ask_and_answer(at_second(0), Err("down".into()));
    let history = bench.status().history;
    assert_eq!(history[0].approved.len(), 20);
    assert_eq!(
        history[0].message,
        "Passed by failurePolicy Ignore: down (30 further Pods passed.)"
    );
}

#[test]
fn poll_urls_take_the_id_escaped_behind_what_is_there() {
    let url = |url: &str, key: &str| {
        let poll = json!({ "url": url, "rawQueryKey": key });
        let rule = rule(json!({ "clientConfig": { "poll": poll } }));
        rule.poll.unwrap().poll_url("a b&c=d/é")
    };
    let id = "a%20b%26c%3Dd%2F%C3%A9";
    assert_eq!(url("http://a/p", ""), format!("http://a/p?task-id={id}"));
    assert_eq!(url("http://a/p?", "id"), format!("http://a/p?id={id}"));
    assert_eq!(
        url("http://a/p?x=y", "id"),
        format!("http://a/p?x=y&id={id}")
    );
    assert_eq!(
        url("http://a/p?x=y&", "i d"),
        format!("http://a/p?x=y&i%20d={id}")
    );
    assert_eq!(
        url("http://a/p?x=y#part", "id"),
        format!("http://a/p?x=y&id={id}")
    );
}

#[test]
fn rule_that_does_not_compile_names_the_field() {
    for (webhook, start) in [
        (json!({}), "spec.rules[0].webhook.clientConfig: is required"),
        (
            json!({ "clientConfig": { "url": "a" } }),
            "spec.rules[0].webhook.clientConfig.url: ",
        ),
        (
            json!({ "clientConfig": { "url": "http://a", "poll": {} } }),
            "spec.rules[0].webhook.clientConfig.poll.url: ",
        ),
        (
            json!({ "clientConfig": { "url": "http://a", "poll": { "url": "http://a", "intervalSeconds": 0 } } }),
            "spec.rules[0].webhook.clientConfig.poll.intervalSeconds: ",
        ),
        (
            json!({ "clientConfig": { "url": "http://a" }, "failurePolicy": "Maybe" }),
            "spec.rules[0].webhook.failurePolicy: ",
        ),
        (
            json!({ "clientConfig": { "url": "http://a" }, "parameters": [{ "key": "k" }] }),
            "spec.rules[0].webhook.parameters[0]: ",
        ),
    ] {
        let object: PodTransitionRule = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule", "metadata": {},
            "spec": { "selector": {}, "rules": [{ "name": "a", "webhook": webhook }] },
        }))
        .unwrap();
        let set = RuleSet::compile(&object);
        assert!(
            matches!(&set.rules[0].kind, RuleKind::Broken { reason, .. } if reason.starts_with(start)),
            "{start}: {set:?}"
        );
    }
}

#[test]
fn intervals_of_any_length_are_kept_in_bounds() {
    let poll =
        json!({ "url": "http://a", "intervalSeconds": i64::MAX, "timeoutSeconds": i64::MAX });
    let mut bench = TestRule::new(rule(json!({ "clientConfig": { "poll": poll } })), &["a"]);
    bench.ask_and_answer(
        at_second(0),
        answer(json!({ "success": true, "poll": true, "taskId": "t" })),
    );
    assert_eq!(bench.plan(at_second(1_000)), []);
}

proptest! {
    /// After any sequence of events: no operation passes by itself, each operation is in one state only, the endpoint
    /// is not asked again about an answered operation, and a restart does not change the stored state.
    #[test]
    fn no_operation_is_lost_asked_twice_or_self_approved(
        steps in prop::collection::vec((0u8..8, any::<u8>(), 0i64..30), 1..60), ignore in any::<bool>(),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut bench = TestRule::new(polled_rule(if ignore { "Ignore" } else { "Fail" }), &names);
        let (mut now, mut in_flight, mut polling) = (0, None::<Vec<Candidate>>, BTreeSet::new());
        let mut allowed = BTreeSet::new();
        for (event, bits, pause) in steps {
            now += pause;
            let some: Vec<&str> = (0..4).filter(|n| bits >> n & 1 == 1).map(|n| names[n]).collect();
            match event {
                0 | 1 => for action in bench.plan_after_window(at_second(now)) {
                    match action {
                        CallAction::Ask(candidates) => {
                            prop_assert!(in_flight.is_none());
                            prop_assert!(candidates.iter().all(|c| !bench.state.has_passed(c)), "asked twice");
                            in_flight = Some(candidates);
                        }
                        CallAction::Poll(id) => prop_assert!(polling.insert(id), "polled twice at once"),
                    }
                },
                2..=4 => if let Some(candidates) = in_flight.take() {
                    let outcome = match event {
                        2 => answer(json!({ "success": bits & 16 != 0, "finishedNames": some })),
                        3 => answer(json!({ "success": true, "poll": true, "taskId": (bits & 3).to_string(), "finishedNames": some })),
                        _ => Err("down".to_owned()),
                    };
                    let all_pass = event == 2 && bits & 16 != 0 || event == 4 && ignore;
                    let passing = candidates.iter().filter(|c| all_pass || event != 4 && some.contains(&c.name.as_str()));
                    allowed.extend(passing.cloned());
                    bench.state.record_answer(&bench.rule, &candidates, outcome, at_second(now), 0.5);
                },
                5 | 6 => if let Some(id) = polling.pop_first() {
                    let outcome = match event {
                        5 => progress(json!({ "success": bits & 16 != 0, "finished": bits & 32 != 0, "stop": bits & 64 != 0, "finishedNames": some })),
                        _ => Err("down".to_owned()),
                    };
                    let processing: Vec<_> = bench.status().task_states.into_iter().filter(|t| t.task_id == id).flat_map(|t| t.pods).collect();
                    let all_pass = event == 5 && bits & 16 != 0 && bits & 32 != 0;
                    let passing = processing.iter().filter(|c| all_pass || event == 5 && some.contains(&c.name.as_str()));
                    allowed.extend(passing.cloned());
                    bench.state.record_poll(&bench.rule, &id, outcome, at_second(now));
                },
                _ => if in_flight.is_none() {
                    let before = bench.status();
                    bench.restore_as_new_leader(1, at_second(now));
                    polling.clear();
                    prop_assert_eq!(bench.status(), before);
                },
            }
            let timed_out_in_ignored_failure = ignore; // then more may pass than the endpoint allowed
            for candidate in &bench.waiting {
                let (passed, pending) = (bench.state.has_passed(candidate), bench.state.is_pending(candidate));
                prop_assert!(!(passed && pending), "{candidate:?} in two states");
                prop_assert!(!passed || timed_out_in_ignored_failure || allowed.contains(candidate), "{candidate:?} passed by itself");
                prop_assert_eq!(bench.state.wait_reason(candidate).is_none(), passed);
            }
            let status = bench.status();
            let mut sorted = status.passed.clone();
            sorted.sort();
            prop_assert_eq!(&status.passed, &sorted);
        }
    }
}

#[test]
fn failing_endpoint_is_backed_off_and_nobody_passes() {
    let mut bench = TestRule::new(ignoring(), &[]);
    for n in 0..5 {
        bench.waiting = candidates_named(&[&format!("p{n}")]);
        bench.ask_and_answer(at_second(n), Err("down".into()));
        assert_eq!(bench.passed().len(), 1);
    }
    bench.waiting = candidates_named(&["late"]);
    assert_eq!(bench.plan_after_window(at_second(4)), []);
    assert_eq!(bench.passed(), [""; 0]);
    assert_eq!(
        bench.reasons(),
        [Some(
            "its endpoint is asked later, since the last 5 calls failed: down".to_owned()
        )]
    );
    let waiting: BTreeSet<_> = bench.waiting.iter().cloned().collect();
    let plan = bench
        .state
        .plan_calls(&bench.rule, at_second(4), &waiting, &bench.waiting);
    assert!(
        plan.due
            .is_some_and(|due| due > at_second(4) && due <= at_second(20))
    );
    bench.ask_and_answer(
        at_second(6),
        answer(json!({ "success": false, "message": "no" })),
    );
    assert_eq!(bench.passed(), [""; 0]);
    bench.waiting.push(candidate("later"));
    assert_eq!(
        bench.plan_after_window(at_second(7)),
        [CallAction::Ask(candidates_named(&["later"]))]
    );
}

#[test]
fn each_of_many_refused_operations_is_asked_about_again() {
    let mut bench = TestRule::new(rule(json!({})), &[]);
    bench.waiting = (0..1_300).map(|n| candidate(&format!("p{n:04}"))).collect();
    let mut times: std::collections::BTreeMap<String, usize> = Default::default();
    for round in 0..12 {
        for action in bench.plan_after_window(at_second(round * 7)) {
            let CallAction::Ask(candidates) = action else {
                panic!()
            };
            for candidate in &candidates {
                *times.entry(candidate.name.clone()).or_default() += 1;
            }
            let no = answer(json!({ "success": false }));
            // Each call takes longer than the retry time of refused operations.
            let then = at_second(round * 7 + 6);
            bench
                .state
                .record_answer(&bench.rule, &candidates, no, then, 0.0);
        }
    }
    assert_eq!(times.len(), 1_300);
    assert!(times.values().all(|n| *n >= 2), "{times:?}");
}

#[test]
fn unrelated_object_change_keeps_known_verdicts() {
    let mut bench = TestRule::new(polled_rule("Fail"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.ask_and_answer(at_second(0), answer(start));
    bench.state.follow_generation(&bench.rule, 2, at_second(1));
    assert_eq!(bench.passed(), ["a"]);
    assert!(bench.state.is_pending(&candidate("b")));
    bench.restore_as_new_leader(3, at_second(2));
    assert_eq!(bench.passed(), ["a"]);
    assert!(bench.state.is_pending(&candidate("b")));

    for change in [
        json!({ "clientConfig": { "url": "http://b" } }),
        json!({ "failurePolicy": "Ignore" }),
        json!({ "parameters": [{ "key": "k", "value": "v" }] }),
    ] {
        let mut state = bench.state.clone();
        let mut config = json!({ "failurePolicy": "Fail" });
        json_patch::merge(&mut config, &change);
        state.follow_generation(&rule(config), 4, at_second(3));
        assert!(!state.has_passed(&candidate("a")), "{change}");
    }
}

#[test]
fn status_without_a_hash_counts_for_its_generation() {
    let stored = json!({ "generation": 1, "passed": [candidate("a")] });
    let stored: WebhookStatus = serde_json::from_value(stored).unwrap();
    for (generation, counts) in [(1, true), (2, false)] {
        let state =
            CallState::from_status(Some(&stored), &rule(json!({})), generation, at_second(0));
        assert_eq!(state.has_passed(&candidate("a")), counts, "{generation}");
    }
}

#[test]
fn unreadable_ca_bundle_verifies_nothing() {
    for bundle in ["*", "bm90IFBFTQ=="] {
        let rule = rule(json!({ "clientConfig": { "url": "https://a", "caBundle": bundle } }));
        assert!(!rule.endpoint.ca.is_empty(), "{bundle}");
    }
}

#[test]
fn failure_is_cleared_once_nobody_waits_except_ignore() {
    for (rule, failure) in [(rule(json!({})), ""), (ignoring(), "down")] {
        let mut bench = TestRule::new(rule, &["a"]);
        bench.ask_and_answer(at_second(0), Err("down".into()));
        assert_eq!(bench.status().failing, "down");
        bench.waiting.clear();
        bench.plan(at_second(1));
        assert_eq!(bench.status().failing, failure);
    }
}
