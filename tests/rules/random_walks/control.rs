//! Tests of the judge: histories that it must reject, and histories that it must accept.

use serde_json::{Value, json};

use operating::api::keys::Family;

use super::history::{Answer, Call, History, ObjectVersion, PodVersion};
use super::judge::judge;

const URL: &str = "https://localhost:1/check";
const POLL: &str = "https://localhost:1/poll";

/// A time long after every begin, in seconds.
fn at(seconds: u64) -> u64 {
    (1_000 + seconds) * 1_000_000_000
}

/// A rule `ask` with this failure policy.
fn rule(policy: &str) -> Value {
    let poll = json!({"url": POLL, "timeoutSeconds": 5});
    let config = json!({"url": URL, "poll": poll});
    json!({"name": "ask", "webhook": {"failurePolicy": policy, "clientConfig": config}})
}

/// A Pod with an operation `x` that began at 0, passed its rules at 10, was finished at 20 and ended at 30.
fn history(rules: Value) -> History {
    let version = |seconds: u64, labels: &[(Family, u64)]| PodVersion {
        uid: "u".into(),
        name: "p".into(),
        at: at(seconds),
        labels: Some(
            labels
                .iter()
                .map(|(f, s)| (f.key("x"), at(*s).to_string()))
                .collect(),
        ),
    };
    use Family::{Completing, Operate, Operating, PostCheck, PostChecked, PreCheck, PreChecked};
    History {
        pods: vec![
            version(0, &[]),
            version(0, &[(Operating, 0), (PreCheck, 0)]),
            version(10, &[(Operating, 0), (PreChecked, 10), (Operate, 10)]),
            version(20, &[(PostCheck, 20)]),
            version(30, &[(PostChecked, 30), (Completing, 30)]),
            version(31, &[]),
        ],
        objects: vec![ObjectVersion {
            uid: "r".into(),
            name: "web".into(),
            rules: Some(rules.as_array().unwrap().clone()),
            at: at(0) - 10_000_000_000,
        }],
        ..History::default()
    }
}

fn asked(seconds: u64, answer: Answer) -> Call {
    Call {
        url: URL.into(),
        rule: "ask".into(),
        stage: "PreCheck".into(),
        pods: vec!["p".into()],
        task: None,
        at: at(seconds),
        answered_at: at(seconds),
        answer,
    }
}

fn polled(seconds: u64, answer: Answer) -> Call {
    Call {
        url: POLL.into(),
        pods: Vec::new(),
        task: Some("t".into()),
        ..asked(seconds, answer)
    }
}

fn task() -> Answer {
    Answer::Task("t".into(), Vec::new())
}

fn named(name: &str) -> Answer {
    Answer::Named(vec![name.into()])
}

fn is_rejected(policy: &str, calls: &[Call]) -> bool {
    let mut all = history(json!([rule(policy)]));
    all.calls = calls.to_vec();
    let verdict = judge(&all);
    assert_eq!((verdict.grants, verdict.judged), (2, 1));
    !verdict.violations.is_empty()
}

#[test]
fn approved_grant_is_accepted() {
    for calls in [
        vec![asked(5, Answer::Yes)],
        vec![asked(5, named("p"))],
        vec![asked(4, Answer::Error), asked(5, Answer::Yes)],
        vec![
            asked(1, task()),
            polled(2, Answer::Named(vec![])),
            polled(3, Answer::Yes),
        ],
        vec![asked(1, task()), polled(3, named("p"))],
        vec![asked(1, Answer::Task("t".into(), vec!["p".into()]))],
    ] {
        assert!(!is_rejected("Fail", &calls), "{calls:?}");
    }
    for calls in [
        vec![asked(5, Answer::Error)],
        vec![asked(1, task()), polled(3, Answer::Error)],
    ] {
        assert!(!is_rejected("Ignore", &calls), "{calls:?}");
    }
}

#[test]
fn unapproved_grant_is_rejected() {
    let of = |change: &dyn Fn(&mut Call)| {
        let mut call = asked(5, Answer::Yes);
        change(&mut call);
        vec![call]
    };
    for (policy, case, calls) in [
        ("Fail", "never asked", vec![]),
        ("Ignore", "never asked", vec![]),
        ("Ignore", "refused", vec![asked(5, named("q"))]),
        (
            "Fail",
            "another operation",
            of(&|c| c.pods = vec!["q".into()]),
        ),
        ("Fail", "before the begin", of(&|c| c.at = at(0) - 1)),
        (
            "Fail",
            "after the grant",
            of(&|c| c.answered_at = at(10) + 1),
        ),
        (
            "Fail",
            "another endpoint",
            of(&|c| c.url = "https://localhost:2/check".into()),
        ),
        ("Fail", "another rule", of(&|c| c.rule = "other".into())),
        (
            "Fail",
            "another stage",
            of(&|c| c.stage = "PostCheck".into()),
        ),
        ("Fail", "an error", vec![asked(5, Answer::Error)]),
        ("Fail", "a task at work", vec![asked(1, task())]),
        ("Ignore", "a task at work", vec![asked(1, task())]),
        (
            "Fail",
            "a task of others",
            vec![asked(1, task()), polled(2, named("q"))],
        ),
        (
            "Fail",
            "a poll that failed",
            vec![asked(1, task()), polled(2, Answer::Error)],
        ),
        (
            "Ignore",
            "not yet over",
            vec![asked(8, task()), polled(9, Answer::Error)],
        ),
        (
            "Fail",
            "a task of before",
            vec![polled(1, Answer::Yes), asked(2, task())],
        ),
        ("Fail", "down", vec![]),
    ] {
        assert!(is_rejected(policy, &calls), "{policy}: {case}");
    }
}

#[test]
fn endpoint_that_is_down_lets_pass_by_ignore_alone() {
    for (policy, accepted) in [("Ignore", true), ("Fail", false)] {
        let mut all = history(json!([rule(policy)]));
        all.turned_away = vec![("https://localhost:1".into(), at(4))];
        assert_eq!(judge(&all).violations.is_empty(), accepted, "{policy}");
        all.turned_away[0].1 = at(11);
        assert!(!judge(&all).violations.is_empty(), "{policy}");
    }
}

#[test]
fn grant_under_concurrently_edited_rule_is_exempt() {
    let mut all = history(json!([rule("Fail")]));
    let edit = ObjectVersion {
        at: at(5),
        rules: Some(vec![rule("Ignore")]),
        ..all.objects[0].clone()
    };
    all.objects.push(edit);
    assert_eq!(judge(&all).judged, 0);
    all.objects[1].rules = Some(vec![json!({"name": "limit"}), rule("Fail")]);
    assert_eq!(
        judge(&all).violations.len(),
        1,
        "a rule beside it is no excuse"
    );
}

#[test]
fn second_endpoint_called_before_first_is_rejected() {
    let mut second = rule("Fail");
    second["name"] = json!("second");
    let mut all = history(json!([rule("Fail"), second]));
    let mut later = asked(6, Answer::Yes);
    later.rule = "second".into();
    all.calls = vec![asked(5, Answer::Yes), later];
    assert!(judge(&all).violations.is_empty());
    all.calls[1].at = at(4);
    assert_eq!(judge(&all).violations.len(), 1);
}

#[test]
fn post_check_is_judged_by_its_own_rules() {
    let mut after = rule("Fail");
    after["stage"] = json!("PostCheck");
    let mut all = history(json!([after]));
    let mut call = asked(25, Answer::Yes);
    call.stage = "PostCheck".into();
    all.calls = vec![asked(5, Answer::Yes)];
    assert_eq!(judge(&all).violations.len(), 1);
    all.calls.push(call);
    assert!(judge(&all).violations.is_empty());
}

#[test]
fn labels_are_judged_as_they_were_at_the_grant() {
    let check = json!({"name": "fit", "labelCheck": {"requires": {"matchLabels": {"fit": "yes"}}}});
    let mut all = history(json!([check]));
    assert_eq!(judge(&all).violations.len(), 1);
    let labels = all.pods[2].labels.as_mut().unwrap();
    labels.insert("fit".into(), "yes".into());
    assert!(judge(&all).violations.is_empty());
}
