//! Group commit: all admissions, withdrawals and releases of one rule object that wait at the same time in this replica
//! share one compare-and-swap. Denials write nothing.

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
use self::queue::{CommitQueue, LedgerCommand};
use super::protocol::{ClaimGrant, ClaimOperation};
use super::store::{Claims, LedgerStore, RuleKey, RuleSnapshot, Uid, WriteError};
use crate::domain::pod::Pod;

/// Counters for the metrics and the benchmark.
#[derive(Debug, Default)]
pub struct Counters {
    /// Claims granted.
    pub granted: AtomicU64,
    /// Claims denied.
    pub refused: AtomicU64,
    /// Claims released on evidence.
    pub released: AtomicU64,
    /// Claims released because they had no effect.
    pub lapsed: AtomicU64,
    /// Compare-and-swap writes that succeeded.
    pub writes: AtomicU64,
    /// Compare-and-swap writes that met a conflict.
    pub conflicts: AtomicU64,
    /// Bypasses: requests of a user with the verb `bypass` that were admitted beyond budgets, past other rules, or
    /// without the lifecycle.
    pub bypassed: AtomicU64,
    /// Disruptions that were admitted because an annotation of the Pod skips a rule that would have denied them.
    pub skipped: AtomicU64,
    /// Batches that panicked. All their claims were denied.
    pub panics: AtomicU64,
    /// Ledgers whose versions were above the present position of the Pods and were lowered to this position.
    pub mended: AtomicU64,
}

/// The ledgers of all rule objects, with the commit queues of this replica.
pub struct Ledgers<S> {
    store: Arc<S>,
    queues: Mutex<HashMap<RuleKey, Arc<Mutex<CommitQueue>>>>,
    /// Counters since the start of the process.
    pub counters: Counters,
}

impl<S: LedgerStore> Ledgers<S> {
    /// Creates ledgers over a store.
    pub fn new(store: Arc<S>) -> Arc<Self> {
        Arc::new(Ledgers {
            store,
            queues: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The store that these ledgers read and write.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Takes a claim from each of the rule objects, or none at all. First, each object decides without a write. Then
    /// the claims are taken in the order of the UIDs. A later denial withdraws the earlier claims. With `dry_run`
    /// nothing is written: the verdict is that of the first pass and of a dry-run write.
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

    /// Decides whether a claim would be given now, by what this replica knows. Writes nothing.
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
        let queue = self.queues.lock().get(key).cloned();
        let cooldown =
            queue.and_then(|queue| queue.lock().remaining_cooldown(disruption, Instant::now()));
        self.store.with_view(&base.rules, |view| {
            decide::decide_claim(view, &base.rules, &mut claims, disruption, cooldown)
        })
    }

    /// Checks by a dry-run write whether a claim could be written now. Without this check, a dry run would not notice
    /// that the server lacks a right, or that the API server drops the ledger.
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

    /// Whether all of these rule objects let an unavailable Pod go. Nothing is claimed or written, because the Pod
    /// takes nothing from a budget.
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
            // Pods that the cache counts as available may be down.
            let followed = self.wait_following(limit).await;
            followed.map_err(|why| Denied::for_rule_object(key, why))?;
            self.store.with_view(&base.rules, |view| {
                decide::admit_unavailable(view, &base.rules, &base.claims, pod)
            })?;
        }
        Ok(())
    }

    /// Withdraws claims whose disruption was denied by another rule or check. This happens in the background and may
    /// fail: the leader releases a claim that stays after its deadline.
    pub fn withdraw_claims(
        self: &Arc<Self>,
        pod: &str,
        operation: ClaimOperation,
        grants: Vec<(RuleKey, ClaimGrant)>,
    ) {
        for (key, grant) in grants {
            self.enqueue_command(
                &key,
                LedgerCommand::Withdraw {
                    pod: pod.into(),
                    operation,
                    grant,
                },
            );
        }
    }

    /// Releases a claim in the background. Only the leader calls this function.
    pub fn release_claim(self: &Arc<Self>, key: &RuleKey, evidence: Evidence) {
        self.enqueue_command(key, LedgerCommand::Release { evidence });
    }

    /// Marks a claim as closing, in the background. Only the leader calls this function.
    pub fn close_claim(
        self: &Arc<Self>,
        key: &RuleKey,
        pod: Uid,
        operation: ClaimOperation,
        opened: u64,
    ) {
        self.enqueue_command(
            key,
            LedgerCommand::Close {
                pod,
                operation,
                opened,
            },
        );
    }

    /// Whether no lock is held for longer than `wait`. This function blocks; the watchdog calls it.
    pub fn is_unlocked_within(&self, wait: Duration) -> bool {
        let Some(queues) = self.queues.try_lock_for(wait) else {
            return false;
        };
        let all: Vec<_> = queues.values().cloned().collect();
        drop(queues);
        all.iter().all(|queue| queue.try_lock_for(wait).is_some())
    }

    /// Lowers versions that are above the present position of the Pods to this position, in the background. Only the
    /// leader calls this function, for a ledger that no other replica has repaired.
    pub fn repair_versions(self: &Arc<Self>, key: &RuleKey) {
        self.enqueue_command(key, LedgerCommand::RepairVersions);
    }

    /// Writes back claims, in the background, that this replica has seen stored and that the object no longer holds
    /// although nobody has released them.
    pub fn restore_claims(self: &Arc<Self>, key: &RuleKey) {
        if self
            .latest_snapshot(key)
            .is_some_and(|latest| latest.needs_write_back())
        {
            self.enqueue_command(key, LedgerCommand::Restore);
        }
    }

    /// The snapshot for a decision: [`Ledgers::latest_snapshot`], or `None` if the rule object is gone. It is an error
    /// if another object has taken the name, because the new object may hold the Pod and the caller does not know its
    /// rules. A ledger with a fault is an error, too.
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

    /// The newest state that this replica knows: the state in the watch cache, or a later one that this replica wrote
    /// itself.
    pub fn latest_snapshot(&self, key: &RuleKey) -> Option<RuleSnapshot> {
        let cached = self.store.cached_snapshot(key)?;
        Some(self.newer_snapshot(key, &cached))
    }

    /// `cached`, or a later state that this replica wrote itself. If etcd was restored from a backup, nothing that was
    /// written before counts.
    pub fn newer_snapshot(&self, key: &RuleKey, cached: &RuleSnapshot) -> RuleSnapshot {
        let written = self
            .queues
            .lock()
            .get(key)
            .and_then(|queue| queue.lock().written.clone());
        match written {
            Some(written)
                if written.version > cached.version && self.store.history_lost().is_none() =>
            {
                written
            }
            // The cache is newer: only claims that have vanished from it are added.
            Some(written) if self.store.history_lost().is_none() => {
                cached.clone().merge_remembered_claims(&written)
            }
            _ => cached.clone(),
        }
    }
}

/// Returns the snapshot if its ledger has no fault.
fn check_usable(snapshot: RuleSnapshot) -> Result<RuleSnapshot, DenyReason> {
    match &snapshot.fault {
        Some(fault) => Err(DenyReason::Unusable(fault.to_string())),
        None => Ok(snapshot),
    }
}
