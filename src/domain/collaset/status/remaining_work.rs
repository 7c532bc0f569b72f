//! Describes the remaining work of a set, and why this work waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::set_facts::SetFacts;
use super::super::set_operations::{self, SetOperation};
use super::condition_inputs::ConditionInputs;
use super::pods_down::is_down;
use super::{finalizer_waits, waits};
use crate::api::collaset::CollaSetStatus;
use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;

impl ConditionInputs {
    /// Describes the rest of a rollout.
    pub(super) fn remaining_rollout(&self) -> String {
        let behind = self.pods_to_update();
        match self.to_make {
            0 => behind,
            count => format!("{behind}, {count} to be made"),
        }
    }

    /// Says how many Pods are to be updated.
    pub(super) fn pods_to_update(&self) -> String {
        let behind = messages::count_pods(self.behind);
        let decorated = messages::count_pods(self.to_decorate);
        match (self.behind, self.to_decorate) {
            (_, 0) => format!("{behind} to update"),
            (0, _) => format!("{decorated} to get other decorations"),
            _ => format!("{behind} to update, {decorated} to get other decorations"),
        }
    }

    /// Describes in short, after `; `, the rest of a rollout and its position; empty if the rollout is complete.
    pub(super) fn remaining_rollout_suffix(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
    ) -> String {
        let rollout = status.rollout.as_ref();
        let at = rollout.filter(|r| !r.aborted && facts.rollout.step_at(r).is_some());
        let at = at.map(|r| format!("at step {} of {}", r.step, facts.rollout.len()));
        let is_aborted = rollout.is_some_and(|r| r.aborted);
        let parts = [
            (self.behind + self.to_decorate + self.to_make > 0).then(|| self.remaining_rollout()),
            at,
            is_aborted.then(|| "aborted".to_owned()),
            facts.strategy.paused.then(|| "paused".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => String::new(),
            false => format!("; {}", parts.join(", ")),
        }
    }

    /// Describes in short, after `; `, how many wanted Pods are not available, and why the first Pod without an
    /// operation of the set is not available. Empty if all Pods are available. A pair is available if one of its Pods
    /// is.
    pub(super) fn describe_unavailable(&self, facts: &SetFacts) -> String {
        let serving = facts.members.values().filter(|pod| pod.is_available());
        let names: BTreeSet<&str> = serving.clone().map(|pod| &*pod.metadata.name).collect();
        let is_second = |pod: &&Arc<Pod>| {
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            origin.is_some_and(|origin| names.contains(origin))
        };
        let wanted = facts.strategy.replicas;
        let down = wanted.saturating_sub(serving.filter(|pod| !is_second(pod)).count());
        if down == 0 {
            return String::new();
        }
        let is_idle = |pod: &&Arc<Pod>| {
            let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
            let is_free = !operations.any(|operation| operation.is_in_progress(pod));
            is_free && !set_operations::is_leaving(pod) && !facts.is_new_half(pod)
        };
        let first = self.unavailable.iter().filter(is_idle).take(1);
        let first = waits::describe_unavailable(Some(facts.observed), first);
        let first = first.replacen("; ", ": ", 1);
        let verb = if down == 1 { "is" } else { "are" };
        format!(
            "; {down} of {} {verb} not available{first}",
            messages::count_pods(wanted)
        )
    }

    /// Describes the result of an aborted rollout.
    pub(super) fn describe_aborted(&self, facts: &SetFacts) -> String {
        if self.behind + self.updates > 0 || self.missing == 0 {
            return waits::describe_abort(facts, self.behind, self.updates);
        }
        let revision = &facts.rollout.revision;
        let missing = messages::count_pods_with_verb(self.missing, "is", "are");
        format!("the rollout of revision {revision} was aborted; {missing} to be made")
    }

    /// Whether the rollout still has Pods to update, steps to take, or Pods of the updated revision to wait for.
    pub(super) fn is_updating(&self, facts: &SetFacts) -> bool {
        let remaining = self.behind + self.to_decorate + self.to_make + self.updates;
        remaining > 0
            || facts.rollout.has_steps_left()
            || self.updated_pods_down(facts).next().is_some()
    }

    /// Describes the rest of a rollout, and why the rollout waits.
    pub(super) fn describe_remaining_update(&self, facts: &SetFacts) -> String {
        let down = self.updated_pods_down(facts).count();
        if self.behind + self.to_decorate + self.to_make + self.updates > 0 || down == 0 {
            let bound = self.describe_bounds(facts, |_| false);
            let given_up = match self.behind > 0 && self.missing > 0 {
                true => waits::describe_blocked_deletions(facts),
                false => "",
            };
            let ending = match self.missing > 0 {
                true => self.describe_awaited_ends(facts),
                false => String::new(),
            };
            return format!("{}{bound}{ending}{given_up}", self.remaining_rollout());
        }
        let pods = messages::count_pods_with_verb(
            down,
            "of the updated revision is",
            "of the updated revision are",
        );
        let reasons =
            waits::describe_unavailable(Some(facts.observed), self.updated_pods_down(facts));
        format!("{pods} not available{reasons}")
    }

    /// Names the Pods that must end before other Pods can be created, after `; `.
    pub(super) fn describe_awaited_ends(&self, facts: &SetFacts) -> String {
        if !self.awaited.is_empty() {
            let names: Vec<&str> = self.awaited.iter().map(|pod| &*pod.metadata.name).collect();
            let finalizers =
                finalizer_waits::list_blocking_finalizers(self.awaited.iter().map(|pod| &**pod));
            return format!("; waiting for {} to end{finalizers}", names.join(", "));
        }
        let Some((pod, pvc_name)) = facts.awaited_pvc() else {
            return String::new();
        };
        let (name, finalizers) = (
            &pod.metadata.name,
            finalizer_waits::list_blocking_finalizers([pod]),
        );
        format!("; waiting for Pod {name}, which still mounts PVC {pvc_name}, to end{finalizers}")
    }

    /// Describes the bounds of the set that delay the rollout, each after `; `. Pods for which `named` is true are
    /// described elsewhere.
    pub(super) fn describe_bounds(&self, facts: &SetFacts, named: impl Fn(&Pod) -> bool) -> String {
        let unavailable = waits::describe_max_unavailable_use(facts, &self.using_up, named);
        let surge = waits::describe_max_surge_use(facts, &self.using_surge_up);
        unavailable + &surge
    }

    /// Pods of the updated revision that are down, while its rollout is not complete. The rollout does not wait for the
    /// new Pod of a replacement that a user has asked for.
    pub(super) fn updated_pods_down<'a>(
        &'a self,
        facts: &'a SetFacts,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        let down = self.pods_down(facts).filter(|_| self.is_under_way);
        down.filter(|pod| facts.is_updated(pod) && !facts.is_new_half(pod))
    }

    /// Pods that do not serve and that the rollout waits for, although they have no operation of the set.
    pub(super) fn pods_down<'a>(
        &'a self,
        facts: &'a SetFacts,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        let unavailable = self.unavailable.iter();
        unavailable.filter(|pod| is_down(facts, pod))
    }
}
