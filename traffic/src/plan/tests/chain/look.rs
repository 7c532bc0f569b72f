//! A look at the present adapter, and the record of the adapters that may have members.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::state::Chain;
use crate::plan::*;

/// The pause after a write of the leader.
const WRITTEN: Duration = Duration::from_millis(50);
/// The pause before a look that another one waits for.
pub const AGAIN: Duration = Duration::from_secs(1);

/// The former adapters that the record names.
struct Formers {
    /// Those that are configured.
    usable: Vec<usize>,
    /// Those that are not.
    unknown: Vec<usize>,
}

/// What a look at the present adapter came to.
struct Looked {
    wake: Option<Timestamp>,
    seems_settled: bool,
    /// Whether the first change at a new adapter is due.
    begins: bool,
}

impl Chain {
    /// A look at all adapters of the employer.
    pub fn look(&mut self) -> Option<Timestamp> {
        let wake = self.look_at_all();
        self.plans.values_mut().for_each(Memory::end_look);
        self.forget_losses();
        wake
    }

    /// Brings the cache up to date, unless it stands still.
    pub fn sync(&mut self) {
        if !self.troubles.stalled {
            self.cache = self.pods.clone();
        }
    }

    fn look_at_all(&mut self) -> Option<Timestamp> {
        self.sync();
        let chosen = self.chosen;
        if !self.configured[chosen] {
            return None;
        }
        let is_new = self.is_new();
        let is_prepared = is_new || self.record.first() == Some(&chosen);
        if !self.deleting && !is_prepared && !self.write_record() {
            return Some(self.now + AGAIN);
        }
        let record = &self.record;
        let is_known = |adapter: &usize| *adapter == chosen || record.contains(adapter);
        self.plans.retain(|adapter, _| is_known(adapter));
        self.served.take_if(|adapter| *adapter != chosen);
        let formers = self.formers();
        let is_usable = |adapter: &usize| formers.usable.contains(adapter);
        self.places.retain(|adapter, _| is_usable(adapter));
        let mut plan = self.plans.remove(&chosen).unwrap_or_default();
        let mut looked = self.look_at_present(&mut plan, &formers, is_new);
        // A new adapter that has nothing to change is recorded before a former one leaves.
        if looked.begins || is_new && looked.seems_settled {
            if self.write_record() {
                self.plans.insert(chosen, plan);
                return Some(self.now + WRITTEN);
            }
            looked.seems_settled = false;
            looked.wake = looked.wake.into_iter().chain([self.now + AGAIN]).min();
        }
        let settled = match formers.usable.is_empty() || self.deleting {
            true => looked.seems_settled || self.deleting,
            false => plan.confirm_settled(looked.seems_settled, self.now),
        };
        if looked.seems_settled && !settled {
            looked.wake = looked.wake.into_iter().chain([self.now + AGAIN]).min();
        }
        self.plans.insert(chosen, plan);
        if settled {
            self.served = Some(chosen);
        }
        let again = self.look_at_formers(&formers.usable, settled, looked.seems_settled);
        looked.wake.into_iter().chain(again).min()
    }

    fn look_at_present(&mut self, plan: &mut Memory, formers: &Formers, is_new: bool) -> Looked {
        let chosen = self.chosen;
        let moves = !formers.usable.is_empty() || !formers.unknown.is_empty();
        let places = self.places_at(formers);
        let cached = self.cache.clone();
        let mut view = self.view(chosen, true, self.deleting, &cached);
        if self.write_expectations(&view, &cached, moves) {
            plan.begin_look(&view, self.now);
            return Looked {
                wake: Some(self.now + WRITTEN),
                seems_settled: false,
                begins: false,
            };
        }
        let (wake, begins) = self.call(chosen, &mut view, plan, is_new);
        self.race();
        let mut permitted = marks(&view, plan, self.now);
        if moves {
            let in_move = |(uid, mark): (String, Mark)| {
                let place = |of: &BTreeMap<String, PodPlace>| {
                    let place = of.get(&uid);
                    place.map_or(Place::Unclear, |place| place.as_of(&view, plan, &uid))
                };
                let places: Vec<_> = places.iter().map(place).collect();
                let mark = mark_in_move(&view, plan, &uid, mark, &places, is_new);
                (uid, mark)
            };
            permitted = permitted.into_iter().map(in_move).collect();
        }
        for (uid, mark) in &permitted {
            self.check_mark(uid, mark, cached[uid].version);
            self.write_marks(&view, uid, mark, cached[uid].version, moves);
        }
        Looked {
            wake,
            seems_settled: Summary::of(&view, plan, self.now).is_settled(&view, plan),
            begins,
        }
    }

    /// Whether the present adapter has never registered a member, although another one has managed the employer.
    fn is_new(&self) -> bool {
        let plan = self.plans.get(&self.chosen);
        let has_members = plan.is_some_and(Memory::may_have_members);
        let is_moved = !self.record.is_empty() && !self.is_listed(self.chosen);
        !self.deleting && is_moved && !self.observes(self.chosen) && !has_members
    }

    /// The record names the chosen adapter first. Returns whether it could be written.
    fn write_record(&mut self) -> bool {
        if self.troubles.refuses_record {
            return false;
        }
        let chosen = self.chosen;
        if !self.is_listed(chosen) {
            self.recorded.insert(chosen, self.now);
            self.left.retain(|(adapter, _), _| *adapter != chosen);
        }
        self.record.retain(|adapter| *adapter != chosen);
        self.record.insert(0, chosen);
        self.note(format!("the record is {:?}", self.record));
        true
    }

    fn formers(&self) -> Formers {
        let formers = self
            .record
            .iter()
            .filter(|adapter| **adapter != self.chosen);
        let (usable, mut unknown): (Vec<_>, Vec<_>) =
            formers.partition(|adapter| self.configured[**adapter]);
        if self.deleting {
            unknown.clear();
        }
        Formers { usable, unknown }
    }

    /// What each former adapter does with the Pods. Nothing is known of those that can't be asked.
    fn places_at(&self, formers: &Formers) -> Vec<BTreeMap<String, PodPlace>> {
        let asked = formers.usable.iter();
        let asked = asked.map(|adapter| self.places.get(adapter).cloned().unwrap_or_default());
        let unknown = formers.unknown.iter().map(|_| BTreeMap::new());
        asked.chain(unknown).collect()
    }
}
