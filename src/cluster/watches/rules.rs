//! Puts PodTransitionRules from their watch into the index.

use tokio::time::Instant;

use crate::api::keys;
use crate::api::podtransitionrule::{self, PodTransitionRule};
use crate::cluster::caches::Caches;
use crate::cluster::watch::{UnreadableObjects, WatchSink};
use crate::domain::rules::ignore_policy;

pub(crate) struct RuleSink(pub(crate) Caches);

impl WatchSink<PodTransitionRule> for RuleSink {
    fn parse(&self, raw: &str) -> serde_json::Result<PodTransitionRule> {
        let mut rule: PodTransitionRule = serde_json::from_str(raw)?;
        // Nothing reads these fields. They are often larger than all other fields, and anybody who may edit the rule
        // chooses their size.
        rule.metadata.managed_fields = None;
        if let Some(annotations) = &mut rule.metadata.annotations {
            annotations.retain(|key, value| {
                key == keys::IGNORES_FAILURES && value.len() <= ignore_policy::MAX_ANNOTATION_BYTES
            });
        }
        rule.metadata.labels = None;
        Ok(rule)
    }
    fn find_fault(&self, rule: &PodTransitionRule) -> Option<String> {
        let fault = &rule.spec.unreadable.as_ref()?.fault;
        let metadata = &rule.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        Some(format!(
            "PodTransitionRule {namespace}/{name}: {fault}; all Pods that it may cover are held"
        ))
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.0.unreadable)
    }
    fn replace(&self, objects: Vec<PodTransitionRule>, _version: u64) {
        self.0.index.replace_rules(objects);
    }
    fn apply(&self, object: PodTransitionRule) {
        self.0.index.apply_rule(object);
    }
    fn delete(&self, object: PodTransitionRule) {
        self.0.index.delete_rule(&object);
    }
    fn bookmark(&self, _version: u64) {}
    fn on_known_at(&self, at: Instant) {
        self.0.index.decision_watches.rules.extend_trust(at);
    }
    fn on_lost(&self) {
        self.0.index.decision_watches.rules.end_trust();
    }
    /// Parses the parts of the rule that can be read. The result holds all Pods that the rule may cover, or has an
    /// unusable ledger.
    fn parse_unreadable(&self, raw: &str) -> Option<PodTransitionRule> {
        podtransitionrule::read_rule_by_parts(raw)
    }
}
