//! PodDisruptionBudgets, cached for one question: is the API server sure to refuse an eviction? Admission then denies it
//! without a claim. Nothing of the guarantee rests on this cache.

use std::collections::{BTreeMap, HashMap};

use kube::Client;
use kube::core::params::ListParams;
use parking_lot::RwLock;
use serde::Deserialize;

use super::request_path;
use crate::domain::disruptionbudget::{DisruptionBudget, EvictionRefusal, eviction_refusal};
use crate::domain::pod::Pod;

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
    pub fn find_refusal(&self, pod: &Pod) -> Option<EvictionRefusal> {
        let state = self.0.read();
        let home = state.namespaces.get(&pod.metadata.namespace)?;
        eviction_refusal(home.values(), pod).filter(|_| state.is_listed)
    }

    /// Whether no budget is known.
    pub fn is_empty(&self) -> bool {
        self.0.read().namespaces.is_empty()
    }

    /// The budgets as they were listed; others are gone.
    pub fn replace(&self, budgets: Vec<DisruptionBudget>) {
        let mut state = self.0.write();
        state.namespaces.clear();
        for budget in budgets {
            state.put_budget(budget);
        }
        state.is_listed = true;
    }

    /// A budget was added or changed.
    pub fn apply(&self, budget: DisruptionBudget) {
        self.0.write().put_budget(budget);
    }

    /// A budget was deleted.
    pub fn delete(&self, budget: &DisruptionBudget) {
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
    fn put_budget(&mut self, budget: DisruptionBudget) {
        let home = self.namespaces.entry(budget.namespace.clone());
        home.or_default().insert(budget.name.clone(), budget);
    }
}

/// As [`DisruptionBudgets::refusal`], by a live list of the budgets in the Pod's namespace.
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
