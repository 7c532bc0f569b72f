//! The properties, and the possible steps.

use std::fmt;

use stateright::{Model, Property};

use super::arithmetic::{GROUPS, Key, Ledger, Operation, Place, View};
use super::cluster::{Is, PODS, Pod, Slot, Snapshot};
use super::fault::Fault;
use super::state::{Mishaps, Phase, Request, State};

/// The guarantee.
pub const SAFE: &str = "disruptions that are not made good are in one zone for each partition";
/// Outages count.
pub const SEEN: &str = "nothing is admitted against an outage elsewhere that the cache shows";
/// The count holds too.
pub const LIMIT: &str = "no more Pods are disrupted than maxUnavailable";
/// Fairness.
pub const TURN: &str = "nothing new is admitted out of turn";
/// Liveness.
pub const REST: &str = "all comes to rest, and who still waits has an outage elsewhere";
/// A budget that admits one Pod at a time would be safe too.
pub const SHARED: &str = "two disruptions at a time are possible where the world says so";

/// A bounded world, which is explored completely.
#[derive(Clone, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// The set.
    pub slots: &'static [Slot],
    /// Whether owners set the zone of every Pod that they create.
    pub pinned: bool,
    /// How many Pods may be disrupted.
    pub max: Option<usize>,
    /// How many replicas there are.
    pub replicas: usize,
    /// The requests: operation, Pod, and number of retries.
    pub requests: &'static [(Operation, u8, u8)],
    /// The failures that may happen.
    pub mishaps: Mishaps,
    /// Failed Pods never come back.
    pub stays_failed: bool,
    /// How many events a cache may lag behind.
    pub lag: usize,
    /// Deletion, creation and start of a Pod are separate steps, and a cache may miss each of them.
    pub slow: bool,
    /// Decision and write of a claim are steps of their own.
    pub split_writes: bool,
    /// The rule gets its zones while the first request is in flight.
    pub edited: bool,
    /// Two Pods can be down by disruptions at a time.
    pub shared: bool,
    /// The rule of the arithmetic that is removed.
    pub fault: Option<Fault>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A cache reads the next event.
    Advance { cache: usize },
    /// A replica judges a request.
    Ask { request: usize, cache: usize },
    /// The same as [`Step::Ask`], but the reply about the written claim is lost, and the request asks again.
    AskAndLoseReply { request: usize, cache: usize },
    /// The compare-and-swap of a claim is carried out.
    Write { request: usize },
    /// The disruption is written, or meets a conflict.
    Commit { request: usize },
    /// The process that handles the request crashes, and the request vanishes.
    Crash { request: usize },
    /// A replica finds evidence in its cache and releases a claim.
    Release { key: Key, cache: usize },
    /// A claim is released because its request has ended.
    Lapse { key: Key },
    /// A replica ends a window.
    End { group: u8, cache: usize },
    /// A request has waited long enough, so its zone gets the next turn.
    Turn { request: usize },
    /// No request has used the turn in time.
    TurnLapses,
    /// An owner creates a Pod.
    Make { slot: usize },
    /// The scheduler binds the Pod to a node.
    Bind { slot: usize, zone: Option<u8> },
    /// The Pod becomes available, for the first time or again.
    Rise { slot: usize },
    /// The deletion of the Pod completes.
    Finish { slot: usize },
    /// It fails.
    Fail { slot: usize },
    /// A failed Pod is deleted.
    Vanish { slot: usize },
    /// A user tries to change the zone label of a Pod.
    Relabel { slot: usize, zone: u8 },
}

impl World {
    /// Whether this rule is removed.
    pub fn lacks(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The view of a cache at this position.
    pub fn view<'a>(&self, pods: &'a [Pod; PODS], position: u8) -> View<'a> {
        View {
            position,
            pods,
            slots: self.slots,
            pinned: self.pinned,
            max: self.max,
            fault: self.fault,
        }
    }

    /// Whether the expected number of Pods is available.
    pub fn is_whole(&self, pods: &[Pod; PODS]) -> bool {
        let expected = self.slots.iter().filter(|slot| !slot.extra).count();
        pods.iter().filter(|pod| pod.is == Is::Up).count() >= expected
    }

    /// Whether a Pod of this partition is down whose last zone was another one. Pods beyond the expected ones do not
    /// count.
    pub fn is_lost_elsewhere(&self, pods: &[Pod; PODS], group: u8, place: Place) -> bool {
        let elsewhere = |(slot, own): (usize, &Slot)| {
            let last = pods[slot]
                .zone
                .map_or(Place::Alone(slot as u8), Place::Zone);
            own.group == group && !own.extra && pods[slot].is != Is::Up && last != place
        };
        let masked = !self.pinned && self.is_whole(pods);
        !masked && self.slots.iter().enumerate().any(elsewhere)
    }

    fn is_safe(&self, state: &State) -> bool {
        (0..GROUPS as u8).all(|group| {
            let of = |(slot, own): (usize, &Slot)| state.lost[slot].filter(|_| own.group == group);
            let mut places: Vec<Place> = self.slots.iter().enumerate().filter_map(of).collect();
            places.dedup();
            places.len() <= 1
        })
    }

    fn comes_to_rest(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let next = |step| self.next_state(state, step);
        if actions.into_iter().any(|step| next(step).is_some()) {
            return true;
        }
        let pods = &state.now().pods;
        let is_excused = |request: &Request| {
            let pod = &pods[usize::from(request.slot)];
            let place = pod.zone.map_or(Place::Alone(request.slot), Place::Zone);
            let group = self.slots[usize::from(request.slot)].group;
            request.phase == Phase::Start && self.is_lost_elsewhere(pods, group, place)
        };
        let done = |r: &Request| r.phase == Phase::Done || is_excused(r);
        let is_due = |(group, open): (u8, &Option<Place>)| {
            let lasts = |(slot, own): (usize, &Slot)| {
                let last = pods[slot]
                    .zone
                    .map_or(Place::Alone(slot as u8), Place::Zone);
                own.group == group && pods[slot].is != Is::Up && Some(last) == *open
            };
            open.is_none() || self.slots.iter().enumerate().any(lasts)
        };
        let Ledger {
            claims,
            windows,
            turn,
            ..
        } = &state.ledger;
        claims.is_empty()
            && turn.is_none()
            && (0u8..).zip(windows).all(is_due)
            && state.requests.iter().all(done)
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let request = |&(operation, slot, retries): &(Operation, u8, u8)| Request {
            operation,
            slot,
            phase: Phase::Start,
            retries,
            may_wait: true,
        };
        let mut state = State {
            history: vec![Snapshot::new(self.slots)],
            ledger: Ledger::default(),
            caches: vec![0; self.replicas],
            requests: self.requests.iter().map(request).collect(),
            mishaps_left: self.mishaps,
            lost: [None; PODS],
            blind: false,
            jumped: false,
        };
        if self.edited {
            state.admit_first(self.slots);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        self.actions_of_replicas(state, actions);
        if state.history.len() > self.lag {
            actions.retain(|step| matches!(step, Step::Advance { cache: 0 }));
            return;
        }
        self.actions_of_requests(state, actions);
        self.actions_of_pods(state, actions);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step)?;
        next.tidy();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::<Self>::always(SAFE, World::is_safe),
            Property::<Self>::always(SEEN, |_, state| !state.blind),
            Property::<Self>::always(LIMIT, |world, state| {
                let lost = state.lost.iter().flatten().count();
                world.max.is_none_or(|max| lost <= max)
            }),
            Property::<Self>::always(TURN, |_, state| !state.jumped),
            Property::<Self>::always(REST, World::comes_to_rest),
        ];
        if let Some(fault) = self.fault {
            all.retain(|property| property.name == fault.breaks());
        } else if self.shared {
            all.push(Property::<Self>::sometimes(SHARED, |_, state| {
                state.lost.iter().flatten().count() >= 2
            }));
        }
        all
    }
}
