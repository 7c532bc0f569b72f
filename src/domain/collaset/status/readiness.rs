//! The condition `Ready`: whether everything is as the spec asks, and the first reason why it is not.

use super::super::pairs;
use super::super::set_facts::SetFacts;
use super::condition_inputs::ConditionInputs;
use super::conditions::with_remedy;
use super::membership_requests::MembershipRequests;
use super::pods_down::{is_down, is_pod_stuck};
use super::{MAX_NAMES, waits};
use crate::api::collaset::CollaSetStatus;
use crate::domain::messages;

/// Status, reason and message of the condition.
type ReadyCondition = (bool, &'static str, String);

impl ConditionInputs {
    /// Status, reason and message of `Ready`.
    pub(super) fn ready_condition(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
    ) -> ReadyCondition {
        let (ready, reason, message) = self.overall_readiness(facts, status);
        let message = with_remedy(reason, message);
        let more = self.describe_single_pods();
        match self.refused.first() {
            Some((refused, _)) if ready => {
                let more = more.strip_prefix("; ").unwrap_or(&more);
                (false, refused, more.to_owned())
            }
            _ => (ready, reason, message + &more),
        }
    }

    /// Describes the Pods that a rollout does not reach, and the first requests about Pods that can't be fulfilled,
    /// each after `; `.
    pub(super) fn describe_single_pods(&self) -> String {
        let refused = self.refused.iter().take(MAX_NAMES);
        let refused: String = refused.map(|(_, message)| format!("; {message}")).collect();
        format!("{}{refused}", self.left_out)
    }

    /// Status, reason and message of `Ready`, without requests about single Pods that can't be fulfilled.
    fn overall_readiness(&self, facts: &SetFacts, status: &CollaSetStatus) -> ReadyCondition {
        if let Some((reason, message)) = self.scaling_condition(facts) {
            return self.readiness_while_scaling(facts, status, (reason, message));
        }
        if let Some(stuck) = &self.stuck {
            let others = waits::describe_under_way(facts, |pod| !is_pod_stuck(facts, pod));
            let later = waits::describe_later_exclusions(facts);
            let rest = self.remaining_rollout_suffix(facts, status);
            let message = format!("{stuck}{others}{later}{rest}");
            return (false, "UpdateFailed", message);
        }
        if self.behind + self.to_decorate > 0 || self.updating > 0 {
            return self.readiness_while_updating(facts, status);
        }
        if self.pairs > 0 || self.requests.unpaired > 0 {
            return self.readiness_while_replacing(facts);
        }
        if self.requests.leaving > 0 || self.requests.postponed > 0 {
            return self.readiness_while_deleting(facts);
        }
        self.readiness_without_changes(facts, status)
    }

    fn readiness_while_scaling(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
        (reason, message): (&'static str, String),
    ) -> ReadyCondition {
        if self.is_remaking && !self.requests.has_moving_pods() {
            let remaining = self.remaining_rollout();
            let step = waits::describe_step(facts, status);
            return (false, "Updating", format!("{remaining}{step}; {message}"));
        }
        let rollout = match self.behind {
            _ if reason != "Paused" => String::new(),
            0 => String::new(),
            _ if facts.rollout.is_aborted() => format!("; {}", self.describe_aborted(facts)),
            _ => format!("; {}", self.remaining_rollout()),
        };
        (false, reason, message + &rollout)
    }

    fn readiness_while_updating(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
    ) -> ReadyCondition {
        let under_way_count = self.describe_under_way_count();
        let under_way = waits::describe_under_way(facts, |_| true);
        let step = waits::describe_step(facts, status);
        let down = waits::describe_unavailable(Some(facts.observed), self.pods_down(facts));
        let later = waits::describe_later_exclusions(facts);
        let bound = self.describe_bounds(facts, |pod| is_down(facts, pod));
        let ended = waits::describe_ended_pods(facts); // new Pods of pairs
        let pool_limit = &self.no_room;
        let paused = facts.strategy.paused;
        if facts.rollout.is_aborted() {
            let reason = if paused { "Paused" } else { "RolloutAborted" };
            let aborted = self.describe_aborted(facts);
            let message = format!("{aborted}{under_way}{down}{bound}{later}");
            return (false, reason, message);
        }
        let reason = if paused { "Paused" } else { "Updating" };
        let remaining = self.pods_to_update();
        let message = format!(
            "{remaining}, {under_way_count}{step}{under_way}{down}{ended}{bound}{later}{pool_limit}"
        );
        (false, reason, message)
    }

    /// How many Pods the set works on, and how many of them can't go on by themselves.
    fn describe_under_way_count(&self) -> String {
        let all = self.updating + self.returning + self.opening;
        let moving = all.saturating_sub(self.held_up);
        match self.held_up {
            0 => format!("{moving} under way"),
            1 => format!("{moving} under way, 1 waits"),
            several => format!("{moving} under way, {several} wait"),
        }
    }

    fn readiness_while_replacing(&self, facts: &SetFacts) -> ReadyCondition {
        let under_way = waits::describe_under_way(facts, |_| true);
        let down = waits::describe_unavailable(Some(facts.observed), self.unavailable.iter());
        let later = waits::describe_later_exclusions(facts);
        let ended = waits::describe_ended_pods(facts);
        let pool_limit = &self.no_room;
        let more = match self.requests.unpaired {
            0 => String::new(),
            1 => ", 1 more waits to be replaced".to_owned(),
            unpaired => format!(", {unpaired} more wait to be replaced"),
        };
        let mut origins = facts.members.values();
        let stopped = origins.any(|pod| pairs::is_pair_paused(facts, pod));
        let reason = match facts.strategy.paused && (self.pairs == 0 || stopped) {
            true => "Paused",
            false => "Replacing",
        };
        let pairs = messages::count_pods_with_verb(self.pairs, "is", "are");
        let message =
            format!("{pairs} being replaced{more}{under_way}{down}{ended}{later}{pool_limit}");
        (false, reason, message)
    }

    fn readiness_while_deleting(&self, facts: &SetFacts) -> ReadyCondition {
        let MembershipRequests {
            leaving, postponed, ..
        } = self.requests;
        let under_way = waits::describe_under_way(facts, |_| true);
        let reason = match facts.strategy.paused && leaving == 0 {
            true => "Paused",
            false => "Deleting",
        };
        let pods = messages::count_pods_with_verb(leaving + postponed, "is", "are");
        (false, reason, format!("{pods} to be deleted{under_way}"))
    }

    /// The readiness of a set that changes no Pod now.
    fn readiness_without_changes(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
    ) -> ReadyCondition {
        if facts.rollout.has_steps_left() {
            let step = waits::describe_step(facts, status);
            let reason = match facts.strategy.paused {
                true => "Paused",
                false => "Updating",
            };
            return (false, reason, format!("all Pods are updated{step}"));
        }
        if waits::is_abort_pending(facts, status) {
            let message = waits::describe_pending_abort(facts);
            return (false, "RolloutAborted", message);
        }
        if facts.rollout.is_aborted() && self.unavailable.is_empty() {
            return (false, "RolloutAborted", self.describe_aborted(facts));
        }
        if !self.unavailable.is_empty() {
            let pods = messages::count_pods_with_verb(self.unavailable.len(), "is", "are");
            let reasons =
                waits::describe_unavailable(Some(facts.observed), self.unavailable.iter());
            let message = format!("{pods} not available{reasons}");
            return (false, "Unavailable", message);
        }
        if let Some(message) = waits::describe_resized_pods(facts) {
            return (false, "Updating", message);
        }
        let message = waits::describe_kept_pods(facts, self.staying_outdated);
        (true, "AsWanted", message)
    }

    /// Reason and message if the number of Pods is not the wanted one, or Pods leave or enter the set; otherwise
    /// `None`.
    pub(super) fn scaling_condition(&self, facts: &SetFacts) -> Option<(&'static str, String)> {
        let moves = self.requests.has_moving_pods();
        if self.missing == 0 && self.surplus == 0 && !moves {
            return None;
        }
        let reason = match facts.strategy.paused && !moves {
            true => "Paused",
            false => "Scaling",
        };
        let failed = self
            .refused
            .iter()
            .find(|(refused, _)| *refused == "ScaleOutFailed");
        let reason = match failed.filter(|_| self.missing > 0) {
            Some((refused, _)) if reason == "Scaling" => refused,
            _ => reason,
        };
        let mut message = format!(
            "{} to create, {} to delete",
            messages::count_pods(self.missing),
            self.surplus
        );
        message += &self.requests.describe_moving_pods();
        if self.missing > 0 {
            message += &self.describe_awaited_ends(facts);
            message += &waits::describe_ended_pods(facts);
            message += &self.no_room;
        }
        message += &waits::describe_under_way(facts, |_| true);
        message += &waits::describe_later_exclusions(facts);
        Some((reason, message))
    }
}
