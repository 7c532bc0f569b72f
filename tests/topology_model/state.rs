//! The state: etcd, the caches of the replicas, and the requests on their way.

use super::arithmetic::{Claim, Key, Ledger, Operation, Place};
use super::cluster::{PODS, Pod, Slot, Snapshot};

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The Pods from the position of the slowest cache to the present.
    pub history: Vec<Snapshot>,
    /// The ledger.
    pub ledger: Ledger,
    /// The positions of the caches, sorted: replicas differ in nothing else.
    pub caches: Vec<u8>,
    /// The requests.
    pub requests: Vec<Request>,
    /// The failures that may still happen.
    pub mishaps_left: Mishaps,
    /// For each slot of the set: the zone in which a request disrupted its Pod, until the Pod is available again.
    pub lost: [Option<Place>; PODS],
    /// Whether a claim was given although the deciding replica had seen an outage elsewhere.
    pub blind: bool,
    /// Whether a new claim was given out of turn.
    pub jumped: bool,
}

/// A request for a disruption.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// The Pod.
    pub slot: u8,
    /// The phase of the request.
    pub phase: Phase,
    /// Number of retries left.
    pub retries: u8,
    /// Whether it may still get the turn.
    pub may_wait: bool,
}

/// The phase of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not begun, refused, or waiting for a retry.
    Start,
    /// A compare-and-swap is in flight.
    Writing {
        /// The claim.
        key: Key,
        /// The state on which the decision is based.
        base: Ledger,
        /// The ledger to write.
        next: Ledger,
    },
    /// Admitted: the disruption is about to be written.
    Admitted {
        /// The claim, or the Pod that needs no claim.
        key: Key,
        /// The version in the precondition of the write.
        only_at: Option<u8>,
    },
    /// Answered or given up.
    Done,
}

/// The failures that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mishaps {
    /// Pods that fail by themselves.
    pub failures: u8,
    /// Failed Pods that are deleted.
    pub vanished: u8,
    /// Requests that vanish with the replica or the connection that carries them.
    pub crashes: u8,
    /// Ledger writes whose reply is lost.
    pub lost: u8,
    /// Pods beyond the expected ones.
    pub surges: u8,
    /// Changes of zone labels that a user tries.
    pub relabels: u8,
}

impl State {
    /// The present Pods.
    pub fn now(&self) -> &Snapshot {
        &self.history[self.history.len() - 1]
    }

    /// The Pods in a cache at this position.
    pub fn at(&self, position: u8) -> &[Pod; PODS] {
        let found = self.history.iter().find(|s| s.version == position);
        &found.unwrap().pods
    }

    /// Gives the first request a claim of a rule without zones.
    pub fn admit_first(&mut self, slots: &[Slot]) {
        let request = &mut self.requests[0];
        let key = (request.slot, 0, request.operation);
        let group = slots[usize::from(request.slot)].group;
        self.ledger.claims.insert(key, Claim { at: 0, group });
        request.phase = Phase::Admitted { key, only_at: None };
    }

    /// Changes a Pod in etcd.
    pub fn change(&mut self, slot: usize, change: impl FnOnce(&mut Pod)) {
        let next = self.now().with(slot, change);
        self.history.push(next);
    }

    /// Forgets the versions that no cache needs, and renumbers the others: only their order matters.
    pub fn tidy(&mut self) {
        self.caches.sort_unstable();
        let slowest = self.caches[0];
        self.history.retain(|s| s.version >= slowest);
        let mut numbers = vec![0];
        self.versions(|version| numbers.push(*version));
        numbers.sort_unstable();
        numbers.dedup();
        self.versions(|version| *version = numbers.binary_search(version).unwrap() as u8);
    }

    fn versions(&mut self, mut visit: impl FnMut(&mut u8)) {
        for snapshot in &mut self.history {
            visit(&mut snapshot.version);
            snapshot
                .pods
                .iter_mut()
                .for_each(|pod| visit(&mut pod.version));
        }
        self.caches.iter_mut().for_each(&mut visit);
        let mut ledgers = vec![&mut self.ledger];
        for request in &mut self.requests {
            match &mut request.phase {
                Phase::Writing { base, next, .. } => ledgers.extend([base, next]),
                Phase::Admitted { only_at, .. } => only_at.iter_mut().for_each(&mut visit),
                Phase::Start | Phase::Done => {}
            }
        }
        for ledger in ledgers {
            visit(&mut ledger.watermark);
            ledger
                .claims
                .values_mut()
                .for_each(|claim| visit(&mut claim.at));
        }
    }
}
