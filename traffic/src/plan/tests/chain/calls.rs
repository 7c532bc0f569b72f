//! The calls of a look.

use jiff::Timestamp;

use super::state::Chain;
use crate::plan::*;

impl Chain {
    /// Calls a load balancer until nothing is to be called now. Returns when it is to be called again, and whether the
    /// first change at a new adapter is due.
    pub fn call(
        &mut self,
        adapter: usize,
        view: &mut View,
        memory: &mut Memory,
        is_new: bool,
    ) -> (Option<Timestamp>, bool) {
        self.balancers[adapter].make_delayed(&mut self.random, self.now);
        self.add_gone(view, memory);
        memory.begin_look(view, self.now);
        let (mut calls, mut observed) = (0, false);
        loop {
            match next_call(view, memory, calls, observed, self.now) {
                Next::Wait(until) => break (until, false),
                Next::Apply(_) if is_new => break (None, true),
                Next::Observe => {
                    memory.begin_call(calls == 0, self.now);
                    let result = self.balancers[adapter].observe(&mut self.random);
                    memory.observed(view, result, self.now, self.now);
                    self.add_gone(view, memory);
                    observed = true;
                }
                Next::Apply(changes) => {
                    memory.begin_call(calls == 0, self.now);
                    self.check_changes(adapter, view, &changes);
                    let balancer = &mut self.balancers[adapter];
                    let applied = balancer.apply(&changes, &mut self.random, self.now);
                    self.note(format!("at {adapter}: {changes:?} -> {applied:?}"));
                    memory.applied(view, &changes, applied, self.now);
                }
            }
            calls += 1;
            self.calls += 1;
            assert!(calls < 50, "a look does not end");
        }
    }

    /// The API server confirms which of the unknown Pods are gone.
    fn add_gone(&self, view: &mut View, memory: &Memory) {
        let unknown = memory.members_of_unknown_pods(view).into_iter();
        let uids = unknown.map(|member| member.pod.uid);
        view.gone
            .extend(uids.filter(|uid| !self.pods.contains_key(uid)));
    }
}
