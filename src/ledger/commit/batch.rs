//! Commits one batch: decides its commands on a copy of the claims, writes the result by one compare-and-swap, and
//! decides anew on a conflict.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::answer::{ClaimAnswer, Denied, DenyReason};
use super::cooldown::Cooldowns;
use super::decide::decide_claim;
use super::queue::{CommitQueue, LedgerCommand};
use super::{Ledgers, check_usable};
use crate::domain::rules::RuleSet;
use crate::ledger::protocol::BudgetView;
use crate::ledger::store::{Claims, LedgerStore, RuleKey, RuleSnapshot, Uid, WriteError};

/// How often a batch tries to compare-and-swap before it gives up. After each conflict it reads the object live.
const MAX_ROUNDS: u32 = 12;
/// The time limit of each call to the API server.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a claim waits until the Pod watch is connected again.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// If the cache is behind the watermark for this long, the watermark may be wrong and is checked.
const WATERMARK_DOUBT_AFTER: Duration = Duration::from_millis(300);

/// Why a batch was not written.
enum BatchError {
    /// The rule object is gone, so it denies nothing.
    Gone,
    /// All claims of the batch are denied.
    Held(DenyReason),
}

/// The result of one command. It is valid only after the claims are written.
enum CommandOutcome {
    /// A claim was given or refused.
    Answered(Result<ClaimAnswer, Denied>),
    Released,
    /// There is no result to report.
    Done,
}

fn unreachable_error(why: impl Into<String>) -> BatchError {
    BatchError::Held(DenyReason::Unreachable(why.into()))
}

impl<S: LedgerStore> Ledgers<S> {
    /// Commits a batch and answers its commands.
    pub(super) async fn commit_batch(
        &self,
        key: &RuleKey,
        queue: &Mutex<CommitQueue>,
        mut batch: Vec<LedgerCommand>,
    ) {
        match self.write_batch(key, queue, &mut batch).await {
            Ok(outcomes) => {
                let unwanted = self.send_replies(batch, outcomes);
                queue.lock().waiting.extend(unwanted); // the task of the queue runs until no command waits
            }
            Err(BatchError::Gone) => batch
                .into_iter()
                .for_each(|command| drop(command.reply_to_claim(Ok(ClaimAnswer::Gone)))),
            Err(BatchError::Held(why)) => batch.into_iter().for_each(|command| {
                drop(command.reply_to_claim(Err(Denied::for_rule_object(key, why.clone()))))
            }),
        }
    }

    /// Waits a short time until the Pod watch is connected. Afterwards, the cache is no older than the watches are
    /// trusted for.
    pub(super) async fn wait_following(&self, deadline: Instant) -> Result<(), DenyReason> {
        if self.store.is_following() {
            return Ok(());
        }
        let limit = deadline.min(Instant::now() + RECONNECT_TIMEOUT);
        let followed = timeout_at(limit, self.store.wait_followed()).await;
        followed.map_err(|_| DenyReason::Behind)
    }

    /// Decides and writes the batch, and returns the results of its commands. Commands for which nobody waits any more
    /// are removed from `batch`.
    async fn write_batch(
        &self,
        key: &RuleKey,
        queue: &Mutex<CommitQueue>,
        batch: &mut Vec<LedgerCommand>,
    ) -> Result<Vec<CommandOutcome>, BatchError> {
        let mut base = self
            .current_snapshot(key)
            .map_err(BatchError::Held)?
            .ok_or(BatchError::Gone)?;
        if !self.store.is_following() && !batch.iter().any(LedgerCommand::is_claim) {
            self.verify_history(&key.namespace)
                .await
                .map_err(BatchError::Held)?;
        }
        for round in 0..MAX_ROUNDS {
            let now = Instant::now();
            batch.retain(|command| command.is_awaited(now));
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let limit = now + CALL_TIMEOUT;
            let mut claims = self
                .usable_claims(key, queue, &mut base, batch, limit)
                .await?;
            let position = self.store.position();
            let cooldowns = queue.lock().cooldowns.clone();
            let outcomes = self.store.with_view(&base.rules, |view| {
                batch
                    .iter()
                    .map(|command| {
                        apply_command(view, &base.rules, &mut claims, command, &cooldowns, now)
                    })
                    .collect::<Vec<_>>()
            });
            start_cooldowns(queue, batch, &outcomes, now);
            if claims == *base.claims && !base.needs_write_back() {
                return Ok(outcomes);
            }
            if let Some(version) = self.try_write(key, queue, &base, &claims, limit).await? {
                // Normally a write has a later version than all events that the cache has seen. Otherwise etcd may have
                // been restored from a backup.
                if version <= position {
                    self.verify_history(&key.namespace)
                        .await
                        .map_err(BatchError::Held)?;
                }
                return Ok(outcomes);
            }
            self.counters.conflicts.fetch_add(1, Ordering::Relaxed);
            back_off(round).await;
            base = self.read_after_conflict(key, &base).await?;
        }
        Err(BatchError::Held(DenyReason::Contended))
    }

    /// The claims of `base`, as soon as the batch may be decided by them and the cache. Sets the watermark of a ledger
    /// by which nobody has decided yet.
    async fn usable_claims(
        &self,
        key: &RuleKey,
        queue: &Mutex<CommitQueue>,
        base: &mut RuleSnapshot,
        batch: &[LedgerCommand],
        limit: Instant,
    ) -> Result<Claims, BatchError> {
        let has_claim = batch.iter().any(LedgerCommand::is_claim);
        if base.claims.watermark == 0 && has_claim {
            let start = timeout_at(limit, self.start_ledger(key, queue, base.version)).await;
            let start = start.map_err(|_| unreachable_error("the list of Pods timed out"))??;
            Arc::make_mut(&mut base.claims).start_watermark_at(start);
        }
        let claims = Claims::clone(&base.claims);
        let is_doubted = batch.iter().any(LedgerCommand::is_version_repair);
        let claims = self.wait_watermark(key, claims, is_doubted, limit).await?;
        if has_claim {
            // Events that the cache has missed may have used up the budget.
            self.wait_following(limit).await.map_err(BatchError::Held)?;
        }
        match self.store.history_lost() {
            Some(why) => Err(unreachable_error(&*why)),
            None => Ok(claims),
        }
    }

    /// Writes the claims, if the rule object has still the version of `base`. Returns the version of the write, and
    /// `None` after a conflict.
    async fn try_write(
        &self,
        key: &RuleKey,
        queue: &Mutex<CommitQueue>,
        base: &RuleSnapshot,
        claims: &Claims,
        limit: Instant,
    ) -> Result<Option<u64>, BatchError> {
        match timeout_at(limit, self.store.compare_and_swap(key, base, claims)).await {
            Ok(Ok(written)) => {
                self.counters.writes.fetch_add(1, Ordering::Relaxed);
                let version = written.version;
                queue.lock().written = Some(written);
                Ok(Some(version))
            }
            Ok(Err(WriteError::Conflict)) => Ok(None),
            Ok(Err(WriteError::Gone)) => Err(BatchError::Gone),
            Ok(Err(WriteError::Replaced)) => Err(BatchError::Held(DenyReason::Behind)),
            Ok(Err(WriteError::Unreachable(why))) => Err(unreachable_error(why)),
            Ok(Err(WriteError::NotStored(why))) => Err(BatchError::Held(DenyReason::Unusable(why))),
            Err(_) => Err(unreachable_error("the write timed out")),
        }
    }

    /// Reads the rule object live, and keeps the claims that `known` remembers.
    async fn read_after_conflict(
        &self,
        key: &RuleKey,
        known: &RuleSnapshot,
    ) -> Result<RuleSnapshot, BatchError> {
        let limit = Instant::now() + CALL_TIMEOUT;
        let live = timeout_at(limit, self.store.live_snapshot(key))
            .await
            .map_err(|_| unreachable_error("the read timed out"))?
            .map_err(|error| match error {
                WriteError::Replaced => BatchError::Held(DenyReason::Behind),
                error => unreachable_error(error.to_string()),
            })?
            .ok_or(BatchError::Gone)?;
        check_usable(live.merge_remembered_claims(known)).map_err(BatchError::Held)
    }

    /// Waits until the Pod cache has seen all events that the claims rest on, and returns the claims. Versions above
    /// the present position of the Pods are lowered to this position: they are forged or come from another cluster, and
    /// no cache could ever reach them. The ledger is then written even if nothing else has changed.
    async fn wait_watermark(
        &self,
        key: &RuleKey,
        mut claims: Claims,
        is_doubted: bool,
        limit: Instant,
    ) -> Result<Claims, BatchError> {
        let doubt = limit.min(Instant::now() + WATERMARK_DOUBT_AFTER);
        let caught_up = timeout_at(doubt, self.store.wait_position(claims.watermark)).await;
        if caught_up.is_ok() && !is_doubted {
            return Ok(claims);
        }
        // This read must come after the read of the claims: all events that the claims rest on have happened by then.
        let present = timeout_at(limit, self.store.read_present_position(&key.namespace)).await;
        let present = present.map_err(|_| unreachable_error("the list of Pods timed out"))?;
        let present = present.map_err(|e| unreachable_error(e.to_string()))?;
        if claims.newest_version() > present {
            let newest = claims.newest_version();
            warn!(
                namespace = %key.namespace, rule = %key.name, newest, present,
                "the ledger names a version that no Pod has reached yet; the present version counts instead"
            );
            self.counters.mended.fetch_add(1, Ordering::Relaxed);
            claims.lower_versions_to(present);
        }
        timeout_at(limit, self.store.wait_position(claims.watermark))
            .await
            .map_err(|_| BatchError::Held(DenyReason::Behind))?;
        Ok(claims)
    }

    /// Checks by a read in this namespace that the Pods in etcd are not older than what the cache has seen.
    ///
    /// # Errors
    /// [`DenyReason::Unreachable`] if they are older, or cannot be read.
    pub async fn verify_history(&self, namespace: &str) -> Result<(), DenyReason> {
        let known = self.store.position();
        let present = timeout_at(
            Instant::now() + CALL_TIMEOUT,
            self.store.read_present_position(namespace),
        )
        .await;
        let present =
            present.map_err(|_| DenyReason::Unreachable("the list of Pods timed out".into()))?;
        let present = present.map_err(|e| DenyReason::Unreachable(e.to_string()))?;
        if present < known {
            self.store.mark_history_lost(known, present);
        }
        match self.store.history_lost() {
            Some(why) => Err(DenyReason::Unreachable(why.to_string())),
            None => Ok(()),
        }
    }

    /// The position at which the ledger starts if nobody has decided by it yet. The position is read once for each
    /// version of the rule object: a denial writes nothing, so the next command finds the same version. A ledger that
    /// somebody has emptied has another version, and starts anew.
    async fn start_ledger(
        &self,
        key: &RuleKey,
        queue: &Mutex<CommitQueue>,
        version: u64,
    ) -> Result<u64, BatchError> {
        let known = queue.lock().start;
        if let Some((_, position)) = known.filter(|(read_at, _)| *read_at == version) {
            return Ok(position);
        }
        let present = self.store.read_present_position(&key.namespace).await;
        let present = present.map_err(|e| unreachable_error(e.to_string()))?;
        queue.lock().start = Some((version, present));
        Ok(present)
    }

    /// Reads the start position once for all ledgers by which nobody has decided yet, before the first of them is
    /// written. Otherwise each write would get a later version, and the Pod cache would have to reach this version for
    /// the next ledger.
    pub(super) async fn start_ledgers(&self, keys: &[RuleKey], deadline: Instant) {
        let mut fresh = Vec::new();
        for key in keys {
            let Ok(Some(base)) = self.current_snapshot(key) else {
                continue;
            };
            let queue = self.commit_queue(key);
            let known = queue.lock().start;
            if base.claims.watermark == 0 && known.is_none_or(|(at, _)| at != base.version) {
                fresh.push((queue, base.version));
            }
        }
        let Some(key) = keys.first().filter(|_| fresh.len() > 1) else {
            return;
        };
        let limit = deadline.min(Instant::now() + CALL_TIMEOUT);
        // If this read fails, the decision reads the position again.
        if let Ok(Ok(present)) =
            timeout_at(limit, self.store.read_present_position(&key.namespace)).await
        {
            for (queue, version) in fresh {
                queue.lock().start = Some((version, present));
            }
        }
    }

    /// Counts the results and answers the commands. Returns commands that withdraw the claims for which nobody waits
    /// any more.
    fn send_replies(
        &self,
        batch: Vec<LedgerCommand>,
        outcomes: Vec<CommandOutcome>,
    ) -> Vec<LedgerCommand> {
        let mut unwanted = Vec::new();
        for (command, outcome) in batch.into_iter().zip(outcomes) {
            let counter = match &outcome {
                CommandOutcome::Answered(Ok(_)) => &self.counters.granted,
                CommandOutcome::Answered(Err(_)) => &self.counters.refused,
                CommandOutcome::Released => &self.counters.released,
                CommandOutcome::Done => continue,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            if let (CommandOutcome::Released, LedgerCommand::Release { evidence }) =
                (&outcome, &command)
                && evidence.lapsed
            {
                self.counters.lapsed.fetch_add(1, Ordering::Relaxed);
            }
            if let CommandOutcome::Answered(answer) = outcome {
                unwanted.extend(command.reply_to_claim(answer));
            }
        }
        unwanted
    }
}

/// Makes each request rest that was denied because its claim is closing.
fn start_cooldowns(
    queue: &Mutex<CommitQueue>,
    batch: &[LedgerCommand],
    outcomes: &[CommandOutcome],
    now: Instant,
) {
    for (command, outcome) in batch.iter().zip(outcomes) {
        if let LedgerCommand::Claim { disruption, .. } = command
            && let CommandOutcome::Answered(Err(denied)) = outcome
            && let DenyReason::Closing { .. } = denied.why
        {
            let pod = Uid::from(disruption.pod.metadata.uid.as_str());
            queue
                .lock()
                .cooldowns
                .start_cooldown(&pod, disruption.operation, now);
        }
    }
}

fn apply_command(
    view: &dyn BudgetView<Uid>,
    rules: &RuleSet,
    claims: &mut Claims,
    command: &LedgerCommand,
    cooldowns: &Cooldowns,
    now: Instant,
) -> CommandOutcome {
    match command {
        LedgerCommand::Claim { disruption, .. } => {
            let pod = &disruption.pod.metadata.uid;
            let rest = cooldowns.remaining_cooldown(pod, disruption.operation, now);
            CommandOutcome::Answered(decide_claim(view, rules, claims, disruption, rest))
        }
        LedgerCommand::Withdraw {
            pod,
            operation,
            grant,
        } => {
            claims.withdraw_claim(pod, *operation, *grant);
            CommandOutcome::Done
        }
        LedgerCommand::Close {
            pod,
            operation,
            opened,
        } => {
            claims.close_claim(pod, *operation, *opened);
            CommandOutcome::Done
        }
        LedgerCommand::Release { evidence: e } => {
            if claims.release_claim(e.position, &e.pod, e.operation, e.attempt, e.based_on) {
                CommandOutcome::Released
            } else {
                CommandOutcome::Done
            }
        }
        // These commands have taken effect before the others, and by the write itself.
        LedgerCommand::RepairVersions | LedgerCommand::Restore => CommandOutcome::Done,
    }
}

impl LedgerCommand {
    fn is_awaited(&self, now: Instant) -> bool {
        match self {
            LedgerCommand::Claim {
                deadline, reply, ..
            } => *deadline > now && !reply.is_closed(),
            LedgerCommand::Withdraw { .. }
            | LedgerCommand::Release { .. }
            | LedgerCommand::Close { .. } => true,
            LedgerCommand::RepairVersions | LedgerCommand::Restore => true,
        }
    }
}

/// Waits a random time that grows with the round, so that replicas that collided do not collide again.
async fn back_off(round: u32) {
    let most = 4u64 << round.min(5);
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=most))).await;
}
