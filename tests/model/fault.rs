//! The rules of the protocol, each of which a control takes out.

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
    /// A claim is taken back although somebody has refreshed it since.
    WithdrawAnyAttempt,
    /// The number of an attempt is used again once its claim is gone.
    AttemptReused,
    /// A claim lapses while the request may still have its effect.
    LapseBeforeTheEnd,
    /// A Pod that the cache lost is believed to be deleted, though it may only have left the management.
    LeftTakenForDeleted,
}
