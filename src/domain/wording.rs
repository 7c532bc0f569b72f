//! Words that refusals, explanations and Events share, so that the same thing reads the same everywhere.

use jiff::Timestamp;

use crate::api::keys::Family;

/// A span of time as people read it: `90s`, `5m`, `3h`, `4d`. Negative ones, from clocks that differ, read as `0s`.
pub fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// How long ago a moment was.
pub fn ago(since: Timestamp, now: Timestamp) -> String {
    age(now.duration_since(since).as_secs())
}

/// A Pod that uses a budget up, and for how long, if that is known.
pub fn holder(name: &str, since: Option<Timestamp>, now: Timestamp) -> String {
    match since {
        Some(since) => format!("{name} for {}", ago(since, now)),
        None => name.to_owned(),
    }
}

/// Names a rule of an object; `rule` is empty for the object as a whole.
pub fn rule(object: &str, rule: &str) -> String {
    match rule {
        "" => format!("PodTransitionRule {object}"),
        rule => format!("rule {rule} of PodTransitionRule {object}"),
    }
}

/// The figures of a budget.
pub fn figures(used: u32, expected: u32, limit: u32) -> String {
    format!("{used} of {expected} Pods are unavailable, the limit is {limit}")
}

/// A budget that is used up, by whom (texts of [`holder`]), and the remedy.
pub fn used_up(used: u32, expected: u32, limit: u32, holders: &[String]) -> String {
    used_by(used, expected, limit, holders) + "; " + remedy(limit)
}

/// As [`used_up`], without the remedy.
pub fn used_by(used: u32, expected: u32, limit: u32, holders: &[String]) -> String {
    let figures = figures(used, expected, limit);
    match holders {
        [] => figures,
        holders => format!("{figures} (used by {})", holders.join(", ")),
    }
}

/// What frees the place of an available Pod that an in-place change has yet to restart. `deferred`: the kubelet has deferred
/// the change, a resize.
pub fn until_restart(pod: &str, deferred: bool) -> String {
    match deferred {
        true => format!(
            "Pod {pod} keeps its place until the kubelet makes its deferred resize, or until the resize is changed back"
        ),
        false => format!(
            "Pod {pod} keeps its place until its in-place change has restarted it, which is yet to come"
        ),
    }
}

/// What frees the place of a Pod whose deadline was set or lowered, before that deadline.
pub fn until_deadline(pod: &str) -> String {
    format!(
        "Pod {pod} keeps its place until its spec.activeDeadlineSeconds ends it, which nobody can raise or remove: to have the \
         place earlier delete Pod {pod}, whose deletion needs no further place"
    )
}

/// An operation that cannot begin, as the label with its type is missing; with the remedy.
pub fn untyped(id: &str) -> String {
    let (type_, operating) = (Family::OperationType.key(id), Family::Operating.key(id));
    format!(
        "operation {id} cannot begin: the label {type_} is missing; set it to the type of the operation, such as \"update\", or \
         remove the label {operating}"
    )
}

/// The turn of a Pod that waits for a budget: the Pod that is the next to get it.
pub fn turn(head: &str) -> String {
    format!("waits for its turn behind {head}")
}

/// What helps against a budget that is used up.
pub const fn remedy(limit: u32) -> &'static str {
    match limit {
        0 => "no disruption is allowed: raise the limit or disable the rule",
        _ => "try again when one of them is available, or raise the limit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_down() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
