//! The employer, its Pods and load balancers, and what the leader knows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use super::super::balancer::Balancer;
use super::super::random::Random;
use super::adapter::{ChainAdapter, PORTS, Ports};
use crate::plan::*;
use crate::{Control, Employer, MemberKey};

/// The number of adapters. An adapter is told by its number.
pub const ADAPTERS: usize = 3;

/// A Pod as the API server has it.
#[derive(Clone, Debug)]
pub struct StoredPod {
    pub input: PodInput,
    /// The resource version.
    pub version: u64,
    /// Whether an operation keeps it off traffic.
    pub in_operation: bool,
    /// Whether the operation works on it: nothing protects it.
    pub operating: bool,
    /// When the operation has begun to work on it.
    pub released: Option<Timestamp>,
    /// When it was last seen on.
    pub last_on: Option<Timestamp>,
    /// Whether its annotation expects the protection.
    pub expected: bool,
    /// Whether it counts as available.
    pub available: bool,
    /// Whether it has had a mark, and no user has taken it away since.
    pub was_marked: bool,
    /// Whether the employer could not be managed when the operation began, so that nobody protected the Pod.
    pub unguarded: bool,
    /// Whether the Pod was not selected when the operation began, and had no mark. The controller of a watched load
    /// balancer may have registered it while it was selected for a moment, which the leader has not seen.
    pub unselected: bool,
}

pub struct Chain {
    pub random: Random,
    pub now: Timestamp,
    pub events: Vec<String>,

    /// The load balancer of each adapter.
    pub balancers: Vec<Balancer>,
    /// Whether each adapter is configured.
    pub configured: Vec<bool>,
    /// Whether each adapter refuses the employer.
    pub refuses: Vec<bool>,
    /// When the member of a Pod left a load balancer that somebody else changes, by adapter and UID.
    pub left: BTreeMap<(usize, String), Timestamp>,
    /// When somebody else has removed a member, by adapter and member, until a read has told it.
    pub lost: BTreeMap<(usize, MemberKey), Timestamp>,

    /// The adapter that the employer names.
    pub chosen: usize,
    /// The adapters that may have members: the record of the employer.
    pub record: Vec<usize>,
    /// Since when the record names each adapter.
    pub recorded: BTreeMap<usize, Timestamp>,
    pub ports: Ports,
    pub weight: u32,
    pub deleting: bool,

    /// The Pods, by UID.
    pub pods: BTreeMap<String, StoredPod>,
    pub next_pod: u64,
    pub next_stamp: u64,

    /// The Pods as the cache of the leader has them.
    pub cache: BTreeMap<String, StoredPod>,
    /// What the leader knows of the members, by adapter.
    pub plans: BTreeMap<usize, Memory>,
    /// What each former adapter did with each Pod at its last look.
    pub places: BTreeMap<usize, BTreeMap<String, PodPlace>>,
    /// The adapter at which all Pods that should serve have done so.
    pub served: Option<usize>,
    pub calls: usize,

    pub troubles: Troubles,
}

/// What goes wrong in a walk.
pub struct Troubles {
    /// Whether controllers of load balancers are late.
    pub faults: bool,
    /// Whether Pods turn during a look.
    pub races: bool,
    /// Whether Pods turn more than once between two looks.
    pub turns_twice: bool,
    /// Whether Pods do not tell since when they are Ready.
    pub hides_ready_times: bool,
    /// Whether the cache of Pods may stand still.
    pub may_stall: bool,
    /// Whether it stands still now.
    pub stalled: bool,
    /// Whether the API server may refuse writes of the record.
    pub may_refuse_record: bool,
    /// Whether it refuses them now.
    pub refuses_record: bool,
    /// Whether users take away marks or forge them.
    pub forges: bool,
}

impl Troubles {
    fn new(random: &mut Random) -> Troubles {
        Troubles {
            faults: true,
            races: !random.one_in(4),
            turns_twice: random.one_in(2),
            hides_ready_times: random.one_in(2),
            may_stall: random.one_in(2),
            stalled: false,
            may_refuse_record: random.one_in(2),
            refuses_record: false,
            forges: random.one_in(2),
        }
    }

    /// Nothing goes wrong any more.
    pub fn end(&mut self) {
        (self.faults, self.races) = (false, false);
        (self.stalled, self.refuses_record) = (false, false);
    }
}

impl Chain {
    pub fn new(seed: u64) -> Chain {
        let mut random = Random(seed * 2_654_435_761 + 7);
        let controls = match random.one_in(2) {
            true => 3,
            false => 2, // all write
        };
        // Pods are told by all load balancers that can, or by none, as in the other walks.
        let tells_pods = random.one_in(2);
        let mut balancer = |n| {
            let control = match random.below(controls) {
                0 => Control::Drains,
                1 => Control::Deregisters,
                _ => Control::Observes,
            };
            let mut balancer = Balancer::new(seed * 7 + n, control);
            balancer.tells_pods = tells_pods && control != Control::Observes;
            balancer
        };
        let balancers = (0..ADAPTERS as u64).map(&mut balancer).collect();
        Chain {
            troubles: Troubles::new(&mut random),
            random,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            events: Vec::new(),
            balancers,
            configured: vec![true; ADAPTERS],
            refuses: vec![false; ADAPTERS],
            left: BTreeMap::new(),
            lost: BTreeMap::new(),
            chosen: 0,
            record: Vec::new(),
            recorded: BTreeMap::new(),
            ports: PORTS[0],
            weight: 100,
            deleting: false,
            pods: BTreeMap::new(),
            next_pod: 0,
            next_stamp: 0,
            cache: BTreeMap::new(),
            plans: BTreeMap::new(),
            places: BTreeMap::new(),
            served: None,
            calls: 0,
        }
    }

    /// Keeps an event for the message of a failure.
    pub fn note(&mut self, text: String) {
        self.events.push(format!("{} {text}", self.now));
    }

    pub fn observes(&self, adapter: usize) -> bool {
        self.balancers[adapter].control == Control::Observes
    }

    pub fn names_formers(&self) -> bool {
        self.record.iter().any(|adapter| *adapter != self.chosen)
    }

    /// Whether the employer expects traffic, as the webhook sees it.
    pub fn expects_traffic(&self) -> bool {
        let can_manage = !self.refuses[self.chosen] || self.names_formers();
        self.configured[self.chosen] && !self.deleting && can_manage
    }

    pub fn is_listed(&self, adapter: usize) -> bool {
        self.record.contains(&adapter)
    }

    /// The present time as a condition of a Pod has it. Two changes can have the same one.
    pub fn condition_time(&self) -> Option<String> {
        let is_told = !self.troubles.hides_ready_times;
        is_told.then(|| self.now.as_second().to_string())
    }

    /// A time that has not been written before.
    pub fn stamp(&mut self) -> String {
        self.next_stamp += 1;
        self.next_stamp.to_string()
    }

    pub fn pod_mut(&mut self, uid: &str) -> &mut StoredPod {
        self.pods.get_mut(uid).unwrap()
    }

    /// What should be at an adapter. `removes` says that all members should go.
    pub fn view(
        &self,
        adapter: usize,
        registers: bool,
        removes: bool,
        pods: &BTreeMap<String, StoredPod>,
    ) -> View {
        let model = ChainAdapter {
            control: self.balancers[adapter].control,
            ports: self.ports,
            weight: self.weight,
            refuses: self.refuses[adapter],
        };
        let employer = Employer {
            deleting: removes,
            kind: "Service".to_owned(),
            name: "web".to_owned(),
            spec: json!({}),
            ..Employer::default()
        };
        let inputs = pods.values().map(|pod| pod.input.clone()).collect();
        let mut view = View::new(&model, &employer, None, inputs);
        view.registers = registers;
        view
    }
}
