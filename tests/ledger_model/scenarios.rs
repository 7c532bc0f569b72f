//! The bounded worlds that are explored completely, and the world in which each control fails.

use operating::ledger::protocol::ClaimOperation::{self, Begin, Delete, Evict, InPlace, Leave};

use super::fault::Fault;
use super::model::{Rule, World};
use super::state::{ENDLESS, Mishaps};

type Requests = &'static [(ClaimOperation, u8, u8)];

/// Two Pods, one of which may be unavailable.
const PAIR: &[Rule] = &[Rule {
    covers: &[0, 1],
    max: 1,
}];
/// Three Pods, one of which may be unavailable.
const THREE: &[Rule] = &[Rule {
    covers: &[0, 1, 2],
    max: 1,
}];
/// Three Pods, two of which may be unavailable.
const LOOSE: &[Rule] = &[Rule {
    covers: &[0, 1, 2],
    max: 2,
}];
/// Two rules that share one Pod.
const CROSSING: &[Rule] = &[
    Rule {
        covers: &[0, 1],
        max: 1,
    },
    Rule {
        covers: &[0, 2],
        max: 1,
    },
];
/// Two rules on the same Pods.
const NESTED: &[Rule] = &[
    Rule {
        covers: &[0, 1, 2],
        max: 2,
    },
    Rule {
        covers: &[0, 1],
        max: 1,
    },
];

fn mishaps(flaps: u8, crashes: u8, lost: u8, rejoins: u8) -> Mishaps {
    Mishaps {
        flaps,
        crashes,
        lost,
        rejoins,
        ..Mishaps::default()
    }
}

fn world(rules: &'static [Rule], requests: Requests, mishaps: Mishaps) -> World {
    World {
        rules,
        replicas: 2,
        requests,
        mishaps,
        split_writes: false,
        split_releases: false,
        at_once: false,
        labels: false,
        namesake: false,
        rollout: false,
        fault: None,
    }
}

impl World {
    /// Decisions and their writes are steps of their own, for claims and for releases.
    fn split(self) -> World {
        World {
            split_writes: true,
            split_releases: true,
            ..self
        }
    }

    /// Deletions remove the object at once.
    fn at_once(self) -> World {
        World {
            at_once: true,
            ..self
        }
    }

    /// A container crashes.
    fn crashing(self) -> World {
        let mishaps = Mishaps {
            restarts: 1,
            ..self.mishaps
        };
        World { mishaps, ..self }
    }

    /// The leader adds and removes the availability label.
    fn labelled(self) -> World {
        World {
            labels: true,
            ..self
        }
    }

    /// The third Pod has the name of the first, and is created once the first is gone.
    fn namesake(self) -> World {
        World {
            namesake: true,
            at_once: true,
            ..self
        }
    }

    /// A rollout moves replicas from one owner to another.
    fn rollout(self) -> World {
        World {
            rollout: true,
            ..self
        }
    }

    /// The first rule is deleted and created again.
    fn replaced(self) -> World {
        let mishaps = Mishaps {
            replaced: 1,
            ..self.mishaps
        };
        World { mishaps, ..self }
    }

    /// The kubelet finds an in-place change infeasible, and defers another.
    fn pending(self, infeasible: u8, deferred: u8) -> World {
        let mishaps = Mishaps {
            infeasible,
            deferred,
            ..self.mishaps
        };
        World { mishaps, ..self }
    }

    /// With one replica only, because the scenario does not depend on different caches.
    fn one_replica(self) -> World {
        World {
            replicas: 1,
            ..self
        }
    }

    /// With a third replica.
    fn three_replicas(self) -> World {
        World {
            replicas: 3,
            ..self
        }
    }

    /// Without one rule of the protocol.
    fn without(self, fault: Fault) -> World {
        World {
            fault: Some(fault),
            ..self
        }
    }
}

/// The worlds that every run explores. A request is an operation, its Pod, and the number of retries.
pub fn usual() -> Vec<World> {
    let groups = [
        operations_on_two_pods(),
        operations_on_one_pod(),
        pods_that_leave(),
        two_rules(),
        three_pods_or_replicas(),
        endless_requests(),
        late_in_place_changes(),
        reused_names_and_moving_replicas(),
    ];
    groups.into_iter().flatten().collect()
}

/// One operation on each of two Pods.
fn operations_on_two_pods() -> Vec<World> {
    let all = mishaps(1, 1, 1, 0);
    vec![
        world(PAIR, &[(Delete, 0, 1), (Delete, 1, 1)], all).split(),
        world(PAIR, &[(Delete, 0, 1), (Evict, 1, 1)], all),
        world(PAIR, &[(Delete, 0, 0), (Evict, 1, 0)], mishaps(1, 0, 1, 0)).split(),
        world(PAIR, &[(Evict, 0, 0), (Evict, 1, 1)], all),
        world(PAIR, &[(Begin, 0, 0), (Evict, 1, 1)], all),
        world(PAIR, &[(Begin, 0, 0), (Begin, 1, 0)], mishaps(1, 0, 1, 0)),
        world(PAIR, &[(InPlace, 0, 1), (Delete, 1, 1)], all),
        world(PAIR, &[(InPlace, 0, 0), (Evict, 1, 0)], all),
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 1, 0)],
            mishaps(1, 0, 0, 0),
        ),
    ]
}

/// Several operations on one Pod.
fn operations_on_one_pod() -> Vec<World> {
    vec![
        world(
            PAIR,
            &[(Delete, 0, 1), (Evict, 0, 1), (Delete, 1, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            PAIR,
            &[(Delete, 0, 0), (Evict, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 1, 0),
        )
        .at_once(),
        world(
            PAIR,
            &[(Evict, 0, 0), (Evict, 0, 0), (Delete, 1, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            PAIR,
            &[(Begin, 0, 0), (Delete, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 1, 0),
        ),
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 0, 0), (Delete, 1, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            PAIR,
            &[(InPlace, 0, 0), (Begin, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 0, 0),
        ),
        world(
            PAIR,
            &[(InPlace, 0, 0), (Evict, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 1, 0),
        ),
        world(
            PAIR,
            &[(InPlace, 0, 0), (Delete, 1, 0)],
            mishaps(1, 0, 0, 0),
        )
        .crashing(),
    ]
}

/// A Pod that loses the label of managed Pods and gets it again.
fn pods_that_leave() -> Vec<World> {
    vec![
        world(
            PAIR,
            &[(Leave, 0, 0), (Evict, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 1, 1),
        ),
        world(
            PAIR,
            &[(Leave, 0, 0), (InPlace, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 0, 1),
        ),
    ]
}

/// Two rules over a Pod: claims are taken in order, all or none.
fn two_rules() -> Vec<World> {
    vec![
        world(
            CROSSING,
            &[(Evict, 0, 1), (Delete, 1, 0), (Delete, 2, 0)],
            mishaps(1, 1, 0, 0),
        ),
        world(
            CROSSING,
            &[(Delete, 0, 0), (Delete, 0, 0), (Evict, 2, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            CROSSING,
            &[(Delete, 0, 0), (Evict, 0, 0), (Delete, 2, 0)],
            mishaps(0, 1, 0, 0),
        )
        .split(),
        world(
            CROSSING,
            &[(InPlace, 0, 1), (Delete, 1, 0), (Delete, 2, 0)],
            mishaps(0, 1, 0, 0),
        ),
        world(
            NESTED,
            &[(Delete, 0, 0), (Evict, 1, 0), (Delete, 2, 0)],
            mishaps(1, 0, 0, 0),
        ),
    ]
}

/// Three Pods, or three replicas.
fn three_pods_or_replicas() -> Vec<World> {
    vec![
        world(
            THREE,
            &[(Delete, 0, 0), (Begin, 1, 0), (Evict, 2, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            LOOSE,
            &[(Delete, 0, 0), (Delete, 1, 0), (Evict, 2, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            LOOSE,
            &[(InPlace, 0, 0), (Delete, 1, 0), (Evict, 2, 0)],
            mishaps(0, 1, 0, 0),
        ),
        world(PAIR, &[(Delete, 0, 1), (Evict, 1, 0)], mishaps(1, 0, 0, 0)).three_replicas(),
    ]
}

/// Requests that are refused behind the webhook and repeated forever.
fn endless_requests() -> Vec<World> {
    vec![
        world(
            PAIR,
            &[(Evict, 0, ENDLESS), (Delete, 1, 0)],
            mishaps(1, 0, 1, 0),
        ),
        world(
            PAIR,
            &[(Delete, 0, ENDLESS), (Evict, 1, 0)],
            mishaps(1, 0, 1, 0),
        ),
        world(
            PAIR,
            &[(Begin, 0, ENDLESS), (Delete, 1, 0)],
            mishaps(1, 0, 0, 0),
        ),
        world(
            CROSSING,
            &[(Evict, 0, ENDLESS), (Delete, 1, 0), (Delete, 2, 0)],
            mishaps(0, 0, 0, 0),
        ),
    ]
}

/// In-place changes that never happen or happen late. The second change reverts the first.
fn late_in_place_changes() -> Vec<World> {
    vec![
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 0, 0), (Delete, 1, 0)],
            mishaps(0, 0, 0, 0),
        )
        .pending(1, 1),
        world(
            PAIR,
            &[(InPlace, 0, 1), (InPlace, 0, ENDLESS), (Delete, 1, 0)],
            mishaps(0, 0, 0, 0),
        )
        .pending(0, 1)
        .one_replica(),
    ]
}

/// Names of Pods and rules that are used again, and owners whose replicas change.
fn reused_names_and_moving_replicas() -> Vec<World> {
    vec![
        world(
            THREE,
            &[(Delete, 0, 0), (Evict, 0, 0), (Delete, 1, 0)],
            mishaps(0, 1, 0, 0),
        )
        .namesake(),
        world(PAIR, &[(Delete, 0, 0), (Evict, 1, 0)], mishaps(1, 0, 0, 0)).replaced(),
        world(PAIR, &[(Delete, 0, 0), (Evict, 1, 0)], mishaps(1, 0, 0, 0)).rollout(),
    ]
}

/// The worlds that only the full run explores, in addition.
pub fn more() -> Vec<World> {
    let all = mishaps(1, 1, 1, 0);
    vec![
        world(PAIR, &[(Evict, 0, ENDLESS), (Delete, 1, 1)], all),
        // the leader adds and removes the availability label
        world(
            PAIR,
            &[(InPlace, 0, 0), (Delete, 1, 0)],
            mishaps(1, 0, 0, 0),
        )
        .labelled(),
        world(PAIR, &[(Delete, 0, 1), (Evict, 1, 1)], all).split(),
        world(PAIR, &[(Begin, 0, 1), (Evict, 1, 1)], mishaps(2, 1, 0, 0)),
        world(PAIR, &[(InPlace, 0, 1), (Evict, 1, 1)], all),
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 0, 0), (Evict, 1, 0)],
            mishaps(0, 1, 0, 0),
        )
        .crashing(),
        world(PAIR, &[(InPlace, 0, 0), (Evict, 1, 0)], mishaps(1, 0, 0, 0)).split(),
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 0, 0), (Evict, 1, 0)],
            mishaps(1, 1, 0, 0),
        ),
        world(PAIR, &[(InPlace, 0, 0), (InPlace, 1, 0)], all),
        world(
            PAIR,
            &[(Delete, 0, 1), (Evict, 0, 1), (Evict, 1, 0)],
            mishaps(1, 1, 0, 0),
        ),
        world(
            PAIR,
            &[(Leave, 0, 0), (Evict, 0, 1), (Delete, 1, 0)],
            mishaps(1, 1, 0, 1),
        ),
        world(
            CROSSING,
            &[(Evict, 0, 1), (Delete, 1, 0), (Delete, 2, 0)],
            all,
        ),
        world(
            CROSSING,
            &[(InPlace, 0, 0), (Delete, 1, 0), (Evict, 2, 0)],
            all,
        ),
        world(
            CROSSING,
            &[(Delete, 0, 0), (Evict, 0, 0), (Delete, 2, 0)],
            all,
        )
        .split(),
        world(
            NESTED,
            &[(Delete, 0, 0), (Evict, 1, 0), (Begin, 2, 0)],
            mishaps(1, 1, 0, 0),
        ),
        world(THREE, &[(Delete, 0, 1), (Begin, 1, 0), (Evict, 2, 0)], all),
        world(
            LOOSE,
            &[(InPlace, 0, 0), (Delete, 1, 0), (Evict, 2, 0)],
            mishaps(1, 1, 0, 0),
        ),
        world(PAIR, &[(Delete, 0, 1), (Evict, 1, 1)], all).three_replicas(),
        world(
            CROSSING,
            &[(Evict, 0, 0), (Delete, 1, 0), (Delete, 2, 0)],
            mishaps(1, 1, 0, 0),
        )
        .three_replicas(),
    ]
}

/// For every rule of the protocol, a world that breaks without it. The same world is explored with the rule in force.
pub fn controls() -> Vec<World> {
    let flap = mishaps(1, 0, 0, 0);
    let two_deletes: Requests = &[(Delete, 0, 0), (Delete, 1, 0)];
    let evict_and_delete: Requests = &[(Evict, 0, 0), (Delete, 1, 0)];
    let in_place: Requests = &[(InPlace, 0, 0), (Delete, 1, 0)];
    let endless: Requests = &[(Evict, 0, ENDLESS), (Delete, 1, 0)];
    vec![
        world(PAIR, two_deletes, flap)
            .split()
            .without(Fault::NoCompareAndSwap),
        world(PAIR, &[(Delete, 0, 1), (Delete, 1, 0)], flap).without(Fault::TrustCachedClaim),
        world(PAIR, &[(Begin, 0, 0), (Delete, 1, 0)], flap).without(Fault::NoWatermark),
        world(PAIR, two_deletes, flap).without(Fault::OldEvidence),
        world(
            PAIR,
            &[(Delete, 0, 0), (Delete, 0, 0), (Delete, 1, 0)],
            flap,
        )
        .without(Fault::VersionGoesBack),
        world(PAIR, evict_and_delete, flap).without(Fault::EvictionReleasedOnFlap),
        world(PAIR, evict_and_delete, flap).without(Fault::EvictionReleasedOnMove),
        world(PAIR, evict_and_delete, flap).without(Fault::UnconditionalFreeEviction),
        world(PAIR, in_place, flap).without(Fault::InPlaceReleasedOnMove),
        world(PAIR, in_place, flap).without(Fault::FreeInPlace),
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 0, 0), (Delete, 1, 0)],
            flap,
        )
        .without(Fault::StackedInPlace),
        world(PAIR, in_place, mishaps(0, 0, 0, 0))
            .crashing()
            .without(Fault::CrashPassesForRestart),
        world(
            CROSSING,
            &[
                (Delete, 0, 0),
                (Delete, 0, 0),
                (Delete, 1, 0),
                (Delete, 2, 0),
            ],
            flap,
        )
        .without(Fault::WithdrawAnyAttempt),
        World {
            split_releases: true,
            ..world(PAIR, &[(Evict, 0, 1), (Delete, 1, 0)], mishaps(0, 1, 0, 0))
        }
        .without(Fault::AttemptReused),
        world(PAIR, two_deletes, flap).without(Fault::LapseBeforeTheEnd),
        world(
            PAIR,
            &[(Evict, 0, 0), (Leave, 0, 0), (Delete, 1, 0)],
            mishaps(0, 0, 0, 1),
        )
        .without(Fault::LeftTakenForDeleted),
        world(PAIR, in_place, flap)
            .labelled()
            .one_replica()
            .without(Fault::FreeInPlaceOffLabel),
        world(
            THREE,
            &[(Delete, 0, 0), (Evict, 0, 0), (Delete, 1, 0)],
            mishaps(0, 0, 0, 0),
        )
        .namesake()
        .without(Fault::NoUidPrecondition),
        world(PAIR, two_deletes, mishaps(0, 0, 0, 0))
            .replaced()
            .without(Fault::AnotherUidTakenForGone),
        world(PAIR, two_deletes, mishaps(0, 0, 0, 0))
            .replaced()
            .without(Fault::NoStart),
        world(PAIR, two_deletes, mishaps(0, 0, 0, 0))
            .rollout()
            .without(Fault::SumOfDirectOwners),
        world(PAIR, endless, mishaps(0, 0, 0, 0)).without(Fault::NeverClosing),
        world(PAIR, endless, mishaps(0, 0, 0, 0)).without(Fault::ClosingRenewed),
        world(PAIR, endless, mishaps(0, 0, 0, 0)).without(Fault::LapseAfterFirstAttempt),
        world(PAIR, in_place, mishaps(0, 0, 0, 0))
            .pending(0, 1)
            .without(Fault::DeferredTakenForInfeasible),
        world(
            PAIR,
            &[(InPlace, 0, 0), (InPlace, 0, 0), (Delete, 1, 0)],
            mishaps(1, 1, 0, 0),
        )
        .pending(0, 1)
        .one_replica()
        .without(Fault::ChangeBackForgetsFirst),
    ]
}
