//! Group commit: all admissions, withdrawals and releases of one rule object that wait at the same time in this
//! replica share one compare-and-swap. Refusals write nothing.

mod answer;
mod batch;
mod cooldown;
mod decide;
mod earlier_claims;
mod holders;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

pub use self::answer::{
    AwaitedRestart, BudgetBlockers, ClaimAnswer, Denied, DenyReason, Disruption, Evidence,
};
use self::batch::CALL_TIMEOUT;
pub use self::decide::claim_bytes;
use self::queue::{Command, CommitQueue};
use super::protocol::{ClaimGrant, Operation};
use super::store::{Claims, LedgerStore, RuleKey, RuleSnapshot, Uid, WriteError};
use crate::domain::pod::Pod;

/// Figures for the metrics and the benchmark.
#[derive(Debug, Default)]
pub struct Counters {
    /// Claims granted.
    pub granted: AtomicU64,
    /// Claims refused.
    pub refused: AtomicU64,
    /// Claims released on evidence.
    pub released: AtomicU64,
    /// Claims released because nothing came of them.
    pub lapsed: AtomicU64,
    /// Compare-and-swap writes that succeeded.
    pub writes: AtomicU64,
    /// Compare-and-swap writes that met a conflict.
    pub conflicts: AtomicU64,
    /// Times that a user who may bypass rules was admitted beyond budgets, past other rules, or without the lifecycle.
    pub bypassed: AtomicU64,
    /// Disruptions admitted although a rule would hold them that the Pod's annotation skips.
    pub skipped: AtomicU64,
    /// Batches that panicked; all their asks were denied.
    pub panics: AtomicU64,
    /// Ledgers that named versions which no Pod has reached yet, and that were set right.
    pub mended: AtomicU64,
}

/// The ledgers of all rule objects, as one replica works on them.
pub struct Ledgers<S> {
    store: Arc<S>,
    queues: Mutex<HashMap<RuleKey, Arc<Mutex<CommitQueue>>>>,
    /// Figures since the start.
    pub counters: Counters,
}

impl<S: LedgerStore> Ledgers<S> {
    /// Ledgers over a store.
    pub fn new(store: Arc<S>) -> Arc<Self> {
        Arc::new(Ledgers {
            store,
            queues: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The store.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Asks all rule objects for a claim, all or nothing: first every one is asked without writing, then the claims are
    /// taken in UID order; a later refusal withdraws the earlier ones. With `dry_run` nothing is written: the
    /// verdict is that of the first pass, and of a write in dry-run.
    pub async fn claim_rules(
        self: &Arc<Self>,
        mut rules: Vec<RuleKey>,
        disruption: &Disruption,
        dry_run: bool,
        deadline: Instant,
    ) -> Result<Vec<(RuleKey, ClaimGrant)>, Denied> {
        rules.sort();
        if rules.len() > 1 || dry_run {
            for key in &rules {
                let followed = self.wait_following(deadline).await;
                followed.map_err(|why| Denied::for_rule_object(key, why))?;
                let answer = self.preview_claim(key, disruption)?;
                disruption.reject_gone_object(key, &answer)?;
                let needs_claim = matches!(answer, ClaimAnswer::Granted(_));
                if dry_run && needs_claim {
                    self.check_writable(key, deadline).await?;
                }
            }
        }
        if dry_run {
            return Ok(Vec::new());
        }
        self.start_ledgers(&rules, deadline).await;
        let mut grants = Vec::new();
        for key in rules {
            let answer = self.send_claim(&key, disruption.clone(), deadline).await;
            let settled = answer.and_then(|answer| {
                disruption.reject_gone_object(&key, &answer)?;
                Ok(answer)
            });
            match settled {
                Ok(ClaimAnswer::NotHeld | ClaimAnswer::Gone) => {}
                Ok(ClaimAnswer::Granted(grant)) => grants.push((key, grant)),
                Err(denied) => {
                    self.withdraw_claims(
                        &disruption.pod.metadata.uid,
                        disruption.operation,
                        grants,
                    );
                    return Err(denied);
                }
            }
        }
        Ok(grants)
    }

    /// Whether a claim would be given now, by what this replica knows; nothing is written.
    pub fn preview_claim(
        &self,
        key: &RuleKey,
        disruption: &Disruption,
    ) -> Result<ClaimAnswer, Denied> {
        let Some(base) = self
            .current_snapshot(key)
            .map_err(|why| Denied::for_rule_object(key, why))?
        else {
            return Ok(ClaimAnswer::Gone);
        };
        let mut claims = Claims::clone(&base.claims);
        let lane = self.queues.lock().get(key).cloned();
        let rest = lane.and_then(|lane| lane.lock().remaining_cooldown(disruption, Instant::now()));
        self.store.with_view(&base.rules, |view| {
            decide::decide_claim(view, &base.rules, &mut claims, disruption, rest)
        })
    }

    /// Whether a claim could be written now: a dry run writes none, and would not notice that the server lacks a right, or that
    /// the API server drops the ledger.
    async fn check_writable(&self, key: &RuleKey, deadline: Instant) -> Result<(), Denied> {
        let Some(latest) = self.latest_snapshot(key) else {
            return Ok(()); // the object is gone
        };
        let limit = deadline.min(Instant::now() + CALL_TIMEOUT);
        let tried = timeout_at(limit, self.store.dry_run_swap(key, &latest.claims)).await;
        let why = match tried {
            Ok(Ok(()) | Err(WriteError::Gone)) => return Ok(()),
            Ok(Err(WriteError::Replaced)) => DenyReason::Behind,
            Ok(Err(WriteError::NotStored(why))) => DenyReason::Unusable(why),
            Ok(Err(e)) => DenyReason::Unreachable(e.to_string()),
            Err(_) => DenyReason::Unreachable("the write timed out".to_owned()),
        };
        Err(Denied::for_rule_object(key, why))
    }

    /// Whether all of these rule objects let a Pod go that is not available. Nothing is claimed or written: by going it takes
    /// nothing from a budget.
    pub async fn admit_unavailable(
        &self,
        rules: &[RuleKey],
        pod: &Pod,
        deadline: Instant,
    ) -> Result<(), Denied> {
        for key in rules {
            let Some(base) = self
                .current_snapshot(key)
                .map_err(|why| Denied::for_rule_object(key, why))?
            else {
                return Err(Denied::for_rule_object(key, DenyReason::Changed));
            };
            let limit = deadline.min(Instant::now() + CALL_TIMEOUT);
            timeout_at(limit, self.store.wait_position(base.claims.watermark))
                .await
                .map_err(|_| Denied::for_rule_object(key, DenyReason::Behind))?;
            // Pods that the cache takes for available may be down.
            let followed = self.wait_following(limit).await;
            followed.map_err(|why| Denied::for_rule_object(key, why))?;
            self.store.with_view(&base.rules, |view| {
                decide::admit_unavailable(view, &base.rules, &base.claims, pod)
            })?;
        }
        Ok(())
    }

    /// Takes back claims whose disruption is refused after all. Best effort and in the background: a claim that stays
    /// is released by its deadline.
    pub fn withdraw_claims(
        self: &Arc<Self>,
        pod: &str,
        operation: Operation,
        grants: Vec<(RuleKey, ClaimGrant)>,
    ) {
        for (key, grant) in grants {
            self.enqueue_command(
                &key,
                Command::Withdraw {
                    pod: pod.into(),
                    operation,
                    grant,
                },
            );
        }
    }

    /// Releases a claim in the background. Only the leader does so.
    pub fn release_claim(self: &Arc<Self>, key: &RuleKey, evidence: Evidence) {
        self.enqueue_command(key, Command::Release { evidence });
    }

    /// Marks a claim as closing, in the background. Only the leader does so.
    pub fn close_claim(
        self: &Arc<Self>,
        key: &RuleKey,
        pod: Uid,
        operation: Operation,
        opened: u64,
    ) {
        self.enqueue_command(
            key,
            Command::Close {
                pod,
                operation,
                opened,
            },
        );
    }

    /// Whether no lock is held for longer than `wait`. For the watchdog: it blocks.
    pub fn is_unlocked_within(&self, wait: Duration) -> bool {
        let Some(lanes) = self.queues.try_lock_for(wait) else {
            return false;
        };
        let all: Vec<_> = lanes.values().cloned().collect();
        drop(lanes);
        all.iter().all(|lane| lane.try_lock_for(wait).is_some())
    }

    /// Has versions that lie above the present position of the Pods taken for that, in the background. Only the leader does
    /// so, if nobody else has.
    pub fn repair_versions(self: &Arc<Self>, key: &RuleKey) {
        self.enqueue_command(key, Command::RepairVersions);
    }

    /// Writes claims back, in the background, that this replica has seen stored and that the object does not hold any more
    /// though nobody has released them.
    pub fn restore_claims(self: &Arc<Self>, key: &RuleKey) {
        if self
            .latest_snapshot(key)
            .is_some_and(|latest| latest.needs_write_back())
        {
            self.enqueue_command(key, Command::Restore);
        }
    }

    /// What a decision begins with: [`Ledgers::latest`], `None` when the rule object is gone. Another object under its name
    /// may hold the Pod, and whoever asks does not know its rules: that is no answer. Nor is a ledger that can't be relied on.
    fn current_snapshot(&self, key: &RuleKey) -> Result<Option<RuleSnapshot>, DenyReason> {
        if let Some(why) = self.store.history_lost() {
            return Err(DenyReason::Unreachable(why.to_string()));
        }
        match self.latest_snapshot(key) {
            None if self.store.is_replaced(key) => Err(DenyReason::Behind),
            Some(latest) => check_usable(latest).map(Some),
            None => Ok(None),
        }
    }

    /// The newest state that this replica knows: the watch cache, or what it wrote itself since.
    pub fn latest_snapshot(&self, key: &RuleKey) -> Option<RuleSnapshot> {
        let cached = self.store.cached_snapshot(key)?;
        Some(self.newer_snapshot(key, &cached))
    }

    /// `cached`, or what this replica wrote itself since. When the history was set back, nothing that was written in the
    /// former one counts.
    pub fn newer_snapshot(&self, key: &RuleKey, cached: &RuleSnapshot) -> RuleSnapshot {
        let written = self
            .queues
            .lock()
            .get(key)
            .and_then(|lane| lane.lock().written.clone());
        match written {
            Some(written)
                if written.version > cached.version && self.store.history_lost().is_none() =>
            {
                written
            }
            // What was written in another history counts no more.
            Some(written) if self.store.history_lost().is_none() => {
                cached.clone().merge_remembered_claims(&written)
            }
            _ => cached.clone(),
        }
    }
}

/// A snapshot by whose ledger can be decided.
fn check_usable(snapshot: RuleSnapshot) -> Result<RuleSnapshot, DenyReason> {
    match &snapshot.fault {
        Some(fault) => Err(DenyReason::Unusable(fault.to_string())),
        None => Ok(snapshot),
    }
}
