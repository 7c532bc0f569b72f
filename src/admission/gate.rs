//! The question that every disruption comes down to: may this Pod go, by every rule that covers it?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use tokio::time::{Duration, Instant, sleep, timeout_at};

use super::context::Context;
use super::{overlap, stored};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::apirequest::{self, Failure};
use crate::cluster::index::Index;
use crate::cluster::sizes::{self, Unreadable};
use crate::cluster::{pages, path, selected};
use crate::domain::grace;
use crate::domain::pod::Pod;
use crate::domain::rules::{Availability, RuleSet};
use crate::ledger::commit::{Denied, Disruption, Why};
use crate::ledger::protocol::{Grant, Operation};
use crate::ledger::store::RuleKey;

/// Rounds for a request that waits for rules which change meanwhile.
const ROUNDS: u32 = 3;
/// How long the cache may take to learn of changed rules.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(10);

/// Claims for a disruption by every rule object that covers the Pod; the objects and grants, empty if none holds it.
pub async fn claim(
    context: &Context,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, Grant)>, Denied> {
    for _ in 0..ROUNDS {
        let mut disruption = disruption.clone();
        let namespace = &disruption.pod.metadata.namespace;
        // Before they are looked up: what changes in between is another generation.
        disruption.generations = generations(context, namespace);
        let rules = covering(context, &disruption.pod, deadline).await?;
        match claim_by(context, rules, &disruption, dry_run, deadline).await {
            // Who waited for a rule that is gone or holds the Pod no more has to ask those that hold it now.
            Err(denied) if denied.why == Why::Changed => {
                let namespace = &disruption.pod.metadata.namespace;
                know_rules(context, namespace, deadline).await?;
            }
            decided => return decided,
        }
    }
    Err(Denied::unknown(Why::Changed))
}

/// Generations of the rule objects of a namespace, by name.
pub fn generations(context: &Context, namespace: &str) -> BTreeMap<String, i64> {
    let state = context.index.read();
    let rules = state
        .namespace(namespace)
        .into_iter()
        .flat_map(|n| &n.rules);
    rules
        .map(|(name, entry)| (name.clone(), entry.snapshot.rules.generation))
        .collect()
}

/// Rule objects of a namespace by name: UID and generation of each.
type Versions = BTreeMap<String, (String, i64)>;

/// Waits until the cache knows the rule objects of a namespace as the API server has them at this moment.
async fn know_rules(context: &Context, namespace: &str, deadline: Instant) -> Result<(), Denied> {
    let live = live_rules(context, namespace, deadline).await?;
    let limit = deadline.min(Instant::now() + KNOWN_WITHIN);
    let known = async {
        while !is_known(&live, &cached_rules(context, namespace)) {
            sleep(LOOK).await;
        }
    };
    let known = timeout_at(limit, known).await;
    known.map_err(|_| Denied::unknown(Why::Behind))
}

/// The rule objects as the API server has them. One whose deletion has begun holds nothing, and no cache has it.
async fn live_rules(
    context: &Context,
    namespace: &str,
    deadline: Instant,
) -> Result<Versions, Denied> {
    let version = |rule: PartialObjectMeta<PodTransitionRule>| {
        let name = rule.name_any();
        let metadata = rule.metadata;
        let generation = metadata.generation.unwrap_or_default();
        let is_alive = metadata.deletion_timestamp.is_none();
        is_alive.then(|| (name, (metadata.uid.unwrap_or_default(), generation)))
    };
    let read = async {
        let rules: Api<PodTransitionRule> = path::namespaced(&context.client, namespace)?;
        pages::metadata(&rules, version).await
    };
    Ok(read_rules(deadline, read).await?.into_iter().collect())
}

/// The rule objects as the cache has them.
fn cached_rules(context: &Context, namespace: &str) -> Versions {
    let state = context.index.read();
    let rules = state
        .namespace(namespace)
        .into_iter()
        .flat_map(|n| &n.rules);
    let version = |rules: &RuleSet| (rules.uid.to_string(), rules.generation);
    rules
        .map(|(name, entry)| (name.clone(), version(&entry.snapshot.rules)))
        .collect()
}

/// Whether a cache knows these rule objects. One that is newer than the list is known, too. One that was made anew under its name
/// begins with generation 1 again: it is another object.
fn is_known(live: &Versions, cached: &Versions) -> bool {
    let news = live.iter().all(|(name, (uid, generation))| {
        let cached = cached.get(name);
        cached.is_some_and(|(known, cached)| known == uid && cached >= generation)
    });
    news && cached.len() <= live.len()
}

/// As [`claim`], by these rule objects alone. A claim is written only for a Pod that is stored as the request shows it.
pub async fn claim_by(
    context: &Context,
    rules: Vec<RuleKey>,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, Grant)>, Denied> {
    overlap::check(&context.index, &rules, &disruption.beyond, &disruption.pod)?;
    let mut disruption = disruption.clone();
    if disruption.generations.is_empty() {
        disruption.generations = generations(context, &disruption.pod.metadata.namespace);
    }
    let of_budgets = rules.iter().filter(|key| {
        let beyond = disruption.beyond.contains(&key.name);
        !beyond && has_budget(context, key, &disruption.pod)
    });
    know_owners(context, of_budgets, deadline).await?;
    // The Pod of an eviction was read live a moment ago.
    let is_shown = disruption.operation != Operation::Evict;
    if is_shown && !dry_run && !rules.is_empty() {
        match stored::as_reviewed(context, &disruption.pod, deadline).await? {
            Some(pod) => disruption.pod = pod,
            None => return Ok(Vec::new()),
        }
    }
    let disruption = &disruption;
    let asked = context
        .ledgers
        .claim(rules.clone(), disruption, dry_run, deadline)
        .await;
    asked.map_err(|mut denied| {
        if let Some(key) = rules.iter().find(|key| key.name == denied.object) {
            context.ledgers.name_holders(key, &mut denied);
            name_rollout(context, key, disruption, &mut denied);
        }
        denied
    })
}

/// Fills in that the Pod belongs to a rollout which the rule does not let end, where a deletion is refused.
fn name_rollout(context: &Context, key: &RuleKey, disruption: &Disruption, denied: &mut Denied) {
    let Why::Full { limit, lasting, .. } = &mut denied.why else {
        return;
    };
    let pod = &disruption.pod;
    let (Operation::Delete, Some(owner)) = (disruption.operation, pod.controller()) else {
        return;
    };
    let state = context.index.read();
    let entry = state.rule(&key.namespace, &key.name);
    let home = state.namespace(&key.namespace);
    let (Some(entry), Some(home)) = (entry, home) else {
        return;
    };
    let found = home.workload(&owner.uid).and_then(|controller| {
        selected::held_rollout(home, &entry.snapshot.rules, controller, *limit)
    });
    lasting.rollout = found.map(|(owner, cause)| {
        let owner = format!("{} {}", owner.kind.name(), owner.name);
        cause.explain_all(&owner, &key.name)
    });
}

/// The rule objects that hold a Pod and would not after a change of its labels: they no longer select it, or the filter
/// of one of their rules no longer does. The lifecycle's own labels come and go with every step and dodge nothing.
pub async fn left(
    context: &Context,
    old: &Arc<Pod>,
    new: &Pod,
    deadline: Instant,
) -> Result<Vec<RuleKey>, Denied> {
    if !are_labels_changed(old, new) {
        return Ok(Vec::new());
    }
    let mut rules = covering(context, old, deadline).await?;
    let state = context.index.read();
    rules.retain(|key| {
        state
            .rule(&key.namespace, &key.name)
            .is_none_or(|entry| entry.snapshot.rules.loses(old, new))
    });
    Ok(rules)
}

/// Whether a Pod that is not available may be deleted or evicted: by the rules that hold such Pods, those named in
/// `beyond` left out. One that an operation has taken off traffic may: its rules were asked then.
pub async fn let_go(
    context: &Context,
    pod: &Arc<Pod>,
    beyond: &BTreeSet<String>,
    deadline: Instant,
) -> Result<(), Denied> {
    if grace::is_operated(pod) {
        return Ok(());
    }
    let namespace = &pod.metadata.namespace;
    let is_alive = context.index.following.rules.is_alive();
    if !is_alive || !context.index.listed().all() || !knows_rules(context, namespace) {
        // Most rules let such a Pod go: asked, so that it is not held for want of a cache.
        let read = async {
            let rules: Api<PodTransitionRule> = path::namespaced(&context.client, namespace)?;
            pages::objects(&rules, RuleSet::of_alive).await
        };
        let mut sets = read_rules(deadline, read).await?.into_iter();
        return match sets.find(|set| set.selects(pod) && set.holds_unavailable()) {
            None => Ok(()),
            Some(_) => Err(Denied::unknown(Why::Behind)),
        };
    }
    same_history(context, namespace, deadline).await?;
    let mut strict = strict(&context.index, pod);
    overlap::check(&context.index, &strict, beyond, pod)?;
    strict.retain(|key| !beyond.contains(&key.name));
    know_owners(context, strict.iter(), deadline).await?;
    context.ledgers.let_go(&strict, pod, deadline).await
}

/// The rule objects that cover a Pod and hold it even while it is not available, as far as this replica knows.
fn strict(index: &Index, pod: &Pod) -> Vec<RuleKey> {
    let rules = index.rules_of(pod);
    let state = index.read();
    let holds = |key: &RuleKey| {
        state
            .rule(&pod.metadata.namespace, &key.name)
            .is_some_and(|entry| entry.snapshot.rules.holds_unavailable())
    };
    rules.into_iter().filter(holds).collect()
}

/// Whether an availability rule of the object holds the Pod.
fn has_budget(context: &Context, key: &RuleKey, pod: &Pod) -> bool {
    let state = context.index.read();
    let entry = state.rule(&key.namespace, &key.name);
    entry.is_some_and(|entry| {
        let held = entry.snapshot.rules.availability(pod);
        matches!(held, Availability::Held(_))
    })
}

/// Reads the owners live that these rule objects are in doubt about. What can't be read is not guessed.
async fn know_owners(
    context: &Context,
    rules: impl Iterator<Item = &RuleKey>,
    deadline: Instant,
) -> Result<(), Denied> {
    for key in rules {
        let (owners, client) = (&context.owners, &context.client);
        let read = owners.refresh(client, key, sizes::RECENT, deadline).await;
        read.map_err(|unreadable| Denied {
            object: key.name.clone(),
            rule: String::new(),
            why: match &unreadable {
                Unreadable::Unset { owner, field } => Why::Unset {
                    owner: owner.clone(),
                    field: field.clone(),
                },
                Unreadable::Failed { remedy, .. } => {
                    Why::UnknownOwner(format!("{unreadable}; {}", remedy.text()))
                }
            },
        })?;
    }
    Ok(())
}

/// Whether labels differ that are not the lifecycle's own.
pub fn are_labels_changed(old: &Pod, new: &Pod) -> bool {
    !users(old).eq(users(new))
}

/// The labels of a Pod that are not the lifecycle's.
fn users(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let labels = pod.metadata.labels.iter();
    labels.filter(|(key, _)| !is_lifecycles(key))
}

fn is_lifecycles(key: &str) -> bool {
    let (prefix, _) = key.split_once('/').unwrap_or_default();
    let domain = keys::LIFECYCLE_DOMAIN.trim_matches(['.', '/']);
    prefix
        .strip_suffix(domain)
        .is_some_and(|family| family.is_empty() || family.ends_with('.'))
}

/// The rule objects that cover a Pod. The webhooks that claim are called only in namespaces that hold rules; where the
/// cache knows none at all, it may trail behind a rule just made, and is not believed.
pub async fn covering(
    context: &Context,
    pod: &Arc<Pod>,
    deadline: Instant,
) -> Result<Vec<RuleKey>, Denied> {
    if !context.index.listed().all() {
        return Err(Denied::unknown(Why::Behind));
    }
    let namespace = &pod.metadata.namespace;
    same_history(context, namespace, deadline).await?;
    if !knows_rules(context, namespace) {
        let live = live_rules(context, namespace, deadline).await?;
        return match live.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Denied::unknown(Why::Behind)),
        };
    }
    current_rules(context, namespace, deadline).await?; // one that was made meanwhile may hold the Pod
    Ok(context.index.rules_of(pod))
}

/// Makes sure that the cache knows the rule objects of a namespace: where their watch is not believed, they are asked for live.
pub async fn current_rules(
    context: &Context,
    namespace: &str,
    deadline: Instant,
) -> Result<(), Denied> {
    match context.index.following.rules.is_alive() {
        true => Ok(()),
        false => know_rules(context, namespace, deadline).await,
    }
}

/// Makes sure that etcd still has the history that the caches hold, while the watch of Pods is not there to tell.
pub async fn same_history(
    context: &Context,
    namespace: &str,
    deadline: Instant,
) -> Result<(), Denied> {
    if !context.index.following.pods.is_alive() {
        let assured = timeout_at(deadline, context.ledgers.assure(namespace)).await;
        let late = |_| Why::Unreachable("no answer in time".to_owned());
        return assured.map_err(late).flatten().map_err(Denied::unknown);
    }
    match context.index.timeline.lost() {
        Some(why) => Err(Denied::unreachable(why.as_ref())),
        None => Ok(()),
    }
}

fn knows_rules(context: &Context, namespace: &str) -> bool {
    let state = context.index.read();
    let namespace = state.namespace(namespace);
    namespace.is_some_and(|n| !n.rules.is_empty())
}

/// Reads the rules live, or denies because that failed.
async fn read_rules<T>(
    deadline: Instant,
    read: impl Future<Output = kube::Result<T>>,
) -> Result<T, Denied> {
    let found = apirequest::by(deadline, read).await;
    found.map_err(|failure| {
        Denied::unreachable(match failure {
            Failure::NoAnswer(_) => "the rules could not be read in time".to_owned(),
            failure => failure.text(),
        })
    })
}
