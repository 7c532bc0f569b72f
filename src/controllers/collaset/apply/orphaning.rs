//! Releases Pods and PVCs that a deleted set leaves behind and that the caches do not contain: objects without the
//! control label, and objects that were adopted a moment ago.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::RefusalKey;
use super::super::requests::StageError;
use super::batch::{self, WriteRequest};
use super::{PlanExecution, live_state};
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::orphans_its_pods;
use crate::domain::collaset::plan::{OwnershipChange, PodChange, PodPatch, PvcChange, SetPlan};
use crate::domain::collaset::status::FailedStep;
use crate::domain::collaset::strategy::ResolvedStrategy;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// The Pods and PVCs that the garbage collector would delete with the set.
type LiveDependents = (Vec<Arc<Pod>>, Vec<Arc<Pvc>>);

/// Searches for dependents that no cache contains before the finalizer is removed, because the garbage collector would
/// delete them afterwards. If such dependents exist, the plan releases them, and the finalizer stays until the next
/// plan.
pub async fn release_uncached_dependents(
    execution: &PlanExecution<'_>,
    plan: &mut SetPlan,
) -> Result<(), StageError> {
    if !plan.remove_finalizer {
        return Ok(());
    }
    let dependents = Mutex::new((Vec::new(), Vec::new()));
    let write = WriteRequest {
        key: RefusalKey::LiveRead,
        step: FailedStep::Exclude,
        request: async {
            let read = match orphans_its_pods(&execution.set.metadata) {
                true => list_all_dependents(execution).await?,
                false => (Vec::new(), list_retained_pvcs(execution).await?),
            };
            *dependents.lock() = read;
            Ok(())
        },
    };
    batch::send_write(execution, write).await?;
    let (pods, pvcs) = dependents.into_inner();
    if pods.is_empty() && pvcs.is_empty() {
        return Ok(());
    }
    plan.remove_finalizer = false;
    execution.requeue_after(MIN_RECONCILE_INTERVAL);
    plan.pods.extend(pods.into_iter().map(|pod| {
        PodChange::Patch(PodPatch {
            pod,
            ownership: OwnershipChange::Release,
            ..PodPatch::default()
        })
    }));
    plan.pvcs
        .extend(pvcs.into_iter().map(|pvc| PvcChange::Patch {
            pvc,
            labels: LabelPatch::default(),
            ownership: OwnershipChange::Release,
        }));
    Ok(())
}

/// All Pods and PVCs of a set that orphans its Pods.
async fn list_all_dependents(execution: &PlanExecution<'_>) -> Result<LiveDependents, StageError> {
    let mut pods = Vec::new();
    live_state::for_each_pod(execution, String::new(), |pod| {
        let mut owners = pod.metadata.owner_references.iter();
        if owners.any(|owner| owner.uid == execution.uid()) {
            pods.push(Arc::new(pod));
        }
    })
    .await?;
    Ok((pods, list_pvcs(execution).await?))
}

/// The PVCs that stay when a set deletes its Pods: PVCs that the set retains or keeps, and PVCs that a foreign Pod
/// mounts.
async fn list_retained_pvcs(execution: &PlanExecution<'_>) -> Result<Vec<Arc<Pvc>>, StageError> {
    let mut pvcs = list_pvcs(execution).await?;
    if pvcs.is_empty() || ResolvedStrategy::from_spec(&execution.set.spec).retain_deleted {
        return Ok(pvcs);
    }
    let mut mounted = BTreeSet::new();
    live_state::for_each_pod(execution, String::new(), |pod| {
        let mut owners = pod.metadata.owner_references.iter();
        if !owners.any(|owner| owner.uid == execution.uid()) {
            mounted.extend(pod.spec.pvcs.iter().cloned());
        }
    })
    .await?;
    pvcs.retain(|pvc| pvc.is_kept_for(Some(execution.uid())) || mounted.contains(&pvc.name));
    Ok(pvcs)
}

async fn list_pvcs(execution: &PlanExecution<'_>) -> Result<Vec<Arc<Pvc>>, StageError> {
    let mut pvcs = Vec::new();
    let keep = |pvc, is_owned| {
        if is_owned {
            pvcs.push(Arc::new(pvc));
        }
    };
    live_state::for_each_pvc(execution, String::new(), keep).await?;
    Ok(pvcs)
}
