//! What is read of a node for its preview.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::answers::EvictionAnswer;
use super::kubectl_filters::KubectlChoice;
use crate::domain::diagnosis::RuleObject;
use crate::domain::disruption_budget::DisruptionBudget;
use crate::domain::pod::Pod;

/// A Pod of the node.
#[derive(Clone, Debug)]
pub struct DrainedPod {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// What kubectl does with it.
    pub choice: KubectlChoice,
    /// What the API server answers to its eviction. `None` if kubectl does not evict it.
    pub answer: Option<EvictionAnswer>,
}

/// What was read of a namespace.
#[derive(Clone, Debug)]
pub struct DrainNamespace {
    /// The rule objects, or why they could not be read.
    pub rules: Result<Vec<RuleObject>, String>,
    /// The PodDisruptionBudgets, or why they could not be read.
    pub disruption_budgets: Result<Vec<DisruptionBudget>, String>,
    /// All Pods of the namespace. `None` if they could not be read, or if no budget depends on them.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// Why the rules of the namespace are not enforced.
    pub excluded: Option<String>,
}

/// What was read of a node.
#[derive(Clone, Debug)]
pub struct ObservedNode {
    /// Name of the node.
    pub name: String,
    /// The Pods of the node.
    pub pods: Vec<DrainedPod>,
    /// The namespaces of the Pods that kubectl evicts.
    pub namespaces: BTreeMap<String, DrainNamespace>,
    /// What could not be read, and the cause.
    pub notes: Vec<String>,
    /// The present time.
    pub now: Timestamp,
}

impl ObservedNode {
    /// The Pods that kubectl evicts.
    pub fn evicted_pods(&self) -> impl Iterator<Item = &DrainedPod> {
        let pods = self.pods.iter();
        pods.filter(|pod| pod.choice == KubectlChoice::Evicts)
    }
}
