//! The ledger of one rule object and its transitions: admit, close and release.
//!
//! The ledger is generic over the Pod key `K` (a UID) and the detail `D` of a claim, so that the model checker can run
//! these same functions with small types.
//!
//! # Example
//!
//! A replica takes a claim on a copy of the ledger. Before it admits the disruption, it writes the copy by
//! compare-and-swap.
//!
//! ```
//! use operating::ledger::protocol::{BudgetView, ClaimOperation, ClaimRefusal, ClaimRequest, Ledger};
//!
//! /// Three available Pods, as a cache at resourceVersion 100 shows them.
//! struct ThreePods;
//! impl BudgetView<&str> for ThreePods {
//!     fn position(&self) -> u64 { 100 }
//!     fn expected(&self) -> u32 { 3 }
//!     fn available(&self) -> u32 { 3 }
//!     fn is_available(&self, _pod: &&str) -> bool { true }
//! }
//! let delete = |pod| ClaimRequest { pod, operation: ClaimOperation::Delete, at: 90, detail: () };
//!
//! let stored = Ledger::default();
//! let mut copy = stored.clone();
//! // Two Pods must stay available, so one Pod may go.
//! let grant = copy.admit_claim(&ThreePods, 2, delete("web-0")).expect("the budget has room");
//! assert!(grant.fresh);
//! assert!(copy.has_claim(&"web-0") && !stored.has_claim(&"web-0"));
//!
//! // The claim of web-0 counts, although the cache still shows this Pod as available.
//! let refusal = copy.admit_claim(&ThreePods, 2, delete("web-1"));
//! assert_eq!(refusal, Err(ClaimRefusal::Full { left: 1, desired: 2, expected: 3 }));
//! ```

use std::collections::BTreeMap;

/// The operation that a claim was taken for. A Pod can hold one claim per operation, and each claim is released on its
/// own evidence. The budget counts the Pod once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimOperation {
    /// A DELETE of the Pod, alone or as part of a deletecollection.
    Delete,
    /// A request to `pods/eviction`. The deletion behind the eviction passes no admission.
    Evict,
    /// An UPDATE that takes the Pod off traffic: an operation begins, or a user removes the label `service-available`.
    Begin,
    /// A change of the running Pod that restarts a container.
    InPlace,
    /// A change of labels by which the Pod is no longer selected by the rule, or no longer managed.
    Leave,
    /// An UPDATE that sets or lowers `spec.activeDeadlineSeconds`. The kubelet ends the Pod when this time is over.
    Deadline,
    /// An UPDATE that gives the Pod another controller. The Kubernetes garbage collector deletes the Pod if this
    /// controller does not exist.
    Reown,
    /// An operation of a newer version of this program, read from the status. The budget counts the claim. The leader
    /// releases it only when the Pod is gone or terminating.
    Unknown,
}

impl ClaimOperation {
    /// All operations, in the order of the variants.
    pub const ALL: [ClaimOperation; 8] = [
        ClaimOperation::Delete,
        ClaimOperation::Evict,
        ClaimOperation::Begin,
        ClaimOperation::InPlace,
        ClaimOperation::Leave,
        ClaimOperation::Deadline,
        ClaimOperation::Reown,
        ClaimOperation::Unknown,
    ];

    /// The word for this operation in the status and in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            ClaimOperation::Delete => "Delete",
            ClaimOperation::Evict => "Evict",
            ClaimOperation::Begin => "Begin",
            ClaimOperation::InPlace => "InPlace",
            ClaimOperation::Leave => "Leave",
            ClaimOperation::Deadline => "Deadline",
            ClaimOperation::Reown => "Reown",
            ClaimOperation::Unknown => "Unknown",
        }
    }

    /// The operation for a word in the status. [`ClaimOperation::Unknown`] if this version does not know the word.
    pub fn parse(text: &str) -> ClaimOperation {
        let mut all = ClaimOperation::ALL.into_iter();
        all.find(|o| o.as_str() == text)
            .unwrap_or(ClaimOperation::Unknown)
    }
}

/// The permission for one disruption that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim<D> {
    /// The resourceVersion of the Pod that was judged. It never decreases: an attempt that was judged on an older
    /// version keeps the newer one.
    pub at: u64,
    /// The number of the admission that wrote this claim last. Every admission writes the claim and starts a new
    /// deadline. A release or a withdrawal names the attempt that it is for.
    pub attempt: u64,
    /// The number of the admission that created this claim. A claim that was released and created again has another
    /// number.
    pub opened: u64,
    /// The claim admits nothing more and waits for its end. This flag stays set until the claim is gone.
    pub closing: bool,
    /// Further data for people and for the evidence.
    pub detail: D,
}

/// The claims of one rule object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ledger<K: Ord, D> {
    /// The claims by Pod and operation.
    pub claims: BTreeMap<(K, ClaimOperation), Claim<D>>,
    /// A replica must have seen every Pod event up to this resourceVersion before it decides or releases. 0: nobody has
    /// decided yet, see [`Ledger::start_watermark_at`].
    pub watermark: u64,
    /// The number of admissions so far. It stays when claims go: if a number were used again, a late release or
    /// withdrawal of an earlier claim could remove a later claim.
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

/// The purpose of a claim, beyond its operation.
pub trait Purpose {
    /// Whether a claim with this purpose may replace one with the purpose `earlier`, on the same Pod and for the same
    /// operation. A second in-place change may not replace the first while the first is under way: the restart for the
    /// first would count as the restart for the second.
    fn may_replace(&self, earlier: &Self, operation: ClaimOperation) -> bool;
}

impl Purpose for () {
    fn may_replace(&self, (): &(), _: ClaimOperation) -> bool {
        true
    }
}

/// What a cache knows about the Pods of one rule, at one position.
pub trait BudgetView<K> {
    /// The largest resourceVersion that the Pod watch has delivered.
    fn position(&self) -> u64;
    /// How many Pods there should be.
    fn expected(&self) -> u32;
    /// The number of Pods to which percentages apply; at most [`BudgetView::expected`].
    fn percentage_base(&self) -> u32 {
        self.expected()
    }
    /// How many selected Pods are available. Claims do not change this number.
    fn available(&self) -> u32;
    /// Whether [`BudgetView::available`] counts this Pod.
    fn is_available(&self, pod: &K) -> bool;
}

/// A disruption that asks for a claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest<K, D> {
    /// The UID of the Pod.
    pub pod: K,
    /// The kind of the disruption.
    pub operation: ClaimOperation,
    /// The resourceVersion of the Pod in the request. For an eviction: the resourceVersion of the live read.
    pub at: u64,
    /// The detail that the claim keeps.
    pub detail: D,
}

/// Why the ledger gives no claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// The view is older than the last release. The view must reach this position first.
    Behind {
        /// The watermark of the ledger.
        watermark: u64,
    },
    /// The Pod holds a claim for another purpose. The effect of that claim must be seen first.
    UnderWay,
    /// The Pod's claim for this operation is closing: its earlier attempts had no effect. The claim must end before the
    /// ledger gives a new one.
    Closing,
    /// The budget is used up.
    Full {
        /// How many Pods would be left available, without the Pod of the request.
        left: u32,
        /// How many Pods must be left available.
        desired: u32,
        /// How many Pods there should be.
        expected: u32,
    },
}

/// A claim that the ledger has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimGrant {
    /// The attempt number that the claim now has.
    pub attempt: u64,
    /// Whether this attempt created the claim, and therefore may withdraw it.
    pub fresh: bool,
}

impl<K: Ord + Clone, D: Purpose> Ledger<K, D> {
    /// Whether the Pod holds a claim for any operation.
    pub fn has_claim(&self, pod: &K) -> bool {
        ClaimOperation::ALL
            .into_iter()
            .any(|o| self.claims.contains_key(&(pod.clone(), o)))
    }

    /// The Pods with a claim, each once.
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

    /// Starts the watermark of a ledger by which nobody has decided yet, at the present position of the Pods. Does
    /// nothing if the ledger has a watermark.
    ///
    /// A cache may still show Pods that were deleted before the rule was created. An earlier rule of the same name may
    /// have admitted these deletions, and its claims are gone with it.
    pub fn start_watermark_at(&mut self, position: u64) {
        if self.watermark == 0 {
            self.watermark = position;
        }
    }

    /// The largest resourceVersion of a Pod in the ledger. Claims of operations that this build does not know are left
    /// out, because they are kept as they are.
    pub fn newest_version(&self) -> u64 {
        let known = self
            .claims
            .iter()
            .filter(|((_, o), _)| *o != ClaimOperation::Unknown);
        let claims = known.map(|(_, claim)| claim.at);
        claims.chain([self.watermark]).max().unwrap_or(0)
    }

    /// Lowers each version above `present` to `present`. `present` is the position of the Pods in etcd, and must be
    /// read after this ledger was read. No Pod has had a version above `present`, so no cache could ever reach it. The
    /// guarantee stays intact: all releases and claims rest on events up to `present`.
    pub fn lower_versions_to(&mut self, present: u64) {
        self.watermark = self.watermark.min(present);
        for ((_, operation), claim) in &mut self.claims {
            if *operation != ClaimOperation::Unknown {
                claim.at = claim.at.min(present);
            }
        }
    }

    /// Adds a claim if at least `desired` Pods are left available afterwards.
    ///
    /// The caller must write the ledger by compare-and-swap before it admits the disruption. This also applies if the
    /// Pod holds the claim already: an existing claim may have been released since, so it must be written again.
    ///
    /// # Errors
    /// The reason why the ledger gives no claim. The ledger is unchanged.
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

    /// Closes the claim that the attempt `opened` created. A closing claim admits nothing, so it ends after the
    /// requests that it has admitted. Without this, a request that is sent again and again would keep its claim
    /// forever. Returns false, and changes nothing, if that claim is gone or already closing.
    pub fn close_claim(&mut self, pod: &K, operation: ClaimOperation, opened: u64) -> bool {
        let claim = self.claims.get_mut(&(pod.clone(), operation));
        let open = claim.filter(|claim| claim.opened == opened && !claim.closing);
        open.map(|claim| claim.closing = true).is_some()
    }

    /// Decides whether a Pod that is *not* available may go although a rule has `unhealthyPodPolicy: IfHealthyBudget`.
    /// The Pod may go if `desired` other Pods are available. It takes nothing from the budget, so it needs no claim.
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

    /// Checks that at least `desired` Pods are available and hold no claim. `pod` itself is not counted.
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

    /// Removes a claim. `based_on` is the resourceVersion of the Pod event that is the evidence (0: no event), and
    /// `position` is the position of the view that gave the evidence. Returns false, and changes nothing, if the view
    /// is behind the watermark, or if the claim has been written again since (`attempt` differs).
    pub fn release_claim(
        &mut self,
        position: u64,
        pod: &K,
        operation: ClaimOperation,
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

    /// Withdraws a claim whose disruption was refused before anything happened. Only the attempt that created the claim
    /// may withdraw it: if another request has renewed the claim since, the claim is also for that request. Returns
    /// whether the claim was removed.
    pub fn withdraw_claim(
        &mut self,
        pod: &K,
        operation: ClaimOperation,
        grant: ClaimGrant,
    ) -> bool {
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
            operation: ClaimOperation::Delete,
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
        // A Pod that the cache still counts as available is not counted in its own decision.
        assert_eq!(ledger.admit_unavailable(&view, 2, &"a"), full(1, 2));
        // A Pod with a claim counts as gone.
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
    fn pod_with_two_operations_is_counted_once() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        let evict = ClaimRequest {
            operation: ClaimOperation::Evict,
            ..delete("a", 1)
        };
        assert!(ledger.admit_claim(&view, 1, evict).is_ok());
        assert_eq!(ledger.count_unclaimed(&view), 1);
    }

    #[test]
    fn second_attempt_refreshes_and_never_goes_back() {
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
        assert_eq!(ledger.claims[&("a", ClaimOperation::Delete)].at, 7);
    }

    #[test]
    fn view_behind_watermark_neither_admits_nor_releases() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        ledger.admit_claim(&view, 1, delete("a", 7)).unwrap();
        ledger.watermark = 11;
        assert_eq!(
            ledger.admit_claim(&view, 1, delete("a", 7)),
            Err(ClaimRefusal::Behind { watermark: 11 })
        );
        assert!(!ledger.release_claim(10, &"a", ClaimOperation::Delete, 1, 8));
        assert!(ledger.release_claim(11, &"a", ClaimOperation::Delete, 1, 12));
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
        let at = |pod| ledger.claims[&(pod, ClaimOperation::Delete)].at;
        assert_eq!((at("a"), at("b"), ledger.watermark), (9, 3, 4));
        ledger.watermark = u64::MAX;
        let mut foreign = ledger.claims[&("a", ClaimOperation::Delete)].clone();
        foreign.at = u64::MAX;
        ledger
            .claims
            .insert(("a", ClaimOperation::Unknown), foreign.clone());
        ledger.lower_versions_to(9);
        assert_eq!((ledger.newest_version(), ledger.claims.len()), (9, 3));
        assert_eq!(ledger.claims[&("a", ClaimOperation::Unknown)], foreign);
    }

    #[test]
    fn number_of_attempt_is_never_used_again() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(ledger.release_claim(10, &"a", ClaimOperation::Delete, first.attempt, 2));
        let second = ledger.admit_claim(&view, 1, delete("a", 3)).unwrap();
        assert!(!ledger.withdraw_claim(&"a", ClaimOperation::Delete, first));
        assert!(!ledger.release_claim(10, &"a", ClaimOperation::Delete, first.attempt, 2));
        assert!(ledger.withdraw_claim(&"a", ClaimOperation::Delete, second));
    }

    #[test]
    fn closing_claim_admits_nothing_until_it_is_released() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        let second = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(!ledger.close_claim(&"a", ClaimOperation::Delete, second.attempt));
        assert!(ledger.close_claim(&"a", ClaimOperation::Delete, first.attempt));
        assert!(!ledger.close_claim(&"a", ClaimOperation::Delete, first.attempt));
        let before = ledger.clone();
        assert_eq!(
            ledger.admit_claim(&view, 0, delete("a", 1)),
            Err(ClaimRefusal::Closing)
        );
        assert_eq!(ledger, before);
        // Another operation on the Pod has its own claim.
        let evict = ClaimRequest {
            operation: ClaimOperation::Evict,
            ..delete("a", 1)
        };
        assert!(ledger.admit_claim(&view, 1, evict).is_ok());
        assert!(ledger.release_claim(10, &"a", ClaimOperation::Delete, second.attempt, 2));
        assert!(ledger.admit_claim(&view, 1, delete("a", 3)).unwrap().fresh);
    }

    #[test]
    fn late_close_does_not_touch_a_claim_given_anew() {
        let view = Pods(vec!["a", "b"], 2);
        let mut ledger = Ledger::default();
        let first = ledger.admit_claim(&view, 1, delete("a", 1)).unwrap();
        assert!(ledger.release_claim(10, &"a", ClaimOperation::Delete, first.attempt, 2));
        ledger.admit_claim(&view, 1, delete("a", 3)).unwrap();
        assert!(!ledger.close_claim(&"a", ClaimOperation::Delete, first.attempt));
    }

    #[test]
    fn another_purpose_waits_until_the_first_is_served() {
        #[derive(Clone)]
        struct Image(u8);
        impl Purpose for Image {
            fn may_replace(&self, earlier: &Image, _: ClaimOperation) -> bool {
                self.0 == earlier.0
            }
        }
        let view = Pods(vec!["a", "b"], 2);
        let change = |image| ClaimRequest {
            pod: "a",
            operation: ClaimOperation::InPlace,
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
        assert!(!ledger.withdraw_claim(&"a", ClaimOperation::Delete, first));
        assert!(!ledger.withdraw_claim(&"a", ClaimOperation::Delete, second));
        assert!(ledger.has_claim(&"a"));
    }
}
