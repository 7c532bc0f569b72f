//! Since when each Pod should serve at its members or should not, and since when it has no member.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::known::KnownPod;
use super::memory::Memory;
use super::reach::Reach;
use super::view::View;
use crate::{Control, MemberKey, Presence};

impl Memory {
    /// Begins a look: notes which Pods have turned on or off since the last look.
    pub fn begin_look(&mut self, view: &View, now: Timestamp) {
        self.is_looked_at = true;
        // One that only reads retires by itself when its drain time has passed.
        self.is_refused = view.refused.is_some() && view.settings.control != Control::Observes;
        self.note_turned_pods(view, now);
        self.forget_absent(view);
        self.forget_settled_failures(view);
    }

    fn note_turned_pods(&mut self, view: &View, now: Timestamp) {
        for (uid, input) in &view.pods {
            let should_serve = view.should_serve(uid);
            let planned = match should_serve {
                true => view.planned_keys(uid),
                false => BTreeSet::new(), // any member that reaches it is one too many
            };
            let protected = view.is_protected(uid);
            // A Pod that is off and was not protected before has been on since: an operation has protected it. One that is on
            // and not protected any more has been off: it has lost the protection when it came back.
            let has_other_protection =
                |known: &KnownPod| known.protected != protected && protected != should_serve;
            let is_same = |known: &KnownPod| {
                let was_on = !should_serve && input.may_have_been_on(&known.operations);
                let is_unseen = known.is_stale
                    || known.ready_since != input.ready_since
                    || known.selected != input.selected;
                let same_state = known.should_serve == should_serve && known.planned == planned;
                same_state && !was_on && !is_unseen
            };
            let before = self.pods.get(uid);
            let lacked = match before {
                Some(known) if known.should_serve && !should_serve => self.lacks_member(known, uid),
                Some(known) => known.lacked && !should_serve,
                None => false,
            };
            let operations = input.operations.clone();
            // Whoever takes only the protection away may be another program.
            let operated = before.filter(|known| is_same(known));
            let operated = operated.map_or(now, |known| known.operated);
            let unturned = |known: &&mut KnownPod| is_same(known) && !has_other_protection(known);
            if let Some(known) = self.pods.get_mut(uid).filter(unturned) {
                (known.protected, known.operations) = (protected, operations);
            } else {
                let known = KnownPod {
                    should_serve,
                    protected,
                    operations,
                    ready_since: input.ready_since.clone(),
                    selected: input.selected,
                    is_stale: false,
                    lacked,
                    planned,
                    turned: now,
                    operated,
                    absent_since: None,
                };
                self.pods.insert(uid.clone(), known);
                self.quiet_reads = 0;
            }
        }
        self.pods.retain(|uid, _| view.pods.contains_key(uid));
    }

    /// Ends a look, of all adapters of an employer. If no look at this one has begun, for example because the employer
    /// can't be managed, each Pod may turn twice before the next one.
    pub fn end_look(&mut self) {
        if !std::mem::take(&mut self.is_looked_at) {
            self.settling = None;
            let known = self.pods.values_mut();
            known.for_each(|known| known.is_stale = true);
        }
    }

    /// Whether a Pod that should have served did not, at some member, when it was last looked at.
    fn lacks_member(&self, known: &KnownPod, uid: &str) -> bool {
        let serves = |key: &MemberKey| {
            let member = self.members.get(key);
            member.is_some_and(|member| {
                let registered_for = &member.member.pod.uid;
                let is_own = registered_for.is_empty() || registered_for == uid;
                is_own && member.presence == Presence::Serving
            })
        };
        known.planned.is_empty() || !known.planned.iter().all(serves)
    }

    /// Notes which Pods had no member in the last read, which began at `began`.
    pub(super) fn note_absent_pods(&mut self, view: &View, began: Timestamp) {
        let reach = Reach::new(self.members.values());
        for (uid, pod) in &mut self.pods {
            let has_ended = view.pods.get(uid).is_some_and(|input| input.ended);
            let is_present = reach.keys(view, uid).into_iter().any(|key| {
                let known = self.members.get(&key);
                let registered = known.is_some_and(|known| known.presence != Presence::Absent);
                // Another Pod has the address of a Pod that has ended.
                let is_other = has_ended && view.wanted.contains_key(&key);
                registered && !is_other
            });
            let is_known = self.unreadable.is_empty() && began >= pod.turned;
            pod.absent_since = match is_present || !is_known {
                true => None,
                false => pod.absent_since.or(Some(began)),
            };
        }
    }

    /// Since when this leader knows that the Pod should serve at these members, or should not.
    pub fn turned_at(&self, uid: &str) -> Option<Timestamp> {
        self.pods.get(uid).map(|known| known.turned)
    }

    /// As [`Memory::turned_at`], without turns that are only the loss of the protection.
    pub fn operated_at(&self, uid: &str) -> Option<Timestamp> {
        self.pods.get(uid).map(|known| known.operated)
    }

    /// Whether a Pod has turned since the last successful read.
    pub(super) fn any_turned(&self, view: &View) -> bool {
        view.pods.keys().any(|uid| self.has_turned(uid))
    }

    /// Whether the next read may end the wait of a Pod that has turned off since the last one.
    pub fn awaits_absence(&self, view: &View) -> bool {
        view.off_pods().any(|uid| self.has_turned(uid))
    }

    /// Whether a Pod has turned since the last successful read began.
    pub(super) fn has_turned(&self, uid: &str) -> bool {
        let is_new = |turned| self.observed.is_none_or(|observed| observed < turned);
        self.turned_at(uid).is_some_and(is_new)
    }
}
