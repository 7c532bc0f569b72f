//! Writes the texts that tell in a verdict what an operation waits for.

use crate::api::size_limits::truncate_text;
use crate::domain::rules::stage::Rejection;

/// Maximum number of rules that are named. The API server passes on 4,096 characters of warnings in total, and 256 of
/// each warning.
const MAX_NAMED: usize = 16;
/// Longest reason in characters. A denial contains the reason in full up to this length.
const MAX_REASON_CHARS: usize = 1024;

/// The first rules that reject an operation, and whether there are more. Further rules are not evaluated, because a
/// namespace may have thousands.
pub fn describe_waits(rejections: impl Iterator<Item = Rejection>) -> Vec<String> {
    let mut rejections = rejections;
    let mut messages: Vec<_> = rejections
        .by_ref()
        .take(MAX_NAMED)
        .map(describe_rejection)
        .collect();
    if rejections.next().is_some() {
        messages.push("waiting for more rules than are named here".to_owned());
    }
    messages
}

fn describe_rejection(rejection: Rejection) -> String {
    let reason = truncate_text(&rejection.reason, MAX_REASON_CHARS);
    format!("waiting for {}: {reason}", rejection.qualified_rule_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejections(count: usize) -> impl Iterator<Item = Rejection> {
        (0..count).map(|i| Rejection {
            object: "web".into(),
            rule: format!("r{i}"),
            reason: "no".repeat(MAX_REASON_CHARS),
        })
    }

    #[test]
    fn few_waiting_rules_are_named() {
        let mut made = 0;
        let messages = describe_waits(rejections(6400).inspect(|_| made += 1));
        assert_eq!((made, messages.len()), (MAX_NAMED + 1, MAX_NAMED + 1));
        let characters: usize = messages.iter().map(String::len).sum();
        assert!(
            characters < MAX_NAMED * (MAX_REASON_CHARS + 100),
            "{characters}"
        );
        assert_eq!(
            messages[MAX_NAMED],
            "waiting for more rules than are named here"
        );
    }

    #[test]
    fn all_waiting_rules_are_named_if_they_fit() {
        let messages = describe_waits(rejections(MAX_NAMED));
        assert_eq!(messages.len(), MAX_NAMED);
        assert!(messages[0].starts_with("waiting for rule r0 of PodTransitionRule web: no"));
        let broken = Rejection {
            object: "web".into(),
            rule: String::new(),
            reason: "its selector is broken".into(),
        };
        let text = describe_rejection(broken);
        assert_eq!(
            text,
            "waiting for PodTransitionRule web: its selector is broken"
        );
    }
}
