//! Pods that come, go and change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::adapter::PORT_LABEL;
use super::state::{Chain, StoredPod};
use crate::plan::PodInput;
use crate::{Pod, PodId};

impl Chain {
    /// Changes Pods.
    pub fn disturb_pods(&mut self) {
        let picked = self.pick_pod();
        match (self.random.below(8), picked) {
            (0 | 1, _) | (_, None) if self.pods.len() < 6 => self.add_pod(),
            (2..=4, Some(uid)) => {
                self.turn(&uid);
                while self.troubles.turns_twice && self.random.one_in(2) {
                    self.pass();
                    self.now += Duration::from_secs(self.random.below(4));
                    self.turn(&uid);
                }
            }
            (5, Some(uid)) if self.random.one_in(2) => {
                let pod = self.pod_mut(&uid);
                pod.input.selected = !pod.input.selected;
                pod.version += 1;
                self.note(format!("the label of {uid} changes"));
            }
            (5, Some(uid)) => {
                let pod = self.pod_mut(&uid);
                (pod.input.pod.on, pod.input.ended) = (false, true);
                pod.version += 1;
                self.note(format!("the containers of {uid} end"));
            }
            // A Pod that is not protected may go, and a protected one by force.
            (6, Some(uid)) if !self.pods[&uid].input.protected || self.random.one_in(3) => {
                self.pods.remove(&uid);
                self.note(format!("{uid} is gone"));
            }
            _ => {}
        }
    }

    /// The UID of some Pod.
    pub fn pick_pod(&mut self) -> Option<String> {
        let count = self.pods.len() as u64;
        let index = (count > 0).then(|| self.random.below(count) as usize);
        self.pods.keys().nth(index?).cloned()
    }

    /// A new Pod, sometimes with the address of a Pod that has ended or is gone. The webhook lets it expect traffic.
    fn add_pod(&mut self) {
        self.next_pod += 1;
        let id = PodId {
            uid: format!("uid-{}", self.next_pod),
            name: format!("web-{}", self.next_pod),
        };
        let number = ["80", "82", "83", ""][self.random.below(4) as usize];
        let mut labels = BTreeMap::new();
        if !number.is_empty() {
            labels.insert(PORT_LABEL.to_owned(), number.to_owned());
        }
        let pod = Pod {
            id: id.clone(),
            addresses: self.free_address().into_iter().collect(),
            labels,
            on: self.random.one_in(2),
            ..Pod::default()
        };
        let expected = !self.record.is_empty() && self.expects_traffic();
        let stored = StoredPod {
            last_on: pod.on.then_some(self.now),
            input: PodInput {
                pod,
                selected: true,
                protected: false,
                ended: false,
                operations: BTreeSet::new(),
                ready_since: self.condition_time(),
            },
            version: 1,
            in_operation: false,
            operating: false,
            released: None,
            expected,
            available: false,
            was_marked: expected,
            unguarded: false,
            unselected: false,
        };
        self.note(format!("{} is new", id.uid));
        self.pods.insert(id.uid.clone(), stored);
        self.count_availability(&id.uid);
    }

    fn free_address(&self) -> Option<IpAddr> {
        let living = || self.pods.values().filter(|pod| !pod.input.ended);
        let in_use = |address: &IpAddr| living().any(|p| p.input.pod.addresses.contains(address));
        let mut addresses = (1..9).map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
        addresses.find(|address| !in_use(address))
    }
}
