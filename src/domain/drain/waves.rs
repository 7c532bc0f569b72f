//! Simulates in which order budgets let the Pods of a node go.
//!
//! A wave is what passes when all evictions are sent at the same time. Before the next wave, a new available Pod takes
//! the place of each Pod that has gone and that a controller replaces.

use crate::domain::rules::{AvailabilityLimits, ExpectedPods};

/// How many Pods of a budget are left, and how many come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Available Pods that no eviction has taken yet.
    pub left: u32,
    /// The expected Pods.
    pub size: ExpectedPods,
    /// Pods that are not available now and come back without this drain, before the second wave.
    pub returning: u32,
    /// Pods of which it is not known whether they go. Each may take one of the Pods that are left.
    pub unknown: u32,
}

/// How many Pods of a budget must be left after an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Floor {
    /// Those that the limits of rules demand. The strictest limit decides.
    Limits(Vec<AvailabilityLimits>),
    /// A count that does not depend on the number of expected Pods.
    Count(u32),
}

impl Floor {
    /// How many Pods must be left.
    pub fn count(&self, size: ExpectedPods) -> u32 {
        match self {
            Floor::Limits(limits) => {
                let desired = limits.iter().map(|limits| limits.desired(size));
                desired.max().unwrap_or(0)
            }
            Floor::Count(count) => *count,
        }
    }
}

/// What a Pod is to a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the budget.
    pub budget: usize,
    /// Whether the Pod is one of the Pods that are left, so that its eviction takes one of them.
    pub takes: bool,
    /// How many Pods must be left. `None` if the budget does not hold the Pod.
    pub floor: Option<Floor>,
}

/// A Pod that the drain evicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The budgets that count the Pod.
    pub shares: Vec<Share>,
    /// Whether a controller makes a new Pod in its place.
    pub is_replaced: bool,
    /// Whether the API server lets the Pod go now, as long as no other Pod has gone before.
    pub may_go_now: bool,
}

/// A Pod that goes in a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Index of the candidate.
    pub candidate: usize,
    /// Whether the Pod goes in this wave whatever the order of the evictions is. If false, another Pod of the same
    /// budgets can go in its place.
    pub is_certain: bool,
}

/// The result of the simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waves {
    /// The Pods of each wave. Only the first wave can be empty: then budgets have to recover before a Pod can go.
    pub waves: Vec<Vec<Departure>>,
    /// The candidates that no wave reaches, each with the budgets that hold it in the end.
    pub unreached: Vec<(usize, Vec<usize>)>,
}

/// Simulates the waves. Candidates that a budget holds go first, in their order. The others go after them, because
/// nothing makes them wait.
pub fn plan_waves(mut budgets: Vec<Budget>, candidates: &[Candidate]) -> Waves {
    let (held, free): (Vec<_>, Vec<_>) =
        (0..candidates.len()).partition(|index| is_held_by_budget(&candidates[*index]));
    let mut remaining: Vec<usize> = held.into_iter().chain(free).collect();
    let mut waves: Vec<Vec<Departure>> = Vec::new();
    while !remaining.is_empty() {
        let is_first = waves.is_empty();
        let is_eligible = |index: &usize| !is_first || candidates[*index].may_go_now;
        let eligible: Vec<usize> = remaining.iter().copied().filter(is_eligible).collect();
        let departures = run_wave(&mut budgets, candidates, &eligible);
        remaining.retain(|index| departures.iter().all(|gone| gone.candidate != *index));
        for Departure { candidate, .. } in &departures {
            replace(&mut budgets, &candidates[*candidate]);
        }
        let is_recovering = is_first && budgets.iter().any(|budget| budget.returning > 0);
        if is_first {
            for budget in &mut budgets {
                budget.left = budget.left.saturating_add(budget.returning);
            }
        }
        if departures.is_empty() && !is_recovering {
            break;
        }
        waves.push(departures);
    }
    if waves.iter().all(Vec::is_empty) {
        waves.clear();
    }
    remaining.sort_unstable();
    let unreached = remaining.into_iter().map(|index| {
        let shares = candidates[index].shares.iter();
        let holding = shares.filter(|share| !has_room(&budgets, share));
        (index, holding.map(|share| share.budget).collect())
    });
    Waves {
        waves,
        unreached: unreached.collect(),
    }
}

fn is_held_by_budget(candidate: &Candidate) -> bool {
    candidate.shares.iter().any(|share| share.floor.is_some())
}

/// Whether the budget lets a Pod go now.
pub fn has_room(budgets: &[Budget], share: &Share) -> bool {
    let budget = budgets[share.budget];
    share.floor.as_ref().is_none_or(|floor| {
        budget
            .left
            .checked_sub(u32::from(share.takes))
            .is_some_and(|left| left >= floor.count(budget.size))
    })
}

/// Lets the Pods go that the budgets allow, and takes them from the budgets.
fn run_wave(
    budgets: &mut [Budget],
    candidates: &[Candidate],
    eligible: &[usize],
) -> Vec<Departure> {
    let start = budgets.to_vec();
    let mut demand: Vec<u32> = budgets.iter().map(|budget| budget.unknown).collect();
    let eligible_shares = eligible.iter().flat_map(|index| &candidates[*index].shares);
    for share in eligible_shares.filter(|share| share.takes) {
        demand[share.budget] += 1;
    }
    let has_room_for_all = |share: &Share| {
        let budget = start[share.budget];
        let left = budget.left.checked_sub(demand[share.budget]);
        let floor = share.floor.as_ref().map(|floor| floor.count(budget.size));
        floor.is_none_or(|floor| left.is_some_and(|left| left >= floor))
    };
    let mut departures = Vec::new();
    for index in eligible {
        let shares = &candidates[*index].shares;
        if !shares.iter().all(|share| has_room(budgets, share)) {
            continue;
        }
        for share in shares.iter().filter(|share| share.takes) {
            let left = &mut budgets[share.budget].left;
            *left = left.saturating_sub(1);
        }
        departures.push(Departure {
            candidate: *index,
            is_certain: shares.iter().all(has_room_for_all),
        });
    }
    departures
}

/// Counts what takes the place of a Pod that has gone. If nothing does, one Pod fewer is expected.
fn replace(budgets: &mut [Budget], gone: &Candidate) {
    for share in &gone.shares {
        let budget = &mut budgets[share.budget];
        if gone.is_replaced {
            budget.left = budget.left.saturating_add(1);
            continue;
        }
        // Percentages leave out Pods without an owner where other Pods have owners.
        let ExpectedPods { total, base } = budget.size;
        let total_after = total.saturating_sub(1);
        budget.size = ExpectedPods {
            total: total_after,
            base: base.min(total_after),
        };
    }
}

#[cfg(test)]
mod tests;
