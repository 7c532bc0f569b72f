//! The controllers of load balancers that the adapters only observe.

use super::state::{ADAPTERS, Chain};
use crate::{MemberKey, PodId};

/// Such a load balancer has weights of its own.
const OWN_WEIGHT: u32 = 7;

impl Chain {
    /// What happens by itself.
    pub fn pass(&mut self) {
        for adapter in 0..ADAPTERS {
            self.balancers[adapter].pass(&mut self.random, self.now);
            if self.observes(adapter) {
                self.follow_pods(adapter);
            }
        }
    }

    /// The controller follows the Pods, with a delay, whether the employer uses the load balancer or not.
    fn follow_pods(&mut self, adapter: usize) {
        let view = self.view(adapter, true, false, &self.pods);
        for (key, member) in &view.wanted {
            let is_new = !self.balancers[adapter].entries.contains_key(key);
            if is_new && self.follows_now() {
                let mut member = member.clone();
                member.weight = OWN_WEIGHT;
                self.left.remove(&(adapter, member.pod.uid.clone()));
                let balancer = &mut self.balancers[adapter];
                balancer.add(member, &mut self.random);
                let entry = balancer.entries.get_mut(key).unwrap();
                entry.member.pod = PodId::default(); // it tells addresses only
                self.note(format!("{key} joins {adapter}"));
            }
        }
        let keys = self.balancers[adapter].entries.keys().cloned();
        for key in keys.collect::<Vec<_>>() {
            if !view.wanted.contains_key(&key) && self.follows_now() {
                self.leave(adapter, &key);
            }
        }
    }

    fn follows_now(&mut self) -> bool {
        self.random.one_in(2) || !self.troubles.faults
    }

    fn leave(&mut self, adapter: usize, key: &MemberKey) {
        let Some(entry) = self.balancers[adapter].entries.remove(key) else {
            return;
        };
        self.note(format!("{key} of {} leaves {adapter}", entry.owner));
        if self.is_listed(adapter) || self.chosen == adapter {
            self.left.insert((adapter, entry.owner), self.now);
        }
    }
}
