//! Pods that a set which is deleted alone leaves behind, and that the caches do not show: those without the control label, and those
//! that were adopted a moment ago.

use parking_lot::Mutex;

use super::super::call::Halt;
use super::super::memory::SPACING;
use super::super::refusals::Key;
use super::batch::{self, Write};
use super::{Work, look};
use crate::domain::collaset::leaves_its_pods;
use crate::domain::collaset::plan::{Ownership, Plan, PodChange, PodPatch};
use crate::domain::collaset::status::Step;

/// Looks for them before the finalizer goes, since the garbage collector would delete what it has overlooked. Where there are any, the
/// plan releases them, and the finalizer stays for the next one.
pub async fn unseen(work: &Work<'_>, plan: &mut Plan) -> Result<(), Halt> {
    if !plan.remove_finalizer || !leaves_its_pods(&work.set.metadata) {
        return Ok(());
    }
    let owned = Mutex::new(Vec::new());
    let write = Write {
        key: Key::Look,
        step: Step::Exclude,
        request: look::each(work, String::new(), |pod| {
            let owner = pod.controller();
            if owner.is_some_and(|owner| owner.uid == work.uid()) {
                owned.lock().push(pod);
            }
        }),
    };
    batch::one(work, write).await?;
    for pod in owned.into_inner() {
        plan.remove_finalizer = false;
        work.again(SPACING);
        plan.pods.push(PodChange::Patch(PodPatch {
            pod: pod.into(),
            ownership: Ownership::Release,
            ..PodPatch::default()
        }));
    }
    Ok(())
}
