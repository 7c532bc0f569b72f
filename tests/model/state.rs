//! The state of the model: etcd, the caches of the replicas, and the requests on their way.

use operating::ledger::protocol::{Grant, Ledger, Operation, View};

use super::cluster::{Change, History, PODS, Pod};

/// The claims of one rule.
pub type Claims = Ledger<u8, Change>;

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The Pods, with their past.
    pub pods: History,
    /// The claims of every rule.
    pub ledgers: Vec<Claims>,
    /// The claims as some replica remembers them; kept only for the control that trusts them.
    pub remembered: Option<Vec<Claims>>,
    /// The replicas, each with one cache; any of them may take itself for the leader at any time.
    pub replicas: Vec<Replica>,
    /// The requests.
    pub requests: Vec<Request>,
    /// What may still go wrong.
    pub left: Mishaps,
}

/// A replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// How far its cache has come.
    pub position: u8,
    /// A release that it has decided on and not yet written.
    pub release: Option<Release>,
}

/// A release on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release {
    /// The rule.
    pub rule: usize,
    /// The Pod.
    pub pod: u8,
    /// The operation of the claim.
    pub operation: Operation,
    /// The attempt that was looked at.
    pub attempt: u64,
    /// The Pod event that it rests on.
    pub based_on: u64,
    /// Position of the cache at the look.
    pub position: u8,
}

/// A disruption that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What.
    pub operation: Operation,
    /// Of which Pod.
    pub pod: u8,
    /// For an in-place change, the spec that it wants.
    pub target: u8,
    /// How far it is.
    pub phase: Phase,
    /// How often it may begin anew.
    pub retries: u8,
    /// Claims to be taken back in the background: rule and grant.
    pub back: Vec<(usize, Answer)>,
}

/// A grant, hashable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// See [`Grant`].
    pub attempt: u64,
    /// See [`Grant`].
    pub fresh: bool,
}

impl From<Grant> for Answer {
    fn from(g: Grant) -> Answer {
        Answer {
            attempt: g.attempt,
            fresh: g.fresh,
        }
    }
}

impl From<Answer> for Grant {
    fn from(a: Answer) -> Grant {
        Grant {
            attempt: a.attempt,
            fresh: a.fresh,
        }
    }
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not begun, or to be begun anew.
    Start,
    /// In admission with the Pod as the transaction (for an eviction: a live read) has it; claims so far.
    Asking {
        /// The Pod.
        object: Pod,
        /// Claims so far, one per rule that covers the Pod, in order.
        grants: Vec<Answer>,
    },
    /// A compare-and-swap is on its way.
    Writing {
        /// The Pod.
        object: Pod,
        /// Claims so far.
        grants: Vec<Answer>,
        /// What the decision was based on.
        base: Claims,
        /// What is to be written.
        next: Claims,
        /// The claim, if it is written.
        grant: Answer,
    },
    /// Admitted: the disruption is about to be written.
    Admitted {
        /// The version that the write is conditional on.
        only_at: Option<u8>,
        /// For an eviction: DisruptionTarget is written.
        marked: bool,
        /// The claims.
        grants: Vec<Answer>,
    },
    /// Answered, or given up.
    Done,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mishaps {
    /// Pods that become unready by themselves.
    pub flaps: u8,
    /// Requests that vanish with the replica or the connection that carries them.
    pub crashes: u8,
    /// Ledger writes whose reply is lost.
    pub lost: u8,
    /// Pods that left and come back.
    pub rejoins: u8,
    /// Containers that crash, and run anew before anybody sees the Pod unready. (Where it is seen, it is a flap besides.)
    pub restarts: u8,
}

/// What a cache shows of the Pods of one rule.
pub struct Look<'a> {
    /// Its position.
    pub position: u8,
    /// All Pods.
    pub pods: &'a [Pod; PODS],
    /// Those of the rule.
    pub covered: &'a [u8],
}

impl View<u8> for Look<'_> {
    fn position(&self) -> u64 {
        u64::from(self.position)
    }

    fn expected(&self) -> u32 {
        u32::try_from(self.covered.len()).unwrap()
    }

    fn available(&self) -> u32 {
        u32::try_from(
            self.covered
                .iter()
                .filter(|pod| self.is_available(pod))
                .count(),
        )
        .unwrap()
    }

    fn is_available(&self, pod: &u8) -> bool {
        self.covered.contains(pod) && self.pods[usize::from(*pod)].is_available()
    }
}
