//! Checks that the caches show the present state before a decision relies on them: that they have the rule objects
//! which the API server has, and that etcd was not restored to an earlier state.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use tokio::time::{Duration, Instant, sleep, timeout_at};

use super::context::AdmissionContext;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api_request::{self, ApiFailure};
use crate::cluster::{paging, request_path};
use crate::domain::rules::RuleSet;
use crate::ledger::commit::{Denied, DenyReason};

/// Longest wait for the cache to receive changed rules.
const CACHE_SYNC_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the wait looks at the cache.
const CACHE_POLL_INTERVAL: Duration = Duration::from_millis(10);

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
        let verified = timeout_at(deadline, context.ledgers.verify_history(namespace)).await;
        let no_answer = |_| DenyReason::Unreachable("no answer in time".to_owned());
        return verified
            .map_err(no_answer)
            .flatten()
            .map_err(Denied::without_rule);
    }
    match context.index.etcd_history.lost_reason() {
        Some(why) => Err(Denied::unreachable(why.as_ref())),
        None => Ok(()),
    }
}

/// Whether the cache has a rule object of the namespace.
pub fn has_cached_rules(context: &AdmissionContext, namespace: &str) -> bool {
    let state = context.index.read_state();
    let namespace = state.namespace(namespace);
    namespace.is_some_and(|n| !n.rules.is_empty())
}

/// The result of a live read of rules. A failed read denies the request.
async fn by_deadline<T>(
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
pub async fn wait_for_rule_cache(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<(), Denied> {
    let live = list_live_rules(context, namespace, deadline).await?;
    let limit = deadline.min(Instant::now() + CACHE_SYNC_TIMEOUT);
    let catch_up = async {
        while !is_cache_current(&live, &cached_rules(context, namespace)) {
            sleep(CACHE_POLL_INTERVAL).await;
        }
    };
    let caught_up = timeout_at(limit, catch_up).await;
    caught_up.map_err(|_| Denied::without_rule(DenyReason::Behind))
}

/// The versions of the rule objects, by a live read of their metadata. A rule object whose deletion has begun holds no
/// Pod, and the cache does not contain it.
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
    Ok(by_deadline(deadline, read).await?.into_iter().collect())
}

/// Whether the API server has a rule object of the namespace, by a live read.
pub async fn has_live_rules(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<bool, Denied> {
    let live = list_live_rules(context, namespace, deadline).await?;
    Ok(!live.is_empty())
}

/// The rules of a namespace, by a live read of the whole objects.
pub async fn read_live_rules(
    context: &AdmissionContext,
    namespace: &str,
    deadline: Instant,
) -> Result<Vec<RuleSet>, Denied> {
    let read = async {
        let rules: Api<PodTransitionRule> =
            request_path::namespaced_api(&context.client, namespace)?;
        paging::list_all_objects(&rules, RuleSet::compile_if_alive).await
    };
    by_deadline(deadline, read).await
}

/// The versions of the rule objects in the cache.
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
    let has_all = live.iter().all(|(name, (uid, generation))| {
        let cached = cached.get(name);
        cached.is_some_and(|(cached_uid, cached)| cached_uid == uid && cached >= generation)
    });
    has_all && cached.len() <= live.len()
}
