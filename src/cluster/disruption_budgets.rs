//! Caches PodDisruptionBudgets for one question: will the API server certainly refuse an eviction? If so, admission
//! denies the eviction without a claim. The guarantee does not depend on this cache.

use std::collections::{BTreeMap, HashMap};

use kube::Client;
use kube::core::params::ListParams;
use parking_lot::RwLock;
use serde::Deserialize;

use super::request_path;
use crate::domain::disruption_budget::{DisruptionBudget, EvictionRefusal, eviction_refusal};
use crate::domain::pod::Pod;

/// The cache of PodDisruptionBudgets.
#[derive(Debug, Default)]
pub struct DisruptionBudgets(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    is_listed: bool,
    /// The PodDisruptionBudgets by namespace and name.
    namespaces: HashMap<String, BTreeMap<String, DisruptionBudget>>,
}

impl DisruptionBudgets {
    /// Why the API server will refuse the eviction of a Pod, as far as this replica knows. `None` if no refusal is
    /// known, and until the PodDisruptionBudgets have been listed.
    pub fn find_refusal(&self, pod: &Pod) -> Option<EvictionRefusal> {
        let state = self.0.read();
        let namespace = state.namespaces.get(&pod.metadata.namespace)?;
        eviction_refusal(namespace.values(), pod).filter(|_| state.is_listed)
    }

    pub fn is_empty(&self) -> bool {
        self.0.read().namespaces.is_empty()
    }

    /// Replaces all PodDisruptionBudgets by those of a list.
    pub fn replace(&self, budgets: Vec<DisruptionBudget>) {
        let mut state = self.0.write();
        state.namespaces.clear();
        for budget in budgets {
            state.put_budget(budget);
        }
        state.is_listed = true;
    }

    /// Adds or changes a PodDisruptionBudget.
    pub fn apply(&self, budget: DisruptionBudget) {
        self.0.write().put_budget(budget);
    }

    pub fn delete(&self, budget: &DisruptionBudget) {
        let mut state = self.0.write();
        let Some(namespace) = state.namespaces.get_mut(&budget.namespace) else {
            return;
        };
        namespace.remove(&budget.name);
        if namespace.is_empty() {
            state.namespaces.remove(&budget.namespace);
        }
    }
}

impl State {
    fn put_budget(&mut self, budget: DisruptionBudget) {
        let namespace = self.namespaces.entry(budget.namespace.clone());
        namespace.or_default().insert(budget.name.clone(), budget);
    }
}

/// As [`DisruptionBudgets::find_refusal`], by a live list of the PodDisruptionBudgets in the Pod's namespace.
pub async fn read_live_refusal(
    client: &Client,
    pod: &Pod,
) -> kube::Result<Option<EvictionRefusal>> {
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        items: Option<Vec<DisruptionBudget>>,
    }
    let namespace = &pod.metadata.namespace;
    let budgets = request_path::ResourcePath::from_parts(
        "/apis/policy/v1",
        namespace,
        "poddisruptionbudgets",
    )?;
    let list: List = client
        .request(budgets.list(&ListParams::default())?)
        .await?;
    Ok(eviction_refusal(list.items.unwrap_or_default().iter(), pod))
}
