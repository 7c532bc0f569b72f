//! The steps that change the ledger, through the functions of the ledger itself. A control then edits their result.

use operating::domain::inplace::RestartProgress;
use operating::ledger::evidence::{
    ClaimedPodState, is_claim_lapsed, is_conditional, release_evidence,
};
use operating::ledger::protocol::{
    Claim, ClaimOperation, ClaimRefusal, ClaimRequest as Disruption, Purpose,
};

use super::cluster::{Change, Pod};
use super::fault::Fault;
use super::model::World;
use super::state::{Answer, Look, Phase, Release, State};
use super::steps::{admitted, condition};

impl World {
    /// A replica asks the next rule for a claim; `None` while its cache is behind.
    pub fn ask(
        &self,
        s: &mut State,
        request: usize,
        replica: usize,
        reply_lost: bool,
    ) -> Option<()> {
        let Phase::Asking { object, mut grants } = s.requests[request].phase.clone() else {
            return None;
        };
        let (pod, operation, target) = {
            let r = &s.requests[request];
            (r.pod, r.operation, r.target)
        };
        let Some(rule) = self.covering(pod).nth(grants.len()) else {
            s.requests[request].phase = admitted(condition(operation, &object), grants);
            return Some(());
        };
        if rule == 0 && s.replicas[replica].knows != s.uid {
            if !self.lacks(Fault::AnotherUidTakenForGone) {
                return None;
            }
            grants.push(Answer {
                attempt: 0,
                fresh: false,
            });
            self.granted(s, request, object, grants);
            return Some(());
        }
        let remembered = s.remembered.as_ref();
        if let Some(known) = remembered.and_then(|m| m[rule].claims.get(&(pod, operation))) {
            grants.push(Answer {
                attempt: known.attempt,
                fresh: false,
            });
            self.granted(s, request, object, grants);
            return Some(());
        }
        let base = s.ledgers[rule].clone();
        let mut next = base.clone();
        if !self.lacks(Fault::NoStart) && !self.lacks(Fault::NoWatermark) {
            next.start_watermark_at(u64::from(s.pods.version));
        }
        if let Some(claim) = next.claims.get_mut(&(pod, operation)) {
            if self.lacks(Fault::StackedInPlace) {
                claim.detail.target = target;
            }
            if self.lacks(Fault::ClosingRenewed) {
                claim.closing = false;
            }
        }
        let covered = self.rules[rule].covers;
        let position = s.replicas[replica].position;
        let view = Look {
            position,
            pods: s.pods.at(position),
            covered,
            expected: self.expected(s, &self.rules[rule]),
        };
        let desired = view.expected.saturating_sub(self.rules[rule].max);
        let earlier = base.claims.get(&(pod, operation));
        let asked = Disruption {
            pod,
            operation,
            at: u64::from(object.version),
            detail: change_of(operation, target, &object, earlier),
        };
        let former = earlier.filter(|former| Self::begins_anew(former, &asked, &object));
        if former.is_some() {
            next.claims.remove(&(pod, operation));
        }
        match next.admit_claim(&view, desired, asked) {
            Err(ClaimRefusal::Behind { .. }) => return None,
            Err(_) => self.refused(s, request, object, grants),
            Ok(grant) => {
                let mut grant = grant;
                grant.fresh &= former.is_none();
                let closing = earlier.is_some_and(|claim| claim.closing);
                s.renewed |= closing && former.is_none();
                if self.lacks(Fault::AttemptReused) {
                    // Attempts are numbered for each claim; a new claim begins at 1.
                    grant.attempt = earlier.map_or(1, |claim| claim.attempt + 1);
                    next.claims.get_mut(&(pod, operation))?.attempt = grant.attempt;
                }
                if self.lacks(Fault::VersionGoesBack) && earlier.is_some() {
                    next.claims.get_mut(&(pod, operation))?.at = u64::from(object.version);
                }
                if self.split_writes {
                    s.requests[request].phase = Phase::Writing {
                        object,
                        grants,
                        base,
                        next,
                        grant: grant.into(),
                    };
                    return (!reply_lost).then_some(());
                }
                s.ledgers[rule] = next;
                if !reply_lost {
                    grants.push(grant.into());
                    self.granted(s, request, object, grants);
                }
            }
        }
        Some(())
    }

    /// Whether a change replaces a change that the kubelet has deferred, with a claim of its own.
    fn begins_anew(former: &Claim<Change>, asked: &Disruption<u8, Change>, object: &Pod) -> bool {
        asked.operation == ClaimOperation::InPlace
            && former.at <= asked.at
            && object.is_deferred()
            && asked.detail.may_replace(&former.detail, asked.operation)
    }

    /// The compare-and-swap arrives. On a conflict the rule is read anew and asked again.
    pub fn write_claim(&self, s: &mut State, request: usize) {
        let Phase::Writing {
            object,
            mut grants,
            base,
            next,
            grant,
        } = s.requests[request].phase.clone()
        else {
            return;
        };
        let Some(rule) = self.covering(s.requests[request].pod).nth(grants.len()) else {
            return;
        };
        if s.ledgers[rule] == base || self.lacks(Fault::NoCompareAndSwap) {
            s.ledgers[rule] = next;
            grants.push(grant);
            self.granted(s, request, object, grants);
        } else {
            s.requests[request].phase = Phase::Asking { object, grants };
        }
    }

    fn granted(
        &self,
        s: &mut State,
        request: usize,
        object: super::cluster::Pod,
        grants: Vec<Answer>,
    ) {
        let r = &mut s.requests[request];
        r.phase = if grants.len() == self.covering(r.pod).count() {
            admitted(condition(r.operation, &object), grants)
        } else {
            Phase::Asking { object, grants }
        };
    }

    /// A rule refuses the request: its earlier claims are withdrawn in the background. The eviction of an unavailable
    /// Pod continues with the judged version as precondition.
    fn refused(
        &self,
        s: &mut State,
        request: usize,
        object: super::cluster::Pod,
        grants: Vec<Answer>,
    ) {
        let r = &mut s.requests[request];
        r.back.extend(self.covering(r.pod).zip(grants));
        let free = r.operation == ClaimOperation::Evict && !object.is_available();
        r.phase = match free {
            true if self.lacks(Fault::UnconditionalFreeEviction) => admitted(None, Vec::new()),
            true => admitted(Some(object.version), Vec::new()),
            false if r.is_endless() => Phase::Start,
            false => Phase::Done,
        };
    }

    /// One claim is withdrawn.
    pub fn withdraw(&self, s: &mut State, request: usize) {
        let r = &mut s.requests[request];
        let Some((rule, mut grant)) = r.back.pop() else {
            return;
        };
        let ledger = &mut s.ledgers[rule];
        if self.lacks(Fault::WithdrawAnyAttempt)
            && let Some(claim) = ledger.claims.get(&(r.pod, r.operation))
        {
            grant.attempt = claim.attempt;
        }
        ledger.withdraw_claim(&r.pod, r.operation, grant.into());
    }

    /// A release for which the cache of a replica has evidence.
    pub fn evidence(
        &self,
        s: &State,
        replica: usize,
        rule: usize,
        pod: u8,
        operation: ClaimOperation,
    ) -> Option<Release> {
        let claim = s.ledgers[rule].claims.get(&(pod, operation))?;
        let position = s.replicas[replica].position;
        let mut sighting = self.sight(s, position, pod, operation, claim)?;
        if let ClaimedPodState::Seen {
            applied, restart, ..
        } = &mut sighting
        {
            let cached = s.pods.at(position)[usize::from(pod)];
            if self.lacks(Fault::ChangeBackForgetsFirst) {
                *applied = cached.spec == claim.detail.target;
            }
            if self.lacks(Fault::DeferredTakenForInfeasible) && cached.is_pending() {
                *restart = RestartProgress::Nothing;
            }
        }
        let at = if self.lacks(Fault::OldEvidence) {
            0
        } else {
            claim.at
        };
        let based_on = release_evidence(operation, at, sighting).or_else(|| match sighting {
            ClaimedPodState::Seen {
                version,
                available,
                restart,
                ..
            } if version > at => {
                let released = match operation {
                    ClaimOperation::Evict => {
                        self.lacks(Fault::EvictionReleasedOnMove)
                            || (self.lacks(Fault::EvictionReleasedOnFlap) && !available)
                    }
                    ClaimOperation::InPlace => {
                        self.lacks(Fault::InPlaceReleasedOnMove)
                            || (self.lacks(Fault::CrashPassesForRestart)
                                && restart == RestartProgress::Unproven
                                && available)
                    }
                    _ => false,
                };
                released.then_some(version)
            }
            _ => None,
        })?;
        self.if_it_would_land(
            s,
            Release {
                rule,
                pod,
                operation,
                attempt: claim.attempt,
                based_on,
                position,
            },
        )
    }

    /// The Pod of a claim as a cache shows it. If the effect does not depend on the Pod's version, a Pod that the cache
    /// does not show is read live, because it may only have lost the label of managed Pods.
    fn sight(
        &self,
        s: &State,
        position: u8,
        pod: u8,
        operation: ClaimOperation,
        claim: &Claim<Change>,
    ) -> Option<ClaimedPodState> {
        let i = usize::from(pod);
        let cached = s.pods.at(position)[i];
        if cached.is_watched() {
            return Some(cached.sighting(&claim.detail));
        }
        if u64::from(position) <= claim.at {
            return None;
        }
        let live = s.pods.now()[i];
        let believed =
            is_conditional(operation) || !live.exists || self.lacks(Fault::LeftTakenForDeleted);
        Some(if believed {
            ClaimedPodState::Gone {
                version: position.into(),
            }
        } else {
            live.sighting(&claim.detail)
        })
    }

    /// A release of a claim without effect: all requests that hold it have ended, a kubelet that has observed the
    /// change has ended the containers, and a live read shows no effect.
    pub fn lapse(
        &self,
        s: &State,
        replica: usize,
        rule: usize,
        pod: u8,
        operation: ClaimOperation,
    ) -> Option<Release> {
        let claim = s.ledgers[rule].claims.get(&(pod, operation))?;
        let under_way = s.requests.iter().any(|r| {
            let grant_count = match &r.phase {
                Phase::Asking { grants, .. }
                | Phase::Writing { grants, .. }
                | Phase::Admitted { grants, .. } => grants.len(),
                // The request may be sent again at any time, and write the claim again.
                Phase::Start if r.is_endless() && !claim.closing => usize::MAX,
                Phase::Start | Phase::Done => 0,
            };
            let first = match &r.phase {
                Phase::Asking { grants, .. } | Phase::Admitted { grants, .. } => {
                    grants.iter().any(|grant| grant.attempt == claim.opened)
                }
                _ => false,
            };
            if self.lacks(Fault::LapseAfterFirstAttempt) && !first {
                return false;
            }
            r.pod == pod
                && r.operation == operation
                && self
                    .covering(pod)
                    .take(grant_count)
                    .any(|grant_count| grant_count == rule)
        });
        if under_way && !self.lacks(Fault::LapseBeforeTheEnd) {
            return None;
        }
        let live = s.pods.now()[usize::from(pod)];
        let restarts = live.will_restart() && live.observed == live.spec;
        if !live.exists || restarts || !is_claim_lapsed(operation, live.sighting(&claim.detail)) {
            return None;
        }
        let (position, based_on) = (s.replicas[replica].position, u64::from(live.version));
        self.if_it_would_land(
            s,
            Release {
                rule,
                pod,
                operation,
                attempt: claim.attempt,
                based_on,
                position,
            },
        )
    }

    /// The model has no step for a release that is not allowed.
    fn if_it_would_land(&self, s: &State, release: Release) -> Option<Release> {
        let mut ledger = s.ledgers[release.rule].clone();
        release.write_to(&mut ledger).then_some(release)
    }

    /// A release is decided; it is written now or later.
    pub fn decide_release(&self, s: &mut State, replica: usize, release: Release) {
        s.replicas[replica].release = Some(release);
        if !self.split_releases {
            self.land(s, replica);
        }
    }

    /// A decided release is written.
    pub fn land(&self, s: &mut State, replica: usize) {
        let Some(release) = s.replicas[replica].release.take() else {
            return;
        };
        let ledger = &mut s.ledgers[release.rule];
        release.write_to(ledger);
        if self.lacks(Fault::NoWatermark) {
            ledger.watermark = 0;
        }
    }
}

/// What the claim of a request says about its change; `earlier` is the claim that the ledger already has.
fn change_of(
    operation: ClaimOperation,
    target: u8,
    object: &Pod,
    earlier: Option<&Claim<Change>>,
) -> Change {
    if operation != ClaimOperation::InPlace {
        return Change::default();
    }
    Change {
        target,
        run: object.run,
        running: object.running,
        stacked: match earlier {
            None => object.is_deferred(),
            Some(claim) => {
                let is_another = claim.detail.target != target;
                claim.detail.stacked || is_another && object.is_pending()
            }
        },
    }
}
