//! When a claim may be released: only on evidence newer than itself.

use std::time::Duration;

use super::protocol::Operation;
use crate::domain::inplace::RestartProgress;

/// A claim without effect lapses this long after the API server's request timeout: time for the reply, and for clocks that
/// tick unevenly.
pub const LAPSE_MARGIN: Duration = Duration::from_secs(15);

/// A Pod as a cache that has caught up with the ledger sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimedPodState {
    /// The Pod, by UID, is not there any more. A watch of managed Pods can't tell this from one that has left the
    /// management and may come back: that is enough for what [`is_conditional`], for the rest ask the API server.
    Gone {
        /// resourceVersion of the event that said so.
        version: u64,
    },
    /// The Pod is there.
    Seen {
        /// Its resourceVersion.
        version: u64,
        /// Deletion has begun, or the Pod has run to its end: it never serves again.
        terminating: bool,
        /// It serves.
        available: bool,
        /// Whether the Pod carries what the claim was given for: the spec of an in-place change, the deadline, or the
        /// controller. False for other operations.
        applied: bool,
        /// For an in-place change, how far the kubelet is with it.
        restart: RestartProgress,
    },
}

/// Whether the effect of an operation is conditional on the resourceVersion that was judged, so that it can't come once
/// the Pod has moved on. An eviction deletes whatever it finds; the restart for an in-place change, the end by a deadline
/// and the deletion by the garbage collector follow their write.
pub const fn is_conditional(operation: Operation) -> bool {
    match operation {
        Operation::Delete | Operation::Begin | Operation::Leave => true,
        Operation::Evict
        | Operation::InPlace
        | Operation::Deadline
        | Operation::Reown
        | Operation::Unknown => false,
    }
}

/// Whether a claim for `operation`, judged at resourceVersion `at`, can be released, and the resourceVersion of the Pod
/// event that the release is based on: the watermark to raise.
///
/// - A Pod that is gone, or newer and terminating, never comes back: its own state counts from here on.
/// - Delete, Begin and Leave are conditional on `at` in the storage transaction. A newer Pod shows the effect (its own
///   state counts now) or shows that the transaction must fail and ask again.
/// - An eviction deletes unconditionally behind its admission: nothing but deletion is evidence. A moved
///   resourceVersion proves nothing (the eviction handler itself writes DisruptionTarget), nor does a flap to NotReady.
/// - An in-place change takes effect when the kubelet gets to it: the Pod must be proven to run the new containers, or to
///   have nothing to restart, and be available; or be newer without the change.
/// - A deadline or another controller ends the Pod some time after its write: only a newer Pod without it is evidence.
/// - Of an operation that this version does not know, nothing but the end of the Pod is evidence.
pub fn release_evidence(operation: Operation, at: u64, sighting: ClaimedPodState) -> Option<u64> {
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
                    Operation::Delete | Operation::Begin | Operation::Leave => true,
                    Operation::Evict | Operation::Unknown => false,
                    Operation::Deadline | Operation::Reown => !applied,
                    Operation::InPlace => {
                        !applied || (restart >= RestartProgress::Nothing && available)
                    }
                };
            released.then_some(version)
        }
    }
}

/// Whether a live read, made after the API server has surely given up the request, shows that a claim never had its
/// effect. If it did have it, or the Pod is gone, the ordinary evidence follows and this says no.
///
/// A restart that can't be proven is believed by then: the kubelet ends the containers as soon as it has seen the change. A Pod that runs
/// what the claim is for may not have been written at all: its request was refused behind the admission, and the change back is
/// what it was.
pub fn is_claim_lapsed(operation: Operation, live: ClaimedPodState) -> bool {
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
            Operation::Evict | Operation::Delete => true,
            Operation::Begin | Operation::Leave => available,
            // A deadline can only be lowered, and the garbage collector takes its time: what is written has its effect.
            Operation::Deadline | Operation::Reown => !applied,
            Operation::Unknown => false,
            Operation::InPlace => {
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
    fn the_version_that_was_judged_is_no_evidence() {
        let same = ClaimedPodState::Seen {
            version: 5,
            terminating: false,
            available: false,
            applied: true,
            restart: RestartProgress::Proven,
        };
        for operation in Operation::ALL {
            assert_eq!(release_evidence(operation, 5, same), None, "{operation:?}");
        }
    }

    #[test]
    fn only_evictions_and_restarts_come_whatever_the_version() {
        let unconditional: Vec<_> = Operation::ALL
            .into_iter()
            .filter(|o| !is_conditional(*o))
            .collect();
        assert_eq!(
            unconditional,
            [
                Operation::Evict,
                Operation::InPlace,
                Operation::Deadline,
                Operation::Reown,
                Operation::Unknown
            ]
        );
    }

    #[test]
    fn an_eviction_waits_for_the_deletion() {
        assert_eq!(release_evidence(Operation::Delete, 5, NEWER), Some(6));
        assert_eq!(release_evidence(Operation::Evict, 5, NEWER), None);
        let flap = ClaimedPodState::Seen {
            version: 6,
            terminating: false,
            available: false,
            applied: false,
            restart: RestartProgress::Awaited,
        };
        assert_eq!(release_evidence(Operation::Evict, 5, flap), None);
        let going = ClaimedPodState::Seen {
            version: 6,
            terminating: true,
            available: false,
            applied: false,
            restart: RestartProgress::Awaited,
        };
        assert_eq!(release_evidence(Operation::Evict, 5, going), Some(6));
        assert_eq!(
            release_evidence(Operation::Evict, 5, ClaimedPodState::Gone { version: 9 }),
            Some(9)
        );
    }

    #[test]
    fn an_in_place_change_waits_for_the_kubelet() {
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
                release_evidence(Operation::InPlace, 5, sighting),
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
        for operation in [Operation::Deadline, Operation::Reown] {
            assert_eq!(release_evidence(operation, 5, seen(true, false)), None);
            assert_eq!(release_evidence(operation, 5, seen(false, false)), Some(6));
            assert_eq!(release_evidence(operation, 5, seen(true, true)), Some(6));
            assert!(!is_claim_lapsed(operation, seen(true, false)));
            assert!(is_claim_lapsed(operation, seen(false, false)));
        }
    }

    #[test]
    fn claim_of_unknown_operation_ends_with_its_pod_only() {
        assert_eq!(release_evidence(Operation::Unknown, 5, NEWER), None);
        assert!(!is_claim_lapsed(Operation::Unknown, NEWER));
        let gone = ClaimedPodState::Gone { version: 9 };
        assert_eq!(release_evidence(Operation::Unknown, 5, gone), Some(9));
    }

    #[test]
    fn a_claim_lapses_only_if_nothing_came_of_it() {
        assert!(is_claim_lapsed(Operation::Evict, NEWER));
        assert!(!is_claim_lapsed(
            Operation::Evict,
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
            Operation::InPlace,
            applied(RestartProgress::Awaited, true)
        ));
        // A Pod that is not available counts by itself, and may be resized in an operation.
        assert!(is_claim_lapsed(
            Operation::InPlace,
            applied(RestartProgress::Unproven, false)
        ));
        for over in [
            RestartProgress::Unproven,
            RestartProgress::Nothing,
            RestartProgress::Proven,
        ] {
            assert!(is_claim_lapsed(Operation::InPlace, applied(over, true)));
        }
        assert!(is_claim_lapsed(Operation::InPlace, NEWER));
    }
}
