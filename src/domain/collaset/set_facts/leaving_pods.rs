//! Whether a Pod belongs to the set, leaves it, or has left it.

use super::SetFacts;
use crate::api::keys;
use crate::domain::collaset::set_operations;
use crate::domain::pod::Pod;

impl SetFacts<'_> {
    /// Whether the API server recently refused a write of the Pod, or of a PVC that it mounts.
    pub fn is_write_refused(&self, pod: &Pod) -> bool {
        let refused = &self.observed.refused;
        let mut pvc_names = pod.spec.pvcs.iter();
        refused.pods.contains(&pod.metadata.uid)
            || pvc_names.any(|pvc_name| refused.pvcs.contains(pvc_name))
    }

    /// Whether the API server recently refused a write that a Pod needs before it can leave: a write of the Pod, or of
    /// a PVC of its ID, mounted or not.
    pub fn is_leaving_refused(&self, id: i64, pod: &Pod) -> bool {
        let refused = &self.observed.refused.pvcs;
        self.is_write_refused(pod)
            || self
                .owned_pvcs_with_id(id)
                .any(|pvc| refused.contains(&pvc.name))
    }

    /// Whether a user asks the set to release the Pod alive.
    pub fn is_to_exclude(&self, pod: &Pod) -> bool {
        pod.label(keys::TO_EXCLUDE).is_some() || self.strategy.exclude.contains(&pod.metadata.name)
    }

    /// Whether the Pod will leave the set alive. Under `PersistentSequence` no Pod can. A Pod that `podToInclude`
    /// also names stays.
    pub fn leaves_alive(&self, pod: &Pod) -> bool {
        let included = self.strategy.include.contains(&pod.metadata.name);
        self.is_to_exclude(pod) && !self.strategy.sequence && !included
    }

    /// Whether the set can still withdraw the deletion of a Pod, see [`set_operations::can_withdraw_deletion`]. It can
    /// also withdraw a deletion that the API server refuses: the deletion has the Pod's resourceVersion as its
    /// precondition, so it fails after the withdrawal is stored.
    pub fn may_stay(&self, pod: &Pod) -> bool {
        let is_deletion_refused = || {
            self.deletion_refusal(pod).is_some()
                && set_operations::is_deletion_requested_by_set(pod)
        };
        set_operations::can_withdraw_deletion(pod) || is_deletion_refused()
    }

    /// Whether the Pod is leaving and nobody can withdraw its deletion.
    pub fn must_leave(&self, pod: &Pod) -> bool {
        set_operations::is_leaving(pod) && !self.may_stay(pod)
    }

    /// Why the API server refuses to delete a Pod that is off traffic for its deletion; `None` if it does not.
    pub fn deletion_refusal(&self, pod: &Pod) -> Option<&str> {
        let message = self.observed.refused.undeleted.get(&pod.metadata.uid);
        message.map(String::as_str)
    }

    /// Whether a Pod is the new Pod of a replace pair whose origin still exists.
    pub fn is_new_half(&self, pod: &Pod) -> bool {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        origin.is_some_and(|origin| self.present_names.contains(origin))
    }

    /// Whether the Pod is the member with its instance ID.
    pub fn is_member(&self, pod: &Pod) -> bool {
        let member = self
            .instance_id_of(pod)
            .and_then(|id| self.members.get(&id));
        member.is_some_and(|member| member.metadata.uid == pod.metadata.uid)
    }

    /// Whether a Pod was excluded, is not finished, and is not in `podToInclude`.
    pub fn has_left(&self, pod: &Pod) -> bool {
        let enters = self.strategy.include.contains(&pod.metadata.name);
        let is_out = pod.label(keys::ORPHANED).is_some() && !self.controls(pod);
        is_out && !enters && !pod.is_finished()
    }

    /// Whether the set controls a Pod. The end of such a Pod causes a new plan.
    pub fn controls(&self, pod: &Pod) -> bool {
        let controller = pod.controller().map(|owner| owner.uid.as_str());
        controller.is_some() && controller == self.observed.set.metadata.uid.as_deref()
    }
}
