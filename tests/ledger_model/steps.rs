//! What each step does.

use operating::ledger::protocol::ClaimOperation;

use super::cluster::{PODS, Pending, Pod};
use super::fault::Fault;
use super::model::{Step, World};
use super::state::{Claims, Phase, State};

/// The Pod that is created under the name of the first Pod.
const NAMESAKE: u8 = PODS as u8 - 1;

impl World {
    /// Takes a step; `None` if it is not possible.
    pub fn take(&self, s: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Advance { replica } => s.replicas[replica].position += 1,
            Step::Begin { request } => self.begin(s, request),
            Step::Ask { request, replica } => return self.ask(s, request, replica, false),
            Step::AskAndLoseReply { request, replica } => {
                s.mishaps_left.lost -= 1;
                return self.ask(s, request, replica, true);
            }
            Step::Write { request } => self.write_claim(s, request),
            Step::Mark { request } => self.mark(s, request),
            Step::Commit { request } => self.commit(s, request),
            Step::Crash { request } => {
                s.mishaps_left.crashes -= 1;
                s.requests[request].back.clear();
                if s.requests[request].phase != Phase::Done {
                    again(s, request);
                }
            }
            Step::Withdraw { request } => self.withdraw(s, request),
            Step::Refuse { request } => again(s, request),
            Step::Close {
                rule,
                pod,
                operation,
            } => {
                let ledger = &mut s.ledgers[rule];
                let opened = ledger.claims.get(&(pod, operation))?.opened;
                return ledger.close_claim(&pod, operation, opened).then_some(());
            }
            Step::Unlabel { pod } => s.pods.write(pod, false, |p| p.label = false),
            Step::Relabel { pod } => s.pods.write(pod, false, |p| p.label = true),
            Step::Recreate => s.pods.write(NAMESAKE, false, |p| {
                *p = Pod {
                    version: p.version,
                    ..Pod::NEW
                }
            }),
            Step::Replace => {
                s.mishaps_left.replaced -= 1;
                s.uid += 1;
                s.ledgers[0] = Claims::default();
            }
            Step::Learn { replica } => s.replicas[replica].knows = s.uid,
            Step::Shrink => s.owners[0] -= 1,
            Step::Grow => s.owners[1] += 1,
            Step::Defer { pod } => {
                s.mishaps_left.deferred -= 1;
                s.pods
                    .write(pod, false, |p| p.pending = Some(Pending::Deferred));
            }
            Step::Decline { pod } => {
                s.mishaps_left.infeasible -= 1;
                s.pods
                    .write(pod, false, |p| p.pending = Some(Pending::Infeasible));
            }
            Step::Release {
                replica,
                rule,
                pod,
                operation,
            } => {
                let release = self.evidence(s, replica, rule, pod, operation)?;
                self.decide_release(s, replica, release);
            }
            Step::Lapse {
                replica,
                rule,
                pod,
                operation,
            } => {
                let release = self.lapse(s, replica, rule, pod, operation)?;
                self.decide_release(s, replica, release);
            }
            Step::Land { replica } => self.land(s, replica),
            Step::Remember => s.remembered = Some(s.ledgers.clone()),
            Step::Flap { pod } => {
                s.mishaps_left.flaps -= 1;
                s.pods.write(pod, false, |p| p.ready = false);
            }
            Step::Recover { pod } => s.pods.write(pod, false, |p| p.ready = true),
            Step::Restart { pod } => {
                s.mishaps_left.restarts -= 1;
                s.pods.write(pod, false, |p| p.run += 1);
            }
            Step::Observe { pod } => s.pods.write(pod, false, |p| p.observed = p.spec),
            Step::Stop { pod } => s.pods.write(pod, true, |p| {
                p.pending = None;
                p.ready = false;
                p.observed = p.spec;
                p.starting = Some(p.spec);
            }),
            Step::Start { pod } => s.pods.write(pod, false, |p| {
                p.running = p.starting.take().unwrap();
                p.run += 1;
                p.ready = true;
            }),
            Step::Finish { pod } => s.pods.write(pod, false, |p| p.offline = false),
            Step::Rejoin { pod } => {
                s.mishaps_left.rejoins -= 1;
                s.pods.write(pod, false, |p| p.unmanaged = false);
            }
        }
        Some(())
    }

    /// The Pod as the transaction of the request reads it, and the part of the decision that needs no ledger.
    fn begin(&self, s: &mut State, request: usize) {
        let pod = s.pods.now()[usize::from(s.requests[request].pod)];
        let operation = s.requests[request].operation;
        let moot = match operation {
            ClaimOperation::InPlace => pod.offline || pod.spec == s.requests[request].target,
            ClaimOperation::Begin => pod.offline,
            _ => false,
        };
        let unconditional = match operation {
            ClaimOperation::Evict => true,
            ClaimOperation::InPlace => {
                !self.lacks(Fault::FreeInPlace)
                    && (pod.label || !self.lacks(Fault::FreeInPlaceOffLabel))
            }
            _ => false,
        };
        s.requests[request].phase = if !pod.is_watched() || pod.terminating || moot {
            Phase::Done // nothing that a rule would hold
        } else if pod.is_available() || unconditional {
            Phase::Asking {
                object: pod,
                grants: Vec::new(),
            }
        } else {
            admitted(Some(pod.version), Vec::new())
        };
    }

    /// The eviction handler writes DisruptionTarget, without admission.
    fn mark(&self, s: &mut State, request: usize) {
        let pod = s.requests[request].pod;
        let Phase::Admitted {
            only_at, grants, ..
        } = s.requests[request].phase.clone()
        else {
            return;
        };
        let p = s.pods.now()[usize::from(pod)];
        if !p.exists || only_at.is_some_and(|version| version != p.version) {
            return again(s, request);
        }
        s.pods.write(pod, false, |_| {});
        let only_at = only_at.map(|_| s.pods.version);
        s.requests[request].phase = Phase::Admitted {
            only_at,
            marked: true,
            grants,
        };
    }

    /// The storage transaction: its precondition is the version that admission has seen, except for an eviction.
    fn commit(&self, s: &mut State, request: usize) {
        let Phase::Admitted { only_at, .. } = s.requests[request].phase else {
            return;
        };
        let (pod, operation, target) = {
            let r = &s.requests[request];
            (r.pod, r.operation, r.target)
        };
        let by_name = operation == ClaimOperation::Evict && self.lacks(Fault::NoUidPrecondition);
        let pod = match by_name && self.is_made_again(s.pods.now(), pod) {
            true => NAMESAKE,
            false => pod,
        };
        let p = s.pods.now()[usize::from(pod)];
        if !p.exists || p.terminating {
            s.requests[request].phase = Phase::Done;
            return;
        }
        if only_at.is_some_and(|version| version != p.version) {
            return again(s, request);
        }
        let at_once = self.at_once;
        s.pods.write(pod, true, |p| match operation {
            ClaimOperation::Delete | ClaimOperation::Evict if at_once => p.exists = false,
            ClaimOperation::Delete | ClaimOperation::Evict => p.terminating = true,
            ClaimOperation::Begin => p.offline = true,
            ClaimOperation::Leave => p.unmanaged = true,
            ClaimOperation::InPlace => (p.spec, p.pending) = (target, None),
            other => unreachable!("no world asks for {other:?}"),
        });
        s.requests[request].phase = Phase::Done;
    }
}

/// The phase of a request that all rules have admitted.
pub fn admitted(only_at: Option<u8>, grants: Vec<super::state::Answer>) -> Phase {
    Phase::Admitted {
        only_at,
        marked: false,
        grants,
    }
}

/// The version in the precondition of an operation's write. An eviction has none: it deletes the Pod in any version.
pub fn condition(operation: ClaimOperation, object: &Pod) -> Option<u8> {
    (operation != ClaimOperation::Evict).then_some(object.version)
}

/// The request has failed. It is sent again if its client retries.
pub fn again(s: &mut State, request: usize) {
    let r = &mut s.requests[request];
    r.phase = if r.retries > 0 {
        Phase::Start
    } else {
        Phase::Done
    };
    if !r.is_endless() {
        r.retries = r.retries.saturating_sub(1);
    }
}
