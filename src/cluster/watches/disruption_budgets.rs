//! Puts PodDisruptionBudgets from their watch into their cache.

use serde::Deserialize;

use crate::cluster::caches::Caches;
use crate::cluster::watch::{UnreadableObjects, WatchSink};
use crate::domain::disruption_budget::DisruptionBudget;

pub(super) struct DisruptionBudgetSink(pub(super) Caches);

impl WatchSink<DisruptionBudget> for DisruptionBudgetSink {
    fn parse(&self, raw: &str) -> serde_json::Result<DisruptionBudget> {
        serde_json::from_str(raw)
    }
    fn replace(&self, objects: Vec<DisruptionBudget>, _version: u64) {
        self.0.disruption_budgets.replace(objects);
    }
    fn apply(&self, object: DisruptionBudget) {
        self.0.disruption_budgets.apply(object);
    }
    fn delete(&self, object: DisruptionBudget) {
        self.0.disruption_budgets.delete(&object);
    }
    fn bookmark(&self, _version: u64) {}
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.0.unreadable)
    }
    /// Keeping the known budget could refuse evictions forever. Without it, the API server decides.
    fn parse_unreadable(&self, raw: &str) -> Option<DisruptionBudget> {
        #[derive(Deserialize)]
        struct Named {
            metadata: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            namespace: String,
            name: String,
        }
        let Named { metadata } = serde_json::from_str(raw).ok()?;
        let unknown = DisruptionBudget::selecting_nothing(metadata.namespace, metadata.name);
        Some(unknown)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::watch::{Source, deliver_event};
    use crate::domain::pod::Pod;

    fn object(allowed: i64) -> Value {
        json!({
            "metadata": { "namespace": "n", "name": "web", "generation": 1, "resourceVersion": "7" },
            "spec": { "selector": { "matchLabels": {} } },
            "status": { "observedGeneration": 1, "disruptionsAllowed": allowed },
        })
    }

    #[test]
    fn disruption_budgets_count_once_listed_until_deleted() {
        let caches = Caches::default();
        let sink = DisruptionBudgetSink(caches.clone());
        let source = Source::from_path("");
        let event = |kind: &str, object: &Value| {
            let line = json!({ "type": kind, "object": object }).to_string();
            assert!(deliver_event(&source, &sink, &line, 0).is_some());
        };
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "n" } })).unwrap();
        let refused = || caches.disruption_budgets.find_refusal(&pod).is_some();
        event("ADDED", &object(0));
        assert!(!refused(), "not listed");
        sink.replace(vec![serde_json::from_value(object(0)).unwrap()], 7);
        assert!(refused());
        event("MODIFIED", &object(1));
        assert!(!refused());
        event("MODIFIED", &object(0));
        assert!(refused());
        let mut unreadable = object(0);
        unreadable["status"] = json!("none");
        event("MODIFIED", &unreadable);
        assert!(!refused());
        event("MODIFIED", &object(0));
        event("DELETED", &object(0));
        assert!(!refused());
        assert!(caches.disruption_budgets.is_empty());
    }
}
