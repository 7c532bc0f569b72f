//! A model of a load balancer: members that become healthy late, that drain, and whose connections it may count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::model::DRAIN;
use super::random::Random;
use crate::{
    AdapterError, Applied, Changes, Control, Member, MemberKey, Observation, PodId, Presence,
    Registration,
};

/// What the load balancer does with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its first health checks are open.
    Pending,
    Serving,
    Draining,
}

/// A registered member.
#[derive(Clone, Debug)]
pub struct Entry {
    pub member: Member,
    pub state: State,
    /// When it stopped getting requests.
    pub drained_from: Option<Timestamp>,
    pub connections: u64,
    /// UID of the Pod that answers.
    pub owner: String,
}

impl Entry {
    pub fn new(member: Member, state: State) -> Entry {
        Entry {
            owner: member.pod.uid.clone(),
            member,
            state,
            drained_from: None,
            connections: u64::from(state == State::Serving),
        }
    }

    pub fn serves(&self) -> bool {
        self.state == State::Serving
    }

    fn drain(&mut self, now: Timestamp) {
        self.state = State::Draining;
        self.drained_from.get_or_insert(now);
    }
}

/// A change that is made although its call got no answer.
pub struct Delayed {
    pub at: Timestamp,
    pub member: Member,
    /// 0: register, 1: drain, 2: deregister.
    pub kind: u8,
}

pub struct Balancer {
    pub control: Control,
    /// Whether it tells whose member it has.
    pub tells_pods: bool,
    /// Whether it counts connections.
    pub counts: bool,
    /// Whether it tells until when it drains by itself.
    pub tells_until: bool,
    /// Whether calls fail, and health checks take time.
    pub faults: bool,
    /// Whether every call fails.
    pub down: bool,
    /// UIDs of the Pods that it refuses to register.
    pub refuses: BTreeSet<String>,
    /// Whether every new member waits for a health check.
    pub checks: bool,
    pub entries: BTreeMap<MemberKey, Entry>,
    pub delayed: Vec<Delayed>,
}

impl Balancer {
    pub fn new(seed: u64, control: Control) -> Balancer {
        Balancer {
            control,
            tells_pods: control != Control::Observes && !seed.is_multiple_of(3),
            counts: !seed.is_multiple_of(4),
            tells_until: !seed.is_multiple_of(5),
            faults: true,
            down: false,
            refuses: BTreeSet::new(),
            checks: false,
            entries: BTreeMap::new(),
            delayed: Vec::new(),
        }
    }

    /// What happens by itself: requests come and go, members become healthy, and drained ones leave.
    pub fn pass(&mut self, random: &mut Random, now: Timestamp) {
        let faults = self.faults;
        for entry in self.entries.values_mut() {
            match entry.state {
                State::Pending if !faults || random.one_in(2) => entry.state = State::Serving,
                State::Pending => {}
                State::Serving => entry.connections = random.below(4),
                State::Draining if !faults => entry.connections = 0,
                // Requests that nobody counts go on for the whole drain time.
                State::Draining if self.counts || is_drained(entry, now) => {
                    entry.connections = entry.connections.min(random.below(4));
                }
                State::Draining => {}
            }
        }
        if self.control == Control::Deregisters {
            let leaves = |entry: &Entry| entry.state == State::Draining && is_drained(entry, now);
            // Some are late.
            self.entries
                .retain(|_, entry| !leaves(entry) || faults && random.one_in(2));
        }
    }

    /// Makes the changes whose time has come.
    pub fn make_delayed(&mut self, random: &mut Random, now: Timestamp) {
        let (due, left) = std::mem::take(&mut self.delayed)
            .into_iter()
            .partition(|delayed| delayed.at <= now);
        self.delayed = left;
        let due: Vec<Delayed> = due;
        for delayed in due {
            self.make_change(&delayed.member, delayed.kind, random, delayed.at);
        }
    }

    /// A member that somebody else registers.
    pub fn add(&mut self, member: Member, random: &mut Random) {
        let state = self.first_state(random);
        self.entries
            .insert(member.key.clone(), Entry::new(member, state));
    }

    fn first_state(&self, random: &mut Random) -> State {
        match self.checks || self.faults && random.one_in(3) {
            true => State::Pending,
            false => State::Serving,
        }
    }

    fn fault(&self, random: &mut Random) -> Option<AdapterError> {
        if self.down {
            return Some(AdapterError::Transient("down".to_owned()));
        }
        if !self.faults || !random.one_in(4) {
            return None;
        }
        Some(match random.below(4) {
            0 => AdapterError::Throttled {
                text: "slow down".to_owned(),
                wait: Some(Duration::from_secs(2)),
            },
            1 => AdapterError::Unavailable {
                text: "back soon".to_owned(),
                wait: Some(Duration::from_secs(2)),
            },
            2 => AdapterError::Transient("down".to_owned()),
            _ => AdapterError::Permanent("forbidden".to_owned()),
        })
    }

    pub fn observe(&self, random: &mut Random) -> Result<Observation, AdapterError> {
        if let Some(error) = self.fault(random) {
            return Err(error);
        }
        let mut observation = Observation::default();
        let unreadable = match self.faults && random.one_in(8) {
            true => Some(["g", "h"][random.below(2) as usize]),
            false => None,
        };
        if let Some(group) = unreadable {
            let error = AdapterError::Transient("group is busy".to_owned());
            let unreadable = &mut observation.unreadable_groups;
            unreadable.push((group.to_owned(), error));
        }
        let readable =
            |entry: &&Entry| unreadable.is_none_or(|group| entry.member.key.group != group);
        for entry in self.entries.values().filter(readable) {
            let mut member = entry.member.clone();
            if !self.tells_pods {
                member.pod = PodId::default();
            }
            observation.registrations.push(Registration {
                member,
                presence: self.presence(Some(entry)),
                connections: self.counts.then_some(entry.connections),
            });
        }
        Ok(observation)
    }

    fn presence(&self, entry: Option<&Entry>) -> Presence {
        let Some(entry) = entry else {
            return Presence::Absent;
        };
        let until = entry.drained_from.map(|from| from + DRAIN);
        let tells = self.control == Control::Deregisters && self.tells_until;
        match entry.state {
            State::Pending => Presence::Pending,
            State::Serving => Presence::Serving,
            State::Draining => Presence::Draining {
                until: until.filter(|_| tells),
            },
        }
    }

    /// Makes the changes. Some are refused, and the reply about some is lost.
    pub fn apply(&mut self, changes: &Changes, random: &mut Random, now: Timestamp) -> Applied {
        if let Some(error) = self.fault(random) {
            return changes.all_failed(&error);
        }
        let mut applied = Applied::new();
        let lists = [
            (&changes.register, 0),
            (&changes.drain, 1),
            (&changes.deregister, 2),
        ];
        for (members, kind) in lists {
            for member in members {
                if let Some(error) = self.fault(random) {
                    applied.insert(member.key.clone(), Err(error));
                    continue;
                }
                if kind == 0 && self.refuses.contains(&member.pod.uid) {
                    let error = AdapterError::Permanent("refused".to_owned());
                    applied.insert(member.key.clone(), Err(error));
                    continue;
                }
                let lost = self.faults && random.one_in(8);
                match random.below(3) {
                    0 if lost => {}
                    1 if lost => self.delayed.push(Delayed {
                        at: now + Duration::from_millis(100 + random.below(19_900)),
                        member: member.clone(),
                        kind,
                    }),
                    _ => self.make_change(member, kind, random, now),
                }
                if !lost {
                    let presence = self.presence(self.entries.get(&member.key));
                    applied.insert(member.key.clone(), Ok(presence));
                }
            }
        }
        applied
    }

    fn make_change(&mut self, member: &Member, kind: u8, random: &mut Random, now: Timestamp) {
        let key = &member.key;
        match (kind, self.entries.get_mut(key)) {
            (0, Some(entry)) if entry.owner == member.pod.uid && entry.serves() => {
                entry.member = member.clone(); // another weight changes nothing else
            }
            (0, _) => self.add(member.clone(), random),
            (1, Some(entry)) => entry.drain(now),
            (_, Some(entry)) if self.control == Control::Deregisters => entry.drain(now),
            (_, _) => drop(self.entries.remove(key)),
        }
    }
}

/// Whether the drain time has passed.
pub fn is_drained(entry: &Entry, now: Timestamp) -> bool {
    let since = |from: Timestamp| now.duration_since(from).unsigned_abs();
    entry.drained_from.is_some_and(|from| since(from) >= DRAIN)
}
