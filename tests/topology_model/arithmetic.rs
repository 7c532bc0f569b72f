//! The arithmetic of the budget by zone, as the decision record proposes it: the decision of admission in one
//! compare-and-swap.

use std::collections::BTreeMap;

use super::cluster::{Is, PODS, Pod, Slot};
use super::fault::Fault;

/// Most partitions in a world.
pub const GROUPS: usize = 2;

/// The zone of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The zone that its label names.
    Zone(u8),
    /// The Pod has no zone label, so it counts as alone in a zone of its own.
    Alone(u8),
    /// The zone is unknown.
    Unknown,
}

/// A Pod that is down or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where.
    pub place: Place,
    /// The partition of the Pod; `None` if it may be any.
    pub group: Option<u8>,
}

/// The kind of a disruption, as far as its evidence differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// DELETE, with the judged version as precondition.
    Delete,
    /// An eviction: its delete passes no admission and has no precondition.
    Evict,
    /// An operation or an in-place change, with the version as precondition: the Pod goes down and comes back.
    Begin,
}

/// Names a claim: the place in the set, the incarnation of the Pod, the operation.
pub type Key = (u8, u8, Operation);

/// Permission for one disruption in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The version that was judged.
    pub at: u8,
    /// The partition of the Pod. Its zone is the zone of the window.
    pub group: u8,
}

/// The ledger of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ledger {
    /// The claims.
    pub claims: BTreeMap<Key, Claim>,
    /// The watermark: a cache must have seen the Pods up to this version to decide or to release.
    pub watermark: u8,
    /// For each partition, the open zone: the only zone in which disruptions were admitted since all Pods were
    /// available.
    pub windows: [Option<Place>; GROUPS],
    /// The partition and the zone whose turn it is.
    pub turn: Option<(u8, Place)>,
}

/// The view of a cache.
pub struct View<'a> {
    /// Its position.
    pub position: u8,
    /// The Pods.
    pub pods: &'a [Pod; PODS],
    /// The numbers that owners ask for.
    pub slots: &'a [Slot],
    /// Whether owners set the zone and the partition of every Pod that they create.
    pub pinned: bool,
    /// How many Pods may be down.
    pub max: Option<usize>,
    /// The rule of the arithmetic that is removed.
    pub fault: Option<Fault>,
}

impl View<'_> {
    fn lacks(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The expected number of Pods.
    fn expected(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.extra).count()
    }

    /// The zone of a Pod, by its label, or by the zone that its owner sets for all its Pods.
    pub fn place(&self, slot: usize) -> Place {
        let pod = &self.pods[slot];
        let own = self.slots[slot];
        match pod.is {
            Is::Gone | Is::Pending if self.pinned => own.zone.map_or(Place::Unknown, Place::Zone),
            Is::Gone | Is::Pending => Place::Unknown,
            _ if pod.zone.is_none() && self.lacks(Fault::UnlabelledShareAZone) => Place::Alone(0),
            _ => pod.zone.map_or(Place::Alone(slot as u8), Place::Zone),
        }
    }

    /// The losses of a partition.
    fn losses(&self, group: u8) -> impl Iterator<Item = Loss> {
        let all = self.lacks(Fault::PartitionsIgnored);
        let counts = move |loss: &Loss| all || loss.group.is_none_or(|of| of == group);
        self.all_losses().into_iter().filter(counts)
    }

    fn all_losses(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        let mut existing = 0;
        for (slot, own) in self.slots.iter().enumerate() {
            let is = self.pods[slot].is;
            existing += usize::from(is != Is::Gone);
            let ignored = match is {
                Is::Up => true,
                Is::Gone => !self.pinned || self.lacks(Fault::MissingIgnored),
                Is::Pending => self.lacks(Fault::UnscheduledIgnored),
                _ => self.lacks(Fault::DownIgnored),
            };
            if !ignored {
                losses.push(Loss {
                    place: self.place(slot),
                    group: Some(own.group),
                });
            }
        }
        let missing = self.expected().saturating_sub(existing);
        if !self.pinned && missing > 0 && !self.lacks(Fault::MissingIgnored) {
            losses.push(Loss {
                place: Place::Unknown,
                group: None,
            });
        }
        losses
    }
}

/// A disruption that asks for a claim.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The Pod and the operation.
    pub key: Key,
    /// The zone of the Pod.
    pub place: Place,
    /// The claim to write.
    pub claim: Claim,
}

impl Ledger {
    /// Available Pods without a claim.
    fn unclaimed(&self, view: &View) -> usize {
        let claimed =
            |slot: u8, uid: u8| self.claims.keys().any(|key| (key.0, key.1) == (slot, uid));
        let slots = (0u8..).zip(&view.pods[..view.slots.len()]);
        slots
            .filter(|(slot, pod)| pod.is == Is::Up && !claimed(*slot, pod.uid))
            .count()
    }

    fn is_claimed(&self, group: u8) -> bool {
        self.claims.values().any(|claim| claim.group == group)
    }

    /// Whether everything that was disrupted in the open zone is available again.
    fn is_over(&self, view: &View, group: u8) -> bool {
        let Some(open) = self.windows[usize::from(group)] else {
            return false;
        };
        let lost = |loss: Loss| loss.place == open || loss.place == Place::Unknown;
        // If owners do not set the zone, a Pod that is not Ready may hide that another Pod is missing.
        let full = view.pinned || self.unclaimed(view) >= view.expected();
        (view.position >= self.watermark || view.lacks(Fault::WindowEndsBehind))
            && (!self.is_claimed(group) || view.lacks(Fault::WindowEndsWithClaims))
            && !view.losses(group).any(lost)
            && (full || view.lacks(Fault::WindowEndsShort))
    }

    /// Ends the window if it is over. Later decisions need a view at least as new as this one: an older view may show
    /// losses of the ended window, and nothing would show their zone.
    pub fn end(&mut self, view: &View, group: u8) -> bool {
        if !self.is_over(view, group) {
            return false;
        }
        self.windows[usize::from(group)] = None;
        if !view.lacks(Fault::EndLeavesNoMark) {
            self.watermark = self.watermark.max(view.position);
        }
        true
    }

    /// Gives a claim. Returns false if it does not.
    pub fn admit(&mut self, view: &View, ask: Ask) -> bool {
        let (place, group) = (ask.place, ask.claim.group);
        if view.position < self.watermark && !view.lacks(Fault::NoWatermark) {
            return false;
        }
        let other_turn = self
            .turn
            .is_some_and(|(of, next)| of == group && next != place);
        if other_turn && !self.claims.contains_key(&ask.key) && !view.lacks(Fault::TurnIgnored) {
            return false;
        }
        let is_here = |loss: Loss| {
            loss.place == place
                || loss.place == Place::Unknown && view.lacks(Fault::UnknownTakenForHere)
        };
        if !view.losses(group).all(is_here) {
            return false;
        }
        if !self.leaves_enough(view, ask.key) && !view.lacks(Fault::NoMaximum) {
            return false;
        }
        let is_free = match self.windows[usize::from(group)] {
            _ if view.lacks(Fault::NoWindow) => true,
            Some(open) => open == place || self.end(view, group),
            // The zone of a claim from before the rule had zones is unknown.
            None => !self.is_claimed(group) || view.lacks(Fault::EarlierClaimsIgnored),
        };
        if !is_free {
            return false;
        }
        let claim = self.claims.entry(ask.key).or_insert(ask.claim);
        claim.at = claim.at.max(ask.claim.at);
        self.windows[usize::from(group)] = Some(place);
        if self.turn == Some((group, place)) {
            self.turn = None;
        }
        true
    }

    fn leaves_enough(&self, view: &View, (slot, uid, _): Key) -> bool {
        let pod = &view.pods[usize::from(slot)];
        let holds = self.claims.keys().any(|key| (key.0, key.1) == (slot, uid));
        let counted = pod.is == Is::Up && pod.uid == uid && !holds;
        let remaining = self.unclaimed(view) - usize::from(counted);
        view.max
            .is_none_or(|max| remaining + max >= view.expected())
    }

    /// Releases a claim by evidence from a Pod event.
    pub fn release(&mut self, key: Key, based_on: u8) {
        self.claims.remove(&key);
        self.watermark = self.watermark.max(based_on);
    }
}
