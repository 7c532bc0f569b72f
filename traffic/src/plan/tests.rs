//! Walks through random changes of Pods, faults of the load balancer and changes of the leader, against a model of a
//! load balancer.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    Adapter, AdapterError, Applied, Changes, Control, Employer, Member, MemberKey, Observation,
    Pod, PodId, Presence, Registration, Settings,
};

const DRAIN: Duration = Duration::from_secs(10);

/// Where an employer wants its Pods: group and port of each member.
type Shape = Vec<(&'static str, u16)>;

/// The shapes that an employer changes between.
const SHAPES: [&[(&str, u16)]; 4] = [
    &[("g", 80)],
    &[("g", 81)],
    &[("h", 80)],
    &[("g", 80), ("h", 80)],
];

struct Model {
    control: Control,
    shape: Shape,
    /// Whether the adapter refuses the employer as it is now.
    refuses: bool,
}

#[async_trait]
impl Adapter for Model {
    fn settings(&self) -> Settings {
        Settings {
            control: self.control,
            batch: 3,
            drain_time: DRAIN,
            ..Settings::default()
        }
    }
    fn check(&self, _: &Employer) -> Result<(), AdapterError> {
        match self.refuses {
            true => Err(AdapterError::Permanent("wrong port".to_owned())),
            false => Ok(()),
        }
    }
    fn members(&self, _: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let places = self.shape.iter();
        let keys = places.flat_map(|(group, port)| {
            pod.addresses.iter().map(move |address| MemberKey {
                group: (*group).to_owned(),
                address: *address,
                port: *port,
            })
        });
        let member = |key| Member {
            key,
            pod: pod.id.clone(),
            weight: 100,
        };
        Ok(keys.map(member).collect())
    }
    async fn observe(&self, _: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
        Ok(Observation::default())
    }
    async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
        Applied::new()
    }
}

/// A generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A registered member of the model.
#[derive(Clone, Debug)]
struct Entry {
    member: Member,
    serving: bool,
    /// When it stopped getting requests.
    drained_from: Option<Timestamp>,
    connections: u64,
    /// UID of the Pod that answers.
    owner: String,
}

struct World {
    random: Random,
    control: Control,
    shape: Shape,
    refuses: bool,
    deleting: bool,
    /// Whether the load balancer tells whose member it has.
    tells_pods: bool,
    /// Pods that the cache does not know, although they exist: UIDs.
    uncached: BTreeSet<String>,
    now: Timestamp,
    pods: BTreeMap<String, PodInput>,
    next_pod: u64,
    entries: BTreeMap<MemberKey, Entry>,
    /// When the member of each Pod left a load balancer that somebody else changes, by UID.
    left: BTreeMap<String, Timestamp>,
    memory: Memory,
    faults: bool,
    calls: usize,
    protected: BTreeSet<String>,
}

impl World {
    fn new(seed: u64, control: Control) -> World {
        World {
            random: Random(seed * 2_654_435_761 + 1),
            control,
            shape: SHAPES[0].to_vec(),
            refuses: false,
            deleting: false,
            tells_pods: control != Control::Observes && !seed.is_multiple_of(3),
            uncached: BTreeSet::new(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            pods: BTreeMap::new(),
            next_pod: 0,
            entries: BTreeMap::new(),
            left: BTreeMap::new(),
            memory: Memory::default(),
            faults: true,
            calls: 0,
            protected: BTreeSet::new(),
        }
    }

    fn employer(&self) -> Employer {
        Employer {
            deleting: self.deleting,
            kind: "Service".to_owned(),
            name: "web".to_owned(),
            spec: json!({ "selector": { "app": "web" } }),
            ..Employer::default()
        }
    }

    fn view(&self) -> View {
        let cached = |(uid, _): &(&String, &PodInput)| !self.uncached.contains(*uid);
        let pods = self.pods.iter().filter(cached);
        let pods = pods.map(|(uid, input)| PodInput {
            protected: self.protected.contains(uid),
            ..input.clone()
        });
        let model = Model {
            control: self.control,
            shape: self.shape.clone(),
            refuses: self.refuses,
        };
        View::new(&model, &self.employer(), None, pods.collect())
    }

    /// The API server confirms which of the unknown Pods are gone.
    fn add_gone(&self, view: &mut View) {
        let unknown = self.memory.members_of_unknown_pods(view).into_iter();
        let gone = unknown.map(|member| member.pod.uid);
        view.gone
            .extend(gone.filter(|uid| !self.pods.contains_key(uid)));
    }

    /// Changes Pods.
    fn disturb(&mut self) {
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        let picked = match uids.len() as u64 {
            0 => None,
            n => Some(uids[self.random.below(n) as usize].clone()),
        };
        match self.random.below(24) {
            0 => self.shape = SHAPES[self.random.below(4) as usize].to_vec(),
            1 => self.refuses = !self.refuses,
            2 => self.uncached.clear(),
            // The load balancer must tell whose member it has, or nobody could know that the Pod exists.
            3 if self.tells_pods => self.uncached.extend(picked.clone()),
            _ => {}
        }
        match (self.random.below(8), picked) {
            (0 | 1, _) | (_, None) if self.pods.len() < 6 => self.add_pod(),
            (2 | 3, Some(uid)) => {
                let input = self.pods.get_mut(&uid).unwrap();
                input.pod.on = !input.pod.on && !input.ended;
                if !input.pod.on && !input.ended {
                    self.protected.insert(uid); // by the write that begins the operation
                }
            }
            (4, Some(uid)) => {
                let input = self.pods.get_mut(&uid).unwrap();
                input.selected = !input.selected;
            }
            (5, Some(uid)) => {
                let input = self.pods.get_mut(&uid).unwrap();
                (input.pod.on, input.ended) = (false, true);
            }
            // A Pod that is not protected may go, and a protected one by force.
            (6, Some(uid)) if !self.protected.contains(&uid) || self.random.one_in(3) => {
                self.pods.remove(&uid);
                self.protected.remove(&uid);
            }
            (7, _) if self.random.one_in(4) => self.memory = Memory::default(), // another leader
            _ => {}
        }
        for entry in self.entries.values_mut() {
            if entry.serving {
                entry.connections = self.random.below(4);
            } else {
                entry.connections = entry.connections.min(self.random.below(4));
            }
        }
        if self.control == Control::Observes {
            self.follow_pods();
        }
    }

    /// A new Pod, sometimes with the address of a Pod that has ended or is gone.
    fn add_pod(&mut self) {
        self.next_pod += 1;
        let in_use = |address: &IpAddr| {
            let users = self.pods.values().filter(|input| !input.ended);
            users.into_iter().any(|i| i.pod.addresses.contains(address))
        };
        let addresses = (1..9).map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
        let address = addresses.into_iter().find(|address| !in_use(address));
        let id = PodId {
            uid: format!("uid-{}", self.next_pod),
            name: format!("web-{}", self.next_pod),
        };
        let pod = Pod {
            id: id.clone(),
            addresses: address.into_iter().collect(),
            on: self.random.one_in(2),
            ..Pod::default()
        };
        let input = PodInput {
            pod,
            selected: true,
            protected: false,
            ended: false,
        };
        self.pods.insert(id.uid, input);
    }

    /// What the controller of a watched load balancer does, with a delay.
    fn follow_pods(&mut self) {
        let view = self.view();
        for (key, member) in &view.wanted {
            if !self.entries.contains_key(key) && (self.random.one_in(2) || !self.faults) {
                let mut entry = Entry::serving(member.clone());
                entry.member.pod = PodId::default(); // it tells addresses only
                self.entries.insert(key.clone(), entry);
            }
        }
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            if !view.wanted.contains_key(&key) && (self.random.one_in(2) || !self.faults) {
                let left = self.entries.remove(&key);
                self.left.extend(left.map(|entry| (entry.owner, self.now)));
            }
        }
    }

    /// One look, as the leader makes it.
    fn look(&mut self) -> Option<Timestamp> {
        let mut view = self.view();
        self.add_gone(&mut view);
        self.memory.begin_look(&view, self.now);
        let (mut calls, mut observed) = (0, false);
        let wake = loop {
            match next_call(&view, &self.memory, calls, observed, self.now) {
                Next::Wait(until) => break until,
                Next::Observe => {
                    self.memory.begin_call(calls == 0, self.now);
                    let result = self.observe();
                    self.memory.observed(&view, result, self.now, self.now);
                    self.add_gone(&mut view);
                    observed = true;
                }
                Next::Apply(changes) => {
                    assert!(!changes.is_empty());
                    self.memory.begin_call(calls == 0, self.now);
                    self.check_changes(&view, &changes);
                    let applied = self.apply(&changes);
                    self.memory.applied(&view, &changes, applied, self.now);
                }
            }
            calls += 1;
            self.calls += 1;
            assert!(calls < 50, "a look does not end");
        };
        self.check_marks(&view);
        wake
    }

    fn fault(&mut self) -> Option<AdapterError> {
        if !self.faults || !self.random.one_in(4) {
            return None;
        }
        Some(match self.random.below(3) {
            0 => AdapterError::Throttled(Some(Duration::from_secs(2))),
            1 => AdapterError::Transient("down".to_owned()),
            _ => AdapterError::Permanent("forbidden".to_owned()),
        })
    }

    fn observe(&mut self) -> Result<Observation, AdapterError> {
        if let Some(error) = self.fault() {
            return Err(error);
        }
        let mut observation = Observation::default();
        let unreadable = match self.faults && self.random.one_in(8) {
            true => Some(["g", "h"][self.random.below(2) as usize]),
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
                presence: match entry.serving {
                    true => Presence::Serving,
                    false => Presence::Draining { until: None },
                },
                connections: Some(entry.connections),
            });
        }
        Ok(observation)
    }

    /// Makes the changes. Some are refused, and the reply about some is lost.
    fn apply(&mut self, changes: &Changes) -> Applied {
        if let Some(error) = self.fault() {
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
                if let Some(error) = self.fault() {
                    applied.insert(member.key.clone(), Err(error));
                    continue;
                }
                let lost = self.faults && self.random.one_in(8);
                if !lost || self.random.one_in(2) {
                    self.make_change(member, kind);
                }
                if !lost {
                    let presence = match (self.entries.get(&member.key), kind) {
                        (None, _) => Presence::Absent,
                        (Some(entry), _) if entry.serving => Presence::Serving,
                        _ => Presence::Draining { until: None },
                    };
                    applied.insert(member.key.clone(), Ok(presence));
                }
            }
        }
        applied
    }

    fn make_change(&mut self, member: &Member, kind: u8) {
        let key = member.key.clone();
        match kind {
            0 => {
                self.entries.insert(key, Entry::serving(member.clone()));
            }
            1 => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.serving = false;
                    entry.drained_from.get_or_insert(self.now);
                }
            }
            _ => {
                self.entries.remove(&key);
            }
        }
    }

    /// Nobody is taken off who serves, and nobody is cut off while requests may be open.
    fn check_changes(&self, view: &View, changes: &Changes) {
        assert_ne!(self.control, Control::Observes);
        let off = changes.drain.iter().chain(&changes.deregister);
        for member in off {
            let wanted = view.wanted.get(&member.key);
            assert!(wanted.is_none(), "{member:?} should serve");
            assert!(view.refused.is_none(), "the employer is refused");
            self.check_other_member(view, member);
        }
        if self.control == Control::Deregisters {
            assert!(changes.drain.is_empty());
            return;
        }
        for member in &changes.deregister {
            let Some(entry) = self.entries.get(&member.key) else {
                continue;
            };
            let behind = self.pods.get(&entry.member.pod.uid);
            let has_ended = behind.is_none_or(|input| input.ended);
            let drained = entry.drained_from.is_some_and(|from| {
                entry.connections == 0 || self.now.duration_since(from).unsigned_abs() >= DRAIN
            });
            assert!(has_ended || drained, "{entry:?} is cut off at {}", self.now);
        }
    }

    /// A Pod that should serve does not lose its last member.
    fn check_other_member(&self, view: &View, member: &Member) {
        let Some(entry) = self.entries.get(&member.key).filter(|entry| entry.serving) else {
            return;
        };
        let owner = &entry.owner;
        let unknown = self.uncached.contains(owner) && self.pods.contains_key(owner);
        assert!(!unknown, "{owner} may serve");
        let input = self.pods.get(owner).filter(|_| view.should_serve(owner));
        let is_at_pod = |member: &Member| {
            input.is_some_and(|input| input.pod.addresses.contains(&member.key.address))
        };
        let at_pod = is_at_pod(member);
        let mut others = self.entries.values().filter(|e| e.member.key != member.key);
        let serves = others.any(|other| other.serving && is_at_pod(&other.member));
        assert!(!at_pod || serves, "{owner} loses its last member");
    }

    fn check_marks(&mut self, view: &View) {
        for (uid, mark) in marks(view, &self.memory, self.now) {
            let input = &self.pods[&uid];
            assert!(view.refused.is_none() || matches!(mark, Mark::Keep(_)));
            let of_pod = |entry: &&Entry| {
                let taken = view.wanted.contains_key(&entry.member.key);
                let may_lag = taken || self.control == Control::Observes;
                entry.owner == uid && !(may_lag && input.ended)
            };
            match mark {
                Mark::Protect => {
                    assert!(input.pod.on && input.selected);
                    let serves = self.entries.values().any(|entry| {
                        entry.serving && input.pod.addresses.contains(&entry.member.key.address)
                    });
                    assert!(serves, "{uid} is not on traffic");
                    self.protected.insert(uid);
                }
                // Nobody waits for what somebody else does with the members of a deleted employer.
                Mark::Release if self.deleting && self.control == Control::Observes => {}
                Mark::Release => {
                    let on: Vec<_> = self.entries.values().filter(of_pod).collect();
                    assert!(on.is_empty(), "{uid} is on traffic: {on:?}");
                    let left = self.left.get(&uid).filter(|_| !input.ended);
                    let since = left.map(|left| self.now.duration_since(*left).unsigned_abs());
                    let drained = since.is_none_or(|since| since >= DRAIN);
                    assert!(drained, "{uid} may have open requests");
                    self.protected.remove(&uid);
                }
                Mark::Keep(reason) => assert!(!reason.is_empty()),
            }
        }
    }

    /// Without faults and changes, all comes to rest with few calls.
    fn settle(&mut self) {
        self.faults = false;
        (self.refuses, self.uncached) = (false, BTreeSet::new());
        self.deleting = self.random.one_in(4);
        self.now += Duration::from_secs(400);
        let before = self.calls;
        for _ in 0..40 {
            if self.control == Control::Observes {
                self.follow_pods();
            }
            for entry in self.entries.values_mut().filter(|e| !e.serving) {
                entry.connections = 0;
            }
            self.look();
            self.now += Duration::from_secs(11);
        }
        let view = self.view();
        for (uid, mark) in marks(&view, &self.memory, self.now) {
            let serves = view.should_serve(&uid) && !self.pods[&uid].pod.addresses.is_empty();
            match mark {
                Mark::Protect => assert!(serves),
                Mark::Release => assert!(!view.should_serve(&uid)),
                // A Pod may wait for an address, or for the one of another Pod.
                Mark::Keep(reason) => {
                    let waits = reason.contains("address");
                    assert!(waits, "{uid} hangs: {reason}");
                }
            }
        }
        let registered: BTreeSet<_> = self.entries.keys().collect();
        let wanted = view.wanted.keys().collect();
        assert_eq!(registered, wanted, "known: {:?}", self.memory);
        // 440 seconds have room for two reads of all; the rest is what had to change.
        assert!(self.calls - before <= 20, "{} calls", self.calls - before);
        let summary = Summary::of(&view, &self.memory, self.now);
        assert_eq!(summary.registered, view.wanted.len());
        assert_eq!((summary.draining, summary.failed), (0, 0));
    }
}

impl Entry {
    fn serving(member: Member) -> Entry {
        Entry {
            owner: member.pod.uid.clone(),
            member,
            serving: true,
            drained_from: None,
            connections: 1,
        }
    }
}

fn walk(seed: u64, control: Control) {
    let mut world = World::new(seed, control);
    for _ in 0..120 {
        if world.random.one_in(2) {
            world.disturb();
        }
        let wake = world.look();
        let pause = 1 + world.random.below(7);
        let later = world.now + Duration::from_secs(pause);
        world.now = match wake.filter(|wake| *wake > world.now) {
            Some(wake) if world.random.one_in(2) => wake.min(later),
            _ => later,
        };
    }
    world.settle();
}

#[test]
fn random_walks_of_each_control() {
    let first: u64 = std::env::var("WALK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count: u64 = std::env::var("WALK_COUNT").map_or(300, |count| count.parse().unwrap());
    for seed in first..first + count {
        for control in [Control::Drains, Control::Deregisters, Control::Observes] {
            let result = std::panic::catch_unwind(|| walk(seed, control));
            assert!(result.is_ok(), "seed {seed}, {control:?}");
        }
    }
}

/// A call of a former leader may end after the first read of a new one, so the new leader reads once more, and then
/// waits for the next regular read.
#[test]
fn first_read_is_confirmed_once() {
    let mut world = World::new(1, Control::Drains);
    world.faults = false;
    world.add_pod();
    let settings = world.view().settings;
    let begun = world.now;
    world.look();
    let mut reads = Vec::new();
    while let Some(wake) = world.look().filter(|_| reads.len() < 3) {
        world.now = wake;
        let before = world.calls;
        world.look();
        if world.calls > before {
            reads.push(world.now.duration_since(begun).unsigned_abs());
        }
    }
    let resync = settings.resync.unwrap();
    let confirmed = settings.timeout * 2;
    assert_eq!(
        reads,
        [confirmed, confirmed + resync, confirmed + resync * 2]
    );
}

/// A Pod whose address another Pod has taken over is held, and the summary says by whom.
#[test]
fn pod_that_is_held_by_another_is_told() {
    let mut world = World::new(1, Control::Drains);
    (world.faults, world.tells_pods) = (false, false);
    world.add_pod();
    let uid = world.pods.keys().next().unwrap().clone();
    let input = world.pods.get_mut(&uid).unwrap();
    input.pod.on = false;
    let mut other = input.clone();
    other.pod.on = true;
    other.pod.id = PodId {
        uid: "other".to_owned(),
        name: "web-9".to_owned(),
    };
    world.pods.insert("other".to_owned(), other);
    world.look();
    world.now += Duration::from_secs(60);
    world.look(); // a read that does not tell whose member it is
    world.protected.insert(uid);
    let view = world.view();
    let mut summary = Summary::of(&view, &world.memory, world.now);
    assert_eq!((summary.registered, summary.draining), (1, 0));
    let marks = marks(&view, &world.memory, world.now);
    summary.add_held(&view, &marks);
    assert_eq!(summary.draining, 1);
    let reason = "Pod web-9 serves at its address and port".to_owned();
    assert_eq!(summary.held, [("web-1".to_owned(), reason)]);
}

/// A member that serves with another weight, or for another Pod, is not as it should be. The former adapter of a move
/// must not go before it is.
#[test]
fn member_that_is_not_as_wanted_is_not_counted_as_registered() {
    let mut world = World::new(1, Control::Drains);
    world.faults = false;
    world.add_pod();
    let uid = world.pods.keys().next().unwrap().clone();
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    world.look();
    let changes: [fn(&mut Member); 2] = [
        |member| member.weight = 1,
        |member| member.pod.uid = "other".to_owned(),
    ];
    for change in changes {
        let view = world.view();
        let mut memory = world.memory.clone();
        let summary = Summary::of(&view, &memory, world.now);
        assert_eq!((summary.registered, summary.pending), (1, 0));
        let known = memory.members.values_mut().next().unwrap();
        change(&mut known.member);
        let summary = Summary::of(&view, &memory, world.now);
        assert_eq!((summary.registered, summary.pending), (0, 1));
    }
}
