//! Operations that passed a rule by failurePolicy Ignore, without an answer of its endpoint: the metric and the Events.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;
use parking_lot::Mutex;

use super::super::Context;
use crate::cluster::events::about_pod;
use crate::domain::rules::Rule;
use crate::domain::rules::webhook::IgnoredFailure;
use crate::ledger::store::{RuleKey, Uid};

/// Rules that are counted each for itself. Further ones share one count, without names.
const MAX_COUNTED_RULES: usize = 1_000;

/// Pods that an Event is written about at a time; the Event about the rule object sums up.
const MAX_EVENT_PODS: usize = 10;

/// Reason of the Events.
const EVENT_REASON: &str = "PassedByIgnore";

/// Namespace, object and ID of a rule.
pub type RuleLabels = (String, String, String);

/// How many operations have passed so, by rule object and rule.
#[derive(Debug, Default)]
pub struct IgnoredCounts(Mutex<BTreeMap<Uid, BTreeMap<RuleLabels, u64>>>);

impl IgnoredCounts {
    /// Counts operations that passed a rule of an object.
    pub fn count_ignored(&self, key: &RuleKey, rule: &str, operations: usize) {
        let mut all = self.0.lock();
        let known: usize = all.values().map(BTreeMap::len).sum();
        let labels = (key.namespace.clone(), key.name.clone(), rule.to_owned());
        let is_known = all.get(&key.uid).is_some_and(|o| o.contains_key(&labels));
        let (uid, labels) = match is_known || known < MAX_COUNTED_RULES {
            true => (Arc::clone(&key.uid), labels),
            false => (Arc::from(""), RuleLabels::default()),
        };
        *all.entry(uid).or_default().entry(labels).or_default() += operations as u64;
    }

    /// A rule object is gone.
    pub fn forget_rule(&self, uid: &Uid) {
        self.0.lock().remove(uid);
    }

    /// All counts.
    pub fn ignored_by_rule(&self) -> BTreeMap<RuleLabels, u64> {
        let all = self.0.lock();
        all.values().flat_map(Clone::clone).collect()
    }
}

/// Tells whoever looks.
pub fn report_ignored(context: &Context, key: &RuleKey, rule: &Rule, ignored: &[IgnoredFailure]) {
    let rule = &rule.id;
    for IgnoredFailure { who, why } in ignored {
        context.calls.ignored.count_ignored(key, rule, who.len());
        let state = context.index.read();
        let events = &context.events;
        if let Some(entry) = state.rule(&key.namespace, &key.name) {
            let about = entry.object.object_ref(&());
            let message = format!(
                "Pods pass rule {rule} by failurePolicy Ignore, without an answer of its endpoint: {why}"
            );
            events.record(&about, true, EVENT_REASON, &message);
        }
        let pods = who.iter().filter_map(|c| {
            let pod = state.pod(&key.namespace, &Uid::from(c.pod_uid.as_str()))?;
            Some((pod, &c.operation))
        });
        for (pod, operation) in pods.take(MAX_EVENT_PODS) {
            let message = format!(
                "Operation {operation} passed rule {rule} of PodTransitionRule {} by failurePolicy Ignore, without an answer of \
                 its endpoint: {why}",
                key.name
            );
            events.record(&about_pod(pod), true, EVENT_REASON, &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> RuleKey {
        RuleKey {
            uid: Arc::from(format!("uid-{n}")),
            namespace: "shop".to_owned(),
            name: format!("web-{n}"),
        }
    }

    #[test]
    fn rules_are_counted_up_to_a_bound_and_forgotten() {
        let counts = IgnoredCounts::default();
        for n in 0..MAX_COUNTED_RULES + 2 {
            counts.count_ignored(&key(n), "ask", 2);
        }
        counts.count_ignored(&key(0), "ask", 3);
        let figures = counts.ignored_by_rule();
        assert_eq!(figures.len(), MAX_COUNTED_RULES + 1);
        assert_eq!(figures[&RuleLabels::default()], 4);
        let first = ("shop".to_owned(), "web-0".to_owned(), "ask".to_owned());
        assert_eq!(figures[&first], 5);
        counts.forget_rule(&key(0).uid);
        assert!(!counts.ignored_by_rule().contains_key(&first));
    }
}
