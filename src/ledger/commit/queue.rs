//! The commit queue of one rule object. Commands that arrive while a batch is being written wait for the next batch.

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
use crate::ledger::protocol::{ClaimGrant, ClaimOperation};
use crate::ledger::store::{LedgerStore, RuleKey, RuleSnapshot, Uid};

/// How many commands may wait for one rule in one replica. Further commands are denied as overload.
const MAX_QUEUED_COMMANDS: usize = 4096;

/// An entry of a commit queue.
pub enum LedgerCommand {
    /// Takes a claim.
    Claim {
        disruption: Disruption,
        deadline: Instant,
        reply: oneshot::Sender<Result<ClaimAnswer, Denied>>,
    },
    /// Withdraws a claim whose disruption was denied afterwards.
    Withdraw {
        pod: Uid,
        operation: ClaimOperation,
        grant: ClaimGrant,
    },
    /// Closes a claim, so that it admits nothing more.
    Close {
        pod: Uid,
        operation: ClaimOperation,
        opened: u64,
    },
    /// Releases a claim on evidence.
    Release { evidence: Evidence },
    /// Lowers versions in the ledger that are above the present position of the Pods.
    RepairVersions,
    /// Writes back claims that this replica remembers and the object lacks.
    Restore,
}

/// If the first command of an idle queue begins an operation, the queue waits this long for further commands, so that
/// Pods that are woken together share a write.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// How long a deferred release may wait for a claim. The leader defers it anew each time that it reconciles the rule.
const DEFERRED_RELEASE_TTL: Duration = Duration::from_secs(1);

/// The waiting commands of one rule object, and the state of the single task that works on them.
#[derive(Default)]
pub struct CommitQueue {
    pub(super) waiting: Vec<LedgerCommand>,
    /// Releases that are written together with the next claim, and since when they wait.
    deferred_releases: Option<(Instant, Vec<Evidence>)>,
    running: bool,
    /// The object as this replica wrote it last. The watch may be behind it.
    pub written: Option<RuleSnapshot>,
    /// The version of a rule object by whose ledger nobody had decided, and the position of the Pods that this replica
    /// read for it.
    pub start: Option<(u64, u64)>,
    /// Requests that may not use the last of the headroom for now.
    pub cooldowns: Cooldowns,
}

impl CommitQueue {
    /// Whether the task of this queue runs.
    #[cfg(test)]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Takes the commands of the next batch. If the batch has a claim, the deferred releases are added.
    fn take_batch(&mut self, now: Instant) -> Vec<LedgerCommand> {
        let mut batch = std::mem::take(&mut self.waiting);
        if batch.iter().any(LedgerCommand::is_claim)
            && let Some((since, deferred)) = self.deferred_releases.take()
            && now - since < DEFERRED_RELEASE_TTL
        {
            let deferred = deferred.into_iter();
            batch.extend(deferred.map(|evidence| LedgerCommand::Release { evidence }));
        }
        batch
    }

    /// How much longer this disruption rests. `None` if it does not rest.
    pub fn remaining_cooldown(&self, disruption: &Disruption, now: Instant) -> Option<Duration> {
        let pod = &disruption.pod.metadata.uid;
        self.cooldowns
            .remaining_cooldown(pod, disruption.operation, now)
    }
}

impl<S: LedgerStore> Ledgers<S> {
    /// Sends a claim command to one rule object and waits for the answer until `deadline`.
    pub(super) async fn send_claim(
        self: &Arc<Self>,
        key: &RuleKey,
        disruption: Disruption,
        deadline: Instant,
    ) -> Result<ClaimAnswer, Denied> {
        let (reply, answer) = oneshot::channel();
        self.enqueue_command(
            key,
            LedgerCommand::Claim {
                disruption,
                deadline,
                reply,
            },
        );
        let why = match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => return answer,
            // A batch drops commands whose deadline has passed. If it panics, it drops all its commands.
            Ok(Err(_)) if Instant::now() < deadline => "internal error, see the log of the server",
            Ok(Err(_)) | Err(_) => "no answer within the review's deadline",
        };
        Err(Denied::for_rule_object(
            key,
            DenyReason::Unreachable(why.into()),
        ))
    }

    /// Adds a command to the commit queue of its rule object, and starts the task of the queue if it is not running.
    pub(super) fn enqueue_command(self: &Arc<Self>, key: &RuleKey, command: LedgerCommand) {
        let queue = self.commit_queue(key);
        let mut state = queue.lock();
        if state.waiting.len() >= MAX_QUEUED_COMMANDS {
            drop(state);
            drop(command.reply_to_claim(Err(Denied::for_rule_object(key, DenyReason::Contended))));
            return;
        }
        let gathers = command.is_begin();
        state.waiting.push(command);
        if !state.running {
            state.running = true;
            drop(state);
            let (ledgers, key) = (Arc::clone(self), key.clone());
            tokio::spawn(async move {
                if gathers {
                    sleep(BATCH_DELAY).await;
                }
                ledgers.run_queue(&key, &queue).await;
            });
        }
    }

    /// Defers releases until this replica writes the next claim of the rule. They replace the releases of an earlier
    /// call. If no claim is written, nothing is lost: these claims take nothing from the budget.
    pub fn defer_releases(&self, key: &RuleKey, releases: Vec<Evidence>) {
        let queue = match releases.is_empty() {
            true => self.queues.lock().get(key).cloned(), // do not create a queue for this
            false => Some(self.commit_queue(key)),
        };
        if let Some(queue) = queue {
            let deferred = (!releases.is_empty()).then(|| (Instant::now(), releases));
            queue.lock().deferred_releases = deferred;
        }
    }

    /// The commit queue of a rule object. A queue stays as long as its rule exists, because it knows what this replica
    /// wrote and its watch has not delivered yet. The call that creates a new queue drops the queues of rules that are
    /// gone.
    pub(super) fn commit_queue(&self, key: &RuleKey) -> Arc<Mutex<CommitQueue>> {
        let known = self.queues.lock().get(key).cloned();
        known.unwrap_or_else(|| {
            self.drop_unused_queues();
            Arc::clone(self.queues.lock().entry(key.clone()).or_default())
        })
    }

    fn drop_unused_queues(&self) {
        let mut unused: Vec<RuleKey> = self.queues.lock().keys().cloned().collect();
        // The lock must not be held here: another task may hold the lock of the cache and wait for this lock.
        unused.retain(|key| self.store.cached_snapshot(key).is_none());
        let mut queues = self.queues.lock();
        for key in unused {
            // The task or caller that uses a queue holds a reference to it.
            if queues
                .get(&key)
                .is_some_and(|queue| Arc::strong_count(queue) == 1)
            {
                queues.remove(&key);
            }
        }
    }

    async fn run_queue(self: Arc<Self>, key: &RuleKey, queue: &Mutex<CommitQueue>) {
        loop {
            let batch = {
                let mut state = queue.lock();
                if state.waiting.is_empty() {
                    state.running = false;
                    return;
                }
                state.take_batch(Instant::now())
            };
            // A panic drops the commands of the batch, which denies them. The queue must continue with the commands
            // behind them.
            let work = AssertUnwindSafe(self.commit_batch(key, queue, batch)).catch_unwind();
            if work.await.is_err() {
                self.counters.panics.fetch_add(1, Ordering::Relaxed);
                error!(namespace = %key.namespace, rule = %key.name, "a write of a ledger panicked; the requests that waited for it are denied");
            }
        }
    }
}

impl LedgerCommand {
    pub fn is_claim(&self) -> bool {
        matches!(self, LedgerCommand::Claim { .. })
    }

    /// Whether this command takes a claim for an operation of the lifecycle that begins.
    fn is_begin(&self) -> bool {
        matches!(self, LedgerCommand::Claim { disruption, .. } if disruption.operation == ClaimOperation::Begin)
    }

    /// Whether this command asks to check the versions in the ledger.
    pub fn is_version_repair(&self) -> bool {
        matches!(self, LedgerCommand::RepairVersions)
    }

    /// Sends the answer to the caller. If a claim was given and nobody waits for it any more, because the review was
    /// denied at its deadline, returns the command that withdraws the claim.
    pub fn reply_to_claim(self, answer: Result<ClaimAnswer, Denied>) -> Option<LedgerCommand> {
        let LedgerCommand::Claim {
            disruption, reply, ..
        } = self
        else {
            return None;
        };
        match reply.send(answer) {
            Err(Ok(ClaimAnswer::Granted(grant))) => Some(LedgerCommand::Withdraw {
                pod: disruption.pod.metadata.uid.as_str().into(),
                operation: disruption.operation,
                grant,
            }),
            _ => None,
        }
    }
}
