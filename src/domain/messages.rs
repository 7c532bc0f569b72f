//! Texts that denials, diagnoses and Events share, so that the same fact has the same wording everywhere.

use jiff::Timestamp;

use crate::api::int_or_percent::IntOrPercent;
use crate::api::keys::Family;
use crate::domain::pod_size::MAX_POD_BYTES;
use crate::domain::rules::budget::BindingMinimum;

/// A duration for people: `90s`, `5m`, `3h`, `4d`. A negative duration, from clocks that differ, gives `0s`.
pub fn format_age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// The time from `since` to `now`, in the form of [`format_age`].
pub fn format_ago(since: Timestamp, now: Timestamp) -> String {
    format_age(now.duration_since(since).as_secs())
}

/// The text, cut to at most `bytes` bytes. A cut text ends with an ellipsis.
pub fn shorten(text: &str, bytes: usize) -> String {
    const ELLIPSIS: char = '…';
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes.saturating_sub(ELLIPSIS.len_utf8()));
    let mut short = text.get(..end).unwrap_or_default().trim_end().to_owned();
    short.push(ELLIPSIS);
    short
}

/// The first `max` names: `a, b and 3 more`.
pub fn list_names(names: &[&str], max: usize) -> String {
    let (listed, others) = names.split_at(names.len().min(max));
    match others.len() {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}

/// The text about a partition that is larger than the number of older Pods.
pub fn partition_keeps_updated(partition: usize) -> String {
    format!("the partition of {partition} rolls no updated Pod back")
}

/// The names of a Pod's PVCs, in parentheses after a space. Empty unless the scheduler's `sentence` mentions
/// PersistentVolumeClaims without their names.
pub fn append_pvc_names(sentence: &str, pvcs: &[String]) -> String {
    let is_named = pvcs.iter().any(|pvc| sentence.contains(pvc));
    if pvcs.is_empty() || is_named || !sentence.contains("PersistentVolumeClaim") {
        return String::new();
    }
    let names: Vec<&str> = pvcs.iter().map(String::as_str).collect();
    let noun = if names.len() == 1 { "PVC" } else { "PVCs" };
    format!(" ({noun} {})", list_names(&names, 3))
}

/// A number of Pods: `1 Pod`, `3 Pods`.
pub fn count_pods(count: usize) -> String {
    match count {
        1 => "1 Pod".to_owned(),
        count => format!("{count} Pods"),
    }
}

/// A number of Pods with a verb. `singular` is the verb for one Pod: `1 Pod leaves`, `3 Pods leave`.
pub fn count_pods_with_verb(count: usize, singular: &str, plural: &str) -> String {
    let verb = if count == 1 { singular } else { plural };
    format!("{} {verb}", count_pods(count))
}

/// A Pod that uses a budget, and for how long, if the time is known.
pub fn describe_holder(name: &str, since: Option<Timestamp>, now: Timestamp) -> String {
    match since {
        Some(since) => format!("{name} for {}", format_ago(since, now)),
        None => name.to_owned(),
    }
}

/// A rule with the name of its object. `rule` is empty for the object as a whole.
pub fn qualified_rule_name(object: &str, rule: &str) -> String {
    match rule {
        "" => format!("PodTransitionRule {object}"),
        rule => format!("rule {rule} of PodTransitionRule {object}"),
    }
}

/// The numbers of a budget.
///
/// `minimum` is set if `minAvailableValue` sets the limit. If it demands all expected Pods or more, the text does not
/// contain the number of unavailable Pods, because this number explains nothing.
pub fn budget_figures(
    used: u32,
    expected: u32,
    limit: u32,
    minimum: Option<BindingMinimum>,
) -> String {
    match minimum.filter(|_| limit == 0) {
        Some(BindingMinimum {
            value,
            desired,
            available,
        }) => {
            let must = match value {
                IntOrPercent::Int(_) => "minAvailableValue".to_owned(),
                IntOrPercent::Percent(_) => format!("minAvailableValue {value}"),
            };
            format!(
                "{desired} must be available ({must}), {expected} are wanted, {available} are available"
            )
        }
        None => format!("{used} of {expected} Pods are unavailable, the limit is {limit}"),
    }
}

/// The text of [`budget_figures`] for a used budget, with the Pods that use it (texts of [`describe_holder`]).
pub fn figures_with_holders(figures: String, holders: &[String]) -> String {
    match holders {
        [] => figures,
        holders => format!("{figures} (used by {})", holders.join(", ")),
    }
}

/// What ends the claim of an available Pod whose in-place change has not restarted it yet. `deferred` is whether the
/// kubelet has deferred the change, which is a resize.
pub fn restart_frees_budget(pod: &str, deferred: bool) -> String {
    format!("Pod {pod} keeps its claim {}", restart_duration(deferred))
}

/// Until when an available Pod keeps its claim for an in-place change; see [`restart_frees_budget`].
pub const fn restart_duration(deferred: bool) -> &'static str {
    match deferred {
        true => "until the kubelet makes its deferred resize, or until the resize is changed back",
        false => "until its in-place change has restarted it",
    }
}

/// Until when an available Pod keeps its claim for a deadline; see [`deadline_frees_budget`].
pub const DEADLINE_DURATION: &str = "until its spec.activeDeadlineSeconds ends it";

/// What ends the claim of a Pod whose `spec.activeDeadlineSeconds` was set or lowered, before the deadline.
pub fn deadline_frees_budget(pod: &str) -> String {
    format!(
        "Pod {pod} keeps its claim {DEADLINE_DURATION}, which nobody can raise or remove: to end the claim earlier, \
         delete Pod {pod}; its deletion needs no further claim"
    )
}

/// Why a Pod counts as not available if the cache has only its metadata.
pub fn unreadable_pod(pod: &str) -> String {
    format!(
        "Pod {pod} counts as not available whatever its status: it has more than the {} KiB that are cached of a Pod, or this \
         version can't read it; give it fewer or shorter labels, owners, finalizers, volumes or containers",
        MAX_POD_BYTES / 1024
    )
}

/// The text about an operation that cannot begin because the label with its type is missing, with the remedy.
pub fn missing_operation_type(id: &str) -> String {
    let (type_, operating) = (Family::OperationType.key(id), Family::Operating.key(id));
    format!(
        "operation {id} cannot begin: the label {type_} is missing; set it to the type of the operation, such as \"update\", or \
         remove the label {operating}"
    )
}

/// Why a budget lets no Pod go if the number of expected Pods is not known.
pub const EXPECTED_UNKNOWN_MESSAGE: &str =
    "it is not known how many Pods there should be: see the condition ExpectedKnown";

/// The text about a Pod in the wait queue. `head` is the first Pod of the queue.
pub fn queue_position(head: &str) -> String {
    format!("waits in the queue behind {head}")
}

/// The remedy for a used budget. `minimum` is as in [`budget_figures`].
pub const fn budget_remedy(limit: u32, minimum: Option<BindingMinimum>) -> &'static str {
    match (limit, minimum) {
        (0, None) => "no disruption is allowed: raise the limit or disable the rule",
        (0, Some(minimum)) => match minimum.value {
            IntOrPercent::Int(_) => "lower minAvailableValue, or scale up",
            // A percentage grows with the number of Pods, so a scale up does not help.
            IntOrPercent::Percent(_) => {
                "no disruption is allowed: lower minAvailableValue or disable the rule"
            }
        },
        (_, None) => "try again when one of them is available, or raise the limit",
        (_, Some(_)) => "try again when one of them is available, or lower minAvailableValue",
    }
}

/// Which field to change for a higher limit. `minimum` is as in [`budget_figures`].
pub const fn limit_field_to_raise(minimum: Option<BindingMinimum>) -> &'static str {
    match minimum {
        None => "raise the limit",
        Some(_) => "lower minAvailableValue",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_allowing_no_disruption_is_printed_as_written() {
        let describe = |value, limit| {
            let minimum = Some(BindingMinimum {
                value,
                desired: 4,
                available: 4,
            });
            let figures = budget_figures(0, 2, limit, minimum);
            format!("{figures}: {}", budget_remedy(limit, minimum))
        };
        assert_eq!(
            describe(IntOrPercent::Int(4), 0),
            "4 must be available (minAvailableValue), 2 are wanted, 4 are available: lower minAvailableValue, or scale up"
        );
        assert_eq!(
            describe(IntOrPercent::Percent(100), 0),
            "4 must be available (minAvailableValue 100%), 2 are wanted, 4 are available: no disruption is allowed: lower \
             minAvailableValue or disable the rule"
        );
        assert_eq!(
            describe(IntOrPercent::Int(1), 1),
            "0 of 2 Pods are unavailable, the limit is 1: try again when one of them is available, or lower \
             minAvailableValue"
        );
    }

    #[test]
    fn single_pod_has_a_singular_verb() {
        for (count, text) in [
            (0, "0 Pods leave"),
            (1, "1 Pod leaves"),
            (2, "2 Pods leave"),
        ] {
            assert_eq!(count_pods_with_verb(count, "leaves", "leave"), text);
        }
    }

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
            assert_eq!(format_age(seconds), text);
        }
    }
}
