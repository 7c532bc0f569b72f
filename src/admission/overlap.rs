//! Limits how many rule objects with an availability rule may cover one Pod. A disruption of the Pod writes the ledger
//! of each of them, so their number determines the cost of one request.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::yield_now;

use super::context::AdmissionContext;
use crate::cluster::index::Index;
use crate::domain::pod::Pod;
use crate::domain::rules::{MAX_OBJECTS_PER_POD, RuleSet};
use crate::ledger::commit::{Denied, DenyReason};
use crate::ledger::store::RuleKey;

/// Maximum number of rule objects that a message names.
const MAX_NAMED: usize = 3;
/// Selectors that are matched before the task yields to other tasks.
const MATCHES_PER_YIELD: usize = 1_000;
/// Maximum number of selectors that are matched for one rule that is applied. Further Pods are not checked, and
/// admission denies a disruption of such a Pod later.
const MAX_MATCHES: usize = 200_000;

/// A Pod that more rule objects cover, or would cover, than allowed.
#[derive(Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The name of the Pod.
    pub pod: String,
    /// How many rule objects cover the Pod, including the object that is applied.
    pub objects: usize,
    /// Whether the object that is applied did not cover the Pod before.
    pub is_new: bool,
}

/// Denies a disruption of a Pod that too many of these rule objects cover, before any owner is read or ledger is
/// written. Rule objects named in `bypassed_rules` are bypassed and do not count.
pub fn check_overlap(
    index: &Index,
    rules: &[RuleKey],
    bypassed_rules: &BTreeSet<String>,
    pod: &Pod,
) -> Result<(), Denied> {
    if rules.len() <= MAX_OBJECTS_PER_POD {
        return Ok(());
    }
    let mut names = availability_rule_names(index, rules);
    names.retain(|name| !bypassed_rules.contains(*name));
    if names.len() <= MAX_OBJECTS_PER_POD {
        return Ok(());
    }
    tracing::debug!(pod = %pod.metadata.name, objects = names.len(), "too many rules cover a Pod");
    Err(Denied::without_rule(DenyReason::Overlapping {
        objects: names.len(),
        most: MAX_OBJECTS_PER_POD,
        names: names
            .into_iter()
            .take(MAX_NAMED)
            .map(str::to_owned)
            .collect(),
    }))
}

/// The names of the rule objects that have an availability rule.
pub fn availability_rule_names<'a>(index: &Index, rules: &'a [RuleKey]) -> Vec<&'a str> {
    let state = index.read_state();
    let limits = |key: &&RuleKey| {
        let entry = state.rule(&key.namespace, &key.name);
        entry.is_some_and(|entry| has_availability_rule(&entry.snapshot.rules))
    };
    rules
        .iter()
        .filter(limits)
        .map(|key| key.name.as_str())
        .collect()
}

/// A Pod of the cache that `new`, which replaces `old`, covers together with too many other rule objects. A Pod that
/// `old` did not cover takes precedence over a Pod that `old` covered.
pub async fn find_overlap(
    context: &AdmissionContext,
    new: &RuleSet,
    old: Option<&RuleSet>,
) -> Option<Overlap> {
    if !has_availability_rule(new) {
        return None;
    }
    let (others, pods): (Vec<Arc<RuleSet>>, Vec<Arc<Pod>>) = {
        let state = context.index.read_state();
        let namespace_index = state.namespace(&new.namespace)?;
        let others = namespace_index
            .rules
            .values()
            .map(|entry| &entry.snapshot.rules);
        let others = others.filter(|rules| rules.name != new.name && has_availability_rule(rules));
        let others: Vec<_> = others.cloned().collect();
        if others.len() < MAX_OBJECTS_PER_POD {
            return None; // the usual case: the limit cannot be exceeded
        }
        (others, namespace_index.pods.values().cloned().collect())
    };
    let old = old.filter(|old| has_availability_rule(old));
    let (mut matched, mut paused_at, mut covered_before) = (0, 0, None);
    for pod in pods {
        matched += 1;
        if new.selects(&pod) {
            matched += others.len();
            let covering = others.iter().filter(|rules| rules.selects(&pod)).count();
            let overlap = Overlap {
                pod: pod.metadata.name.clone(),
                objects: covering + 1,
                is_new: !old.is_some_and(|old| old.selects(&pod)),
            };
            if overlap.objects > MAX_OBJECTS_PER_POD {
                if overlap.is_new {
                    return Some(overlap);
                }
                covered_before.get_or_insert(overlap);
            }
        }
        if matched >= MAX_MATCHES {
            break;
        }
        if matched - paused_at >= MATCHES_PER_YIELD {
            paused_at = matched;
            yield_now().await;
        }
    }
    covered_before
}

/// Whether a rule object has a rule for which its ledger is written.
fn has_availability_rule(rules: &RuleSet) -> bool {
    rules.availability_limits().next().is_some()
}

impl Overlap {
    /// The message for the user.
    pub fn overlap_message(&self) -> String {
        format!(
            "spec.selector: {} PodTransitionRules with an availability rule would cover Pod {}, and at most \
             {MAX_OBJECTS_PER_POD} may: put the rules into spec.rules of fewer objects, or narrow spec.selector",
            self.objects, self.pod
        )
    }
}
