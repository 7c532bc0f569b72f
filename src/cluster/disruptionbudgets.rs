//! PodDisruptionBudgets, cached for one question: is the API server sure to refuse an eviction? Admission then denies it
//! without a claim. Nothing of the guarantee rests on this cache.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::Client;
use kube::core::params::ListParams;
use parking_lot::RwLock;
use serde::Deserialize;

use super::index::Index;
use super::path;
use super::sources;
use super::unread::Unread;
use super::watch::{CatchUp, Sink, Source};
use crate::domain::disruptionbudget::{DisruptionBudget, Refusal, refusal};
use crate::domain::pod::Pod;
use crate::tasks::Supervisor;

/// The cache.
#[derive(Debug, Default)]
pub struct DisruptionBudgets(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    is_listed: bool,
    /// By namespace and name.
    namespaces: HashMap<String, BTreeMap<String, DisruptionBudget>>,
}

impl DisruptionBudgets {
    /// Why the API server will refuse the eviction of a Pod, as far as this replica knows. `None` until the budgets have
    /// been listed.
    pub fn refusal(&self, pod: &Pod) -> Option<Refusal> {
        let state = self.0.read();
        let home = state.namespaces.get(&pod.metadata.namespace)?;
        refusal(home.values(), pod).filter(|_| state.is_listed)
    }

    fn replace(&self, budgets: Vec<DisruptionBudget>) {
        let mut state = self.0.write();
        state.namespaces.clear();
        for budget in budgets {
            state.put(budget);
        }
        state.is_listed = true;
    }

    fn apply(&self, budget: DisruptionBudget) {
        self.0.write().put(budget);
    }

    fn delete(&self, budget: &DisruptionBudget) {
        let mut state = self.0.write();
        let Some(home) = state.namespaces.get_mut(&budget.namespace) else {
            return;
        };
        home.remove(&budget.name);
        if home.is_empty() {
            state.namespaces.remove(&budget.namespace);
        }
    }
}

impl State {
    fn put(&mut self, budget: DisruptionBudget) {
        let home = self.namespaces.entry(budget.namespace.clone());
        home.or_default().insert(budget.name.clone(), budget);
    }
}

/// As [`DisruptionBudgets::refusal`], by a live list of the budgets in the Pod's namespace.
pub async fn live_refusal(client: &Client, pod: &Pod) -> kube::Result<Option<Refusal>> {
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        items: Option<Vec<DisruptionBudget>>,
    }
    let namespace = &pod.metadata.namespace;
    let budgets = path::Objects::of("/apis/policy/v1", namespace, "poddisruptionbudgets")?;
    let list: List = client
        .request(budgets.list(&ListParams::default())?)
        .await?;
    Ok(refusal(list.items.unwrap_or_default().iter(), pod))
}

/// Starts the watch.
pub(super) fn start(client: &Client, index: &Arc<Index>, supervisor: &Supervisor) {
    let source = Source::all("/apis/policy/v1/poddisruptionbudgets");
    let sink = Arc::new(Budgets(Arc::clone(index)));
    sources::spawn::<DisruptionBudget, _>(
        client,
        index,
        source,
        sink,
        CatchUp::default(),
        supervisor,
    );
}

struct Budgets(Arc<Index>);

impl Sink<DisruptionBudget> for Budgets {
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
    fn unread(&self) -> Option<&Unread> {
        Some(&self.0.unread)
    }
    /// The budget as it was may refuse for ever; without it the API server is asked.
    fn unreadable(&self, raw: &str) -> Option<DisruptionBudget> {
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
    use crate::cluster::watch::deliver;

    fn object(allowed: i64) -> Value {
        json!({
            "metadata": { "namespace": "n", "name": "web", "generation": 1, "resourceVersion": "7" },
            "spec": { "selector": { "matchLabels": {} } },
            "status": { "observedGeneration": 1, "disruptionsAllowed": allowed },
        })
    }

    #[test]
    fn budgets_are_believed_once_they_are_listed_and_while_they_are_there() {
        let index = Arc::new(Index::default());
        let sink = Budgets(Arc::clone(&index));
        let source = Source::all("");
        let event = |kind: &str, object: &Value| {
            let line = json!({ "type": kind, "object": object }).to_string();
            assert!(deliver(&source, &sink, &line, 0).is_some());
        };
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "n" } })).unwrap();
        let refused = || index.disruption_budgets.refusal(&pod).is_some();
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
        assert!(index.disruption_budgets.0.read().namespaces.is_empty());
    }
}
