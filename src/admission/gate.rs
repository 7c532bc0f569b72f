//! The question that every disruption comes down to: may this Pod go, by every rule that covers it?

use std::sync::Arc;

use kube::api::{Api, ListParams};
use tokio::time::{Instant, timeout_at};

use super::context::Context;
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::pod::Pod;
use crate::ledger::commit::{Denied, Disruption, Why};
use crate::ledger::protocol::Grant;
use crate::ledger::store::RuleKey;

/// Claims for a disruption by every rule object that covers the Pod; the objects and grants, empty if none holds it.
pub async fn claim(
    context: &Context,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, Grant)>, Denied> {
    let rules = covering(context, &disruption.pod, deadline).await?;
    claim_by(context, rules, disruption, dry_run, deadline).await
}

/// As [`claim`], by these rule objects alone.
pub async fn claim_by(
    context: &Context,
    rules: Vec<RuleKey>,
    disruption: &Disruption,
    dry_run: bool,
    deadline: Instant,
) -> Result<Vec<(RuleKey, Grant)>, Denied> {
    let asked = context
        .ledgers
        .claim(rules.clone(), disruption, dry_run, deadline)
        .await;
    asked.map_err(|mut denied| {
        if let Some(key) = rules.iter().find(|key| key.name == denied.object) {
            context.ledgers.name_holders(key, &mut denied);
        }
        denied
    })
}

/// The rule objects that hold a Pod and would not after a change of its labels: they no longer select it, or the filter
/// of one of their rules no longer does. The lifecycle's own labels come and go with every step and dodge nothing.
pub async fn left(
    context: &Context,
    old: &Arc<Pod>,
    new: &Pod,
    deadline: Instant,
) -> Result<Vec<RuleKey>, Denied> {
    if users(old).eq(users(new)) {
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

/// The labels of a Pod that are not the lifecycle's.
fn users(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let labels = pod.metadata.labels.iter();
    labels.filter(|(key, _)| !is_lifecycles(key))
}

fn is_lifecycles(key: &str) -> bool {
    let domain = keys::LIFECYCLE_DOMAIN.trim_start_matches('.');
    key.contains(domain)
}

/// The rule objects that cover a Pod. The webhooks that claim are called only in namespaces that hold rules; where the
/// cache knows none at all, it may trail behind a rule just made, and is not believed.
pub async fn covering(
    context: &Context,
    pod: &Arc<Pod>,
    deadline: Instant,
) -> Result<Vec<RuleKey>, Denied> {
    let unknown = |why| Denied {
        object: "(unknown)".into(),
        rule: String::new(),
        why,
    };
    if !context.index.synced().all() {
        return Err(unknown(Why::Behind));
    }
    let namespace = &pod.metadata.namespace;
    let knows_rules = context
        .index
        .read()
        .namespace(namespace)
        .is_some_and(|n| !n.rules.is_empty());
    if !knows_rules {
        let rules: Api<PodTransitionRule> = Api::namespaced(context.client.clone(), namespace);
        match timeout_at(
            deadline,
            rules.list_metadata(&ListParams::default().limit(1)),
        )
        .await
        {
            Ok(Ok(list)) if list.items.is_empty() => return Ok(Vec::new()),
            Ok(Ok(_)) => return Err(unknown(Why::Behind)),
            Ok(Err(e)) => return Err(unknown(Why::Unreachable(e.to_string()))),
            Err(_) => {
                return Err(unknown(Why::Unreachable(
                    "the rules could not be read in time".into(),
                )));
            }
        }
    }
    Ok(context.index.rules_of(pod))
}
