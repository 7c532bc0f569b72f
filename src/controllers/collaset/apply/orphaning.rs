//! Releases Pods and PVCs that a deleted set leaves behind and that the caches do not contain: those without the
//! control label, and those that were adopted a moment ago.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::reconcile_state::MIN_RECONCILE_INTERVAL;
use super::super::refusals::RefusalKey;
use super::super::requests::Halt;
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

/// Searches for such objects before the finalizer is removed, because the garbage collector would delete them
/// afterwards. If there are any, the plan releases them, and the finalizer stays until the next plan.
pub async fn release_uncached_dependents(
    work: &PlanExecution<'_>,
    plan: &mut SetPlan,
) -> Result<(), Halt> {
    if !plan.remove_finalizer {
        return Ok(());
    }
    let found = Mutex::new((Vec::new(), Vec::new()));
    let write = WriteRequest {
        key: RefusalKey::LiveRead,
        step: FailedStep::Exclude,
        request: async {
            let read = match orphans_its_pods(&work.set.metadata) {
                true => list_all_dependents(work).await?,
                false => (Vec::new(), list_retained_pvcs(work).await?),
            };
            *found.lock() = read;
            Ok(())
        },
    };
    batch::send_write(work, write).await?;
    let (pods, claims) = found.into_inner();
    if pods.is_empty() && claims.is_empty() {
        return Ok(());
    }
    plan.remove_finalizer = false;
    work.requeue_after(MIN_RECONCILE_INTERVAL);
    plan.pods.extend(pods.into_iter().map(|pod| {
        PodChange::Patch(PodPatch {
            pod,
            ownership: OwnershipChange::Release,
            ..PodPatch::default()
        })
    }));
    plan.pvcs
        .extend(claims.into_iter().map(|claim| PvcChange::Patch {
            pvc: claim,
            labels: LabelPatch::default(),
            ownership: OwnershipChange::Release,
        }));
    Ok(())
}

/// All Pods and PVCs of a set that orphans its Pods.
async fn list_all_dependents(work: &PlanExecution<'_>) -> Result<LiveDependents, Halt> {
    let mut pods = Vec::new();
    live_state::for_each_pod(work, String::new(), |pod| {
        let mut owners = pod.metadata.owner_references.iter();
        if owners.any(|owner| owner.uid == work.uid()) {
            pods.push(Arc::new(pod));
        }
    })
    .await?;
    Ok((pods, list_pvcs(work).await?))
}

/// The PVCs that stay when a set deletes its Pods: those that the set retains or keeps, and those that a foreign Pod
/// mounts.
async fn list_retained_pvcs(work: &PlanExecution<'_>) -> Result<Vec<Arc<Pvc>>, Halt> {
    let mut claims = list_pvcs(work).await?;
    if claims.is_empty() || ResolvedStrategy::from_spec(&work.set.spec).retain_deleted {
        return Ok(claims);
    }
    let mut mounted = BTreeSet::new();
    live_state::for_each_pod(work, String::new(), |pod| {
        let mut owners = pod.metadata.owner_references.iter();
        if !owners.any(|owner| owner.uid == work.uid()) {
            mounted.extend(pod.spec.pvcs.iter().cloned());
        }
    })
    .await?;
    claims.retain(|claim| claim.is_kept_for(Some(work.uid())) || mounted.contains(&claim.name));
    Ok(claims)
}

async fn list_pvcs(work: &PlanExecution<'_>) -> Result<Vec<Arc<Pvc>>, Halt> {
    let mut claims = Vec::new();
    let keep = |claim, is_owned| {
        if is_owned {
            claims.push(Arc::new(claim));
        }
    };
    live_state::for_each_pvc(work, String::new(), keep).await?;
    Ok(claims)
}
