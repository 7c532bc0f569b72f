//! One batch: decided on a copy of the claims, written by one compare-and-swap, decided anew on a conflict.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::answer::{Answer, Denied, Why};
use super::decide::admit;
use super::lane::{Ask, Lane};
use super::rest::Rests;
use super::{Ledgers, usable};
use crate::domain::rules::RuleSet;
use crate::ledger::protocol::View;
use crate::ledger::store::{Claims, RuleKey, Store, Uid, WriteError};

/// Rounds of compare-and-swap before a batch gives up; each conflict reads the object anew.
const MAX_ROUNDS: u32 = 12;
/// No single call to the API server takes longer.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// So long a claim waits for the Pod watch to be connected again.
const REJOIN: Duration = Duration::from_secs(3);

/// A cache that trails the watermark for this long makes the watermark doubtful.
const DOUBT: Duration = Duration::from_millis(300);

/// Why nothing of a batch was written, though something was to be.
enum End {
    /// The rule object is gone, and holds nobody.
    Gone,
    /// Everything is held.
    Held(Why),
}

/// What became of one ask. It holds once the claims are written.
enum Outcome {
    /// A claim was given or refused.
    Answered(Result<Answer, Denied>),
    /// A claim was released.
    Released,
    /// Nothing to tell anybody.
    Done,
}

fn unreachable(why: impl Into<String>) -> End {
    End::Held(Why::Unreachable(why.into()))
}

impl<S: Store> Ledgers<S> {
    /// Commits a batch and answers its asks.
    pub(super) async fn commit(&self, key: &RuleKey, lane: &Mutex<Lane>, mut batch: Vec<Ask>) {
        match self.settle(key, lane, &mut batch).await {
            Ok(outcomes) => {
                let unwanted = self.tell(batch, outcomes);
                lane.lock().waiting.extend(unwanted); // the lane goes on as long as there are any
            }
            Err(End::Gone) => batch
                .into_iter()
                .for_each(|ask| drop(ask.answer(Ok(Answer::Gone)))),
            Err(End::Held(why)) => batch
                .into_iter()
                .for_each(|ask| drop(ask.answer(Err(Denied::by(key, why.clone()))))),
        }
    }

    /// Waits for a moment until the store is followed. What is looked at next is no older than the watches are trusted for.
    pub(super) async fn follow(&self, deadline: Instant) -> Result<(), Why> {
        if self.store.is_following() {
            return Ok(());
        }
        let limit = deadline.min(Instant::now() + REJOIN);
        let followed = timeout_at(limit, self.store.followed()).await;
        followed.map_err(|_| Why::Behind)
    }

    /// What became of all that is left of the batch, once the claims are written. Asks that nobody waits for any more are
    /// dropped.
    async fn settle(
        &self,
        key: &RuleKey,
        lane: &Mutex<Lane>,
        batch: &mut Vec<Ask>,
    ) -> Result<Vec<Outcome>, End> {
        let mut base = self.current(key).map_err(End::Held)?.ok_or(End::Gone)?;
        if !self.store.is_following() && !batch.iter().any(Ask::is_claim) {
            self.assure(&key.namespace).await.map_err(End::Held)?;
        }
        for round in 0..MAX_ROUNDS {
            let now = Instant::now();
            batch.retain(|ask| ask.is_awaited(now));
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let limit = now + CALL_TIMEOUT;
            if base.claims.watermark == 0 && batch.iter().any(Ask::is_claim) {
                let start = timeout_at(limit, self.start(key, lane, base.version)).await;
                let start = start.map_err(|_| unreachable("the list of Pods timed out"))??;
                Arc::make_mut(&mut base.claims).start_at(start);
            }
            let claims = Claims::clone(&base.claims);
            let is_doubted = batch.iter().any(Ask::is_doubt);
            let mut claims = self.catch_up(key, claims, is_doubted, limit).await?;
            if batch.iter().any(Ask::is_claim) {
                // What the cache has missed may have used up the budget.
                self.follow(now + CALL_TIMEOUT).await.map_err(End::Held)?;
            }
            if let Some(why) = self.store.lost() {
                return Err(unreachable(&*why));
            }
            let position = self.store.position();
            let rests = lane.lock().rests.clone();
            let outcomes = self.store.view(&base.rules, |view| {
                batch
                    .iter()
                    .map(|ask| apply(view, &base.rules, &mut claims, ask, &rests, now))
                    .collect::<Vec<_>>()
            });
            begin_rests(lane, batch, &outcomes, now);
            if claims == *base.claims && !base.is_owed() {
                return Ok(outcomes);
            }
            match timeout_at(limit, self.store.swap(key, &base, &claims)).await {
                Ok(Ok(written)) => {
                    self.counters.writes.fetch_add(1, Ordering::Relaxed);
                    let is_late = written.version > position;
                    lane.lock().written = Some(written);
                    // A write is later than all that the cache has seen, or the cache has seen what was set back.
                    if !is_late {
                        self.assure(&key.namespace).await.map_err(End::Held)?;
                    }
                    return Ok(outcomes);
                }
                Ok(Err(WriteError::Gone)) => return Err(End::Gone),
                Ok(Err(WriteError::Replaced)) => return Err(End::Held(Why::Behind)),
                Ok(Err(WriteError::Unreachable(why))) => return Err(unreachable(why)),
                Ok(Err(WriteError::NotStored(why))) => return Err(End::Held(Why::Unusable(why))),
                Err(_) => return Err(unreachable("the write timed out")),
                Ok(Err(WriteError::Conflict)) => {}
            }
            self.counters.conflicts.fetch_add(1, Ordering::Relaxed);
            pause(round).await;
            let known = base;
            base = timeout_at(Instant::now() + CALL_TIMEOUT, self.store.live(key))
                .await
                .map_err(|_| unreachable("the read timed out"))?
                .map_err(|e| match e {
                    WriteError::Replaced => End::Held(Why::Behind),
                    e => unreachable(e.to_string()),
                })?
                .ok_or(End::Gone)?;
            base = usable(base.outlasting(&known)).map_err(End::Held)?;
        }
        Err(End::Held(Why::Contended))
    }

    /// Waits until the Pod cache has seen all that the claims rest on, and returns the claims. Versions that lie above the
    /// present position of the Pods are taken for that: they are forged, or of another cluster, and nobody could catch up
    /// with them. The ledger is then written even if nothing else has changed.
    async fn catch_up(
        &self,
        key: &RuleKey,
        mut claims: Claims,
        is_doubted: bool,
        limit: Instant,
    ) -> Result<Claims, End> {
        let doubt = limit.min(Instant::now() + DOUBT);
        let caught_up = timeout_at(doubt, self.store.caught_up(claims.watermark)).await;
        if caught_up.is_ok() && !is_doubted {
            return Ok(claims);
        }
        // After the claims were read: whatever they rest on has happened by then.
        let present = timeout_at(limit, self.store.present(&key.namespace)).await;
        let present = present.map_err(|_| unreachable("the list of Pods timed out"))?;
        let present = present.map_err(|e| unreachable(e.to_string()))?;
        if claims.newest() > present {
            let newest = claims.newest();
            warn!(
                namespace = %key.namespace, rule = %key.name, newest, present,
                "the ledger names a version that no Pod has reached yet: it is taken for the present one"
            );
            self.counters.mended.fetch_add(1, Ordering::Relaxed);
            claims.lower_to(present);
        }
        timeout_at(limit, self.store.caught_up(claims.watermark))
            .await
            .map_err(|_| End::Held(Why::Behind))?;
        Ok(claims)
    }

    /// Makes sure that the Pods in etcd are not older than what the cache has seen of them, by a read in this namespace.
    ///
    /// # Errors
    /// [`Why::Unreachable`] if they are, or can't be read.
    pub async fn assure(&self, namespace: &str) -> Result<(), Why> {
        let known = self.store.position();
        let present =
            timeout_at(Instant::now() + CALL_TIMEOUT, self.store.present(namespace)).await;
        let present = present.map_err(|_| Why::Unreachable("the list of Pods timed out".into()))?;
        let present = present.map_err(|e| Why::Unreachable(e.to_string()))?;
        if present < known {
            self.store.set_back(known, present);
        }
        match self.store.lost() {
            Some(why) => Err(Why::Unreachable(why.to_string())),
            None => Ok(()),
        }
    }

    /// Where the ledger begins on which nobody has decided yet. It is read once for each version of the rule object: a
    /// refusal writes nothing, so the next one finds the same version. A ledger that somebody has emptied has another
    /// version, and begins anew.
    async fn start(&self, key: &RuleKey, lane: &Mutex<Lane>, version: u64) -> Result<u64, End> {
        let known = lane.lock().start;
        if let Some((_, position)) = known.filter(|(read_at, _)| *read_at == version) {
            return Ok(position);
        }
        let present = self.store.present(&key.namespace).await;
        let present = present.map_err(|e| unreachable(e.to_string()))?;
        lane.lock().start = Some((version, present));
        Ok(present)
    }

    /// Reads once where the ledgers begin on which nobody has decided yet, before the first of them is written: each write has a
    /// later version, which the Pod cache would have to reach for the next ledger.
    pub(super) async fn start_all(&self, keys: &[RuleKey], deadline: Instant) {
        let mut fresh = Vec::new();
        for key in keys {
            let Ok(Some(base)) = self.current(key) else {
                continue;
            };
            let lane = self.lane(key);
            let known = lane.lock().start;
            if base.claims.watermark == 0 && known.is_none_or(|(at, _)| at != base.version) {
                fresh.push((lane, base.version));
            }
        }
        let Some(key) = keys.first().filter(|_| fresh.len() > 1) else {
            return;
        };
        let limit = deadline.min(Instant::now() + CALL_TIMEOUT);
        // Whoever decides reads it again if this fails.
        if let Ok(Ok(present)) = timeout_at(limit, self.store.present(&key.namespace)).await {
            for (lane, version) in fresh {
                lane.lock().start = Some((version, present));
            }
        }
    }

    /// Counts the outcomes, and answers. Returns what takes back claims that nobody waits for any more.
    fn tell(&self, batch: Vec<Ask>, outcomes: Vec<Outcome>) -> Vec<Ask> {
        let mut unwanted = Vec::new();
        for (ask, outcome) in batch.into_iter().zip(outcomes) {
            let counter = match &outcome {
                Outcome::Answered(Ok(_)) => &self.counters.granted,
                Outcome::Answered(Err(_)) => &self.counters.refused,
                Outcome::Released => &self.counters.released,
                Outcome::Done => continue,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            if let (Outcome::Released, Ask::Release { evidence }) = (&outcome, &ask)
                && evidence.lapsed
            {
                self.counters.lapsed.fetch_add(1, Ordering::Relaxed);
            }
            if let Outcome::Answered(answer) = outcome {
                unwanted.extend(ask.answer(answer));
            }
        }
        unwanted
    }
}

/// Whoever is refused because the claim is closing rests when the claim is gone.
fn begin_rests(lane: &Mutex<Lane>, batch: &[Ask], outcomes: &[Outcome], now: Instant) {
    for (ask, outcome) in batch.iter().zip(outcomes) {
        if let Ask::Claim { disruption, .. } = ask
            && let Outcome::Answered(Err(denied)) = outcome
            && let Why::Closing { .. } = denied.why
        {
            let pod = Uid::from(disruption.pod.metadata.uid.as_str());
            lane.lock().rests.begin(&pod, disruption.operation, now);
        }
    }
}

fn apply(
    view: &dyn View<Uid>,
    rules: &RuleSet,
    claims: &mut Claims,
    ask: &Ask,
    rests: &Rests,
    now: Instant,
) -> Outcome {
    match ask {
        Ask::Claim { disruption, .. } => {
            let pod = &disruption.pod.metadata.uid;
            let rest = rests.left(pod, disruption.operation, now);
            Outcome::Answered(admit(view, rules, claims, disruption, rest))
        }
        Ask::Withdraw {
            pod,
            operation,
            grant,
        } => {
            claims.withdraw(pod, *operation, *grant);
            Outcome::Done
        }
        Ask::Close {
            pod,
            operation,
            opened,
        } => {
            claims.close(pod, *operation, *opened);
            Outcome::Done
        }
        Ask::Release { evidence: e } => {
            if claims.release(e.position, &e.pod, e.operation, e.attempt, e.based_on) {
                Outcome::Released
            } else {
                Outcome::Done
            }
        }
        // Done before all others, and with the write.
        Ask::Mend | Ask::Restore => Outcome::Done,
    }
}

impl Ask {
    fn is_awaited(&self, now: Instant) -> bool {
        match self {
            Ask::Claim {
                deadline, reply, ..
            } => *deadline > now && !reply.is_closed(),
            Ask::Withdraw { .. } | Ask::Release { .. } | Ask::Close { .. } => true,
            Ask::Mend | Ask::Restore => true,
        }
    }
}

/// Waits a random moment that grows with the round: replicas that collided do not collide again.
async fn pause(round: u32) {
    let most = 4u64 << round.min(5);
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=most))).await;
}
