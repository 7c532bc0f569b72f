//! Collects from the caches the objects that the planner needs for one CollaSet.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::ControllerContext;
use super::super::cache_waits::{UNSYNCED_RETRY, wait_for_pod_cache};
use super::super::decoration_board::{DecorationBoard, published_decorations};
use super::blocking_rules::describe_blocking_rules;
use super::names::NameSlot;
use super::reconcile_state::ReconcileState;
use super::unmanaged::find_unmanaged_pods;
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::cluster::index::{IndexState, NamespaceIndex};
use crate::cluster::objects::ObjectCaches;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::collaset::has_name_of_set;
use crate::domain::collaset::headroom;
use crate::domain::collaset::observed::{ObservedSet, Pvc, Revision, pool_name};
use crate::domain::collaset::pvcs::{instance_id_label, is_usable_pvc};
use crate::domain::collaset::revision::data::pvc_templates;
use crate::domain::decoration::Decoration;
use crate::domain::pod::Pod;

/// Collects the state of a CollaSet, at least as new as this controller's own last writes. This function waits for the
/// writes of Pods; the caches of the other kinds contain their writes already. The writes of a former leader are
/// awaited once, when the term begins. While the Pod watch is silent, this function returns an error, because the
/// ledger does not decide then either.
pub async fn observe_collaset(
    context: &ControllerContext,
    board: &DecorationBoard,
    set: &Arc<CollaSet>,
    state: &ReconcileState,
) -> Result<ObservedSet, ReconcileOutcome> {
    if !context.index.listed_kinds().has_collaset_kinds() {
        return Err(ReconcileOutcome::After(UNSYNCED_RETRY));
    }
    let position = state.required_pod_version();
    wait_for_pod_cache(context, position).await?;
    // Before the caches are read, because the lookup may take time.
    let unmanaged = find_unmanaged_pods(context, set, state).await;
    if state.required_pod_version() > position {
        wait_for_pod_cache(context, state.required_pod_version()).await?;
    }
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let Some(set) = context.objects.sets.get(namespace, name) else {
        return Err(ReconcileOutcome::Done);
    };
    // At the begin of a term the other controller has not looked at every PodDecoration yet.
    let Some(decorations) = published_decorations(board, &context.objects, namespace) else {
        return Err(ReconcileOutcome::After(UNSYNCED_RETRY));
    };
    Ok(read_caches(context, set, state, unmanaged, decorations))
}

fn read_caches(
    context: &ControllerContext,
    set: Arc<CollaSet>,
    state: &ReconcileState,
    unmanaged: Vec<Arc<Pod>>,
    decorations: Vec<Arc<Decoration>>,
) -> ObservedSet {
    let (index, objects) = (&context.index, &context.objects);
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let revisions = collect_revisions(objects, namespace, uid, &set);
    let pvcs = collect_pvcs(objects, namespace, uid);
    let needs_mounts = !set.spec.volume_claim_templates.is_empty()
        || pvcs.iter().any(|pvc| pvc.belongs_to_set(Some(uid)))
        || revisions.iter().any(|r| !pvc_templates(&r.data).is_empty());
    let pods = collect_set_pods(&index.read_state(), namespace, uid, &set, needs_mounts);
    forget_cached_names(state, &set, &pods.own, &pvcs);
    state.retain_fences(pvcs.iter().map(|pvc| &*pvc.uid));
    let mut refused = state.plan_refusals(
        pods.own.iter().map(|pod| &**pod),
        revisions.iter().map(|revision| &*revision.name),
        Instant::now(),
        set.metadata.generation.unwrap_or(0),
    );
    refused.undeleted = context.blocked_deletions.failures_of_pods(&pods.own);
    refused.unstepped = context.blocked_lifecycles.failures_of_pods(&pods.own);
    let now_nanos = u64::try_from((context.now)().as_nanosecond()).unwrap_or(0);
    let is_deleting = set.metadata.deletion_timestamp.is_some();
    ObservedSet {
        pool_bytes: headroom::MAX_POOL_BYTES,
        refused,
        decorations,
        held: describe_blocking_rules(&index.read_state(), &pods.own, is_deleting),
        ended_until: state.record_finished_pods(pods.own.iter().map(|pod| &**pod), now_nanos),
        pool: objects.pools.get(namespace, pool_name(&set)),
        revisions,
        pods: pods.own,
        pods_to_include: pods.to_include,
        unmanaged,
        orphans: pods.orphans,
        mounts: pods.by_mounted_pvc,
        pvcs,
        now_nanos,
        set,
    }
}

/// The revisions that the set controls, and the revisions without a controller that its selector matches.
fn collect_revisions(
    objects: &ObjectCaches,
    namespace: &str,
    uid: &str,
    set: &CollaSet,
) -> Vec<Arc<Revision>> {
    let mut revisions = objects.revisions.controlled_by(namespace, uid);
    let orphans = objects.revisions.controlled_by(namespace, "").into_iter();
    revisions.extend(orphans.filter(|revision| selects_orphan_revision(revision, set)));
    revisions
}

/// The PVCs that the set controls, and the PVCs without a controller that no other existing set keeps.
fn collect_pvcs(objects: &ObjectCaches, namespace: &str, uid: &str) -> Vec<Arc<Pvc>> {
    let mut pvcs = objects.pvcs.controlled_by(namespace, uid);
    let uncontrolled = objects.pvcs.controlled_by(namespace, "").into_iter();
    let is_kept_by_other = |pvc: &Arc<Pvc>| {
        let kept_for = pvc.labels.get(keys::KEPT_FOR);
        kept_for.is_some_and(|other| other != uid && is_set_present(objects, namespace, other))
    };
    pvcs.extend(uncontrolled.filter(|pvc| !is_kept_by_other(pvc)));
    pvcs
}

/// Forgets the chosen names of objects that the caches contain. If a webhook removed labels from a PVC, no Pod can use
/// the PVC. Its name is kept; otherwise another PVC would be created each time.
fn forget_cached_names(
    state: &ReconcileState,
    set: &CollaSet,
    pods: &[Arc<Pod>],
    pvcs: &[Arc<Pvc>],
) {
    state.forget_observed_names(|slot, name| match slot {
        NameSlot::Pod(id) => pods.iter().any(|pod| {
            let instance_id = pod.label(keys::INSTANCE_ID);
            pod.metadata.name == name && instance_id == Some(&id.to_string())
        }),
        NameSlot::Pvc(id, template) => pvcs.iter().any(|pvc| {
            let is_labelled = instance_id_label(pvc) == Some(*id)
                && pvc.labels.get(keys::PVC_TEMPLATE_NAME) == Some(template);
            pvc.name == name && is_labelled && is_usable_pvc(set, pvc)
        }),
    });
}

/// Whether a set with this UID exists. No other set may use the PVCs that an existing set keeps.
fn is_set_present(objects: &ObjectCaches, namespace: &str, uid: &str) -> bool {
    let has_uid = |set: &CollaSet| set.metadata.uid.as_deref() == Some(uid);
    !objects.sets.names_where(namespace, has_uid).is_empty()
}

/// The Pods of the namespace that concern a set, in the order of their names.
#[derive(Default)]
struct SetPods {
    own: Vec<Arc<Pod>>,
    to_include: Vec<Arc<Pod>>,
    orphans: Vec<Arc<Pod>>,
    by_mounted_pvc: BTreeMap<String, Vec<Arc<Pod>>>,
}

/// Collects the Pods that concern a set. All Pods of the namespace are scanned only if the set names Pods in
/// `podToInclude`, or if the mounts of PVCs are needed.
fn collect_set_pods(
    state: &IndexState,
    namespace: &str,
    uid: &str,
    set: &CollaSet,
    needs_mounts: bool,
) -> SetPods {
    let Some(namespace_index) = state.namespace(namespace) else {
        return SetPods::default();
    };
    let scale = set.spec.scale_strategy.as_ref();
    let included = scale.map_or(&[][..], |scale| &scale.pod_to_include);
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let is_to_include = |pod: &&Arc<Pod>| {
        included.contains(&pod.metadata.name) && pod.controller().is_none_or(|o| o.uid != uid)
    };
    let is_orphan = |pod: &&Arc<Pod>| {
        (pod.label(keys::INSTANCE_ID).is_some() || !pod.spec.pvcs.is_empty())
            && pod.label(keys::ORPHANED).is_none()
            && has_name_of_set(name, &pod.metadata.name)
    };
    let mut pods = SetPods {
        own: namespace_index.pods_owned_by(uid).cloned().collect(),
        to_include: match included.is_empty() {
            true => Vec::new(),
            false => {
                let pods = namespace_index.pods.values();
                pods.filter(is_to_include).cloned().collect()
            }
        },
        orphans: {
            let pods = namespace_index.pods_owned_by("");
            pods.filter(is_orphan).cloned().collect()
        },
        by_mounted_pvc: match needs_mounts {
            true => pods_by_mounted_pvc(namespace_index),
            false => BTreeMap::new(),
        },
    };
    for list in [&mut pods.own, &mut pods.to_include, &mut pods.orphans] {
        list.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    }
    pods
}

/// The Pods that mount each PVC.
fn pods_by_mounted_pvc(namespace_index: &NamespaceIndex) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut mounts = BTreeMap::<String, Vec<Arc<Pod>>>::new();
    for pod in namespace_index.pods.values() {
        for pvc_name in &pod.spec.pvcs {
            mounts
                .entry(pvc_name.clone())
                .or_default()
                .push(Arc::clone(pod));
        }
    }
    for pods in mounts.values_mut() {
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    }
    mounts
}

/// Whether a revision without a controller matches the selector of the set. A selector without `matchLabels` matches no
/// such revision (contract Q39).
fn selects_orphan_revision(revision: &Revision, set: &CollaSet) -> bool {
    let selector = set.spec.selector.as_ref();
    let labels = selector.and_then(|s| s.match_labels.as_ref());
    labels.is_some_and(|labels| {
        !labels.is_empty()
            && labels
                .iter()
                .all(|(key, value)| revision.labels.get(key) == Some(value))
    })
}
