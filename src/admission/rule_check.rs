//! Decides whether a Pod may be disrupted, by all rules that cover it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use tokio::time::{Duration, Instant, sleep, timeout_at};

use super::context::AdmissionContext;
use super::{overlap, stored_pod};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api_request::{self, ApiFailure};
use crate::cluster::index::Index;
use crate::cluster::owner_sizes::{self, OwnerReadError};
use crate::cluster::{paging, request_path, selection};
use crate::domain::grace_delete;
use crate::domain::pod::Pod;
use crate::domain::rules::{AvailabilityRules, RuleSet};
use crate::ledger::commit::{Denied, DenyReason, Disruption};
use crate::ledger::protocol::{ClaimGrant, ClaimOperation};
use crate::ledger::store::RuleKey;

/// Maximum number of attempts of a request whose rules change while it waits for them.
const MAX_ATTEMPTS: u32 = 3;
/// Longest wait for the cache to receive changed rules.
const CACHE_SYNC_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the wait looks at the cache.
const CACHE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Takes a claim for a disruption from every rule object that covers the Pod. The result has the rule objects and their
/// grants; it is empty if no rule holds the Pod.
pub async fn claim_for_disruption(
    context: &AdmissionContext,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, ClaimGrant)>, Denied> {
    for _ in 0..MAX_ATTEMPTS {
        let mut disruption = disruption.clone();
        let namespace = &disruption.pod.metadata.namespace;
        // Read the generations before the rules: a rule that changes in between then has another generation.
        disruption.generations = rule_generations(context, namespace);
        let rules = covering_rules(context, &disruption.pod, deadline).await?;
        match claim_by_rules(context, rules, &disruption, dry_run, deadline).await {
            // The rule was deleted, or no longer holds the Pod. Ask the rules that hold the Pod now.
            Err(denied) if denied.why == DenyReason::Changed => {
                let namespace = &disruption.pod.metadata.namespace;
                wait_for_rule_cache(context, namespace, deadline).await?;
            }
            decided => return decided,
        }
    }
    Err(Denied::without_rule(DenyReason::Changed))
}

/// Generations of the rule objects of a namespace, by name.
pub fn rule_generations(context: &AdmissionContext, namespace: &str) -> BTreeMap<String, i64> {
    let state = context.index.read_state();
    let rules = state
        .namespace(namespace)
        .into_iter()
        .flat_map(|n| &n.rules);
    rules
        .map(|(name, entry)| (name.clone(), entry.snapshot.rules.generation))
        .collect()
}

/// UID and generation of the rule objects of a namespace, by name.
type RuleVersions = BTreeMap<String, (String, i64)>;

/// Waits until the cache has the rule objects of a namespace that the API server has at this moment.
async fn wait_for_rule_cache(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<(), Denied> {
    let live = list_live_rules(context, namespace, deadline).await?;
    let limit = deadline.min(Instant::now() + CACHE_SYNC_TIMEOUT);
    let known = async {
        while !is_cache_current(&live, &cached_rules(context, namespace)) {
            sleep(CACHE_POLL_INTERVAL).await;
        }
    };
    let known = timeout_at(limit, known).await;
    known.map_err(|_| Denied::without_rule(DenyReason::Behind))
}

/// The rule objects of a live read. A rule object whose deletion has begun holds no Pod, and the cache does not contain
/// it.
async fn list_live_rules(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<RuleVersions, Denied> {
    let version = |rule: PartialObjectMeta<PodTransitionRule>| {
        let name = rule.name_any();
        let metadata = rule.metadata;
        let generation = metadata.generation.unwrap_or_default();
        let is_alive = metadata.deletion_timestamp.is_none();
        is_alive.then(|| (name, (metadata.uid.unwrap_or_default(), generation)))
    };
    let read = async {
        let rules: Api<PodTransitionRule> =
            request_path::namespaced_api(&context.client, namespace)?;
        paging::list_all_metadata(&rules, version).await
    };
    Ok(read_rules(deadline, read).await?.into_iter().collect())
}

/// The rule objects in the cache.
fn cached_rules(context: &AdmissionContext, namespace: &str) -> RuleVersions {
    let state = context.index.read_state();
    let rules = state
        .namespace(namespace)
        .into_iter()
        .flat_map(|n| &n.rules);
    let version = |rules: &RuleSet| (rules.uid.to_string(), rules.generation);
    rules
        .map(|(name, entry)| (name.clone(), version(&entry.snapshot.rules)))
        .collect()
}

/// Whether the cache has these rule objects, or newer versions of them. A rule object that was created again under the
/// same name has another UID, and its generation starts at 1.
fn is_cache_current(live: &RuleVersions, cached: &RuleVersions) -> bool {
    let news = live.iter().all(|(name, (uid, generation))| {
        let cached = cached.get(name);
        cached.is_some_and(|(known, cached)| known == uid && cached >= generation)
    });
    news && cached.len() <= live.len()
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
        disruption.generations = rule_generations(context, &disruption.pod.metadata.namespace);
    }
    let of_budgets = rules.iter().filter(|key| {
        let beyond = disruption.bypassed_rules.contains(&key.name);
        !beyond && has_budget(context, key, &disruption.pod)
    });
    refresh_owners(context, of_budgets, deadline).await?;
    // The eviction handler has just read the Pod live.
    let is_shown = disruption.operation != ClaimOperation::Evict;
    if is_shown && !dry_run && !rules.is_empty() {
        match stored_pod::load_reviewed_pod(context, &disruption.pod, deadline).await? {
            Some(pod) => disruption.pod = pod,
            None => return Ok(Vec::new()),
        }
    }
    let disruption = &disruption;
    let asked = context
        .ledgers
        .claim_rules(rules.clone(), disruption, dry_run, deadline)
        .await;
    asked.map_err(|mut denied| {
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
    let home = state.namespace(&key.namespace);
    let (Some(entry), Some(home)) = (entry, home) else {
        return;
    };
    let found = home.workload(&owner.uid).and_then(|controller| {
        selection::held_rollout(home, &entry.snapshot.rules, controller, *limit)
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
/// in `beyond` are not asked. A Pod that an operation has taken off traffic may go, because its rules were asked when
/// the operation began.
pub async fn admit_unavailable(
    context: &AdmissionContext,
    pod: &Arc<Pod>,
    beyond: &BTreeSet<String>,
    deadline: Instant,
) -> Result<(), Denied> {
    if grace_delete::is_operation_allowed(pod) {
        return Ok(());
    }
    let namespace = &pod.metadata.namespace;
    let is_alive = context.index.decision_watches.rules.is_trusted_now();
    if !is_alive
        || !context.index.listed_kinds().has_decision_kinds()
        || !has_cached_rules(context, namespace)
    {
        // Most rules let a Pod that is not available go. Read the rules live, so that an incomplete cache does not hold
        // the Pod.
        let read = async {
            let rules: Api<PodTransitionRule> =
                request_path::namespaced_api(&context.client, namespace)?;
            paging::list_all_objects(&rules, RuleSet::compile_if_alive).await
        };
        let mut sets = read_rules(deadline, read).await?.into_iter();
        return match sets.find(|set| set.selects(pod) && set.may_hold_unavailable()) {
            None => Ok(()),
            Some(_) => Err(Denied::without_rule(DenyReason::Behind)),
        };
    }
    ensure_etcd_history(context, namespace, deadline).await?;
    let mut strict = rules_holding_unavailable(&context.index, pod);
    overlap::check_overlap(&context.index, &strict, beyond, pod)?;
    strict.retain(|key| !beyond.contains(&key.name));
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
        let held = entry.snapshot.rules.availability_rules(pod);
        matches!(held, AvailabilityRules::Held(_))
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

/// Whether labels differ that do not belong to the lifecycle.
pub fn are_user_labels_changed(old: &Pod, new: &Pod) -> bool {
    !user_labels(old).eq(user_labels(new))
}

/// The labels of a Pod that do not belong to the lifecycle.
fn user_labels(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let labels = pod.metadata.labels.iter();
    labels.filter(|(key, _)| !is_lifecycle_label(key))
}

fn is_lifecycle_label(key: &str) -> bool {
    let (prefix, _) = key.split_once('/').unwrap_or_default();
    let domain = keys::LIFECYCLE_DOMAIN.trim_matches(['.', '/']);
    prefix
        .strip_suffix(domain)
        .is_some_and(|family| family.is_empty() || family.ends_with('.'))
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
        let live = list_live_rules(context, namespace, deadline).await?;
        return match live.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Denied::without_rule(DenyReason::Behind)),
        };
    }
    ensure_rules_current(context, namespace, deadline).await?; // a rule that was created meanwhile may hold the Pod
    Ok(context.index.rules_covering_pod(pod))
}

/// Makes sure that the cache has the current rule objects of a namespace. If their watch is not trusted, this function
/// reads them live.
pub async fn ensure_rules_current(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<(), Denied> {
    match context.index.decision_watches.rules.is_trusted_now() {
        true => Ok(()),
        false => wait_for_rule_cache(context, namespace, deadline).await,
    }
}

/// Makes sure that etcd still has the history that the caches hold, and was not restored to an earlier state. The watch
/// of Pods normally notices a restore; while that watch is not trusted, this function asks the API server.
pub async fn ensure_etcd_history(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<(), Denied> {
    if !context.index.decision_watches.pods.is_trusted_now() {
        let assured = timeout_at(deadline, context.ledgers.verify_history(namespace)).await;
        let late = |_| DenyReason::Unreachable("no answer in time".to_owned());
        return assured
            .map_err(late)
            .flatten()
            .map_err(Denied::without_rule);
    }
    match context.index.etcd_history.lost_reason() {
        Some(why) => Err(Denied::unreachable(why.as_ref())),
        None => Ok(()),
    }
}

fn has_cached_rules(context: &AdmissionContext, namespace: &str) -> bool {
    let state = context.index.read_state();
    let namespace = state.namespace(namespace);
    namespace.is_some_and(|n| !n.rules.is_empty())
}

/// Reads the rules live. A failed read denies the request.
async fn read_rules<T>(
    deadline: Instant,
    read: impl Future<Output = kube::Result<T>>,
) -> Result<T, Denied> {
    let found = api_request::by(deadline, read).await;
    found.map_err(|failure| {
        Denied::unreachable(match failure {
            ApiFailure::NoAnswer(_) => "the rules could not be read in time".to_owned(),
            failure => failure.text(),
        })
    })
}
