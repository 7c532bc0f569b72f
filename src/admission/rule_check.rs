//! Decides whether a Pod may be disrupted, by all rules that cover it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::cache_freshness::{self, ensure_etcd_history, ensure_rules_current, has_cached_rules};
use super::context::AdmissionContext;
use super::{overlap, stored_pod};
use crate::cluster::held_rollouts;
use crate::cluster::index::Index;
use crate::cluster::owner_sizes::{self, OwnerReadError};
use crate::domain::grace_delete;
use crate::domain::lifecycle::are_user_labels_changed;
use crate::domain::pod::Pod;
use crate::domain::rules::{AvailabilityRules, RuleSet};
use crate::ledger::commit::{Denied, DenyReason, Disruption};
use crate::ledger::protocol::{ClaimGrant, ClaimOperation};
use crate::ledger::store::RuleKey;

/// Maximum number of attempts of a request whose rules change while it waits for them.
const MAX_ATTEMPTS: u32 = 3;

/// Takes a claim for a disruption from every rule object that covers the Pod. The result has the rule objects and their
/// grants; it is empty if no rule holds the Pod.
pub async fn claim_for_disruption(
    context: &AdmissionContext,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, ClaimGrant)>, Denied> {
    let mut attempts = 1;
    loop {
        let mut disruption = disruption.clone();
        let namespace = &disruption.pod.metadata.namespace;
        // Read the generations before the rules: a rule that changes in between then has another generation.
        disruption.generations = cache_freshness::rule_generations(context, namespace);
        let rules = covering_rules(context, &disruption.pod, deadline).await?;
        match claim_by_rules(context, rules, &disruption, dry_run, deadline).await {
            // The rule was deleted, or no longer holds the Pod. Ask the rules that hold the Pod now.
            Err(denied) if denied.why == DenyReason::Changed && attempts < MAX_ATTEMPTS => {
                let namespace = &disruption.pod.metadata.namespace;
                cache_freshness::wait_for_rule_cache(context, namespace, deadline).await?;
                attempts += 1;
            }
            decided => return decided,
        }
    }
}

/// Takes claims as [`claim_for_disruption`] does, from these rule objects only. A claim is written only if the Pod is
/// stored as the request shows it.
pub async fn claim_by_rules(
    context: &AdmissionContext,
    rules: Vec<RuleKey>,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, ClaimGrant)>, Denied> {
    overlap::check_overlap(
        &context.index,
        &rules,
        &disruption.bypassed_rules,
        &disruption.pod,
    )?;
    let mut disruption = disruption.clone();
    if disruption.generations.is_empty() {
        let namespace = &disruption.pod.metadata.namespace;
        disruption.generations = cache_freshness::rule_generations(context, namespace);
    }
    let budget_rules = rules.iter().filter(|key| {
        let is_bypassed = disruption.bypassed_rules.contains(&key.name);
        !is_bypassed && has_budget(context, key, &disruption.pod)
    });
    refresh_owners(context, budget_rules, deadline).await?;
    // The eviction handler has just read the Pod live. All other handlers have it from the review.
    let is_from_review = disruption.operation != ClaimOperation::Evict;
    if is_from_review && !dry_run && !rules.is_empty() {
        match stored_pod::load_reviewed_pod(context, &disruption.pod, deadline).await? {
            Some(pod) => disruption.pod = pod,
            None => return Ok(Vec::new()),
        }
    }
    let disruption = &disruption;
    let decided = context
        .ledgers
        .claim_rules(rules.clone(), disruption, dry_run, deadline)
        .await;
    decided.map_err(|mut denied| {
        if let Some(key) = rules.iter().find(|key| key.name == denied.object) {
            context.ledgers.name_holders(key, &mut denied);
            add_rollout_cause(context, key, disruption, &mut denied);
        }
        denied
    })
}

/// For a deletion that a full budget denies: adds to the denial that the Pod belongs to a rollout which the rule keeps
/// from ending.
fn add_rollout_cause(
    context: &AdmissionContext,
    key: &RuleKey,
    disruption: &Disruption,
    denied: &mut Denied,
) {
    let DenyReason::Full { limit, lasting, .. } = &mut denied.why else {
        return;
    };
    let pod = &disruption.pod;
    let (ClaimOperation::Delete, Some(owner)) = (disruption.operation, pod.controller()) else {
        return;
    };
    let state = context.index.read_state();
    let entry = state.rule(&key.namespace, &key.name);
    let namespace_index = state.namespace(&key.namespace);
    let (Some(entry), Some(namespace_index)) = (entry, namespace_index) else {
        return;
    };
    let found = namespace_index.workload(&owner.uid).and_then(|controller| {
        held_rollouts::held_rollout(namespace_index, &entry.snapshot.rules, controller, *limit)
    });
    lasting.rollout = found.map(|(owner, cause)| {
        let owner = format!("{} {}", owner.kind.name(), owner.name);
        cause.describe_owners(&owner, &key.name)
    });
}

/// The rule objects that hold a Pod now and would not hold it after a change of its labels: the selector or the filter
/// of a rule no longer selects the Pod. Labels of the lifecycle are ignored, because they change with each step and do
/// not evade a rule.
pub async fn rules_losing_pod(
    context: &AdmissionContext,
    old: &Arc<Pod>,
    new: &Pod,
    deadline: Instant,
) -> Result<Vec<RuleKey>, Denied> {
    if !are_user_labels_changed(old, new) {
        return Ok(Vec::new());
    }
    let mut rules = covering_rules(context, old, deadline).await?;
    let state = context.index.read_state();
    rules.retain(|key| {
        state
            .rule(&key.namespace, &key.name)
            .is_none_or(|entry| entry.snapshot.rules.loses_pod(old, new))
    });
    Ok(rules)
}

/// Asks the rules that hold Pods which are not available whether such a Pod may be deleted or evicted. The rules named
/// in `bypassed_rules` are not asked. A Pod that an operation has taken off traffic may go, because its rules were
/// asked when the operation began.
pub async fn admit_unavailable(
    context: &AdmissionContext,
    pod: &Arc<Pod>,
    bypassed_rules: &BTreeSet<String>,
    deadline: Instant,
) -> Result<(), Denied> {
    if grace_delete::is_operation_allowed(pod) {
        return Ok(());
    }
    let namespace = &pod.metadata.namespace;
    let is_trusted = context.index.decision_watches.rules.is_trusted_now();
    if !is_trusted
        || !context.index.listed_kinds().has_decision_kinds()
        || !has_cached_rules(context, namespace)
    {
        // Most rules let a Pod that is not available go. Read the rules live, so that an incomplete cache does not hold
        // the Pod.
        let rules = cache_freshness::read_live_rules(context, namespace, deadline).await?;
        let may_hold = |rules: &RuleSet| rules.selects(pod) && rules.may_hold_unavailable();
        return match rules.into_iter().find(may_hold) {
            None => Ok(()),
            Some(rules) => Err(Denied {
                object: rules.name,
                rule: String::new(),
                why: DenyReason::Behind,
            }),
        };
    }
    ensure_etcd_history(context, namespace, deadline).await?;
    let mut strict = rules_holding_unavailable(&context.index, pod);
    overlap::check_overlap(&context.index, &strict, bypassed_rules, pod)?;
    strict.retain(|key| !bypassed_rules.contains(&key.name));
    refresh_owners(context, strict.iter(), deadline).await?;
    context
        .ledgers
        .admit_unavailable(&strict, pod, deadline)
        .await
}

/// The rule objects in the cache that cover a Pod and hold it even while it is not available.
fn rules_holding_unavailable(index: &Index, pod: &Pod) -> Vec<RuleKey> {
    let rules = index.rules_covering_pod(pod);
    let state = index.read_state();
    let holds = |key: &RuleKey| {
        state
            .rule(&pod.metadata.namespace, &key.name)
            .is_some_and(|entry| entry.snapshot.rules.may_hold_unavailable())
    };
    rules.into_iter().filter(holds).collect()
}

/// Whether an availability rule of the object holds the Pod.
fn has_budget(context: &AdmissionContext, key: &RuleKey, pod: &Pod) -> bool {
    let state = context.index.read_state();
    let entry = state.rule(&key.namespace, &key.name);
    entry.is_some_and(|entry| {
        let availability = entry.snapshot.rules.availability_rules(pod);
        matches!(availability, AvailabilityRules::Held(_))
    })
}

/// Reads the owners live whose replicas these rule objects do not know for sure. If an owner cannot be read, the
/// request is denied.
async fn refresh_owners(
    context: &AdmissionContext,
    rules: impl Iterator<Item = &RuleKey>,
    deadline: Instant,
) -> Result<(), Denied> {
    for key in rules {
        let (owners, client) = (&context.owners, &context.client);
        let read = owners
            .refresh_owners(client, key, owner_sizes::MAX_READING_AGE, deadline)
            .await;
        read.map_err(|unreadable| Denied {
            object: key.name.clone(),
            rule: String::new(),
            why: match &unreadable {
                OwnerReadError::Unset { owner, field } => DenyReason::Unset {
                    owner: owner.clone(),
                    field: field.clone(),
                },
                OwnerReadError::Failed { remedy, .. } => {
                    DenyReason::UnknownOwner(format!("{unreadable}; {}", remedy.remedy_text()))
                }
            },
        })?;
    }
    Ok(())
}

/// The rule objects that cover a Pod. The API server calls the webhooks that claim only in namespaces with rules. If
/// the cache has no rule of the namespace, the cache may be behind, and this function reads the rules live.
pub async fn covering_rules(
    context: &AdmissionContext,
    pod: &Arc<Pod>,
    deadline: Instant,
) -> Result<Vec<RuleKey>, Denied> {
    if !context.index.listed_kinds().has_decision_kinds() {
        return Err(Denied::without_rule(DenyReason::Behind));
    }
    let namespace = &pod.metadata.namespace;
    ensure_etcd_history(context, namespace, deadline).await?;
    if !has_cached_rules(context, namespace) {
        let has_rules = cache_freshness::has_live_rules(context, namespace, deadline).await?;
        return match has_rules {
            false => Ok(Vec::new()),
            true => Err(Denied::without_rule(DenyReason::Behind)),
        };
    }
    ensure_rules_current(context, namespace, deadline).await?; // a rule that was created meanwhile may hold the Pod
    Ok(context.index.rules_covering_pod(pod))
}
