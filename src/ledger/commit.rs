//! Group commit: all admissions, withdrawals and releases of one rule object that wait at the same time in this
//! replica share one compare-and-swap. Refusals write nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::protocol::{Grant, Operation, Refusal, Request, View};
use super::store::{Claims, Detail, RuleKey, Snapshot, Store, Uid, WriteError};
use crate::domain::pod::Pod;
use crate::domain::rules::{Availability, RuleSet};

/// Rounds of compare-and-swap before a batch gives up; each conflict reads the object anew.
const MAX_ROUNDS: u32 = 12;
/// Asks that may wait for one rule in one replica; more are refused as overload.
const MAX_WAITING: usize = 4096;
/// Claims that one rule object holds at most: its status stays far below the size that etcd takes.
const MAX_CLAIMS: usize = 2000;
/// No single call to the API server takes longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A disruption of a Pod that one rule object is asked about.
#[derive(Clone, Debug)]
pub struct Disruption {
    /// The Pod as the request has it.
    pub pod: Arc<Pod>,
    /// What is to be done to it.
    pub operation: Operation,
    /// Kept in the claim.
    pub detail: Detail,
}

/// The answer of one rule object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No availability rule of the object applies to the Pod (or the object is gone): nothing is held.
    NotHeld,
    /// The claim is written.
    Granted(Grant),
}

/// Why a disruption is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Name of the rule object.
    pub object: String,
    /// Name of the rule in it; empty when the reason is not a single rule's.
    pub rule: String,
    /// The reason.
    pub why: Why,
}

/// Reasons to hold a disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The budget is used up: `used` of `limit` Pods are unavailable or about to be, of `expected`.
    Full {
        /// Unavailable or claimed.
        used: u32,
        /// How many may be.
        limit: u32,
        /// How many Pods there should be.
        expected: u32,
        /// Up to three Pods that use the budget up, the longest first, and since when.
        holders: Vec<(String, Option<jiff::Timestamp>)>,
    },
    /// The rule can't be evaluated: the field and the remedy.
    Broken(String),
    /// This replica's cache has not caught up with the last release.
    Behind,
    /// The API server can't be reached, or refuses.
    Unreachable(String),
    /// Containers of the Pod have yet to restart for an earlier in-place change.
    UnderWay,
    /// Too many writers, or too many waiting.
    Contended,
}

/// Evidence for a release, from a view at `position`.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The Pod.
    pub pod: Uid,
    /// The operation of the claim.
    pub operation: Operation,
    /// The attempt that was looked at.
    pub attempt: u64,
    /// The Pod event that it rests on (0: none).
    pub based_on: u64,
    /// Position of the cache it was seen in.
    pub position: u64,
}

enum Ask {
    Claim {
        disruption: Disruption,
        deadline: Instant,
        reply: oneshot::Sender<Result<Answer, Denied>>,
    },
    Withdraw {
        pod: Uid,
        operation: Operation,
        grant: Grant,
    },
    Release {
        evidence: Evidence,
    },
}

#[derive(Default)]
struct Lane {
    waiting: Vec<Ask>,
    running: bool,
    /// The object as this replica wrote it last: the watch may trail behind it.
    written: Option<Snapshot>,
}

/// Figures for the metrics and the benchmark.
#[derive(Debug, Default)]
pub struct Counters {
    /// Claims granted.
    pub granted: AtomicU64,
    /// Claims refused.
    pub refused: AtomicU64,
    /// Claims released on evidence.
    pub released: AtomicU64,
    /// Compare-and-swap writes that succeeded.
    pub writes: AtomicU64,
    /// Compare-and-swap writes that met a conflict.
    pub conflicts: AtomicU64,
}

/// The ledgers of all rule objects, as one replica works on them.
pub struct Ledgers<S> {
    store: Arc<S>,
    lanes: Mutex<HashMap<Uid, Arc<Mutex<Lane>>>>,
    /// Figures since the start.
    pub counters: Counters,
}

impl<S: Store> Ledgers<S> {
    /// Ledgers over a store.
    pub fn new(store: Arc<S>) -> Arc<Self> {
        Arc::new(Ledgers {
            store,
            lanes: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The store.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Asks all rule objects for a claim, all or nothing: first every one is asked without writing, then the claims are
    /// taken in UID order; a later refusal withdraws the earlier ones. With `dry_run` nothing is written and the
    /// verdict is that of the first pass.
    pub async fn claim(
        self: &Arc<Self>,
        mut rules: Vec<RuleKey>,
        disruption: &Disruption,
        dry_run: bool,
        deadline: Instant,
    ) -> Result<Vec<(RuleKey, Grant)>, Denied> {
        rules.sort();
        if rules.len() > 1 || dry_run {
            for key in &rules {
                self.would_admit(key, disruption)?;
            }
        }
        if dry_run {
            return Ok(Vec::new());
        }
        let mut grants = Vec::new();
        for key in rules {
            match self.ask(&key, disruption.clone(), deadline).await {
                Ok(Answer::NotHeld) => {}
                Ok(Answer::Granted(grant)) => grants.push((key, grant)),
                Err(denied) => {
                    self.withdraw(&disruption.pod.metadata.uid, disruption.operation, grants);
                    return Err(denied);
                }
            }
        }
        Ok(grants)
    }

    /// Whether a claim would be given now, by what this replica knows; nothing is written.
    pub fn would_admit(&self, key: &RuleKey, disruption: &Disruption) -> Result<Answer, Denied> {
        let Some(base) = self.latest(key) else {
            return Ok(Answer::NotHeld);
        };
        let mut claims = Claims::clone(&base.claims);
        self.store.view(&base.rules, |view| {
            self.admit(view, &base.rules, &mut claims, disruption)
        })
    }

    /// Takes back claims whose disruption is refused after all. Best effort and in the background: a claim that stays
    /// is released by its deadline.
    pub fn withdraw(
        self: &Arc<Self>,
        pod: &str,
        operation: Operation,
        grants: Vec<(RuleKey, Grant)>,
    ) {
        for (key, grant) in grants {
            self.submit(
                &key,
                Ask::Withdraw {
                    pod: pod.into(),
                    operation,
                    grant,
                },
            );
        }
    }

    /// Releases a claim in the background. Only the leader does so.
    pub fn release(self: &Arc<Self>, key: &RuleKey, evidence: Evidence) {
        self.submit(key, Ask::Release { evidence });
    }

    /// The newest state that this replica knows: the watch cache, or what it wrote itself since.
    pub fn latest(&self, key: &RuleKey) -> Option<Snapshot> {
        let cached = self.store.cached(key)?;
        Some(self.newer(key, &cached))
    }

    /// `cached`, or what this replica wrote itself since.
    pub fn newer(&self, key: &RuleKey, cached: &Snapshot) -> Snapshot {
        let written = self
            .lanes
            .lock()
            .get(&key.uid)
            .and_then(|lane| lane.lock().written.clone());
        match written {
            Some(written) if written.version > cached.version => written,
            _ => cached.clone(),
        }
    }

    /// Drops what is kept for a rule object that is gone.
    pub fn forget(&self, uid: &Uid) {
        self.lanes.lock().remove(uid);
    }

    async fn ask(
        self: &Arc<Self>,
        key: &RuleKey,
        disruption: Disruption,
        deadline: Instant,
    ) -> Result<Answer, Denied> {
        let (reply, answer) = oneshot::channel();
        self.submit(
            key,
            Ask::Claim {
                disruption,
                deadline,
                reply,
            },
        );
        let why = match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => Why::Contended,
            Err(_) => Why::Unreachable("no answer within the review's deadline".into()),
        };
        Err(Denied {
            object: key.name.clone(),
            rule: String::new(),
            why,
        })
    }

    fn submit(self: &Arc<Self>, key: &RuleKey, ask: Ask) {
        let lane = Arc::clone(self.lanes.lock().entry(key.uid.clone()).or_default());
        let mut state = lane.lock();
        if state.waiting.len() >= MAX_WAITING {
            return; // a dropped reply reads as contention
        }
        state.waiting.push(ask);
        if !state.running {
            state.running = true;
            drop(state);
            let (ledgers, key) = (Arc::clone(self), key.clone());
            tokio::spawn(async move { ledgers.run(&key, &lane).await });
        }
    }

    async fn run(self: Arc<Self>, key: &RuleKey, lane: &Mutex<Lane>) {
        loop {
            let batch = {
                let mut state = lane.lock();
                if state.waiting.is_empty() {
                    state.running = false;
                    return;
                }
                std::mem::take(&mut state.waiting)
            };
            self.commit(key, lane, batch).await;
        }
    }

    async fn commit(&self, key: &RuleKey, lane: &Mutex<Lane>, mut batch: Vec<Ask>) {
        let Some(mut base) = self.latest(key) else {
            return answer_all(batch, || Ok(Answer::NotHeld));
        };
        for round in 0..MAX_ROUNDS {
            let now = Instant::now();
            batch.retain(|ask| !matches!(ask, Ask::Claim { deadline, reply, .. } if *deadline <= now || reply.is_closed()));
            if batch.is_empty() {
                return;
            }
            let limit = now + CALL_TIMEOUT;
            if timeout_at(limit, self.store.caught_up(base.claims.watermark))
                .await
                .is_err()
            {
                return answer_all(batch, || Err(denied(key, Why::Behind)));
            }
            let mut claims = Claims::clone(&base.claims);
            let answers = self.store.view(&base.rules, |view| {
                batch
                    .iter()
                    .map(|ask| self.apply(view, &base.rules, &mut claims, ask))
                    .collect::<Vec<_>>()
            });
            if claims == *base.claims {
                return self.answer(batch, answers);
            }
            match timeout_at(limit, self.store.swap(key, &base, &claims)).await {
                Ok(Ok(written)) => {
                    self.counters.writes.fetch_add(1, Ordering::Relaxed);
                    lane.lock().written = Some(written);
                    return self.answer(batch, answers);
                }
                Ok(Err(WriteError::Gone)) => return answer_all(batch, || Ok(Answer::NotHeld)),
                Ok(Err(WriteError::Unreachable(why))) => {
                    return answer_all(batch, || Err(denied(key, Why::Unreachable(why.clone()))));
                }
                Err(_) => {
                    return answer_all(batch, || {
                        Err(denied(key, Why::Unreachable("the write timed out".into())))
                    });
                }
                Ok(Err(WriteError::Conflict)) => {
                    self.counters.conflicts.fetch_add(1, Ordering::Relaxed);
                    pause(round).await;
                    match timeout_at(Instant::now() + CALL_TIMEOUT, self.store.live(key)).await {
                        Ok(Ok(Some(live))) => base = live,
                        Ok(Ok(None)) => return answer_all(batch, || Ok(Answer::NotHeld)),
                        Ok(Err(e)) => {
                            return answer_all(batch, || {
                                Err(denied(key, Why::Unreachable(e.to_string())))
                            });
                        }
                        Err(_) => {
                            return answer_all(batch, || {
                                Err(denied(key, Why::Unreachable("the read timed out".into())))
                            });
                        }
                    }
                }
            }
        }
        answer_all(batch, || Err(denied(key, Why::Contended)));
    }

    fn apply(
        &self,
        view: &dyn View<Uid>,
        rules: &RuleSet,
        claims: &mut Claims,
        ask: &Ask,
    ) -> Option<Result<Answer, Denied>> {
        match ask {
            Ask::Claim { disruption, .. } => Some(self.admit(view, rules, claims, disruption)),
            Ask::Withdraw {
                pod,
                operation,
                grant,
            } => {
                claims.withdraw(pod, *operation, *grant);
                None
            }
            Ask::Release { evidence: e } => {
                if claims.release(e.position, &e.pod, e.operation, e.attempt, e.based_on) {
                    self.counters.released.fetch_add(1, Ordering::Relaxed);
                }
                None
            }
        }
    }

    fn admit(
        &self,
        view: &dyn View<Uid>,
        rules: &RuleSet,
        claims: &mut Claims,
        disruption: &Disruption,
    ) -> Result<Answer, Denied> {
        let refuse = |rule: &str, why| Denied {
            object: rules.name.clone(),
            rule: rule.to_owned(),
            why,
        };
        let pod = &disruption.pod;
        let binding = match rules.availability(pod) {
            Availability::NotHeld => return Ok(Answer::NotHeld),
            Availability::Broken { rule, why } => return Err(refuse(&rule, Why::Broken(why))),
            Availability::Held(held) => held
                .into_iter()
                .max_by_key(|(_, limits)| limits.desired(view.expected())),
        };
        let Some((rule, limits)) = binding else {
            return Ok(Answer::NotHeld);
        };
        if claims.claims.len() >= MAX_CLAIMS {
            return Err(refuse(rule, Why::Contended));
        }
        let desired = limits.desired(view.expected());
        let uid = Uid::from(pod.metadata.uid.as_str());
        let earlier = claims
            .claims
            .get(&(uid.clone(), disruption.operation))
            .map(|c| &c.detail);
        let request = Request {
            pod: uid,
            operation: disruption.operation,
            at: pod.metadata.resource_version,
            detail: disruption.detail.clone().after(earlier),
        };
        claims
            .admit(view, desired, request)
            .map(Answer::Granted)
            .map_err(|refusal| match refusal {
                Refusal::Behind { .. } => refuse(rule, Why::Behind),
                Refusal::UnderWay => refuse(rule, Why::UnderWay),
                Refusal::Full {
                    desired, expected, ..
                } => {
                    let why = Why::Full {
                        used: expected.saturating_sub(claims.unclaimed(view)),
                        limit: expected.saturating_sub(desired),
                        expected,
                        holders: Vec::new(),
                    };
                    refuse(rule, why)
                }
            })
    }

    fn answer(&self, batch: Vec<Ask>, answers: Vec<Option<Result<Answer, Denied>>>) {
        for (ask, answer) in batch.into_iter().zip(answers) {
            if let (Ask::Claim { reply, .. }, Some(answer)) = (ask, answer) {
                let counter = if answer.is_ok() {
                    &self.counters.granted
                } else {
                    &self.counters.refused
                };
                counter.fetch_add(1, Ordering::Relaxed);
                let _ = reply.send(answer); // the review may have run into its deadline
            }
        }
    }

    /// Fills in up to three Pods that use a budget up: those with claims and those unavailable, the longest first.
    pub fn name_holders(&self, key: &RuleKey, denied: &mut Denied) {
        let (Why::Full { holders, .. }, Some(base)) = (&mut denied.why, self.latest(key)) else {
            return;
        };
        let claimed = base
            .claims
            .claims
            .values()
            .map(|c| (c.detail.pod_name.clone(), Some(c.detail.since)));
        let mut all: Vec<_> = claimed
            .chain(self.store.unavailable(&base.rules, 3))
            .collect();
        all.sort_by(|a, b| (a.1.is_none(), a.1, &a.0).cmp(&(b.1.is_none(), b.1, &b.0)));
        all.dedup_by(|a, b| a.0 == b.0);
        all.truncate(3);
        *holders = all;
    }
}

fn denied(key: &RuleKey, why: Why) -> Denied {
    Denied {
        object: key.name.clone(),
        rule: String::new(),
        why,
    }
}

fn answer_all(batch: Vec<Ask>, answer: impl Fn() -> Result<Answer, Denied>) {
    for ask in batch {
        if let Ask::Claim { reply, .. } = ask {
            let _ = reply.send(answer());
        }
    }
}

/// Waits a random moment that grows with the round: replicas that collided do not collide again.
async fn pause(round: u32) {
    let most = 4u64 << round.min(5);
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=most))).await;
}
