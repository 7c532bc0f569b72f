//! Collects from the caches what a plan of a PodDecoration reads.

use std::sync::Arc;

use tokio::time::Instant;

use super::memory::DecorationMemory;
use crate::api::collaset::CollaSet;
use crate::cluster::index::NamespaceIndex;
use crate::cluster::objects::{CachedDecoration, ObjectCaches};
use crate::controllers::ControllerContext;
use crate::controllers::decoration_board::DecorationBoard;
use crate::domain::collaset::is_released_later;
use crate::domain::collaset::observed::pool_name;
use crate::domain::decoration::observed::{ObservedDecoration, SetOfNamespace};
use crate::domain::decoration::plan::{DecorationPlan, RevisionWrite, plan_decoration};
use crate::domain::pod::Pod;

/// Collects the state of a PodDecoration. The caches contain this controller's own writes.
pub fn observe_decoration(
    context: &ControllerContext,
    board: &DecorationBoard,
    cached: &CachedDecoration,
    memory: &DecorationMemory,
) -> ObservedDecoration {
    let objects = &context.objects;
    let metadata = &cached.object.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let generation = metadata.generation.unwrap_or(0);
    let last = board.get(namespace, name);
    let mut others = board.decorations(namespace);
    others.retain(|other| other.name != name);
    ObservedDecoration {
        revisions: objects.revisions.controlled_by(namespace, memory.uid()),
        referring_pods: match metadata.deletion_timestamp.is_some() {
            true => collect_referring_pods(context, namespace, memory.uid()),
            false => Vec::new(),
        },
        sets: collect_sets(context, namespace),
        others,
        last: last.filter(|last| last.uid == memory.uid()),
        refused: memory.refused_writes(Instant::now(), generation),
        now_nanos: u64::try_from((context.now)().as_nanosecond()).unwrap_or(0),
        object: Arc::clone(&cached.object),
    }
}

/// The Pods that have the PodDecoration among their owners and that no existing CollaSet controls.
fn collect_referring_pods(
    context: &ControllerContext,
    namespace: &str,
    uid: &str,
) -> Vec<Arc<Pod>> {
    let sets = context.objects.sets.objects_of(namespace);
    let is_of_set = |pod: &Pod| {
        pod.controller().is_some_and(|owner| {
            let mut sets = sets.iter();
            sets.any(|set| set.metadata.uid.as_ref() == Some(&owner.uid))
        })
    };
    let state = context.index.read_state();
    let pods = state.namespace(namespace).into_iter();
    let pods = pods.flat_map(|namespace| namespace.pods.values());
    let referring = pods.filter(|pod| {
        let mut owners = pod.metadata.owner_references.iter();
        owners.any(|owner| owner.uid == uid) && !pod.is_terminating() && !is_of_set(pod)
    });
    let referring = referring.filter(|pod| is_released_later(pod));
    referring.cloned().collect()
}

fn collect_sets(context: &ControllerContext, namespace: &str) -> Vec<SetOfNamespace> {
    let objects = &context.objects;
    let sets = objects.sets.objects_of(namespace);
    if sets.is_empty() {
        return Vec::new();
    }
    let state = context.index.read_state();
    let pods = state.namespace(namespace);
    let sets = sets.into_iter();
    sets.map(|set| collect_set(objects, namespace, pods, set))
        .collect()
}

fn collect_set(
    objects: &ObjectCaches,
    namespace: &str,
    pods: Option<&NamespaceIndex>,
    set: Arc<CollaSet>,
) -> SetOfNamespace {
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let own = pods.into_iter().flat_map(|pods| pods.pods_owned_by(uid));
    let mut own: Vec<_> = own.cloned().collect();
    own.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    SetOfNamespace {
        revisions: objects.revisions.controlled_by(namespace, uid),
        pods: own,
        pool: objects.pools.get(namespace, pool_name(&set)),
        set,
    }
}

/// Plans a PodDecoration. If its spec or status can't be read (`unreadable`), Pods that have the decoration keep it
/// until the PodDecoration is deleted, and the plan contains no write except the removal of the finalizer.
pub fn plan(observed: &ObservedDecoration, unreadable: Option<&str>) -> DecorationPlan {
    let mut plan = plan_decoration(observed);
    let Some(fault) = unreadable else {
        if observed.refused.revision.is_some() {
            plan.revision = plan_refused_revision(observed);
        }
        return plan;
    };
    plan.publish.invalid = Some(format!("its stored form can't be read: {fault}"));
    plan.publish.hold = None;
    DecorationPlan {
        publish: plan.publish,
        remove_finalizer: plan.remove_finalizer,
        ..DecorationPlan::default()
    }
}

/// The write of the revision that was refused. A plan that knows of the refusal publishes its reason and contains no
/// such write, so the write comes from a plan that does not know of it. The pause of the refusal delays the write.
fn plan_refused_revision(observed: &ObservedDecoration) -> Option<RevisionWrite> {
    let mut without_refusal = observed.clone();
    without_refusal.refused.revision = None;
    plan_decoration(&without_refusal).revision
}
