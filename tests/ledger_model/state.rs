//! The state of the model: etcd, the caches of the replicas, and the requests on their way.

use operating::ledger::protocol::{BudgetView, ClaimGrant, ClaimOperation, Ledger};

use super::cluster::{Change, History, PODS, Pod};

/// The claims of one rule.
pub type Claims = Ledger<u8, Change>;

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The Pods with their earlier versions.
    pub pods: History,
    /// The claims of every rule.
    pub ledgers: Vec<Claims>,
    /// The claims that a replica remembers, only for the control in which replicas trust their memory.
    pub remembered: Option<Vec<Claims>>,
    /// The replicas, each with one cache; any of them may take itself for the leader at any time.
    pub replicas: Vec<Replica>,
    /// The requests.
    pub requests: Vec<Request>,
    /// The failures that may still happen.
    pub mishaps_left: Mishaps,
    /// Replicas of the two direct owners of the Pods, in a rollout.
    pub owners: [u8; 2],
    /// Counts how often the first rule was deleted and created again.
    pub uid: u8,
    /// Whether a closing claim was written again.
    pub renewed: bool,
}

/// A replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// The position of its cache.
    pub position: u8,
    /// Which rule of the first rule's name it knows.
    pub knows: u8,
    /// A release that it has decided and not written yet.
    pub release: Option<Release>,
}

/// A release in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release {
    /// The rule.
    pub rule: usize,
    /// The Pod.
    pub pod: u8,
    /// The operation of the claim.
    pub operation: ClaimOperation,
    /// The attempt that the replica has seen.
    pub attempt: u64,
    /// The Pod event that is the evidence.
    pub based_on: u64,
    /// Position of the cache at the decision.
    pub position: u8,
}

impl Release {
    /// Writes it to the ledger of its rule. Returns whether it releases the claim.
    pub fn write_to(self, ledger: &mut Claims) -> bool {
        let (pod, position) = (self.pod, self.position.into());
        ledger.release_claim(position, &pod, self.operation, self.attempt, self.based_on)
    }
}

/// A request for a disruption.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The operation.
    pub operation: ClaimOperation,
    /// The Pod.
    pub pod: u8,
    /// For an in-place change, the target spec.
    pub target: u8,
    /// The phase of the request.
    pub phase: Phase,
    /// Number of retries left; [`ENDLESS`] never decreases.
    pub retries: u8,
    /// Claims to withdraw in the background: rule and grant.
    pub back: Vec<(usize, Answer)>,
}

/// Retries of an admitted request that a PodDisruptionBudget or a policy refuses, and that its client repeats forever.
/// Any of its attempts may still succeed.
pub const ENDLESS: u8 = u8::MAX;

impl Request {
    /// A request that nobody has handled yet and that is not repeated.
    pub fn new(operation: ClaimOperation, pod: u8) -> Request {
        Request {
            operation,
            pod,
            target: 0,
            phase: Phase::Start,
            retries: 0,
            back: Vec::new(),
        }
    }

    /// The client repeats the request once.
    pub fn again(self) -> Request {
        Request { retries: 1, ..self }
    }

    /// The client repeats the request forever.
    pub fn endless(self) -> Request {
        Request {
            retries: ENDLESS,
            ..self
        }
    }

    /// Whether the request is repeated forever.
    pub fn is_endless(&self) -> bool {
        self.retries == ENDLESS
    }
}

/// A grant, hashable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// See [`Grant`].
    pub attempt: u64,
    /// See [`Grant`].
    pub fresh: bool,
}

impl From<ClaimGrant> for Answer {
    fn from(g: ClaimGrant) -> Answer {
        Answer {
            attempt: g.attempt,
            fresh: g.fresh,
        }
    }
}

impl From<Answer> for ClaimGrant {
    fn from(a: Answer) -> ClaimGrant {
        ClaimGrant {
            attempt: a.attempt,
            fresh: a.fresh,
        }
    }
}

/// The phase of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not begun, or waiting for a retry.
    Start,
    /// In admission, with the Pod as the transaction has read it (for an eviction: by a live read), and the claims so
    /// far.
    Asking {
        /// The Pod.
        object: Pod,
        /// Claims so far, one per rule that covers the Pod, in order.
        grants: Vec<Answer>,
    },
    /// A compare-and-swap is in flight.
    Writing {
        /// The Pod.
        object: Pod,
        /// Claims so far.
        grants: Vec<Answer>,
        /// The state on which the decision is based.
        base: Claims,
        /// The ledger to write.
        next: Claims,
        /// The claim, if it gets written.
        grant: Answer,
    },
    /// Admitted: the disruption is about to be written.
    Admitted {
        /// The version in the precondition of the write.
        only_at: Option<u8>,
        /// For an eviction: DisruptionTarget is written.
        marked: bool,
        /// The claims.
        grants: Vec<Answer>,
    },
    /// Answered or given up.
    Done,
}

/// The failures that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mishaps {
    /// Pods that become unready by themselves.
    pub flaps: u8,
    /// Requests that vanish with the replica or the connection that carries them.
    pub crashes: u8,
    /// Ledger writes whose reply is lost.
    pub lost: u8,
    /// Pods that lose the label of managed Pods and get it again.
    pub rejoins: u8,
    /// Containers that crash and restart before anybody sees the Pod unready. (If somebody sees it, it is a short loss
    /// of Ready, too.)
    pub restarts: u8,
    /// Deletions of the first rule, each followed by a new one of its name.
    pub replaced: u8,
    /// In-place changes that the kubelet reports as infeasible.
    pub infeasible: u8,
    /// In-place changes that the kubelet defers.
    pub deferred: u8,
}

/// The Pods of one rule as a cache shows them.
pub struct Look<'a> {
    /// Its position.
    pub position: u8,
    /// All Pods.
    pub pods: &'a [Pod; PODS],
    /// The Pods of the rule.
    pub covered: &'a [u8],
    /// The expected number of Pods.
    pub expected: u32,
}

impl BudgetView<u8> for Look<'_> {
    fn position(&self) -> u64 {
        u64::from(self.position)
    }

    fn expected(&self) -> u32 {
        self.expected
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

impl State {
    /// Renumbers all attempts and keeps their order. Only the order matters, and endlessly repeated requests would
    /// otherwise create endlessly many states.
    pub fn number_attempts_anew(&mut self) {
        let mut numbers = Vec::new();
        self.attempts(|attempt| numbers.push(*attempt));
        numbers.sort_unstable();
        numbers.dedup();
        let rank = |attempt: u64| numbers.iter().take_while(|n| **n < attempt).count() as u64 + 1;
        self.attempts(|attempt| *attempt = rank(*attempt));
        for ledger in &mut self.ledgers {
            ledger.attempts = numbers.len() as u64;
        }
    }

    /// Visits every attempt number that a ledger, a request or a replica knows.
    fn attempts(&mut self, mut visit: impl FnMut(&mut u64)) {
        for claim in self.ledgers.iter_mut().flat_map(|l| l.claims.values_mut()) {
            visit(&mut claim.attempt);
            visit(&mut claim.opened);
        }
        for release in self.replicas.iter_mut().filter_map(|r| r.release.as_mut()) {
            visit(&mut release.attempt);
        }
        for request in &mut self.requests {
            for (_, grant) in &mut request.back {
                visit(&mut grant.attempt);
            }
            match &mut request.phase {
                Phase::Asking { grants, .. } | Phase::Admitted { grants, .. } => {
                    grants
                        .iter_mut()
                        .for_each(|grant| visit(&mut grant.attempt));
                }
                Phase::Writing { .. } => unreachable!("claims that never end are not split"),
                Phase::Start | Phase::Done => {}
            }
        }
    }
}
