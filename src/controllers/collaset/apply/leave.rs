//! Pods and claims that a set leaves behind, and that the caches do not show: those without the control label, and those that were
//! adopted a moment ago.

use std::collections::BTreeSet;
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
use crate::domain::collaset::strategy::Strategy;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// What the garbage collector would delete with the set.
type Found = (Vec<Arc<Pod>>, Vec<Arc<Claim>>);

/// Looks for them before the finalizer goes, since the garbage collector would delete what it has overlooked. Where there are any, the
/// plan releases them, and the finalizer stays for the next one.
pub async fn unseen(work: &Work<'_>, plan: &mut Plan) -> Result<(), Halt> {
    if !plan.remove_finalizer {
        return Ok(());
    }
    let found = Mutex::new((Vec::new(), Vec::new()));
    let write = Write {
        key: Key::Look,
        step: Step::Exclude,
        request: async {
            let read = match leaves_its_pods(&work.set.metadata) {
                true => everything(work).await?,
                false => (Vec::new(), kept_claims(work).await?),
            };
            *found.lock() = read;
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

/// All Pods and claims of a set that leaves them.
async fn everything(work: &Work<'_>) -> Result<Found, Halt> {
    let mut pods = Vec::new();
    look::each(work, String::new(), |pod| {
        let mut owners = pod.metadata.owner_references.iter();
        if owners.any(|owner| owner.uid == work.uid()) {
            pods.push(Arc::new(pod));
        }
    })
    .await?;
    Ok((pods, claims(work).await?))
}

/// Of a set that takes its Pods along: the claims that it retains or keeps, and those that somebody's Pod mounts.
async fn kept_claims(work: &Work<'_>) -> Result<Vec<Arc<Claim>>, Halt> {
    let mut claims = claims(work).await?;
    if claims.is_empty() || Strategy::of(&work.set.spec).retain_deleted {
        return Ok(claims);
    }
    let mut mounted = BTreeSet::new();
    look::each(work, String::new(), |pod| {
        let mut owners = pod.metadata.owner_references.iter();
        if !owners.any(|owner| owner.uid == work.uid()) {
            mounted.extend(pod.spec.claims.iter().cloned());
        }
    })
    .await?;
    claims.retain(|claim| claim.is_kept_for(Some(work.uid())) || mounted.contains(&claim.name));
    Ok(claims)
}

async fn claims(work: &Work<'_>) -> Result<Vec<Arc<Claim>>, Halt> {
    let mut claims = Vec::new();
    let keep = |claim, is_owned| {
        if is_owned {
            claims.push(Arc::new(claim));
        }
    };
    look::each_claim(work, String::new(), keep).await?;
    Ok(claims)
}
