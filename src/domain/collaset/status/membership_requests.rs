//! What is asked of single Pods and is not so yet. A plan that begins it counts it already: what is written with the plan must not
//! say that all is as wanted.

use std::collections::BTreeSet;

use super::super::draft::Draft;
use super::super::set_facts::SetFacts;
use super::super::{scaling, set_operations};
use crate::api::keys;
use crate::domain::messages;

/// Pods that are asked for something.
pub struct MembershipRequests {
    /// Those that are told to go, by this plan too.
    pub leaving: usize,
    /// Those that `podToDelete` names and that a later plan tells to go: once the set is no longer paused, or others have entered or left.
    pub held: usize,
    /// Those that are to be replaced, while the Pod that takes their place is not there.
    pub unpaired: usize,
    /// Those that leave the set with this plan, alive.
    pub excluded: usize,
    /// Those that enter it with this plan.
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
        let held = facts.members.iter().filter(|(id, pod)| {
            let goes = set_operations::is_leaving(pod) || draft.is_deletion_planned(pod);
            !goes && scaling::is_named_for_deletion(facts, draft, **id, pod)
        });
        MembershipRequests {
            leaving: leaving.count(),
            held: held.count(),
            unpaired: unpaired.count(),
            excluded: draft.leaving.len(),
            entering: draft.entering.len(),
        }
    }

    /// Whether Pods leave or enter the set.
    pub fn has_moving_pods(&self) -> bool {
        self.excluded > 0 || self.entering > 0
    }

    /// How many do, each after `; `.
    pub fn describe_moving_pods(&self) -> String {
        let told = |count: usize, one: &str, many: &str| match count {
            0 => String::new(),
            _ => format!(
                "; {} the set",
                messages::count_pods_with_verb(count, one, many)
            ),
        };
        told(self.excluded, "leaves", "leave") + &told(self.entering, "enters", "enter")
    }
}
