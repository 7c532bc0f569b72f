//! One lane per rule object: what is asked while a batch is under way waits for the next one.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::error;

use super::Ledgers;
use super::answer::{ClaimAnswer, Denied, DenyReason, Disruption, Evidence};
use super::cooldown::Cooldowns;
use crate::ledger::protocol::{ClaimGrant, Operation};
use crate::ledger::store::{LedgerStore, RuleKey, RuleSnapshot, Uid};

/// Asks that may wait for one rule in one replica; more are refused as overload.
const MAX_QUEUED_COMMANDS: usize = 4096;

/// What a rule object is asked for.
pub enum Command {
    /// A claim.
    Claim {
        disruption: Disruption,
        deadline: Instant,
        reply: oneshot::Sender<Result<ClaimAnswer, Denied>>,
    },
    /// A claim goes whose disruption was refused after all.
    Withdraw {
        pod: Uid,
        operation: Operation,
        grant: ClaimGrant,
    },
    /// A claim admits nothing more.
    Close {
        pod: Uid,
        operation: Operation,
        opened: u64,
    },
    /// A claim goes on evidence.
    Release { evidence: Evidence },
    /// The ledger may name versions that no Pod has reached yet.
    RepairVersions,
    /// The object lacks claims that this replica remembers.
    Restore,
}

/// An operation that begins and asks an idle lane waits this long for others: Pods that are woken together share a write.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// What may ride with a claim rides for this long. The leader says anew what may, at each of its looks.
const DEFERRED_RELEASE_TTL: Duration = Duration::from_secs(1);

/// The asks of one rule object, and the one task that works on them.
#[derive(Default)]
pub struct CommitQueue {
    pub(super) waiting: Vec<Command>,
    /// Releases that the next claim takes along, and since when.
    deferred_releases: Option<(Instant, Vec<Evidence>)>,
    running: bool,
    /// The object as this replica wrote it last: the watch may trail behind it.
    pub written: Option<RuleSnapshot>,
    /// The version of the rule object at which nobody had decided by its ledger, and the position of the Pods when this
    /// replica first decided by it.
    pub start: Option<(u64, u64)>,
    /// Requests that may not take the last place for now.
    pub cooldowns: Cooldowns,
}

impl CommitQueue {
    /// Whether the lane's task runs.
    #[cfg(test)]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The asks of the next batch, with the releases that ride along with a claim.
    fn take_batch(&mut self, now: Instant) -> Vec<Command> {
        let mut batch = std::mem::take(&mut self.waiting);
        if batch.iter().any(Command::is_claim)
            && let Some((since, riding)) = self.deferred_releases.take()
            && now - since < DEFERRED_RELEASE_TTL
        {
            let riding = riding.into_iter();
            batch.extend(riding.map(|evidence| Command::Release { evidence }));
        }
        batch
    }

    /// How long this disruption still rests, if it does.
    pub fn remaining_cooldown(&self, disruption: &Disruption, now: Instant) -> Option<Duration> {
        let pod = &disruption.pod.metadata.uid;
        self.cooldowns
            .remaining_cooldown(pod, disruption.operation, now)
    }
}

impl<S: LedgerStore> Ledgers<S> {
    /// Asks one rule object for a claim.
    pub(super) async fn send_claim(
        self: &Arc<Self>,
        key: &RuleKey,
        disruption: Disruption,
        deadline: Instant,
    ) -> Result<ClaimAnswer, Denied> {
        let (reply, answer) = oneshot::channel();
        self.enqueue_command(
            key,
            Command::Claim {
                disruption,
                deadline,
                reply,
            },
        );
        let why = match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return answer,
            // A batch drops what has run into its deadline, and what it has when it panics.
            Ok(Err(_)) if Instant::now() < deadline => "internal error, see the log of the server",
            Ok(Err(_)) | Err(_) => "no answer within the review's deadline",
        };
        Err(Denied::for_rule_object(
            key,
            DenyReason::Unreachable(why.into()),
        ))
    }

    /// Puts an ask into the lane of its rule object, and starts the lane's task if it is not running.
    pub(super) fn enqueue_command(self: &Arc<Self>, key: &RuleKey, ask: Command) {
        let lane = self.commit_queue(key);
        let mut state = lane.lock();
        if state.waiting.len() >= MAX_QUEUED_COMMANDS {
            drop(state);
            drop(ask.reply_to_claim(Err(Denied::for_rule_object(key, DenyReason::Contended))));
            return;
        }
        let gathers = ask.is_begin();
        state.waiting.push(ask);
        if !state.running {
            state.running = true;
            drop(state);
            let (ledgers, key) = (Arc::clone(self), key.clone());
            tokio::spawn(async move {
                if gathers {
                    sleep(BATCH_DELAY).await;
                }
                ledgers.run_queue(&key, &lane).await;
            });
        }
    }

    /// Has the next claim that this replica writes for a rule take these releases along, in place of those of an earlier call.
    /// A claim that stays takes nothing from the budget: nothing is lost if none is written.
    pub fn defer_releases(&self, key: &RuleKey, releases: Vec<Evidence>) {
        let lane = match releases.is_empty() {
            true => self.queues.lock().get(key).cloned(), // no lane is opened for nothing
            false => Some(self.commit_queue(key)),
        };
        if let Some(lane) = lane {
            let riding = (!releases.is_empty()).then(|| (Instant::now(), releases));
            lane.lock().deferred_releases = riding;
        }
    }

    /// The lane of a rule object. A lane stays while its rule does, for what this replica wrote and its watch has yet to
    /// deliver; whoever opens another one clears away those of rules that are gone.
    pub(super) fn commit_queue(&self, key: &RuleKey) -> Arc<Mutex<CommitQueue>> {
        let known = self.queues.lock().get(key).cloned();
        known.unwrap_or_else(|| {
            self.drop_unused_queues();
            Arc::clone(self.queues.lock().entry(key.clone()).or_default())
        })
    }

    fn drop_unused_queues(&self) {
        let mut gone: Vec<RuleKey> = self.queues.lock().keys().cloned().collect();
        // Without the lock: whoever looks at the cache may be waiting for it.
        gone.retain(|key| self.store.cached_snapshot(key).is_none());
        let mut lanes = self.queues.lock();
        for key in gone {
            // A lane that is in use, or about to be, is held by its user too.
            if lanes
                .get(&key)
                .is_some_and(|lane| Arc::strong_count(lane) == 1)
            {
                lanes.remove(&key);
            }
        }
    }

    async fn run_queue(self: Arc<Self>, key: &RuleKey, lane: &Mutex<CommitQueue>) {
        loop {
            let batch = {
                let mut state = lane.lock();
                if state.waiting.is_empty() {
                    state.running = false;
                    return;
                }
                state.take_batch(Instant::now())
            };
            // The asks of a batch that panics are dropped, which denies them; the lane must go on for those behind.
            let work = AssertUnwindSafe(self.commit_batch(key, lane, batch)).catch_unwind();
            if work.await.is_err() {
                self.counters.panics.fetch_add(1, Ordering::Relaxed);
                error!(namespace = %key.namespace, rule = %key.name, "a write of a ledger panicked");
            }
        }
    }
}

impl Command {
    /// Whether it is for a claim, and not about one.
    pub fn is_claim(&self) -> bool {
        matches!(self, Command::Claim { .. })
    }

    /// Whether it is for an operation of the lifecycle that begins.
    fn is_begin(&self) -> bool {
        matches!(self, Command::Claim { disruption, .. } if disruption.operation == Operation::Begin)
    }

    /// Whether it doubts the versions that the ledger names.
    pub fn is_version_repair(&self) -> bool {
        matches!(self, Command::RepairVersions)
    }

    /// Answers, if anybody waits. A claim that nobody waits for any more, because the review has run into its deadline and was
    /// denied, is to be taken back by the ask that is returned.
    pub fn reply_to_claim(self, answer: Result<ClaimAnswer, Denied>) -> Option<Command> {
        let Command::Claim {
            disruption, reply, ..
        } = self
        else {
            return None;
        };
        match reply.send(answer) {
            Err(Ok(ClaimAnswer::Granted(grant))) => Some(Command::Withdraw {
                pod: disruption.pod.metadata.uid.as_str().into(),
                operation: disruption.operation,
                grant,
            }),
            _ => None,
        }
    }
}
