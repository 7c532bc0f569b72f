//! Records Events about operations that passed a rule because of `failurePolicy: Ignore`, without an answer of its
//! endpoint.

use kube::Resource;

use super::super::ControllerContext;
use crate::cluster::events::pod_reference;
use crate::domain::rules::CompiledRule;
use crate::domain::rules::webhook::IgnoredPass;
use crate::ledger::store::{RuleKey, Uid};

/// Maximum number of Pods that get an Event at a time. The Event about the rule object covers all.
const MAX_EVENT_PODS: usize = 10;

const EVENT_REASON: &str = "PassedByIgnore";

/// Counts the operations, and records Events about the rule object and the Pods.
pub fn report_ignored(
    context: &ControllerContext,
    key: &RuleKey,
    rule: &CompiledRule,
    ignored: &[IgnoredPass],
) {
    let rule = &rule.id;
    for IgnoredPass { operations, reason } in ignored {
        context
            .endpoint_caller
            .ignored
            .count_ignored(key, rule, operations.len());
        let state = context.index.read_state();
        let events = &context.events;
        if let Some(entry) = state.rule(&key.namespace, &key.name) {
            let reference = entry.object.object_ref(&());
            let message = format!(
                "Pods pass rule {rule} by failurePolicy Ignore, without an answer of its endpoint: {reason}"
            );
            events.record_event(&reference, true, EVENT_REASON, &message);
        }
        let pods = operations.iter().filter_map(|c| {
            let pod = state.pod(&key.namespace, &Uid::from(c.pod_uid.as_str()))?;
            Some((pod, &c.operation))
        });
        for (pod, operation) in pods.take(MAX_EVENT_PODS) {
            let message = format!(
                "Operation {operation} passed rule {rule} of PodTransitionRule {} by failurePolicy Ignore, without an answer of \
                 its endpoint: {reason}",
                key.name
            );
            events.record_event(&pod_reference(pod), true, EVENT_REASON, &message);
        }
    }
}
