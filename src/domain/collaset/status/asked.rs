//! What is asked of single Pods and is not so yet. A plan that begins it counts it already: what is written with the plan must not
//! say that all is as wanted.

use std::collections::BTreeSet;

use super::super::draft::Draft;
use super::super::facts::Facts;
use super::super::{lifecycle, scale};
use crate::api::keys;
use crate::domain::wording;

/// Pods that are asked for something.
pub struct Asked {
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

impl Asked {
    pub fn of(facts: &Facts, draft: &Draft) -> Asked {
        let pods = || facts.members.values();
        let halves = pods().filter(|pod| facts.is_half(pod));
        let paired: BTreeSet<&str> = halves
            .filter_map(|half| half.label(keys::REPLACE_PAIR_ORIGIN_NAME))
            .collect();
        let unpaired = pods().filter(|pod| {
            pod.label(keys::TO_REPLACE).is_some() && !paired.contains(&*pod.metadata.name)
        });
        let leaving = pods().filter(|pod| lifecycle::is_leaving(pod) || draft.is_sent_away(pod));
        let held = facts.members.iter().filter(|(id, pod)| {
            let goes = lifecycle::is_leaving(pod) || draft.is_sent_away(pod);
            !goes && scale::is_to_be_deleted(facts, draft, **id, pod)
        });
        Asked {
            leaving: leaving.count(),
            held: held.count(),
            unpaired: unpaired.count(),
            excluded: draft.leaving.len(),
            entering: draft.entering.len(),
        }
    }

    /// Whether Pods leave or enter the set.
    pub fn moves(&self) -> bool {
        self.excluded > 0 || self.entering > 0
    }

    /// How many do, each after `; `.
    pub fn moving(&self) -> String {
        let told = |count: usize, one: &str, many: &str| match count {
            0 => String::new(),
            _ => format!("; {} the set", wording::pods_do(count, one, many)),
        };
        told(self.excluded, "leaves", "leave") + &told(self.entering, "enters", "enter")
    }
}
