//! Walks of an employer that moves along a chain of three adapters, as `TrafficController::look_at` drives it. Adapters
//! disappear from the configuration and come back, each Pod may have ports of its own, operations begin, are undone and
//! end between two calls, and the cache of Pods is late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::json;

use super::balancer::{Balancer, is_drained};
use super::model::DRAIN;
use super::random::Random;
use crate::plan::*;
use crate::{
    Adapter, AdapterError, Applied, Changes, Control, Employer, Member, MemberKey, Observation, Pod, PodId, Settings,
};

const NAMES: usize = 3;

/// The ports of the employer: group, and number or name. A named port differs from Pod to Pod.
type Shape = &'static [(&'static str, Option<u16>)];
const SHAPES: [Shape; 5] = [
    &[("g", Some(80))],
    &[("g", Some(81))],
    &[("h", None)],
    &[("g", Some(80)), ("h", None)],
    &[("g", None)],
];

struct ChainModel {
    control: Control,
    shape: Shape,
    weight: u32,
    refuses: bool,
}

#[async_trait]
impl Adapter for ChainModel {
    fn settings(&self) -> Settings {
        Settings { control: self.control, batch: 3, drain_time: DRAIN, ..Settings::default() }
    }
    fn check(&self, _: &Employer) -> Result<(), AdapterError> {
        match self.refuses {
            true => Err(AdapterError::Permanent("refused".to_owned())),
            false => Ok(()),
        }
    }
    fn members(&self, _: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let mut members = Vec::new();
        for (group, number) in self.shape {
            let port = match number {
                Some(number) => *number,
                None => match pod.labels.get("port").and_then(|p| p.parse().ok()) {
                    Some(port) => port,
                    None => return Err(AdapterError::Permanent("no address: no such port".to_owned())),
                },
            };
            for address in &pod.addresses {
                let key = MemberKey { group: (*group).to_owned(), address: *address, port };
                members.push(Member { key, pod: pod.id.clone(), weight: self.weight });
            }
        }
        Ok(members)
    }
    async fn observe(&self, _: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
        Ok(Observation::default())
    }
    async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
        Applied::new()
    }
}

/// A Pod as the API server has it.
#[derive(Clone, Debug)]
struct Live {
    input: PodInput,
    version: u64,
    /// Whether an operation works on it.
    operating: bool,
    /// Whether an operation keeps it off.
    in_operation: bool,
    last_on: Option<Timestamp>,
    released: Option<Timestamp>,
    /// Whether the annotation expects the protection.
    expected: bool,
    /// Whether it has the label of a Pod that is available.
    available: bool,
    /// Whether nobody could protect it: while the employer can't be managed, new Pods get no marks.
    unguarded: bool,
    /// Whether it has had a mark.
    marked: bool,
}

struct Chain {
    random: Random,
    now: Timestamp,
    lbs: Vec<Balancer>,
    configured: Vec<bool>,
    refuses: Vec<bool>,
    chosen: usize,
    record: Vec<usize>,
    plans: BTreeMap<usize, Memory>,
    places: BTreeMap<usize, BTreeMap<String, PodPlace>>,
    served: Option<usize>,
    shape: Shape,
    weight: u32,
    pods: BTreeMap<String, Live>,
    /// The cache of the leader.
    cache: BTreeMap<String, Live>,
    stalled: bool,
    next_pod: u64,
    left: BTreeMap<(usize, String), Timestamp>,
    races: bool,
    faults: bool,
    log: Vec<String>,
    calls: usize,
    /// Since when each adapter is recorded.
    recorded: BTreeMap<usize, Timestamp>,
    /// Begins of operations.
    stamps: u64,
    /// Whether the API server refuses writes of the record.
    no_record: bool,
    /// Whether the employer is being deleted.
    deleting: bool,
    /// Whether Pods turn more than once between two looks.
    twice: bool,
}

impl Chain {
    fn new(seed: u64, observes: bool) -> Chain {
        let mut random = Random(seed * 2_654_435_761 + 7);
        let mut lbs = Vec::new();
        let tells = random.one_in(2);
        for n in 0..NAMES {
            let control = match random.below(if observes { 3 } else { 2 }) {
                0 => Control::Drains,
                1 => Control::Deregisters,
                _ => Control::Observes,
            };
            let mut lb = Balancer::new(seed * 7 + n as u64, control);
            lb.tells_pods = tells && control != Control::Observes;
            lbs.push(lb);
        }
        Chain {
            random,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            lbs,
            configured: vec![true; NAMES],
            refuses: vec![false; NAMES],
            chosen: 0,
            record: Vec::new(),
            plans: BTreeMap::new(),
            places: BTreeMap::new(),
            served: None,
            shape: SHAPES[0],
            weight: 100,
            pods: BTreeMap::new(),
            cache: BTreeMap::new(),
            stalled: false,
            next_pod: 0,
            left: BTreeMap::new(),
            races: true,
            faults: true,
            log: Vec::new(),
            calls: 0,
            recorded: BTreeMap::new(),
            stamps: 0,
            no_record: false,
            deleting: false,
            twice: std::env::var("CHAIN_TWICE").is_ok(),
        }
    }

    fn note(&mut self, text: String) {
        self.log.push(format!("{} {text}", self.now));
    }

    fn view(&self, n: usize, registers: bool, deleting: bool, pods: &BTreeMap<String, Live>) -> View {
        let model = ChainModel {
            control: self.lbs[n].control,
            shape: self.shape,
            weight: self.weight,
            refuses: self.refuses[n],
        };
        let employer = Employer {
            deleting,
            kind: "Service".to_owned(),
            name: "web".to_owned(),
            spec: json!({}),
            ..Employer::default()
        };
        let inputs = pods.values().map(|live| live.input.clone()).collect();
        let mut view = View::new(&model, &employer, None, inputs);
        view.registers = registers;
        view
    }

    fn sync(&mut self) {
        if !self.stalled {
            self.cache = self.pods.clone();
        }
    }

    fn call(&mut self, n: usize, view: &mut View, memory: &mut Memory, is_new: bool) -> (Option<Timestamp>, bool) {
        let add_gone = |chain: &Chain, view: &mut View, memory: &Memory| {
            let unknown = memory.members_of_unknown_pods(view).into_iter();
            let gone = unknown.map(|member| member.pod.uid);
            view.gone.extend(gone.filter(|uid| !chain.pods.contains_key(uid)));
        };
        self.lbs[n].make_delayed(&mut self.random, self.now);
        add_gone(self, view, memory);
        memory.begin_look(view, self.now);
        let (mut calls, mut observed) = (0, false);
        loop {
            match next_call(view, memory, calls, observed, self.now) {
                Next::Wait(until) => break (until, false),
                Next::Apply(_) if is_new => break (None, true),
                Next::Observe => {
                    memory.begin_call(calls == 0, self.now);
                    let result = self.lbs[n].observe(&mut self.random);
                    let began = self.now;
                    memory.observed(view, result, began, self.now);
                    add_gone(self, view, memory);
                    observed = true;
                }
                Next::Apply(changes) => {
                    memory.begin_call(calls == 0, self.now);
                    self.check_off(n, view, &changes);
                    let applied = self.lbs[n].apply(&changes, &mut self.random, self.now);
                    self.note(format!("apply at {n}: {changes:?} -> {applied:?}"));
                    memory.applied(view, &changes, applied, self.now);
                }
            }
            calls += 1;
            self.calls += 1;
            assert!(calls < 50, "a look does not end");
        }
    }

    /// A Pod that should serve does not leave its last load balancer.
    fn check_off(&self, n: usize, view: &View, changes: &Changes) {
        if self.lbs[n].control == Control::Drains {
            for member in &changes.deregister {
                let Some(entry) = self.lbs[n].entries.get(&member.key) else { continue };
                let has_ended = self.pods.get(&entry.owner).is_none_or(|live| live.input.ended);
                let is_idle = entry.drained_from.is_some() && entry.connections == 0;
                assert!(has_ended || is_idle || is_drained(entry, self.now), "{entry:?} is cut off at {n}");
            }
        }
        for member in changes.drain.iter().chain(&changes.deregister).filter(|_| !self.deleting) {
            let Some(entry) = self.lbs[n].entries.get(&member.key).filter(|e| e.serves()) else { continue };
            let uid = &entry.owner;
            let Some(live) = self.pods.get(uid) else { continue };
            // It came back in this look: it is registered at the next one.
            let on = live.input.pod.on && live.input.selected && live.last_on != Some(self.now) && !live.input.ended;
            let seen = view.pods.get(uid).is_some_and(|i| i.pod.on && i.selected);
            if !on || !seen || !live.input.pod.addresses.contains(&member.key.address) {
                continue;
            }
            let mut record: BTreeSet<usize> = self.record.iter().copied().collect();
            record.insert(self.chosen);
            let elsewhere = record.iter().any(|m| {
                self.lbs[*m].entries.values().any(|other| {
                    other.serves()
                        && other.member.key.address == member.key.address
                        && (*m != n || other.member.key != member.key)
                })
            });
            assert!(elsewhere, "{uid} leaves its last load balancer {n} by {member:?}");
        }
    }

    fn look(&mut self) -> Option<Timestamp> {
        self.sync();
        if !self.configured[self.chosen] {
            return None;
        }
        let chosen = self.chosen;
        let listed = self.record.contains(&chosen);
        let has_members = self.plans.get(&chosen).is_some_and(Memory::may_have_members);
        let deleting = self.deleting;
        let is_new = !deleting && !self.record.is_empty() && !listed && self.lbs[chosen].control != Control::Observes && !has_members;
        if !deleting && !is_new && self.record.first() != Some(&chosen) && !self.prepare() {
            return Some(self.now + Duration::from_secs(1));
        }
        let record = self.record.clone();
        self.plans.retain(|n, _| *n == chosen || record.contains(n));
        self.served.take_if(|n| *n != chosen);
        let usable: Vec<usize> = record.iter().copied().filter(|n| *n != chosen && self.configured[*n]).collect();
        let unknown: Vec<usize> = record.iter().copied().filter(|n| *n != chosen && !self.configured[*n] && !deleting).collect();
        self.places.retain(|n, _| usable.contains(n));
        let mut plan = self.plans.remove(&chosen).unwrap_or_default();
        let moves = !usable.is_empty() || !unknown.is_empty();
        let mut formers: Vec<BTreeMap<String, PodPlace>> =
            usable.iter().map(|n| self.places.get(n).cloned().unwrap_or_default()).collect();
        formers.extend(unknown.iter().map(|_| BTreeMap::new()));
        let snapshot = self.cache.clone();
        let mut view = self.view(chosen, true, deleting, &snapshot);
        if self.expect(&view, &snapshot, moves) {
            // The look ends early, and the formers are looked at.
            plan.begin_look(&view, self.now);
            plan.confirm_settled(false, self.now);
            self.plans.insert(chosen, plan);
            let wake = self.look_at_formers(chosen, &usable, false);
            return wake.into_iter().chain([self.now + Duration::from_millis(50)]).min();
        }
        let (mut wake, begins) = self.call(chosen, &mut view, &mut plan, is_new);
        self.race();
        let mut permitted = marks(&view, &plan, self.now);
        if moves {
            permitted = permitted
                .into_iter()
                .map(|(uid, mark)| {
                    let of: Vec<Place> =
                        formers.iter().map(|f| f.get(&uid).map_or(Place::Unclear, |p| p.as_of(&view, &uid))).collect();
                    let mark = mark_in_move(&view, &plan, &uid, mark, &of, is_new);
                    (uid, mark)
                })
                .collect();
        }
        let mut summary = Summary::of(&view, &plan, self.now);
        summary.add_held(&view, &permitted);
        for (uid, mark) in &permitted {
            self.write_mark(&view, uid, mark, snapshot[uid].version, moves, &plan);
        }
        let seems_settled = summary.is_settled(&view, &plan);
        if std::env::var("CHAIN_TRACE").is_ok() {
            let on: Vec<_> = view.pods.iter().map(|(u, i)| (u.clone(), i.pod.on, i.selected, i.protected, i.operations.clone())).collect();
            self.note(format!("look at {chosen} new {is_new} settled {seems_settled}: {on:?} {permitted:?} unproven {:?}", unproven(&view, &plan)));
        }
        if begins {
            self.plans.insert(chosen, plan);
            self.prepare();
            return Some(self.now + Duration::from_millis(50));
        }
        let settled = match usable.is_empty() || deleting {
            true => seems_settled || deleting,
            false => plan.confirm_settled(seems_settled, self.now),
        };
        if seems_settled && !settled {
            wake = wake.into_iter().chain([self.now + Duration::from_secs(1)]).min();
        }
        self.plans.insert(chosen, plan);
        if settled {
            self.served = Some(chosen);
        }
        let its = self.look_at_formers(chosen, &usable, settled);
        wake.into_iter().chain(its).min()
    }

    /// Writes the record.
    fn prepare(&mut self) -> bool {
        if self.no_record {
            return false;
        }
        let chosen = self.chosen;
        let listed = self.record.contains(&chosen);
        self.record.retain(|n| *n != chosen);
        self.record.insert(0, chosen);
        if !listed {
            self.recorded.insert(chosen, self.now);
            self.left.retain(|(n, _), _| *n != chosen);
        }
        self.note(format!("record {:?}", self.record));
        true
    }

    fn look_at_formers(&mut self, chosen: usize, usable: &[usize], settled: bool) -> Option<Timestamp> {
        let mut wake = None;
        let is_read = |n: &&usize| self.plans.get(*n).is_some_and(Memory::is_read);
        let retiring = usable.iter().find(is_read).or(usable.first()).copied();
        for former in usable.iter().copied() {
            self.race();
            self.sync();
            let retires = settled && retiring == Some(former);
            let registers = self.served != Some(chosen);
            let before = self.places.remove(&former);
            let mut plan = self.plans.remove(&former).unwrap_or_default();
            let observes = self.lbs[former].control == Control::Observes;
            let snapshot = self.cache.clone();
            let mut view = self.view(former, registers, retires && !observes || self.deleting, &snapshot);
            let (its, _) = self.call(former, &mut view, &mut plan, false);
            wake = wake.into_iter().chain(its).min();
            let no_members = match observes {
                true => all_drained(&view, &plan, self.now),
                false => plan.is_empty(),
            };
            let its = places(&view, &plan, self.now);
            if std::env::var("CHAIN_TRACE").is_ok() {
                let on: Vec<_> = view.pods.iter().map(|(u, i)| (u.clone(), i.pod.on, i.selected, i.protected)).collect();
                self.note(format!("former {former}: {on:?} absent {:?} {its:?}", plan.pods.iter().map(|(u, k)| (u, k.turned, k.absent_since)).collect::<Vec<_>>()));
            }
            if before.as_ref() != Some(&its) {
                wake = wake.into_iter().chain([self.now + Duration::from_secs(1)]).min();
            }
            self.places.insert(former, its);
            if retires && no_members && !self.no_record {
                if !observes {
                    assert!(self.lbs[former].entries.is_empty(), "members are left at {former}");
                }
                self.note(format!("{former} is forgotten"));
                self.record.retain(|n| *n != former);
                for plan in self.plans.values_mut() {
                    plan.read_again();
                }
                wake = wake.into_iter().chain([self.now + Duration::from_secs(1)]).min();
            } else {
                self.plans.insert(former, plan);
            }
        }
        wake
    }

    /// Pods that are not available wait for traffic. Returns whether one was written.
    fn expect(&mut self, view: &View, snapshot: &BTreeMap<String, Live>, moves: bool) -> bool {
        let mut written = false;
        for (uid, cached) in snapshot {
            written |= self.write(view, uid, &Mark::Keep("x".to_owned()), cached.version, moves);
        }
        written
    }

    /// What `wanted_marks` does.
    fn write(&mut self, view: &View, uid: &str, mark: &Mark, version: u64, moves: bool) -> bool {
        let Some(live) = self.pods.get_mut(uid).filter(|live| live.version == version) else { return false };
        let stays = live.input.selected && !view.deleting;
        let waits = stays && (view.refused.is_none() || moves);
        let protected = match mark {
            Mark::Protect => true,
            Mark::Release => false,
            Mark::Keep(_) if waits && !live.expected && live.available => true,
            Mark::Keep(_) => live.input.protected,
        };
        let expected = match (waits, protected) {
            (true, false) => live.expected || !live.available,
            (true, true) => true,
            (false, protected) => live.expected && (protected || stays || matches!(mark, Mark::Keep(_)) && !view.deleting),
        };
        if (expected, protected) == (live.expected, live.input.protected) {
            return false;
        }
        let was = live.input.protected;
        (live.expected, live.input.protected) = (expected, protected);
        live.marked |= expected;
        live.version += 1;
        self.note(format!("marks of {uid}: expected {expected}, protected {protected} by {mark:?}"));
        self.advance(uid);
        if was && !protected {
            self.check_release(uid);
        }
        self.check_available(uid);
        true
    }

    fn write_mark(&mut self, view: &View, uid: &str, mark: &Mark, version: u64, moves: bool, plan: &Memory) {
        if let Mark::Keep(reason) = mark {
            assert!(!reason.is_empty());
        }
        let Some(live) = self.pods.get(uid).filter(|live| live.version == version) else { return };
        if *mark == Mark::Protect && !live.input.protected && !self.serves(uid) && std::env::var("CHAIN_NOPROTECT").is_err() {
            panic!("{uid} is protected and serves nowhere; {plan:?}");
        }
        self.write(view, uid, mark, version, moves);
    }

    fn serves(&self, uid: &str) -> bool {
        let addresses = &self.pods[uid].input.pod.addresses;
        let mut names = self.record.iter().chain([&self.chosen]);
        names.any(|n| self.lbs[*n].entries.values().any(|e| e.serves() && addresses.contains(&e.member.key.address)))
    }

    /// A Pod becomes available when it serves.
    fn check_available(&mut self, uid: &str) {
        let live = &self.pods[uid];
        let is = live.input.pod.on && !live.input.ended && (!live.expected || live.input.protected);
        if is && !live.available {
            let counts = live.expected && live.input.selected;
            assert!(!counts || self.serves(uid), "{uid} becomes available and serves nowhere");
            self.pods.get_mut(uid).unwrap().available = true;
        }
    }

    /// No request is open when a Pod is released.
    fn check_release(&self, uid: &str) {
        let live = &self.pods[uid];
        // The next operation protects it again.
        let nobody_waits = !live.in_operation && live.expected;
        if live.input.ended || nobody_waits {
            return;
        }
        for n in &self.record {
            let lb = &self.lbs[*n];
            if self.deleting && lb.control == Control::Observes {
                continue;
            }
            for entry in lb.entries.values().filter(|e| e.owner == uid) {
                assert!(!entry.serves(), "{uid} is released and serves at {n}: {entry:?}");
                let idle = entry.connections == 0 || is_drained(entry, self.now);
                assert!(idle, "{uid} is released and drains at {n}: {entry:?}");
            }
            let comes = lb.delayed.iter().any(|d| d.kind == 0 && d.member.pod.uid == uid && self.now + Duration::from_secs(0) < d.at);
            assert!(!comes, "{uid} may come on traffic at {n}");
            let left = self.left.get(&(*n, uid.to_owned()));
            let drained = left.is_none_or(|left| self.now.duration_since(*left).unsigned_abs() >= DRAIN);
            assert!(drained, "{uid} may have open requests at {n}, which it left at {left:?}");
        }
    }

    /// Nobody gets requests while an operation works on it.
    fn check_operations(&self) {
        for (uid, live) in self.pods.iter().filter(|(_, live)| live.operating && !live.input.ended && !live.unguarded) {
            for n in &self.record {
                let on = self.lbs[*n].entries.values().find(|e| e.owner == *uid && e.serves());
                if self.recorded[n] >= live.released.unwrap() || self.deleting && self.lbs[*n].control == Control::Observes {
                    continue; // it was released before the move
                }
                assert!(on.is_none(), "{uid} is worked on and serves at {n}: {on:?}");
            }
        }
    }

    /// The operation goes on when nothing protects the Pod.
    fn advance(&mut self, uid: &str) {
        let live = self.pods.get_mut(uid).unwrap();
        if live.in_operation && !live.input.protected && !live.operating {
            live.operating = true;
            live.released = Some(self.now);
            live.version += 1;
            self.note(format!("operate {uid}"));
        }
    }

    fn begin(&mut self, uid: &str) {
        let now = self.now;
        let formers = self.record.iter().any(|n| *n != self.chosen);
        let configured = self.configured[self.chosen];
        let accepts = configured && !self.deleting && (!self.refuses[self.chosen] || formers);
        let observes = self.configured[self.chosen] && self.lbs[self.chosen].control == Control::Observes;
        let live = self.pods.get_mut(uid).unwrap();
        let recent = live.input.pod.on || live.last_on.is_some_and(|at| now.duration_since(at).unsigned_abs() < DRAIN + Duration::from_secs(30));
        let may = !configured || !observes || formers || recent;
        self.stamps += 1;
        live.input.operations = [format!("op={}", self.stamps)].into();
        live.in_operation = true;
        if live.input.pod.on {
            live.last_on = Some(now);
        }
        live.input.pod.on = false;
        live.version += 1;
        // Without a record nothing is registered.
        live.available = false;
        if may && (live.input.selected && accepts || live.expected) && !live.input.protected && !live.input.pod.addresses.is_empty() && !self.record.is_empty() {
            live.input.protected = true;
            live.expected = true;
        }
        let protected = live.input.protected;
        live.marked |= live.expected;
        live.unguarded = !protected && !accepts && !live.expected || !live.marked;
        self.note(format!("begin {uid}, protected {protected}"));
        self.advance(uid);
    }

    fn end(&mut self, uid: &str) {
        let now = self.now;
        let configured = self.configured[self.chosen];
        let live = self.pods.get_mut(uid).unwrap();
        (live.in_operation, live.operating) = (false, false);
        live.input.operations.clear();
        if live.expected && (!configured || live.input.selected) {
            live.input.protected = false; // `stale_protections`
        }
        live.input.pod.on = !live.input.ended;
        live.last_on = Some(now);
        live.version += 1;
        self.note(format!("end {uid}"));
        self.check_available(uid);
    }

    fn race(&mut self) {
        if self.races && self.random.one_in(4) {
            let uids: Vec<_> = self.pods.keys().cloned().collect();
            if !uids.is_empty() {
                let uid = uids[self.random.below(uids.len() as u64) as usize].clone();
                self.turn(&uid);
            }
        }
    }

    fn turn(&mut self, uid: &str) {
        let live = &self.pods[uid];
        match (live.in_operation, live.operating) {
            _ if live.input.ended => {}
            (false, _) if !live.input.pod.on && self.random.one_in(2) => {
                let now = self.now;
                let live = self.pods.get_mut(uid).unwrap();
                live.input.pod.on = true; // Ready
                live.last_on = Some(now);
                live.version += 1;
                self.note(format!("ready {uid}"));
                self.check_available(uid);
            }
            (false, _) => self.begin(uid),
            (true, false) if self.random.one_in(3) => self.end(uid), // undone
            _ if self.random.one_in(3) => {
                // Another operation keeps it off from now on, and the first one ends.
                self.stamps += 1;
                let stamp = format!("op={}", self.stamps);
                let live = self.pods.get_mut(uid).unwrap();
                live.input.operations = [stamp].into();
                live.version += 1;
                self.note(format!("another operation {uid}"));
            }
            (true, false) => {}
            (true, true) => self.end(uid),
        }
    }

    fn add_pod(&mut self) {
        self.next_pod += 1;
        let in_use = |address: &IpAddr| {
            let users = self.pods.values().filter(|live| !live.input.ended);
            users.into_iter().any(|i| i.input.pod.addresses.contains(address))
        };
        let address = (1..9).map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))).find(|a| !in_use(a));
        let id = PodId { uid: format!("uid-{}", self.next_pod), name: format!("web-{}", self.next_pod) };
        let mut labels = BTreeMap::new();
        match self.random.below(4) {
            0 => drop(labels.insert("port".to_owned(), "80".to_owned())),
            1 => drop(labels.insert("port".to_owned(), "82".to_owned())),
            2 => drop(labels.insert("port".to_owned(), "83".to_owned())),
            _ => {}
        }
        let pod = Pod {
            id: id.clone(),
            addresses: address.into_iter().collect(),
            labels,
            on: self.random.one_in(2),
            ..Pod::default()
        };
        let last_on = pod.on.then_some(self.now);
        let formers = self.record.iter().any(|n| *n != self.chosen);
        let expected = !self.record.is_empty() && self.configured[self.chosen] && (!self.refuses[self.chosen] || formers);
        let input = PodInput { pod, selected: true, protected: false, ended: false, operations: BTreeSet::new() };
        let live = Live { input, version: 1, operating: false, in_operation: false, last_on, released: None, expected, available: false, unguarded: false, marked: expected };
        self.note(format!("add {id:?}"));
        self.pods.insert(id.uid.clone(), live);
        self.check_available(&id.uid);
    }

    fn disturb(&mut self, moves: bool) {
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        let picked = match uids.len() as u64 {
            0 => None,
            n => Some(uids[self.random.below(n) as usize].clone()),
        };
        match self.random.below(40) {
            0 => {
                self.shape = SHAPES[self.random.below(5) as usize];
                self.note(format!("shape {:?}", self.shape));
            }
            1 => self.weight = 1 + self.random.below(3) as u32,
            2 if std::env::var("CHAIN_NOREFUSE").is_err() => {
                let n = self.random.below(NAMES as u64) as usize;
                self.refuses[n] = !self.refuses[n];
                self.note(format!("{n} refuses: {}", self.refuses[n]));
            }
            3 | 4 if moves && std::env::var("CHAIN_NOCONF").is_err() => {
                let n = self.random.below(NAMES as u64) as usize;
                self.configured[n] = !self.configured[n];
                self.lead_anew(); // a replica reads the file when it starts
                self.note(format!("{n} configured: {}", self.configured[n]));
            }
            5..=8 if moves => {
                self.chosen = self.random.below(NAMES as u64) as usize;
                self.note(format!("move to {}", self.chosen));
                if self.random.one_in(3) {
                    for live in self.pods.values_mut() {
                        live.input.selected = !live.input.selected;
                        live.version += 1;
                    }
                    self.note("other selector".to_owned());
                }
            }
            9 => self.lead_anew(),
            10 if std::env::var("CHAIN_STALL").is_ok() => self.stalled = !self.stalled,
            11 => {
                let n = self.random.below(NAMES as u64) as usize;
                self.lbs[n].down = !self.lbs[n].down;
                self.note(format!("{n} down: {}", self.lbs[n].down));
            }
            13 if std::env::var("CHAIN_RECORD").is_ok() => {
                self.no_record = !self.no_record;
                self.note(format!("no record: {}", self.no_record));
            }
            12 if std::env::var("CHAIN_FORGE").is_ok() => {
                // Somebody deletes the marks or forges them.
                if let Some(uid) = &picked {
                    let live = self.pods.get_mut(uid).unwrap();
                    if live.input.pod.on && live.input.selected {
                        live.input.protected = !live.input.protected;
                        live.expected = live.input.protected && live.input.selected;
                        live.version += 1;
                        self.note(format!("forge {uid}"));
                    }
                }
            }
            _ => {}
        }
        match (self.random.below(8), picked) {
            (0 | 1, _) | (_, None) if self.pods.len() < 6 => self.add_pod(),
            (2..=4, Some(uid)) => {
                self.turn(&uid);
                while self.twice && self.random.one_in(2) {
                    self.pass();
                    self.now += Duration::from_secs(self.random.below(4));
                    self.turn(&uid);
                }
            }
            (5, Some(uid)) if self.random.one_in(2) => {
                let live = self.pods.get_mut(&uid).unwrap();
                live.input.selected = !live.input.selected;
                live.version += 1;
                self.note(format!("reselect {uid}"));
            }
            (5, Some(uid)) => {
                let live = self.pods.get_mut(&uid).unwrap();
                (live.input.pod.on, live.input.ended) = (false, true);
                live.version += 1;
                self.note(format!("ended {uid}"));
            }
            (6, Some(uid)) if !self.pods[&uid].input.protected || self.random.one_in(3) => {
                self.pods.remove(&uid);
                self.note(format!("gone {uid}"));
            }
            _ => {}
        }
        self.pass();
    }

    fn lead_anew(&mut self) {
        for lb in &mut self.lbs {
            for delayed in &mut lb.delayed {
                delayed.at = self.now;
            }
            lb.make_delayed(&mut self.random, self.now);
        }
        self.plans.clear();
        self.places.clear();
        self.served = None;
        self.stalled = false;
        self.note("new leader".to_owned());
    }

    fn pass(&mut self) {
        for n in 0..NAMES {
            let now = self.now;
            self.lbs[n].pass(&mut self.random, now);
            if self.lbs[n].control == Control::Observes {
                self.follow(n);
            }
        }
    }

    /// What the controller of a watched load balancer does, with a delay.
    fn follow(&mut self, n: usize) {
        let view = self.view(n, true, false, &self.pods.clone());
        let used = self.record.contains(&n) || self.chosen == n;
        for (key, member) in &view.wanted {
            let is_new = !self.lbs[n].entries.contains_key(key);
            if is_new && (self.random.one_in(2) || !self.faults) {
                let mut member = member.clone();
                member.weight = 7;
                self.left.remove(&(n, member.pod.uid.clone()));
                self.lbs[n].add(member, &mut self.random);
                self.log.push(format!("{} joins {n}: {key}", self.now));
                let entry = self.lbs[n].entries.get_mut(key).unwrap();
                entry.member.pod = PodId::default();
            }
        }
        for key in self.lbs[n].entries.keys().cloned().collect::<Vec<_>>() {
            if !view.wanted.contains_key(&key) && (self.random.one_in(2) || !self.faults) {
                if let Some(entry) = self.lbs[n].entries.remove(&key) {
                    self.log.push(format!("{} left {n}: {key} of {}", self.now, entry.owner));
                    if used {
                        self.left.insert((n, entry.owner), self.now);
                    }
                }
            }
        }
    }

    /// The employer is deleted in the middle of what happens.
    fn delete(&mut self) {
        for n in 0..NAMES {
            self.configured[n] = true;
            self.lbs[n].down = false;
        }
        (self.no_record, self.stalled, self.deleting) = (false, false, true);
        self.note("delete".to_owned());
        for n in 0..160 {
            if n == 40 {
                self.lbs.iter_mut().for_each(|lb| lb.faults = false);
                self.races = false;
            }
            self.pass();
            self.look();
            self.check_operations();
            self.now += Duration::from_secs(7);
        }
        for (uid, live) in &self.pods {
            assert!(!live.input.protected && !live.expected, "{uid} keeps marks: {live:?} {:?}", self.record);
        }
        let chosen = self.chosen;
        assert!(self.record.iter().all(|n| *n == chosen), "formers are left: {:?}", self.record);
        let is_left = self.lbs[chosen].control != Control::Observes && !self.lbs[chosen].entries.is_empty();
        assert!(!is_left, "members are left");
    }

    fn settle(&mut self) {
        for n in 0..NAMES {
            self.lbs[n].faults = false;
            self.lbs[n].down = false;
            self.configured[n] = true;
            self.refuses[n] = false;
        }
        (self.faults, self.stalled, self.races, self.no_record) = (false, false, false, false);
        self.note("settle".to_owned());
        if self.random.one_in(2) {
            self.shape = SHAPES[0];
        }
        self.now += Duration::from_secs(400);
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            let live = &self.pods[&uid];
            if !live.input.ended && live.in_operation {
                self.end(&uid);
            } else if !live.input.ended && !live.input.pod.on {
                let live = self.pods.get_mut(&uid).unwrap();
                (live.input.pod.on, live.last_on) = (true, Some(self.now));
                live.version += 1;
                self.check_available(&uid);
            }
        }
        let before = self.calls;
        let mut half = 0;
        for n in 0..80 {
            if n == 40 {
                half = self.calls;
            }
            self.pass();
            self.look();
            self.check_operations();
            self.now += Duration::from_secs(11);
        }
        self.sync();
        let view = self.view(self.chosen, true, false, &self.pods);
        if self.pods.keys().any(|uid| view.should_serve(uid) && view.obstacle(uid).is_some()) {
            return; // the move waits for it
        }
        assert_eq!(self.record, [self.chosen], "a move does not end");
        assert!(half - before <= 150, "many calls in a move: {}", half - before);
        assert!(self.calls - half <= 12, "many calls at rest: {}", self.calls - half);
        let view = self.view(self.chosen, true, false, &self.pods);
        for (uid, mark) in marks(&view, &self.plans[&self.chosen], self.now) {
            match mark {
                Mark::Protect => assert!(view.should_serve(&uid)),
                Mark::Release => assert!(!view.should_serve(&uid)),
                Mark::Keep(reason) => assert!(reason.contains("address"), "{uid} hangs: {reason}"),
            }
            let live = &self.pods[&uid];
            let (expected, protected) = (live.expected, live.input.protected);
            match view.should_serve(&uid) {
                true => assert!(expected && protected && live.available, "{uid} is not available: {expected} {protected} {}", live.available),
                false => assert!(!protected && (live.input.selected || !expected), "{uid} keeps marks"),
            }
        }
        for n in (0..NAMES).filter(|n| *n == self.chosen) {
            let registered: BTreeSet<_> = self.lbs[n].entries.keys().collect();
            let wanted = view.wanted.keys().collect();
            assert_eq!(registered, wanted);
        }
        // Each can be worked on, and comes back.
        let uids: Vec<_> = self.pods.keys().cloned().filter(|uid| view.should_serve(uid)).collect();
        for uid in &uids {
            self.begin(uid);
        }
        for _ in 0..20 {
            self.pass();
            self.look();
            self.check_operations();
            self.now += Duration::from_secs(11);
        }
        for uid in &uids {
            assert!(self.pods[uid].operating, "{uid} is never released");
            self.end(uid);
        }
        for _ in 0..20 {
            self.pass();
            self.look();
            self.now += Duration::from_secs(11);
        }
        for uid in &uids {
            assert!(self.pods[uid].available, "{uid} never comes back");
        }
    }
}

fn walk(seed: u64, observes: bool, moves: bool, races: bool) -> Result<(), (String, Vec<String>)> {
    let mut chain = Chain::new(seed, observes);
    chain.races = races;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..150 {
            if chain.random.one_in(2) {
                chain.disturb(moves);
                chain.check_operations();
            }
            let wake = chain.look();
            chain.check_operations();
            let later = chain.now + Duration::from_secs(1 + chain.random.below(7));
            chain.now = match wake.filter(|wake| *wake > chain.now) {
                Some(wake) if chain.random.one_in(2) => wake.min(later),
                _ => later,
            };
        }
        match seed.is_multiple_of(4) {
            true => chain.delete(),
            false => chain.settle(),
        }
    }));
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let mut log = std::mem::take(&mut chain.log);
        log.push(format!(
            "now {} chosen {} record {:?} controls {:?}",
            chain.now, chain.chosen, chain.record,
            chain.lbs.iter().map(|lb| lb.control).collect::<Vec<_>>()
        ));
        (text.unwrap_or_default(), log)
    })
}

#[test]
fn random_walks_along_a_chain_of_moves() {
    std::panic::set_hook(Box::new(|_| {}));
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, count) = (number("CHAIN_SEED", 1), number("CHAIN_COUNT", 300));
    let (observes, races) = (number("CHAIN_OBSERVES", 1) == 1, number("CHAIN_RACES", 1) == 1);
    let mut failures = BTreeMap::<String, Vec<u64>>::new();
    for seed in first..first + count {
        if let Err((text, log)) = walk(seed, observes, true, races) {
            let kind: String = text.replace(|c: char| c.is_ascii_digit(), "#").chars().take(70).collect();
            failures.entry(kind).or_default().push(seed);
            if count == 1 {
                let from = log.len().saturating_sub(number("CHAIN_LOG", 40) as usize);
                eprintln!("{}\n{text}", log[from..].join("\n"));
            }
        }
    }
    drop(std::panic::take_hook());
    for (kind, seeds) in &failures {
        eprintln!("{} x {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    assert!(failures.is_empty());
}
