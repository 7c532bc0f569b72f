//! Moves of the employer to another load balancer.

use jiff::{SignedDuration, Timestamp};

use super::balancer::Balancer;
use super::world::World;
use crate::plan::Memory;
use crate::{Control, Member};

/// A load balancer with members of the employer that another one manages now.
pub struct Former {
    pub balancer: Balancer,
    pub memory: Memory,
}

impl World {
    /// Another leader knows nothing.
    pub fn lead_anew(&mut self) {
        self.memory = Memory::default();
        if let Some(other) = &mut self.other {
            other.memory = Memory::default();
        }
    }

    /// The employer moves to a load balancer without members, or back to the former one.
    pub fn move_to_another(&mut self) {
        match self.control {
            // Somebody else registers members and removes them.
            Control::Observes => {}
            _ if self.other.is_some() => self.swap(),
            _ => {
                let mut balancer = Balancer::new(self.random.below(60), self.control);
                balancer.tells_pods = self.balancer.tells_pods; // Pods may be unknown only if both tell
                std::mem::swap(&mut self.balancer, &mut balancer);
                let memory = std::mem::take(&mut self.memory);
                self.other = Some(Former { balancer, memory });
            }
        }
    }

    fn swap(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.balancer, &mut other.balancer);
            std::mem::swap(&mut self.memory, &mut other.memory);
        }
    }

    /// A look at the former load balancer, if there is one: all its members go.
    pub fn retire_former(&mut self) -> Option<Timestamp> {
        self.other.as_ref()?;
        self.swap();
        self.retires = true;
        let mut view = self.view();
        let wake = self.call(&mut view);
        let is_clean = self.memory.is_empty();
        self.retires = false;
        self.swap();
        if is_clean {
            let former = self.other.take();
            let left = former.map(|former| former.balancer.entries);
            assert!(left.is_some_and(|left| left.is_empty()), "members are left");
            self.memory.read_again();
            return Some(self.now + SignedDuration::from_secs(1));
        }
        wake
    }

    /// A Pod that should serve does not leave the former load balancer before it serves at the present one.
    pub fn check_move(&self, member: &Member) {
        let Some(present) = self.other.as_ref().filter(|_| self.retires) else {
            return;
        };
        let address = member.key.address;
        let mut pods = self.pods.iter().filter(|(uid, input)| {
            let should_serve = input.selected && input.pod.on && !self.deleting;
            should_serve && !self.uncached.contains(*uid) && input.pod.addresses.contains(&address)
        });
        let serves = || {
            let mut entries = present.balancer.entries.values();
            entries.any(|entry| entry.serves() && entry.member.key.address == address)
        };
        let left = pods.find(|_| !serves());
        assert!(left.is_none(), "{left:?} serves nowhere");
    }
}
