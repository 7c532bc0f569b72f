//! What an operation waits for, as a verdict tells it.

use crate::api::stored::text;
use crate::domain::rules::stage::Rejection;

/// So many rules are named. The API server hands on 4,096 characters of warnings in all, and 256 of each.
const NAMED: usize = 16;
/// Longest reason in characters; a denial tells it as it is.
const LONGEST: usize = 1024;

/// The first rules that reject, and that there are more. No further ones are looked at: a namespace may have thousands.
pub fn told(rejections: impl Iterator<Item = Rejection>) -> Vec<String> {
    let mut rejections = rejections;
    let mut told: Vec<_> = rejections.by_ref().take(NAMED).map(told_of).collect();
    if rejections.next().is_some() {
        told.push("waiting for more rules than are named here".to_owned());
    }
    told
}

fn told_of(rejection: Rejection) -> String {
    let reason = text(&rejection.reason, LONGEST);
    format!("waiting for {}: {reason}", rejection.named())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejections(count: usize) -> impl Iterator<Item = Rejection> {
        (0..count).map(|i| Rejection {
            object: "web".into(),
            rule: format!("r{i}"),
            reason: "no".repeat(LONGEST),
        })
    }

    #[test]
    fn few_rules_are_named_and_no_more_looked_at() {
        let mut made = 0;
        let told = told(rejections(6400).inspect(|_| made += 1));
        assert_eq!((made, told.len()), (NAMED + 1, NAMED + 1));
        let characters: usize = told.iter().map(String::len).sum();
        assert!(characters < NAMED * (LONGEST + 100), "{characters}");
        assert_eq!(told[NAMED], "waiting for more rules than are named here");
    }

    #[test]
    fn all_are_named_where_they_fit() {
        let told = told(rejections(NAMED));
        assert_eq!(told.len(), NAMED);
        assert!(told[0].starts_with("waiting for rule r0 of PodTransitionRule web: no"));
        let broken = Rejection {
            object: "web".into(),
            rule: String::new(),
            reason: "its selector is broken".into(),
        };
        let text = told_of(broken);
        assert_eq!(
            text,
            "waiting for PodTransitionRule web: its selector is broken"
        );
    }
}
