//! The bounded worlds that are explored completely, and the world in which each control fails.

use operating::ledger::protocol::ClaimOperation::{Begin, Delete, Evict, InPlace, Leave};

use super::fault::Fault;
use super::model::{Rule, World};
use super::state::{Mishaps, Request};

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

const NONE: Mishaps = Mishaps {
    flaps: 0,
    crashes: 0,
    lost: 0,
    rejoins: 0,
    restarts: 0,
    replaced: 0,
    infeasible: 0,
    deferred: 0,
};
const FLAP: Mishaps = Mishaps { flaps: 1, ..NONE };
const CRASH: Mishaps = Mishaps { crashes: 1, ..NONE };
const FLAP_CRASH: Mishaps = Mishaps { crashes: 1, ..FLAP };
const FLAP_LOST: Mishaps = Mishaps { lost: 1, ..FLAP };
const CRASH_LOST: Mishaps = Mishaps { lost: 1, ..CRASH };
/// A flap, a crash and a lost reply.
const TROUBLE: Mishaps = Mishaps {
    lost: 1,
    ..FLAP_CRASH
};

fn delete(pod: u8) -> Request {
    Request::new(Delete, pod)
}

fn evict(pod: u8) -> Request {
    Request::new(Evict, pod)
}

/// A lifecycle.
fn begin(pod: u8) -> Request {
    Request::new(Begin, pod)
}

fn in_place(pod: u8) -> Request {
    Request::new(InPlace, pod)
}

fn leave(pod: u8) -> Request {
    Request::new(Leave, pod)
}

fn world(rules: &'static [Rule], requests: &[Request], mishaps: Mishaps) -> World {
    World {
        rules,
        replicas: 2,
        requests: requests.to_vec(),
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
    fn split(mut self) -> World {
        self.split_writes = true;
        self.split_releases = true;
        self
    }

    /// Deletions remove the object at once.
    fn at_once(mut self) -> World {
        self.at_once = true;
        self
    }

    /// A container crashes.
    fn crashing(mut self) -> World {
        self.mishaps.restarts = 1;
        self
    }

    /// The leader adds and removes the availability label.
    fn labelled(mut self) -> World {
        self.labels = true;
        self
    }

    /// The third Pod has the name of the first, and is created once the first is gone.
    fn namesake(mut self) -> World {
        self.namesake = true;
        self.at_once = true;
        self
    }

    /// A rollout moves replicas from one owner to another.
    fn rollout(mut self) -> World {
        self.rollout = true;
        self
    }

    /// The first rule is deleted and created again.
    fn replaced(mut self) -> World {
        self.mishaps.replaced = 1;
        self
    }

    /// A Pod that left the management comes back.
    fn rejoining(mut self) -> World {
        self.mishaps.rejoins = 1;
        self
    }

    /// The kubelet finds an in-place change infeasible, and defers another.
    fn pending(mut self, infeasible: u8, deferred: u8) -> World {
        self.mishaps.infeasible = infeasible;
        self.mishaps.deferred = deferred;
        self
    }

    /// With one replica only, because the scenario does not depend on different caches.
    fn one_replica(mut self) -> World {
        self.replicas = 1;
        self
    }

    /// With a third replica.
    fn three_replicas(mut self) -> World {
        self.replicas = 3;
        self
    }

    /// Without one rule of the protocol.
    fn without(mut self, fault: Fault) -> World {
        self.fault = Some(fault);
        self
    }
}

/// The worlds that every run explores.
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
    vec![
        world(PAIR, &[delete(0).again(), delete(1).again()], TROUBLE).split(),
        world(PAIR, &[delete(0).again(), evict(1).again()], TROUBLE),
        world(PAIR, &[delete(0), evict(1)], FLAP_LOST).split(),
        world(PAIR, &[evict(0), evict(1).again()], TROUBLE),
        world(PAIR, &[begin(0), evict(1).again()], TROUBLE),
        world(PAIR, &[begin(0), begin(1)], FLAP_LOST),
        world(PAIR, &[in_place(0).again(), delete(1).again()], TROUBLE),
        world(PAIR, &[in_place(0), evict(1)], TROUBLE),
        world(PAIR, &[in_place(0), in_place(1)], FLAP),
    ]
}

/// Several operations on one Pod.
fn operations_on_one_pod() -> Vec<World> {
    vec![
        world(
            PAIR,
            &[delete(0).again(), evict(0).again(), delete(1)],
            FLAP,
        ),
        world(PAIR, &[delete(0), evict(0), delete(1)], CRASH_LOST).at_once(),
        world(PAIR, &[evict(0), evict(0), delete(1)], FLAP),
        world(PAIR, &[begin(0), delete(0), delete(1)], CRASH_LOST),
        world(PAIR, &[in_place(0), in_place(0), delete(1)], FLAP),
        world(PAIR, &[in_place(0), begin(0), delete(1)], CRASH),
        world(PAIR, &[in_place(0), evict(0), delete(1)], CRASH_LOST),
        world(PAIR, &[in_place(0), delete(1)], FLAP).crashing(),
    ]
}

/// A Pod that loses the label of managed Pods and gets it again.
fn pods_that_leave() -> Vec<World> {
    vec![
        world(PAIR, &[leave(0), evict(0), delete(1)], CRASH_LOST).rejoining(),
        world(PAIR, &[leave(0), in_place(0), delete(1)], CRASH).rejoining(),
    ]
}

/// Two rules over a Pod: claims are taken in order, all or none.
fn two_rules() -> Vec<World> {
    vec![
        world(
            CROSSING,
            &[evict(0).again(), delete(1), delete(2)],
            FLAP_CRASH,
        ),
        world(CROSSING, &[delete(0), delete(0), evict(2)], FLAP),
        world(CROSSING, &[delete(0), evict(0), delete(2)], CRASH).split(),
        world(
            CROSSING,
            &[in_place(0).again(), delete(1), delete(2)],
            CRASH,
        ),
        world(NESTED, &[delete(0), evict(1), delete(2)], FLAP),
    ]
}

/// Three Pods, or three replicas.
fn three_pods_or_replicas() -> Vec<World> {
    vec![
        world(THREE, &[delete(0), begin(1), evict(2)], FLAP),
        world(LOOSE, &[delete(0), delete(1), evict(2)], FLAP),
        world(LOOSE, &[in_place(0), delete(1), evict(2)], CRASH),
        world(PAIR, &[delete(0).again(), evict(1)], FLAP).three_replicas(),
    ]
}

/// Requests that this server admits, that another component refuses, and that their clients repeat forever.
fn endless_requests() -> Vec<World> {
    vec![
        world(PAIR, &[evict(0).endless(), delete(1)], FLAP_LOST),
        world(PAIR, &[delete(0).endless(), evict(1)], FLAP_LOST),
        world(PAIR, &[begin(0).endless(), delete(1)], FLAP),
        world(CROSSING, &[evict(0).endless(), delete(1), delete(2)], NONE),
    ]
}

/// In-place changes that never happen or happen late. The second change reverts the first.
fn late_in_place_changes() -> Vec<World> {
    vec![
        world(PAIR, &[in_place(0), in_place(0), delete(1)], NONE).pending(1, 1),
        world(
            PAIR,
            &[in_place(0).again(), in_place(0).endless(), delete(1)],
            NONE,
        )
        .pending(0, 1)
        .one_replica(),
    ]
}

/// Names of Pods and rules that are used again, and owners whose replicas change.
fn reused_names_and_moving_replicas() -> Vec<World> {
    vec![
        world(THREE, &[delete(0), evict(0), delete(1)], CRASH).namesake(),
        world(PAIR, &[delete(0), evict(1)], FLAP).replaced(),
        world(PAIR, &[delete(0), evict(1)], FLAP).rollout(),
    ]
}

/// The worlds that only the full run explores, in addition.
pub fn more() -> Vec<World> {
    vec![
        world(PAIR, &[evict(0).endless(), delete(1).again()], TROUBLE),
        // the leader adds and removes the availability label
        world(PAIR, &[in_place(0), delete(1)], FLAP).labelled(),
        world(PAIR, &[delete(0).again(), evict(1).again()], TROUBLE).split(),
        world(
            PAIR,
            &[begin(0).again(), evict(1).again()],
            Mishaps { flaps: 2, ..CRASH },
        ),
        world(PAIR, &[in_place(0).again(), evict(1).again()], TROUBLE),
        world(PAIR, &[in_place(0), in_place(0), evict(1)], CRASH).crashing(),
        world(PAIR, &[in_place(0), evict(1)], FLAP).split(),
        world(PAIR, &[in_place(0), in_place(0), evict(1)], FLAP_CRASH),
        world(PAIR, &[in_place(0), in_place(1)], TROUBLE),
        world(
            PAIR,
            &[delete(0).again(), evict(0).again(), evict(1)],
            FLAP_CRASH,
        ),
        world(PAIR, &[leave(0), evict(0).again(), delete(1)], FLAP_CRASH).rejoining(),
        world(CROSSING, &[evict(0).again(), delete(1), delete(2)], TROUBLE),
        world(CROSSING, &[in_place(0), delete(1), evict(2)], TROUBLE),
        world(CROSSING, &[delete(0), evict(0), delete(2)], TROUBLE).split(),
        world(NESTED, &[delete(0), evict(1), begin(2)], FLAP_CRASH),
        world(THREE, &[delete(0).again(), begin(1), evict(2)], TROUBLE),
        world(LOOSE, &[in_place(0), delete(1), evict(2)], FLAP_CRASH),
        world(PAIR, &[delete(0).again(), evict(1).again()], TROUBLE).three_replicas(),
        world(CROSSING, &[evict(0), delete(1), delete(2)], FLAP_CRASH).three_replicas(),
    ]
}

/// For every rule of the protocol, a world that breaks without it. The same world is explored with the rule in force.
pub fn controls() -> Vec<World> {
    let two_deletes = [delete(0), delete(1)];
    let evict_and_delete = [evict(0), delete(1)];
    let change_and_delete = [in_place(0), delete(1)];
    let endless = [evict(0).endless(), delete(1)];
    vec![
        world(PAIR, &two_deletes, FLAP)
            .split()
            .without(Fault::NoCompareAndSwap),
        world(PAIR, &[delete(0).again(), delete(1)], FLAP).without(Fault::TrustCachedClaim),
        world(PAIR, &[begin(0), delete(1)], FLAP).without(Fault::NoWatermark),
        world(PAIR, &two_deletes, FLAP).without(Fault::OldEvidence),
        world(PAIR, &[delete(0), delete(0), delete(1)], FLAP).without(Fault::VersionGoesBack),
        world(PAIR, &evict_and_delete, FLAP).without(Fault::EvictionReleasedOnFlap),
        world(PAIR, &evict_and_delete, FLAP).without(Fault::EvictionReleasedOnMove),
        world(PAIR, &evict_and_delete, FLAP).without(Fault::UnconditionalFreeEviction),
        world(PAIR, &change_and_delete, FLAP).without(Fault::InPlaceReleasedOnMove),
        world(PAIR, &change_and_delete, FLAP).without(Fault::FreeInPlace),
        world(PAIR, &[in_place(0), in_place(0), delete(1)], FLAP).without(Fault::StackedInPlace),
        world(PAIR, &change_and_delete, NONE)
            .crashing()
            .without(Fault::CrashPassesForRestart),
        world(
            CROSSING,
            &[delete(0), delete(0), delete(1), delete(2)],
            FLAP,
        )
        .without(Fault::WithdrawAnyAttempt),
        World {
            split_releases: true,
            ..world(PAIR, &[evict(0).again(), delete(1)], CRASH)
        }
        .without(Fault::AttemptReused),
        world(PAIR, &two_deletes, FLAP).without(Fault::LapseBeforeTheEnd),
        world(PAIR, &[evict(0), leave(0), delete(1)], NONE)
            .rejoining()
            .without(Fault::LeftTakenForDeleted),
        world(PAIR, &change_and_delete, FLAP)
            .labelled()
            .one_replica()
            .without(Fault::FreeInPlaceOffLabel),
        world(THREE, &[delete(0), evict(0), delete(1)], NONE)
            .namesake()
            .without(Fault::NoUidPrecondition),
        world(PAIR, &two_deletes, NONE)
            .replaced()
            .without(Fault::AnotherUidTakenForGone),
        world(PAIR, &two_deletes, NONE)
            .replaced()
            .without(Fault::NoStart),
        world(PAIR, &two_deletes, NONE)
            .rollout()
            .without(Fault::SumOfDirectOwners),
        world(PAIR, &endless, NONE).without(Fault::NeverClosing),
        world(PAIR, &endless, NONE).without(Fault::ClosingRenewed),
        world(PAIR, &endless, NONE).without(Fault::LapseAfterFirstAttempt),
        world(PAIR, &change_and_delete, NONE)
            .pending(0, 1)
            .without(Fault::DeferredTakenForInfeasible),
        world(PAIR, &[in_place(0), in_place(0), delete(1)], FLAP_CRASH)
            .pending(0, 1)
            .one_replica()
            .without(Fault::ChangeBackForgetsFirst),
    ]
}
