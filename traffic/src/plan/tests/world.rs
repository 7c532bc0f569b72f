//! Pods, a load balancer, and the leader that looks at them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;
use serde_json::json;

use super::balancer::Balancer;
use super::model::{Model, SHAPES, Shape};
use super::moves::Former;
use super::random::Random;
use crate::plan::*;
use crate::{Control, Employer, Pod, PodId};

pub struct World {
    pub random: Random,
    pub control: Control,
    pub balancer: Balancer,
    pub shape: Shape,
    pub weight: u32,
    pub refuses: bool,
    pub deleting: bool,
    /// Pods that the cache does not know, although they exist: UIDs.
    pub uncached: BTreeSet<String>,
    pub now: Timestamp,
    pub pods: BTreeMap<String, PodInput>,
    pub next_pod: u64,
    pub next_operation: u64,
    /// When the member of each Pod left a load balancer that somebody else changes, by UID.
    pub left: BTreeMap<String, Timestamp>,
    pub memory: Memory,
    /// The adapter that managed the employer before; or the present one, while the former one is looked at.
    pub other: Option<Former>,
    /// Whether the former adapter is looked at, and whether its members go.
    pub former: bool,
    /// Whether the present adapter has served since the move.
    pub served: bool,
    /// Whether the present load balancer had no members before this leader began the move.
    pub is_new: bool,
    /// What the former adapter did with each Pod at its last look.
    pub places: BTreeMap<String, PodPlace>,
    pub retires: bool,
    pub calls: usize,
    pub protected: BTreeSet<String>,
}

impl World {
    pub fn new(seed: u64, control: Control) -> World {
        World {
            random: Random(seed * 2_654_435_761 + 1),
            control,
            balancer: Balancer::new(seed, control),
            shape: SHAPES[0].to_vec(),
            weight: 100,
            refuses: false,
            deleting: false,
            uncached: BTreeSet::new(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            pods: BTreeMap::new(),
            next_pod: 0,
            next_operation: 0,
            left: BTreeMap::new(),
            memory: Memory::default(),
            other: None,
            former: false,
            served: false,
            is_new: false,
            places: BTreeMap::new(),
            retires: false,
            calls: 0,
            protected: BTreeSet::new(),
        }
    }

    pub fn employer(&self) -> Employer {
        Employer {
            deleting: self.deleting || self.retires,
            kind: "Service".to_owned(),
            name: "web".to_owned(),
            spec: json!({ "selector": { "app": "web" } }),
            ..Employer::default()
        }
    }

    pub fn view(&self) -> View {
        let cached = |(uid, _): &(&String, &PodInput)| !self.uncached.contains(*uid);
        let pods = self.pods.iter().filter(cached);
        let pods = pods.map(|(uid, input)| PodInput {
            protected: self.protected.contains(uid),
            ..input.clone()
        });
        let model = Model {
            control: self.control,
            shape: self.shape.clone(),
            weight: self.weight,
            refuses: self.refuses,
        };
        let mut view = View::new(&model, &self.employer(), None, pods.collect());
        view.registers = !self.former || !self.served;
        view
    }

    /// The API server confirms which of the unknown Pods are gone.
    pub fn add_gone(&self, view: &mut View) {
        let unknown = self.memory.members_of_unknown_pods(view).into_iter();
        let gone = unknown.map(|member| member.pod.uid);
        view.gone
            .extend(gone.filter(|uid| !self.pods.contains_key(uid)));
    }

    /// A new Pod, sometimes with the address of a Pod that has ended or is gone.
    pub fn add_pod(&mut self) {
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
            operations: BTreeSet::new(),
            ready_since: None,
        };
        self.pods.insert(id.uid, input);
    }

    /// One look, as the leader makes it.
    pub fn look(&mut self) -> Option<Timestamp> {
        let mut view = self.view();
        let wake = self.call(&mut view);
        self.check_marks(&view);
        let summary = Summary::of(&view, &self.memory, self.now);
        let settled = summary.is_settled(&view, &self.memory);
        let confirmed = self.other.is_some() && self.memory.confirm_settled(settled, self.now);
        let retires = self.deleting || confirmed;
        self.served |= retires;
        let again = self.look_at_former(retires, settled);
        self.memory.end_look();
        wake.into_iter().chain(again).min()
    }

    /// The calls of a look at one adapter.
    pub fn call(&mut self, view: &mut View) -> Option<Timestamp> {
        self.balancer.make_delayed(&mut self.random, self.now);
        self.add_gone(view);
        self.memory.begin_look(view, self.now);
        let (mut calls, mut observed) = (0, false);
        loop {
            match next_call(view, &self.memory, calls, observed, self.now) {
                Next::Wait(until) => break until,
                Next::Observe => {
                    self.memory.begin_call(calls == 0, self.now);
                    let result = self.balancer.observe(&mut self.random);
                    self.memory.observed(view, result, self.now, self.now);
                    self.add_gone(view);
                    observed = true;
                }
                Next::Apply(changes) => {
                    assert!(!changes.is_empty());
                    self.memory.begin_call(calls == 0, self.now);
                    self.check_changes(view, &changes);
                    let applied = self.balancer.apply(&changes, &mut self.random, self.now);
                    self.memory.applied(view, &changes, applied, self.now);
                }
            }
            calls += 1;
            self.calls += 1;
            assert!(calls < 50, "a look does not end");
        }
    }
}
