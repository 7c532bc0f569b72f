#![allow(clippy::unwrap_used, clippy::panic)]
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::podtransitionrule::{PodTransitionRule, WebhookStatus};
use crate::api::rulecalls::{Answer, Progress};
use crate::api::stored::{self, MAX_STATES_BYTES};
use crate::domain::rules::{RuleKind, RuleSet};

fn rule(webhook: Value) -> Webhook {
    let mut config = json!({ "clientConfig": { "url": "http://a" } });
    json_patch::merge(&mut config, &webhook);
    Webhook::compile(&serde_json::from_value(config).unwrap(), None, "w", true).unwrap()
}

fn ignoring() -> Webhook {
    rule(json!({ "failurePolicy": "Ignore" }))
}

fn polled_rule(policy: &str) -> Webhook {
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

fn all(names: &[&str]) -> Vec<Candidate> {
    names.iter().map(|n| candidate(n)).collect()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn answer(value: Value) -> Result<Answer, String> {
    Ok(serde_json::from_value(value).unwrap())
}

fn progress(value: Value) -> Result<Progress, String> {
    Ok(serde_json::from_value(value).unwrap())
}

/// A rule's memory with the Pods that wait.
struct Bench {
    rule: Webhook,
    memory: Memory,
    waiting: Vec<Candidate>,
}

impl Bench {
    fn new(rule: Webhook, names: &[&str]) -> Bench {
        let memory = Memory::restore(None, &rule, 1, at(0));
        let waiting = all(names);
        Bench {
            rule,
            memory,
            waiting,
        }
    }

    fn plan(&mut self, now: Timestamp) -> Vec<Action> {
        let staying: BTreeSet<_> = self.waiting.iter().cloned().collect();
        self.memory
            .plan(&self.rule, now, &staying, &self.waiting)
            .actions
    }

    /// Plans over the time in which Pods are gathered.
    fn asks(&mut self, now: Timestamp) -> Vec<Action> {
        let first = self.plan(now);
        let then = self.plan(now + SignedDuration::from_millis(300));
        first.into_iter().chain(then).collect()
    }

    fn answered(&mut self, now: Timestamp, asked: &[&str], outcome: Result<Answer, String>) {
        self.memory
            .answered(&self.rule, &all(asked), outcome, now, 0.0);
    }

    /// Asks about all, and takes in this answer.
    fn exchange(&mut self, now: Timestamp, outcome: Result<Answer, String>) {
        let asked = self.waiting.clone();
        assert_eq!(self.asks(now), [Action::Ask(asked.clone())]);
        self.memory.answered(&self.rule, &asked, outcome, now, 0.0);
    }

    fn reasons(&self) -> Vec<Option<String>> {
        self.waiting.iter().map(|c| self.memory.reason(c)).collect()
    }

    fn passed(&self) -> Vec<&str> {
        let passed = self.waiting.iter().filter(|c| self.memory.has_passed(c));
        passed.map(|c| c.name.as_str()).collect()
    }

    fn status(&self) -> WebhookStatus {
        self.memory.status().unwrap_or_default()
    }

    /// As a new leader finds it.
    fn restart(&mut self, generation: i64, now: Timestamp) {
        let status = self.memory.status();
        // What is stored is what is read back.
        let text = serde_json::to_string(&status).unwrap();
        let read: Option<WebhookStatus> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, status);
        self.memory = Memory::restore(read.as_ref(), &self.rule, generation, now);
    }
}

#[test]
fn pods_that_come_together_are_asked_about_in_one_call_and_once() {
    let mut bench = Bench::new(rule(json!({})), &["a"]);
    assert_eq!(bench.plan(at(0)), []);
    bench.waiting = all(&["b", "a"]);
    let asked = [Action::Ask(all(&["a", "b"]))];
    assert_eq!(bench.plan(at(1)), asked);
    bench.waiting = all(&["b", "a", "c"]);
    assert_eq!(bench.asks(at(2)), [], "one call at a time");
    bench.answered(at(3), &["a", "b"], answer(json!({ "success": true })));
    assert_eq!(bench.passed(), ["b", "a"]);
    assert_eq!(bench.asks(at(4)), [Action::Ask(all(&["c"]))]);
    bench.answered(at(5), &["c"], answer(json!({ "success": true })));
    assert_eq!(bench.asks(at(1_000)), []);
}

#[test]
fn a_refusal_lets_the_finished_pass_and_asks_again_about_the_rest() {
    let mut bench = Bench::new(rule(json!({})), &["a", "b"]);
    let refusal =
        json!({ "success": false, "message": "busy", "finishedNames": ["b", "stranger", "b"] });
    bench.exchange(at(0), answer(refusal));
    assert_eq!(bench.passed(), ["b"]);
    assert_eq!(bench.reasons(), [Some("busy".into()), None]);
    assert_eq!(bench.asks(at(4)), []);
    assert_eq!(bench.asks(at(5)), [Action::Ask(all(&["a"]))]);
    assert_eq!(
        bench.reasons()[0],
        Some("busy".into()),
        "the same text while it is asked"
    );
    assert_eq!(bench.status().passed, all(&["b"]), "no stranger");
}

#[test]
fn a_failure_passes_or_holds_by_the_policy_and_is_tried_again_ever_later() {
    let mut ignoring = Bench::new(ignoring(), &["a", "b"]);
    ignoring.exchange(at(0), Err("connection refused".into()));
    assert_eq!(ignoring.passed(), ["a", "b"]);
    let history = ignoring.status().history;
    assert_eq!(
        (&history[0].approved[..], history[0].message.as_str()),
        (
            &["a".to_owned(), "b".to_owned()][..],
            "Passed by failurePolicy Ignore: connection refused"
        )
    );

    let mut failing = Bench::new(rule(json!({ "failurePolicy": "Fail" })), &["a"]);
    let mut now = 0;
    for pause in [1, 2, 4, 8, 16, 30, 30] {
        failing.exchange(at(now), Err("connection refused".into()));
        assert_eq!(failing.reasons(), [Some("connection refused".into())]);
        assert_eq!(
            failing.asks(at(now) + SignedDuration::from_millis(pause * 1000 - 400)),
            []
        );
        now += pause;
    }
    failing.exchange(at(now), answer(json!({ "success": false })));
    failing.exchange(at(now + 5), Err("connection refused".into()));
    assert_eq!(
        failing.asks(at(now + 6)).len(),
        1,
        "an answer ends the growing"
    );
    assert_eq!(failing.status().failing, "connection refused");
    failing.answered(at(now + 7), &["a"], answer(json!({ "success": false })));
    assert_eq!(failing.memory.status(), None, "nothing to tell");
}

#[test]
fn odd_answers_about_tasks_hold_with_a_reason() {
    let long = json!({ "success": true, "poll": true });
    let with = |id: &str| json!({ "success": true, "poll": true, "taskId": id });
    for (rule, given, why) in [
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
        let mut bench = Bench::new(rule, &["a"]);
        bench.exchange(at(0), answer(given));
        assert_eq!(bench.reasons(), [Some(why.to_owned())]);
        assert_eq!(bench.asks(at(5)).len(), 1);
    }
}

#[test]
fn a_task_is_polled_until_it_has_let_all_pass() {
    let mut bench = Bench::new(polled_rule("Ignore"), &["a", "b", "c"]);
    let start = json!({ "success": true, "poll": true, "traceId": "t", "finishedNames": ["a"] });
    bench.exchange(at(0), answer(start));
    assert_eq!(bench.passed(), ["a"]);
    assert_eq!(
        bench.reasons()[1],
        Some("Polling task t initialized".into())
    );
    assert_eq!(bench.plan(at(4)), []);
    let poll = [Action::Poll("t".into())];
    assert_eq!(bench.plan(at(5)), poll);
    assert_eq!(bench.plan(at(50)), [], "one poll of a task at a time");
    let half =
        json!({ "success": true, "message": "half", "finishedNames": ["b", "a", "stranger"] });
    bench.memory.polled(&bench.rule, "t", progress(half), at(6));
    assert_eq!(bench.passed(), ["a", "b"]);
    assert_eq!(bench.reasons()[2], Some("Polling task t: half".into()));
    let task = &bench.status().task_states[0];
    assert_eq!(
        (&task.processing[..], &task.approved[..]),
        (&["c".to_owned()][..], &["a".to_owned(), "b".to_owned()][..])
    );
    assert_eq!(bench.plan(at(11)), poll);
    let done = json!({ "success": true, "finished": true });
    bench
        .memory
        .polled(&bench.rule, "t", progress(done), at(12));
    assert_eq!(bench.passed(), ["a", "b", "c"]);
    let status = bench.status();
    assert!(status.task_states.is_empty());
    assert_eq!(status.history[0].approved, ["a", "b", "c"]);
    assert_eq!(bench.asks(at(100)), []);
}

#[test]
fn finished_without_success_is_no_approval() {
    let mut bench = Bench::new(polled_rule("Ignore"), &["a"]);
    bench.exchange(
        at(0),
        answer(json!({ "success": true, "poll": true, "taskId": "t" })),
    );
    bench.plan(at(5));
    bench.memory.polled(
        &bench.rule,
        "t",
        progress(json!({ "finished": true })),
        at(5),
    );
    assert_eq!(bench.passed(), [""; 0]);
    assert_eq!(bench.plan(at(10)), [Action::Poll("t".into())]);
}

#[test]
fn a_stopped_task_goes_to_the_history_and_the_rest_is_asked_about_anew() {
    let mut bench = Bench::new(polled_rule("Ignore"), &["a", "b"]);
    bench.exchange(
        at(0),
        answer(json!({ "success": true, "poll": true, "taskId": "t" })),
    );
    bench.plan(at(5));
    let stop = json!({ "success": false, "stop": true, "message": "no", "finishedNames": ["a"] });
    bench.memory.polled(&bench.rule, "t", progress(stop), at(5));
    assert_eq!(bench.passed(), ["a"]);
    let history = bench.status().history;
    assert_eq!(
        (&history[0].processing[..], history[0].message.as_str()),
        (&["b".to_owned()][..], "no")
    );
    assert_eq!(bench.asks(at(6)), [Action::Ask(all(&["b"]))]);
}

#[test]
fn a_poll_that_never_ends_times_out() {
    for (policy, outcome, passes) in [
        ("Ignore", Ok(Progress::default()), false),
        ("Fail", Err("down".to_owned()), false),
        ("Ignore", Err("down".to_owned()), true),
    ] {
        let mut bench = Bench::new(polled_rule(policy), &["a"]);
        bench.exchange(
            at(0),
            answer(json!({ "success": true, "poll": true, "taskId": "t" })),
        );
        for second in (5..60).step_by(5) {
            assert_eq!(
                bench.plan(at(second)),
                [Action::Poll("t".into())],
                "{policy}"
            );
            bench
                .memory
                .polled(&bench.rule, "t", outcome.clone(), at(second));
            assert_eq!(bench.passed(), [""; 0]);
        }
        let asked = bench.asks(at(60));
        assert_eq!(bench.passed().len(), usize::from(passes), "{policy}");
        assert_eq!(asked.len(), usize::from(!passes), "asked anew");
        let ended = &bench.status().history[0].message;
        assert!(ended.starts_with("Polling Timeout."), "{ended}");
        assert_eq!(ended.contains("failurePolicy Ignore"), passes, "{ended}");
        // A reply that comes too late finds nothing.
        let late = progress(json!({ "success": true, "finished": true }));
        bench.memory.polled(&bench.rule, "t", late, at(61));
        assert_eq!(bench.passed().len(), usize::from(passes));
    }
}

#[test]
fn a_new_leader_goes_on_with_tasks_and_answers() {
    let mut bench = Bench::new(polled_rule("Fail"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.exchange(at(0), answer(start));
    bench.restart(1, at(3));
    assert_eq!(bench.passed(), ["a"]);
    assert_eq!(bench.asks(at(3)), [Action::Poll("t".into())]);
    bench.memory.polled(
        &bench.rule,
        "t",
        progress(json!({ "success": true, "finished": true })),
        at(4),
    );
    assert_eq!(bench.passed(), ["a", "b"]);
    bench.restart(1, at(5));
    assert_eq!(
        bench.asks(at(10)),
        [],
        "nothing that was answered is asked twice"
    );
}

#[test]
fn an_edit_of_the_rule_makes_answers_and_tasks_void() {
    let mut bench = Bench::new(polled_rule("Fail"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.exchange(at(0), answer(start));
    bench.rule = rule(json!({ "clientConfig": { "url": "http://other" } }));
    bench.restart(2, at(1));
    assert_eq!(bench.passed(), [""; 0]);
    assert_eq!(
        bench.status().history[0].message,
        "Ended: the rule has changed."
    );
    assert_eq!(bench.asks(at(1)), [Action::Ask(all(&["a", "b"]))]);
}

#[test]
fn tasks_of_a_server_that_did_not_bind_them_are_void() {
    let status =
        json!({ "taskStates": [{ "taskId": "t", "processing": ["a"], "approved": ["b"] }] });
    let status: WebhookStatus = serde_json::from_value(status).unwrap();
    let memory = Memory::restore(Some(&status), &rule(json!({})), 1, at(0));
    assert!(!memory.has_passed(&candidate("b")) && !memory.is_pending(&candidate("a")));
}

#[test]
fn what_leaves_the_stage_is_forgotten_and_a_new_operation_is_asked_about_anew() {
    let mut bench = Bench::new(polled_rule("Ignore"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.exchange(at(0), answer(start));
    let again = |name: &str| Candidate {
        since: "8".into(),
        ..candidate(name)
    };
    bench.waiting = vec![again("a"), again("b")];
    assert_eq!(
        bench.asks(at(1)),
        [Action::Ask(vec![again("a"), again("b")])]
    );
    let status = bench.status();
    assert!(status.passed.is_empty() && status.task_states.is_empty());
    assert_eq!(
        status.history[0].message,
        "Ended: none of its Pods waits any more."
    );
}

#[test]
fn the_status_is_bounded_and_growing_old_is_no_reason_to_write() {
    let names: Vec<String> = (0..1_200).map(|n| format!("p{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::new(ignoring(), &names);
    let asked = bench.asks(at(0));
    assert!(matches!(&asked[..], [Action::Ask(who)] if who.len() == 500));
    bench.answered(at(0), &names[..500], Err("down".into()));
    assert_eq!(
        bench.asks(at(1)),
        [],
        "the others come when these have gone"
    );
    bench.waiting.drain(..500);
    assert_eq!(bench.asks(at(2)).len(), 1);
    let before = bench.status();
    bench.plan(at(100_000));
    assert_eq!(bench.status(), before);
    bench.answered(at(100_000), &names[500..600], Err("down".into()));
    assert_eq!(
        bench.status().history.len(),
        1,
        "the old went with a write that was due anyway"
    );
}

#[test]
fn long_texts_of_an_endpoint_are_cut() {
    let mut bench = Bench::new(rule(json!({})), &["a"]);
    bench.exchange(at(0), answer(json!({ "message": "é".repeat(100_000) })));
    assert_eq!(bench.reasons()[0].as_ref().unwrap().chars().count(), 512);
}

#[test]
fn texts_of_an_endpoint_steer_no_terminal() {
    let mut bench = Bench::new(rule(json!({})), &["a"]);
    let message = "not\nnow\u{1b}[2J\u{202e}!\0";
    bench.exchange(at(0), answer(json!({ "message": message })));
    assert_eq!(bench.reasons(), [Some("not now[2J!".to_owned())]);
}

/// Pods with the longest names, and what an endpoint may say at most about each.
fn long(index: usize) -> Candidate {
    Candidate {
        name: format!("{index:0>253}"),
        pod_uid: format!("{index:0>36}"),
        operation: "x".repeat(63),
        since: "1".repeat(19),
    }
}

#[test]
fn status_stays_within_its_share_whatever_endpoints_say() {
    let text = "<".repeat(2_000);
    // As one of 64 rules of the longest name, and alone.
    for share in [2_500, 64 * 1024, MAX_STATES_BYTES] {
        for policy in ["Fail", "Ignore"] {
            let mut bench = Bench::new(polled_rule(policy), &[]);
            bench.memory.set_share(share);
            bench.waiting = (0..1_000).map(long).collect();
            let mut asked_about = 0;
            for round in 0..400 {
                let now = at(round * 100);
                let actions = bench.asks(now);
                let asked = actions.into_iter().find_map(|action| match action {
                    Action::Ask(asked) => Some(asked),
                    Action::Poll(_) => None,
                });
                let outcome = match (&asked, round % 3) {
                    (None, _) => break,
                    (_, 0) => answer(json!({ "success": true, "message": text, "poll": true,
                        "taskId": format!("{round:0>500}") })),
                    (_, 1) => Err(text.clone()),
                    (Some(asked), _) => answer(json!({ "success": false, "message": text,
                        "finishedNames": [asked[0].name] })),
                };
                let asked = asked.unwrap();
                asked_about += asked.len();
                bench
                    .memory
                    .answered(&bench.rule, &asked, outcome, now, 0.5);
                let status = bench.status();
                let size = stored::bytes(&status);
                assert!(size <= share, "{size} of {share}: {}", status.omitted);
                // Whatever is left out, no operation is.
                let kept = status.passed.len();
                assert_eq!(kept, bench.passed().len(), "{}", status.omitted);
                assert!(!status.omitted.contains(" tasks,"), "{}", status.omitted);
            }
            assert!(asked_about > 0, "{share}");
        }
    }
}

#[test]
fn operations_without_room_say_why_they_wait() {
    let mut bench = Bench::new(rule(json!({})), &[]);
    bench.memory.set_share(4096);
    bench.waiting = (0..100).map(long).collect();
    let asked = bench.asks(at(0));
    let [Action::Ask(asked)] = &asked[..] else {
        panic!("{asked:?}")
    };
    let (first, last) = (&bench.waiting[0], &bench.waiting[99]);
    assert!(asked.contains(first) && !asked.contains(last), "{asked:?}");
    let why = |candidate| bench.memory.reason(candidate).unwrap();
    assert_eq!(why(first), UNANSWERED);
    assert!(why(last).contains("asked later"), "{}", why(last));
}

#[test]
fn what_an_earlier_version_has_stored_is_cut_to_its_share() {
    let pods: Vec<_> = (0..2_000).map(long).collect();
    let task = |index: usize| {
        json!({ "taskId": index.to_string(), "message": "m".repeat(500), "approved": ["a"],
            "pods": [long(index)] })
    };
    let tasks: Vec<_> = (0..100).map(task).collect();
    let status: WebhookStatus = serde_json::from_value(json!({
        "generation": 1, "passed": pods, "taskStates": tasks, "history": tasks,
    }))
    .unwrap();
    for share in [0, 1_000, 100_000, 200_000] {
        let mut memory = Memory::restore(Some(&status), &rule(json!({})), 1, at(0));
        memory.set_share(share);
        let cut = memory.status().unwrap();
        assert!(stored::bytes(&cut) <= share.max(300), "{share}");
        assert!(
            cut.omitted.starts_with("left out for want of room: "),
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
    let mut bench = Bench::new(ignoring(), &names);
    bench.exchange(at(0), Err("down".into()));
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
        rule.poll.unwrap().url("a b&c=d/é")
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
fn what_can_not_be_compiled_names_the_field() {
    for (webhook, why) in [
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
            matches!(&set.rules[0].kind, RuleKind::Broken { why: found, .. } if found.starts_with(why)),
            "{why}: {set:?}"
        );
    }
}

#[test]
fn intervals_of_any_length_are_kept_in_bounds() {
    let poll =
        json!({ "url": "http://a", "intervalSeconds": i64::MAX, "timeoutSeconds": i64::MAX });
    let mut bench = Bench::new(rule(json!({ "clientConfig": { "poll": poll } })), &["a"]);
    bench.exchange(
        at(0),
        answer(json!({ "success": true, "poll": true, "taskId": "t" })),
    );
    assert_eq!(bench.plan(at(1_000)), []);
}

proptest! {
    /// Whatever comes in whatever order: nothing passes that nobody let pass, an operation is in one state only, what is
    /// answered is not asked again, and a restart changes nothing of what was stored.
    #[test]
    fn nothing_is_lost_asked_twice_or_passed_by_itself(
        steps in prop::collection::vec((0u8..8, any::<u8>(), 0i64..30), 1..60), ignore in any::<bool>(),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut bench = Bench::new(polled_rule(if ignore { "Ignore" } else { "Fail" }), &names);
        let (mut now, mut in_flight, mut polling) = (0, None::<Vec<Candidate>>, BTreeSet::new());
        let mut allowed = BTreeSet::new();
        for (what, bits, pause) in steps {
            now += pause;
            let some: Vec<&str> = (0..4).filter(|n| bits >> n & 1 == 1).map(|n| names[n]).collect();
            match what {
                0 | 1 => for action in bench.asks(at(now)) {
                    match action {
                        Action::Ask(who) => {
                            prop_assert!(in_flight.is_none());
                            prop_assert!(who.iter().all(|c| !bench.memory.has_passed(c)), "asked twice");
                            in_flight = Some(who);
                        }
                        Action::Poll(id) => prop_assert!(polling.insert(id), "polled twice at once"),
                    }
                },
                2..=4 => if let Some(asked) = in_flight.take() {
                    let outcome = match what {
                        2 => answer(json!({ "success": bits & 16 != 0, "finishedNames": some })),
                        3 => answer(json!({ "success": true, "poll": true, "taskId": (bits & 3).to_string(), "finishedNames": some })),
                        _ => Err("down".to_owned()),
                    };
                    let all_pass = what == 2 && bits & 16 != 0 || what == 4 && ignore;
                    let passing = asked.iter().filter(|c| all_pass || what != 4 && some.contains(&c.name.as_str()));
                    allowed.extend(passing.cloned());
                    bench.memory.answered(&bench.rule, &asked, outcome, at(now), 0.5);
                },
                5 | 6 => if let Some(id) = polling.pop_first() {
                    let outcome = match what {
                        5 => progress(json!({ "success": bits & 16 != 0, "finished": bits & 32 != 0, "stop": bits & 64 != 0, "finishedNames": some })),
                        _ => Err("down".to_owned()),
                    };
                    let processing: Vec<_> = bench.status().task_states.into_iter().filter(|t| t.task_id == id).flat_map(|t| t.pods).collect();
                    let all_pass = what == 5 && bits & 16 != 0 && bits & 32 != 0;
                    let passing = processing.iter().filter(|c| all_pass || what == 5 && some.contains(&c.name.as_str()));
                    allowed.extend(passing.cloned());
                    bench.memory.polled(&bench.rule, &id, outcome, at(now));
                },
                _ => if in_flight.is_none() {
                    let before = bench.status();
                    bench.restart(1, at(now));
                    polling.clear();
                    prop_assert_eq!(bench.status(), before);
                },
            }
            let timed_out_in_ignored_failure = ignore; // then more may pass than was said
            for candidate in &bench.waiting {
                let (passed, pending) = (bench.memory.has_passed(candidate), bench.memory.is_pending(candidate));
                prop_assert!(!(passed && pending), "{candidate:?} in two states");
                prop_assert!(!passed || timed_out_in_ignored_failure || allowed.contains(candidate), "{candidate:?} passed by itself");
                prop_assert_eq!(bench.memory.reason(candidate).is_none(), passed);
            }
            let status = bench.status();
            let mut sorted = status.passed.clone();
            sorted.sort();
            prop_assert_eq!(&status.passed, &sorted);
        }
    }
}

#[test]
fn endpoint_that_keeps_failing_is_left_alone_and_nobody_passes_meanwhile() {
    let mut bench = Bench::new(ignoring(), &[]);
    for n in 0..5 {
        bench.waiting = all(&[&format!("p{n}")]);
        bench.exchange(at(n), Err("down".into()));
        assert_eq!(bench.passed().len(), 1);
    }
    bench.waiting = all(&["late"]);
    assert_eq!(bench.asks(at(4)), []);
    assert_eq!(bench.passed(), [""; 0]);
    assert_eq!(
        bench.reasons(),
        [Some(
            "its endpoint is asked later, since the last 5 calls failed: down".to_owned()
        )]
    );
    let staying: BTreeSet<_> = bench.waiting.iter().cloned().collect();
    let plan = bench
        .memory
        .plan(&bench.rule, at(4), &staying, &bench.waiting);
    assert!(plan.due.is_some_and(|due| due > at(4) && due <= at(20)));
    bench.exchange(at(6), answer(json!({ "success": false, "message": "no" })));
    assert_eq!(bench.passed(), [""; 0]);
    bench.waiting.push(candidate("later"));
    assert_eq!(bench.asks(at(7)), [Action::Ask(all(&["later"]))]);
}

#[test]
fn each_of_many_refused_operations_is_asked_about_again() {
    let mut bench = Bench::new(rule(json!({})), &[]);
    bench.waiting = (0..1_300).map(|n| candidate(&format!("p{n:04}"))).collect();
    let mut times: std::collections::BTreeMap<String, usize> = Default::default();
    for round in 0..12 {
        for action in bench.asks(at(round * 7)) {
            let Action::Ask(asked) = action else { panic!() };
            for candidate in &asked {
                *times.entry(candidate.name.clone()).or_default() += 1;
            }
            let no = answer(json!({ "success": false }));
            // Each call takes longer than refused operations rest.
            let then = at(round * 7 + 6);
            bench.memory.answered(&bench.rule, &asked, no, then, 0.0);
        }
    }
    assert_eq!(times.len(), 1_300);
    assert!(times.values().all(|n| *n >= 2), "{times:?}");
}

#[test]
fn change_of_the_object_beside_the_rule_keeps_what_is_known() {
    let mut bench = Bench::new(polled_rule("Fail"), &["a", "b"]);
    let start = json!({ "success": true, "poll": true, "taskId": "t", "finishedNames": ["a"] });
    bench.exchange(at(0), answer(start));
    bench.memory.follow(&bench.rule, 2, at(1));
    assert_eq!(bench.passed(), ["a"]);
    assert!(bench.memory.is_pending(&candidate("b")));
    bench.restart(3, at(2));
    assert_eq!(bench.passed(), ["a"]);
    assert!(bench.memory.is_pending(&candidate("b")));

    for change in [
        json!({ "clientConfig": { "url": "http://b" } }),
        json!({ "failurePolicy": "Ignore" }),
        json!({ "parameters": [{ "key": "k", "value": "v" }] }),
    ] {
        let mut memory = bench.memory.clone();
        let mut config = json!({ "failurePolicy": "Fail" });
        json_patch::merge(&mut config, &change);
        memory.follow(&rule(config), 4, at(3));
        assert!(!memory.has_passed(&candidate("a")), "{change}");
    }
}

#[test]
fn status_without_a_hash_counts_for_its_generation() {
    let stored = json!({ "generation": 1, "passed": [candidate("a")] });
    let stored: WebhookStatus = serde_json::from_value(stored).unwrap();
    for (generation, counts) in [(1, true), (2, false)] {
        let memory = Memory::restore(Some(&stored), &rule(json!({})), generation, at(0));
        assert_eq!(memory.has_passed(&candidate("a")), counts, "{generation}");
    }
}

#[test]
fn stored_bundle_that_nobody_can_read_verifies_nothing() {
    for bundle in ["*", "bm90IFBFTQ=="] {
        let rule = rule(json!({ "clientConfig": { "url": "https://a", "caBundle": bundle } }));
        assert!(!rule.endpoint.ca.is_empty(), "{bundle}");
    }
}

#[test]
fn failure_is_no_news_once_nobody_waits() {
    for (rule, told) in [(rule(json!({})), ""), (ignoring(), "down")] {
        let mut bench = Bench::new(rule, &["a"]);
        bench.exchange(at(0), Err("down".into()));
        assert_eq!(bench.status().failing, "down");
        bench.waiting.clear();
        bench.plan(at(1));
        assert_eq!(bench.status().failing, told);
    }
}
