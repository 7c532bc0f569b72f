#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::api::int_or_percent::IntOrPercent;

/// A limit of unavailable Pods.
fn at_most(max: IntOrPercent) -> Floor {
    Floor::Limits(vec![AvailabilityLimits {
        max_unavailable: Some(max),
        min_available: None,
        if_healthy: false,
    }])
}

fn count(max: u32) -> Floor {
    at_most(IntOrPercent::Int(max))
}

fn budget(left: u32, total: u32) -> Budget {
    Budget {
        left,
        size: total.into(),
        ..Budget::default()
    }
}

/// An available Pod with a controller, under these limits. The index of a limit is that of its budget.
fn pod(floors: &[Floor]) -> Candidate {
    let shares = floors.iter().enumerate().map(|(budget, floor)| Share {
        budget,
        takes: true,
        floor: Some(floor.clone()),
    });
    Candidate {
        shares: shares.collect(),
        is_replaced: true,
        may_go_now: true,
    }
}

/// Number of Pods of each wave.
fn sizes(waves: &Waves) -> Vec<usize> {
    waves.waves.iter().map(Vec::len).collect()
}

/// The Pods of a wave, and whether each is certain.
fn wave(waves: &Waves, index: usize) -> Vec<(usize, bool)> {
    let departures = waves.waves[index].iter();
    departures.map(|d| (d.candidate, d.is_certain)).collect()
}

#[test]
fn budget_lets_pods_go_in_waves_of_its_limit() {
    let pods = vec![pod(&[count(2)]); 5];
    let waves = plan_waves(vec![budget(10, 10)], &pods);
    assert_eq!(sizes(&waves), [2, 2, 1]);
    assert!(waves.unreached.is_empty());
    assert_eq!(wave(&waves, 0), [(0, false), (1, false)]);
    assert_eq!(wave(&waves, 2), [(4, true)]);
}

#[test]
fn strictest_of_several_budgets_decides() {
    let both = pod(&[count(3), count(1)]);
    let waves = plan_waves(vec![budget(10, 10), budget(10, 10)], &vec![both; 3]);
    assert_eq!(sizes(&waves), [1, 1, 1]);
    let none = pod(&[count(3), count(0)]);
    let waves = plan_waves(vec![budget(10, 10), budget(10, 10)], &[none]);
    assert_eq!(
        (sizes(&waves), waves.unreached),
        (vec![], vec![(0, vec![1])])
    );
}

#[test]
fn percentage_follows_expected_pods() {
    let quarter = at_most(IntOrPercent::Percent(25));
    let waves = plan_waves(vec![budget(10, 10)], &vec![pod(&[quarter]); 10]);
    assert_eq!(sizes(&waves), [3, 3, 3, 1]);
}

#[test]
fn unavailable_pods_use_the_budget_until_they_return() {
    let pods = vec![
        Candidate {
            may_go_now: false,
            ..pod(&[count(1)])
        };
        2
    ];
    let used_up = budget(9, 10);
    let stuck = plan_waves(vec![used_up], &pods);
    assert!(stuck.waves.is_empty());
    assert_eq!(stuck.unreached, [(0, vec![0]), (1, vec![0])]);
    let recovering = Budget {
        returning: 1,
        ..used_up
    };
    assert_eq!(sizes(&plan_waves(vec![recovering], &pods)), [0, 1, 1]);
}

#[test]
fn unavailable_pod_of_node_frees_the_budget_when_it_is_replaced() {
    let down = Candidate {
        shares: vec![Share {
            budget: 0,
            takes: false,
            floor: None,
        }],
        is_replaced: true,
        may_go_now: true,
    };
    let serving = Candidate {
        may_go_now: false,
        ..pod(&[count(1)])
    };
    let waves = plan_waves(vec![budget(2, 3)], &[serving, down]);
    assert_eq!(wave(&waves, 0), [(1, true)]);
    assert_eq!(wave(&waves, 1), [(0, true)]);
}

#[test]
fn pods_that_no_controller_replaces_never_return() {
    let alone = Candidate {
        is_replaced: false,
        ..pod(&[Floor::Count(2)])
    };
    let waves = plan_waves(vec![budget(4, 4)], &vec![alone.clone(); 4]);
    assert_eq!(sizes(&waves), [2]);
    assert_eq!(waves.unreached, [(2, vec![0]), (3, vec![0])]);
    // With a limit of unavailable Pods, one Pod fewer is expected.
    let alone = Candidate {
        shares: pod(&[count(1)]).shares,
        ..alone
    };
    assert_eq!(
        sizes(&plan_waves(vec![budget(4, 4)], &vec![alone; 4])),
        [1; 4]
    );
}

#[test]
fn pod_of_which_nothing_is_known_may_take_the_place_of_another() {
    let certain = |unknown| {
        let budget = Budget {
            unknown,
            ..budget(10, 10)
        };
        wave(&plan_waves(vec![budget], &[pod(&[count(2)])]), 0)
    };
    assert_eq!(certain(1), [(0, true)]);
    assert_eq!(certain(2), [(0, false)]);
}

#[test]
fn pods_that_no_budget_holds_go_in_the_first_wave() {
    let free = Candidate {
        shares: Vec::new(),
        is_replaced: true,
        may_go_now: true,
    };
    let waves = plan_waves(vec![budget(3, 3)], &[free, pod(&[count(0)])]);
    assert_eq!(wave(&waves, 0), [(0, true)]);
    assert_eq!(waves.unreached, [(1, vec![0])]);
    assert_eq!(plan_waves(Vec::new(), &[]), Waves::default());
}

prop_compose! {
    fn any_floor()(limit in 0..4_u32, percent in 0..=100_u32, kind in 0..3_u8) -> Floor {
        match kind {
            0 => count(limit),
            1 => at_most(IntOrPercent::Percent(percent)),
            _ => Floor::Count(limit),
        }
    }
}

prop_compose! {
    fn any_share()(budget in 0..3_usize, takes: bool, floor in proptest::option::of(any_floor())) -> Share {
        Share { budget, takes, floor }
    }
}

prop_compose! {
    fn any_candidate()(
        mut shares in proptest::collection::vec(any_share(), 0..4), is_replaced: bool, may_go_now: bool,
    ) -> Candidate {
        shares.sort_by_key(|share| share.budget);
        shares.dedup_by_key(|share| share.budget);
        Candidate { shares, is_replaced, may_go_now }
    }
}

prop_compose! {
    fn any_budget()(left in 0..8_u32, total in 0..8_u32, returning in 0..3_u32) -> Budget {
        Budget { returning, ..budget(left, total) }
    }
}

proptest! {
    #[test]
    fn no_wave_exceeds_a_budget(
        budgets in proptest::collection::vec(any_budget(), 3),
        candidates in proptest::collection::vec(any_candidate(), 0..12),
    ) {
        let waves = plan_waves(budgets.clone(), &candidates);
        // Every candidate is in one place.
        let mut places: Vec<usize> = waves.waves.iter().flatten().map(|d| d.candidate).collect();
        places.extend(waves.unreached.iter().map(|(index, _)| *index));
        places.sort_unstable();
        prop_assert_eq!(places, (0..candidates.len()).collect::<Vec<_>>());
        prop_assert!(waves.waves.len() <= candidates.len() + 1);
        prop_assert!(waves.waves.iter().skip(1).all(|wave| !wave.is_empty()));
        let first = waves.waves.first().into_iter().flatten();
        prop_assert!(first.clone().all(|d| candidates[d.candidate].may_go_now));

        // The first wave, by the definition of a budget: those who need it leave as many as the limit demands.
        for (index, budget) in budgets.iter().enumerate() {
            let taken = |d: &&Departure| {
                let shares = candidates[d.candidate].shares.iter();
                shares.filter(|s| s.budget == index && s.takes && s.floor.is_some()).count() > 0
            };
            let floors = first.clone().flat_map(|d| &candidates[d.candidate].shares);
            let floors = floors.filter(|s| s.budget == index).filter_map(|s| s.floor.as_ref());
            let lowest = floors.map(|floor| floor.count(budget.size)).min();
            let taken = first.clone().filter(taken).count();
            let room = budget.left.saturating_sub(lowest.unwrap_or(0));
            prop_assert!(taken <= room as usize, "{taken} of {room}");
        }
    }

    /// A Pod that is certain goes in the same wave in any other order.
    #[test]
    fn certain_pods_do_not_depend_on_the_order(
        budgets in proptest::collection::vec(any_budget(), 3),
        candidates in proptest::collection::vec(any_candidate(), 0..10),
    ) {
        let mut reversed = candidates.clone();
        reversed.reverse();
        let last = candidates.len().saturating_sub(1);
        let first_wave = |candidates: &[Candidate]| {
            let waves = plan_waves(budgets.clone(), candidates).waves;
            waves.into_iter().next().unwrap_or_default()
        };
        let other: Vec<usize> = first_wave(&reversed).iter().map(|d| last - d.candidate).collect();
        for departure in first_wave(&candidates) {
            prop_assert!(!departure.is_certain || other.contains(&departure.candidate));
        }
    }
}
