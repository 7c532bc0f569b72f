//! Fills the index of the server from files. All objects are treated as a snapshot of one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::input_files::InputObjects;
use crate::admission::review::Request;
use crate::api::keys;
use crate::cluster::index::{Index, NamespaceFacts};
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::{self};
use crate::cluster::rule_gauges::rule_gauges;
use crate::cluster::rule_store::RuleStore;
use crate::domain::pod::Pod;
use crate::ledger::commit::Ledgers;

/// Fills an empty index. Returns notes for the user.
pub fn fill_index(index: &Index, objects: &InputObjects) -> Vec<String> {
    let mut notes = Vec::new();
    let pods: Vec<Pod> = objects
        .pods
        .iter()
        .filter_map(|pod| serde_json::from_value(pod.clone()).ok()) // the Pod was parsed once already
        .filter(Pod::is_managed)
        .collect();
    let watermarks = objects.rules.iter().filter_map(|rule| {
        let ledger = rule.status.as_ref()?.ledger.as_ref()?;
        ledger.watermark.parse::<u64>().ok()
    });
    let versions = pods.iter().map(|pod| pod.metadata.resource_version);
    let position = watermarks.chain(versions).max().unwrap_or(0);
    for kind in WatchedKind::OWNER_KINDS {
        let of_kind = objects.workloads.iter().filter(|(of, _)| *of == kind);
        let found =
            of_kind.filter_map(|(_, value)| owner_sizes::parse_workload(kind, value.clone()));
        index.replace_workloads(kind, found.collect(), Vec::new(), u64::MAX);
    }
    notes.extend(missing_owners(objects, &pods));
    index.replace_namespaces(namespace_facts(objects));
    index.replace_rules(objects.rules.clone());
    index.replace_pods(pods, position);
    notes
}

/// Owners whose number of Pods is not in the files.
fn missing_owners(objects: &InputObjects, pods: &[Pod]) -> Vec<String> {
    let known = |uid: &str| {
        let mut all = objects.workloads.iter();
        all.any(|(_, value)| value["metadata"]["uid"] == uid)
    };
    let mut missing: Vec<String> = pods
        .iter()
        .filter_map(Pod::controller)
        .filter(|owner| !known(&owner.uid))
        .map(|owner| {
            let (kind, name) = (&owner.kind, &owner.name);
            match WatchedKind::from_owner(owner) {
                Some(_) => format!(
                    "{kind} {name} is not in the files: only its Pods in the files count as expected; add it to \
                     --pods"
                ),
                None => format!(
                    "{kind} {name} is of a kind whose scale the server reads live, if it has one; here its living Pods \
                     count"
                ),
            }
        })
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

/// All namespaces that the objects name, with the enforcement label that the server gives to those with rules.
fn namespace_facts(objects: &InputObjects) -> Vec<NamespaceFacts> {
    let named = objects
        .pods
        .iter()
        .map(|pod| pod["metadata"]["namespace"].as_str().unwrap_or_default());
    let of_rules = objects
        .rules
        .iter()
        .map(|rule| rule.metadata.namespace.as_deref().unwrap_or_default());
    let mut all: BTreeMap<String, NamespaceFacts> = BTreeMap::new();
    for name in named.chain([objects.namespace.as_str()]) {
        all.entry(name.to_owned()).or_default();
    }
    for name in of_rules {
        let labels = &mut all.entry(name.to_owned()).or_default().labels;
        labels.insert(keys::NAMESPACE_ENFORCEMENT.to_owned(), "true".to_owned());
    }
    for namespace in &objects.namespaces {
        let metadata = &namespace["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let entry = all.entry(name.to_owned()).or_default();
        let labels = metadata["labels"].as_object().into_iter().flatten();
        entry
            .labels
            .extend(labels.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))));
        entry.terminating_since =
            NamespaceFacts::parse_deletion_time(metadata["deletionTimestamp"].as_str());
    }
    let named = all.into_iter();
    named
        .map(|(name, facts)| NamespaceFacts { name, ..facts })
        .collect()
}

/// The budget of a rule object that covers the Pod of a review, before the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleBudget {
    /// Name of the PodTransitionRule.
    pub object: String,
    /// Expected Pods that are missing, not available, or have a claim.
    pub used: u32,
    /// How many Pods may be unavailable, by the tightest rule.
    pub limit: u32,
    /// How many Pods are expected.
    pub expected: u32,
    /// How many more Pods may go.
    pub allowed: u32,
}

/// Budgets of the rule objects that cover the Pod of a request.
pub fn rule_budgets(
    index: &Index,
    ledgers: &Arc<Ledgers<RuleStore>>,
    request: &Request,
) -> Vec<RuleBudget> {
    let state = index.read_state();
    let Some(namespace) = state.namespace(&request.namespace) else {
        return Vec::new();
    };
    let pod = namespace
        .pods
        .values()
        .find(|pod| pod.metadata.name == request.name);
    let Some(pod) = pod.filter(|_| request.resource.resource == "pods") else {
        return Vec::new();
    };
    let covering = namespace.rules.values().filter(|entry| {
        let rules = &entry.snapshot.rules;
        rules.selects(pod) && rules.availability_limits().next().is_some()
    });
    let budgets = covering.map(|entry| {
        let gauges = rule_gauges(ledgers, &state, entry);
        RuleBudget {
            object: entry.snapshot.rules.name.clone(),
            used: gauges.unavailable,
            limit: gauges.limit,
            expected: gauges.expected,
            allowed: gauges.allowed,
        }
    });
    budgets.collect()
}
