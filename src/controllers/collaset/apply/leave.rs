//! Pods and claims that a set which is deleted alone leaves behind, and that the caches do not show: those without the control label,
//! and those that were adopted a moment ago.

use std::sync::Arc;

use parking_lot::Mutex;

use super::super::call::Halt;
use super::super::memory::SPACING;
use super::super::refusals::Key;
use super::batch::{self, Write};
use super::{Work, look};
use crate::domain::collaset::leaves_its_pods;
use crate::domain::collaset::observed::Claim;
use crate::domain::collaset::plan::{ClaimChange, Ownership, Plan, PodChange, PodPatch};
use crate::domain::collaset::status::Step;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Looks for them before the finalizer goes, since the garbage collector would delete what it has overlooked. Where there are any, the
/// plan releases them, and the finalizer stays for the next one.
pub async fn unseen(work: &Work<'_>, plan: &mut Plan) -> Result<(), Halt> {
    if !plan.remove_finalizer || !leaves_its_pods(&work.set.metadata) {
        return Ok(());
    }
    let found = Mutex::new((Vec::new(), Vec::new()));
    let write = Write {
        key: Key::Look,
        step: Step::Exclude,
        request: async {
            *found.lock() = read(work).await?;
            Ok(())
        },
    };
    batch::one(work, write).await?;
    let (pods, claims) = found.into_inner();
    if pods.is_empty() && claims.is_empty() {
        return Ok(());
    }
    plan.remove_finalizer = false;
    work.again(SPACING);
    plan.pods.extend(pods.into_iter().map(|pod| {
        PodChange::Patch(PodPatch {
            pod,
            ownership: Ownership::Release,
            ..PodPatch::default()
        })
    }));
    plan.claims
        .extend(claims.into_iter().map(|claim| ClaimChange::Patch {
            claim,
            labels: LabelPatch::default(),
            ownership: Ownership::Release,
        }));
    Ok(())
}

/// Pods and claims of the namespace that the set controls.
async fn read(work: &Work<'_>) -> Result<(Vec<Arc<Pod>>, Vec<Arc<Claim>>), Halt> {
    let (mut pods, mut claims) = (Vec::new(), Vec::new());
    look::each(work, String::new(), |pod| {
        let owner = pod.controller();
        if owner.is_some_and(|owner| owner.uid == work.uid()) {
            pods.push(Arc::new(pod));
        }
    })
    .await?;
    look::each_claim(work, String::new(), |claim| claims.push(Arc::new(claim))).await?;
    Ok((pods, claims))
}
