//! Reports a bypass, and rules that a Pod skips: in the log, the metrics and Events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use k8s_openapi::api::core::v1::ObjectReference;
use tracing::warn;

use super::BypassCheck;
use crate::api::keys;
use crate::cluster::events::pod_reference;
use crate::domain::pod::Pod;

const KIND: &str = "PodTransitionRule";
/// The words of log and Events between "was admitted" and the rule, for a rule whose budget is bypassed.
pub const BEYOND_BUDGET: &str = "beyond the budget of";
/// The same words for a rule that denies the request for another reason than its budget.
pub const AGAINST_RULE: &str = "although it was denied by";
/// Reason of the Event on the rule object and the Pod.
const BYPASS_EVENT: &str = "BudgetBypassed";
/// Reason of the Event on the rule object and the Pod when the Pod skips a rule that would hold it.
const SKIP_EVENT: &str = "RuleSkipped";

impl BypassCheck<'_> {
    /// Reports that a request was admitted although these rule objects deny it: to the log, the metric, and Events on
    /// the Pod and the rule objects. `how` comes before the name of the rule in the texts.
    pub fn announce_bypass(&self, pod: &Pod, rules: &BTreeSet<String>, how: &str) {
        if rules.is_empty() || self.dry_run {
            return;
        }
        let counters = &self.context.ledgers.counters;
        counters.bypassed.fetch_add(1, Ordering::Relaxed);
        let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
        let user = self.request.user();
        let reason = self.bypass_reason().unwrap_or_default();
        let what = self.describe_request();
        for rule in rules {
            warn!(%namespace, pod = %name, %rule, %user, reason, "admitted {how} the rule");
            let message = format!(
                "{what} of Pod {name} by {user} was admitted {how} {KIND} {rule}: {reason}"
            );
            self.record_warning_event(pod, rule, BYPASS_EVENT, &message);
        }
    }

    /// Reports the same as [`BypassCheck::announce_bypass`], for a Pod that no rule object covers.
    pub fn announce_pod_bypass(&self, pod: &Pod, how: &str) {
        if self.dry_run {
            return;
        }
        let counters = &self.context.ledgers.counters;
        counters.bypassed.fetch_add(1, Ordering::Relaxed);
        let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
        let user = self.request.user();
        let reason = self.bypass_reason().unwrap_or_default();
        warn!(%namespace, pod = %name, %user, reason, "admitted {how}");
        let message = format!(
            "{} of Pod {name} by {user} was admitted {how}: {reason}",
            self.describe_request()
        );
        let events = &self.context.events;
        events.record_event(&pod_reference(pod), true, BYPASS_EVENT, &message);
    }

    /// The kind of the request, such as `DELETE` or `CREATE of pods/eviction`.
    fn describe_request(&self) -> String {
        let operation = self.request.operation.as_str();
        match self.request.sub_resource.as_deref() {
            Some(sub) => format!("{operation} of pods/{sub}"),
            None => operation.to_owned(),
        }
    }

    /// Records a Warning Event on the Pod and on a rule object.
    fn record_warning_event(&self, pod: &Pod, rule: &str, reason: &'static str, message: &str) {
        let namespace = &pod.metadata.namespace;
        let state = self.context.index.read_state();
        let uid = state
            .rule(namespace, rule)
            .map(|e| e.rule_key().uid.to_string());
        drop(state);
        let about_rule = ObjectReference {
            api_version: Some(format!("{}/{}", keys::GROUP, keys::VERSION)),
            kind: Some(KIND.to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(rule.to_owned()),
            uid,
            ..ObjectReference::default()
        };
        for about in [about_rule, pod_reference(pod)] {
            let events = &self.context.events;
            events.record_event(&about, true, reason, message);
        }
    }
    /// Finds the rules that would hold the Pod and that its annotation skips, by rule object, and reports them by the
    /// metric and Events. With `unavailable`, only rules count that hold Pods which are not available.
    pub(super) fn announce_skipped_rules(
        &self,
        pod: &Pod,
        unavailable: bool,
    ) -> BTreeMap<String, Vec<String>> {
        let state = self.context.index.read_state();
        let namespace = state.namespace(&pod.metadata.namespace);
        let rules = namespace.into_iter().flat_map(|n| n.rules.values());
        let skipped = rules.filter_map(|entry| {
            let rules = &entry.snapshot.rules;
            let names = rules.skipped_rules(pod, unavailable);
            let names: Vec<_> = names.into_iter().map(str::to_owned).collect();
            (!names.is_empty()).then(|| (rules.name.clone(), names))
        });
        let skipped: BTreeMap<_, _> = skipped.collect();
        drop(state);
        if skipped.is_empty() || self.dry_run {
            return skipped;
        }
        let counters = &self.context.ledgers.counters;
        counters.skipped.fetch_add(1, Ordering::Relaxed);
        let (name, user) = (&pod.metadata.name, self.request.user());
        for (object, rules) in &skipped {
            let message = format!(
                "{} of Pod {name} by {user} was admitted without {KIND} {object}, rule {}: the Pod skips it by its annotation {}",
                self.describe_request(),
                rules.join(", "),
                keys::SKIP_RULE_CONDITIONS
            );
            self.record_warning_event(pod, object, SKIP_EVENT, &message);
        }
        skipped
    }
}
