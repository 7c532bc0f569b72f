//! Decides when a claim may be released: only on evidence that is newer than the claim.

use std::time::Duration;

use super::protocol::ClaimOperation;
use crate::domain::inplace::RestartProgress;

/// A claim without effect lapses this long after the API server's request timeout. The margin covers the time of the
/// reply, and clocks that run at different speeds.
pub const LAPSE_MARGIN: Duration = Duration::from_secs(15);

/// The state of a claimed Pod, as seen by a cache that has caught up with the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimedPodState {
    /// The Pod with this UID is gone. A watch of managed Pods cannot tell a deleted Pod from one that is no longer
    /// managed and may be managed again. This event is enough for operations that [`is_conditional`] accepts; for other
    /// operations, ask the API server.
    Gone {
        /// resourceVersion of the event by which the Pod was gone.
        version: u64,
    },
    /// The Pod exists.
    Seen {
        /// resourceVersion of the Pod.
        version: u64,
        /// Whether the Pod never serves again, because its deletion has begun or it has finished.
        terminating: bool,
        /// Whether the Pod is available.
        available: bool,
        /// Whether the Pod has what the claim admitted: the spec of an in-place change, the deadline, or the
        /// controller. False for other operations.
        applied: bool,
        /// For an in-place change: how far the kubelet is with it.
        restart: RestartProgress,
    },
}

/// Whether the operation takes effect only if the Pod still has the resourceVersion that was judged. Then the effect
/// cannot come after the Pod has changed. An eviction deletes the Pod whatever its version. The restart for an in-place
/// change, the end by a deadline and the deletion by the Kubernetes garbage collector come after the write that was
/// judged.
pub const fn is_conditional(operation: ClaimOperation) -> bool {
    match operation {
        ClaimOperation::Delete | ClaimOperation::Begin | ClaimOperation::Leave => true,
        ClaimOperation::Evict
        | ClaimOperation::InPlace
        | ClaimOperation::Deadline
        | ClaimOperation::Reown
        | ClaimOperation::Unknown => false,
    }
}

/// Whether a claim for `operation`, judged at resourceVersion `at`, can be released. If it can, returns the
/// resourceVersion of the Pod event that the release is based on. The release raises the watermark to this version.
///
/// - A Pod that is gone, or newer and terminating, never comes back. From then on, the budget counts the state of the
///   Pod itself.
/// - Delete, Begin and Leave are conditional on `at` in the storage transaction. A newer Pod shows the effect, or shows
///   that the transaction must fail and call admission again.
/// - An eviction deletes unconditionally after its admission, so only the deletion is evidence. A newer resourceVersion
///   proves nothing (the eviction handler itself writes DisruptionTarget), and neither does a short time of being
///   NotReady.
/// - An in-place change takes effect when the kubelet handles it. The claim is released if the Pod is available, and is
///   proven to run the new containers or to have nothing to restart. It is also released if a newer Pod does not have
///   the change.
/// - A deadline or another controller ends the Pod some time after the write. Only a newer Pod without the deadline or
///   the controller is evidence.
/// - For an operation that this version does not know, only the end of the Pod is evidence.
pub fn release_evidence(
    operation: ClaimOperation,
    at: u64,
    sighting: ClaimedPodState,
) -> Option<u64> {
    match sighting {
        ClaimedPodState::Gone { version } => Some(version),
        ClaimedPodState::Seen { version, .. } if version <= at => None,
        ClaimedPodState::Seen {
            version,
            terminating,
            available,
            applied,
            restart,
        } => {
            let released = terminating
                || match operation {
                    ClaimOperation::Delete | ClaimOperation::Begin | ClaimOperation::Leave => true,
                    ClaimOperation::Evict | ClaimOperation::Unknown => false,
                    ClaimOperation::Deadline | ClaimOperation::Reown => !applied,
                    ClaimOperation::InPlace => {
                        !applied || (restart >= RestartProgress::Nothing && available)
                    }
                };
            released.then_some(version)
        }
    }
}

/// Whether a live read shows that a claim never had its effect. The read must be made after the API server has given up
/// the request. If the claim had its effect, or if the Pod is gone, this function returns false: then
/// [`release_evidence`] releases the claim.
///
/// At this time, a restart that cannot be proven counts as done, because the kubelet stops the containers as soon as it
/// has seen the change. A Pod that has what the claim admitted may never have been written: its request was refused
/// after the admission, and the change back led to the same spec.
pub fn is_claim_lapsed(operation: ClaimOperation, live: ClaimedPodState) -> bool {
    match live {
        ClaimedPodState::Gone { .. } => false,
        ClaimedPodState::Seen {
            terminating: true, ..
        } => false,
        ClaimedPodState::Seen {
            applied,
            available,
            restart,
            ..
        } => match operation {
            ClaimOperation::Evict | ClaimOperation::Delete => true,
            ClaimOperation::Begin | ClaimOperation::Leave => available,
            // A deadline can only be lowered, and the garbage collector may be slow: a stored change will still take
            // effect.
            ClaimOperation::Deadline | ClaimOperation::Reown => !applied,
            ClaimOperation::Unknown => false,
            ClaimOperation::InPlace => {
                !applied
                    || restart == RestartProgress::Unproven
                    || (restart > RestartProgress::Unproven && available)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWER: ClaimedPodState = ClaimedPodState::Seen {
        version: 6,
        terminating: false,
        available: true,
        applied: false,
        restart: RestartProgress::Awaited,
    };

    #[test]
    fn version_that_was_judged_is_no_evidence() {
        let same = ClaimedPodState::Seen {
            version: 5,
            terminating: false,
            available: false,
            applied: true,
            restart: RestartProgress::Proven,
        };
        for operation in ClaimOperation::ALL {
            assert_eq!(release_evidence(operation, 5, same), None, "{operation:?}");
        }
    }

    #[test]
    fn effects_outside_the_judged_write_are_unconditional() {
        let unconditional: Vec<_> = ClaimOperation::ALL
            .into_iter()
            .filter(|o| !is_conditional(*o))
            .collect();
        assert_eq!(
            unconditional,
            [
                ClaimOperation::Evict,
                ClaimOperation::InPlace,
                ClaimOperation::Deadline,
                ClaimOperation::Reown,
                ClaimOperation::Unknown
            ]
        );
    }

    #[test]
    fn eviction_waits_for_deletion() {
        assert_eq!(release_evidence(ClaimOperation::Delete, 5, NEWER), Some(6));
        assert_eq!(release_evidence(ClaimOperation::Evict, 5, NEWER), None);
        let flap = ClaimedPodState::Seen {
            version: 6,
            terminating: false,
            available: false,
            applied: false,
            restart: RestartProgress::Awaited,
        };
        assert_eq!(release_evidence(ClaimOperation::Evict, 5, flap), None);
        let going = ClaimedPodState::Seen {
            version: 6,
            terminating: true,
            available: false,
            applied: false,
            restart: RestartProgress::Awaited,
        };
        assert_eq!(release_evidence(ClaimOperation::Evict, 5, going), Some(6));
        assert_eq!(
            release_evidence(
                ClaimOperation::Evict,
                5,
                ClaimedPodState::Gone { version: 9 }
            ),
            Some(9)
        );
    }

    #[test]
    fn in_place_change_waits_for_kubelet() {
        let seen = |applied, restart, available| ClaimedPodState::Seen {
            version: 6,
            terminating: false,
            available,
            applied,
            restart,
        };
        for (applied, restart, available, based_on) in [
            (true, RestartProgress::Awaited, true, None),
            (true, RestartProgress::Unproven, true, None),
            (true, RestartProgress::Nothing, false, None),
            (true, RestartProgress::Nothing, true, Some(6)),
            (true, RestartProgress::Proven, false, None),
            (true, RestartProgress::Proven, true, Some(6)),
            (false, RestartProgress::Awaited, true, Some(6)),
        ] {
            let sighting = seen(applied, restart, available);
            assert_eq!(
                release_evidence(ClaimOperation::InPlace, 5, sighting),
                based_on,
                "{sighting:?}"
            );
        }
    }

    #[test]
    fn deadline_and_new_controller_hold_while_the_pod_carries_them() {
        let seen = |applied, terminating| ClaimedPodState::Seen {
            version: 6,
            terminating,
            available: !terminating,
            applied,
            restart: RestartProgress::Awaited,
        };
        for operation in [ClaimOperation::Deadline, ClaimOperation::Reown] {
            assert_eq!(release_evidence(operation, 5, seen(true, false)), None);
            assert_eq!(release_evidence(operation, 5, seen(false, false)), Some(6));
            assert_eq!(release_evidence(operation, 5, seen(true, true)), Some(6));
            assert!(!is_claim_lapsed(operation, seen(true, false)));
            assert!(is_claim_lapsed(operation, seen(false, false)));
        }
    }

    #[test]
    fn claim_of_unknown_operation_ends_with_its_pod_only() {
        assert_eq!(release_evidence(ClaimOperation::Unknown, 5, NEWER), None);
        assert!(!is_claim_lapsed(ClaimOperation::Unknown, NEWER));
        let gone = ClaimedPodState::Gone { version: 9 };
        assert_eq!(release_evidence(ClaimOperation::Unknown, 5, gone), Some(9));
    }

    #[test]
    fn claim_with_effect_does_not_lapse() {
        assert!(is_claim_lapsed(ClaimOperation::Evict, NEWER));
        assert!(!is_claim_lapsed(
            ClaimOperation::Evict,
            ClaimedPodState::Gone { version: 9 }
        ));
        let applied = |restart, available| ClaimedPodState::Seen {
            version: 6,
            terminating: false,
            available,
            applied: true,
            restart,
        };
        assert!(!is_claim_lapsed(
            ClaimOperation::InPlace,
            applied(RestartProgress::Awaited, true)
        ));
        // A Pod that is not available counts as such without a claim, and may be resized during an operation.
        assert!(is_claim_lapsed(
            ClaimOperation::InPlace,
            applied(RestartProgress::Unproven, false)
        ));
        for over in [
            RestartProgress::Unproven,
            RestartProgress::Nothing,
            RestartProgress::Proven,
        ] {
            assert!(is_claim_lapsed(
                ClaimOperation::InPlace,
                applied(over, true)
            ));
        }
        assert!(is_claim_lapsed(ClaimOperation::InPlace, NEWER));
    }
}
