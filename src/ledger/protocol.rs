//! The ledger of one rule object and its transitions: admit, close and release.
//!
//! Generic over the Pod key `K` (a UID) and the descriptive detail `D` of a claim, so that the model checker drives
//! these very functions with small types.

use std::collections::BTreeMap;

/// What a claim was taken for. A Pod can hold one claim per operation, each released on evidence of its own; it is
/// counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// DELETE of the Pod, alone or as part of a deletecollection.
    Delete,
    /// `pods/eviction`; the delete behind it passes no admission.
    Evict,
    /// An UPDATE that takes the Pod offline: the lifecycle begins, or `service-available` is removed by hand.
    Begin,
    /// A change of the running Pod that restarts a container.
    InPlace,
    /// A label edit by which the Pod leaves the rule or the management.
    Leave,
    /// An UPDATE that sets or lowers `spec.activeDeadlineSeconds`: the kubelet ends the Pod when that time is over.
    Deadline,
    /// An UPDATE that gives the Pod another controller: the garbage collector deletes the Pod if that controller does not
    /// exist.
    Reown,
    /// An operation of a newer version of this program, read from the status. The claim counts, and is released only when
    /// the Pod is gone or terminating.
    Unknown,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 8] = [
        Operation::Delete,
        Operation::Evict,
        Operation::Begin,
        Operation::InPlace,
        Operation::Leave,
        Operation::Deadline,
        Operation::Reown,
        Operation::Unknown,
    ];

    /// The word used in status and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Operation::Delete => "Delete",
            Operation::Evict => "Evict",
            Operation::Begin => "Begin",
            Operation::InPlace => "InPlace",
            Operation::Leave => "Leave",
            Operation::Deadline => "Deadline",
            Operation::Reown => "Reown",
            Operation::Unknown => "Unknown",
        }
    }

    /// The operation of a word in status.
    pub fn parse(word: &str) -> Operation {
        let mut all = Operation::ALL.into_iter();
        all.find(|o| o.as_str() == word)
            .unwrap_or(Operation::Unknown)
    }
}

/// Permission for one disruption that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim<D> {
    /// The Pod's resourceVersion that was judged. Never goes back: a late attempt on an old version keeps the newer one.
    pub at: u64,
    /// Which of the ledger's admissions wrote this claim last: every admission is a write and a new deadline, and
    /// whoever releases or withdraws names the very one it means.
    pub attempt: u64,
    /// The attempt that gave this claim. A claim that was released and given again has another number.
    pub opened: u64,
    /// The claim admits nothing more and waits for its end. It stays so until the claim is gone.
    pub closing: bool,
    /// What people and the evidence need to know besides.
    pub detail: D,
}

/// The claims of one rule object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ledger<K: Ord, D> {
    /// By Pod and operation.
    pub claims: BTreeMap<(K, Operation), Claim<D>>,
    /// Whoever decides or releases has seen every Pod event up to this resourceVersion. 0: nobody has decided yet, see
    /// [`Ledger::start_at`].
    pub watermark: u64,
    /// Admissions so far. Kept when claims go: a number that is used again would let a late release or withdrawal of an
    /// earlier claim take away a later one.
    pub attempts: u64,
}

impl<K: Ord, D> Default for Ledger<K, D> {
    fn default() -> Self {
        Ledger {
            claims: BTreeMap::new(),
            watermark: 0,
            attempts: 0,
        }
    }
}

/// What a claim was given for, beyond its operation.
pub trait Purpose {
    /// Whether a claim with this purpose may take the place of one with the `earlier` purpose, on the same Pod and for
    /// this same operation. Not so for a second in-place change while the first is under way: the restart for the first
    /// would pass for that of the second, which is still to come.
    fn may_replace(&self, earlier: &Self, operation: Operation) -> bool;
}

impl Purpose for () {
    fn may_replace(&self, (): &(), _: Operation) -> bool {
        true
    }
}

/// What a cache knows of the Pods of one rule, at one position.
pub trait BudgetView<K> {
    /// The largest resourceVersion that the Pod watch has delivered.
    fn position(&self) -> u64;
    /// How many Pods there should be.
    fn expected(&self) -> u32;
    /// What a percentage is of; at most [`View::expected`].
    fn percentage_base(&self) -> u32 {
        self.expected()
    }
    /// How many selected Pods are available, whatever the claims.
    fn available(&self) -> u32;
    /// Whether this Pod is among [`View::available`].
    fn is_available(&self, pod: &K) -> bool;
}

/// A disruption that asks for a claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest<K, D> {
    /// The Pod.
    pub pod: K,
    /// What is to be done to it.
    pub operation: Operation,
    /// The resourceVersion of the Pod in the request (for an eviction: of the live read).
    pub at: u64,
    /// Kept in the claim.
    pub detail: D,
}

/// Why a claim was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// The view is older than the last release; it must reach this position first.
    Behind {
        /// The watermark of the ledger.
        watermark: u64,
    },
    /// The Pod holds a claim for another purpose, whose effect must be seen first.
    UnderWay,
    /// The Pod's claim for this operation is closing: its earlier attempts had no effect, and it ends before a new one is
    /// given.
    Closing,
    /// The budget is used up.
    Full {
        /// How many Pods would be left available, this one not counted.
        left: u32,
        /// How many must be left.
        desired: u32,
        /// How many Pods there should be.
        expected: u32,
    },
}

/// A claim as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimGrant {
    /// The attempt that the claim now carries.
    pub attempt: u64,
    /// Whether the claim is new, and so may be taken back by whoever got it.
    pub fresh: bool,
}

impl<K: Ord + Clone, D: Purpose> Ledger<K, D> {
    /// Whether the Pod holds a claim.
    pub fn has_claim(&self, pod: &K) -> bool {
        Operation::ALL
            .into_iter()
            .any(|o| self.claims.contains_key(&(pod.clone(), o)))
    }

    /// Pods with a claim, each once.
    pub fn claimed_pods(&self) -> impl Iterator<Item = &K> {
        let mut last = None;
        self.claims
            .keys()
            .map(|(pod, _)| pod)
            .filter(move |pod| last.replace(*pod) != Some(*pod))
    }

    /// How many available Pods of the view hold no claim.
    pub fn count_unclaimed(&self, view: &(impl BudgetView<K> + ?Sized)) -> u32 {
        let claimed = self
            .claimed_pods()
            .filter(|pod| view.is_available(pod))
            .count();
        view.available()
            .saturating_sub(u32::try_from(claimed).unwrap_or(u32::MAX))
    }

    /// Begins a ledger on which nobody has decided yet, at the position that the Pods have now; does nothing to another.
    ///
    /// A rule may be new while a cache still shows Pods that were deleted before it, perhaps under an earlier rule of its
    /// name, whose claims went with it.
    pub fn start_watermark_at(&mut self, position: u64) {
        if self.watermark == 0 {
            self.watermark = position;
        }
    }

    /// The newest version of a Pod that the ledger names, apart from claims of operations that this build does not know:
    /// those are kept as they are.
    pub fn newest_version(&self) -> u64 {
        let known = self
            .claims
            .iter()
            .filter(|((_, o), _)| *o != Operation::Unknown);
        let claims = known.map(|(_, claim)| claim.at);
        claims.chain([self.watermark]).max().unwrap_or(0)
    }

    /// Takes versions that lie above `present` for `present`. `present` is the position of the Pods in etcd, read after this
    /// ledger was: what lies above it was never a version of a Pod, and nobody could ever catch up with it. Nothing is lost
    /// by it: whoever has seen all up to `present` has seen all that any release and any claim can rest on.
    pub fn lower_versions_to(&mut self, present: u64) {
        self.watermark = self.watermark.min(present);
        for ((_, operation), claim) in &mut self.claims {
            if *operation != Operation::Unknown {
                claim.at = claim.at.min(present);
            }
        }
    }

    /// Gives a claim if afterwards at least `desired` Pods are left available, or says why not. The caller must write
    /// the ledger by compare-and-swap before the disruption is admitted; a claim that was there already proves
    /// nothing and is written again.
    pub fn admit_claim(
        &mut self,
        view: &(impl BudgetView<K> + ?Sized),
        desired: u32,
        request: ClaimRequest<K, D>,
    ) -> Result<ClaimGrant, ClaimRefusal> {
        if view.position() < self.watermark {
            return Err(ClaimRefusal::Behind {
                watermark: self.watermark,
            });
        }
        let key = (request.pod.clone(), request.operation);
        let earlier = self.claims.get(&key);
        if earlier.is_some_and(|old| old.closing) {
            return Err(ClaimRefusal::Closing);
        }
        if earlier.is_some_and(|old| !request.detail.may_replace(&old.detail, request.operation)) {
            return Err(ClaimRefusal::UnderWay);
        }
        self.check_budget(view, desired, &request.pod)?;
        self.attempts += 1;
        let attempt = self.attempts;
        let (at, opened) = earlier.map_or((request.at, attempt), |old| {
            (old.at.max(request.at), old.opened)
        });
        self.claims.insert(
            key,
            Claim {
                at,
                attempt,
                opened,
                closing: false,
                detail: request.detail,
            },
        );
        Ok(ClaimGrant {
            attempt,
            fresh: opened == attempt,
        })
    }

    /// Marks the claim that the attempt `opened` gave: from here on it admits nothing, so it ends once the requests that
    /// it has admitted have ended. Without this, a request that is sent again and again would keep its place for ever.
    /// False, and nothing changed, if that claim is gone or closing already.
    pub fn close_claim(&mut self, pod: &K, operation: Operation, opened: u64) -> bool {
        let claim = self.claims.get_mut(&(pod.clone(), operation));
        let open = claim.filter(|claim| claim.opened == opened && !claim.closing);
        open.map(|claim| claim.closing = true).is_some()
    }

    /// Says of a Pod that is *not* available whether it may go although a rule holds such Pods: `desired` others are
    /// available. It takes nothing from the budget, so there is nothing to claim.
    pub fn admit_unavailable(
        &self,
        view: &(impl BudgetView<K> + ?Sized),
        desired: u32,
        pod: &K,
    ) -> Result<(), ClaimRefusal> {
        if view.position() < self.watermark {
            return Err(ClaimRefusal::Behind {
                watermark: self.watermark,
            });
        }
        self.check_budget(view, desired, pod)
    }

    /// Whether at least `desired` Pods are available without a claim, `pod` not counted.
    fn check_budget(
        &self,
        view: &(impl BudgetView<K> + ?Sized),
        desired: u32,
        pod: &K,
    ) -> Result<(), ClaimRefusal> {
        let counted = view.is_available(pod) && !self.has_claim(pod);
        let left = self.count_unclaimed(view) - u32::from(counted);
        if left >= desired {
            return Ok(());
        }
        Err(ClaimRefusal::Full {
            left,
            desired,
            expected: view.expected(),
        })
    }

    /// Takes a claim away on evidence that is based on a Pod event at `based_on` (0: on none). False, and nothing
    /// changed, if the view that gave the evidence has not caught up with the last release, or the claim was written
    /// again since (`attempt` differs).
    pub fn release_claim(
        &mut self,
        position: u64,
        pod: &K,
        operation: Operation,
        attempt: u64,
        based_on: u64,
    ) -> bool {
        let key = (pod.clone(), operation);
        if position < self.watermark || self.claims.get(&key).is_none_or(|c| c.attempt != attempt) {
            return false;
        }
        self.claims.remove(&key);
        self.watermark = self.watermark.max(based_on);
        true
    }

    /// Takes back a claim whose disruption was refused after all, before anything happened. Only the attempt that made
    /// it may do so: a claim that somebody refreshed since is theirs too.
    pub fn withdraw_claim(&mut self, pod: &K, operation: Operation, grant: ClaimGrant) -> bool {
        let key = (pod.clone(), operation);
        let mine = grant.fresh
            && self
                .claims
                .get(&key)
                .is_some_and(|c| c.attempt == grant.attempt);
        if mine {
            self.claims.remove(&key);
        }
        mine
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Pods(Vec<&'static str>, u32);

    impl BudgetView<&'static str> for Pods {
        fn position(&self) -> u64 {
            10
        }
        fn expected(&self) -> u32 {
            self.1
        }
        fn available(&self) -> u32 {
            self.0.len() as u32
        }
        fn is_available(&self, pod: &&'static str) -> bool {
            self.0.contains(pod)
        }
    }

    fn delete(pod: &'static str, at: u64) -> ClaimRequest<&'static str, ()> {
        ClaimRequest {
            pod,
            operation: Operation::Delete,
            at,
            detail: (),
        }
    }

    #[test]
    fn admits_exactly_down_to_desired() {
        let view = Pods(vec!["a", "b", "c"], 3);
        let mut ledger = Ledger::default();
        assert!(ledger.admit_claim(&view, 1, delete("a", 1)).unwrap().fresh);
        assert!(ledger.admit_claim(&view, 1, delete("b", 1)).is_ok());
        assert_eq!(
            ledger.admit_claim(&view, 1, delete("c", 1)),
            Err(ClaimRefusal::Full {
                left: 0,
                desired: 1,
                expected: 3
            })
        );
    }

    #[test]
    fn unavailable_pod_is_admitted_without_claim_while_others_serve() {
        let view = Pods(vec!["a", "b"], 3);
        let mut ledger = Ledger::default();
        assert_eq!(ledger.admit_unavailable(&view, 2, &"down"), Ok(()));
        let full = |left, desired| {
            Err(ClaimRefusal::Full {
                left,
                desired,
                expected: 3,
            })
        };
        assert_eq!(ledger.admit_unavailable(&view, 3, &"down"), full(2, 3));
        // A cache that still counts the Pod does not count it for itself.
        assert_eq!(ledger.admit_unavailable(&view, 2, &"a"), full(1, 2));
        // What is on its way counts as gone.
        ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert_eq!(ledger.admit_unavailable(&view, 2, &"down"), full(1, 2));
        assert_eq!(ledger.admit_unavailable(&view, 1, &"down"), Ok(()));
        assert_eq!(ledger.claims.len(), 1);
        ledger.watermark = 11;
        assert_eq!(
            ledger.admit_unavailable(&view, 0, &"down"),
            Err(ClaimRefusal::Behind { watermark: 11 })
        );
    }

    #[test]
    fn a_pod_with_two_operations_is_counted_once() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        let evict = ClaimRequest {
            operation: Operation::Evict,
            ..delete("a", 1)
        };
        assert!(ledger.admit_claim(&view, 1, evict).is_ok());
        assert_eq!(ledger.count_unclaimed(&view), 1);
    }

    #[test]
    fn a_second_attempt_refreshes_and_never_goes_back() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        ledger.admit_claim(&view, 1, delete("a", 7)).unwrap();
        let again = ledger.admit_claim(&view, 1, delete("a", 3)).unwrap();
        assert_eq!(
            again,
            ClaimGrant {
                attempt: 2,
                fresh: false
            }
        );
        assert_eq!(ledger.claims[&("a", Operation::Delete)].at, 7);
    }

    #[test]
    fn a_view_behind_the_watermark_neither_admits_nor_releases() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        ledger.admit_claim(&view, 1, delete("a", 7)).unwrap();
        ledger.watermark = 11;
        assert_eq!(
            ledger.admit_claim(&view, 1, delete("a", 7)),
            Err(ClaimRefusal::Behind { watermark: 11 })
        );
        assert!(!ledger.release_claim(10, &"a", Operation::Delete, 1, 8));
        assert!(ledger.release_claim(11, &"a", Operation::Delete, 1, 12));
        assert_eq!(ledger.watermark, 12);
    }

    #[test]
    fn future_versions_are_lowered_to_present_position() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        ledger.admit_claim(&view, 0, delete("a", u64::MAX)).unwrap();
        ledger.admit_claim(&view, 0, delete("b", 3)).unwrap();
        ledger.watermark = 4;
        assert_eq!(ledger.newest_version(), u64::MAX);
        ledger.lower_versions_to(9);
        let at = |pod| ledger.claims[&(pod, Operation::Delete)].at;
        assert_eq!((at("a"), at("b"), ledger.watermark), (9, 3, 4));
        ledger.watermark = u64::MAX;
        let mut foreign = ledger.claims[&("a", Operation::Delete)].clone();
        foreign.at = u64::MAX;
        ledger
            .claims
            .insert(("a", Operation::Unknown), foreign.clone());
        ledger.lower_versions_to(9);
        assert_eq!((ledger.newest_version(), ledger.claims.len()), (9, 3));
        assert_eq!(ledger.claims[&("a", Operation::Unknown)], foreign);
    }

    #[test]
    fn the_number_of_an_attempt_is_never_used_again() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(ledger.release_claim(10, &"a", Operation::Delete, first.attempt, 2));
        let second = ledger.admit_claim(&view, 1, delete("a", 3)).unwrap();
        assert!(!ledger.withdraw_claim(&"a", Operation::Delete, first));
        assert!(!ledger.release_claim(10, &"a", Operation::Delete, first.attempt, 2));
        assert!(ledger.withdraw_claim(&"a", Operation::Delete, second));
    }

    #[test]
    fn closing_claim_admits_nothing_until_it_is_released() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        let second = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(!ledger.close_claim(&"a", Operation::Delete, second.attempt));
        assert!(ledger.close_claim(&"a", Operation::Delete, first.attempt));
        assert!(!ledger.close_claim(&"a", Operation::Delete, first.attempt));
        let before = ledger.clone();
        assert_eq!(
            ledger.admit_claim(&view, 0, delete("a", 1)),
            Err(ClaimRefusal::Closing)
        );
        assert_eq!(ledger, before);
        // Another operation on the Pod has a claim of its own.
        let evict = ClaimRequest {
            operation: Operation::Evict,
            ..delete("a", 1)
        };
        assert!(ledger.admit_claim(&view, 1, evict).is_ok());
        assert!(ledger.release_claim(10, &"a", Operation::Delete, second.attempt, 2));
        assert!(ledger.admit_claim(&view, 1, delete("a", 3)).unwrap().fresh);
    }

    #[test]
    fn late_close_does_not_touch_a_claim_given_anew() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(ledger.release_claim(10, &"a", Operation::Delete, first.attempt, 2));
        ledger.admit_claim(&view, 1, delete("a", 3)).unwrap();
        assert!(!ledger.close_claim(&"a", Operation::Delete, first.attempt));
    }

    #[test]
    fn another_purpose_waits_until_the_first_is_served() {
        #[derive(Clone)]
        struct Image(u8);
        impl Purpose for Image {
            fn may_replace(&self, earlier: &Image, _: Operation) -> bool {
                self.0 == earlier.0
            }
        }
        let view = Pods(vec!["a", "b"], 2);
        let change = |image| ClaimRequest {
            pod: "a",
            operation: Operation::InPlace,
            at: 1,
            detail: Image(image),
        };
        let mut ledger = Ledger::default();
        assert!(ledger.admit_claim(&view, 1, change(1)).is_ok());
        assert_eq!(
            ledger.admit_claim(&view, 1, change(2)),
            Err(ClaimRefusal::UnderWay)
        );
        assert!(ledger.admit_claim(&view, 1, change(1)).is_ok());
    }

    #[test]
    fn only_the_attempt_that_made_a_claim_withdraws_it() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        let second = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(!ledger.withdraw_claim(&"a", Operation::Delete, first));
        assert!(!ledger.withdraw_claim(&"a", Operation::Delete, second));
        assert!(ledger.has_claim(&"a"));
    }
}
