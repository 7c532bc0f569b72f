//! The worlds that are explored completely, and the world in which each control fails.

use super::arithmetic::Operation::{self, Begin, Delete, Evict};
use super::cluster::Slot;
use super::fault::Fault;
use super::model::World;
use super::state::Mishaps;

type Requests = &'static [(Operation, u8, u8)];

const fn slot(zone: u8, group: u8) -> Slot {
    Slot {
        zone: Some(zone),
        group,
        extra: false,
    }
}

const UNLABELLED: Slot = Slot {
    zone: None,
    group: 0,
    extra: false,
};
const EXTRA: Slot = Slot {
    zone: Some(1),
    group: 0,
    extra: true,
};

/// Two Pods in the first zone, one in the second.
const TWO_ZONES: &[Slot] = &[slot(0, 0), slot(0, 0), slot(1, 0)];
/// One Pod in each of three zones.
const THREE_ZONES: &[Slot] = &[slot(0, 0), slot(1, 0), slot(2, 0)];
/// The same as [`TWO_ZONES`], with one more Pod in a rollout.
const SURGE: &[Slot] = &[slot(0, 0), slot(1, 0), EXTRA];
/// Two partitions with a replica in each of two zones.
const PARTITIONS: &[Slot] = &[slot(0, 0), slot(1, 0), slot(0, 1), slot(1, 1)];
/// Two Pods without a zone label beside a Pod with one.
const MIXED: &[Slot] = &[UNLABELLED, UNLABELLED, slot(0, 0)];

fn mishaps(failures: u8, vanished: u8, crashes: u8, lost: u8) -> Mishaps {
    Mishaps {
        failures,
        vanished,
        crashes,
        lost,
        ..Mishaps::default()
    }
}

fn world(
    name: &'static str,
    slots: &'static [Slot],
    requests: Requests,
    mishaps: Mishaps,
) -> World {
    World {
        name,
        slots,
        pinned: true,
        max: None,
        replicas: 2,
        requests,
        mishaps,
        stays_failed: false,
        lag: 4,
        slow: false,
        split_writes: false,
        edited: false,
        shared: false,
        fault: None,
    }
}

impl World {
    fn spread(mut self) -> World {
        self.pinned = false;
        self
    }

    fn slow(mut self) -> World {
        self.slow = true;
        self.lag = 2;
        self
    }

    fn split(mut self) -> World {
        self.split_writes = true;
        self
    }

    fn at_most(mut self, max: usize) -> World {
        self.max = Some(max);
        self
    }

    fn stays_failed(mut self) -> World {
        self.stays_failed = true;
        self
    }

    fn edited(mut self) -> World {
        self.edited = true;
        self
    }

    fn three_replicas(mut self) -> World {
        self.replicas = 3;
        self
    }

    fn shared(mut self) -> World {
        self.shared = true;
        self
    }

    fn surging(mut self) -> World {
        self.mishaps.surges = 1;
        self
    }

    fn relabelled(mut self) -> World {
        self.mishaps.relabels = 1;
        self
    }

    fn without(mut self, fault: Fault) -> World {
        self.fault = Some(fault);
        self
    }
}

/// The worlds that every run explores.
pub fn usual() -> Vec<World> {
    let none = mishaps(0, 0, 0, 0);
    let begins: Requests = &[(Begin, 0, 0), (Evict, 1, 0), (Delete, 2, 0)];
    let pair: Requests = &[(Delete, 0, 1), (Evict, 2, 1)];
    vec![
        world("zones", TWO_ZONES, begins, mishaps(0, 0, 1, 0)).shared(),
        world("lost reply", TWO_ZONES, pair, mishaps(0, 0, 1, 1)),
        world("split writes", TWO_ZONES, pair, mishaps(0, 0, 1, 1)).split(),
        world("three replicas", TWO_ZONES, pair, mishaps(1, 0, 0, 0)).three_replicas(),
        world("edited", TWO_ZONES, begins, none).edited(),
        world(
            "outage",
            TWO_ZONES,
            &[(Evict, 0, 0), (Delete, 2, 0)],
            mishaps(1, 1, 0, 0),
        )
        .slow(),
        world(
            "lasting outage",
            TWO_ZONES,
            &[(Evict, 1, 0), (Delete, 2, 0)],
            mishaps(1, 0, 0, 0),
        )
        .stays_failed(),
        world(
            "three zones",
            THREE_ZONES,
            &[(Evict, 0, 0), (Delete, 1, 0), (Begin, 2, 0)],
            none,
        ),
        world("maximum", TWO_ZONES, begins, none).at_most(1),
        world(
            "spread",
            TWO_ZONES,
            &[(Evict, 0, 0), (Delete, 2, 0)],
            mishaps(1, 0, 0, 0),
        )
        .slow()
        .spread(),
        world(
            "spread outage",
            TWO_ZONES,
            &[(Delete, 2, 0)],
            mishaps(1, 1, 0, 0),
        )
        .slow()
        .spread(),
        world("surge", SURGE, &[(Evict, 0, 0), (Delete, 1, 0)], none)
            .slow()
            .spread()
            .surging(),
        world(
            "partitions",
            PARTITIONS,
            &[(Evict, 0, 0), (Delete, 1, 0), (Evict, 3, 0)],
            none,
        )
        .shared(),
        world(
            "partitions, lasting outage",
            PARTITIONS,
            &[(Evict, 0, 0), (Evict, 3, 0)],
            mishaps(1, 0, 0, 0),
        )
        .stays_failed(),
        world(
            "spread partitions",
            PARTITIONS,
            &[(Evict, 0, 0), (Delete, 3, 0)],
            none,
        )
        .slow()
        .spread(),
        world(
            "unlabelled",
            MIXED,
            &[(Evict, 0, 0), (Delete, 1, 0), (Begin, 2, 0)],
            none,
        )
        .slow()
        .spread(),
        world(
            "relabel",
            TWO_ZONES,
            &[(Evict, 0, 0), (Evict, 1, 0), (Delete, 2, 0)],
            none,
        )
        .relabelled(),
    ]
}

/// For every rule of the arithmetic, a world of [`usual`] that breaks without it.
pub fn controls() -> Vec<World> {
    let faults = [
        ("split writes", Fault::NoCompareAndSwap),
        ("maximum", Fault::NoWatermark),
        ("edited", Fault::EarlierClaimsIgnored),
        ("outage", Fault::DownIgnored),
        ("outage", Fault::MissingIgnored),
        ("outage", Fault::UnscheduledIgnored),
        ("spread outage", Fault::UnknownTakenForHere),
        ("unlabelled", Fault::UnlabelledShareAZone),
        ("surge", Fault::NoWindow),
        ("surge", Fault::WindowEndsShort),
        ("zones", Fault::WindowEndsWithClaims),
        ("surge", Fault::WindowEndsBehind),
        ("surge", Fault::EndLeavesNoMark),
        ("zones", Fault::WindowNeverEnds),
        ("relabel", Fault::RelabelAllowed),
        ("zones", Fault::TurnIgnored),
        ("lasting outage", Fault::TurnNeverLapses),
        ("partitions, lasting outage", Fault::PartitionsIgnored),
        ("maximum", Fault::NoMaximum),
    ];
    let control = |(name, fault): (&str, Fault)| {
        let found = usual().into_iter().find(|world| world.name == name);
        found.map(|world| world.without(fault))
    };
    faults.into_iter().filter_map(control).collect()
}
