//! What happens to Pods, to the employer and to the leader.

use std::collections::BTreeSet;

use super::model::SHAPES;
use super::world::World;
use crate::{Control, PodId};

impl World {
    /// Changes Pods.
    pub fn disturb(&mut self) {
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        let picked = match uids.len() as u64 {
            0 => None,
            n => Some(uids[self.random.below(n) as usize].clone()),
        };
        match self.random.below(26) {
            0 => self.shape = SHAPES[self.random.below(4) as usize].to_vec(),
            1 => self.refuses = !self.refuses,
            2 => self.uncached.clear(),
            // The load balancer must tell whose member it has, or nobody could know that the Pod exists.
            3 if self.balancer.tells_pods => self.uncached.extend(picked.clone()),
            4 => self.weight = 1 + self.random.below(3) as u32,
            5 => self.change_weight(),
            6 => self.change_selector(),
            _ => {}
        }
        match (self.random.below(8), picked) {
            (0 | 1, _) | (_, None) if self.pods.len() < 6 => self.add_pod(),
            (2 | 3, Some(uid)) => {
                let input = self.pods.get_mut(&uid).unwrap();
                let was_on = std::mem::replace(&mut input.pod.on, false);
                if was_on {
                    self.begin_operation(&uid);
                } else if !input.ended {
                    // The protection goes in the write by which the Pod comes back.
                    self.protected.remove(&uid);
                    (input.pod.on, input.operations) = (true, BTreeSet::new());
                    if self.random.one_in(4) {
                        self.pass();
                        self.begin_operation(&uid);
                    }
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
            (7, _) if self.random.one_in(4) => self.lead_anew(),
            (7, _) if self.random.one_in(3) => self.move_to_another(),
            _ => {}
        }
        self.pass();
    }

    /// An operation takes a Pod off traffic, and protects it in the same write.
    pub fn begin_operation(&mut self, uid: &str) {
        self.next_operation += 1;
        let input = self.pods.get_mut(uid).unwrap();
        input.pod.on = false;
        input.operations = [format!("operation={}", self.next_operation)].into();
        if !input.ended {
            self.protected.insert(uid.to_owned());
        }
    }

    /// All Pods come back on traffic.
    pub fn end_operations(&mut self) {
        for (uid, input) in &mut self.pods {
            if !input.pod.on && !input.ended {
                (input.pod.on, input.operations) = (true, BTreeSet::new());
                self.protected.remove(uid);
            }
        }
    }

    /// The employer selects the other Pods, as in a move from one set of Pods to another.
    fn change_selector(&mut self) {
        for input in self.pods.values_mut() {
            input.selected = !input.selected;
        }
    }

    /// Somebody else sets the weight of a member.
    fn change_weight(&mut self) {
        if let Some(entry) = self.balancer.entries.values_mut().next() {
            entry.member.weight = 50;
        }
    }

    /// What happens by itself.
    pub fn pass(&mut self) {
        if let Some(former) = &mut self.other {
            former.balancer.pass(&mut self.random, self.now);
        }
        self.balancer.pass(&mut self.random, self.now);
        if self.control == Control::Observes {
            self.follow_pods();
        }
    }

    /// What the controller of a watched load balancer does, with a delay.
    fn follow_pods(&mut self) {
        let view = self.view();
        let faults = self.balancer.faults;
        for (key, member) in &view.wanted {
            let is_new = !self.balancer.entries.contains_key(key);
            if is_new && (self.random.one_in(2) || !faults) {
                let mut member = member.clone();
                member.weight = 7; // it has its own weights
                self.balancer.add(member, &mut self.random);
                let entry = self.balancer.entries.get_mut(key).unwrap();
                entry.member.pod = PodId::default(); // it tells addresses only
            }
        }
        for key in self.balancer.entries.keys().cloned().collect::<Vec<_>>() {
            if !view.wanted.contains_key(&key) && (self.random.one_in(2) || !faults) {
                let left = self.balancer.entries.remove(&key);
                self.left.extend(left.map(|entry| (entry.owner, self.now)));
            }
        }
    }
}
