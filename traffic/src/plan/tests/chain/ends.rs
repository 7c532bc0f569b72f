//! What must hold when nothing happens any more, or the employer is deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::state::{ADAPTERS, Chain};
use crate::plan::*;

impl Chain {
    /// The employer is deleted in the middle of what happens. It goes without a trace.
    pub fn delete(&mut self) {
        self.configured = vec![true; ADAPTERS];
        self.balancers
            .iter_mut()
            .for_each(|balancer| balancer.down = false);
        (self.troubles.refuses_record, self.troubles.stalled) = (false, false);
        self.deleting = true;
        self.note("the employer is deleted".to_owned());
        self.look_repeatedly(40, 7);
        self.end_troubles();
        self.look_repeatedly(120, 7);
        for (uid, pod) in &self.pods {
            let is_marked = pod.input.protected || pod.expected;
            assert!(!is_marked, "{uid} keeps marks: {pod:?}");
        }
        assert!(!self.names_formers(), "formers are left: {:?}", self.record);
        let entries = &self.balancers[self.chosen].entries;
        let is_left = !self.observes(self.chosen) && !entries.is_empty();
        assert!(!is_left, "members are left: {entries:?}");
    }

    /// Without faults and changes, the move ends, all comes to rest with few calls, and each Pod can be worked on.
    pub fn settle(&mut self) {
        self.end_troubles();
        self.configured = vec![true; ADAPTERS];
        self.refuses = vec![false; ADAPTERS];
        self.note("nothing happens any more".to_owned());
        if self.random.one_in(2) {
            self.ports = super::adapter::PORTS[0]; // each Pod has them
        }
        self.now += Duration::from_secs(400);
        self.put_all_on();
        let before = self.calls;
        self.look_repeatedly(40, 11);
        let at_rest = self.calls;
        self.look_repeatedly(40, 11);
        let view = self.view(self.chosen, true, false, &self.pods);
        let mut uids = self.pods.keys();
        if uids.any(|uid| view.should_serve(uid) && view.obstacle(uid).is_some()) {
            return; // the move waits for it
        }
        assert_eq!(self.record, [self.chosen], "a move does not end");
        let (moving, resting) = (at_rest - before, self.calls - at_rest);
        assert!(moving <= 150, "{moving} calls in a move");
        assert!(resting <= 12, "{resting} calls at rest");
        self.check_rest(&view);
        self.work_on_all(&view);
    }

    fn end_troubles(&mut self) {
        self.troubles.end();
        for balancer in &mut self.balancers {
            (balancer.faults, balancer.down) = (false, false);
        }
    }

    fn look_repeatedly(&mut self, times: usize, seconds: u64) {
        for _ in 0..times {
            self.pass();
            self.look();
            self.check_operations();
            self.now += Duration::from_secs(seconds);
        }
    }

    /// All Pods come on traffic whose containers run.
    fn put_all_on(&mut self) {
        let living = self.pods.iter().filter(|(_, pod)| !pod.input.ended);
        let living = living.map(|(uid, pod)| (uid.clone(), pod.in_operation, pod.input.pod.on));
        for (uid, in_operation, on) in living.collect::<Vec<_>>() {
            match (in_operation, on) {
                (true, _) => self.end_operation(&uid),
                (false, false) => self.become_ready(&uid),
                (false, true) => {}
            }
        }
    }

    fn check_rest(&self, view: &View) {
        for (uid, mark) in marks(view, &self.plans[&self.chosen], self.now) {
            let should_serve = view.should_serve(&uid);
            match mark {
                Mark::Protect => assert!(should_serve),
                Mark::Release => assert!(!should_serve),
                // A Pod may wait for an address, or for the one of another Pod.
                Mark::Keep(reason) => assert!(reason.contains("address"), "{uid} hangs: {reason}"),
            }
            let pod = &self.pods[&uid];
            let (expected, protected) = (pod.expected, pod.input.protected);
            match should_serve {
                true => assert!(
                    expected && protected && pod.available,
                    "{uid} is not available: {pod:?}"
                ),
                false => assert!(
                    !protected && (pod.input.selected || !expected),
                    "{uid} keeps marks: {pod:?}"
                ),
            }
        }
        let registered: BTreeSet<_> = self.balancers[self.chosen].entries.keys().collect();
        assert_eq!(registered, view.wanted.keys().collect());
    }

    /// Each Pod can be worked on, and comes back.
    fn work_on_all(&mut self, view: &View) {
        let uids: Vec<_> = view
            .pods
            .keys()
            .filter(|uid| view.should_serve(uid))
            .collect();
        for uid in &uids {
            self.begin_operation(uid);
        }
        self.look_repeatedly(20, 11);
        for uid in &uids {
            assert!(self.pods[*uid].operating, "{uid} is never released");
            self.end_operation(uid);
        }
        self.look_repeatedly(20, 11);
        for uid in &uids {
            assert!(self.pods[*uid].available, "{uid} never comes back");
        }
    }
}
