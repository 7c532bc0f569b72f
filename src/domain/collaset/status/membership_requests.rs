//! Counts the requests about single Pods that are not fulfilled yet. Requests that this plan begins to fulfil count
//! already, so that the status written with the plan does not say that everything is as the spec asks.

use std::collections::BTreeSet;

use super::super::draft::Draft;
use super::super::set_facts::SetFacts;
use super::super::{scaling, set_operations};
use crate::api::keys;
use crate::domain::messages;

/// Numbers of Pods for which a request is open.
pub struct MembershipRequests {
    /// Pods whose deletion is requested, also by this plan.
    pub leaving: usize,
    /// Pods that `podToDelete` names and whose deletion a later plan requests: once the set is no longer paused, or
    /// once other Pods have entered or left.
    pub postponed: usize,
    /// Pods that must be replaced and whose new Pod does not exist yet.
    pub unpaired: usize,
    /// Pods that leave the set alive with this plan.
    pub excluded: usize,
    /// Pods that enter the set with this plan.
    pub entering: usize,
}

impl MembershipRequests {
    pub fn from_facts(facts: &SetFacts, draft: &Draft) -> MembershipRequests {
        let pods = || facts.members.values();
        let halves = pods().filter(|pod| facts.is_new_half(pod));
        let paired: BTreeSet<&str> = halves
            .filter_map(|half| half.label(keys::REPLACE_PAIR_ORIGIN_NAME))
            .collect();
        let unpaired = pods().filter(|pod| {
            pod.label(keys::TO_REPLACE).is_some() && !paired.contains(&*pod.metadata.name)
        });
        let leaving =
            pods().filter(|pod| set_operations::is_leaving(pod) || draft.is_deletion_planned(pod));
        let postponed = facts.members.iter().filter(|(id, pod)| {
            let goes = set_operations::is_leaving(pod) || draft.is_deletion_planned(pod);
            !goes && scaling::is_named_for_deletion(facts, draft, **id, pod)
        });
        MembershipRequests {
            leaving: leaving.count(),
            postponed: postponed.count(),
            unpaired: unpaired.count(),
            excluded: draft.leaving.len(),
            entering: draft.entering.len(),
        }
    }

    /// Whether Pods leave or enter the set.
    pub fn has_moving_pods(&self) -> bool {
        self.excluded > 0 || self.entering > 0
    }

    /// Says how many Pods leave and enter, each after `; `.
    pub fn describe_moving_pods(&self) -> String {
        let describe = |count: usize, singular: &str, plural: &str| match count {
            0 => String::new(),
            _ => format!(
                "; {} the set",
                messages::count_pods_with_verb(count, singular, plural)
            ),
        };
        describe(self.excluded, "leaves", "leave") + &describe(self.entering, "enters", "enter")
    }
}
