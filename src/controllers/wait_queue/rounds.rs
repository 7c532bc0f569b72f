//! Keeps the latest round of each namespace. A round is judged again when something has changed, but not too often.
//! Requesters in between are parked, and are enqueued once when the next round has ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::super::yielder::REST_FACTOR;
use super::round::Round;
use crate::ledger::store::Uid;

/// A round is judged again after this time even if nothing changes, because claims become old and a Pod is no longer
/// down for a moment.
const ROUND_TTL: Duration = Duration::from_millis(500);

/// Pause of a namespace after a round that panicked.
const REST_AFTER_PANIC: Duration = Duration::from_secs(1);

/// The Pod or rule object that asks for a round, and is enqueued after the next round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    Pod(Uid),
    /// A rule object, by name.
    Rule(String),
}

/// The known round of a namespace.
#[derive(Clone, Debug)]
pub enum RoundLookup {
    Fresh(Arc<Round>),
    /// Something may have changed since the round. Unless the round already lets the requester go, the requester is
    /// enqueued after the next round.
    Stale(Arc<Round>),
    /// No usable round exists. The requester is enqueued after the round that begins.
    Pending,
}

#[derive(Debug, Default)]
pub struct Rounds(Mutex<HashMap<String, NamespaceRounds>>);

#[derive(Debug, Default)]
struct NamespaceRounds {
    round: Arc<Round>,
    /// The time until which the round is up to date if nothing changes; `None` if there was no round.
    good_until: Option<Instant>,
    /// The time before which no other round begins.
    rests_until: Option<Instant>,
    /// Whether something has changed since the round began.
    is_stale: bool,
    /// Whether the next round is running, or waits for the end of the pause.
    is_running: bool,
    /// Whether the last round may be used while the next round is running: the last round was recent when the next
    /// round was requested.
    is_usable: bool,
    parked: HashSet<Requester>,
}

impl Rounds {
    /// Records that something has changed in a namespace.
    pub fn mark_changed(&self, namespace: &str) {
        if let Some(rounds) = self.0.lock().get_mut(namespace) {
            rounds.is_stale = true;
        }
    }

    /// Records that anything may have changed.
    pub fn mark_all_changed(&self) {
        for rounds in self.0.lock().values_mut() {
            rounds.is_stale = true;
        }
    }

    /// Forgets a namespace that is gone.
    pub fn forget_namespace(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }

    /// Returns the round of a namespace, and whether the caller must [run](Rounds::run_next_round) the next round in a
    /// task of its own. Parks the requester unless there is nothing to wait for. A Pod that was next a moment ago may
    /// go at once.
    pub fn look_up_round(&self, namespace: &str, requester: Requester) -> (RoundLookup, bool) {
        let now = Instant::now();
        let mut namespaces = self.0.lock();
        let rounds = namespaces.entry(namespace.to_owned()).or_default();
        let round = Arc::clone(&rounds.round);
        if !rounds.is_stale && rounds.good_until.is_some_and(|until| now < until) {
            return (RoundLookup::Fresh(round), false);
        }
        if !rounds.is_running {
            rounds.is_usable = rounds.rests_until.is_some_and(|until| now < until);
        }
        if rounds.is_usable
            && let Requester::Pod(uid) = &requester
            && round.is_next(uid)
        {
            return (RoundLookup::Stale(round), false);
        }
        rounds.parked.insert(requester);
        let lookup = match rounds.is_usable {
            true => RoundLookup::Stale(round),
            false => RoundLookup::Pending,
        };
        (lookup, !std::mem::replace(&mut rounds.is_running, true))
    }

    /// Waits for the end of the pause, judges one round, and puts back the requesters that were parked until its end.
    pub async fn run_next_round(
        &self,
        namespace: &str,
        judge: impl Future<Output = Round>,
        hand_back: impl Fn(Requester),
    ) {
        let mut running = RunningRound {
            rounds: self,
            namespace,
            hand_back,
            pause: REST_AFTER_PANIC,
        };
        let rests_until = {
            let namespaces = self.0.lock();
            namespaces
                .get(namespace)
                .and_then(|rounds| rounds.rests_until)
        };
        if let Some(until) = rests_until {
            sleep_until(until).await;
        }
        if let Some(rounds) = self.0.lock().get_mut(namespace) {
            rounds.is_stale = false;
        }
        let round = judge.await;
        running.pause = round.elapsed.saturating_mul(REST_FACTOR);
        if let Some(rounds) = self.0.lock().get_mut(namespace) {
            rounds.good_until = Some(Instant::now() + running.pause.max(ROUND_TTL));
            rounds.is_usable = true;
            rounds.round = Arc::new(round);
        }
    }
}

/// A running round. If the round panics or is cancelled, the drop of this value ends it too.
struct RunningRound<'a, H: Fn(Requester)> {
    rounds: &'a Rounds,
    namespace: &'a str,
    hand_back: H,
    /// The pause of the namespace after the round.
    pause: Duration,
}

impl<H: Fn(Requester)> Drop for RunningRound<'_, H> {
    fn drop(&mut self) {
        let mut namespaces = self.rounds.0.lock();
        let Some(rounds) = namespaces.get_mut(self.namespace) else {
            return;
        };
        rounds.is_running = false;
        rounds.rests_until = Some(Instant::now() + self.pause);
        let parked = std::mem::take(&mut rounds.parked);
        drop(namespaces);
        for requester in parked {
            (self.hand_back)(requester);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PODS: usize = 50;

    /// Pods of one namespace that ask for rounds as the lifecycle controller does.
    #[derive(Default)]
    struct World {
        rounds: Rounds,
        judged: AtomicUsize,
        handed: Mutex<Vec<Requester>>,
    }

    fn pod(number: usize) -> Requester {
        Requester::Pod(Uid::from(number.to_string()))
    }

    impl World {
        /// Requests a round. A round that begins takes the time `duration`; a round of zero length has ended after the
        /// next pause.
        fn look_up(self: &Arc<Self>, requester: Requester, duration: Duration) -> RoundLookup {
            let (lookup, must_start) = self.rounds.look_up_round("n", requester);
            if must_start {
                let world = Arc::clone(self);
                tokio::spawn(async move {
                    let judge = async {
                        world.judged.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(duration).await;
                        Round::with_elapsed(duration)
                    };
                    let hand_back = |requester| world.handed.lock().push(requester);
                    world.rounds.run_next_round("n", judge, hand_back).await;
                });
            }
            lookup
        }

        fn judged(&self) -> usize {
            self.judged.load(Ordering::Relaxed)
        }
    }

    async fn pause(millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn all_lookups_share_one_round_and_requeue_once() {
        let world = Arc::new(World::default());
        let duration = Duration::from_millis(40);
        for _ in 0..10 {
            for number in 0..PODS {
                assert!(matches!(
                    world.look_up(pod(number), duration),
                    RoundLookup::Pending
                ));
            }
            pause(3).await; // still within the round
        }
        pause(20).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (1, PODS));
        for number in 0..PODS {
            assert!(matches!(
                world.look_up(pod(number), duration),
                RoundLookup::Fresh(_)
            ));
        }
        pause(2_000).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (1, PODS));
        assert!(matches!(
            world.look_up(pod(0), duration),
            RoundLookup::Pending
        )); // the round is too old
        pause(100).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (2, PODS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_use_at_most_tenth_of_time() {
        for seconds in [1, 2, 10] {
            let world = Arc::new(World::default());
            let duration = Duration::from_secs(seconds);
            for _ in 0..1_100 {
                world.rounds.mark_changed("n");
                for number in 0..PODS {
                    world.look_up(pod(number), duration);
                }
                pause(100 * seconds).await;
            }
            // 110 times the length of a round have passed.
            assert_eq!(world.judged(), 10, "{seconds} s");
            let handed = world.handed.lock().len();
            assert_eq!(handed, 10 * PODS, "each Pod comes back once a round");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn change_during_a_round_brings_another_one() {
        let world = Arc::new(World::default());
        world.look_up(pod(0), Duration::from_millis(10));
        pause(5).await;
        world.rounds.mark_changed("n");
        pause(10).await;
        assert_eq!(world.handed.lock().len(), 1);
        let lookup = world.look_up(pod(0), Duration::ZERO);
        assert!(matches!(lookup, RoundLookup::Stale(_)));
        pause(1_000).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn panicked_round_requeues_parked_requesters() {
        let world = Arc::new(World::default());
        let (_, must_start) = world.rounds.look_up_round("n", pod(0));
        assert!(must_start);
        let failing = Arc::clone(&world);
        let ended = tokio::spawn(async move {
            let judge = async { std::panic::resume_unwind(Box::new("as asked")) };
            let hand_back = |requester| failing.handed.lock().push(requester);
            failing.rounds.run_next_round("n", judge, hand_back).await;
        });
        assert!(ended.await.unwrap_err().is_panic());
        assert_eq!(*world.handed.lock(), [pod(0)]);
        world.look_up(pod(0), Duration::ZERO);
        pause(10).await;
        assert_eq!(world.judged(), 0, "the namespace rests");
        pause(2_000).await;
        assert_eq!(world.judged(), 1);
    }
}
