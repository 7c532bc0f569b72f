//! Counts of the reasons why Pods wait, because the status lists only some of these Pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::WaitRefusal;
use crate::api::size_limits::{self, MAX_REASONS_BYTES};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;

/// Maximum number of reasons in the status. The others are summed up.
const MAX_REASONS: usize = 20;
/// Maximum number of different reasons that are counted separately.
const MAX_DISTINCT_REASONS: usize = 1_000;
/// Maximum length of a reason, in characters.
const MAX_REASON_CHARS: usize = 256;
/// Replaces the name of the Pod in a reason, so that the same reason of many Pods is counted as one.
const ANY_POD: &str = "*";
/// Stands for all reasons that are not written.
const OTHER_REASONS: &str = "other reasons";

/// The number of Pods by reason. A Pod with several reasons counts for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitReasonCounts {
    /// By stage, ID of the rule (empty if the reason does not come from one rule) and reason.
    counts: BTreeMap<(Stage, String, String), u32>,
    others: u32,
}

impl WaitReasonCounts {
    /// Counts a Pod that waits in a stage.
    pub fn count_pod(&mut self, pod: &Pod, stage: Stage, refusals: &[WaitRefusal]) {
        let keys: BTreeSet<_> = refusals
            .iter()
            .map(|refusal| {
                let reason = mask_pod_name(&refusal.reason, &pod.metadata.name);
                let reason = size_limits::truncate_text(&reason, MAX_REASON_CHARS);
                (stage, refusal.rule.clone(), reason)
            })
            .collect();
        for key in keys {
            let is_known = self.counts.contains_key(&key);
            match is_known || self.counts.len() < MAX_DISTINCT_REASONS {
                true => *self.counts.entry(key).or_default() += 1,
                false => self.others += 1,
            }
        }
    }

    /// The stored form, the most frequent reason first.
    pub fn to_status_values(&self) -> Vec<Value> {
        let mut all: Vec<_> = self.counts.iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let written = all
            .iter()
            .take(MAX_REASONS)
            .map(|((stage, rule, reason), count)| {
                let mut written =
                    json!({ "stage": stage.as_str(), "reason": reason, "pods": count });
                if !rule.is_empty() {
                    written["ruleName"] = json!(rule);
                }
                written
            });
        let mut values = size_limits::take_fitting(written, MAX_REASONS_BYTES);
        let omitted: u32 = all
            .iter()
            .skip(values.len())
            .map(|(_, count)| **count)
            .sum();
        if self.others + omitted > 0 {
            values.push(json!({ "reason": OTHER_REASONS, "pods": self.others + omitted }));
        }
        values
    }
}

/// The reason, with [`ANY_POD`] in place of the name of the Pod wherever the name is a whole word.
fn mask_pod_name(reason: &str, name: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let mut text = String::new();
    let mut remaining = reason;
    while let Some((before, after)) = remaining.split_once(name).filter(|_| !name.is_empty()) {
        let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
        text.push_str(before);
        text.push_str(if is_word { ANY_POD } else { name });
        remaining = after;
    }
    text + remaining
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn counted(reasons: &[(&str, String)]) -> Vec<Value> {
        let mut counted = WaitReasonCounts::default();
        for (name, reason) in reasons {
            let pod = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
            counted.count_pod(&pod, Stage::PreCheck, &[WaitRefusal::new("ask", reason)]);
        }
        counted.to_status_values()
    }

    #[test]
    fn same_reason_of_many_pods_is_counted_once() {
        let busy = |name: &'static str| (name, format!("pod n/{name} is busy"));
        assert_eq!(
            counted(&[busy("web-1"), busy("web-2"), busy("web-11")]),
            [
                json!({ "stage": "PreCheck", "ruleName": "ask", "reason": "pod n/* is busy", "pods": 3 })
            ]
        );
        assert_eq!(
            mask_pod_name("web-11 before web-1", "web-1"),
            "web-11 before *"
        );
    }

    #[test]
    fn rare_reasons_are_summed_up_within_the_bytes() {
        let reasons =
            (0..2_000).map(|n| ("web-1", format!("{n} {}", "<".repeat(MAX_REASON_CHARS))));
        let values = counted(&reasons.collect::<Vec<_>>());
        let pods = values.iter().map(|reason| reason["pods"].as_u64().unwrap());
        assert_eq!(pods.sum::<u64>(), 2_000);
        assert_eq!(values.last().unwrap()["reason"], OTHER_REASONS);
        let bytes = size_limits::json_bytes(&values);
        assert!(bytes <= MAX_REASONS_BYTES + 100, "{bytes}");
    }
}
