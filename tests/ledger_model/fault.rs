//! The rules of the protocol; each control removes one rule.

/// A rule of the protocol that a control removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Claims are written without a check that the ledger is unchanged.
    NoCompareAndSwap,
    /// A replica takes a claim in its cache for its own claim, and does not refresh it.
    TrustCachedClaim,
    /// A decision may be based on a cache older than the last release.
    NoWatermark,
    /// A claim is released on evidence from the version for which it was given.
    OldEvidence,
    /// A late attempt with an old version lowers the version of the claim.
    VersionGoesBack,
    /// A short loss of Ready counts as the effect of an eviction.
    EvictionReleasedOnFlap,
    /// A changed resourceVersion counts as the effect of an eviction.
    EvictionReleasedOnMove,
    /// The eviction of an unavailable Pod is admitted without a precondition on its version.
    UnconditionalFreeEviction,
    /// An in-place change counts as done as soon as the Pod has a newer version.
    InPlaceReleasedOnMove,
    /// An in-place change of an unavailable Pod needs no claim, like a deletion.
    FreeInPlace,
    /// A second in-place change may replace the first before the kubelet has made the first.
    StackedInPlace,
    /// A crashed and restarted container counts as restarted for the change.
    CrashPassesForRestart,
    /// A claim is withdrawn although another request has refreshed it since.
    WithdrawAnyAttempt,
    /// The number of an attempt is used again once its claim is gone.
    AttemptReused,
    /// A claim lapses while the request may still have its effect.
    LapseBeforeTheEnd,
    /// A Pod that disappears from the cache counts as deleted, although it may only have lost the label of managed
    /// Pods.
    LeftTakenForDeleted,
    /// An in-place change of a Pod without the availability label needs no claim, even if no operation keeps it off
    /// traffic.
    FreeInPlaceOffLabel,
    /// An eviction deletes any Pod of the name, without a precondition on the UID.
    NoUidPrecondition,
    /// A rule of the same name with another UID counts as a sign that the rule is deleted.
    AnotherUidTakenForGone,
    /// A new rule decides by any state of the cache, even one from before the rule.
    NoStart,
    /// The replicas of the direct owners count as expected, although a rollout changes them.
    SumOfDirectOwners,
    /// A claim never closes.
    NeverClosing,
    /// A closing claim is written again.
    ClosingRenewed,
    /// A claim lapses when the request that it was given for has ended, although other requests have renewed it.
    LapseAfterFirstAttempt,
    /// A deferred change counts as a change that never happens.
    DeferredTakenForInfeasible,
    /// The reversal of a deferred change counts as withdrawn if it is not written.
    ChangeBackForgetsFirst,
}

impl Fault {
    /// The property that this fault breaks.
    pub fn breaks(self) -> &'static str {
        match self {
            Fault::NeverClosing => super::model::ENDS,
            Fault::ClosingRenewed => super::model::CLOSES,
            _ => super::model::SAFE,
        }
    }
}
