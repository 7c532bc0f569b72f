//! What happens to the employer, its adapters and the leader.

use super::adapter::PORTS;
use super::state::{ADAPTERS, Chain};

impl Chain {
    /// Changes something, and lets time do its work.
    pub fn disturb(&mut self) {
        match self.random.below(40) {
            0 => self.change_ports(),
            1 => self.weight = 1 + self.random.below(3) as u32,
            2 => {
                let adapter = self.pick_adapter();
                self.refuses[adapter] = !self.refuses[adapter];
                let refuses = self.refuses[adapter];
                self.note(format!("adapter {adapter} refuses: {refuses}"));
            }
            3 | 4 => {
                let adapter = self.pick_adapter();
                self.configured[adapter] = !self.configured[adapter];
                let configured = self.configured[adapter];
                self.note(format!("adapter {adapter} is configured: {configured}"));
                self.lead_anew(); // a replica reads the file when it starts
            }
            5..=8 => self.move_to_another(),
            9 => self.lead_anew(),
            10 if self.troubles.may_stall => self.troubles.stalled = !self.troubles.stalled,
            11 => {
                let adapter = self.pick_adapter();
                let balancer = &mut self.balancers[adapter];
                balancer.down = !balancer.down;
                let down = balancer.down;
                self.note(format!("load balancer {adapter} is down: {down}"));
            }
            12 if self.troubles.may_refuse_record => {
                let refuses = !self.troubles.refuses_record;
                self.troubles.refuses_record = refuses;
                self.note(format!("writes of the record are refused: {refuses}"));
            }
            13 if self.troubles.forges => self.forge_marks(),
            14..=19 => self.lose_member(),
            _ => {}
        }
        self.disturb_pods();
        self.pass();
    }

    fn pick_adapter(&mut self) -> usize {
        self.random.below(ADAPTERS as u64) as usize
    }

    fn change_ports(&mut self) {
        self.ports = PORTS[self.random.below(PORTS.len() as u64) as usize];
        self.note(format!("the ports are {:?}", self.ports));
    }

    /// The employer names another adapter, sometimes in one write with another selector.
    fn move_to_another(&mut self) {
        self.chosen = self.pick_adapter();
        self.note(format!("the employer moves to {}", self.chosen));
        if self.random.one_in(3) {
            for pod in self.pods.values_mut() {
                pod.input.selected = !pod.input.selected;
                pod.version += 1;
            }
            self.note("the employer selects the other Pods".to_owned());
        }
    }

    /// A user takes away the marks of a Pod, or forges them.
    fn forge_marks(&mut self) {
        let Some(uid) = self.pick_pod() else { return };
        let pod = self.pod_mut(&uid);
        if pod.input.pod.on && pod.input.selected {
            pod.input.protected = !pod.input.protected;
            pod.expected = pod.input.protected;
            pod.was_marked = pod.expected;
            pod.available = true; // whether it serves or not
            pod.version += 1;
            self.note(format!("a user changes the marks of {uid}"));
        }
    }

    /// Somebody else removes a member.
    fn lose_member(&mut self) {
        let adapter = self.pick_adapter();
        if self.observes(adapter) {
            return; // its controller would register it again
        }
        let entries = &mut self.balancers[adapter].entries;
        let Some((key, _)) = entries.pop_first() else {
            return;
        };
        self.note(format!("somebody removes {key} from {adapter}"));
        self.lost.insert((adapter, key), self.now);
    }

    /// Another leader knows nothing.
    fn lead_anew(&mut self) {
        for balancer in &mut self.balancers {
            // It does not know either which changes were lost.
            for delayed in &mut balancer.delayed {
                delayed.at = self.now;
            }
            balancer.make_delayed(&mut self.random, self.now);
        }
        self.plans.clear();
        self.places.clear();
        self.served = None;
        self.troubles.stalled = false;
        self.note("another leader".to_owned());
    }
}
