//! Shares a bounded number of units, such as connections or bytes, fairly between unknown clients.
//!
//! A newcomer is never refused because other clients hold all units. Instead, the source that holds the most units
//! beside its largest share loses its oldest share. So a flood from one address takes units only from itself. If no
//! source has more than one share, the oldest share is lost, because its holder has had the most time to use it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;

use super::source_network::SourceNetwork;

/// A pool of units.
#[derive(Debug)]
pub(super) struct FairShares {
    capacity: usize,
    per_source: usize,
    lost: ShedCounters,
    state: Mutex<SharesState>,
}

/// Counters of the shares that were taken away.
#[derive(Clone, Debug, Default)]
pub(super) struct ShedCounters {
    /// Shares that were lost because all sources together held too many units.
    pub(super) crowded: Counter,
    /// Shares that were lost because their source held too many units.
    pub(super) source: Counter,
}

#[derive(Debug, Default)]
struct SharesState {
    used: usize,
    sources: HashMap<SourceNetwork, SourceShares>,
}

/// The shares of one source; never empty.
#[derive(Debug, Default)]
struct SourceShares {
    units: usize,
    /// The shares by age, the oldest first.
    entries: BTreeMap<u64, ShareEntry>,
}

#[derive(Debug)]
struct ShareEntry {
    units: usize,
    lost: CancellationToken,
}

/// The units of one holder, which are given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    shares: Arc<FairShares>,
    source: SourceNetwork,
    age: u64,
    lost: CancellationToken,
}

impl FairShares {
    /// A pool of `capacity` units. One source may hold at most `per_source` of them.
    pub(super) fn new(capacity: usize, per_source: usize, lost: ShedCounters) -> Arc<FairShares> {
        Arc::new(FairShares {
            capacity,
            per_source,
            lost,
            state: Mutex::default(),
        })
    }

    /// A share without units. `age` must be unique, and smaller for an earlier holder. `lost` is cancelled when the
    /// share is taken away.
    pub(super) fn new_share(
        self: &Arc<Self>,
        source: SourceNetwork,
        age: u64,
        lost: CancellationToken,
    ) -> Share {
        Share {
            shares: Arc::clone(self),
            source,
            age,
            lost,
        }
    }

    /// Takes one share away by the rule for newcomers; `false` if there are no shares.
    pub(super) fn shed_one(&self) -> bool {
        let mut state = self.state.lock();
        let shed = state
            .greediest_source()
            .is_some_and(|source| state.shed_oldest(source));
        if shed {
            self.lost.crowded.inc();
        }
        shed
    }
}

impl Share {
    /// Adds `units` to the share, and takes shares away if the pool is full. If this share itself is taken away, its
    /// token is cancelled.
    pub(super) fn add_units(&self, units: usize) {
        let FairShares {
            capacity,
            per_source,
            lost,
            state,
        } = &*self.shares;
        let mut state = state.lock();
        if self.lost.is_cancelled() {
            return;
        }
        state.used += units;
        let source_shares = state.sources.entry(self.source).or_default();
        source_shares.units += units;
        let entry = source_shares
            .entries
            .entry(self.age)
            .or_insert_with(|| ShareEntry {
                units: 0,
                lost: self.lost.clone(),
            });
        entry.units += units;
        while state
            .sources
            .get(&self.source)
            .is_some_and(|source_shares| source_shares.units > *per_source)
            && state.shed_oldest(self.source)
        {
            lost.source.inc();
        }
        while state.used > *capacity {
            let Some(greediest) = state.greediest_source() else {
                return;
            };
            if !state.shed_oldest(greediest) {
                return;
            }
            lost.crowded.inc();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.state.lock().remove_share(self.source, self.age);
    }
}

impl SharesState {
    /// The source that loses a share next.
    fn greediest_source(&self) -> Option<SourceNetwork> {
        let greed = |source_shares: &SourceShares| {
            let largest = source_shares
                .entries
                .values()
                .map(|entry| entry.units)
                .max();
            let oldest = source_shares.entries.keys().next().copied();
            (source_shares.units - largest.unwrap_or(0), Reverse(oldest))
        };
        let all = self.sources.iter();
        let greediest = all.max_by_key(|(_, source_shares)| greed(source_shares));
        greediest.map(|(source, _)| *source)
    }

    /// Takes away the oldest share of `source`; `false` if it has none.
    fn shed_oldest(&mut self, source: SourceNetwork) -> bool {
        let oldest = self
            .sources
            .get(&source)
            .and_then(|source_shares| source_shares.entries.keys().next().copied());
        let entry = oldest.and_then(|age| self.remove_share(source, age));
        entry.map(|entry| entry.lost.cancel()).is_some()
    }

    fn remove_share(&mut self, source: SourceNetwork, age: u64) -> Option<ShareEntry> {
        let source_shares = self.sources.get_mut(&source)?;
        let entry = source_shares.entries.remove(&age)?;
        source_shares.units -= entry.units;
        self.used -= entry.units;
        if source_shares.entries.is_empty() {
            self.sources.remove(&source);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use proptest::prelude::*;

    use super::*;

    fn source(last: u8) -> SourceNetwork {
        SourceNetwork::from_ip([10, 0, 0, last].into())
    }

    fn take(shares: &Arc<FairShares>, from: u8, age: u64, units: usize) -> Share {
        let share = shares.new_share(source(from), age, CancellationToken::new());
        share.add_units(units);
        share
    }

    fn lost(shares: &[Share]) -> Vec<u64> {
        let lost = shares.iter().filter(|share| share.lost.is_cancelled());
        lost.map(|share| share.age).collect()
    }

    #[test]
    fn greediest_source_loses_its_oldest_share() {
        let counted = ShedCounters::default();
        let shares = FairShares::new(4, 4, counted.clone());
        let mut held: Vec<_> = (1..=4).map(|age| take(&shares, 1, age, 1)).collect();
        assert_eq!(lost(&held), [0; 0]);
        held.push(take(&shares, 2, 5, 1));
        assert_eq!(lost(&held), [1]);
        held.push(take(&shares, 2, 6, 1));
        assert_eq!(lost(&held), [1, 2]);
        assert_eq!((counted.crowded.get(), counted.source.get()), (2, 0));
    }

    #[test]
    fn source_at_its_bound_loses_its_own_oldest_share() {
        let counted = ShedCounters::default();
        let shares = FairShares::new(10, 2, counted.clone());
        let held: Vec<_> = [(9, 0), (1, 1), (1, 2), (1, 3)]
            .map(|(from, age)| take(&shares, from, age, 1))
            .into();
        assert_eq!(lost(&held), [1]);
        assert_eq!((counted.crowded.get(), counted.source.get()), (0, 1));
    }

    #[test]
    fn large_share_is_not_shed_for_small_shares() {
        let shares = FairShares::new(100, usize::MAX, ShedCounters::default());
        let mut held = vec![take(&shares, 1, 1, 60)];
        held.extend((2..8).map(|age| take(&shares, 2, age, 15)));
        assert_eq!(lost(&held), [2, 3, 4, 5]);
        // A lost share cannot grow again.
        held[1].add_units(50);
        assert_eq!(shares.state.lock().used, 90);
        held[0].add_units(20);
        assert_eq!(lost(&held), [2, 3, 4, 5, 6]);
    }

    #[test]
    fn oldest_share_is_shed_among_single_share_sources() {
        let shares = FairShares::new(100, usize::MAX, ShedCounters::default());
        let held: Vec<_> = (1..6).map(|n| take(&shares, n, u64::from(n), 30)).collect();
        assert_eq!(lost(&held), [1, 2]);
    }

    #[test]
    fn share_above_capacity_is_shed() {
        let shares = FairShares::new(100, usize::MAX, ShedCounters::default());
        let held = [take(&shares, 1, 1, 101)];
        assert_eq!(lost(&held), [1]);
    }

    proptest! {
        #[test]
        fn units_never_exceed_capacity_and_are_returned(
            steps in prop::collection::vec((0_u8..4, 0_usize..40, any::<bool>()), 1..60)
        ) {
            let shares = FairShares::new(50, 30, ShedCounters::default());
            let mut held: Vec<Share> = Vec::new();
            for (age, (from, units, leave)) in steps.into_iter().enumerate() {
                if leave && !held.is_empty() {
                    held.swap_remove(units % held.len());
                } else {
                    held.push(take(&shares, from, u64::try_from(age).unwrap(), units));
                }
                let state = shares.state.lock();
                prop_assert!(state.used <= 50);
                let sum: usize = state.sources.values().map(|held| held.units).sum();
                prop_assert_eq!(state.used, sum);
                prop_assert!(state.sources.values().all(|held| held.units <= 30));
            }
            drop(held);
            let state = shares.state.lock();
            prop_assert_eq!(state.used, 0);
            prop_assert!(state.sources.is_empty());
        }
    }
}
