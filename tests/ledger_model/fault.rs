//! The rules of the protocol; each control removes one rule.

/// A rule taken out of the protocol, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Claims are written whatever the ledger is meanwhile.
    NoCompareAndSwap,
    /// A claim seen in a cache is taken for one's own, and not refreshed.
    TrustCachedClaim,
    /// A decision may be based on a cache older than the last release.
    NoWatermark,
    /// A claim is released on a Pod as it was when the claim was given.
    OldEvidence,
    /// A late attempt on an old version takes the claim's version back.
    VersionGoesBack,
    /// A flap to NotReady passes for the effect of an eviction.
    EvictionReleasedOnFlap,
    /// A moved resourceVersion passes for the effect of an eviction.
    EvictionReleasedOnMove,
    /// The eviction of an unavailable Pod is allowed without a condition on its version.
    UnconditionalFreeEviction,
    /// An in-place change counts as done as soon as the Pod is newer.
    InPlaceReleasedOnMove,
    /// An in-place change of an unavailable Pod is free, as a deletion is.
    FreeInPlace,
    /// A second in-place change may replace the first before the kubelet has made it.
    StackedInPlace,
    /// A container that crashes and comes back passes for one that the kubelet has restarted for the change.
    CrashPassesForRestart,
    /// A claim is withdrawn although another request has refreshed it since.
    WithdrawAnyAttempt,
    /// The number of an attempt is used again once its claim is gone.
    AttemptReused,
    /// A claim lapses while the request may still have its effect.
    LapseBeforeTheEnd,
    /// A Pod that the cache lost is believed to be deleted, though it may only have left the management.
    LeftTakenForDeleted,
    /// An in-place change of a Pod without the availability label is free, though no lifecycle holds it offline.
    FreeInPlaceOffLabel,
    /// An eviction deletes whatever has the name, without a precondition on the UID.
    NoUidPrecondition,
    /// A rule of another UID under the name of the one that was asked is taken for a rule that is gone.
    AnotherUidTakenForGone,
    /// A new rule decides on whatever the cache shows, though it may be older than the rule.
    NoStart,
    /// The direct owners' replicas are what is expected, though a rollout moves them.
    SumOfDirectOwners,
    /// A claim never closes.
    NeverClosing,
    /// A closing claim is written again.
    ClosingRenewed,
    /// A claim lapses when the request that it was given for has ended, though others have renewed it.
    LapseAfterFirstAttempt,
    /// A change that the kubelet defers is taken for one that never happens.
    DeferredTakenForInfeasible,
    /// A change back that takes the place of a deferred change counts as withdrawn when it is not written.
    ChangeBackForgetsFirst,
}

impl Fault {
    /// The property that breaks.
    pub fn breaks(self) -> &'static str {
        match self {
            Fault::NeverClosing => super::model::ENDS,
            Fault::ClosingRenewed => super::model::CLOSES,
            _ => super::model::SAFE,
        }
    }
}
