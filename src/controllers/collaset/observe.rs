//! The caches, put together for the planner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::super::Context;
use super::held::held;
use super::memory::Memory;
use super::names::Slot;
use super::unmanaged::unmanaged;
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::cluster::index::{Namespace, State};
use crate::cluster::objects::Objects;
use crate::cluster::queue::Outcome;
use crate::domain::collaset::claims::{instance, is_usable};
use crate::domain::collaset::has_name_of;
use crate::domain::collaset::observed::{Claim, Observed, Revision, pool_name};
use crate::domain::collaset::revision::data::claim_templates;
use crate::domain::collaset::room;
use crate::domain::pod::Pod;
use crate::ledger::store::Store;

/// Waits for the first lists this long at a time.
const UNSYNCED: Duration = Duration::from_millis(200);
/// Waits this long for a cache to show the own writes, or those of a former leader.
pub const CATCH_UP: Duration = Duration::from_secs(5);

/// What there is, as of this controller's own last writes or later: those of Pods are waited for, those of the other kinds are in the
/// caches already. What a former leader has written is waited for once, when the term begins. Nothing while the Pod watch is silent, as the ledger decides nothing then.
pub async fn observe(
    context: &Context,
    set: &Arc<CollaSet>,
    memory: &Memory,
) -> Result<Observed, Outcome> {
    let index = &context.index;
    if !index.listed().for_collasets() {
        return Err(Outcome::After(UNSYNCED));
    }
    let position = memory.position();
    catch_up(context, set, position).await?;
    // Before the caches are looked at: it may take its time.
    let unmanaged = unmanaged(context, set, memory).await;
    if memory.position() > position {
        catch_up(context, set, memory.position()).await?;
    }
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let Some(set) = context.objects.sets.get(namespace, name) else {
        return Err(Outcome::Done);
    };
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let objects = &context.objects;
    let mut revisions = objects.revisions.controlled_by(namespace, uid);
    let orphans = objects.revisions.controlled_by(namespace, "");
    revisions.extend(orphans.into_iter().filter(|r| is_of(r, &set)));
    let mut claims = objects.claims.controlled_by(namespace, uid);
    let free = objects.claims.controlled_by(namespace, "");
    let is_anothers = |claim: &Arc<Claim>| {
        let kept_for = claim.labels.get(keys::KEPT_FOR);
        kept_for.is_some_and(|of| of != uid && lives(objects, namespace, of))
    };
    claims.extend(free.into_iter().filter(|claim| !is_anothers(claim)));
    let mounting = !set.spec.volume_claim_templates.is_empty()
        || claims.iter().any(|claim| claim.belongs_to(Some(uid)))
        || revisions
            .iter()
            .any(|r| !claim_templates(&r.data).is_empty());
    let Pods {
        own: pods,
        strangers,
        orphans,
        mounts,
    } = pods(&index.read(), namespace, uid, &set, mounting);
    // A claim from which a webhook has taken labels serves nobody: its name is kept, or another would be made each time.
    memory.forget_seen(|slot, name| match slot {
        Slot::Pod(id) => pods.iter().any(|pod| {
            let of = pod.label(keys::INSTANCE_ID);
            pod.metadata.name == name && of == Some(&id.to_string())
        }),
        Slot::Claim(id, template) => claims.iter().any(|claim| {
            let of = claim.labels.get(keys::PVC_TEMPLATE_NAME);
            let is_whole = instance(claim) == Some(*id) && of == Some(template);
            claim.name == name && is_whole && is_usable(&set, claim)
        }),
    });
    memory.keep_fences(claims.iter().map(|claim| &*claim.uid));
    let mut refused = memory.facts(
        pods.iter().map(|pod| &**pod),
        revisions.iter().map(|revision| &*revision.name),
        Instant::now(),
        set.metadata.generation.unwrap_or(0),
    );
    refused.undeleted = context.undeleted.of(&pods);
    refused.unstepped = context.unstepped.of(&pods);
    let now_nanos = u64::try_from((context.now)().as_nanosecond()).unwrap_or(0);
    let goes = set.metadata.deletion_timestamp.is_some();
    Ok(Observed {
        pool_bytes: room::MOST,
        refused,
        held: held(&index.read(), &pods, goes),
        ended_until: memory.ended(pods.iter().map(|pod| &**pod), now_nanos),
        pool: objects.pools.get(namespace, pool_name(&set)),
        revisions,
        pods,
        strangers,
        unmanaged,
        orphans,
        mounts,
        claims,
        now_nanos,
        set,
    })
}

/// Whether a set of this UID is there: the claims that it keeps are no other's.
fn lives(objects: &Objects, namespace: &str, uid: &str) -> bool {
    let is_it = |set: &CollaSet| set.metadata.uid.as_deref() == Some(uid);
    !objects.sets.names_where(namespace, is_it).is_empty()
}

/// Waits until the Pod cache has come to this version.
async fn catch_up(context: &Context, set: &CollaSet, version: u64) -> Result<(), Outcome> {
    let store = context.ledgers.store();
    let caught_up = async {
        store.followed().await;
        store.caught_up(version).await;
    };
    let done = tokio::time::timeout(CATCH_UP, caught_up).await;
    done.map_err(|_| {
        let (namespace, name) = (&set.metadata.namespace, &set.metadata.name);
        warn!(?namespace, set = ?name, "the Pod cache trails, or its watch is silent; nothing is planned from it");
        Outcome::Retry
    })
}

/// What a set has to do with the Pods of its namespace, in the order of their names.
#[derive(Default)]
struct Pods {
    own: Vec<Arc<Pod>>,
    strangers: Vec<Arc<Pod>>,
    orphans: Vec<Arc<Pod>>,
    mounts: BTreeMap<String, Vec<Arc<Pod>>>,
}

/// Looks at all Pods of the namespace only where the set asks for some by name, or for the mounts of claims.
fn pods(state: &State, namespace: &str, uid: &str, set: &CollaSet, mounting: bool) -> Pods {
    let Some(home) = state.namespace(namespace) else {
        return Pods::default();
    };
    let scale = set.spec.scale_strategy.as_ref();
    let wanted = scale.map_or(&[][..], |scale| &scale.pod_to_include);
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let is_stranger = |pod: &&Arc<Pod>| {
        wanted.contains(&pod.metadata.name) && pod.controller().is_none_or(|o| o.uid != uid)
    };
    let is_orphan = |pod: &&Arc<Pod>| {
        (pod.label(keys::INSTANCE_ID).is_some() || !pod.spec.claims.is_empty())
            && pod.label(keys::ORPHANED).is_none()
            && has_name_of(name, &pod.metadata.name)
    };
    let mut pods = Pods {
        own: home.owned_by(uid).cloned().collect(),
        strangers: match wanted.is_empty() {
            true => Vec::new(),
            false => home.pods.values().filter(is_stranger).cloned().collect(),
        },
        orphans: home.owned_by("").filter(is_orphan).cloned().collect(),
        mounts: match mounting {
            true => mounts(home),
            false => BTreeMap::new(),
        },
    };
    for list in [&mut pods.own, &mut pods.strangers, &mut pods.orphans] {
        list.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    }
    pods
}

/// The Pods that mount each claim.
fn mounts(home: &Namespace) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut mounts = BTreeMap::<String, Vec<Arc<Pod>>>::new();
    for pod in home.pods.values() {
        for claim in &pod.spec.claims {
            mounts
                .entry(claim.clone())
                .or_default()
                .push(Arc::clone(pod));
        }
    }
    for pods in mounts.values_mut() {
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    }
    mounts
}

/// Whether a revision without a controller carries the labels of the set's selector. A selector without `matchLabels`
/// has no claim to any (contract Q39).
fn is_of(revision: &Revision, set: &CollaSet) -> bool {
    let selector = set.spec.selector.as_ref();
    let labels = selector.and_then(|s| s.match_labels.as_ref());
    labels.is_some_and(|labels| {
        !labels.is_empty()
            && labels
                .iter()
                .all(|(key, value)| revision.labels.get(key) == Some(value))
    })
}
