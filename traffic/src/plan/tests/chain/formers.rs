//! A look at the former adapters.

use jiff::Timestamp;

use super::look::AGAIN;
use super::state::Chain;
use crate::plan::*;

impl Chain {
    /// Looks at each of them. If the present one serves, the members of one of them go.
    pub fn look_at_formers(
        &mut self,
        usable: &[usize],
        settled: bool,
        seems_settled: bool,
    ) -> Option<Timestamp> {
        let is_read = |adapter: &&usize| self.plans.get(*adapter).is_some_and(Memory::is_read);
        let retiring = usable.iter().find(is_read).or(usable.first());
        let registers = !seems_settled && self.served != Some(self.chosen);
        let mut wake = None;
        for former in usable {
            self.race();
            self.sync();
            let retires = settled && retiring == Some(former);
            let its = self.look_at_former(*former, retires, registers);
            wake = wake.into_iter().chain(its).min();
        }
        wake
    }

    fn look_at_former(
        &mut self,
        former: usize,
        retires: bool,
        registers: bool,
    ) -> Option<Timestamp> {
        let before = self.places.remove(&former);
        let mut plan = self.plans.remove(&former).unwrap_or_default();
        plan.confirm_settled(false, self.now);
        let observes = self.observes(former);
        let removes = retires && !observes || self.deleting;
        let mut view = self.view(former, registers, removes, &self.cache);
        let (mut wake, _) = self.call(former, &mut view, &mut plan, false);
        let is_clean = match observes {
            true => all_drained(&view, &plan, self.now),
            false => plan.is_empty(),
        };
        let places = places(&view, &plan, self.now);
        let has_changed = before.as_ref() != Some(&places);
        self.places.insert(former, places);
        let is_forgotten = retires && is_clean && !self.troubles.refuses_record;
        if is_forgotten {
            self.forget(former);
        } else {
            self.plans.insert(former, plan);
        }
        if has_changed || is_forgotten {
            wake = wake.into_iter().chain([self.now + AGAIN]).min();
        }
        wake
    }

    /// The record does not name it any more.
    fn forget(&mut self, former: usize) {
        let is_left = !self.observes(former) && !self.balancers[former].entries.is_empty();
        assert!(!is_left, "members are left at {former}");
        self.record.retain(|adapter| *adapter != former);
        self.plans.values_mut().for_each(Memory::read_again);
        self.note(format!("{former} has no members any more"));
    }
}
